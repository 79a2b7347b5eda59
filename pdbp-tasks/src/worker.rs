//! The processor side: when idle, it asks; given tasks, it runs them and submits their results. A state machine without thread, clock or part:
//! messages of the pool and the time go in, and [`Worker::step`] returns what to do next.
//!
//! A submission is also a request, so a busy processor never sends a separate one. Its results leave when half of its queue has run, so that the
//! next tasks arrive before it is empty, or four milliseconds after the last report.
//!
//! A processor of a pool with a journal ([`Worker::keeping`]) keeps each result until the pool reports it durable, runs on while there is no pool
//! ([`Worker::lost`]), and tells the next pool which tasks it holds and which results it has.

use std::collections::VecDeque;
use std::time::Duration;

use crate::resources::Resources;
use crate::wire::{Assignment, Down, Ending, Name, SubTask, Submission, TaskId, Up};

/// Tasks that a processor takes at a time.
const ROOM: usize = 256;
/// The most results in one message, and their bytes.
const MOST: (usize, usize) = (256, 16 << 20);
/// While there are tasks to run, results wait no longer than this for others.
const SOON: Duration = Duration::from_millis(4);
/// Results kept until they are durable, and their bytes: beyond these a processor waits.
const UNACKNOWLEDGED: (usize, usize) = (2048, 16 << 20);
/// A processor on standby asks again after this time: the answer may have been lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Send this to the pool.
    Send(Up),
    /// Run this task, then call [`Worker::ended`].
    Run(Assignment),
    /// Wait for a message, at most this long.
    Wait(Duration),
    /// The processor stops.
    Over(Over),
}

/// Why a processor stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// The job is done.
    Done,
    /// The pool knows other functions; this is the pool's fingerprint.
    Refused(u64),
    /// The pool ignores it, for this reason.
    Ignored(String),
}

#[derive(Clone, Copy, Debug)]
struct Running {
    task: TaskId,
    attempt: u32,
    name: Option<Name>,
    since: Duration,
}

/// What a processor keeps for a pool with a journal.
#[derive(Clone, Debug, Default)]
struct Keeps {
    /// The pool's term, if known.
    term: Option<u32>,
    /// The number of the last known pool.
    of: u64,
    /// When it last introduced itself.
    greeted: Duration,
    /// Results that are not durable yet, the oldest first.
    results: VecDeque<(Name, Submission)>,
    /// Number of the first of these results.
    first: u64,
    bytes: usize,
    /// The pool of this term has not seen all of them.
    again: bool,
}

/// A processor: see the [module](self).
#[derive(Clone, Debug)]
pub struct Worker {
    fingerprint: u64,
    offer: Resources,
    greeted: bool,
    queue: VecDeque<Assignment>,
    /// Length of the queue at which the next report is due.
    low: usize,
    running: Option<Running>,
    /// The result of the running task is no longer wanted.
    dropped: bool,
    results: Vec<(Option<Name>, Submission)>,
    /// Bytes of the results.
    bytes: usize,
    /// When it last reported, unless it was given something since.
    asked: Option<Duration>,
    reported: Duration,
    over: Option<Over>,
    keeps: Option<Keeps>,
    /// Large values written by the running task.
    wrote: Vec<u64>,
}

impl Worker {
    /// Creates an idle processor that knows the functions of this fingerprint, on a node with this offer.
    pub fn new(fingerprint: u64, offer: Resources) -> Self {
        Self {
            fingerprint,
            offer,
            greeted: false,
            queue: VecDeque::new(),
            low: 0,
            running: None,
            dropped: false,
            results: Vec::new(),
            bytes: 0,
            asked: None,
            reported: Duration::ZERO,
            over: None,
            keeps: None,
            wrote: Vec::new(),
        }
    }

    /// As [`new`](Self::new), for a pool with a journal.
    pub fn keeping(fingerprint: u64, offer: Resources) -> Self {
        Self { keeps: Some(Keeps::default()), ..Self::new(fingerprint, offer) }
    }

    /// The pool, or the link to it, is lost. The processor's tasks run on, and the next pool is told about them.
    pub fn lost(&mut self) {
        (self.greeted, self.asked) = (false, None);
        if let Some(keeps) = &mut self.keeps {
            keeps.term = None;
        }
        self.keep_unsent();
    }

    /// Keeps unsent reports by the names of their tasks, together with the unacknowledged results.
    fn keep_unsent(&mut self) {
        if let Some(keeps) = &mut self.keeps {
            keeps.again = true;
        }
        let unsent = std::mem::take(&mut self.results);
        self.bytes = 0;
        unsent.iter().for_each(|(name, result)| self.keep(*name, result));
    }

    /// Whether it has neither tasks nor results that the pool still needs.
    pub fn is_idle(&self) -> bool {
        let kept = self.keeps.as_ref().map_or(0, |keeps| keeps.results.len());
        self.running.is_none() && self.queue.is_empty() && self.results.is_empty() && kept == 0
    }

    /// Unacknowledged results, and tasks that have not begun.
    pub fn has(&self) -> (usize, usize) {
        let kept = self.keeps.as_ref().map_or(0, |keeps| keeps.results.len());
        (kept + self.results.len(), self.queue.len())
    }

    /// Drops tasks that have not begun: others run them.
    pub fn drop_queue(&mut self) {
        self.queue.clear();
        self.low = 0;
    }

    fn keep(&mut self, name: Option<Name>, result: &Submission) {
        let Some(keeps) = &mut self.keeps else { return };
        let Some(name) = name else { return };
        keeps.bytes += result.weight();
        keeps.results.push_back((name, result.clone()));
    }

    /// Names of tasks that have not ended, in the order in which they run.
    fn held(&self) -> Vec<Name> {
        let running = self.running.iter().filter(|_| !self.dropped).filter_map(|running| running.name);
        running.chain(self.queue.iter().filter_map(|task| task.name)).collect()
    }

    fn welcome(&mut self, term: u32, (number, is_known): (u64, bool), held: &[crate::wire::Held]) {
        let Some(keeps) = &mut self.keeps else { return };
        if keeps.term.is_some_and(|known| known >= term) {
            return;
        }
        (keeps.term, keeps.of) = (Some(term), number);
        if !is_known {
            // The pool has another journal, in which these names mean other tasks.
            keeps.results.clear();
            keeps.bytes = 0;
            self.results.clear();
        }
        // What has ended since the hello has ids of another term.
        self.keep_unsent();
        let of = |name: Option<Name>| held.iter().find(|held| Some(held.name) == name);
        self.queue.retain_mut(|task| match of(task.name) {
            Some(held) => {
                (task.task, task.attempt) = (held.task, held.attempt);
                true
            }
            None => false,
        });
        self.low = self.queue.len() / 2;
        if let Some(running) = &mut self.running {
            match of(running.name) {
                Some(held) => (running.task, running.attempt) = (held.task, held.attempt),
                None => self.dropped = true,
            }
        }
    }

    /// Handles a message of the pool.
    pub fn receive(&mut self, message: Down) {
        match message {
            Down::Tasks(tasks) => {
                self.queue.extend(tasks);
                self.low = self.queue.len() / 2;
                self.asked = None;
            }
            // The request stands; wait.
            Down::Standby => {}
            Down::Stop => self.over = Some(Over::Done),
            Down::Refused { fingerprint } => self.over = Some(Over::Refused(fingerprint)),
            Down::Ignored { why } => self.over = Some(Over::Ignored(why)),
            Down::Welcome { term, number, is_known, held } => self.welcome(term, (number, is_known), &held),
            Down::Taken { up_to } => {
                let Some(keeps) = &mut self.keeps else { return };
                while keeps.first < up_to
                    && let Some((_, result)) = keeps.results.pop_front()
                {
                    keeps.first += 1;
                    keeps.bytes -= result.weight();
                }
            }
            // Those are for clients, and for the link to the store of large values.
            Down::Answer { .. } | Down::Large { .. } => {}
            Down::Drop(task) => {
                self.queue.retain(|assignment| assignment.task != task);
                self.dropped |= self.running.is_some_and(|running| running.task == task);
            }
        }
    }

    /// Whether the result of the running task is no longer wanted.
    pub fn is_dropped(&self) -> bool {
        self.dropped
    }

    /// Abandons the running task: its result is not reported, and others run it.
    pub fn abandon(&mut self) {
        self.dropped = true;
    }

    /// The task that runs.
    pub fn running(&self) -> Option<TaskId> {
        self.running.map(|running| running.task)
    }

    /// Returns what to do next.
    pub fn step(&mut self, now: Duration) -> Step {
        if let Some(hello) = self.hello(now) {
            return Step::Send(hello);
        }
        self.step_before_reports(now).unwrap_or_else(|| self.step_greeted(now))
    }

    /// Returns what a pool with a journal must be told while a task runs: that the processor is here, what it holds, and what an earlier pool has
    /// not acknowledged.
    pub fn speak(&mut self, now: Duration) -> Option<Up> {
        let keeps = self.keeps.as_ref()?;
        if keeps.term.is_none() && now >= keeps.greeted + PATIENCE {
            self.greeted = false;
        }
        self.hello(now).or_else(|| self.again())
    }

    fn hello(&mut self, now: Duration) -> Option<Up> {
        if std::mem::replace(&mut self.greeted, true) {
            return None;
        }
        if let Some(keeps) = &mut self.keeps {
            keeps.greeted = now;
        }
        let (fingerprint, offer, held) = (self.fingerprint, self.offer.clone(), self.held());
        let of = self.keeps.as_ref().map_or(0, |keeps| keeps.of);
        Some(Up::Hello { fingerprint, offer, held, of })
    }

    /// Results that an earlier pool has not acknowledged, once for each pool.
    fn again(&mut self) -> Option<Up> {
        let keeps = self.keeps.as_mut()?;
        let term = keeps.term?;
        if !std::mem::replace(&mut keeps.again, false) || keeps.results.is_empty() {
            return None;
        }
        let results = keeps.results.iter().cloned().collect();
        Some(Up::Again { term, first: keeps.first, results })
    }

    /// Returns what to do next while there is no pool: it never sends.
    pub fn step_alone(&mut self, now: Duration) -> Step {
        self.run(now).unwrap_or(Step::Wait(PATIENCE))
    }

    /// What precedes any report to a pool with a journal: the welcome, and results that an earlier pool has not acknowledged.
    fn step_before_reports(&mut self, now: Duration) -> Option<Step> {
        let keeps = self.keeps.as_ref()?;
        if keeps.term.is_some() {
            return self.again().map(Step::Send);
        }
        if let Some(over @ (Over::Refused(_) | Over::Ignored(_))) = &self.over {
            return Some(Step::Over(over.clone()));
        }
        // The welcome is on its way; meanwhile the tasks run on.
        let until = keeps.greeted + PATIENCE;
        if now >= until {
            self.greeted = false;
        }
        Some(self.run(now).unwrap_or(Step::Wait(until.saturating_sub(now))))
    }

    fn step_greeted(&mut self, now: Duration) -> Step {
        match &self.over {
            Some(Over::Done) if !self.results.is_empty() => {}
            Some(over) => return Step::Over(over.clone()),
            None => {}
        }
        if self.is_report_due(now) {
            self.asked = Some(now);
            self.reported = now;
            (self.low, self.bytes) = (0, 0);
            let room = (ROOM - self.queue.len().min(ROOM)) as u16; // at most ROOM
            let results = std::mem::take(&mut self.results);
            let (term, first) = match &self.keeps {
                Some(keeps) => (keeps.term.unwrap_or(0), keeps.first + keeps.results.len() as u64),
                None => (0, 0),
            };
            if self.keeps.is_some() {
                results.iter().for_each(|(name, result)| self.keep(*name, result));
            }
            let results = results.into_iter().map(|(_, result)| result).collect();
            return Step::Send(Up::Report { term, first, room, results });
        }
        if let Some(run) = self.run(now) {
            return run;
        }
        let asked = self.asked.unwrap_or(now);
        Step::Wait((asked + PATIENCE).saturating_sub(now))
    }

    /// The next task, if there is one and room for its result.
    fn run(&mut self, now: Duration) -> Option<Step> {
        let is_full = self.keeps.as_ref().is_some_and(|keeps| {
            keeps.results.len() + self.results.len() >= UNACKNOWLEDGED.0
                || keeps.bytes + self.bytes >= UNACKNOWLEDGED.1
        });
        if is_full {
            return None;
        }
        let assignment = self.queue.pop_front()?;
        let Assignment { task, attempt, name, .. } = assignment;
        self.running = Some(Running { task, attempt, name, since: now });
        self.dropped = false;
        Some(Step::Run(assignment))
    }

    fn is_report_due(&self, now: Duration) -> bool {
        if self.results.is_empty() {
            let waited_long = self.asked.is_none_or(|asked| now >= asked + PATIENCE);
            return self.queue.is_empty() && waited_long;
        }
        self.queue.len() <= self.low
            || self.results.len() >= MOST.0
            || self.bytes >= MOST.1
            || now >= self.reported + SOON
    }

    /// Records the large values that the running task has written, which its result may refer to. Call it before [`ended`](Self::ended).
    pub fn wrote(&mut self, values: Vec<u64>) {
        self.wrote = values;
    }

    /// Ends the running task.
    pub fn ended(&mut self, now: Duration, ending: Ending, tasks: Vec<SubTask>) {
        let large = std::mem::take(&mut self.wrote);
        let Some(Running { task, attempt, name, since }) = self.running.take() else { return };
        if self.keeps.is_some() && self.dropped {
            // Nobody needs the result.
            return;
        }
        let ran_ns = u64::try_from(now.saturating_sub(since).as_nanos()).unwrap_or(u64::MAX);
        let result = Submission { task, attempt, ran_ns, ending, tasks, large };
        self.bytes += result.weight();
        self.results.push((name, result));
    }
}
