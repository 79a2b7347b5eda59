//! Results that clients have not taken: above a bound they stop the hand-out rather than filling memory.
//!
//! Tasks of jobs that have such results are held back, and so are the sub-tasks of those tasks. They go on as soon as their clients read. A job
//! without unread results carries on regardless, so a client that waits for its next result gets it. Tasks whose results others may need
//! ([`NewTask::keep`](super::NewTask::keep)) are never held back: a client that waits for one of those reads nothing else meanwhile. Nothing
//! depends on the tasks that are held back.

use std::sync::Arc;

use super::lanes::LaneId;
use super::{Flaw, JobId, Limits, Outcome, Pool, TaskError};
use crate::wire::TaskId;

/// Overhead of a result, in bytes.
pub(crate) const OUTCOME: usize = 64;
const _: () = assert!(size_of::<Outcome>() <= OUTCOME && size_of::<Arc<TaskError>>() <= OUTCOME);

/// Totals over all jobs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unread {
    bytes: usize,
    /// Jobs with tasks that are held back, or that were and have been cancelled since.
    jobs: usize,
    /// Tasks that were held back may be handed out now, and nobody has asked about that yet.
    resumed: bool,
}

impl Unread {
    pub(super) fn is_too_much(&self, limits: &Limits) -> bool {
        self.bytes > limits.unread_bytes
    }
}

/// Length of a result in bytes.
pub(crate) fn weight_of(outcome: &Outcome) -> usize {
    outcome.result.as_ref().map_or(0, |bytes| bytes.len())
}

impl Pool {
    /// Keeps a result until the client takes it.
    pub(super) fn push_unread(&mut self, of: JobId, outcome: Outcome) {
        let Some(job) = self.jobs.get_mut(&of) else { return };
        let bytes = weight_of(&outcome);
        self.bytes += bytes;
        self.unread.bytes += bytes + OUTCOME;
        job.unread += bytes + OUTCOME;
        job.outcomes.push_back(outcome);
        if job.outcomes.len() == 1
            && let Some(journal) = &mut self.journal
        {
            journal.ended_in(of);
        }
    }

    /// Takes the next outcome of a job, in order of completion.
    pub fn take_outcome(&mut self, job: JobId) -> Option<Outcome> {
        let known = self.jobs.get_mut(&job)?;
        let outcome = known.outcomes.pop_front()?;
        let bytes = weight_of(&outcome);
        known.unread -= bytes + OUTCOME;
        self.bytes -= bytes;
        self.unread.bytes -= bytes + OUTCOME;
        // Otherwise nothing can have been unblocked.
        if known.unread == 0 || !self.unread.is_too_much(&self.limits) {
            self.resume();
        }
        Some(outcome)
    }

    /// Cancels a job and forgets its outcomes.
    pub fn forget(&mut self, job: JobId) {
        self.cancel(job);
        if let Some(job) = self.jobs.remove(&job) {
            self.bytes -= job.outcomes.iter().map(weight_of).sum::<usize>();
            self.unread.bytes -= job.unread;
            self.unread.jobs -= usize::from(!job.aside.is_empty());
            self.resume();
        }
    }

    /// Bytes of results that clients have not taken, overhead included.
    pub fn unread(&self) -> usize {
        self.unread.bytes
    }

    /// Whether tasks that were held back have become available since the last call.
    pub fn has_resumed(&mut self) -> bool {
        std::mem::take(&mut self.unread.resumed)
    }

    /// Whether a task must not be handed out while too many results are unread.
    pub(super) fn is_held_back(&self, task: TaskId) -> bool {
        let Some(entry) = self.tasks.get(task).filter(|entry| !entry.is_awaited) else { return false };
        let has_unread = self.jobs.get(&entry.job).is_some_and(|job| job.unread > 0);
        has_unread && !self.has(Flaw::ForgetsUnread)
    }

    /// Holds back the next task of a lane.
    pub(super) fn set_aside(&mut self, lane: LaneId) {
        let Some((task, came)) = self.lanes.get_mut(lane).ready.pop() else { return };
        let job = self.tasks.get(task).map(|entry| entry.job);
        if let Some(job) = job.and_then(|job| self.jobs.get_mut(&job)) {
            self.unread.jobs += usize::from(job.aside.is_empty());
            job.aside.push_back((task, came));
        }
    }

    /// Requeues, at the front, tasks that need not be held back any more.
    fn resume(&mut self) {
        if self.unread.jobs == 0 || self.has(Flaw::HoldsBackForEver) {
            return;
        }
        let all = !self.unread.is_too_much(&self.limits);
        for job in self.jobs.values_mut().filter(|job| all || job.unread == 0) {
            self.unread.jobs -= usize::from(!job.aside.is_empty());
            for (task, came) in std::mem::take(&mut job.aside).into_iter().rev() {
                let Some(entry) = self.tasks.get(task) else { continue };
                let ready = &mut self.lanes.get_mut(entry.lane).ready;
                ready.push_front(entry.options.priority, task, came);
                self.unread.resumed = true;
            }
        }
        if self.unread.resumed {
            self.reconsider_parked();
        }
    }

    /// One line for each job that is held back.
    pub(super) fn held_back(&self) -> impl Iterator<Item = String> {
        let mut jobs: Vec<_> = self.jobs.iter().filter(|(_, job)| !job.aside.is_empty()).collect();
        jobs.sort_unstable_by_key(|(number, _)| **number);
        let most = self.limits.unread_bytes;
        jobs.into_iter().map(move |(number, job)| {
            format!(
                "job {} is held back: {} bytes of its results wait to be read, and all may have {most} (`Limits::unread_bytes`); read them, or drop the job",
                number.0, job.unread
            )
        })
    }
}
