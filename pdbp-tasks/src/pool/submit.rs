//! What processors submit: the first submission of a task in the table is taken, all others are counted and ignored.

use std::sync::Arc;
use std::time::Duration;

use crate::wire::{Ending, Failure, SubTask, Submission, TaskId};

use crate::timeline::Fate;

use super::tasks::State;
use super::{Flaw, Kept, Pool, Processor, TaskError};

impl Pool {
    /// Takes a processor's submission for a task.
    pub fn submit(&mut self, now: Duration, from: Processor, submission: Submission) {
        self.clock = now;
        if self.banned.contains(&from) {
            self.counts.ignored += 1;
            return;
        }
        if let Some(known) = self.processors.get_mut(&from) {
            known.heard = now;
        }
        let Submission { task, attempt, ran_ns, ending, tasks, .. } = submission;
        let Some(entry) = self.tasks.get(task) else {
            if self.tasks.has_existed(task) {
                self.counts.ignored += 1;
            } else {
                self.counts.unknown += 1;
                self.count_stray(from);
            }
            return;
        };
        let was_handed_out = attempt > 0 && attempt <= entry.attempts;
        if !was_handed_out || !matches!(entry.state, State::Scheduled { .. }) {
            self.counts.ignored += 1;
            let job = entry.job;
            if self.has(Flaw::AddsOfIgnored) {
                let added = self.add_sub_tasks(job, (0, 0, false), 0, tasks);
                self.free_sub_tasks(&added);
            }
            if !was_handed_out {
                self.count_stray(from);
            }
            return;
        }
        let kind = entry.kind;
        let wrong = self.find_error(&ending, &tasks);
        match (wrong, ending) {
            (Some(wrong), _) => self.fail_on(task, from, attempt, Failure::Unusable(wrong)),
            (None, Ending::Failed(failure)) => self.fail_on(task, from, attempt, failure),
            (None, ending) => {
                if let Some(figures) = self.kinds.get_mut(usize::from(kind.0)) {
                    figures.record(ran_ns);
                }
                match &ending {
                    Ending::Value(bytes) if (self.judge)(bytes) => self.record_node_failure(from.node),
                    _ => self.record_node_success(from.node),
                }
                self.take(task, from, ending, tasks);
            }
        }
    }

    /// What makes a submission invalid as a whole.
    pub(super) fn find_error(&mut self, ending: &Ending, tasks: &[SubTask]) -> Option<String> {
        if tasks.len() > self.limits.sub_tasks {
            return Some(format!("{} sub-tasks; a task may add {}", tasks.len(), self.limits.sub_tasks));
        }
        if tasks.iter().any(|task| self.lanes.of_needs(&task.needs).is_none()) {
            return Some("tasks of the pool have more than a thousand different needs".into());
        }
        self.find_contradiction(ending, tasks)
    }

    /// What makes a submission invalid whatever the limits are: those of the pool that has accepted it may have been higher.
    pub(super) fn find_contradiction(&self, ending: &Ending, tasks: &[SubTask]) -> Option<String> {
        if let Ending::Of(task) = ending
            && usize::from(*task) >= tasks.len()
        {
            return Some(format!("its result is that of sub-task {task} of {}", tasks.len()));
        }
        tasks.iter().enumerate().find_map(|(i, task)| {
            if usize::from(task.kind.0) >= self.kinds.len() {
                return Some(format!("a sub-task of kind {}, of {}", task.kind.0, self.kinds.len()));
            }
            let mut needed = task.join.iter().flatten().chain(&task.after);
            let later = needed.find(|needed| usize::from(**needed) >= i)?;
            Some(format!("sub-task {i} needs sub-task {later}, which does not come before it"))
        })
    }

    pub(super) fn take(&mut self, task: TaskId, from: Processor, ending: Ending, tasks: Vec<SubTask>) {
        self.counts.taken += 1;
        self.leave_table(task, Some(from));
        let of = self.tasks.get(task);
        let of = of.map(|entry| (entry.job, (entry.number, entry.run, entry.is_awaited)));
        let Some((job, root)) = of else { return };
        let first_sub = self.record_taken(task, &ending, &tasks);
        let added = self.add_sub_tasks(job, root, first_sub, tasks);
        match ending {
            Ending::Value(bytes) => {
                self.free_sub_tasks(&added);
                self.end(task, Ok(bytes));
            }
            Ending::Of(which) => {
                if let Some(heir) = added.get(usize::from(which)) {
                    self.stand_in(task, *heir);
                }
                self.free_sub_tasks(&added);
            }
            Ending::Failed(_) => {}
        }
    }

    /// Makes the result of a task that of a sub-task it has added: whatever waits for the task waits for the sub-task instead. (A task that
    /// passes its result on again and again therefore costs nothing per step.)
    fn stand_in(&mut self, task: TaskId, heir: TaskId) {
        let Some(parent) = self.remove(task) else { return };
        self.tasks.transfer_edges(&parent, heir);
        let Some(entry) = self.tasks.get_mut(heir) else { return };
        entry.gives = parent.gives;
        let job = self.jobs.get_mut(&parent.job).filter(|_| parent.gives);
        if let Some(kept) = job.and_then(|job| job.kept.get_mut(&parent.number)) {
            *kept = Kept::Pending(heir);
        }
    }

    fn fail_on(&mut self, task: TaskId, from: Processor, attempt: u32, failure: Failure) {
        let again = failure.may_pass();
        let attempts = self.tasks.get(task).map_or(0, |entry| entry.attempts);
        self.fail(task, from, attempt, TaskError::Failed { failure, processor: from, attempts }, again);
    }

    /// Records a failed attempt. It counts only while the attempt is held; if another processor runs the task too, only this hold ends.
    pub(super) fn fail(
        &mut self,
        task: TaskId,
        from: Processor,
        attempt: u32,
        error: TaskError,
        again: bool,
    ) {
        let twice = self.has(Flaw::CountsFailureTwice);
        let Some(entry) = self.tasks.get_mut(task) else { return };
        let State::Scheduled { row } = entry.state else { return };
        let Some(row) = self.table.get_mut(row) else { return };
        let holder = row.holders().find(|holder| holder.processor == from).copied();
        if !row.release(from, Some(attempt)) && !twice {
            self.counts.ignored += 1;
            return;
        }
        if let Some(known) = self.processors.get_mut(&from) {
            known.held = known.held.saturating_sub(1);
        }
        self.counts.failures += 1;
        let is_held = row.is_held();
        self.record_node_failure(from.node);
        if let Some(holder) = holder {
            self.record_span(task, &holder, Fate::Failed);
        }
        if is_held {
            return;
        }
        let Some(entry) = self.tasks.get_mut(task) else { return };
        if again && entry.options.retries > 0 && !entry.options.once {
            entry.options.retries -= 1;
            self.queue_again(task);
            return;
        }
        self.leave_table(task, None);
        self.end(task, Err(Arc::new(error)));
    }
}
