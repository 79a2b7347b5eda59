//! A token's home: where it must be returned.

#[cfg(feature = "alloc")]
pub(super) use counted::Origin;
#[cfg(not(feature = "alloc"))]
pub(super) use uncounted::Origin;

/// With a heap: counts tokens that were dropped instead of returned.
#[cfg(feature = "alloc")]
mod counted {
    use alloc::boxed::Box;
    use core::ptr::NonNull;
    use core::sync::atomic::{AtomicUsize, Ordering};

    /// Identifies the maker of a token, and counts its dropped tokens. No two makers with outstanding tokens are equal, so a token
    /// from another region with the same block number is recognised.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in crate::umb) struct Origin(NonNull<AtomicUsize>);

    // SAFETY: the value is the address of an atomic.
    unsafe impl Send for Origin {}
    // SAFETY: as for `Send`.
    unsafe impl Sync for Origin {}

    impl Origin {
        pub(in crate::umb) fn new(_region: NonNull<u8>) -> Self {
            Self(NonNull::from(Box::leak(Box::new(AtomicUsize::new(0)))))
        }

        /// Counts a dropped token.
        ///
        /// # Safety
        /// [`free`](Self::free) was not called.
        pub(in crate::umb) unsafe fn count_dropped(self) {
            // SAFETY: made in `new`, and not freed.
            let dropped = unsafe { self.0.as_ref() };
            // Pairs with the load in `dropped`: a thread that sees the count also sees everything done with the token.
            dropped.fetch_add(1, Ordering::Release);
        }

        /// Number of dropped tokens.
        ///
        /// # Safety
        /// [`free`](Self::free) was not called.
        pub(in crate::umb) unsafe fn dropped(self) -> usize {
            // SAFETY: as above.
            let dropped = unsafe { self.0.as_ref() };
            // Pairs with the addition in `count_dropped`.
            dropped.load(Ordering::Acquire)
        }

        /// # Safety
        /// Call this once, when no token is left.
        pub(in crate::umb) unsafe fn free(self) {
            // SAFETY: `new` made it from a box, and nobody uses it any more.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

/// Without a heap, nothing is counted and a region with missing tokens stays in place. It is static memory, which stays anyway.
#[cfg(not(feature = "alloc"))]
mod uncounted {
    use core::ptr::NonNull;

    /// Identifies the maker of a token: the address of the region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in crate::umb) struct Origin(NonNull<u8>);

    // SAFETY: the value is an address that is never dereferenced.
    unsafe impl Send for Origin {}
    // SAFETY: as for `Send`.
    unsafe impl Sync for Origin {}

    impl Origin {
        pub(in crate::umb) fn new(region: NonNull<u8>) -> Self {
            Self(region)
        }

        /// # Safety
        /// No requirement; the signature matches the version with a heap.
        pub(in crate::umb) unsafe fn count_dropped(self) {}

        /// # Safety
        /// No requirement; the signature matches the version with a heap.
        pub(in crate::umb) unsafe fn dropped(self) -> usize {
            0
        }

        /// # Safety
        /// No requirement; the signature matches the version with a heap.
        pub(in crate::umb) unsafe fn free(self) {}
    }
}
