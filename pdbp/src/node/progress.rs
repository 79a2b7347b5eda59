//! Who polls.
//!
//! Parts poll whenever they call, and while they [wait](super::waiting). The first part of a node that sleeps does so on the node's
//! bell, which peers ring (it is the *leader*, and polls for all when it wakes), the others on the bells of their pipes. A progress
//! thread takes the leader's place when no part is there: it looks every [`TICK`] whether anybody else polls, and keeps out of the way
//! if so. Parts that wait as tasks do not poll: for them it stays the leader, and takes the place of one that goes.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Shared;
use super::waiting::NAP;

/// How often the progress thread looks whether it is needed.
const TICK: Duration = Duration::from_micros(500);
/// The same where nodes outnumber processors: a part that has not polled for a shorter time may just wait for its turn, and each look
/// takes the processor from one that computes. About a time slice: eight nodes on two processors send 1.25 to 2 times as much
/// as with `TICK` from 256 bytes on (benches/README.md); a wait of several slices was slower where other programs compute.
const CROWDED_TICK: Duration = Duration::from_millis(4);

/// The progress thread of a node. It ends when the last handle to the node is gone.
pub(crate) struct Driver {
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
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
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

fn run(shared: &Weak<Shared>, stop: &AtomicBool) {
    DRIVES.set(stop);
    let mut polls = 0;
    while !stop.load(Ordering::Acquire) {
        let Some(shared) = shared.upgrade() else { return };
        let seen = shared.polls.load(Ordering::Relaxed);
        let busy = std::mem::replace(&mut polls, seen) != seen;
        if (!busy || shared.tasks.any())
            && let Ok(_leader) = shared.leader.try_lock()
        {
            lead(&shared, stop, seen);
            continue;
        }
        // Somebody polls; only blocks past their time may need help.
        shared.poll();
        let tick = if shared.crowded { CROWDED_TICK } else { TICK };
        drop(shared);
        thread::park_timeout(tick);
    }
}

/// Polls whenever the bell rings, until parts poll themselves and no task waits: tasks do not poll while they wait.
fn lead(shared: &Shared, stop: &AtomicBool, polls: u64) {
    let is_needed = || shared.polls.load(Ordering::Relaxed) == polls || shared.tasks.any();
    while !stop.load(Ordering::Acquire) && is_needed() {
        let polled = shared.poll_with(&mut shared.engine());
        if polled.worked == 0 {
            // Parts ring the bell too, when they open a block that may have to be flushed.
            let until = polled.next.map_or(NAP, |next| Duration::from_nanos(next.since(polled.now)));
            shared.bell.sleep(until.clamp(Duration::from_micros(50), NAP), &mut || shared.poll() == 0);
        }
    }
}
