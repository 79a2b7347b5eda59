//! A processor on a part: one thread that asks, runs and submits.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pdbp::{Node, Part, RecvError, SendError, Share, Target};

use crate::error::Error;
use crate::kind::Kinds;
use crate::large::Link;
use crate::panics;
use crate::resources::Resources;
use crate::scope::Scope;
use crate::serve;
use crate::wire::{self, Assignment, Ending, Failure, SubTask, Up, pieces};
use crate::worker::{Over, Step, Worker};

/// How long a processor looks for the pool.
const MEETING: Duration = Duration::from_secs(60);
/// How often to check whether a function hangs.
const WATCH: Duration = Duration::from_millis(50);
/// Least time between two polls for messages while there are tasks to run.
const LOOK: Duration = Duration::from_micros(200);

pub(crate) struct Slot {
    pub(crate) worker: Worker,
    pub(crate) joined: pieces::Joined,
}

/// Detects a function that hangs. Since nobody can stop the function, another thread takes its thread's place, once.
pub(crate) struct Watch {
    began: Instant,
    /// A function that has not ended this long after its limit counts as hanging.
    grace: Duration,
    /// When the running function counts as hanging, in milliseconds since `began`; 0: never.
    hangs_at: AtomicU64,
    is_over: Mutex<bool>,
    ended: Condvar,
}

/// Reports, when dropped, that the watched thread has ended, even by a panic.
pub(crate) struct Living<'a>(&'a Watch);

impl Drop for Living<'_> {
    fn drop(&mut self) {
        *self.0.is_over() = true;
        self.0.ended.notify_all();
    }
}

impl Watch {
    pub(crate) fn new(grace: Duration) -> Self {
        let (hangs_at, is_over, ended) = (AtomicU64::new(0), Mutex::new(false), Condvar::new());
        Self { began: Instant::now(), grace, hangs_at, is_over, ended }
    }

    fn begin(&self, limit: Duration) {
        let at = self.began.elapsed().saturating_add(limit).saturating_add(self.grace).as_millis();
        self.hangs_at.store(u64::try_from(at).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn end(&self) {
        self.hangs_at.store(0, Ordering::Relaxed);
    }

    fn is_over(&self) -> MutexGuard<'_, bool> {
        self.is_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a guard; the thread counts as alive until it is dropped.
    pub(crate) fn thread(&self) -> Living<'_> {
        Living(self)
    }

    /// Waits until the running function hangs. Returns `false` if the thread ends first.
    pub(crate) fn hangs(&self) -> bool {
        let mut is_over = self.is_over();
        while !*is_over {
            let at = self.hangs_at.load(Ordering::Relaxed);
            if at > 0 && self.began.elapsed().as_millis() > at.into() {
                return true;
            }
            is_over = self.ended.wait_timeout(is_over, WATCH).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}

/// Runs tasks of the pool until the pool reports that the job is done.
pub(crate) fn run(
    node: &Node,
    kinds: &Kinds,
    (offer, keeps_large): (&Resources, bool),
    watch: &Watch,
) -> Result<(), Error> {
    let part = node.attach()?;
    let pool = part.find(serve::ADDRESS, MEETING)?;
    let only = |after: u64| (after == 0).then(|| (1, node.clone()));
    let large = keeps_large.then(|| Link::new(&only));
    let began = Instant::now();
    let slot = RefCell::new(Slot {
        worker: Worker::new(kinds.fingerprint(), offer.clone()),
        joined: pieces::Joined::default(),
    });
    let mut now = began.elapsed();
    let mut looked = now;
    loop {
        if now >= looked + LOOK {
            drain_messages(&part, &slot);
            looked = now;
        }
        let step = slot.borrow_mut().worker.step(now);
        match step {
            Step::Run(assignment) => {
                let is_unwanted = || {
                    drain_messages(&part, &slot);
                    slot.borrow().worker.is_dropped()
                };
                let (ending, tasks) = call(large.as_ref(), (kinds, watch), &assignment, &is_unwanted);
                now = began.elapsed();
                slot.borrow_mut().worker.ended(now, ending, tasks);
                continue;
            }
            Step::Send(up) => send(&part, pool, &up)?,
            Step::Wait(time) => match part.recv_timeout(time) {
                Ok(message) => {
                    slot.borrow_mut().receive(&message);
                    drain_messages(&part, &slot);
                }
                Err(RecvError::Timeout(_)) => {}
                Err(error) => return Err(error.into()),
            },
            Step::Over(Over::Done) => return Ok(()),
            Step::Over(Over::Refused(pool)) => {
                return Err(Error::OtherFunctions { own: kinds.fingerprint(), pool });
            }
            Step::Over(Over::Ignored(why)) => return Err(ignored(&why)),
        }
        now = began.elapsed();
    }
}

/// The pool ignores a part of this process.
pub(crate) fn ignored(why: &str) -> Error {
    Error::other(format!("the pool refuses what this process sends: {why}"))
}

/// Receives all messages that have arrived.
fn drain_messages(part: &Part, slot: &RefCell<Slot>) {
    while let Some(message) = part.try_recv() {
        slot.borrow_mut().receive(&message);
    }
}

impl Slot {
    pub(crate) fn receive(&mut self, piece: &[u8]) {
        // Anything that is not a message of a pool is ignored.
        if let Some(Some(Ok(message))) = self.joined.add(piece, |whole| wire::decode(whole)) {
            self.worker.receive(message);
        }
    }
}

/// Sends a message, waiting for room as long as necessary: the pool always reads.
pub(crate) fn send<S: Share>(part: &Part<S>, pool: Target, message: &Up) -> Result<(), Error> {
    send_unless(part, pool, message, &|_| false)
}

/// The same, unless the caller `gives_up` after waiting this long for room. Part of the message is sent then, and nothing can follow it.
pub(crate) fn send_unless<S: Share>(
    part: &Part<S>,
    pool: Target,
    message: &Up,
    gives_up: &dyn Fn(Duration) -> bool,
) -> Result<(), Error> {
    let bytes = postcard::to_stdvec(message)?;
    for piece in pieces::cut(&bytes, part.longest()) {
        let mut waited = Duration::ZERO;
        while let Err(error) = part.send(pool, &piece) {
            match &error {
                SendError::Timeout(late) => waited += late.waited,
                SendError::Interrupted => {}
                _ => return Err(error.into()),
            }
            if gives_up(waited) {
                return Err(error.into());
            }
        }
    }
    part.flush();
    Ok(())
}

/// Runs a task. Without a link the task has no large values.
pub(crate) fn call(
    large: Option<&Link<'_>>,
    (kinds, watch): (&Kinds, &Watch),
    task: &Assignment,
    is_unwanted: &dyn Fn() -> bool,
) -> (Ending, Vec<SubTask>) {
    let limit = (task.limit_ms > 0).then(|| Duration::from_millis(task.limit_ms.into()));
    let deadline = limit.map(|limit| Instant::now() + limit);
    if let Some(limit) = limit {
        watch.begin(limit);
    }
    let is_unwanted = || is_unwanted() || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let mut scope = Scope::new(task, &is_unwanted, large.map(|large| large.of(task)));
    let ending = panics::catch(|| kinds.call(task.kind, &mut scope, &task.input));
    if limit.is_some() {
        watch.end();
    }
    let (ending, tasks) = match (ending, scope.wrong) {
        (Err(panic), _) => (Ending::Failed(Failure::Panicked(panic)), Vec::new()),
        (Ok(_), Some(wrong)) => (Ending::Failed(wrong), Vec::new()),
        (Ok(failed @ Ending::Failed(_)), None) => (failed, Vec::new()),
        (Ok(ending), None) => (ending, scope.tasks),
    };
    match too_long(&ending, &tasks, pieces::VALUE) {
        None => (ending, tasks),
        Some(why) => (Ending::Failed(Failure::Unusable(why)), Vec::new()),
    }
}

/// Why a task's result and sub-tasks cannot be sent to the pool, if they exceed this many bytes.
pub(crate) fn too_long(ending: &Ending, tasks: &[SubTask], most: usize) -> Option<String> {
    let value = ending.weight();
    let all = tasks.iter().fold(value, |sum, task| sum.saturating_add(task.weight()));
    (all > most).then(|| {
        format!(
            "its result has {value} bytes, and the {} sub-tasks that it adds {}; {most} in all are the most; write what is long as a `Large`",
            tasks.len(),
            all - value
        )
    })
}
