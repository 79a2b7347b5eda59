//! Storage of a journal: the trait of a store, with implementations in a [file](disk) and, for tests, in memory.
//!
//! A journal is not a log: it holds what is needed to rebuild the pool, and frees the space of what is over. A store makes a group of changes
//! durable as a whole or not at all, and does not interpret them.

mod disk;
#[cfg(any(test, feature = "fuzzing"))]
mod memory;
mod runs;
mod unnamed;

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::pool::{Processor, Step, TaskError};
use crate::wire::{Bytes, Name};

pub(crate) use disk::Disk;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use memory::Memory;

/// The record of a job, apart from its tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    pub(crate) nonce: u128,
    pub(crate) name: String,
    pub(crate) closed: bool,
    pub(crate) cancelled: bool,
    pub(crate) again: Again,
}

/// The record of a job's retries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Again {
    /// How many retries there were.
    pub(crate) runs: u32,
    /// How many places of the completion order had been assigned at the last retry, including those of tasks that were to run again.
    pub(crate) places: u64,
    /// Nonces of the latest requests, and how many tasks each made run again.
    pub(crate) asked: Vec<(u128, u64)>,
}

/// The end of a task that a client has added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) head: Head,
    pub(crate) result: Result<Bytes, TaskError>,
}

/// The part of it that the pool keeps in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// How many tasks of its job ended before.
    pub(crate) position: u64,
    pub(crate) failed: bool,
}

/// A change to the store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// How many pools have opened the journal, and a number that is unique to the last one.
    Term(u32, u64),
    /// Fingerprint of the functions that tasks name.
    Functions(u64),
    /// The number of the next job. No number is used twice.
    NextJob(u32),
    Job(u32, JobRecord),
    /// Removes everything of this job.
    Forget(u32),
    /// An encoded chunk of tasks, and the number of its first task.
    Added(u32, u64, Bytes),
    Ended(u32, u64, Ended),
    /// These tasks, which all had a result, run again under names of this run.
    Unended(u32, Range<u64>, u32),
    /// `Took` or `Failed`, for a family of sub-tasks.
    Step(Step),
    FamilyOver(u32, u64),
    Started(Name, Processor),
    Settled(Name),
    /// The result of this task names these large values. They are stored in separate files, so the journal does not record this.
    Keeps(Name, Vec<u64>),
}

/// The key under which a step of a family is stored.
fn key(step: &Step) -> Option<(u32, u64, u64)> {
    match step {
        Step::Took { name, serial, .. } | Step::Failed { name, serial, .. } => {
            Some((name.job, name.number, *serial))
        }
        _ => None,
    }
}

/// The family of sub-tasks to which a step belongs.
pub(crate) fn family(step: &Step) -> Option<(u32, u64)> {
    key(step).map(|(job, number, _)| (job, number))
}

/// Everything that a pool is rebuilt from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saved {
    pub(crate) term: u32,
    /// The numbers of all pools that have used the journal, in order.
    pub(crate) pools: Vec<u64>,
    pub(crate) next_job: u32,
    /// Fingerprint of all functions; journals written before it was recorded have none.
    pub(crate) functions: Option<u64>,
    pub(crate) jobs: Vec<(u32, JobRecord)>,
    /// By job and number of the first task.
    pub(crate) added: Vec<(u32, u64, Bytes)>,
    pub(crate) ended: Vec<(u32, u64, Head)>,
    /// Tasks that were to run again, and in which run; by job and run.
    pub(crate) again: Vec<(u32, Range<u64>, u32)>,
    /// In the order in which they happened.
    pub(crate) steps: Vec<Step>,
    pub(crate) started: Vec<(Name, Processor)>,
}

impl Saved {
    /// Checks that a program with functions of this fingerprint can use the journal: tasks name their functions by number.
    pub(crate) fn check_functions(&self, own: u64) -> Result<(), StoreError> {
        match self.functions {
            Some(other) if other != own && !self.jobs.is_empty() => Err(StoreError::Other(format!(
                "its tasks are of a program with other functions ({other:016x}) than this one ({own:016x}); serve it with that program, or name another file"
            ))),
            _ => Ok(()),
        }
    }
}

/// Why an operation of a store failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The file is not a journal of this program, or of another version of it.
    Foreign {
        /// What it is.
        why: String,
    },
    /// Another process has it open.
    InUse,
    /// Its content is inconsistent.
    Damaged {
        /// What.
        why: String,
    },
    /// It could not be read or written, for example because the disk is full. A later attempt may succeed.
    Io(std::io::Error),
    /// Anything else.
    Other(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign { why } => {
                write!(f, "it is not a journal of this version of pdbp-tasks ({why}); name another file")
            }
            Self::InUse => f.write_str("another process has it open; only one pool can use a journal"),
            Self::Damaged { why } => {
                write!(
                    f,
                    "it is damaged ({why}); restore an intact copy, or name another file; a torn end of this file may have been discarded"
                )
            }
            Self::Io(error) => error.fmt(f),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// A store, as the committing thread uses it.
pub(crate) trait Store: Send {
    /// Makes all changes durable, or none. When it returns, they survive any crash. After an error it is called again with the same changes; if
    /// they are durable after all, they are not made twice.
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;
}

/// A store, as the pool's thread reads it.
pub(crate) trait Reader: Send {
    /// Returns how a task ended, if that is durable.
    fn ended(&self, job: u32, number: u64) -> Result<Option<Ended>, StoreError>;

    /// Another reader of the same store.
    #[cfg(test)]
    fn clone_reader(&self) -> Box<dyn Reader>;
}

#[cfg(test)]
impl Clone for Box<dyn Reader> {
    fn clone(&self) -> Self {
        (**self).clone_reader()
    }
}
