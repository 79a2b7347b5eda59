//! What threads share at little cost: values that their owner locks for nothing, values that are counted, and queues.

mod biased;
#[cfg(test)]
mod biased_tests;
mod counted;
mod primitives;
mod ring;
#[cfg(test)]
mod ring_tests;
mod stack;
mod tasks;

pub(crate) use biased::{Owner, Visitor, Windowed};
pub(crate) use counted::{AnyThread, Chain, Count, Counted, Inner, Last, OneThread, Shareable};
use primitives::is_registered;
pub(crate) use ring::Ring;
pub(crate) use stack::Stack;
pub(crate) use tasks::{Tasks, Waiting};

/// What a process does once, for all its clusters. [`Builder::start`](crate::Builder::start) does it, if nobody has.
///
/// On Linux it tells the kernel that threads of this process are to be made to pass a barrier (`membarrier(2)`), which takes a microsecond as long as
/// there is one thread, and 7 to 15 ms later: a program that starts threads before its cluster, and is to be there soon, calls it first.
pub fn prepare() {
    is_registered();
}
