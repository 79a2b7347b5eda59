//! What the doorbell and the slate are made of. `tests/doorbell.rs` puts loom's in its place, and so does `tests/slate.rs` for the slate.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(super) use std::sync::{Condvar, Mutex, PoisonError};

/// Words of 0 that nobody has touched: the system gives each page when it is written. `None` where there is no memory for them.
pub(super) fn zeros(words: usize) -> Option<Box<[AtomicU64]>> {
    zerocopy::FromZeros::new_box_zeroed_with_elems(words).ok()
}
