//! A pool whose tasks outlive it: the pool, the changes for its journal, and whatever must wait until those are durable. Like the pool, it is a
//! state machine without clock, thread, part or disk: groups of changes go out ([`Durable::take_group`]), and notice of those that are durable
//! comes in ([`Durable::durable`]).
//!
//! * **Nothing is handed out that rests on a record which is not durable**: the pool is told on which group its events rest.
//! * **A submission is acknowledged, a result shown and a request answered only when it is durable.** Such messages are held back, in order.
//! * **Hand-outs are not recorded**, since a task without a submission may be handed out at any time. The exception is tasks that must not run
//!   twice: their hand-out is durable before it leaves. A task that has run for a second is recorded as well, but nothing waits for that record.
//! * **A pool has a term**, one above that of its predecessor. Reports of another term are ignored. Results of an earlier term arrive under the
//!   names of their tasks, which persist, and processors keep tasks of an earlier term in the same way.
//!
//! Tasks of a job are stored in chunks, as they were added, and enter the pool as there is room; until then they cost the pool nothing. Tasks
//! with dependencies enter when these are over and durable, with results read from the store.

mod batch;
mod feed;
mod requests;
mod restore;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::pool::{Flaw, JobId, Outcome, Pool, Processor, Step, TaskError};
use crate::store::{Change, JobRecord, Reader};
use crate::wire::{Down, Name, Submission, Up};
use batch::Batch;

/// How long tasks that must not run twice are held back after a start, for their processors to return.
const ORPHANED: Duration = Duration::from_secs(30);
/// The same for tasks that may run twice and had run for a while: by then the processor has rejoined, or its node has been given up.
const AWAITED: Duration = Duration::from_secs(5);

/// Whether a result counts as failed.
pub(crate) type Judge = fn(&[u8]) -> bool;

/// A group of changes, to be made durable as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) number: u64,
    /// May be empty: then the group is durable when those before it are.
    pub(crate) changes: Vec<Change>,
}

/// An outgoing message.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    Down(Processor, Down),
    /// An answer whose results must be read from the store.
    Read(Processor, Reading),
}

/// A client's read of results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) id: u64,
    pub(crate) job: u32,
    /// The place to continue from if there are no items; and task numbers, each with the place after it.
    pub(crate) from: u64,
    pub(crate) items: Vec<(u64, u64)>,
    /// Whether no more will follow.
    pub(crate) over: bool,
}

/// What to do when a group is durable.
#[derive(Clone, Debug)]
enum Waiting {
    Down(Processor, Down),
    /// Acknowledge a processor's results, up to this one.
    Taken(Processor, u64),
    /// Show this many results of a job.
    Shown(u32, usize),
    /// Let this many tasks of a job be handed out.
    There(u32, u64),
    /// Make this record of a job visible.
    Known(u32, JobRecord),
    /// Give these tasks of a job, which have had their turn, another one.
    Again(u32, Vec<Range<u64>>),
}

/// See the [module](self).
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Durable {
    pub(crate) pool: Pool,
    fingerprint: u64,
    kinds: usize,
    term: u32,
    /// The numbers of all pools of this journal, this one's last.
    pools: Vec<u64>,
    judge: Judge,
    /// Reads results that tasks need.
    reader: Box<dyn Reader>,
    jobs: BTreeMap<u32, Batch>,
    nonces: HashMap<u128, u32>,
    most_jobs: usize,
    next_job: u32,
    /// Number of the group that is being collected.
    group: u64,
    changes: Vec<Change>,
    durable: u64,
    waiting: VecDeque<(u64, Waiting)>,
    /// How many messages wait for each processor or client.
    waiting_for: HashMap<Processor, usize>,
    ready: VecDeque<Output>,
    stalled: Option<String>,
    /// Tasks that an earlier pool has handed out and that are held back; since when; and whether those that may run twice have been released.
    orphans: BTreeMap<Name, Processor>,
    orphaned: Option<Duration>,
    awaited: bool,
    /// Jobs with tasks whose inputs could not be read for now, or with too many tasks for one group that cannot run.
    unfed: BTreeSet<u32>,
    /// Jobs with the most tasks allowed in the pool, sub-tasks included.
    crowded: BTreeSet<u32>,
    /// Tasks of clients that have ended since the start, and how many of them have failed.
    ended: (u64, u64),
    /// The group in which tasks ended that cannot run, and how many did.
    not_run: (u64, u64),
    /// How often a job was searched for outcomes.
    #[cfg(test)]
    searched: u64,
}

impl Durable {
    /// Handles a message of a processor or client.
    pub(crate) fn receive(&mut self, now: Duration, from: Processor, message: Up) {
        match message {
            Up::Hello { fingerprint, offer, held, of } => {
                if self.pool.hello(from, fingerprint, offer) {
                    self.welcome(now, from, &held, of);
                }
            }
            Up::Report { term, first, room, results } => self.report(now, from, (term, first), room, results),
            Up::Again { term, first, results } => self.again(now, from, (term, first), results),
            Up::Bye => self.pool.leave(from),
            Up::Request { id, request } if !self.pool.is_refused(from) => self.request(from, id, request),
            Up::Request { .. } => {}
            // Those belong to the part for large values.
            Up::Large { .. } => self.pool.malformed(from),
        }
        self.collect();
    }

    fn welcome(&mut self, now: Duration, from: Processor, held: &[Name], of: u64) {
        let is_known = of == 0 || self.pools.contains(&of);
        let held = held.iter().filter(|_| is_known);
        // It repeats its hello until it is welcome. That takes back one death, not several.
        if !self.pool.has_met(from) {
            held.clone().for_each(|name| self.pool.acquit_named(*name));
        }
        let held = held.filter_map(|name| self.pool.adopt(now, from, *name)).collect::<Vec<_>>();
        self.orphans.retain(|name, _| !held.iter().any(|held| held.name == *name));
        let number = self.pools.last().copied().unwrap_or(0);
        self.send(from, Down::Welcome { term: self.term, number, is_known, held });
    }

    fn report(
        &mut self,
        now: Duration,
        from: Processor,
        (term, first): (u32, u64),
        room: u16,
        results: Vec<Submission>,
    ) {
        if term != self.term && !self.pool.has(Flaw::NoTerms) {
            return;
        }
        let up_to = first.saturating_add(results.len() as u64);
        if !results.is_empty() {
            for mut result in results {
                let name = self.pool.name_of(result.task);
                let (large, before) = (std::mem::take(&mut result.large), self.pool.counts().taken);
                self.pool.submit(now, from, result);
                self.keep(name, large, before);
            }
            self.collect();
            self.acknowledge(from, up_to);
        }
        self.pool.ask(now, from, room.into());
    }

    fn again(
        &mut self,
        now: Duration,
        from: Processor,
        (term, first): (u32, u64),
        results: Vec<(Name, Submission)>,
    ) {
        if term != self.term {
            return;
        }
        let up_to = first.saturating_add(results.len() as u64);
        for (name, mut result) in results {
            let (large, before) = (std::mem::take(&mut result.large), self.pool.counts().taken);
            self.pool.submit_named(now, from, name, result);
            self.keep(Some(name), large, before);
        }
        self.collect();
        self.acknowledge(from, up_to);
    }

    /// Keeps the large values of a result, if the result was accepted.
    fn keep(&mut self, name: Option<Name>, large: Vec<u64>, taken_before: u64) {
        if let Some(name) = name
            && !large.is_empty()
            && self.pool.counts().taken > taken_before
        {
            // In the same group as the result, or in an earlier one.
            self.changes.push(Change::Keeps(name, large));
        }
    }

    fn acknowledge(&mut self, to: Processor, up_to: u64) {
        let taken = Down::Taken { up_to };
        if self.pool.has(Flaw::AcknowledgesEarly) {
            return self.ready.push_back(Output::Down(to, taken));
        }
        let rests_on = self.rests_on();
        if rests_on <= self.durable {
            return self.ready.push_back(Output::Down(to, taken));
        }
        // Tasks handed out meanwhile need not wait behind this.
        self.wait(rests_on, Waiting::Taken(to, up_to));
    }

    /// Sends a message as soon as all that it rests on is durable.
    fn send_when_durable(&mut self, to: Processor, down: Down) {
        let rests_on = self.rests_on();
        self.hold(rests_on, to, down);
    }

    /// Sends a message, after all that waits for the same recipient.
    fn send(&mut self, to: Processor, down: Down) {
        self.hold(0, to, down);
    }

    fn hold(&mut self, rests_on: u64, to: Processor, down: Down) {
        let is_first = !self.waiting_for.contains_key(&to);
        if rests_on <= self.durable && is_first {
            return self.ready.push_back(Output::Down(to, down));
        }
        *self.waiting_for.entry(to).or_default() += 1;
        self.wait(rests_on, Waiting::Down(to, down));
    }

    fn wait(&mut self, rests_on: u64, waiting: Waiting) {
        let before = self.waiting.back().map_or(0, |(before, _)| *before);
        self.waiting.push_back((rests_on.max(before), waiting));
    }

    /// The latest group with anything in it.
    fn rests_on(&self) -> u64 {
        if self.changes.is_empty() && self.pool.last_deferred() != Some(self.group) {
            self.group - 1
        } else {
            self.group
        }
    }

    /// Collects the pool's events for the journal. Returns whether a hand-out must wait for them.
    fn collect(&mut self) -> bool {
        let mut must_wait = false;
        for step in self.pool.take_steps() {
            self.changes.push(match step {
                Step::FamilyOver { job, number } => Change::FamilyOver(job, number),
                Step::Settled { name } => Change::Settled(name),
                Step::Started { name, processor } => {
                    must_wait = true;
                    Change::Started(name, processor)
                }
                Step::Runs { name, processor } => Change::Started(name, processor),
                step => Change::Step(step),
            });
        }
        for job in self.pool.take_ended_in() {
            self.collect_outcomes(job);
        }
        self.feed_crowded();
        must_wait
    }

    fn collect_outcomes(&mut self, of: JobId) {
        #[cfg(test)]
        {
            self.searched += 1;
        }
        let (JobId(job), mut ended) = (of, Vec::new());
        while let Some(Outcome { number, result }) = self.pool.take_outcome(of) {
            let Some(batch) = self.jobs.get(&job) else { continue };
            let result = result.map_err(|error| (*error).clone());
            if matches!(result, Err(TaskError::Cancelled)) && batch.record.cancelled {
                continue;
            }
            ended.push((number, result));
        }
        if !ended.is_empty() {
            self.end(job, ended);
            self.feed(job);
        }
    }

    /// Returns the next outgoing message, if there is one now.
    pub(crate) fn poll(&mut self, now: Duration) -> Option<Output> {
        self.expire_orphans(now);
        std::mem::take(&mut self.unfed).into_iter().for_each(|job| self.feed(job));
        loop {
            if let Some(out) = self.ready.pop_front() {
                return Some(out);
            }
            let polled = self.pool.poll(now);
            let must_wait = self.collect();
            let (to, down) = polled?;
            if must_wait {
                self.send_when_durable(to, down);
            } else {
                self.send(to, down);
            }
        }
    }

    fn expire_orphans(&mut self, now: Duration) {
        while !self.orphans.is_empty() && now >= *self.orphaned.get_or_insert(now) + self.patience() {
            let all = std::mem::take(&mut self.orphans);
            let (kept, given_up): (BTreeMap<_, _>, BTreeMap<_, _>) =
                all.into_iter().partition(|(name, _)| !self.awaited && self.pool.must_not_run_twice(*name));
            (self.orphans, self.awaited) = (kept, true);
            for (name, processor) in given_up {
                self.pool.give_up_holder(name, processor);
            }
            self.collect();
        }
    }

    /// How long orphans are held back.
    fn patience(&self) -> Duration {
        if self.awaited { ORPHANED } else { AWAITED }
    }

    /// When to call [`poll`](Self::poll) again even if nothing happens; `None`: not until something does.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        let orphaned = self.orphaned.filter(|_| !self.orphans.is_empty());
        let orphaned = orphaned.map(|since| since + self.patience());
        self.pool.next_time().into_iter().chain(orphaned).min()
    }

    /// Takes the next group to be made durable. Groups are numbered consecutively.
    pub(crate) fn take_group(&mut self) -> Option<Group> {
        let waits = self.waiting.back().is_some_and(|(group, _)| *group == self.group);
        if self.changes.is_empty() && !waits && self.pool.last_deferred() != Some(self.group) {
            return None;
        }
        let group = Group { number: self.group, changes: std::mem::take(&mut self.changes) };
        self.group += 1;
        self.pool.rest_on(self.group);
        Some(group)
    }

    /// Marks all groups up to this one as durable.
    pub(crate) fn durable(&mut self, group: u64) {
        self.durable = self.durable.max(group);
        self.pool.mark_durable(self.durable);
        while self.waiting.front().is_some_and(|(group, _)| *group <= self.durable)
            && let Some((_, waiting)) = self.waiting.pop_front()
        {
            match waiting {
                Waiting::Down(to, down) => {
                    if let Some(count) = self.waiting_for.get_mut(&to) {
                        *count -= 1;
                        if *count == 0 {
                            self.waiting_for.remove(&to);
                        }
                    }
                    self.ready.push_back(Output::Down(to, down));
                }
                Waiting::Taken(to, up_to) => self.ready.push_back(Output::Down(to, Down::Taken { up_to })),
                Waiting::Shown(job, shown) => {
                    if let Some(batch) = self.jobs.get_mut(&job) {
                        batch.show(shown);
                    }
                    self.feed(job);
                }
                Waiting::Known(job, record) => {
                    if let Some(batch) = self.jobs.get_mut(&job) {
                        batch.known = Some(record);
                    }
                }
                Waiting::Again(job, tasks) => {
                    if let Some(batch) = self.jobs.get_mut(&job) {
                        batch.requeue_reruns(tasks);
                    }
                    self.feed(job);
                }
                Waiting::There(job, there) => {
                    if let Some(batch) = self.jobs.get_mut(&job) {
                        batch.there = there;
                    }
                    self.feed(job);
                }
            }
        }
    }

    /// Sets why the journal cannot be written, or `None` once it can be again.
    pub(crate) fn set_stalled(&mut self, why: Option<String>) {
        if self.stalled.is_some() != why.is_some() {
            self.pool.pause(why.is_some());
        }
        self.stalled = why;
    }

    /// Removes a node that is gone without notice.
    pub(crate) fn lose_node(&mut self, node: u16) {
        self.pool.lose_node(node);
        self.collect();
    }

    /// Removes a processor or client that cannot be reached any more.
    pub(crate) fn leave(&mut self, processor: Processor) {
        self.pool.leave(processor);
        self.collect();
    }

    /// Ignores a processor or client from now on, for this reason.
    pub(crate) fn ignore(&mut self, processor: Processor, why: &str) {
        self.pool.ignore(processor, why);
        self.collect();
    }

    /// The last group that is known to be durable.
    pub(crate) fn is_durable(&self) -> u64 {
        self.durable
    }

    /// Whether every change is durable.
    pub(crate) fn is_written(&self) -> bool {
        self.durable + 1 == self.group && self.changes.is_empty()
    }
}
