//! Inputs and outputs of a pool.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::memory;
use crate::resources::Resources;
use crate::wire::{Bytes, Failure, KindId, Options, pieces};

/// A processor: a slot of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Processor {
    /// Its node.
    pub node: u16,
    /// Its number, unique in the cluster.
    pub number: u64,
}

/// Number of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub(crate) u32);

/// Limits of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tasks that are not over. Clients cannot add more; sub-tasks are always accepted.
    pub tasks: usize,
    /// Jobs of a pool with a journal, including those that are over but not forgotten. A client cannot begin more.
    pub jobs: usize,
    /// Bytes of one input; for a join, including the results that it receives. The upper bound is 960 MiB, which is the default.
    pub input_bytes: usize,
    /// Bytes of results of [`Job::each`](crate::Job::each) that clients have not read yet, plus 64 for each of them. Above this no tasks of jobs
    /// with such results are handed out, except those that were handed out before and lost. (With a journal the results lie there, and nothing
    /// waits for readers.)
    pub unread_bytes: usize,
    /// Bytes of messages to the pool that have not arrived to their end, of all processes and clients together. As soon as there are more, the
    /// node with the most of them is refused, and its processes and clients end with an error, if it has several: one message is never too long.
    /// The default lets honest processes send whatever the machine has room for: half of its memory, or of what the pool's control group may
    /// take, but at least 4 GiB.
    pub unfinished_bytes: usize,
    /// Bytes of inputs handed out in one message; a longer input goes alone, to a processor that holds nothing else.
    pub batch_bytes: usize,
    /// Sub-tasks of one task.
    pub sub_tasks: usize,
    /// How long after its limit a task that has not ended is taken away from its processor.
    pub grace: Duration,
    /// Nodes that must be lost while running a task and nothing else before the task is given up.
    pub crashes: usize,
    /// Failures in a row after which a node is given one task at a time, after pauses, while tasks of other nodes succeed.
    pub failures: u32,
    /// How long a task waits for a node that offers what it needs, while other nodes are present; and how long tasks of a cluster of fixed size
    /// wait after its last processor was lost, before the pool ends with an error.
    pub offer_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tasks: 10_000_000,
            jobs: 100_000,
            input_bytes: pieces::VALUE,
            unread_bytes: 1 << 30,
            unfinished_bytes: memory::half().max(4 << 30),
            batch_bytes: 64 << 10,
            sub_tasks: 1 << 16,
            grace: Duration::from_secs(5),
            crashes: 3,
            failures: 10,
            offer_wait: Duration::from_secs(30),
        }
    }
}

/// A task of a client.
#[derive(Clone, Debug)]
pub struct NewTask<'a> {
    /// The function.
    pub kind: KindId,
    /// Priority and so on.
    pub options: Options,
    /// What it needs in addition to a processor.
    pub needs: &'a Resources,
    /// The input of the function; with `join`, what precedes the results of those tasks.
    pub input: Bytes,
    /// Numbers of kept tasks of the job whose results the function receives.
    pub join: Option<&'a [u64]>,
    /// Numbers of kept tasks of the job that must be over first.
    pub after: &'a [u64],
    /// Whether other tasks of the job may refer to it.
    pub keep: bool,
}

/// Why a task was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The pool is full.
    Full,
    /// The job was cancelled.
    Cancelled,
    /// It names a task that the job does not have, or has not kept.
    UnknownTask(u64),
    /// The pool's tasks have had more than a thousand different needs.
    TooManyNeeds,
    /// Its input is too long.
    TooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The most bytes allowed.
        most: usize,
    },
}

/// The outcome of a task that the client has added.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its number in the job.
    pub number: u64,
    /// Its encoded result.
    pub result: Result<Bytes, Arc<TaskError>>,
}

/// Why a task has no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TaskError {
    /// Its function failed, and there was no retry left.
    Failed {
        /// How.
        failure: Failure,
        /// Where.
        processor: Processor,
        /// Hand-outs of the task in all.
        attempts: u32,
    },
    /// A task that it needs has failed.
    NotRun(Arc<TaskError>),
    /// The job was cancelled.
    Cancelled,
    /// It may be started only once, and the processor that had it is lost.
    MayHaveRun(Processor),
    /// It did not end within its limit.
    TimedOut {
        /// The limit.
        limit: Duration,
        /// Where.
        processor: Processor,
    },
    /// Nodes were lost while they ran it and nothing else.
    Crashed {
        /// The nodes, in order.
        nodes: Vec<u16>,
    },
    /// No node offers what it needs.
    NoOffer {
        /// What it needs.
        needs: Resources,
        /// What is offered.
        offers: String,
    },
    /// Its input, with the results that it needs, would be too long.
    TooLong {
        /// Its length in bytes.
        bytes: u64,
        /// The most bytes allowed.
        most: u64,
    },
    /// The result of a task that it needs cannot be passed to it.
    Needed {
        /// The number of that task in the job.
        number: u64,
        /// What became of it.
        why: String,
    },
}

/// A processor that is ignored from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The processor.
    pub processor: Processor,
    /// What it did.
    pub why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is refused: {}", self.processor, self.why)
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Unnamed parts have the last quarter of the 65,536 numbers.
        write!(f, "processor {} of node{}", self.number & 0x3fff, self.node)
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { failure, processor, attempts: 1 } => {
                write!(f, "the task failed on {processor}: {failure}")
            }
            Self::Failed { failure, processor, attempts } => {
                write!(f, "the task failed, the last of {attempts} times on {processor}: {failure}")
            }
            Self::NotRun(because) => {
                write!(f, "not run, since a task that it needs has no result: {because}")
            }
            Self::Cancelled => f.write_str("cancelled, with its job"),
            Self::MayHaveRun(processor) => {
                write!(f, "{processor} is lost; the task may have run there, and may be started only once")
            }
            Self::TimedOut { limit, processor } => {
                write!(f, "the task did not end on {processor} within its limit of {limit:?}")
            }
            Self::Crashed { nodes } => {
                let nodes: Vec<_> = nodes.iter().map(|node| format!("node{node}")).collect();
                write!(
                    f,
                    "given up: {} nodes were lost while they ran it and nothing else ({}); does it end its process, or take too much memory?",
                    nodes.len(),
                    nodes.join(", ")
                )
            }
            Self::NoOffer { needs, offers } => write!(
                f,
                "no node offers {needs}, which the task needs; {offers}; ask for less, or start processes that offer it"
            ),
            Self::TooLong { bytes, most } => write!(
                f,
                "not run, since its input, with the results that it needs, would have {bytes} bytes, and {most} are the most; give long results as `Large`, or join fewer at a time"
            ),
            Self::Needed { number, why } => {
                write!(f, "not run, since task {number} of the job, which it needs, {why}")
            }
        }
    }
}

impl std::error::Error for TaskError {}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Hand-outs of tasks.
    pub handed_out: u64,
    /// Of those, copies of tasks that took long elsewhere.
    pub copies: u64,
    /// Submissions that were accepted.
    pub taken: u64,
    /// Failures that counted.
    pub failures: u64,
    /// Tasks of processors that were lost.
    pub lost: u64,
    /// Tasks that processors kept across a restart of the pool.
    pub adopted: u64,
    /// Submissions that were ignored: of tasks submitted before, of attempts that were never handed out, and failures of attempts that no processor
    /// holds.
    pub ignored: u64,
    /// Submissions of tasks that never existed.
    pub unknown: u64,
    /// Malformed messages.
    pub malformed: u64,
}
