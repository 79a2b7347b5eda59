//! What threads share at little cost: values that their owner locks for nothing, and values that are counted.

mod biased;
#[cfg(test)]
mod biased_tests;
mod counted;
mod primitives;
mod tasks;

pub(crate) use biased::{Owner, Visitor, Windowed};
pub(crate) use counted::{Count, Counted, Inner};
pub(crate) use tasks::{Tasks, Waiting};
