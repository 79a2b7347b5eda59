//! What the doorbell is made of. `tests/doorbell.rs` puts loom's in its place.

pub(super) use std::sync::atomic::{AtomicU32, Ordering, fence};
pub(super) use std::sync::{Condvar, Mutex, PoisonError};
