//! The atomics of the standard library; the loom test puts loom's in their place.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
