//! A processor on a part: one thread that asks, runs and submits.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pdbp::{Node, Part, RecvError, SendError, Share, Target};

use crate::error::Error;
use crate::kind::Kinds;
use crate::large::Link;
use crate::resources::Resources;
use crate::scope::Scope;
use crate::serve;
use crate::wire::{self, Assignment, Ending, Failure, SubTask, Up, pieces};
use crate::worker::{Over, Step, Worker};

/// How long a processor looks for the pool.
const MEETING: Duration = Duration::from_secs(60);
/// How often it is looked whether a function hangs.
const WATCH: Duration = Duration::from_millis(50);
/// Least time between two looks for messages while there are tasks to run.
const LOOK: Duration = Duration::from_micros(200);

pub(crate) struct Slot {
    pub(crate) worker: Worker,
    pub(crate) joined: pieces::Joined,
}

/// Looks whether a function hangs: nobody can stop it, so that another thread takes the place of its own, once.
pub(crate) struct Watch {
    began: Instant,
    /// How long after its limit a function that has not ended hangs.
    grace: Duration,
    /// Milliseconds since then until what runs hangs; 0: it has all the time in the world.
    hangs_at: AtomicU64,
    is_over: Mutex<bool>,
    ended: Condvar,
}

/// Says that the thread which is watched ends, whatever happens to it.
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

    /// Until this is dropped the thread lives.
    pub(crate) fn thread(&self) -> Living<'_> {
        Living(self)
    }

    /// Waits until what runs hangs. `false`: the thread has ended before.
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

/// Runs tasks of the pool until it says that the job is done.
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
            take_in(&part, &slot);
            looked = now;
        }
        let step = slot.borrow_mut().worker.step(now);
        match step {
            Step::Run(assignment) => {
                let is_unwanted = || {
                    take_in(&part, &slot);
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
                    take_in(&part, &slot);
                }
                Err(RecvError::Timeout(_)) => {}
                Err(error) => return Err(error.into()),
            },
            Step::Over(Over::Done) => return Ok(()),
            Step::Over(Over::Refused(pool)) => {
                return Err(Error::OtherFunctions { own: kinds.fingerprint(), pool });
            }
        }
        now = began.elapsed();
    }
}

/// Takes in what has come.
fn take_in(part: &Part, slot: &RefCell<Slot>) {
    while let Some(message) = part.try_recv() {
        slot.borrow_mut().receive(&message);
    }
}

impl Slot {
    pub(crate) fn receive(&mut self, piece: &[u8]) {
        // What is no message of a pool changes nothing.
        if let Some(Some(Ok(message))) = self.joined.add(piece, |whole| wire::decode(whole)) {
            self.worker.receive(message);
        }
    }
}

/// Waits for room as long as it takes: the pool always reads.
pub(crate) fn send<S: Share>(part: &Part<S>, pool: Target, message: &Up) -> Result<(), Error> {
    let bytes = postcard::to_stdvec(message)?;
    for piece in pieces::cut(&bytes, part.longest()) {
        loop {
            match part.send(pool, &piece) {
                Ok(()) => break,
                Err(SendError::Timeout(_) | SendError::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    part.flush();
    Ok(())
}

/// Runs a task. Without a link it keeps no large values.
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
    // What a function leaves half done of its own is its own: the next call is as good as in another process.
    let ending = catch_unwind(AssertUnwindSafe(|| kinds.call(task.kind, &mut scope, &task.input)));
    if limit.is_some() {
        watch.end();
    }
    let (ending, tasks) = match (ending, scope.wrong) {
        (Err(panic), _) => (Ending::Failed(Failure::Panicked(words_of(&*panic))), Vec::new()),
        (Ok(_), Some(wrong)) => (Ending::Failed(wrong), Vec::new()),
        (Ok(failed @ Ending::Failed(_)), None) => (failed, Vec::new()),
        (Ok(ending), None) => (ending, scope.tasks),
    };
    match too_long(&ending, &tasks, pieces::VALUE) {
        None => (ending, tasks),
        Some(why) => (Ending::Failed(Failure::Unusable(why)), Vec::new()),
    }
}

/// Why what comes of a task cannot be sent to the pool, if it has more than so many bytes.
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

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
