//! Values in statics that can be taken once.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;

/// A value in a `static` that the first caller takes for good: block memory and tables of a node without a heap.
///
/// On processors without compare-and-swap, such as a Cortex-M0, [`take`](Self::take) needs the feature `critical-section`, and a
/// program that defines how to enter one.
///
/// ```
/// use pdbp_core::umb::Once;
///
/// static BYTES: Once<[u8; 64]> = Once::new([0; 64]);
///
/// let bytes: &'static mut [u8; 64] = BYTES.take().ok_or("nobody has them yet")?;
/// bytes[0] = 1;
/// assert!(BYTES.take().is_none());
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug)]
pub struct Once<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one caller of `take` gets the value, on whatever thread; there is no other way to it.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    /// A value that has not been taken.
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// The value; `None` if it has been taken before.
    #[cfg(any(target_has_atomic = "8", feature = "critical-section"))]
    #[expect(clippy::mut_from_ref, reason = "it gives one reference, once")]
    pub fn take(&'static self) -> Option<&'static mut T> {
        if self.is_taken() {
            return None;
        }
        // SAFETY: `is_taken` says `false` once, so that this is the only reference.
        Some(unsafe { &mut *self.value.get() })
    }

    /// Whether an earlier call has taken it; marks it as taken.
    #[cfg(target_has_atomic = "8")]
    fn is_taken(&self) -> bool {
        // Pairs with nothing: the value is as it was at the start of the program, and goes to one caller.
        self.taken.swap(true, core::sync::atomic::Ordering::Relaxed)
    }

    /// Whether an earlier call has taken it; marks it as taken.
    #[cfg(all(not(target_has_atomic = "8"), feature = "critical-section"))]
    fn is_taken(&self) -> bool {
        use core::sync::atomic::Ordering::Relaxed;
        critical_section::with(|_| {
            // Pairs with nothing, as nobody else runs.
            let taken = self.taken.load(Relaxed);
            self.taken.store(true, Relaxed);
            taken
        })
    }
}
