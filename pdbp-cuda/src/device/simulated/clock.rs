//! Virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Virtual time, from 0 on. Clones share the clock, so several devices and what connects them can use one.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Makes a clock that stands at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The time since 0.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    /// Advances to that time; does nothing if it is in the past.
    pub fn advance_to(&self, time: Duration) {
        self.advance_to_nanos(time.as_nanos() as u64);
    }

    pub(super) fn nanos(&self) -> u64 {
        // A number on which nothing else depends.
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn advance_to_nanos(&self, nanos: u64) {
        self.0.fetch_max(nanos, Ordering::Relaxed);
    }
}
