//! Which thread polls a node.
//!
//! Parts poll in every call, and while they [wait](super::waiting). The first part of a node that goes to sleep becomes the
//! *leader*: it sleeps on the node's bell, which peers ring, and polls for all when it wakes. The others sleep on the bells of
//! their pipes. A progress thread takes the leader's place when there is none: every [`TICK`] it checks whether another thread
//! polls, and stays out of the way if so. While a part sleeps as the leader, the progress thread sleeps too, and is woken when that
//! part's wait has ended.
//!
//! Parts that wait as tasks do not poll after a while, or leave it to [one of them](crate::sync::TaskLeader). For them the
//! progress thread is the leader, unless other threads poll [often](OFTEN): then it only checks every [`TASKS_TICK`] whether they
//! still do. As the leader it would be woken for each block that a peer delivers, which takes the peer a system call and somebody
//! a processor, though others poll anyway. A task that begins to wait wakes it, since that task was perhaps the one that polled.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pdbp_core::outbox::Due;

use super::Shared;
use super::waiting::{NapBackoff, lead};
use crate::sync::try_lock;

/// How often the progress thread checks whether it is needed.
const TICK: Duration = Duration::from_micros(500);
/// As [`TICK`], with more nodes than processors: a part that has not polled for less than this may just be waiting for its time
/// slice, and each check takes the processor from one that computes. About a time slice: from 256 bytes on, eight nodes on two
/// processors send 1.25 to 2 times as much as with `TICK` (`benches/figures/shared-memory.md`); several slices were slower where
/// other programs compute.
const CROWDED_TICK: Duration = Duration::from_millis(4);
/// As [`TICK`], while tasks wait: a task may be woken up to two of these late once other threads have stopped polling.
const TASKS_TICK: Duration = Duration::from_micros(200);
/// Tasks need no thread of their own while others poll this often on average. Waking the progress thread takes about as long. With 5
/// and 10 µs, calls at the desk still woke it (`benches/figures/sockets.md`).
const OFTEN: Duration = Duration::from_micros(25);

/// The progress thread of a node. It ends when the last handle to the node is dropped.
pub(crate) struct Driver {
    shared: Weak<Shared>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (weak, stopped) = (Arc::downgrade(shared), Arc::clone(&stop));
        let thread =
            thread::Builder::new().name(format!("pdbp-{}", shared.id)).spawn(move || run(&weak, &stopped))?;
        // A node has only one.
        let _ = shared.driver.set(thread.thread().clone());
        Ok(Self { shared: Arc::downgrade(shared), stop, thread: Mutex::new(Some(thread)) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread sleeps on the bell, or is parked.
        if let Some(shared) = self.shared.upgrade() {
            shared.bell.ring();
            shared.unpark_driver();
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The progress thread may itself drop the last handle; it must not join itself.
        if let Some(thread) = thread
            && CURRENT_STOP.get() != Arc::as_ptr(&self.stop)
        {
            // A progress thread that panicked has reported it on stderr already.
            let _ = thread.join();
        }
    }
}

thread_local! {
    /// On a progress thread, its `stop`. (`thread::current` would allocate on the main thread of a C program, and nothing would
    /// free that.)
    static CURRENT_STOP: Cell<*const AtomicBool> = const { Cell::new(ptr::null()) };
}

/// Number of ticks for which a leader has slept before the progress thread sleeps as well.
const TICKS_BEFORE_REST: u32 = 8;
/// Longest sleep of a progress thread that a leader will wake.
const OFF_DUTY: Duration = Duration::from_millis(100);

fn run(shared: &Weak<Shared>, stop: &AtomicBool) {
    CURRENT_STOP.set(stop);
    let (mut polls, mut watched) = (0, 0);
    let mut helpers = Helpers::default();
    while !stop.load(Ordering::Acquire) {
        let Some(shared) = shared.upgrade() else { return };
        let seen = shared.polls.load(Ordering::Relaxed);
        // Do not count polls of a leader that keeps going back to sleep without waking this thread.
        let is_delegated = shared.off_duty.load(Ordering::Relaxed);
        let busy = std::mem::replace(&mut polls, seen) != seen && !is_delegated;
        let has_tasks = shared.tasks.has_waiting();
        let is_needed = if has_tasks { !helpers.suffice(&shared) } else { !busy };
        if is_needed {
            if let Some(_leader) = try_lock(&shared.leader) {
                shared.off_duty.store(false, Ordering::Relaxed);
                drive(&shared, stop, seen, &mut helpers);
                watched = 0;
                continue;
            }
            watched += 1;
        } else {
            watched = 0;
        }
        // Another thread polls; only overdue blocks may need help.
        shared.poll();
        let mut tick = match has_tasks || shared.task_leader.was_active(Instant::now()) {
            true => TASKS_TICK,
            false if shared.crowded => CROWDED_TICK,
            false => TICK,
        };
        if watched > TICKS_BEFORE_REST && shared.delegate_to_leader() {
            tick = OFF_DUTY;
        }
        drop(shared);
        thread::park_timeout(tick);
    }
}

/// Polls whenever the bell rings, until parts poll themselves; if tasks wait, until they do so often enough.
fn drive(shared: &Shared, stop: &AtomicBool, polls: u64, helpers: &mut Helpers) {
    let mut is_needed = || match shared.tasks.has_waiting() {
        true => !helpers.suffice(shared),
        false => shared.polls.load(Ordering::Relaxed) == polls,
    };
    let mut naps = NapBackoff::default();
    shared.tasks.begin_watch();
    while !stop.load(Ordering::Acquire) && is_needed() {
        // The task that polled for all may be gone.
        if shared.task_leader.take_packed() {
            shared.flush_common(&mut shared.engine(), Due::All);
        }
        // Parts also ring the bell when they open a block that may have to be flushed.
        lead(shared, naps.next(shared), || !stop.load(Ordering::Acquire));
    }
    shared.tasks.end_watch();
}

/// The other threads that poll, and so wake tasks as well.
struct Helpers {
    /// When they were last looked at, with [`Shared::polls`] and [`Tasks::registrations`](crate::sync::Tasks::registrations) at that time.
    since: Instant,
    polls: u64,
    registrations: usize,
    /// The result then.
    sufficed: bool,
}

impl Default for Helpers {
    fn default() -> Self {
        Self { since: Instant::now(), polls: 0, registrations: 0, sufficed: false }
    }
}

impl Helpers {
    /// Whether other threads poll so often that waiting tasks need no thread of their own.
    fn suffice(&mut self, shared: &Shared) -> bool {
        let registrations = shared.tasks.registrations();
        let is_new = std::mem::replace(&mut self.registrations, registrations) != registrations;
        let elapsed = self.since.elapsed();
        if !is_new && elapsed < TASKS_TICK {
            return self.sufficed;
        }
        self.since += elapsed;
        let polls = shared.polls.load(Ordering::Relaxed);
        let count = polls.wrapping_sub(std::mem::replace(&mut self.polls, polls));
        // A task polls before it begins to wait. With more nodes than processors, a thread that polls may lose its processor for long.
        let counts = !is_new && !shared.crowded;
        self.sufficed = counts && u128::from(count) * OFTEN.as_nanos() >= elapsed.as_nanos();
        self.sufficed
    }
}

impl Shared {
    /// Asks the part that sleeps as the leader to wake the progress thread when its wait ends. Returns whether there is a leader.
    pub(super) fn delegate_to_leader(&self) -> bool {
        self.off_duty.store(true, Ordering::Relaxed);
        // Pairs with the fence in `resume_driver`: either the leader still holds its lock, or it sees that it must wake the progress
        // thread.
        fence(Ordering::SeqCst);
        let is_led = try_lock(&self.leader).is_none();
        if !is_led {
            self.off_duty.store(false, Ordering::Relaxed);
        }
        is_led
    }

    /// Called by a part that has stopped being the leader.
    pub(super) fn resume_driver(&self) {
        fence(Ordering::SeqCst);
        if self.off_duty.load(Ordering::Relaxed) && self.off_duty.swap(false, Ordering::Relaxed) {
            self.unpark_driver();
        }
    }
}
