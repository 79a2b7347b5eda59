//! A bell that other processes of the host can ring: a futex in the window.

use std::sync::Arc;
use std::time::Duration;

use pdbp_core::Bell;

use crate::sync::{AtomicU32, Ordering, fence};
use crate::window::Region;

/// Longest sleep of a node that has peers on other hosts: nobody can ring for what they send.
const FAR_NAP: Duration = Duration::from_micros(40);

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

/// The bell of a node: peers on its host ring it, and threads of its own process.
pub struct WindowBell {
    region: Arc<Region>,
    /// Longest sleep.
    nap: Duration,
}

impl WindowBell {
    pub(crate) fn new(region: Arc<Region>, has_far_peers: bool) -> Self {
        Self { region, nap: if has_far_peers { FAR_NAP } else { Duration::MAX } }
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

#[cfg(target_os = "linux")]
mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex::{Flags, Timespec, wait as futex_wait, wake};

    /// Sleeps while the word has the value, at most for `timeout`.
    pub(super) fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
        // A timeout too long for the clock is none.
        let timeout = Timespec::try_from(timeout).ok();
        // Whatever ends the sleep, the caller looks again.
        let _ = futex_wait(word, Flags::empty(), value, timeout.as_ref());
    }

    pub(super) fn wake_all(word: &AtomicU32) {
        let _ = wake(word, Flags::empty(), i32::MAX as u32);
    }
}

#[cfg(not(target_os = "linux"))]
mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// There is no futex between processes here: a short sleep.
    pub(super) fn wait(_word: &AtomicU32, _value: u32, timeout: Duration) {
        std::thread::sleep(timeout.min(Duration::from_micros(100)));
    }

    pub(super) fn wake_all(_word: &AtomicU32) {}
}
