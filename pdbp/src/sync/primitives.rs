//! Primitives for the biased lock, the queues and the lists of wakers. `tests/biased.rs`, `tests/queues.rs` and `tests/tasks.rs`
//! replace them with loom's.

use std::sync::TryLockError;
use std::sync::atomic::compiler_fence;

pub(super) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};

/// A cell without checks.
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Takes a lock if nobody holds it. What a panic has left there does no harm.
pub(crate) fn try_lock(lock: &Mutex<()>) -> Option<std::sync::MutexGuard<'_, ()>> {
    match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Waits until something is over that will be over soon.
pub(super) fn wait_while(goes_on: impl Fn() -> bool) {
    while goes_on() {
        std::thread::yield_now();
    }
}

/// Two barriers that pair like sequentially consistent fences: the light one is free, the heavy one costs a system call. If the
/// kernel has none, both are such fences.
pub(super) struct Barriers {
    asymmetric: bool,
}

impl Barriers {
    pub(super) fn new() -> Self {
        Self { asymmetric: is_registered() }
    }

    /// Whether light barriers cost nothing.
    pub(super) fn are_free(&self) -> bool {
        self.asymmetric
    }

    #[inline(always)]
    pub(super) fn light(&self) {
        if self.asymmetric { compiler_fence(Ordering::SeqCst) } else { fence(Ordering::SeqCst) }
    }

    /// A light barrier if that is free; otherwise nothing.
    #[inline(always)]
    pub(super) fn light_if_free(&self) {
        compiler_fence(Ordering::SeqCst);
    }

    /// Returns `false` if the barrier failed.
    pub(super) fn heavy(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.asymmetric || is_passed_by_all()
    }
}

/// Whether the kernel makes all threads of the process pass a barrier when one of them asks. If the process has a second thread,
/// the first call waits for all processors of the machine.
#[cfg(target_os = "linux")]
pub(crate) fn is_registered() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};
    static REGISTERED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *REGISTERED.get_or_init(|| {
        membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    })
}

#[cfg(target_os = "linux")]
fn is_passed_by_all() -> bool {
    rustix::thread::membarrier(rustix::thread::MembarrierCommand::PrivateExpedited).is_ok()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn is_registered() -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn is_passed_by_all() -> bool {
    false
}
