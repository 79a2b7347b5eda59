//! Sleeping on a word that processes share.

pub(crate) use implementation::{wait, wake_all};

#[cfg(target_os = "linux")]
mod implementation {
    use std::ffi::{c_int, c_long};
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Sleeps while the word has the value, at most for `timeout`.
    pub(crate) fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
        // What the system call has as a `timespec`. A timeout too long for the clock is the longest.
        let seconds = c_long::try_from(timeout.as_secs()).unwrap_or(c_long::MAX);
        let timeout = [seconds, timeout.subsec_nanos() as c_long];
        let (word, timeout) = (word.as_ptr(), &raw const timeout);
        // SAFETY: both addresses are of values that outlive the call. Whatever ends the sleep, the caller looks again.
        let _ = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, timeout) };
    }

    pub(crate) fn wake_all(word: &AtomicU32) {
        // SAFETY: the address is that of a word, which is not accessed.
        let _ = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
    }
}

#[cfg(not(target_os = "linux"))]
mod implementation {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// There is no futex between processes here: a short sleep.
    pub(crate) fn wait(_word: &AtomicU32, _value: u32, timeout: Duration) {
        std::thread::sleep(timeout.min(Duration::from_micros(100)));
    }

    pub(crate) fn wake_all(_word: &AtomicU32) {}
}
