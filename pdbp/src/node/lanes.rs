//! The open blocks of all parts of a node, for whoever polls it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use pdbp_core::id::Time;
use pdbp_core::outbox::Due;

use super::shared::{NodeEngine, Shared};
use crate::config::Progress;
use crate::part::{Lanes, SharedLanes};

impl Shared {
    /// Submits the open blocks of parts that others may flush: those past their time, or all. Returns how many, and when to
    /// look again, if any may be left.
    pub(super) fn flush_lanes(
        &self,
        engine: &mut NodeEngine,
        now: Time,
        all: bool,
        own: Option<&Lanes>,
    ) -> (u32, Option<Time>) {
        let after = self.settings.flush_after.as_nanos() as u64;
        if self.settings.progress == Progress::Inline {
            return (0, None);
        }
        // Pairs with nothing: the engine's lock orders the calls.
        let scanned = Time(self.scanned.load(Ordering::Relaxed));
        if !all && now.since(scanned) < after {
            return (0, Some(scanned.after(after)));
        }
        self.scanned.store(now.0, Ordering::Relaxed);
        let due = if all { Due::All } else { Due::Past(now) };
        let (mut blocks, mut left) = (0, false);
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(SharedLanes::is_alive);
        // The part that polls flushes its own more cheaply.
        for lanes in lanes.iter().filter(|lanes| own.is_none_or(|own| !own.is(lanes))) {
            let flushed = lanes.flush(engine, due);
            blocks += flushed.blocks;
            left |= flushed.left.is_some();
        }
        (blocks, left.then(|| now.after(after)))
    }

    pub(crate) fn share_lanes(&self, shared: SharedLanes) {
        {
            let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.retain(SharedLanes::is_alive);
            lanes.push(shared);
        }
        // If it is not seen yet, `disturb_lanes` takes the lock later and finds them.
        if self.recurrence.looks() != 0 {
            self.disturb_lanes();
        }
    }

    /// From now on every part checks [`Recurrence`] before each message.
    pub(super) fn disturb_lanes(&self) {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().for_each(SharedLanes::disturb);
    }

    /// From now on every part looks for whom it sends to: somebody is to wait. Under the engine's lock.
    #[cfg(feature = "net")]
    pub(crate) fn look_before_sending(&self) {
        self.recurrence.look();
        self.disturb_lanes();
    }

    /// Nobody is to wait any more. Under the engine's lock.
    #[cfg(feature = "net")]
    pub(crate) fn send_at_once(&self) {
        if self.recurrence.rest() {
            let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.iter().for_each(SharedLanes::settle);
        }
    }
}
