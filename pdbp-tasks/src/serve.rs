//! The pool on a part: the thread that answers processors.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pdbp::{Node, Part, PartKind};

use crate::error::Error;
use crate::large;
use crate::losses::Losses;
use crate::peers::{Heard, Peers};
use crate::pool::{Pool, Processor};
use crate::wire::{Submission, Up};

/// The part's name, and where it is.
pub(crate) const NAME: &str = "tasks";
pub(crate) const ADDRESS: &str = "tasks@node0";

/// How long it waits when there is nothing to do.
const IDLE: Duration = Duration::from_millis(50);
/// How long it waits at the end for processors that have not been told to stop.
const LINGER: Duration = Duration::from_secs(5);
/// Messages taken in before they are answered.
const AT_ONCE: usize = 256;

/// A pool, and those of its process who use it.
pub(crate) struct Served {
    pool: Mutex<Pool>,
    /// There may be outcomes.
    came: Condvar,
    /// A client has asked the pool's thread to look, which it has not done yet.
    pub(crate) asked: AtomicBool,
    /// All is over: the thread ends.
    pub(crate) over: AtomicBool,
    /// A node was lost, for which nobody waits at the end.
    pub(crate) has_lost: AtomicBool,
    /// Why there will be no more outcomes.
    error: Mutex<Option<String>>,
    /// Names of jobs.
    names: Mutex<HashMap<u32, String>>,
    /// Large values, if they are kept.
    pub(crate) large: Option<large::Store>,
}

impl Served {
    pub(crate) fn new(pool: Pool, large: Option<large::Store>) -> Self {
        Self {
            pool: Mutex::new(pool),
            came: Condvar::new(),
            asked: AtomicBool::new(false),
            over: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            error: Mutex::new(None),
            names: Mutex::default(),
            large,
        }
    }

    /// No caller holds it across code of the program, so a panic cannot have left it half changed.
    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, HashMap<u32, String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is now.
    #[cfg(feature = "metrics")]
    pub(crate) fn seen(&self) -> crate::pool::seen::Seen {
        let (names, pool) = (self.names().clone(), self.pool());
        let jobs = pool.jobs_seen(|job| names.get(&job).cloned().unwrap_or_default());
        crate::pool::seen::Seen { jobs, ..pool.seen() }
    }

    /// Waits until there may be outcomes.
    pub(crate) fn wait<'a>(&self, pool: MutexGuard<'a, Pool>) -> MutexGuard<'a, Pool> {
        self.wait_for(pool, IDLE)
    }

    /// The same, so long at most.
    pub(crate) fn wait_for<'a>(&self, pool: MutexGuard<'a, Pool>, time: Duration) -> MutexGuard<'a, Pool> {
        self.came.wait_timeout(pool, time.min(IDLE)).unwrap_or_else(PoisonError::into_inner).0
    }

    /// No outcomes will come any more, for a reason of which the first counts.
    pub(crate) fn fail(&self, error: String) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.came.notify_all();
    }

    /// Fails when the thread that has the guard panics, so that nobody waits for it for ever.
    pub(crate) fn guard<'a>(&'a self, what: &'a str) -> impl Drop + use<'a> {
        struct Guard<'a>(&'a Served, &'a str);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.fail(format!("{} has panicked", self.1));
                }
            }
        }
        Guard(self, what)
    }

    /// The error that has ended it, for whoever asks.
    pub(crate) fn error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone().map(Error::other)
    }
}

/// Lets the pool's thread of a node look at what has changed, which it does by itself after a while.
pub(crate) fn wake(node: &Node) {
    if let Ok(part) = node.attach()
        && let Ok(pool) = part.lookup(ADDRESS)
    {
        let _ = part.try_send(pool, &[]);
        part.flush();
    }
}

struct Server<'a> {
    served: &'a Served,
    part: &'a Part,
    losses: Losses,
    peers: Peers<'a>,
    began: Instant,
}

/// Serves until all is over and all know it.
pub(crate) fn serve(node: &Node, served: &Served) -> Result<(), Error> {
    let losses = Losses::new(node);
    let part = node.register(NAME, PartKind::Cpu)?;
    let mut server = Server { served, part: &part, losses, peers: Peers::new(&part), began: Instant::now() };
    let mut wait = Duration::ZERO;
    let mut over = None;
    loop {
        if served.over.load(Ordering::Acquire) {
            // Who still computes asks when it has done, and must be told to stop.
            let since = *over.get_or_insert_with(Instant::now);
            let is_told = server.peers.is_idle() && served.pool().processors() == 0;
            if is_told || since.elapsed() > LINGER {
                break;
            }
        }
        let first = server.peers.wait(wait)?;
        wait = server.turn(first);
    }
    Ok(())
}

impl Server<'_> {
    /// Takes in what has come and answers. Returns how long to wait if nothing comes.
    fn turn(&mut self, first: Option<pdbp::Message>) -> Duration {
        let served = self.served;
        let mut pool = served.pool();
        let now = self.began.elapsed();
        let before = pool.counts();
        let mut message = first;
        let mut count = 0;
        while let Some(next) = message {
            self.receive(&mut pool, now, &next);
            count += 1;
            message = if count < AT_ONCE { self.part.try_recv() } else { None };
        }
        self.losses.take().into_iter().for_each(|node| self.lose(&mut pool, node));
        while let Some((processor, answer)) = pool.poll(now) {
            self.peers.queue(processor, &answer);
        }
        let next = pool.next_time();
        let changed = pool.counts() != before;
        drop(pool);
        if changed {
            served.came.notify_all();
        }
        self.send();
        next.map_or(IDLE, |next| next.saturating_sub(now).min(IDLE))
    }

    fn receive(&mut self, pool: &mut Pool, now: Duration, piece: &pdbp::Message) {
        if piece.is_empty() {
            // A client has added something. Pairs with the swap there: what it has added before is seen under the lock.
            self.served.asked.store(false, Ordering::Release);
            return;
        }
        let (processor, message) = match self.peers.hear(piece) {
            Heard::Message(processor, message) => (processor, message),
            Heard::Nothing => return,
            Heard::Malformed(processor) => return pool.malformed(processor),
        };
        match message {
            Up::Hello { fingerprint, offer, .. } => {
                pool.hello(processor, fingerprint, offer);
            }
            Up::Report { room, results, .. } => {
                results.into_iter().for_each(|result| self.submit(pool, now, processor, result));
                pool.ask(now, processor, room.into());
            }
            Up::Bye => {
                pool.leave(processor);
                self.peers.forget(processor);
            }
            // It has no journal.
            Up::Again { .. } | Up::Request { .. } | Up::Large { .. } => pool.malformed(processor),
        }
    }

    fn submit(&self, pool: &mut Pool, now: Duration, from: Processor, result: Submission) {
        let (task, attempt, before) = (result.task, result.attempt, pool.counts().taken);
        pool.submit(now, from, result);
        if let Some(large) = &self.served.large {
            large.submitted(task, attempt, pool.counts().taken > before);
        }
    }

    fn lose(&mut self, pool: &mut Pool, node: u16) {
        pool.lose_node(node);
        self.served.has_lost.store(true, Ordering::Release);
        self.peers.lose_node(node);
    }

    fn send(&mut self) {
        for processor in self.peers.send() {
            self.served.pool().leave(processor);
        }
    }
}
