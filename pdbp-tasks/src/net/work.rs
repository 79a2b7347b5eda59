//! Processors of a pool with a journal, which may come and go.
//!
//! Each slot has a thread, which talks to the pool through a part of its own. A task may run for hours without calling anything; meanwhile the
//! thread that joins clusters speaks for the slot. So a restarted pool learns at once what runs here, and does not hand it to others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pdbp::{Builder, Node, Part, RecvError, Shared as Shares, Target};

use super::{WhenLost, Working, has_lost_pool, with_outage};
use crate::error::Error;
use crate::kind::Kinds;
use crate::large;
use crate::program::Program;
use crate::serve::ADDRESS;
use crate::slot::{self, Slot};
use crate::wire::{Assignment, Ending, Up, pieces};
use crate::worker::{Over, Step, Worker};

/// How often to check for the pool, and whether it is time to leave.
const LOOK: Duration = Duration::from_millis(20);
/// How long one attempt to join may take.
const TRY: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a processor looks for the pool in a cluster.
const MEETING: Duration = Duration::from_secs(2);
/// How long a leaving processor waits for its results to be acknowledged.
const FAREWELL: Duration = Duration::from_secs(5);

/// A slot's part in a cluster.
struct Link {
    session: u64,
    part: Part<Shares>,
    pool: Target,
}

impl Link {
    fn send(&self, message: &Up, gives_up: &dyn Fn(Duration) -> bool) -> Result<(), Error> {
        slot::send_unless(&self.part, self.pool, message, gives_up)
    }
}

/// A slot, shared between the threads of its process.
struct Seat {
    slot: Mutex<Slot>,
    running: Mutex<Running>,
    watch: slot::Watch,
}

/// Whether the slot runs a task; if so, its part, if it has one.
#[derive(Default)]
struct Running {
    runs: bool,
    link: Option<Link>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    fn new(worker: Worker, grace: Duration) -> Self {
        Self {
            slot: Mutex::new(Slot { worker, joined: pieces::Joined::default() }),
            running: Mutex::default(),
            watch: slot::Watch::new(grace),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        lock(&self.slot)
    }

    fn drain_messages(&self, part: &Part<Shares>) {
        while let Some(message) = part.try_recv() {
            self.slot().receive(&message);
        }
    }

    /// Notes that the pool has not received some of this slot's reports, or may not have.
    fn on_pool_lost(&self) {
        let mut slot = self.slot();
        slot.worker.lost();
        slot.joined = pieces::Joined::default();
    }

    /// Attaches a part in a cluster.
    fn connect(session: u64, node: &Node) -> Result<Link, Error> {
        let part = node.attach_shared()?;
        let pool = part.find(ADDRESS, MEETING)?;
        Ok(Link { session, part, pool })
    }

    /// While the slot runs a task, reports it to the pool of this cluster and handles the pool's messages.
    fn speak_for(
        &self,
        session: u64,
        node: &Node,
        now: Duration,
        gives_up: &dyn Fn(Duration) -> bool,
    ) -> Result<(), Error> {
        let mut running = lock(&self.running);
        if !running.runs {
            return Ok(());
        }
        if running.link.as_ref().is_none_or(|link| link.session < session) {
            running.link = None;
            self.on_pool_lost();
            running.link = Some(Self::connect(session, node)?);
        }
        let Some(link) = &running.link else { return Ok(()) };
        self.drain_messages(&link.part);
        loop {
            let Some(message) = self.slot().worker.speak(now) else { return Ok(()) };
            if let Err(error) = link.send(&message, gives_up) {
                running.link = None;
                return Err(error);
            }
        }
    }

    /// Whether the pool no longer wants the running task.
    fn is_unwanted(&self) -> bool {
        if let Ok(running) = self.running.try_lock()
            && let Some(link) = &running.link
        {
            self.drain_messages(&link.part);
        }
        self.slot().worker.is_dropped()
    }
}

/// State shared by the threads of a process.
struct Shared<'p> {
    kinds: &'p Kinds,
    seats: Vec<Seat>,
    /// Each replaces a slot whose function hangs.
    spares: Vec<Seat>,
    /// The current cluster, with its number.
    session: Mutex<Option<(u64, Node)>>,
    changed: Condvar,
    /// The latest session that a slot has found lost.
    lost: AtomicU64,
    /// It is time to leave.
    leaving: AtomicBool,
    /// There will be no pool again.
    alone: AtomicBool,
    began: Instant,
    /// When a task last began or ended, in milliseconds since `began`.
    busy: AtomicU64,
    running: AtomicU64,
    error: Mutex<Option<Error>>,
}

impl Program {
    /// Computes for the pool that another process [serves](Self::serve), until `stop` is set or `working` says that it is time to leave. If the
    /// pool is killed, running tasks continue, and the next pool is told about them. `builder` sets where the pool listens; `say` is called with
    /// messages for people.
    ///
    /// # Errors
    /// The pool knows other functions, or cannot be reached for as long as [`WhenLost`] allows.
    pub fn work(
        self,
        builder: Builder,
        working: &Working,
        stop: &AtomicBool,
        report: &dyn Fn(&str),
    ) -> Result<(), Error> {
        self.kinds.check()?;
        // Before there are other threads.
        pdbp::prepare();
        let slots = self.slots.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let row_blocks = builder.settings().row_blocks.max(2 * slots as u32);
        let builder = with_outage(builder).row_blocks(row_blocks).timeout(TRY);
        let worker = Worker::keeping(self.kinds.fingerprint(), self.offer.or_cpus(slots));
        let seat = |_| Seat::new(worker.clone(), self.limits.grace);
        let shared = Shared {
            kinds: &self.kinds,
            seats: (0..slots).map(seat).collect(),
            spares: (0..slots).map(seat).collect(),
            session: Mutex::new(None),
            changed: Condvar::new(),
            lost: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            began: Instant::now(),
            busy: AtomicU64::new(0),
            running: AtomicU64::new(0),
            error: Mutex::new(None),
        };
        thread::scope(|scope| {
            let shared = &shared;
            let mut slots: Vec<_> =
                shared.seats.iter().map(|seat| scope.spawn(move || shared.compute(seat))).collect();
            slots.extend(shared.seats.iter().zip(&shared.spares).map(|(seat, spare)| {
                scope.spawn(move || {
                    if seat.watch.hangs() {
                        shared.compute(spare);
                    }
                })
            }));
            let is_done = || slots.iter().all(thread::ScopedJoinHandle::is_finished);
            shared.manage(&builder, working, stop, report, &is_done);
            for slot in slots {
                if let Err(panic) = slot.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        });
        let error = shared.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(()), Err)
    }
}

impl Shared<'_> {
    fn session(&self) -> MutexGuard<'_, Option<(u64, Node)>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: Error) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.leaving.store(true, Ordering::Release);
        self.alone.store(true, Ordering::Release);
    }

    /// Joins the pool's cluster whenever there is one, until all slots are done.
    fn manage(
        &self,
        builder: &Builder,
        working: &Working,
        stop: &AtomicBool,
        report: &dyn Fn(&str),
        is_done: &dyn Fn() -> bool,
    ) {
        let (mut number, mut lost_since) = (0, Instant::now());
        // The last reason, reported to people, why it is not at the pool.
        let mut last_error = None;
        while !is_done() {
            match builder.clone().start() {
                Ok(cluster) => {
                    let Some(node) = cluster.into_nodes().pop() else { continue };
                    let watch = node.watch();
                    number += 1;
                    report(&format!("at the pool, as {}", node.id()));
                    *self.session() = Some((number, node.clone()));
                    self.changed.notify_all();
                    while !is_done() && !has_lost_pool(&watch) && self.lost.load(Ordering::Acquire) < number {
                        self.check(working, stop);
                        let now = self.began.elapsed();
                        let gives_up = |waited| {
                            self.check(working, stop);
                            self.gives_up(waited)
                        };
                        let mut seats = self.seats.iter().chain(&self.spares);
                        if seats.any(|seat| seat.speak_for(number, &node, now, &gives_up).is_err()) {
                            break;
                        }
                        thread::sleep(LOOK);
                    }
                    *self.session() = None;
                    node.interrupt();
                    if !is_done() {
                        report("the pool is gone; what is here runs on");
                    }
                    (lost_since, last_error) = (Instant::now(), None);
                }
                Err(error) => {
                    let why = error.to_string();
                    if !error.may_pass() {
                        self.fail(error.into());
                    } else if last_error.as_ref() != Some(&why) {
                        report(&format!("not at the pool yet: {why}"));
                        last_error = Some(why);
                    }
                    thread::sleep(AGAIN);
                }
            }
            self.check(working, stop);
            let patience = match working.when_lost {
                WhenLost::Wait(patience) => patience,
                WhenLost::Finish if number > 0 => Duration::ZERO,
                WhenLost::Stop if number > 0 => {
                    self.leaving.store(true, Ordering::Release);
                    Duration::ZERO
                }
                WhenLost::Finish | WhenLost::Stop => TRY * 5,
            };
            if self.session().is_none() && lost_since.elapsed() >= patience {
                if number == 0 || matches!(working.when_lost, WhenLost::Wait(_)) {
                    let waited = lost_since.elapsed();
                    let why =
                        last_error.as_deref().unwrap_or("the pool left, and no reconnection was attempted");
                    self.fail(Error::other(format!("no pool could be reached for {waited:.0?}: {why}")));
                }
                self.alone.store(true, Ordering::Release);
            }
        }
    }

    /// Checks whether it is time to leave.
    fn check(&self, working: &Working, stop: &AtomicBool) {
        let elapsed = self.began.elapsed();
        let idle = elapsed.saturating_sub(Duration::from_millis(self.busy.load(Ordering::Relaxed)));
        let is_idle =
            self.running.load(Ordering::Relaxed) == 0 && working.idle.is_some_and(|most| idle >= most);
        let is_over = working.until.is_some_and(|until| elapsed >= until);
        if is_idle || is_over || stop.load(Ordering::Acquire) {
            self.leaving.store(true, Ordering::Release);
        }
    }

    /// Whether a processor that has waited this long for a pool that reads nothing leaves without another word.
    fn gives_up(&self, waited: Duration) -> bool {
        waited >= FAREWELL && self.leaving.load(Ordering::Acquire)
    }

    /// Runs the thread of a slot.
    fn compute(&self, seat: &Seat) {
        let _over = seat.watch.thread();
        let later = |after| self.later(after);
        let large = large::Link::new(&later);
        let (mut last, mut link) = (0, None);
        loop {
            let session = self.session().clone().filter(|(session, _)| *session > last);
            if link.is_some() || session.is_some() {
                let ended = match (link.take(), session) {
                    (None, Some((session, node))) => {
                        last = session;
                        Seat::connect(session, &node)
                    }
                    // The link through which the pool was told about the task that has just run.
                    (Some(link), _) => Ok(link),
                    (None, None) => continue,
                };
                match ended.and_then(|link| {
                    last = last.max(link.session);
                    self.at_pool(seat, link, &mut last, &large)
                }) {
                    Ok(Some(Over::Refused(pool))) => {
                        return self.fail(Error::OtherFunctions { own: self.kinds.fingerprint(), pool });
                    }
                    Ok(Some(Over::Ignored(why))) => return self.fail(slot::ignored(&why)),
                    Ok(_) => return,
                    Err(_) => {
                        seat.on_pool_lost();
                        self.lost.fetch_max(last, Ordering::AcqRel);
                    }
                }
                continue;
            }
            let is_over = self.alone.load(Ordering::Acquire);
            if self.leaving.load(Ordering::Acquire) {
                let mut slot = seat.slot();
                slot.worker.drop_queue();
                if slot.worker.has().0 == 0 || is_over {
                    return;
                }
            }
            let step = seat.slot().worker.step_alone(self.began.elapsed());
            match step {
                Step::Run(task) => link = self.run(seat, None, &large, &task),
                _ if is_over => return,
                _ => drop(self.changed.wait_timeout(self.session(), LOOK)),
            }
        }
    }

    /// Asks, runs and submits until the pool is lost, which is an error, or this processor leaves.
    fn at_pool(
        &self,
        seat: &Seat,
        mut link: Link,
        last: &mut u64,
        large: &large::Link<'_>,
    ) -> Result<Option<Over>, Error> {
        let (mut farewell, gives_up) = (None, |waited| self.gives_up(waited));
        loop {
            seat.drain_messages(&link.part);
            let now = self.began.elapsed();
            if self.leaving.load(Ordering::Acquire) {
                let until = *farewell.get_or_insert(now + FAREWELL);
                seat.slot().worker.drop_queue();
                if seat.slot().worker.has().0 == 0 || now >= until {
                    // Whether or not the pool hears it.
                    let _ = link.send(&Up::Bye, &gives_up);
                    return Ok(None);
                }
            }
            let step = seat.slot().worker.step(now);
            match step {
                Step::Run(task) => {
                    let after = self.run(seat, Some(link), large, &task);
                    // The pool may have been replaced meanwhile, or lost.
                    link = after.ok_or_else(|| Error::other("the pool is gone"))?;
                    *last = (*last).max(link.session);
                }
                Step::Send(up) => link.send(&up, &gives_up)?,
                Step::Over(over) => return Ok(Some(over)),
                Step::Wait(time) => match link.part.recv_timeout(time.min(5 * LOOK)) {
                    Ok(message) => seat.slot().receive(&message),
                    Err(RecvError::Timeout(_)) => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    /// Waits for the cluster that follows the lost one with this number; writers of large values wait here in the meantime. `None`: there will be
    /// none, or it is time to leave.
    fn later(&self, lost: u64) -> Option<(u64, Node)> {
        self.lost.fetch_max(lost, Ordering::AcqRel);
        let mut session = self.session();
        loop {
            if let Some(later) = session.clone().filter(|(number, _)| *number > lost) {
                return Some(later);
            }
            if self.leaving.load(Ordering::Acquire) || self.alone.load(Ordering::Acquire) {
                return None;
            }
            session = self.changed.wait_timeout(session, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Runs a task. Returns the link, or one to the cluster that has replaced it meanwhile.
    fn run(
        &self,
        seat: &Seat,
        link: Option<Link>,
        large: &large::Link<'_>,
        task: &Assignment,
    ) -> Option<Link> {
        let stops = || self.leaving.load(Ordering::Acquire);
        self.running.fetch_add(1, Ordering::Relaxed);
        *lock(&seat.running) = Running { runs: true, link };
        let (ending, tasks) =
            slot::call(Some(large), (self.kinds, &seat.watch), task, &|| stops() || seat.is_unwanted());
        let link = std::mem::take(&mut *lock(&seat.running)).link;
        let now = self.began.elapsed();
        self.busy.store(now.as_millis() as u64, Ordering::Relaxed); // the age of a process in milliseconds
        self.running.fetch_sub(1, Ordering::Relaxed);
        let worker = &mut seat.slot().worker;
        if stops() && matches!(ending, Ending::Failed(_)) {
            worker.abandon();
        }
        worker.wrote(large.take_wrote());
        worker.ended(now, ending, tasks);
        link
    }
}

#[cfg(test)]
mod tests;
