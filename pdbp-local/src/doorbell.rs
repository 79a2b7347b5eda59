//! A bell on which a thread sleeps until a peer has pushed something into a ring.

use std::time::Duration;

use pdbp_core::Bell;

use super::sync::{AtomicU32, Condvar, Mutex, Ordering, PoisonError, fence};

/// Wakes threads that wait for a node. Ringing costs a fence and a load when no thread sleeps.
#[derive(Debug, Default)]
pub struct Doorbell {
    sleepers: AtomicU32,
    rings: Mutex<u64>,
    wake: Condvar,
}

impl Doorbell {
    /// Wakes all sleepers. Call this after publishing what they should see.
    #[inline]
    pub fn ring(&self) {
        // Pairs with the fence in `sleep`: either the sleeper sees what was published, or it is counted here.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.wake.notify_all();
    }

    /// Sleeps until the bell rings, at most for `timeout`; may wake spuriously. `is_idle` checks once more, after the bell is armed, that there
    /// is really nothing to do.
    pub fn sleep(&self, timeout: Duration, is_idle: impl FnOnce() -> bool) {
        let before = *self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        if is_idle() {
            let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
            if *rings == before {
                drop(self.wake.wait_timeout(rings, timeout).unwrap_or_else(PoisonError::into_inner));
            }
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Bell for Doorbell {
    fn ring(&self) {
        Self::ring(self);
    }

    fn sleep(&self, timeout: Duration, is_idle: &mut dyn FnMut() -> bool) {
        Self::sleep(self, timeout, is_idle);
    }
}
