//! The processor side: idle, it asks; given tasks it runs them and submits what came of them. A state machine without thread, clock or
//! part: messages of the pool and the time go in, and [`Worker::step`] says what to do next.
//!
//! A submission is also an ask, so a processor that is kept busy never asks by itself. What it has done leaves when its queue is half
//! run, so that the next tasks come before it is empty, or a millisecond after the last report.

use std::collections::VecDeque;
use std::time::Duration;

use crate::resources::Resources;
use crate::wire::{Assignment, Down, Ending, SubTask, Submission, TaskId, Up};

/// Tasks that a processor takes at a time.
const ROOM: usize = 256;
/// Results that leave in one message at most, and their bytes.
const MOST: (usize, usize) = (256, 16 << 20);
/// Results wait no longer than this for others, while there are tasks to run.
const SOON: Duration = Duration::from_millis(1);
/// Who was told to stand by asks again after this time: the answer may have been lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Send this to the pool.
    Send(Up),
    /// Run this task, then call [`Worker::ended`].
    Run(Assignment),
    /// Wait for a message, so long at most.
    Wait(Duration),
    /// It is over.
    Over(Over),
}

/// Why a processor stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The job is done.
    Done,
    /// The pool knows other functions; the pool's fingerprint.
    Refused(u64),
}

#[derive(Clone, Copy, Debug)]
struct Running {
    task: TaskId,
    attempt: u32,
    since: Duration,
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
    /// The result of what runs is not wanted any more.
    dropped: bool,
    results: Vec<Submission>,
    /// Bytes of the results.
    bytes: usize,
    /// When it last reported, if it was not given anything since.
    asked: Option<Duration>,
    reported: Duration,
    over: Option<Over>,
}

impl Worker {
    /// An idle processor that knows the functions of this fingerprint, of a node that offers so much.
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
        }
    }

    /// The pool says something.
    pub fn receive(&mut self, message: Down) {
        match message {
            Down::Tasks(tasks) => {
                self.queue.extend(tasks);
                self.low = self.queue.len() / 2;
                self.asked = None;
            }
            // It has asked, and waits.
            Down::Standby => {}
            Down::Stop => self.over = Some(Over::Done),
            Down::Refused { fingerprint } => self.over = Some(Over::Refused(fingerprint)),
            Down::Drop(task) => {
                self.queue.retain(|assignment| assignment.task != task);
                self.dropped |= self.running.is_some_and(|running| running.task == task);
            }
        }
    }

    /// Whether the result of the task that runs is not wanted any more.
    pub fn is_dropped(&self) -> bool {
        self.dropped
    }

    /// The task that runs.
    pub fn running(&self) -> Option<TaskId> {
        self.running.map(|running| running.task)
    }

    /// What to do next.
    pub fn step(&mut self, now: Duration) -> Step {
        if !std::mem::replace(&mut self.greeted, true) {
            return Step::Send(Up::Hello { fingerprint: self.fingerprint, offer: self.offer.clone() });
        }
        match self.over {
            Some(Over::Refused(fingerprint)) => return Step::Over(Over::Refused(fingerprint)),
            Some(Over::Done) if self.results.is_empty() => return Step::Over(Over::Done),
            _ => {}
        }
        if self.is_report_due(now) {
            self.asked = Some(now);
            self.reported = now;
            (self.low, self.bytes) = (0, 0);
            let room = (ROOM - self.queue.len().min(ROOM)) as u16; // at most ROOM
            return Step::Send(Up::Report { room, results: std::mem::take(&mut self.results) });
        }
        if let Some(assignment) = self.queue.pop_front() {
            let Assignment { task, attempt, .. } = assignment;
            self.running = Some(Running { task, attempt, since: now });
            self.dropped = false;
            return Step::Run(assignment);
        }
        let asked = self.asked.unwrap_or(now);
        Step::Wait((asked + PATIENCE).saturating_sub(now))
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

    /// The task that runs has ended.
    pub fn ended(&mut self, now: Duration, ending: Ending, tasks: Vec<SubTask>) {
        let Some(Running { task, attempt, since }) = self.running.take() else { return };
        let inputs: usize = tasks.iter().map(|task| task.input.len()).sum();
        let value = if let Ending::Value(bytes) = &ending { bytes.len() } else { 0 };
        self.bytes += inputs + value;
        let ran_ns = u64::try_from(now.saturating_sub(since).as_nanos()).unwrap_or(u64::MAX);
        self.results.push(Submission { task, attempt, ran_ns, ending, tasks });
    }
}
