//! Which thread polls a node.
//!
//! Parts poll in every call, and while they [wait](super::waiting). The first part of a node that goes to sleep becomes the
//! *leader*: it sleeps on the node's bell, which peers ring, and polls for all when it wakes. The others sleep on the bells of
//! their pipes. A progress thread takes the leader's place when there is none: every [`TICK`] it checks whether another thread
//! polls, and stays out of the way if so. While a part sleeps as the leader, the progress thread sleeps too, and is woken when that
//! part's wait has ended. Parts that wait as tasks do not poll; for them the progress thread stays the leader, or replaces one that
//! leaves.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Shared;
use super::waiting::{NapBackoff, lead};

/// How often the progress thread checks whether it is needed.
const TICK: Duration = Duration::from_micros(500);
/// As [`TICK`], with more nodes than processors: a part that has not polled for less than this may just be waiting for its time
/// slice, and each check takes the processor from one that computes. About a time slice: from 256 bytes on, eight nodes on two
/// processors send 1.25 to 2 times as much as with `TICK` (`benches/figures/shared-memory.md`); several slices were slower where
/// other programs compute.
const CROWDED_TICK: Duration = Duration::from_millis(4);

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
    while !stop.load(Ordering::Acquire) {
        let Some(shared) = shared.upgrade() else { return };
        let seen = shared.polls.load(Ordering::Relaxed);
        // Do not count polls of a leader that keeps going back to sleep without waking this thread.
        let is_delegated = shared.off_duty.load(Ordering::Relaxed);
        let busy = std::mem::replace(&mut polls, seen) != seen && !is_delegated;
        if !busy || shared.tasks.has_waiting() {
            if let Ok(_leader) = shared.leader.try_lock() {
                shared.off_duty.store(false, Ordering::Relaxed);
                drive(&shared, stop, seen);
                watched = 0;
                continue;
            }
            watched += 1;
        } else {
            watched = 0;
        }
        // Another thread polls; only overdue blocks may need help.
        shared.poll();
        let mut tick = if shared.crowded { CROWDED_TICK } else { TICK };
        if watched > TICKS_BEFORE_REST && shared.delegate_to_leader() {
            tick = OFF_DUTY;
        }
        drop(shared);
        thread::park_timeout(tick);
    }
}

/// Polls whenever the bell rings, until parts poll themselves and no task waits: waiting tasks do not poll.
fn drive(shared: &Shared, stop: &AtomicBool, polls: u64) {
    let is_needed = || shared.polls.load(Ordering::Relaxed) == polls || shared.tasks.has_waiting();
    let mut naps = NapBackoff::default();
    while !stop.load(Ordering::Acquire) && is_needed() {
        // Parts also ring the bell when they open a block that may have to be flushed.
        lead(shared, naps.next(shared), || !stop.load(Ordering::Acquire));
    }
}

impl Shared {
    /// Asks the part that sleeps as the leader to wake the progress thread when its wait ends. Returns whether there is a leader.
    fn delegate_to_leader(&self) -> bool {
        self.off_duty.store(true, Ordering::Relaxed);
        // Pairs with the fence in `resume_driver`: either the leader still holds its lock, or it sees that it must wake the progress
        // thread.
        fence(Ordering::SeqCst);
        let is_led = self.leader.try_lock().is_err();
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
