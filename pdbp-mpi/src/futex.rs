//! Sleeping on a word that processes share.

pub(crate) use implementation::{wait, wake_all};

#[cfg(target_os = "linux")]
mod implementation {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex::{Flags, Timespec, wait as futex_wait, wake};

    /// Sleeps while the word has this value, at most for `timeout`.
    pub(crate) fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
        // A timeout too long for the clock means none.
        let timeout = Timespec::try_from(timeout).ok();
        // Whatever ends the sleep, the caller checks again.
        let _ = futex_wait(word, Flags::empty(), value, timeout.as_ref());
    }

    pub(crate) fn wake_all(word: &AtomicU32) {
        let _ = wake(word, Flags::empty(), i32::MAX as u32);
    }
}

#[cfg(not(target_os = "linux"))]
mod implementation {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// This system has no futex between processes: sleeps briefly.
    pub(crate) fn wait(_word: &AtomicU32, _value: u32, timeout: Duration) {
        std::thread::sleep(timeout.min(Duration::from_micros(100)));
    }

    pub(crate) fn wake_all(_word: &AtomicU32) {}
}
