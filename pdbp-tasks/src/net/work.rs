//! Processors of a pool with a journal, which comes and goes.
//!
//! Each slot has a thread, which talks to the pool by a part of its own. While it runs a task, whose function may take hours and ask nothing, the thread
//! that joins clusters talks for it: a pool that is started anew is told at once what runs here, and does not give it to others.

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

/// How often it is looked whether the pool is there, and whether it is time to go.
const LOOK: Duration = Duration::from_millis(20);
/// How long one try to join takes.
const TRY: Duration = Duration::from_secs(2);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a processor looks for the pool in a cluster.
const MEETING: Duration = Duration::from_secs(2);
/// How long a processor that goes waits until its results are acknowledged.
const FAREWELL: Duration = Duration::from_secs(5);

/// The part of a slot in a cluster.
struct Link {
    session: u64,
    part: Part<Shares>,
    pool: Target,
}

impl Link {
    fn say(&self, message: &Up) -> Result<(), Error> {
        slot::send(&self.part, self.pool, message)
    }
}

/// A slot, as the threads of its process see it.
struct Seat {
    slot: Mutex<Slot>,
    running: Mutex<Running>,
    watch: slot::Watch,
}

/// Whether the slot runs a task, and its part then, if it has one.
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

    fn take_in(&self, part: &Part<Shares>) {
        while let Some(message) = part.try_recv() {
            self.slot().receive(&message);
        }
    }

    /// What there is was not told to the pool, or may not have been.
    fn has_lost(&self) {
        let mut slot = self.slot();
        slot.worker.lost();
        slot.joined = pieces::Joined::default();
    }

    /// Its part in a cluster.
    fn connect(session: u64, node: &Node) -> Result<Link, Error> {
        let part = node.attach_shared()?;
        let pool = part.find(ADDRESS, MEETING)?;
        Ok(Link { session, part, pool })
    }

    /// If it runs a task, the pool of this cluster is told so, and what it says is heard.
    fn speak_for(&self, session: u64, node: &Node, now: Duration) -> Result<(), Error> {
        let mut running = lock(&self.running);
        if !running.runs {
            return Ok(());
        }
        if running.link.as_ref().is_none_or(|link| link.session < session) {
            running.link = None;
            self.has_lost();
            running.link = Some(Self::connect(session, node)?);
        }
        let Some(link) = &running.link else { return Ok(()) };
        self.take_in(&link.part);
        loop {
            let Some(message) = self.slot().worker.speak(now) else { return Ok(()) };
            link.say(&message)?;
        }
    }

    /// Whether the pool does not want what runs.
    fn is_unwanted(&self) -> bool {
        if let Ok(running) = self.running.try_lock()
            && let Some(link) = &running.link
        {
            self.take_in(&link.part);
        }
        self.slot().worker.is_dropped()
    }
}

/// What the threads of a process share.
struct Shared<'p> {
    kinds: &'p Kinds,
    seats: Vec<Seat>,
    /// Each takes the place of one whose function hangs.
    spares: Vec<Seat>,
    /// The cluster that there is now, with a number.
    session: Mutex<Option<(u64, Node)>>,
    changed: Condvar,
    /// The session that a slot has found to be lost.
    lost: AtomicU64,
    /// It is time to go.
    leaving: AtomicBool,
    /// There will be no pool any more.
    alone: AtomicBool,
    began: Instant,
    /// When a task last began or ended, in milliseconds since then.
    busy: AtomicU64,
    running: AtomicU64,
    error: Mutex<Option<Error>>,
}

impl Program {
    /// Computes for the pool that another process [serves](Self::serve), until it is time to go: `stop` is set, or `working` says so. When the
    /// pool is killed what there is runs on, and the next one is told what of it is there. `builder` says where the pool listens; `say` is told
    /// what people may want to know.
    ///
    /// # Errors
    /// The pool knows other functions, or is not there for as long as [`WhenLost`] says.
    pub fn work(
        self,
        builder: Builder,
        working: &Working,
        stop: &AtomicBool,
        say: &dyn Fn(&str),
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
            shared.manage(&builder, working, stop, say, &is_done);
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
        say: &dyn Fn(&str),
        is_done: &dyn Fn() -> bool,
    ) {
        let (mut number, mut lost_since) = (0, Instant::now());
        // Why it is not at the pool, as people were told.
        let mut told = None;
        while !is_done() {
            match builder.clone().start() {
                Ok(cluster) => {
                    let Some(node) = cluster.into_nodes().pop() else { continue };
                    let watch = node.watch();
                    number += 1;
                    say(&format!("at the pool, as {}", node.id()));
                    *self.session() = Some((number, node.clone()));
                    self.changed.notify_all();
                    while !is_done() && !has_lost_pool(&watch) && self.lost.load(Ordering::Acquire) < number {
                        self.look(working, stop);
                        let now = self.began.elapsed();
                        if self
                            .seats
                            .iter()
                            .chain(&self.spares)
                            .any(|seat| seat.speak_for(number, &node, now).is_err())
                        {
                            break;
                        }
                        thread::sleep(LOOK);
                    }
                    *self.session() = None;
                    node.interrupt();
                    if !is_done() {
                        say("the pool is gone; what is here runs on");
                    }
                    (lost_since, told) = (Instant::now(), None);
                }
                Err(error) => {
                    let why = error.to_string();
                    if !error.may_pass() {
                        self.fail(error.into());
                    } else if told.as_ref() != Some(&why) {
                        say(&format!("not at the pool yet: {why}"));
                        told = Some(why);
                    }
                    thread::sleep(AGAIN);
                }
            }
            self.look(working, stop);
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
                    let why = told.as_deref().unwrap_or("it is gone, and it was not tried again");
                    self.fail(Error::other(format!("there has been no pool for {waited:.0?}: {why}")));
                }
                self.alone.store(true, Ordering::Release);
            }
        }
    }

    /// Is it time to go?
    fn look(&self, working: &Working, stop: &AtomicBool) {
        let elapsed = self.began.elapsed();
        let idle = elapsed.saturating_sub(Duration::from_millis(self.busy.load(Ordering::Relaxed)));
        let is_idle =
            self.running.load(Ordering::Relaxed) == 0 && working.idle.is_some_and(|most| idle >= most);
        let is_over = working.until.is_some_and(|until| elapsed >= until);
        if is_idle || is_over || stop.load(Ordering::Acquire) {
            self.leaving.store(true, Ordering::Release);
        }
    }

    /// The thread of a slot.
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
                    // The one by which the pool was told of what has run.
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
                    Ok(_) => return,
                    Err(_) => {
                        seat.has_lost();
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

    /// Asks, runs and submits until the pool is gone, which is an error, or this processor goes.
    fn at_pool(
        &self,
        seat: &Seat,
        mut link: Link,
        last: &mut u64,
        large: &large::Link<'_>,
    ) -> Result<Option<Over>, Error> {
        let mut farewell = None;
        loop {
            seat.take_in(&link.part);
            let now = self.began.elapsed();
            if self.leaving.load(Ordering::Acquire) {
                let until = *farewell.get_or_insert(now + FAREWELL);
                seat.slot().worker.drop_queue();
                if seat.slot().worker.has().0 == 0 || now >= until {
                    link.say(&Up::Bye)?;
                    return Ok(None);
                }
            }
            let step = seat.slot().worker.step(now);
            match step {
                Step::Run(task) => {
                    let after = self.run(seat, Some(link), large, &task);
                    // There may have been another pool meanwhile, or none.
                    link = after.ok_or_else(|| Error::other("the pool is gone"))?;
                    *last = (*last).max(link.session);
                }
                Step::Send(up) => link.say(&up)?,
                Step::Over(over) => return Ok(Some(over)),
                Step::Wait(time) => match link.part.recv_timeout(time.min(5 * LOOK)) {
                    Ok(message) => seat.slot().receive(&message),
                    Err(RecvError::Timeout(_)) => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    /// The cluster behind the one with this number, which is lost. Waits for it, as what writes a large value does meanwhile; `None`: there
    /// will be none, or it is time to go.
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

    /// Runs a task. Gives the part back, or that in another cluster which there is meanwhile.
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
