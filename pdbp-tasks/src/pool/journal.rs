//! What a pool records for a journal, and what it holds back until that is on disk.
//!
//! The pool knows no disk: it neither numbers records nor waits for them. Its driver tells it on which record of the journal the next events rest
//! ([`Pool::rest_on`]), and up to which record everything is durable ([`Pool::mark_durable`]). A task that was created or unlocked by something not yet
//! durable is not ready. The pool also produces the *steps* from which a journal rebuilds a pool: tasks that other tasks have added, those of
//! them that have failed, and hand-outs of tasks that must not run twice or have run for a second. Results of tasks that the client has added are
//! outcomes; they are steps only if they come with sub-tasks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wire::{Bytes, Ending, Held, KindId, Name, Options, SubTask, Submission, TaskId};

use super::tasks::{Entry, Input, State};
use super::{Flaw, Job, JobId, Origin, Pool, Processor, Refused, TaskError};
use crate::resources::Resources;

/// A step from which a journal rebuilds a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Step {
    /// A submission was taken that adds tasks, or that belongs to a sub-task. The tasks that it adds are named by the numbers after `serial`.
    Took { name: Name, serial: u64, ending: Ending, tasks: Vec<SubTask> },
    /// A sub-task has no result.
    Failed { name: Name, serial: u64, error: Arc<TaskError> },
    /// All sub-tasks of a task that the client has added are over.
    FamilyOver { job: u32, number: u64 },
    /// A task was handed out that must not run twice at the same time, or must not run twice at all.
    Started { name: Name, processor: Processor },
    /// That task is over.
    Settled { name: Name },
    /// A task that may run twice has run for a while. Nothing waits for this record.
    Runs { name: Name, processor: Processor },
}

/// A task that has been held this long is recorded; also the interval between checks for such tasks.
const LONG: Duration = Duration::from_secs(1);

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    record: u64,
    durable: u64,
    /// The last number given to a step or a sub-task.
    serial: u64,
    deferred: VecDeque<(u64, TaskId, Origin)>,
    steps: Vec<Step>,
    /// Jobs in which tasks of the client have ended.
    ended_in: Vec<JobId>,
    names: HashMap<Name, TaskId>,
    /// How many sub-tasks are not over, for each task of the client that has any.
    families: HashMap<(u32, u64), usize>,
    /// Nothing is recorded: what happens is in the journal already.
    replays: bool,
    paused: bool,
}

impl Journal {
    /// Whether what happens is in the journal already.
    pub(super) fn replays(&self) -> bool {
        self.replays
    }

    pub(super) fn must_wait(&self) -> bool {
        self.record > self.durable
    }

    pub(super) fn defer_until_durable(&mut self, task: TaskId, came: Origin) {
        self.deferred.push_back((self.record, task, came));
    }

    pub(super) fn inserted(&mut self, name: Name, task: TaskId) {
        self.names.insert(name, task);
        if name.sub != 0 {
            *self.families.entry((name.job, name.number)).or_default() += 1;
        }
    }

    pub(super) fn removed(&mut self, name: Name, entry: &Entry) {
        self.names.remove(&name);
        if entry.recorded {
            self.push_step(Step::Settled { name });
        }
        if name.sub == 0 {
            return;
        }
        let family = (name.job, name.number);
        if let Some(left) = self.families.get_mut(&family) {
            *left -= 1;
            if *left == 0 {
                self.families.remove(&family);
                self.push_step(Step::FamilyOver { job: name.job, number: name.number });
            }
        }
    }

    pub(super) fn handed_out(&mut self, entry: &mut Entry, processor: Processor) -> Name {
        let name = super::name_of(entry);
        if must_not_run_twice(entry.options) {
            entry.recorded = true;
            self.push_step(Step::Started { name, processor });
        }
        name
    }

    /// How many sub-tasks of a family are not over.
    pub(super) fn family(&self, job: JobId, number: u64) -> usize {
        self.families.get(&(job.0, number)).copied().unwrap_or(0)
    }

    /// Its state as text, with records numbered relative to the last durable one.
    #[cfg(test)]
    pub(super) fn digest(&self) -> String {
        let names: std::collections::BTreeMap<_, _> = self.names.iter().collect();
        let families: std::collections::BTreeMap<_, _> = self.families.iter().collect();
        let deferred: Vec<_> = self
            .deferred
            .iter()
            .map(|(record, task, came)| (record.saturating_sub(self.durable), task, came))
            .collect();
        let record = self.record.saturating_sub(self.durable);
        format!("{record}{}{deferred:?}{:?}{names:?}{families:?}{}", self.serial, self.steps, self.paused)
    }

    /// Notes that a job has an outcome.
    pub(super) fn ended_in(&mut self, job: JobId) {
        self.ended_in.push(job);
    }

    fn push_step(&mut self, step: Step) {
        if !self.replays {
            self.steps.push(step);
        }
    }
}

fn must_not_run_twice(options: Options) -> bool {
    options.once || options.exclusive
}

impl Pool {
    /// Keeps a journal from now on, as a pool of this term. Sub-task names are unique across terms.
    pub(crate) fn keep_journal(&mut self, term: u32) {
        self.journal.get_or_insert_default().serial = u64::from(term) << 40;
    }

    /// Sets the function that decides whether a result counts as failed; used to detect nodes on which every task fails.
    pub(crate) fn judge_by(&mut self, judge: fn(&[u8]) -> bool) {
        self.judge = judge;
    }

    /// Makes whatever happens next rest on this record of the journal.
    pub(crate) fn rest_on(&mut self, record: u64) {
        if let Some(journal) = &mut self.journal {
            journal.record = record;
        }
    }

    /// Marks the records up to this one as durable.
    pub(crate) fn mark_durable(&mut self, durable: u64) {
        let Some(journal) = &mut self.journal else { return };
        journal.durable = durable;
        let record = std::mem::replace(&mut journal.record, durable);
        let ready = journal.deferred.iter().take_while(|(record, ..)| *record <= durable).count();
        let ready: Vec<_> = journal.deferred.drain(..ready).collect();
        ready.into_iter().for_each(|(_, task, came)| self.ready_if_free(task, came));
        self.rest_on(record);
    }

    /// The record that the latest task held back for durability rests on.
    pub(crate) fn last_deferred(&self) -> Option<u64> {
        self.journal.as_ref()?.deferred.back().map(|(record, ..)| *record)
    }

    /// The most bytes that an input may have.
    pub(crate) fn most_input(&self) -> usize {
        self.limits.input_bytes
    }

    /// See [`Limits::unfinished_bytes`](super::Limits).
    pub(crate) fn most_unfinished(&self) -> usize {
        self.limits.unfinished_bytes
    }

    /// Whether new tasks cannot have these needs, since there are too many different ones.
    pub(crate) fn refuses_needs(&mut self, needs: &Resources) -> bool {
        self.lanes.of_needs(needs).is_none()
    }

    /// Takes the steps to be recorded, in this order.
    pub(crate) fn take_steps(&mut self) -> Vec<Step> {
        self.journal.as_mut().map_or_else(Vec::new, |journal| std::mem::take(&mut journal.steps))
    }

    /// Takes the jobs that have had no outcome to be taken, and have one now. A job may be there twice, or have none any more.
    pub(crate) fn take_ended_in(&mut self) -> Vec<JobId> {
        self.journal.as_mut().map_or_else(Vec::new, |journal| std::mem::take(&mut journal.ended_in))
    }

    /// Stops or resumes handing out, as the journal fails or recovers.
    pub(crate) fn pause(&mut self, paused: bool) {
        if let Some(journal) = &mut self.journal {
            journal.paused = paused;
        }
        self.reconsider_parked();
    }

    pub(super) fn is_paused(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.paused)
    }

    /// Begins a job with the number that it has in the journal.
    pub(crate) fn begin_as(&mut self, number: u32) -> JobId {
        self.next_job = self.next_job.max(number.saturating_add(1));
        self.jobs.insert(JobId(number), Job::default());
        JobId(number)
    }

    /// Adds an accepted task of a client under this name. Everything that it needs must be present.
    pub(crate) fn add_as(
        &mut self,
        Name { job, number, run, .. }: Name,
        (kind, options, needs): (KindId, Options, &Resources),
        input: Bytes,
        came: Origin,
    ) -> Result<(), Refused> {
        let lane = self.lanes.of_accepted(needs);
        let job = JobId(job);
        if self.jobs.get(&job).is_none_or(|job| job.cancelled) {
            return Err(Refused::Cancelled);
        }
        let mut entry = Entry::new(job, kind, options, lane, Input::Bytes(input));
        (entry.number, entry.run, entry.gives) = (number, run, true);
        // Results go to the journal as they come, whether or not the client reads them.
        entry.is_awaited = true;
        let task = self.insert(entry);
        self.ready_if_free(task, came);
        Ok(())
    }

    /// Whether a task of this name is not over.
    pub(crate) fn has_named(&self, name: Name) -> bool {
        self.named(name).is_some()
    }

    pub(super) fn named(&self, name: Name) -> Option<TaskId> {
        let names = &self.journal.as_ref()?.names;
        if self.has(Flaw::ForgetsRuns) {
            let mut alike = names.iter().filter(|(other, _)| Name { run: name.run, ..**other } == name);
            return alike.next().map(|(_, task)| *task);
        }
        names.get(&name).copied()
    }

    /// Records an accepted submission. Returns the number of the first task that it adds.
    pub(super) fn record_taken(&mut self, task: TaskId, ending: &Ending, tasks: &[SubTask]) -> u64 {
        let Some(name) = self.tasks.get(task).map(super::name_of) else { return 0 };
        let Some(journal) = &mut self.journal else { return 0 };
        if tasks.is_empty() && name.sub == 0 {
            return 0;
        }
        journal.serial += 1;
        let serial = journal.serial;
        journal.serial += tasks.len() as u64;
        if !journal.replays {
            let (ending, tasks) = (ending.clone(), tasks.to_vec());
            journal.steps.push(Step::Took { name, serial, ending, tasks });
        }
        serial + 1
    }

    /// Records that a sub-task ended without a result, unless it was cancelled.
    pub(super) fn record_failed(&mut self, task: TaskId, error: &Arc<TaskError>) {
        let by_itself = !matches!(**error, TaskError::Cancelled);
        let Some(entry) = self.tasks.get(task).filter(|entry| entry.sub != 0 && by_itself) else { return };
        let name = super::name_of(entry);
        let Some(journal) = &mut self.journal else { return };
        journal.serial += 1;
        let serial = journal.serial;
        journal.push_step(Step::Failed { name, serial, error: Arc::clone(error) });
    }

    /// Repeats a step of the journal.
    ///
    /// # Errors
    /// What is wrong with it: its task does not exist, or no pool can have accepted it.
    pub(crate) fn replay(&mut self, step: Step) -> Result<(), String> {
        let (name, serial) = match &step {
            Step::Took { name, serial, .. } | Step::Failed { name, serial, .. } => (*name, *serial),
            _ => return Ok(()),
        };
        let Some(task) = self.named(name) else { return Err("the task was never added".into()) };
        let after = match &step {
            Step::Took { ending, tasks, .. } => {
                if let Some(wrong) = self.find_contradiction(ending, tasks) {
                    return Err(wrong);
                }
                serial + tasks.len() as u64
            }
            _ => serial,
        };
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let latest = journal.serial.max(after);
        (journal.serial, journal.replays) = (serial.saturating_sub(1), true);
        match step {
            Step::Took { ending, tasks, .. } => {
                let nobody = Processor { node: 0, number: 0 };
                self.take(task, nobody, ending, tasks);
                self.counts.taken -= 1;
            }
            Step::Failed { error, .. } => self.end(task, Err(error)),
            _ => {}
        }
        if let Some(journal) = &mut self.journal {
            (journal.serial, journal.replays) = (latest, false);
        }
        Ok(())
    }

    /// Whether a task must be given to nobody else while a processor may have it.
    pub(crate) fn must_not_run_twice(&self, name: Name) -> bool {
        let entry = self.named(name).and_then(|task| self.tasks.get(task));
        entry.is_some_and(|entry| must_not_run_twice(entry.options))
    }

    /// Records who has held a task for a while, so that the next pool waits for that processor before it hands the task to another.
    pub(super) fn record_long(&mut self, now: Duration) {
        let Some(journal) = self.journal.as_mut().filter(|_| now >= self.next_record) else { return };
        self.next_record = now + LONG;
        for row in self.table.rows() {
            let Some(holder) = row.holders().find(|holder| now >= holder.since + LONG) else { continue };
            let Some(entry) = self.tasks.get_mut(row.task).filter(|entry| !entry.recorded) else { continue };
            entry.recorded = true;
            journal.push_step(Step::Runs { name: super::name_of(entry), processor: holder.processor });
        }
    }

    /// Holds back a task that was handed out before the pool was lost, and that must not run twice or has run for a while, until its holder
    /// reports it or is given up.
    pub(crate) fn hold_back(&mut self, name: Name) {
        let Some(task) = self.named(name) else { return };
        if let Some(entry) = self.tasks.get_mut(task).filter(|entry| entry.state == State::Ready) {
            entry.state = State::Scheduled { row: self.table.insert(task) };
            // The journal's record of it is removed when the task is over.
            (entry.attempts, entry.recorded) = (1, true);
        }
    }

    /// Gives up the holder of a task that was held back, if nobody has adopted the task in time.
    pub(crate) fn give_up_holder(&mut self, name: Name, processor: Processor) {
        let Some(task) = self.named(name) else { return };
        let Some(State::Scheduled { row }) = self.tasks.get(task).map(|entry| entry.state) else { return };
        if self.table.get(row).is_some_and(|row| !row.is_held()) {
            self.counts.lost += 1;
            self.drop_by_all(task, TaskError::MayHaveRun(processor));
        }
    }

    /// Takes back one death of a task's holders: one of them is back with it.
    pub(crate) fn acquit_named(&mut self, name: Name) {
        self.named(name).into_iter().for_each(|task| self.acquit(task));
    }

    /// Registers a processor as the holder of this task, which it had from an earlier pool, or from this one before its link was lost. `None`:
    /// the task is not wanted.
    pub(crate) fn adopt(&mut self, now: Duration, processor: Processor, name: Name) -> Option<Held> {
        let task = self.named(name).filter(|_| !self.banned.contains(&processor))?;
        self.meet(now, processor);
        let entry = self.tasks.get(task)?;
        match entry.state {
            State::Waiting { .. } => return None,
            State::Scheduled { row } => {
                let row = self.table.get(row)?;
                if let Some(holder) = row.holders().find(|holder| holder.processor == processor) {
                    return Some(Held { name, task, attempt: holder.attempt });
                }
                if row.is_held() {
                    return None;
                }
            }
            State::Ready => {}
        }
        // If its hand-out must be in the journal, it is there already.
        if let Some(journal) = &mut self.journal {
            journal.replays = true;
        }
        let assignment = self.schedule(now, task, processor);
        if let Some(journal) = &mut self.journal {
            journal.replays = false;
        }
        self.counts.adopted += 1;
        Some(Held { name, task, attempt: assignment?.attempt })
    }

    /// Takes a submission for a task that a processor had from an earlier pool, or from this one before its link was lost. Results are accepted
    /// from anybody; failures count only for an attempt that is held now.
    pub(crate) fn submit_named(
        &mut self,
        now: Duration,
        from: Processor,
        name: Name,
        submission: Submission,
    ) {
        self.clock = now;
        let Submission { ending, tasks, .. } = submission;
        let task = self.named(name).filter(|_| !self.banned.contains(&from));
        let can_be = |pool: &Self, task| {
            pool.tasks.get(task).is_some_and(|entry| !matches!(entry.state, State::Waiting { .. }))
        };
        let Some(task) = task.filter(|task| can_be(self, *task)) else {
            self.counts.ignored += 1;
            return;
        };
        if matches!(ending, Ending::Failed(_)) || self.find_error(&ending, &tasks).is_some() {
            self.counts.ignored += 1;
            return;
        }
        self.take(task, from, ending, tasks);
    }
}
