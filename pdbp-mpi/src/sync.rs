//! The atomics of the standard library; the loom test replaces them with loom's.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Prefetches the cache line of an address.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: reads nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
