//! A snapshot of a pool, for monitoring.

use serde::Serialize;

use super::{Counts, Pool};
use crate::resources::Resources;
use crate::wire::JobStatus;

/// A pool at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Seen {
    /// Tasks that are not over and that no processor has, including sub-tasks and tasks in the journal.
    pub(crate) queued: u64,
    /// Tasks that processors have. Each processor runs the first of those it has.
    pub(crate) running: u64,
    /// Tasks of clients that have ended since the start, and how many of them have failed.
    pub(crate) ended: u64,
    pub(crate) failed: u64,
    pub(crate) processors: u64,
    /// How many of those have tasks.
    pub(crate) busy: u64,
    /// Processors and clients that are ignored.
    pub(crate) refused: u64,
    /// Bytes of inputs, and of results that nobody has taken.
    pub(crate) bytes: u64,
    /// Bytes of results that nobody has read, and 64 for each of them.
    pub(crate) unread_bytes: u64,
    pub(crate) counts: Counts,
    pub(crate) nodes: Vec<Node>,
    /// Lines for people.
    pub(crate) troubles: Vec<String>,
    pub(crate) jobs: Vec<JobStatus>,
    /// With a journal.
    pub(crate) journal: Option<Journal>,
}

/// A node with processors.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Node {
    pub(crate) node: u16,
    pub(crate) processors: usize,
    pub(crate) busy: usize,
    /// `None`: not announced.
    pub(crate) offers: Option<Resources>,
    pub(crate) in_use: Resources,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Journal {
    /// How often the journal has been opened.
    pub(crate) term: u32,
    /// Why it cannot be written.
    pub(crate) stalled: Option<String>,
    /// Groups of changes that are not on disk yet.
    pub(crate) waiting_groups: u64,
    /// Length of its file, if the file has a name.
    pub(crate) bytes: Option<u64>,
}

impl Pool {
    /// Tasks in this pool whose results become those of tasks that clients have added.
    #[cfg(feature = "net")]
    pub(crate) fn given(&self) -> u64 {
        self.tasks.all().filter(|entry| entry.gives).count() as u64
    }

    /// A snapshot, without the jobs.
    pub(crate) fn seen(&self) -> Seen {
        let held = self.table.rows().filter(|row| row.is_held()).count();
        let nodes = self.nodes.seen();
        Seen {
            queued: (self.tasks.len() - held) as u64,
            running: held as u64,
            ended: self.ended.0,
            failed: self.ended.1,
            processors: self.processors.len() as u64,
            busy: nodes.iter().map(|node| node.busy as u64).sum(),
            refused: self.banned.len() as u64,
            bytes: self.bytes as u64,
            unread_bytes: self.unread() as u64,
            counts: self.counts,
            nodes,
            troubles: self.refusals.iter().map(ToString::to_string).chain(self.troubles()).collect(),
            jobs: Vec::new(),
            journal: None,
        }
    }

    /// The progress of the jobs of a pool without a journal.
    pub(crate) fn jobs_seen(&self, name: impl Fn(u32) -> String) -> Vec<JobStatus> {
        let mut jobs: Vec<_> = self.jobs.iter().collect();
        jobs.sort_unstable_by_key(|(job, _)| job.0);
        let status = |(id, job): (&super::JobId, &super::Job)| JobStatus {
            job: id.0,
            name: name(id.0),
            tasks: job.next,
            ended: job.ended.0,
            failed: job.ended.1,
            live: job.live as u64,
            open: !job.cancelled && !self.closed,
            cancelled: job.cancelled,
        };
        jobs.into_iter().map(status).collect()
    }
}
