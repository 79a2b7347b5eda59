//! Which processor held which task when; with the feature `cli` as a page: one line per processor, one bar per hold.

#[cfg(feature = "cli")]
mod page;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pool::Processor;
use crate::wire::TaskId;

#[cfg(feature = "cli")]
pub use page::page;

/// One hold of a task by a processor: see [`Tasks::record`](crate::Tasks::record).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The processor.
    pub processor: Processor,
    /// The task.
    pub task: TaskId,
    /// When it was handed out, since the pool's start. With several tasks at a time the later ones wait for the first.
    pub since: Duration,
    /// When the hold ended.
    pub until: Duration,
    /// How the hold ended.
    pub fate: Fate,
}

/// How the hold of a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fate {
    /// Its result was taken.
    Taken,
    /// It failed.
    Failed,
    /// The processor was told to drop it: another was faster, or the job was cancelled.
    Dropped,
    /// The processor was lost.
    Lost,
}
