//! Readiness of connections as reported by the operating system, and the bell of a node: threads sleep in the call that reports it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use mio::{Events, Interest, Poll, Registry, Token, Waker, event::Source};
use pdbp_core::Bell;

/// The bell's own token; those of connections are the numbers of their nodes.
const BELL: Token = Token(usize::MAX);
/// Maximum events taken at a time.
const EVENTS: usize = 64;
const READABLE: u8 = 1;
const WRITABLE: u8 = 2;
const OVER: u8 = 4;

/// Readiness of a connection: whether there may be something to read or room to write, and whether it has ended, at either end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) over: bool,
}

/// Watches the connections of all links of a node for readability and room to write.
pub(crate) struct Reactor {
    poll: Mutex<(Poll, Events)>,
    registry: Registry,
    waker: Waker,
    /// For each node, what was reported of its connection and not consumed yet.
    ready: Box<[AtomicU8]>,
    sleepers: AtomicU32,
    rings: AtomicU64,
    /// Whether links hold back acknowledgements (`owes`), and whether these are to be sent now because a thread would sleep (`flushes_acks`).
    owes_acks: AtomicBool,
    flushes_acks: AtomicBool,
}

impl Reactor {
    /// For `nodes` nodes.
    pub(crate) fn new(nodes: u16) -> io::Result<Self> {
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Waker::new(&registry, BELL)?;
        let ready = (0..nodes).map(|_| AtomicU8::new(0)).collect();
        let poll = Mutex::new((poll, Events::with_capacity(EVENTS)));
        Ok(Self {
            poll,
            registry,
            waker,
            ready,
            sleepers: AtomicU32::new(0),
            rings: AtomicU64::new(0),
            owes_acks: false.into(),
            flushes_acks: false.into(),
        })
    }

    /// Watches a connection to a node.
    pub(crate) fn watch(&self, node: usize, source: &mut impl Source) -> io::Result<()> {
        self.registry.register(source, Token(node), Interest::READABLE | Interest::WRITABLE)
    }

    /// Takes events from the system, unless another thread is doing so. Never waits.
    pub(crate) fn poll_events(&self) {
        let mut poll = match self.poll.try_lock() {
            Ok(poll) => poll,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.take(&mut poll, Duration::ZERO);
    }

    /// Consumes the news of the connection to a node.
    #[inline]
    pub(crate) fn take_readiness(&self, node: usize) -> Option<Readiness> {
        let ready = self.ready.get(node)?;
        // Only one thread at a time consumes it, and each bit stands on its own.
        if ready.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let bits = ready.swap(0, Ordering::Relaxed);
        let [readable, writable, over] = [READABLE, WRITABLE, OVER].map(|bit| bits & bit != 0);
        Some(Readiness { readable, writable, over })
    }

    /// Notes that a node's connection still has something to read.
    pub(crate) fn mark_readable(&self, node: usize) {
        if let Some(ready) = self.ready.get(node) {
            ready.fetch_or(READABLE, Ordering::Relaxed);
        }
    }

    /// Notes whether links hold back acknowledgements.
    #[inline]
    pub(crate) fn set_owes_acks(&self, owes: bool) {
        // Called only by the poller, one thread at a time; a thread that would sleep has polled before.
        if self.owes_acks.load(Ordering::Relaxed) != owes {
            self.owes_acks.store(owes, Ordering::Relaxed);
        }
    }

    /// Whether held-back acknowledgements are to be sent now, since a thread would sleep. Resets itself.
    #[inline]
    pub(crate) fn flushes_acks(&self) -> bool {
        self.flushes_acks.load(Ordering::Relaxed) && self.flushes_acks.swap(false, Ordering::Relaxed)
    }

    fn take(&self, (poll, events): &mut (Poll, Events), timeout: Duration) {
        // A wait interrupted by a signal counts as one without events.
        if poll.poll(events, Some(timeout)).is_err() {
            return;
        }
        for event in events.iter().filter(|event| event.token() != BELL) {
            let over = event.is_error() || event.is_read_closed() || event.is_write_closed();
            let readable = if over || event.is_readable() { READABLE } else { 0 };
            let writable = if over || event.is_writable() { WRITABLE } else { 0 };
            let over = if over { OVER } else { 0 };
            if let Some(ready) = self.ready.get(event.token().0) {
                ready.fetch_or(readable | writable | over, Ordering::Relaxed);
            }
        }
    }
}

impl Bell for Reactor {
    fn ring(&self) {
        // Pairs with the fence in `sleep`: either the sleeper sees what was stored before the ring, or it is counted here.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.rings.fetch_add(1, Ordering::SeqCst);
            // Waking fails only when there is nothing left to wake.
            let _ = self.waker.wake();
        }
    }

    fn sleep(&self, timeout: Duration, is_idle: &mut dyn FnMut() -> bool) {
        let before = self.rings.load(Ordering::SeqCst);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        let is_idle = is_idle();
        if self.owes_acks.load(Ordering::Relaxed) {
            // The poll that follows sends the acknowledgements, and only the next sleep really sleeps.
            self.flushes_acks.store(true, Ordering::Relaxed);
        } else if is_idle {
            let mut poll = self.poll.lock().unwrap_or_else(PoisonError::into_inner);
            // A concurrent `poll_events` may have consumed the wake-up of an earlier ring; any ring from here on ends the wait below.
            let rang = self.rings.load(Ordering::SeqCst) != before;
            if !rang && self.ready.iter().all(|ready| ready.load(Ordering::Relaxed) == 0) {
                self.take(&mut poll, timeout);
            }
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}
