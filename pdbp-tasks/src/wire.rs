//! Messages between pool and processors, encoded by `postcard`.
//!
//! A message is an [`Up`] or a [`Down`]. Messages longer than a block of the cluster travel in pieces (`pieces`), so that neither end ever has to
//! wait for room in the middle of a message.

pub(crate) mod lists;
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

/// An encoded input or result. The pool never looks inside. Clones share the bytes; short ones are stored inline.
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

/// A task, as the pool names it. A forged or stale id can neither index out of the pool's memory nor hit a reused entry, whose generation differs.
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

/// The name of a task of a pool with a journal. It outlives the pool: the next pool takes it over from the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    /// Its job.
    pub job: u32,
    /// Number in the job of the task that the client has added: this task, or its ancestor.
    pub number: u64,
    /// 0 for a task that the client has added; for a sub-task a unique number.
    pub sub: u64,
    /// 0, or, when the client's task is run again after it had failed, higher than in all runs before: results of earlier runs are ignored.
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

/// A task's options.
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
    /// Sets the limit, in whole milliseconds, at least one.
    pub(crate) fn with_limit(self, limit: Duration) -> Self {
        Self { limit_ms: u32::try_from(limit.as_millis().max(1)).unwrap_or(u32::MAX), ..self }
    }
}

/// From a processor to the pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Up {
    /// The first message.
    Hello {
        /// Fingerprint of all functions that the processor knows.
        fingerprint: u64,
        /// What the processors of its node offer together.
        offer: Resources,
        /// Tasks that it still holds from a pool with a journal, in the order in which it runs them.
        #[serde(deserialize_with = "lists::bounded")]
        held: Vec<Name>,
        /// The number of that pool, which distinguishes it from one with another journal; 0: none.
        of: u64,
    },
    /// Results, perhaps none, and at the same time a request for tasks.
    Report {
        /// The pool's term that the processor knows; 0 for a pool without a journal.
        term: u32,
        /// Number of the first result, counting all that the processor has had.
        first: u64,
        /// How many more tasks the processor has room for.
        room: u16,
        /// Its results.
        #[serde(deserialize_with = "lists::bounded")]
        results: Vec<Submission>,
    },
    /// Results that an earlier pool has not acknowledged.
    Again {
        /// The pool's term that the processor knows.
        term: u32,
        /// Number of the first result.
        first: u64,
        /// Its results. Their ids and attempts belong to another term: names count.
        #[serde(deserialize_with = "lists::bounded")]
        results: Vec<(Name, Submission)>,
    },
    /// The processor leaves. Its tasks are handed to others.
    Bye,
    /// From a client of a pool with a journal.
    Request {
        /// The answer has the same one.
        id: u64,
        /// The request.
        request: Request,
    },
    /// From a slot to the store of large values.
    Large {
        /// The answer has the same one.
        id: u64,
        /// The request.
        request: LargeRequest,
    },
}

/// A request to the store of large values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LargeRequest {
    /// Reads bytes of a value, from this one on.
    Read {
        /// Number of the value.
        number: u64,
        /// Where to read from.
        from: u64,
    },
    /// Appends to a value of an attempt.
    Write {
        /// Who writes it.
        by: LargeBy,
        /// Number of the value; 0 begins one.
        number: u64,
        /// Its length so far.
        from: u64,
        /// The bytes to append.
        bytes: Bytes,
    },
    /// Completes a client's value. The answer confirms that it is durable.
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

/// An answer of the store of large values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LargeAnswer {
    /// To `Read`; empty behind the end.
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
    /// No tasks now; more may come. The pool remembers the request and answers when there are some.
    Standby,
    /// The job is done.
    Stop,
    /// The result of this task is no longer wanted.
    Drop(TaskId),
    /// The processor's functions differ from the pool's, whose fingerprint this is.
    Refused {
        /// Fingerprint of the pool's functions.
        fingerprint: u64,
    },
    /// A journal pool's answer to the first message.
    Welcome {
        /// The pool's term, above those of all previous pools of the journal.
        term: u32,
        /// A number that no other pool has.
        number: u64,
        /// Whether the processor's previous pool was one of this journal's. If not, names mean other tasks, and nothing that the processor has
        /// counts.
        is_known: bool,
        /// Tasks that the processor continues, by their names; the rest of what it had is no longer wanted.
        held: Vec<Held>,
    },
    /// Results below this number are in the journal: they need not be kept.
    Taken {
        /// Number of a result.
        up_to: u64,
    },
    /// To a client.
    Answer {
        /// The id of the request.
        id: u64,
        /// The answer.
        answer: Answer,
    },
    /// From the store of large values to a slot.
    Large {
        /// The id of the request.
        id: u64,
        /// The answer.
        answer: LargeAnswer,
    },
    /// The pool discards whatever this part sends.
    Ignored {
        /// The reason.
        why: String,
    },
}

/// A task that the processor continues, under the ids of another term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Its name.
    pub name: Name,
    /// Its id now.
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
    /// The task.
    pub task: TaskId,
    /// Number of the hand-out.
    pub attempt: u32,
    /// Nanoseconds that it ran.
    pub ran_ns: u64,
    /// Its outcome.
    pub ending: Ending,
    /// Tasks that it adds: they exist if and only if this submission is accepted.
    #[serde(deserialize_with = "lists::bounded")]
    pub tasks: Vec<SubTask>,
    /// Numbers of the large values that it has written, with a journal: they are kept if this submission is accepted.
    #[serde(deserialize_with = "lists::bounded")]
    pub large: Vec<u64>,
}

/// The outcome of a task on a processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ending {
    /// Its result.
    Value(Bytes),
    /// Its result is that of one of the tasks that come with this submission.
    Of(u16),
    /// It failed.
    Failed(Failure),
}

/// A task that a running one adds. It may depend only on earlier tasks of the same submission, so there are no cycles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubTask {
    /// The function.
    pub kind: KindId,
    /// Priority and so on.
    pub options: Options,
    /// What it needs in addition to a processor.
    pub needs: Resources,
    /// The input of the function; with `join`, what precedes the results of those tasks.
    pub input: Bytes,
    /// Tasks of this submission whose results the function receives.
    #[serde(deserialize_with = "lists::bounded_option")]
    pub join: Option<Vec<u16>>,
    /// Tasks of this submission that must be over first.
    #[serde(deserialize_with = "lists::bounded")]
    pub after: Vec<u16>,
}

impl SubTask {
    /// An upper bound of its bytes in a message.
    pub(crate) fn weight(&self) -> usize {
        let needed = self.join.as_ref().map_or(0, Vec::len) + self.after.len();
        self.input.len() + 3 * needed + self.needs.weight() + 32
    }
}

impl Submission {
    /// An upper bound of its bytes in a message.
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
    /// It reported the failure.
    Said(String),
    /// Pool and processor cannot pass on its input or result. A retry would fail the same way, so there is none.
    Unusable(String),
}

impl Failure {
    /// Whether a retry may succeed.
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

/// Decodes a message, which must take up all bytes.
pub(crate) fn decode<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, postcard::Error> {
    decode_within(lists::MOST, bytes)
}

/// The same, with a bound of what its lists take in memory.
fn decode_within<'de, T: Deserialize<'de>>(most: usize, bytes: &'de [u8]) -> Result<T, postcard::Error> {
    let (value, rest) = lists::within(most, || postcard::take_from_bytes(bytes))?;
    if rest.is_empty() { Ok(value) } else { Err(postcard::Error::custom("bytes behind the value")) }
}

#[cfg(test)]
mod tests;
