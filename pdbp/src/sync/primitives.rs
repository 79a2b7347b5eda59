//! What the biased lock, the queues and the lists of wakers are made of. `tests/biased.rs`, `tests/queues.rs` and `tests/tasks.rs` put loom's
//! in its place.

use std::sync::TryLockError;
use std::sync::atomic::compiler_fence;

pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering, fence};
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

/// Takes a lock that nobody holds. What a panic has left there does no harm.
pub(super) fn try_lock(lock: &Mutex<()>) -> Option<std::sync::MutexGuard<'_, ()>> {
    match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Waits until something is over, which it soon is.
pub(super) fn wait_while(goes_on: impl Fn() -> bool) {
    while goes_on() {
        std::thread::yield_now();
    }
}

/// Two barriers that pair with each other as sequentially consistent fences do: one that costs nothing and one that costs a system call;
/// where the kernel has none, they are such fences.
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

    /// A light barrier if these are free; else none.
    #[inline(always)]
    pub(super) fn light_if_free(&self) {
        compiler_fence(Ordering::SeqCst);
    }

    /// `false`: it could not be.
    pub(super) fn heavy(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.asymmetric || is_passed_by_all()
    }
}

/// Whether the kernel makes all threads of the process pass a barrier when one of them asks for it. With a second thread in the process the first call
/// waits for all processors of the machine.
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
