//! The words of a bell: a count for the futex, and whether anybody sleeps.

use std::time::Duration;

use crate::futex;
use crate::sync::{AtomicU32, Ordering, fence};

/// The words of a bell, in a process' part of the window.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a> {
    /// Counts the rings that found a sleeper.
    pub(crate) rings: &'a AtomicU32,
    pub(crate) sleepers: &'a AtomicU32,
}

impl Words<'_> {
    /// Wakes the sleepers. Costs a fence and a load when there are none.
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `sleep`: either the sleeper sees what was put in place, or it is counted here.
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
