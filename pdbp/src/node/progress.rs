//! Who polls, and how a thread waits.
//!
//! Parts poll whenever they call. A part that has to wait polls a few times, gives its time slice away a few times, and then
//! sleeps: the first such part of a node sleeps on the node's bell, which peers ring (it is the *leader*, and polls for all
//! when it wakes), the others on the bells of their pipes. A progress thread takes the leader's place when no part is there:
//! it looks every [`TICK`] whether anybody else polls, and keeps out of the way if so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Pipe, Shared};

/// How often the progress thread looks whether it is needed.
const TICK: Duration = Duration::from_micros(500);
/// Longest sleep on a bell, in case that a transport does not ring.
const NAP: Duration = Duration::from_millis(2);
const SPINS: u32 = 8;
/// Polls of a thread that waits before it sleeps: some 50 us, which is what sleeping and waking costs, or less where others
/// need the processor.
const YIELDS: u32 = 200;
const CROWDED_YIELDS: u32 = 48;
const LOOK: u32 = 8;

/// A thread that waits: how long it has, and how it has waited so far.
pub(crate) struct Waiter {
    started: Instant,
    timeout: Duration,
    rounds: u32,
    /// Rounds that are short.
    awake: u32,
}

impl Waiter {
    pub(crate) fn new(timeout: Duration, shared: &Shared) -> Self {
        let awake = SPINS + if shared.crowded { CROWDED_YIELDS } else { YIELDS };
        Self { started: Instant::now(), timeout, rounds: 0, awake }
    }

    /// Whether the time is up. As long as pauses are short, the clock is read at every [`LOOK`]th only.
    pub(crate) fn is_over(&self) -> bool {
        let short = self.rounds > 0 && self.rounds <= self.awake && !self.rounds.is_multiple_of(LOOK);
        !short && self.started.elapsed() >= self.timeout
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// There was something to do: wait lightly again.
    pub(crate) fn reset(&mut self) {
        self.rounds = 0;
    }

    /// Waits a little; longer each time. `pipe` is the pipe in which the thread hopes to find something.
    pub(crate) fn pause(&mut self, shared: &Shared, pipe: Option<&Pipe>) {
        self.rounds += 1;
        if self.rounds <= SPINS {
            std::hint::spin_loop();
        } else if self.rounds <= self.awake {
            thread::yield_now();
        } else {
            let left = self.timeout.saturating_sub(self.started.elapsed()).min(NAP);
            sleep(shared, pipe, left);
        }
    }
}

fn sleep(shared: &Shared, pipe: Option<&Pipe>, left: Duration) {
    let nothing = || pipe.is_none_or(Pipe::is_empty);
    match (shared.leader.try_lock(), pipe) {
        (Ok(_leader), pipe) => {
            // Pairs with the load in `Pipe::ring`: another part that polls may deliver while this one sleeps.
            let leads = |leads| {
                if let Some(pipe) = pipe {
                    pipe.leads.store(leads, Ordering::Relaxed);
                }
            };
            leads(true);
            shared.bell.sleep(left, &mut || shared.poll() == 0 && nothing());
            leads(false);
        }
        (Err(_), Some(pipe)) => pipe.bell.sleep(left, nothing),
        (Err(_), None) => thread::sleep(left.min(Duration::from_micros(100))),
    }
}

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
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread may itself hold the last handle; it must not wait for itself.
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // A progress thread that panicked has said so on stderr; there is nothing to add.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Weak<Shared>, stop: &AtomicBool) {
    let mut polls = 0;
    while !stop.load(Ordering::Acquire) {
        let Some(shared) = shared.upgrade() else { return };
        let seen = shared.polls.load(Ordering::Relaxed);
        let busy = std::mem::replace(&mut polls, seen) != seen;
        if busy {
            // Somebody polls; only blocks past their time may need help.
            shared.poll();
            drop(shared);
            thread::sleep(TICK);
            continue;
        }
        let Ok(leader) = shared.leader.try_lock() else {
            shared.poll();
            thread::sleep(TICK);
            continue;
        };
        lead(&shared, stop, seen);
        drop(leader);
    }
}

/// Polls whenever the bell rings, until parts poll themselves.
fn lead(shared: &Shared, stop: &AtomicBool, polls: u64) {
    while !stop.load(Ordering::Acquire) && shared.polls.load(Ordering::Relaxed) == polls {
        let polled = shared.poll_with(&mut shared.engine());
        if polled.worked == 0 {
            // Parts ring the bell too, when they open a block that may have to be flushed.
            let until = polled.next.map_or(NAP, |next| Duration::from_nanos(next.since(polled.now)));
            shared.bell.sleep(until.clamp(Duration::from_micros(50), NAP), &mut || shared.poll() == 0);
        }
    }
}
