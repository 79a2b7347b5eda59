//! The pool on a part: the thread that answers processors.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pdbp::{Node, NodeId, Part, PartKind};

use crate::error::Error;
use crate::large;
use crate::losses::Losses;
use crate::peers::{Peers, Received};
use crate::pool::{Pool, Processor};
use crate::wire::{Submission, Up};

/// The part's name and address.
pub(crate) const NAME: &str = "tasks";
pub(crate) const ADDRESS: &str = "tasks@node0";

/// How long the pool waits when idle.
const IDLE: Duration = Duration::from_millis(50);
/// How long it waits at the end for processors that have not been told to stop yet.
const LINGER: Duration = Duration::from_secs(5);
/// Messages received per round before answering.
const AT_ONCE: usize = 256;
/// The most that a round counts of the time without any other node: if this process was stopped, others had no time to come back.
const COUNTED: Duration = Duration::from_millis(100);

/// A pool, shared with the threads of its process that use it.
pub(crate) struct Served {
    pool: Mutex<Pool>,
    /// Signalled when there may be outcomes.
    came: Condvar,
    /// Set while the pool's thread has yet to act on a client's wake-up.
    pub(crate) asked: AtomicBool,
    /// Set when all is over: the thread ends.
    pub(crate) over: AtomicBool,
    /// Set when a node was lost; nobody waits for it at the end.
    pub(crate) has_lost: AtomicBool,
    /// Why no more outcomes will come.
    error: Mutex<Option<String>>,
    /// Names of jobs.
    names: Mutex<HashMap<u32, String>>,
    /// Large values, if the pool keeps them.
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

    /// No caller holds the lock while it runs code of the program, so a panic cannot have left the pool half changed.
    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, HashMap<u32, String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A snapshot for monitoring.
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

    /// The same, for at most this long.
    pub(crate) fn wait_for<'a>(&self, pool: MutexGuard<'a, Pool>, time: Duration) -> MutexGuard<'a, Pool> {
        self.came.wait_timeout(pool, time.min(IDLE)).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Notes why no more outcomes will come, and wakes all who wait. The first reason counts.
    pub(crate) fn fail(&self, error: String) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.came.notify_all();
    }

    /// Returns a guard that calls `fail` if its thread panics, so that nobody waits for it for ever.
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

    /// The error that has ended the pool.
    pub(crate) fn error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone().map(Error::other)
    }
}

/// Wakes the pool's thread of a node, which otherwise notices changes by itself after a while.
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
    /// For how long tasks have waited since the last other node was lost.
    alone: Duration,
    /// When the last round began, since `began`.
    last: Duration,
}

/// Serves until all is over and every processor knows it.
pub(crate) fn serve(node: &Node, served: &Served) -> Result<(), Error> {
    let losses = Losses::new(node);
    let part = node.register(NAME, PartKind::Cpu)?;
    let (peers, began) = (Peers::new(&part, served.pool().most_unfinished()), Instant::now());
    let mut server =
        Server { served, part: &part, losses, peers, began, alone: Duration::ZERO, last: Duration::ZERO };
    let mut wait = Duration::ZERO;
    let mut over = None;
    loop {
        if served.over.load(Ordering::Acquire) {
            // A processor that is still computing asks when it has finished, and must then be told to stop.
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
    /// Handles received messages and answers them. Returns how long to wait if nothing arrives.
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
        // Discards returned messages: they would take up the room of those to come for the same node.
        while let Ok(Some(_)) = self.part.try_returned() {}
        self.end_if_alone(&pool, now);
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
            // A client has added something. Pairs with the swap there: whatever it added before is visible under the lock.
            self.served.asked.store(false, Ordering::Release);
            return;
        }
        let (processor, message) = match self.peers.receive(piece, |from| pool.is_refused(from)) {
            Received::Message(processor, message) => (processor, message),
            Received::Nothing => return,
            Received::Malformed(processor) => return pool.malformed(processor),
            Received::TooMuch(refused, why) => {
                return refused.into_iter().for_each(|processor| pool.ignore(processor, &why));
            }
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
            // This pool has no journal.
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

    /// Ends the pool if tasks have waited for long since the last processor of a cluster of fixed size was lost. Those whose line was cut may be
    /// back before.
    fn end_if_alone(&mut self, pool: &Pool, now: Duration) {
        let round = now.saturating_sub(std::mem::replace(&mut self.last, now)).min(COUNTED);
        let Some(gone) = self.losses.all().filter(|_| !pool.is_empty()) else {
            self.alone = Duration::ZERO;
            return;
        };
        self.alone += round;
        if self.alone >= pool.offer_wait() {
            self.served.fail(no_processors(gone, pool.len(), self.alone));
        }
    }

    fn send(&mut self) {
        for processor in self.peers.send() {
            self.served.pool().leave(processor);
        }
    }
}

/// Why the pool ends without processors.
fn no_processors(gone: &BTreeSet<NodeId>, tasks: usize, waited: Duration) -> String {
    let some: Vec<_> = gone.iter().take(4).map(NodeId::to_string).collect();
    let more = gone.len() - some.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "all processors are lost: {}{more} ended or cannot be reached, and {tasks} tasks have waited for {waited:.0?}; find out why, and start \
         all processes again",
        some.join(", ")
    )
}
