//! What pool and processors say to each other, encoded by `postcard`.
//!
//! A message is one of [`Up`] or [`Down`]. What is longer than a block of the cluster travels in pieces (`pieces`), so that neither end
//! ever has to wait for room in the middle of a message.

pub(crate) mod pieces;
mod requests;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::resources::Resources;
pub use requests::{Answer, By, Chunk, Inputs, JobStatus, Request, ResultOf, Status};

/// An encoded input or result. The pool never looks inside. Clones share the bytes; short ones lie in the value itself.
#[derive(Clone)]
pub struct Bytes(Place);

const SHORT: usize = 22;

#[derive(Clone)]
enum Place {
    Inline(u8, [u8; SHORT]),
    Shared(Arc<[u8]>),
}

const _: () = assert!(size_of::<Bytes>() == 24);

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        let mut short = [0; SHORT];
        Self(match short.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Place::Inline(bytes.len() as u8, short) // at most SHORT
            }
            None => Place::Shared(bytes.into()),
        })
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Inline(length, bytes) => bytes.get(..usize::from(*length)).unwrap_or(bytes),
            Place::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({:?})", &**self)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfBytes;
        impl Visitor<'_> for OfBytes {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes::from(bytes))
            }
        }
        deserializer.deserialize_bytes(OfBytes)
    }
}

/// A task, as the pool names it. An id of outside can neither index out of the pool's memory nor meet an entry that is used again: the
/// generation is another one then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskId {
    /// Place in the pool's memory.
    pub index: u32,
    /// How often the place has been used before.
    pub generation: u32,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// The name of a task of a pool with a journal, which it keeps when that pool is lost and another one goes on from the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    /// Its job.
    pub job: u32,
    /// Number in the job of the task that the client has added: this one, or the one that it descends from.
    pub number: u64,
    /// 0 for what the client has added; of a sub-task a number that no other has.
    pub sub: u64,
    /// 0, or above that of all runs before, when the client's task is run again after it had failed: what comes of an earlier run is not wanted.
    pub run: u32,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sub {
            0 => write!(f, "task {} of job {}", self.number, self.job),
            sub => write!(f, "sub-task {sub} of task {} of job {}", self.number, self.job),
        }
    }
}

/// Number of a registered function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KindId(pub u16);

/// What a task asks for beyond being run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Higher goes first.
    pub priority: i16,
    /// How often it is run again after a failure.
    pub retries: u16,
    /// Longest run in milliseconds; 0: any.
    pub limit_ms: u32,
    /// It must not be started a second time, whatever happens to the first.
    pub once: bool,
    /// It must not run on two processors at a time, unless the first is lost.
    pub exclusive: bool,
}

impl Options {
    /// With a limit, in whole milliseconds of which there is at least one.
    pub(crate) fn with_limit(self, limit: Duration) -> Self {
        Self { limit_ms: u32::try_from(limit.as_millis().max(1)).unwrap_or(u32::MAX), ..self }
    }
}

/// From a processor to the pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Up {
    /// The first word.
    Hello {
        /// Of all functions that the processor knows.
        fingerprint: u64,
        /// What the processors of its node offer together.
        offer: Resources,
        /// What it still has of a pool with a journal, in the order in which it runs it.
        held: Vec<Name>,
        /// The number of that pool, by which it is told from one with another journal; 0: of none.
        of: u64,
    },
    /// Results, perhaps none, and at the same time a request for tasks.
    Report {
        /// The pool's term that the processor knows; 0 of a pool without a journal.
        term: u32,
        /// Number of the first result, of all that the processor has had.
        first: u64,
        /// How many more tasks the processor has room for.
        room: u16,
        /// What it has done.
        results: Vec<Submission>,
    },
    /// Results that an earlier pool has not acknowledged.
    Again {
        /// The pool's term that the processor knows.
        term: u32,
        /// Number of the first result.
        first: u64,
        /// What it has done. The ids and attempts are those of another term: names count.
        results: Vec<(Name, Submission)>,
    },
    /// The processor leaves. What it holds is for others.
    Bye,
    /// From a client of a pool with a journal.
    Request {
        /// The answer has the same one.
        id: u64,
        /// What is asked.
        request: Request,
    },
    /// From a slot to the store of large values.
    Large {
        /// The answer has the same one.
        id: u64,
        /// What is asked.
        request: LargeRequest,
    },
}

/// What is asked of the store of large values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LargeRequest {
    /// Bytes of a value, from this one on.
    Read {
        /// Number of the value.
        number: u64,
        /// How many were read before.
        from: u64,
    },
    /// Appends to a value of an attempt.
    Write {
        /// Who writes it.
        by: LargeBy,
        /// Number of the value; 0 begins one.
        number: u64,
        /// How many bytes it has.
        from: u64,
        /// What follows them.
        bytes: Bytes,
    },
    /// A client's value is whole. The answer says that it is durable.
    Finish {
        /// Number of the value.
        number: u64,
    },
}

/// Who writes a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LargeBy {
    /// A hand-out, with its number, of a task of a pool without a journal.
    Attempt(TaskId, u32),
    /// A run of a task of a pool with a journal, whichever pool has handed it out.
    Task(Name),
    /// A client, for this job of a pool with a journal.
    Client(u32),
}

/// What the store of large values answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LargeAnswer {
    /// To `Read`; none behind the end.
    Piece(Bytes),
    /// To `Write` and `Finish`: the number of the value.
    Wrote(u64),
    /// It cannot be done, for this reason.
    No(String),
}

/// From the pool to a processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Down {
    /// Tasks to run, in this order.
    Tasks(Vec<Assignment>),
    /// None now; more may come. The pool remembers the request and answers when there is something.
    Standby,
    /// The job is done.
    Stop,
    /// The result of this task is not wanted any more.
    Drop(TaskId),
    /// The processor knows other functions than the pool, whose fingerprint this is.
    Refused {
        /// Of the functions that the pool knows.
        fingerprint: u64,
    },
    /// The answer of a pool with a journal to the first word.
    Welcome {
        /// The pool's term, above those of all pools that had the journal before.
        term: u32,
        /// A number that no other pool has.
        number: u64,
        /// The pool before is one of those that had the journal. If not, names mean other tasks, and all that the processor has is nobody's.
        is_known: bool,
        /// What the processor goes on with, by its names; the rest of what it had is not wanted any more.
        held: Vec<Held>,
    },
    /// The results below this number are in the journal: nobody needs them again.
    Taken {
        /// Number of a result.
        up_to: u64,
    },
    /// To a client.
    Answer {
        /// That of the request.
        id: u64,
        /// What came of it.
        answer: Answer,
    },
    /// From the store of large values to a slot.
    Large {
        /// That of the request.
        id: u64,
        /// What came of it.
        answer: LargeAnswer,
    },
}

/// What a processor goes on with, under the ids of another term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// What it is.
    pub name: Name,
    /// What the pool calls it now.
    pub task: TaskId,
    /// Number of the hand-out.
    pub attempt: u32,
}

/// A task that is handed out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// Which.
    pub task: TaskId,
    /// Number of this hand-out of it, from 1 on.
    pub attempt: u32,
    /// The function.
    pub kind: KindId,
    /// Longest run in milliseconds; 0: any.
    pub limit_ms: u32,
    /// The GPUs that it has, of those of the node: a bit for each.
    pub gpus: u64,
    /// What the function is given.
    pub input: Bytes,
    /// Its name, of a pool with a journal.
    pub name: Option<Name>,
}

/// How a task ended on a processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Which.
    pub task: TaskId,
    /// Of which hand-out.
    pub attempt: u32,
    /// Nanoseconds that it ran.
    pub ran_ns: u64,
    /// What came of it.
    pub ending: Ending,
    /// Tasks that it adds: they exist if and only if this submission is taken.
    pub tasks: Vec<SubTask>,
    /// Numbers of the large values that it has written, of a pool with a journal: they are kept if this submission is taken.
    pub large: Vec<u64>,
}

/// What came of a task on a processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ending {
    /// Its result.
    Value(Bytes),
    /// Its result is that of one of the tasks that come with this submission.
    Of(u16),
    /// It failed.
    Failed(Failure),
}

/// A task that a running one adds. It may need those that come before it in the same submission, so there are no circles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubTask {
    /// The function.
    pub kind: KindId,
    /// Priority and so on.
    pub options: Options,
    /// What it needs beside a processor.
    pub needs: Resources,
    /// What the function is given; with `join` what comes before the results of those tasks.
    pub input: Bytes,
    /// Tasks of this submission whose results the function is given.
    pub join: Option<Vec<u16>>,
    /// Tasks of this submission that must be over before.
    pub after: Vec<u16>,
}

impl SubTask {
    /// Bytes that it takes in a message, or a few more.
    pub(crate) fn weight(&self) -> usize {
        let needed = self.join.as_ref().map_or(0, Vec::len) + self.after.len();
        self.input.len() + 3 * needed + self.needs.weight() + 32
    }
}

impl Submission {
    /// Bytes that it takes in a message, or a few more.
    pub(crate) fn weight(&self) -> usize {
        let ending = self.ending.weight() + 8 * self.large.len() + 64;
        self.tasks.iter().fold(ending, |sum, task| sum.saturating_add(task.weight()))
    }
}

impl Ending {
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Value(bytes) => bytes.len(),
            Self::Of(_) => 3,
            Self::Failed(Failure::Panicked(why) | Failure::Said(why) | Failure::Unusable(why)) => why.len(),
        }
    }
}

/// Why a function gave no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Failure {
    /// It panicked; message and place.
    Panicked(String),
    /// It said so.
    Said(String),
    /// Its input or result is not what pool and processor can pass on. It would be no different the next time, so nobody tries again.
    Unusable(String),
}

impl Failure {
    /// Whether it may go better next time.
    pub(crate) fn may_pass(&self) -> bool {
        !matches!(self, Self::Unusable(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(message) => write!(f, "panicked: {message}"),
            Self::Said(message) | Self::Unusable(message) => f.write_str(message),
        }
    }
}

/// Decodes a message, all of whose bytes it must take.
pub(crate) fn decode<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, postcard::Error> {
    let (value, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(value) } else { Err(postcard::Error::custom("bytes behind the value")) }
}

#[cfg(test)]
mod tests;
