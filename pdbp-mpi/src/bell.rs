//! A bell that other processes of the host can ring: a futex in the window.

use std::sync::Arc;
use std::time::Duration;

use pdbp_core::Bell;

use crate::window::Region;

/// Longest sleep of a node with peers on other hosts, which cannot ring when they send.
const REMOTE_POLL_INTERVAL: Duration = Duration::from_micros(40);

/// The bell of a node: rung by peers on its host, and by threads of its own process.
pub struct WindowBell {
    region: Arc<Region>,
    /// Longest sleep.
    nap: Duration,
}

impl WindowBell {
    pub(crate) fn new(region: Arc<Region>, has_remote_peers: bool) -> Self {
        Self { region, nap: if has_remote_peers { REMOTE_POLL_INTERVAL } else { Duration::MAX } }
    }
}

impl Bell for WindowBell {
    fn ring(&self) {
        self.region.own().bell().ring();
    }

    fn sleep(&self, timeout: Duration, is_idle: &mut dyn FnMut() -> bool) {
        self.region.own().bell().sleep(timeout.min(self.nap), is_idle);
    }
}
