//! How parts and threads of the desk wake its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// Wakes the server when something has arrived for an exchange.
pub(super) struct Bell {
    rung: AtomicBool,
    waker: Arc<mio::Waker>,
}

impl Bell {
    pub(super) fn new(waker: &Arc<mio::Waker>) -> Self {
        Self { rung: AtomicBool::new(false), waker: Arc::clone(waker) }
    }

    /// Whether it has rung since the last call. Must precede the look at what has arrived: whatever arrives later rings again.
    pub(super) fn take_ring(&self) -> bool {
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Rings for an event other than a message.
    pub(super) fn ring(self: &Arc<Self>) {
        self.wake_by_ref();
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Pairs with the swap in `take_ring`, after which the server checks all exchanges.
        if !self.rung.swap(true, Ordering::AcqRel) {
            // Fails once the server is gone.
            let _ = self.waker.wake();
        }
    }
}
