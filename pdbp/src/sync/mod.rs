//! Cheap sharing between threads: a lock that is free for its owner, counted values, and queues.

mod biased;
#[cfg(test)]
mod biased_tests;
mod counted;
mod primitives;
mod ring;
#[cfg(test)]
mod ring_tests;
mod stack;
mod task_leader;
mod tasks;

pub(crate) use biased::{Owner, Visitor, Windowed};
pub(crate) use counted::{AnyThread, Chain, Count, Counted, Inner, Last, OneThread, Shareable};
use primitives::is_registered;
pub(crate) use primitives::try_lock;
pub(crate) use ring::Ring;
pub(crate) use stack::Stack;
pub(crate) use task_leader::TaskLeader;
pub(crate) use tasks::{Tasks, WakerList};

/// Sets up the process once, for all its clusters. [`Builder::start`](crate::Builder::start) calls it if nobody has.
///
/// On Linux it registers with the kernel that threads of this process will be made to pass a barrier (`membarrier(2)`). That
/// takes a microsecond while the process has one thread, and 7 to 15 ms later. A program that starts threads before its cluster,
/// and must start quickly, calls this first.
pub fn prepare() {
    is_registered();
}
