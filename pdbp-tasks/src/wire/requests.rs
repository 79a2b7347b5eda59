//! What clients ask of a pool with a journal. Each request may be repeated: asked twice it does the same as asked once, so that a client whose
//! answer was lost, with a pool or a link, asks again.

use serde::{Deserialize, Serialize};

use crate::pool::Counts;
use crate::resources::Resources;
use crate::timeline::Span;

use super::{Bytes, KindId, Options};

/// Tasks that are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// The function.
    pub kind: KindId,
    /// Priority and so on.
    pub options: Options,
    /// What each needs beside a processor.
    pub needs: Resources,
    /// What all inputs begin with.
    pub prefix: Bytes,
    /// What follows.
    pub inputs: Inputs,
    /// Numbers of tasks of the job that were added before, whose results follow that as a sequence: each task runs when all of them have one.
    pub join: Option<Vec<u64>>,
    /// Numbers of tasks of the job that were added before, and must have a result before each of these runs.
    pub after: Vec<u64>,
}

impl Chunk {
    /// Tasks that need no others, and nothing but a processor.
    pub fn new(kind: KindId, inputs: Inputs) -> Self {
        let (options, needs, prefix) = (Options::default(), Resources::none(), Bytes::from(&[][..]));
        Self { kind, options, needs, prefix, inputs, join: None, after: Vec::new() }
    }

    /// Bytes of the longest input, if they are listed, without results.
    #[cfg(feature = "net")]
    pub(crate) fn longest(&self) -> Option<usize> {
        let Inputs::List(list) = &self.inputs else { return None };
        list.iter().map(|input| self.prefix.len() + input.len()).max()
    }

    /// Numbers of all tasks that each of these needs.
    #[cfg(feature = "net")]
    pub(crate) fn needed(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.join.iter().flatten().chain(&self.after).copied()
    }
}

/// How the inputs of tasks end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Inputs {
    /// One by one.
    List(Vec<Bytes>),
    /// These numbers, each written in decimal and encoded as a string.
    Numbers {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
}

impl Inputs {
    /// How many tasks.
    pub fn len(&self) -> u64 {
        match self {
            Self::List(list) => list.len() as u64,
            Self::Numbers { count, .. } => *count,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them; `None` behind the last.
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

/// In which order results are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// As they came.
    Completion,
    /// By the numbers of their tasks.
    Number,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Which journal the pool has.
    Journal,
    /// A new job, or that of the same nonce.
    Begin {
        /// Of all functions that the client knows.
        fingerprint: u64,
        /// A number that no other job has.
        nonce: u128,
        /// For people.
        name: String,
    },
    /// Adds tasks.
    Add {
        /// Of all functions that the client knows.
        fingerprint: u64,
        /// To which job.
        job: u32,
        /// Number of the first: so many were added before.
        first: u64,
        /// What they are: all are added, or none.
        chunks: Vec<Chunk>,
    },
    /// Nothing is added any more.
    Close {
        /// To which job.
        job: u32,
    },
    /// What is not over is not wanted any more.
    Cancel {
        /// Of which job.
        job: u32,
    },
    /// What has failed runs again.
    Retry {
        /// Of which job.
        job: u32,
        /// A number that no other such request of the job has: asked again, nothing runs a second time.
        nonce: u128,
    },
    /// Cancels a job and forgets its results.
    Forget {
        /// Which.
        job: u32,
    },
    /// How far jobs are.
    Status {
        /// Which; all.
        job: Option<u32>,
    },
    /// Results that are there.
    Read {
        /// Of which job.
        job: u32,
        /// In which order.
        by: By,
        /// Place of the first in that order.
        from: u64,
        /// How many at most.
        most: u32,
    },
    /// Why a job, or a task of it, is not over.
    Explain {
        /// Which.
        job: u32,
        /// Number of the task.
        number: Option<u64>,
    },
    /// Who has held which task when.
    Spans {
        /// Number of the first.
        from: u64,
    },
}

/// What a pool answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// It cannot be, for this reason.
    No(String),
    /// A number that no other journal has.
    Journal(u64),
    /// The number of a job.
    Job(u32),
    /// So it is: how many tasks were added so far, or concerned.
    Done(u64),
    /// How far.
    Status(Status),
    /// Results.
    Results {
        /// Place of the next one.
        next: u64,
        /// There will be no more.
        over: bool,
        /// Some of them.
        results: Vec<ResultOf>,
    },
    /// Lines for people.
    Text(String),
    /// Who has held what.
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

/// How far a pool is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// How often the journal has been taken up.
    pub term: u32,
    /// Processors.
    pub processors: u64,
    /// Why nothing is handed out, if that is so.
    pub stalled: Option<String>,
    /// Who is refused, and why; and which nodes are given one task at a time since theirs fail.
    pub refusals: Vec<String>,
    /// Since the start of this pool.
    pub counts: Counts,
    /// Jobs.
    pub jobs: Vec<JobStatus>,
}

/// How far a job is.
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
    /// Of those, how many have failed.
    pub failed: u64,
    /// Sub-tasks and tasks that are in the pool's memory and not over.
    pub live: u64,
    /// More may be added.
    pub open: bool,
    /// It was cancelled.
    pub cancelled: bool,
}

impl JobStatus {
    /// Whether all is over, sub-tasks included.
    pub fn is_over(&self) -> bool {
        self.cancelled || !self.open && self.ended == self.tasks && self.live == 0
    }
}
