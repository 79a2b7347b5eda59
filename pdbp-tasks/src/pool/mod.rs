//! The pool side: task set, dynamic table, dependencies and outcomes, as a state machine. Operations and the time go in; messages to processors
//! ([`Pool::poll`]) and outcomes ([`Pool::take_outcome`]) come out.
//!
//! The rules are those of S4, "Elastic parallel computation":
//! 1. A task leaves the set at its first hand-out and enters the table, which it leaves only by an accepted submission.
//! 2. Processors ask; the pool sends only to processors that have asked. Everything it notes about processors may be forgotten without losing a
//!    task.
//! 3. The answer is tasks, `Stop` or `Standby`, which is a request that the pool remembers.
//! 4. A submission of a task in the table is accepted from any holder, present or past; any other is counted and ignored.
//! 5. Sub-tasks come with a submission and exist if and only if it is accepted.
//! 6. Tasks of a lost processor stay in the table and are handed out again, before anything else.
//! 7. The job is over when set and table are empty and nothing can be added any more.
//!
//! A failure is a submission, too, but it counts once, and only for an attempt that is held now: a repeated one, or one from a processor that was
//! given up, would use up the retries of a task that runs elsewhere.

mod blame;
mod checks;
#[cfg(test)]
mod digest;
mod endings;
#[cfg_attr(not(feature = "net"), allow(dead_code, reason = "nobody asks a pool without a journal"))]
mod explain;
mod figures;
mod flaws;
mod hand_out;
#[cfg_attr(not(feature = "net"), allow(dead_code, reason = "journals come with the feature"))]
mod journal;
mod lanes;
mod nodes;
mod ready;
#[cfg(feature = "metrics")]
pub(crate) mod seen;
mod spans;
mod strays;
mod submit;
mod table;
mod tasks;
mod trouble;
mod types;
mod unread;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::timeline::Span;
use crate::wire::{Bytes, Down, Name, SubTask, TaskId, pieces};
use blame::Blame;
use figures::Figures;
pub(crate) use flaws::Flaw;
use journal::Journal;
#[cfg(feature = "net")]
pub(crate) use journal::Step;
use lanes::{LaneId, Lanes};
use nodes::Nodes;
use table::Table;
#[cfg(feature = "net")]
pub(crate) use tasks::joined;
use tasks::{Ended, Entry, Input, State, Tasks};
use trouble::Trouble;
pub use types::{Counts, JobId, Limits, NewTask, Outcome, Processor, Refusal, Refused, TaskError};
#[cfg(test)]
pub(crate) use unread::OUTCOME;
use unread::Unread;

/// What the pool notes about a processor. All of it may be forgotten.
#[derive(Clone, Debug)]
struct Known {
    room: usize,
    /// Tasks that it holds.
    held: usize,
    waits: Waits,
    /// Its share of its node.
    share: Option<Share>,
    /// When its last message arrived.
    heard: Duration,
}

/// A processor's share of its node, from a hand-out until it asks and holds nothing.
#[derive(Clone, Copy, Debug)]
struct Share {
    lane: LaneId,
    /// A bit for each.
    gpus: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    No,
    /// In `asking`.
    Asking,
    /// In `parked`, with this number.
    Parked(u64),
}

#[derive(Clone, Debug, Default)]
struct Job {
    live: usize,
    next: u64,
    outcomes: VecDeque<Outcome>,
    /// Bytes of these.
    unread: usize,
    /// Tasks that are over, and how many of them have failed.
    ended: (u64, u64),
    /// Tasks that could run but are held back until fewer results are unread, in hand-out order.
    aside: VecDeque<(TaskId, Origin)>,
    kept: HashMap<u64, Kept>,
    cancelled: bool,
}

#[derive(Clone, Debug)]
enum Kept {
    Pending(TaskId),
    Over(Ended),
}

/// The pool of tasks: see the [module](self).
#[derive(Clone, Debug)]
pub struct Pool {
    limits: Limits,
    fingerprint: u64,
    tasks: Tasks,
    table: Table,
    lanes: Lanes,
    nodes: Nodes,
    /// Tasks that may have killed processors.
    blame: HashMap<TaskId, Blame>,
    kinds: Vec<Figures>,
    jobs: HashMap<JobId, Job>,
    next_job: u32,
    processors: HashMap<Processor, Known>,
    /// Processors that have asked and have not been answered.
    asking: VecDeque<Processor>,
    /// Processors that stand by, numbered: of one processor the latest request counts.
    parked: VecDeque<(Processor, u64)>,
    /// Processors whose submissions are ignored.
    banned: HashSet<Processor>,
    /// Messages of each processor that no pool can have caused.
    strays: HashMap<Processor, u32>,
    refusals: Vec<Refusal>,
    trouble: Trouble,
    /// Whether a result counts as failed.
    judge: fn(&[u8]) -> bool,
    notices: VecDeque<(Processor, Down)>,
    counts: Counts,
    /// Clients' tasks that are over, and how many of them have failed.
    ended: (u64, u64),
    turns: u64,
    /// Requests on standby numbered up to this one are reconsidered: there may be tasks for them.
    reconsider: u64,
    /// Live tasks with a limit.
    limited: usize,
    next_check: Duration,
    /// When long runs are next noted.
    next_record: Duration,
    /// Bytes of inputs and of outcomes that have not been taken.
    bytes: usize,
    unread: Unread,
    closed: bool,
    /// The latest time it was given.
    clock: Duration,
    /// Recorded holds, if wanted.
    spans: Option<Vec<Span>>,
    /// The most holds that are recorded.
    most_spans: usize,
    /// Notes for a journal, if there is one.
    journal: Option<Box<Journal>>,
    #[cfg(test)]
    pub(crate) flaw: Option<Flaw>,
}

impl Pool {
    /// Creates an empty pool for tasks of this many kinds, identified by a fingerprint.
    pub fn new(kinds: usize, fingerprint: u64, limits: Limits) -> Self {
        let limits = Limits { input_bytes: limits.input_bytes.min(pieces::VALUE), ..limits };
        Self {
            limits,
            fingerprint,
            tasks: Tasks::default(),
            table: Table::default(),
            lanes: Lanes::default(),
            nodes: Nodes::default(),
            blame: HashMap::new(),
            kinds: (0..kinds).map(|_| Figures::default()).collect(),
            jobs: HashMap::new(),
            next_job: 0,
            processors: HashMap::new(),
            asking: VecDeque::new(),
            parked: VecDeque::new(),
            banned: HashSet::new(),
            strays: HashMap::new(),
            refusals: Vec::new(),
            trouble: Trouble::default(),
            judge: |_| false,
            notices: VecDeque::new(),
            counts: Counts::default(),
            ended: (0, 0),
            turns: 0,
            reconsider: 0,
            limited: 0,
            next_check: Duration::ZERO,
            next_record: Duration::ZERO,
            bytes: 0,
            unread: Unread::default(),
            closed: false,
            clock: Duration::ZERO,
            spans: None,
            most_spans: spans::MOST,
            journal: None,
            #[cfg(test)]
            flaw: None,
        }
    }

    /// Begins a job.
    pub fn begin(&mut self) -> JobId {
        let job = JobId(self.next_job);
        self.next_job += 1;
        self.jobs.insert(job, Job::default());
        job
    }

    /// Adds a task and returns its number in the job. The task is not scheduled yet.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add(&mut self, job: JobId, new: &NewTask<'_>) -> Result<u64, Refused> {
        if self.room() == 0 {
            return Err(Refused::Full);
        }
        let (bytes, most) = (new.input.len(), self.limits.input_bytes);
        if bytes > most {
            return Err(Refused::TooLong { bytes, most });
        }
        let known = self.jobs.get(&job).filter(|job| !job.cancelled).ok_or(Refused::Cancelled)?;
        let lane = self.lanes.of_needs(new.needs).ok_or(Refused::TooManyNeeds)?;
        let number = known.next;
        let (mut edges, mut parts, mut failed) = (Vec::new(), Vec::new(), None);
        let joined = new.join.unwrap_or(&[]).iter().map(|n| (n, true));
        for (needed, is_data) in joined.chain(new.after.iter().map(|n| (n, false))) {
            let part = is_data.then_some(parts.len() as u32); // no more than tasks
            let mut there = None;
            match known.kept.get(needed).ok_or(Refused::UnknownTask(*needed))? {
                Kept::Pending(task) => edges.push((*task, part)),
                Kept::Over(Ok(bytes)) => there = Some(bytes.clone()),
                Kept::Over(Err(error)) => failed = Some(Arc::clone(error)),
            }
            if is_data {
                parts.push(there);
            }
        }
        let input = match new.join {
            Some(_) => Input::join(new.input.clone(), parts),
            None => Input::Bytes(new.input.clone()),
        };
        let mut entry = Entry::new(job, new.kind, new.options, lane, input);
        (entry.number, entry.gives, entry.is_awaited) = (number, true, new.keep);
        let task = self.insert(entry);
        if let Some(job) = self.jobs.get_mut(&job) {
            job.next += 1;
            if new.keep {
                job.kept.insert(number, Kept::Pending(task));
            }
        }
        edges.into_iter().for_each(|(on, part)| self.tasks.connect(on, task, part));
        match failed {
            Some(error) => self.end(task, Err(Arc::new(TaskError::NotRun(error)))),
            None => self.ready_if_free(task, Origin::New),
        }
        Ok(number)
    }

    /// Cancels all tasks of a job that are not over. Processors that run one are told to drop it, and late submissions find no entry. Nothing can
    /// be added to the job any more.
    pub fn cancel(&mut self, job: JobId) {
        if let Some(known) = self.jobs.get_mut(&job) {
            known.cancelled = true;
        }
        // One pass over all tasks, since this is rare.
        for task in self.tasks.of_job(job) {
            self.leave_table(task, None);
            self.end(task, Err(Arc::new(TaskError::Cancelled)));
        }
        // Tasks held back for one of them.
        self.forget_ended();
    }

    /// Ends all sub-tasks of these tasks of a job, which are sorted and over themselves.
    #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "only pools with a journal run tasks again"))]
    pub(crate) fn end_families(&mut self, job: JobId, numbers: &[Range<u64>]) {
        let Some(journal) = &self.journal else { return };
        if !numbers.iter().cloned().flatten().any(|number| journal.family(job, number) > 0) {
            return;
        }
        let is_one = |number: u64| {
            let at = numbers.partition_point(|some| some.end <= number);
            numbers.get(at).is_some_and(|some| some.contains(&number))
        };
        for task in self.tasks.of_job(job) {
            let entry = self.tasks.get(task);
            if entry.is_some_and(|entry| entry.sub != 0 && is_one(entry.number)) {
                self.leave_table(task, None);
                self.end(task, Err(Arc::new(TaskError::Cancelled)));
            }
        }
        self.forget_ended();
    }

    /// The outcome of a kept task; `None`: it is not over.
    pub fn result(&self, job: JobId, number: u64) -> Option<Result<Bytes, Arc<TaskError>>> {
        match self.jobs.get(&job)?.kept.get(&number)? {
            Kept::Pending(_) => None,
            Kept::Over(result) => Some(result.clone()),
        }
    }

    /// Tasks of a job that are not over, sub-tasks included.
    pub fn live(&self, job: JobId) -> usize {
        self.jobs.get(&job).map_or(0, |job| job.live)
    }

    /// Tasks of all jobs that are not over.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// How many more tasks clients may add.
    pub fn room(&self) -> usize {
        self.limits.tasks.saturating_sub(self.tasks.len())
    }

    /// Whether all tasks are over.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of inputs, and of outcomes that have not been taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Processors that have asked and not left.
    pub fn processors(&self) -> usize {
        self.processors.len()
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Refused processors, and why; the first hundred.
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// Ends adding by clients: when all is over, processors that ask are told to stop.
    pub fn close(&mut self) {
        self.closed = true;
    }

    fn is_over(&self) -> bool {
        self.closed && (self.tasks.len() == 0 || self.has(Flaw::StopsEarly) && self.lanes.len() == 0)
    }

    fn insert(&mut self, entry: Entry) -> TaskId {
        self.bytes += weight(&entry.input);
        self.limited += usize::from(entry.options.limit_ms > 0);
        if let Some(job) = self.jobs.get_mut(&entry.job) {
            job.live += 1;
        }
        let name = name_of(&entry);
        let task = self.tasks.insert(entry);
        if let Some(journal) = &mut self.journal {
            journal.inserted(name, task);
        }
        task
    }

    fn remove(&mut self, task: TaskId) -> Option<Entry> {
        let entry = self.tasks.remove(task)?;
        if self.has(Flaw::ReusesId) {
            self.tasks.reuse(task);
        }
        if !self.blame.is_empty() {
            self.blame.remove(&task);
        }
        self.bytes -= weight(&entry.input);
        self.limited -= usize::from(entry.options.limit_ms > 0);
        if let Some(job) = self.jobs.get_mut(&entry.job) {
            job.live -= 1;
        }
        if let Some(journal) = &mut self.journal {
            journal.removed(name_of(&entry), &entry);
        }
        Some(entry)
    }

    /// Moves a task into the task set, if it waits for nothing.
    fn ready_if_free(&mut self, task: TaskId, came: Origin) {
        let early = self.has(Flaw::HandsOutEarly);
        let Some(entry) = self.tasks.get_mut(task).filter(|e| e.state == State::Waiting { edges: 0 }) else {
            return;
        };
        if let Some(journal) = &mut self.journal
            && journal.must_wait()
            && !early
        {
            return journal.defer_until_durable(task, came);
        }
        let bytes = weight(&entry.input);
        // What a client gives was checked when it entered the journal, perhaps by an earlier pool with another limit.
        let was_checked = self.journal.is_some() && entry.sub == 0;
        if bytes > self.limits.input_bytes && !was_checked {
            return self.refuse_too_long(task, came, bytes);
        }
        self.bytes -= bytes;
        entry.input.settle();
        self.bytes += weight(&entry.input);
        entry.state = State::Ready;
        let (priority, lane) = (entry.options.priority, entry.lane);
        let ready = &mut self.lanes.get_mut(lane).ready;
        match came {
            Origin::New => ready.push_new(priority, task),
            Origin::Unlocked => ready.push_unlocked(priority, task),
        }
        self.reconsider_parked();
    }

    /// Ends a task whose input cannot be handed out, without a result.
    fn refuse_too_long(&mut self, task: TaskId, came: Origin, bytes: usize) {
        if let Some(journal) = &mut self.journal
            && journal.replays()
        {
            // This may be in the journal already, so it is checked after the replay.
            return journal.defer_until_durable(task, came);
        }
        let most = self.limits.input_bytes as u64;
        self.end(task, Err(Arc::new(TaskError::TooLong { bytes: bytes as u64, most })));
    }

    /// Adds the tasks of an accepted submission. They wait until they are [freed](Self::free_sub_tasks): that may end one of them.
    fn add_sub_tasks(
        &mut self,
        job: JobId,
        (number, run, is_awaited): (u64, u32, bool),
        first_sub: u64,
        new: Vec<SubTask>,
    ) -> Vec<TaskId> {
        let mut ids: Vec<TaskId> = Vec::with_capacity(new.len());
        for SubTask { kind, options, needs, input, join, after } in new {
            let input = match &join {
                Some(join) => Input::join(input, vec![None; join.len()]),
                None => Input::Bytes(input),
            };
            let lane = self.lanes.of_accepted(&needs);
            let mut entry = Entry::new(job, kind, options, lane, input);
            (entry.number, entry.run, entry.is_awaited) = (number, run, is_awaited);
            entry.sub = first_sub + ids.len() as u64;
            let task = self.insert(entry);
            let data = join.iter().flatten().enumerate().map(|(part, on)| (on, Some(part as u32)));
            for (on, part) in data.chain(after.iter().map(|on| (on, None))) {
                if let Some(on) = ids.get(usize::from(*on)) {
                    self.tasks.connect(*on, task, part);
                }
            }
            ids.push(task);
        }
        ids
    }

    /// Frees the added sub-tasks: the first goes out first.
    fn free_sub_tasks(&mut self, added: &[TaskId]) {
        added.iter().rev().for_each(|task| self.ready_if_free(*task, Origin::Unlocked));
    }
}

fn name_of(entry: &Entry) -> Name {
    Name { job: entry.job.0, number: entry.number, sub: entry.sub, run: entry.run }
}

/// Where a task comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    New,
    Unlocked,
}

fn weight(input: &Input) -> usize {
    match input {
        Input::Bytes(bytes) => bytes.len(),
        Input::Join(join) => {
            join.own.len() + join.parts.iter().flatten().map(|part| part.len()).sum::<usize>()
        }
    }
}
