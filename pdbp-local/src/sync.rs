//! What the doorbell and the slate are made of. `tests/doorbell.rs` puts loom's in its place, and so does `tests/slate.rs` for the slate.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(super) use std::sync::{Condvar, Mutex, PoisonError};
