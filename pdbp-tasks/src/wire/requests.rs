//! Clients' requests to a pool with a journal. Each request is idempotent: a client whose answer was lost, with a pool or a link, asks again.

use serde::{Deserialize, Serialize};

use crate::pool::Counts;
use crate::resources::Resources;
use crate::timeline::Span;

use super::{Bytes, KindId, Options, lists};

/// Tasks that are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// The function.
    pub kind: KindId,
    /// Priority and so on.
    pub options: Options,
    /// What each needs in addition to a processor.
    pub needs: Resources,
    /// The common beginning of all inputs.
    pub prefix: Bytes,
    /// The rest of each input.
    pub inputs: Inputs,
    /// Numbers of previously added tasks of the job, whose results follow as a sequence: each task runs when all of them have one.
    #[serde(deserialize_with = "lists::bounded_option")]
    pub join: Option<Vec<u64>>,
    /// Numbers of previously added tasks of the job, which must have a result before each of these runs.
    #[serde(deserialize_with = "lists::bounded")]
    pub after: Vec<u64>,
}

impl Chunk {
    /// Tasks that depend on no others, and need only a processor.
    pub fn new(kind: KindId, inputs: Inputs) -> Self {
        let (options, needs, prefix) = (Options::default(), Resources::none(), Bytes::from(&[][..]));
        Self { kind, options, needs, prefix, inputs, join: None, after: Vec::new() }
    }

    /// Bytes of the longest input, without results, if inputs are listed.
    #[cfg(feature = "net")]
    pub(crate) fn longest(&self) -> Option<usize> {
        let Inputs::List(list) = &self.inputs else { return None };
        list.iter().map(|input| self.prefix.len() + input.len()).max()
    }

    /// Numbers of all tasks that each of these depends on.
    #[cfg(feature = "net")]
    pub(crate) fn needed(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.join.iter().flatten().chain(&self.after).copied()
    }
}

/// The rest of each task's input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Inputs {
    /// One for each task.
    List(#[serde(deserialize_with = "lists::bounded")] Vec<Bytes>),
    /// These numbers, each written in decimal and encoded as a string.
    Numbers {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
}

impl Inputs {
    /// The number of tasks.
    pub fn len(&self) -> u64 {
        match self {
            Self::List(list) => list.len() as u64,
            Self::Numbers { count, .. } => *count,
        }
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them; `None` beyond the last.
    #[cfg(feature = "net")]
    pub(crate) fn get(&self, at: u64) -> Option<Bytes> {
        match self {
            Self::List(list) => list.get(usize::try_from(at).ok()?).cloned(),
            Self::Numbers { first, count } => {
                let number = (at < *count).then(|| first.checked_add(at))??;
                postcard::to_stdvec(&number.to_string()).ok().map(Bytes::from)
            }
        }
    }
}

/// The order in which results are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// In order of completion.
    Completion,
    /// By the numbers of their tasks.
    Number,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Asks which journal the pool has.
    Journal,
    /// Begins a job, or returns the one with the same nonce.
    Begin {
        /// Fingerprint of all functions that the client knows.
        fingerprint: u64,
        /// A number that no other job has.
        nonce: u128,
        /// A name for people, of which the first 4 KiB are kept.
        name: String,
    },
    /// Adds tasks.
    Add {
        /// Fingerprint of all functions that the client knows.
        fingerprint: u64,
        /// To which job.
        job: u32,
        /// Number of the first task: how many were added before.
        first: u64,
        /// The tasks: all are added, or none.
        #[serde(deserialize_with = "lists::bounded")]
        chunks: Vec<Chunk>,
    },
    /// Closes a job: nothing is added any more.
    Close {
        /// The job.
        job: u32,
    },
    /// Cancels what is not over.
    Cancel {
        /// The job.
        job: u32,
    },
    /// Runs failed tasks again.
    Retry {
        /// The job.
        job: u32,
        /// A number that no other such request of the job has: when the request is repeated, nothing runs a second time.
        nonce: u128,
    },
    /// Cancels a job and forgets its results.
    Forget {
        /// The job.
        job: u32,
    },
    /// Asks for the progress of jobs.
    Status {
        /// The job; `None`: all jobs.
        job: Option<u32>,
    },
    /// Reads available results.
    Read {
        /// The job.
        job: u32,
        /// The order.
        by: By,
        /// Place of the first result in that order.
        from: u64,
        /// The most results.
        most: u32,
    },
    /// Asks why a job, or one of its tasks, is not over.
    Explain {
        /// The job.
        job: u32,
        /// Number of the task.
        number: Option<u64>,
    },
    /// Asks which processor has held which task when.
    Spans {
        /// Number of the first span.
        from: u64,
    },
}

/// A pool's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// A refusal, with the reason.
    No(String),
    /// A number that no other journal has.
    Journal(u64),
    /// The number of a job.
    Job(u32),
    /// Success: how many tasks have been added so far, or are concerned.
    Done(u64),
    /// The progress.
    Status(Status),
    /// Results.
    Results {
        /// Place of the next result.
        next: u64,
        /// Whether no more will come.
        over: bool,
        /// Some results.
        results: Vec<ResultOf>,
    },
    /// Lines for people.
    Text(String),
    /// Holds of tasks.
    Spans(Vec<Span>),
}

/// A result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultOf {
    /// Number of its task.
    pub number: u64,
    /// The encoded result, or why there is none.
    pub result: Result<Bytes, String>,
}

/// The progress of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// How many pools have opened the journal.
    pub term: u32,
    /// Processors.
    pub processors: u64,
    /// Why nothing is handed out, if so.
    pub stalled: Option<String>,
    /// Refused processors, and why; and nodes that are given one task at a time, since theirs fail.
    pub refusals: Vec<String>,
    /// Counts since the start of this pool.
    pub counts: Counts,
    /// Jobs.
    pub jobs: Vec<JobStatus>,
}

/// The progress of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Number.
    pub job: u32,
    /// Name.
    pub name: String,
    /// Tasks that were added.
    pub tasks: u64,
    /// Tasks that are over.
    pub ended: u64,
    /// How many of those have failed.
    pub failed: u64,
    /// Tasks and sub-tasks in the pool's memory that are not over.
    pub live: u64,
    /// Whether more may be added.
    pub open: bool,
    /// Whether it was cancelled.
    pub cancelled: bool,
}

impl JobStatus {
    /// Whether everything is over, sub-tasks included.
    pub fn is_over(&self) -> bool {
        self.cancelled || !self.open && self.ended == self.tasks && self.live == 0
    }
}
