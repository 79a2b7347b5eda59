//! How tasks end: their results go to whatever waits for them, and tasks that can no longer run end with them.

use std::sync::Arc;

use super::tasks::{Edge, Ended, Entry, Input, State};
use super::{Flaw, Kept, Origin, Outcome, Pool, Processor, TaskError};
use crate::timeline::Fate;
use crate::wire::{Bytes, Down, TaskId};

impl Pool {
    /// Ends a task, and with it those that can no longer run.
    pub(super) fn end(&mut self, task: TaskId, result: Ended) {
        if let Err(error) = &result {
            self.record_failed(task, error);
        }
        let mut over = vec![(task, result)];
        while let Some((task, result)) = over.pop() {
            let Some(entry) = self.remove(task) else { continue };
            for edge in self.tasks.take_edges(&entry) {
                match &result {
                    Ok(bytes) => self.satisfy(edge, bytes),
                    Err(error) => {
                        let why = match &**error {
                            TaskError::NotRun(_) | TaskError::Cancelled => Arc::clone(error),
                            _ => Arc::new(TaskError::NotRun(Arc::clone(error))),
                        };
                        over.push((edge.waits, Err(why)));
                    }
                }
            }
            if self.has(Flaw::AppliesTwice) {
                self.give_outcome(&entry, result.clone());
            }
            self.give_outcome(&entry, result);
        }
    }

    fn satisfy(&mut self, edge: Edge, bytes: &Bytes) {
        let early = self.has(Flaw::RunsTooEarly);
        let Some(entry) = self.tasks.get_mut(edge.waits) else { return };
        if let (Some(part), Input::Join(join)) = (edge.part, &mut entry.input)
            && let Some(place) = join.parts.get_mut(part as usize)
        {
            *place = Some(bytes.clone());
            self.bytes += bytes.len();
        }
        if let State::Waiting { edges } = &mut entry.state {
            *edges = if early { 0 } else { *edges - 1 };
        }
        self.ready_if_free(edge.waits, Origin::Unlocked);
    }

    fn give_outcome(&mut self, entry: &Entry, result: Ended) {
        let (number, Some(job)) = (entry.number, self.jobs.get_mut(&entry.job)) else { return };
        if !entry.gives {
            return;
        }
        if self.journal.is_none() {
            let has_failed = result.as_ref().map_or(true, |bytes| (self.judge)(bytes));
            job.ended.0 += 1;
            job.ended.1 += u64::from(has_failed);
            self.ended.0 += 1;
            self.ended.1 += u64::from(has_failed);
        }
        if let Some(kept) = job.kept.get_mut(&number) {
            *kept = Kept::Over(result);
            return;
        }
        self.push_unread(entry.job, Outcome { number, result });
    }

    /// Takes a task out of the table. All its holders, except the one that has submitted it, are told to drop it.
    pub(super) fn leave_table(&mut self, task: TaskId, submitted: Option<Processor>) {
        let Some(State::Scheduled { row }) = self.tasks.get(task).map(|entry| entry.state) else { return };
        let Some(row) = self.table.remove(row) else { return };
        for holder in row.holders() {
            if let Some(known) = self.processors.get_mut(&holder.processor) {
                known.held = known.held.saturating_sub(1);
            }
            let is_taken = Some(holder.processor) == submitted;
            self.record_span(task, holder, if is_taken { Fate::Taken } else { Fate::Dropped });
            if !is_taken {
                self.notices.push_back((holder.processor, Down::Drop(task)));
            }
        }
    }
}
