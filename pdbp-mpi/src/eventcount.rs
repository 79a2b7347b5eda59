//! An eventcount that processes share: a futex word that counts, and the number of sleepers.

use std::time::Duration;

use crate::futex;
use crate::sync::{AtomicU32, Ordering, fence};

/// An eventcount in a process' part of the window. Threads sleep on it; other threads and processes ring it when
/// they have work for them.
#[derive(Clone, Copy)]
pub(crate) struct Eventcount<'a> {
    /// Counts the rings that found a sleeper.
    pub(crate) rings: &'a AtomicU32,
    pub(crate) sleepers: &'a AtomicU32,
}

impl Eventcount<'_> {
    /// Wakes the sleepers. Costs a fence and a load if there are none.
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `sleep`: either the sleeper sees the work that was published, or it is counted
        // here.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.rings.fetch_add(1, Ordering::Relaxed);
            futex::wake_all(self.rings);
        }
    }

    pub(crate) fn sleep(&self, timeout: Duration, is_idle: &mut dyn FnMut() -> bool) {
        let before = self.rings.load(Ordering::Relaxed);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        if is_idle() {
            futex::wait(self.rings, before, timeout);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}
