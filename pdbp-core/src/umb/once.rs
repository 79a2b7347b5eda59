//! Values in statics that can be taken once.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;

/// A value in a `static` that the first caller takes permanently, such as block memory and tables of a node without a heap.
///
/// On processors without compare-and-swap, such as a Cortex-M0, [`take`](Self::take) needs the feature `critical-section` and a
/// program that provides an implementation of critical sections.
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

// SAFETY: only one caller of `take` gets the value, on whatever thread, and there is no other access to it.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    /// Wraps a value that has not been taken.
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the value; `None` if it was taken before.
    #[cfg(any(target_has_atomic = "8", feature = "critical-section"))]
    #[expect(clippy::mut_from_ref, reason = "it gives one reference, once")]
    pub fn take(&'static self) -> Option<&'static mut T> {
        if self.is_taken() {
            return None;
        }
        // SAFETY: `is_taken` returns `false` only once, so this is the only reference.
        Some(unsafe { &mut *self.value.get() })
    }

    /// Marks the value as taken; returns whether an earlier call had taken it.
    #[cfg(target_has_atomic = "8")]
    fn is_taken(&self) -> bool {
        // Pairs with nothing: the value is unchanged since the start of the program, and only one caller gets it.
        self.taken.swap(true, core::sync::atomic::Ordering::Relaxed)
    }

    /// Marks the value as taken; returns whether an earlier call had taken it.
    #[cfg(all(not(target_has_atomic = "8"), feature = "critical-section"))]
    fn is_taken(&self) -> bool {
        use core::sync::atomic::Ordering::Relaxed;
        critical_section::with(|_| {
            // Pairs with nothing: nobody else runs in a critical section.
            let taken = self.taken.load(Relaxed);
            self.taken.store(true, Relaxed);
            taken
        })
    }
}
