//! Where a journal lies: the trait of a store, in a [file](disk), and for tests in memory.
//!
//! A journal is no log: it has what is needed to make the pool anew, and what is over gives its space back. A store makes a group of changes
//! durable as a whole or not at all, and knows nothing of what they mean.

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

/// What is known of a job beside its tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    pub(crate) nonce: u128,
    pub(crate) name: String,
    pub(crate) closed: bool,
    pub(crate) cancelled: bool,
    pub(crate) again: Again,
}

/// What is known of the times when tasks of a job that had failed were to run again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Again {
    /// How many there were.
    pub(crate) runs: u32,
    /// Places in the order in which its tasks end that had been given the last time, those of tasks that ran again among them.
    pub(crate) places: u64,
    /// Nonces of the last requests, and how many tasks ran again.
    pub(crate) asked: Vec<(u128, u64)>,
}

/// What came of a task that a client has added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) head: Head,
    pub(crate) result: Result<Bytes, TaskError>,
}

/// What the pool's memory keeps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// How many of its job were over before.
    pub(crate) position: u64,
    pub(crate) failed: bool,
}

/// A change of what is in the store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// How many pools have taken the journal up, and a number that no other pool has for the last one.
    Term(u32, u64),
    /// Fingerprint of the functions of all tasks.
    Functions(u64),
    /// The number of the next job. None is used twice.
    NextJob(u32),
    Job(u32, JobRecord),
    /// Nothing of this job is left.
    Forget(u32),
    /// An encoded chunk of tasks, and the number of the first.
    Added(u32, u64, Bytes),
    Ended(u32, u64, Ended),
    /// These run again, with names of this run. All of them had a result.
    Unended(u32, Range<u64>, u32),
    /// `Took` or `Failed`, of a family of sub-tasks.
    Step(Step),
    FamilyOver(u32, u64),
    Started(Name, Processor),
    Settled(Name),
    /// The result of this task names these large values. They lie in files of their own, so nothing of it is in the journal.
    Keeps(Name, Vec<u64>),
}

/// Where a step of a family lies.
fn key(step: &Step) -> Option<(u32, u64, u64)> {
    match step {
        Step::Took { name, serial, .. } | Step::Failed { name, serial, .. } => {
            Some((name.job, name.number, *serial))
        }
        _ => None,
    }
}

/// The family of sub-tasks that a step is of.
pub(crate) fn family(step: &Step) -> Option<(u32, u64)> {
    key(step).map(|(job, number, _)| (job, number))
}

/// All that a pool is made anew of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saved {
    pub(crate) term: u32,
    /// The numbers of all pools that have had it, the first one's first.
    pub(crate) pools: Vec<u64>,
    pub(crate) next_job: u32,
    /// Of all functions; journals of before that was noted have none.
    pub(crate) functions: Option<u64>,
    pub(crate) jobs: Vec<(u32, JobRecord)>,
    /// By job and number.
    pub(crate) added: Vec<(u32, u64, Bytes)>,
    pub(crate) ended: Vec<(u32, u64, Head)>,
    /// Tasks that were to run again, in this run, by job and run.
    pub(crate) again: Vec<(u32, Range<u64>, u32)>,
    /// In the order in which they happened.
    pub(crate) steps: Vec<Step>,
    pub(crate) started: Vec<(Name, Processor)>,
}

impl Saved {
    /// Whether a program with the functions of this fingerprint can take it up: tasks name theirs by a number.
    pub(crate) fn check_functions(&self, own: u64) -> Result<(), StoreError> {
        match self.functions {
            Some(other) if other != own && !self.jobs.is_empty() => Err(StoreError::Other(format!(
                "its tasks are of a program with other functions ({other:016x}) than this one ({own:016x}); serve it with that program, or name another file"
            ))),
            _ => Ok(()),
        }
    }
}

/// Why a store has not done what it was to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The file is none of this program, or of another version of it.
    Foreign {
        /// What it is.
        why: String,
    },
    /// Another process has it open.
    InUse,
    /// What is in it cannot be.
    Damaged {
        /// What.
        why: String,
    },
    /// It could not be read or written: the disk is full, say. It may be possible later.
    Io(std::io::Error),
    /// Anything else.
    Other(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign { why } => {
                write!(f, "it is no journal of this version of pdbp-tasks ({why}); name another file")
            }
            Self::InUse => f.write_str("another process has it open; there is one pool for a journal"),
            Self::Damaged { why } => {
                write!(
                    f,
                    "it is damaged ({why}); take a copy that is not, or another file; what was torn at the end of this one may have been taken back"
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

/// A store, as the thread that commits has it.
pub(crate) trait Store: Send {
    /// Makes all changes durable, or none: when it returns nobody loses them any more. After an error it is called again with the same changes,
    /// which may be durable all the same: they are not made twice.
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;
}

/// A store, as the pool's thread reads it.
pub(crate) trait Reader: Send {
    /// What came of a task, if that is durable.
    fn ended(&self, job: u32, number: u64) -> Result<Option<Ended>, StoreError>;

    /// The same once more.
    #[cfg(test)]
    fn again(&self) -> Box<dyn Reader>;
}

#[cfg(test)]
impl Clone for Box<dyn Reader> {
    fn clone(&self) -> Self {
        (**self).again()
    }
}
