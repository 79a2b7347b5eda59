//! Tasks.
#![forbid(unsafe_code)]
mod error;
mod job;
mod kind;
pub mod pool;
mod program;
mod scope;
mod serve;
mod slot;
#[cfg(test)]
mod tests;
pub mod wire;
pub mod worker;

pub use error::{AddError, Error};
pub use job::{Done, Handle, InOrder, Job, New, Progress, Results, Tasks};
pub use kind::Kind;
pub use pool::{Counts, Limits, Refused, TaskError};
pub use program::Program;
pub use scope::{Given, NewSub, Scope, Sub};
