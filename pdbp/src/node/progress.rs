//! Which thread polls a node.
//!
//! Parts poll whenever they call, and while they [wait](super::waiting). The first part of a node that sleeps does so on the node's
//! bell, which peers ring (it is the *leader*, and polls for all when it wakes), the others on the bells of their pipes. A progress
//! thread takes the leader's place when no part is there: it looks every [`TICK`] whether anybody else polls, and keeps out of the way
//! if so. While a part sleeps as the leader it sleeps as well, and is called when that part's wait has ended. Parts that wait as tasks do
//! not poll: for them it stays the leader, and takes the place of one that goes.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Shared;
use super::waiting::{Naps, lead};

/// How often the progress thread looks whether it is needed.
const TICK: Duration = Duration::from_micros(500);
/// The same where nodes outnumber processors: a part that has not polled for a shorter time may just wait for its turn, and each look
/// takes the processor from one that computes. About a time slice: eight nodes on two processors send 1.25 to 2 times as much
/// as with `TICK` from 256 bytes on (`benches/figures/shared-memory.md`); a wait of several slices was slower where other programs compute.
const CROWDED_TICK: Duration = Duration::from_millis(4);

/// The progress thread of a node. It ends when the last handle to the node is gone.
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
        // A node has one.
        let _ = shared.driver.set(thread.thread().clone());
        Ok(Self { shared: Arc::downgrade(shared), stop, thread: Mutex::new(Some(thread)) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // It sleeps on the bell, or by itself.
        if let Some(shared) = self.shared.upgrade() {
            shared.bell.ring();
            shared.summon();
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread may itself hold the last handle; it must not wait for itself.
        if let Some(thread) = thread
            && DRIVES.get() != Arc::as_ptr(&self.stop)
        {
            // A progress thread that panicked has said so on stderr; there is nothing to add.
            let _ = thread.join();
        }
    }
}

thread_local! {
    /// On a progress thread, its `stop`. (`thread::current` would allocate on the main thread of a program in C, and nothing frees that.)
    static DRIVES: Cell<*const AtomicBool> = const { Cell::new(ptr::null()) };
}

/// Ticks for which a leader has slept before the progress thread sleeps as well.
const WATCHES: u32 = 8;
/// Longest sleep of a progress thread that somebody will call.
const OFF_DUTY: Duration = Duration::from_millis(100);

fn run(shared: &Weak<Shared>, stop: &AtomicBool) {
    DRIVES.set(stop);
    let (mut polls, mut watched) = (0, 0);
    while !stop.load(Ordering::Acquire) {
        let Some(shared) = shared.upgrade() else { return };
        let seen = shared.polls.load(Ordering::Relaxed);
        // The polls of a leader that sleeps again and again, and has not called, do not count.
        let is_left = shared.off_duty.load(Ordering::Relaxed);
        let busy = std::mem::replace(&mut polls, seen) != seen && !is_left;
        if !busy || shared.tasks.any() {
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
        // Somebody polls; only blocks past their time may need help.
        shared.poll();
        let mut tick = if shared.crowded { CROWDED_TICK } else { TICK };
        if watched > WATCHES && shared.leave_to_leader() {
            tick = OFF_DUTY;
        }
        drop(shared);
        thread::park_timeout(tick);
    }
}

/// Polls whenever the bell rings, until parts poll themselves and no task waits: tasks do not poll while they wait.
fn drive(shared: &Shared, stop: &AtomicBool, polls: u64) {
    let is_needed = || shared.polls.load(Ordering::Relaxed) == polls || shared.tasks.any();
    let mut naps = Naps::default();
    while !stop.load(Ordering::Acquire) && is_needed() {
        // Parts ring the bell too, when they open a block that may have to be flushed.
        lead(shared, naps.next(shared), || !stop.load(Ordering::Acquire));
    }
}

impl Shared {
    /// Has the part that sleeps as the leader call the progress thread when it waits no longer; whether there is one.
    fn leave_to_leader(&self) -> bool {
        self.off_duty.store(true, Ordering::Relaxed);
        // Pairs with the one in `call_driver`: either the leader is still there, or it sees that it has to call.
        fence(Ordering::SeqCst);
        let is_led = self.leader.try_lock().is_err();
        if !is_led {
            self.off_duty.store(false, Ordering::Relaxed);
        }
        is_led
    }

    /// Called by who has slept as the leader, and is no more.
    pub(super) fn call_driver(&self) {
        fence(Ordering::SeqCst);
        if self.off_duty.load(Ordering::Relaxed) && self.off_duty.swap(false, Ordering::Relaxed) {
            self.summon();
        }
    }
}
