//! Errors reported to programs.

use std::fmt;
use std::sync::Arc;

use pdbp::{LookupError, RecvError, RegisterError, SendError, StartError};

use crate::pool::{Refused, TaskError};

/// Why a program of tasks, or a call of it, failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The cluster did not start.
    Start(StartError),
    /// A part of pool, client or processor could not be registered.
    Register(RegisterError),
    /// The pool was not found.
    Find(LookupError),
    /// The pool or a processor can no longer be reached.
    Send(SendError),
    /// Nothing can be received any more.
    Recv(RecvError),
    /// A task has no result.
    Task {
        /// Its number in the job.
        number: u64,
        /// Why.
        error: Arc<TaskError>,
    },
    /// A task was not added.
    Add(Refused),
    /// A job was asked for the result of a task of another one.
    OtherJob {
        /// The task's number there.
        number: u64,
    },
    /// The pool that replaced a lost one has another journal, with other jobs.
    OtherJournal,
    /// An input or result does not fit its type, or cannot be encoded.
    Codec(postcard::Error),
    /// A kind was declared but never defined.
    Undefined(String),
    /// The pool's functions differ from the processor's.
    OtherFunctions {
        /// The fingerprint of the processor's.
        own: u64,
        /// That of the pool's.
        pool: u64,
    },
    /// A system operation of the program failed.
    Io(std::io::Error),
    /// The program's own error.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an error of the program.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(e) => e.fmt(f),
            Self::Register(e) => e.fmt(f),
            Self::Find(e) => e.fmt(f),
            Self::Send(e) => e.fmt(f),
            Self::Recv(e) => e.fmt(f),
            Self::Task { number, error } => write!(f, "task {number}: {error}"),
            Self::Add(Refused::Full) => f.write_str(
                "the pool is full; take results first, or add tasks with `each`, which reads its inputs as room becomes available",
            ),
            Self::Add(Refused::Cancelled) => f.write_str("the job was cancelled; begin another one"),
            Self::Add(Refused::UnknownTask(number)) => {
                write!(f, "task {number} belongs to another job; a task can need only tasks of its own job")
            }
            Self::Add(Refused::TooManyNeeds) => f.write_str(
                "tasks of this pool have more than a thousand different needs; round them to reduce their number",
            ),
            Self::Add(Refused::TooLong { bytes, most }) => {
                write!(
                    f,
                    "an input of {bytes} bytes exceeds the limit of {most}; write it as a `Large`"
                )
            }
            Self::OtherJob { number } => {
                write!(f, "task {number} belongs to another job; ask that job for its result")
            }
            Self::OtherJournal => f.write_str(
                "the pool now has another journal with other jobs; serve the previous journal, or start anew",
            ),
            Self::Codec(e) => write!(f, "an input or result cannot be encoded or decoded: {e}"),
            Self::Undefined(kind) => write!(f, "kind `{kind}` was declared but not defined; define it before the program runs"),
            Self::OtherFunctions { own, pool } => write!(
                f,
                "the functions of this process ({own:016x}) differ from those of the pool ({pool:016x}); start the same program everywhere"
            ),
            Self::Io(e) => e.fmt(f),
            Self::Other(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

macro_rules! from {
    ($($variant:ident: $type:ty;)*) => {$(
        impl From<$type> for Error {
            fn from(error: $type) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}

from! {
    Start: StartError;
    Register: RegisterError;
    Find: LookupError;
    Send: SendError;
    Recv: RecvError;
    Add: Refused;
    Codec: postcard::Error;
    Io: std::io::Error;
}

impl From<pdbp::ConfigError> for Error {
    fn from(error: pdbp::ConfigError) -> Self {
        Self::Start(error.into())
    }
}

/// A task that was not added, and its input.
#[derive(Debug)]
pub struct AddError<I> {
    /// The task's input.
    pub input: I,
    /// Why.
    pub error: Error,
}

impl<I> fmt::Display for AddError<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<I: fmt::Debug> std::error::Error for AddError<I> {}

impl<I> From<AddError<I>> for Error {
    fn from(refused: AddError<I>) -> Self {
        refused.error
    }
}
