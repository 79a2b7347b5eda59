//! The primitives of the doorbell and the slate. `tests/doorbell.rs` replaces them with loom's, and so does `tests/slate.rs` for the
//! slate.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(super) use std::sync::{Condvar, Mutex, PoisonError};

/// Zeroed words that have not been touched: the system allocates each page when it is written. `None` if there is no memory for them.
pub(super) fn zeros(words: usize) -> Option<Box<[AtomicU64]>> {
    zerocopy::FromZeros::new_box_zeroed_with_elems(words).ok()
}
