//! A pool with a journal on a part, and the journal's thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pdbp::{Builder, Node, Part, PartKind, Target};

use super::remote::nonce;
use super::{Serving, with_outage};
use crate::durable::{Durable, Group, Output, Reading};
use crate::error::Error;
use crate::large::{self, Folder, Keeping};
use crate::losses::Losses;
use crate::peers::{Peers, Received, UNREAD};
use crate::pool::Processor;
use crate::program::Program;
use crate::serve::{ADDRESS, NAME};
use crate::store::{Change, Disk, Reader, Saved, Store};
use crate::wire::{Answer, Down, ResultOf, Up};

/// How long the pool waits when idle.
const IDLE: Duration = Duration::from_millis(50);
/// Messages received per round before answering.
const AT_ONCE: usize = 256;
/// The most changes in a commit, not counting the last group.
const MOST: usize = 1 << 16;
/// How often a write to a failing journal is retried.
const AGAIN: Duration = Duration::from_secs(1);
/// Bytes of results in one answer.
const ANSWER: usize = 256 << 10;
/// How long the pool waits at its end for everything to be durable.
const LINGER: Duration = Duration::from_secs(5);

/// Progress reports of the journal's thread.
#[derive(Default)]
struct Progress {
    durable: AtomicU64,
    /// Why the journal cannot be written.
    stalled: Mutex<Option<String>>,
}

impl Progress {
    fn stalled(&self) -> Option<String> {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_stalled(&self, why: Option<String>) {
        *self.stalled.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

impl Program {
    /// Serves a pool whose tasks outlive it, until `stop` is set. Processes that [`work`](Self::work) compute, and clients
    /// ([`Remote`](super::Remote)) add tasks. `builder` sets where it listens. `ready` is called with the node and the pool's term once others
    /// can join.
    ///
    /// # Errors
    /// The journal cannot be read, or belongs to another process or program; or the cluster does not start.
    pub fn serve(
        self,
        builder: Builder,
        serving: &Serving,
        stop: &AtomicBool,
        ready: impl FnOnce(&Node, u32),
    ) -> Result<(), Error> {
        self.kinds.check()?;
        let (disk, mut saved) = match &serving.journal {
            Some(path) => {
                let failed = |error| Error::other(format!("journal {}: {error}", path.display()));
                let disk = Disk::open(path).map_err(failed)?;
                let saved = disk.load().map_err(failed)?;
                (disk, saved)
            }
            None => (Disk::unnamed(&std::env::temp_dir()).map_err(Error::other)?, Saved::default()),
        };
        let mut store: Box<dyn Store> = Box::new(disk.clone());
        let term = saved.term.saturating_add(1);
        saved.term = term;
        let failed = |error| Error::other(format!("the journal cannot be taken up: {error}"));
        let functions = (self.kinds.len(), self.kinds.fingerprint());
        saved.check_functions(functions.1).map_err(failed)?;
        let number = nonce() as u64; // of 128 random bits
        saved.pools.push(number);
        store.commit(&[Change::Term(term, number), Change::Functions(functions.1)]).map_err(failed)?;
        let folder = match &serving.journal {
            Some(path) => {
                let failed =
                    |error| Error::other(format!("large values beside journal {}: {error}", path.display()));
                let reader = Box::new(disk.clone());
                let folder = Arc::new(Folder::open(path, term, reader, &saved).map_err(failed)?);
                store = Box::new(Keeping::new(store, Arc::clone(&folder)));
                Some(folder)
            }
            None => None,
        };
        let (judge, inputs) = (serving.is_failure, Box::new(disk.clone()));
        let mut durable =
            Durable::restore(saved, term, functions, self.limits, judge, inputs).map_err(failed)?;
        if serving.spans > 0 {
            durable.pool.record_most(serving.spans);
        }
        let cluster = with_outage(builder).found(true).start()?;
        let node = cluster.nodes().first().ok_or_else(|| Error::other("the cluster has no node here"))?;
        let losses = Losses::new(node);
        let part = node.register(NAME, PartKind::Cpu)?;
        let durable = Arc::new(Mutex::new(durable));
        #[cfg(feature = "metrics")]
        let _showing = {
            let (seen, journal) = (Arc::clone(&durable), serving.journal.clone());
            crate::figures::show([node], move || snapshot(&seen, journal.as_deref()))?
        };
        let (progress, over) = (Progress::default(), AtomicBool::new(false));
        let unfinished = self.limits.unfinished_bytes;
        thread::scope(|scope| {
            let (groups, journal) = mpsc::channel();
            let progress = &progress;
            let writer = scope.spawn(move || keep(node, store, &journal, progress, stop));
            let over = &over;
            let _over = Over(over);
            let keeper = scope.spawn(move || {
                let answer = |request| folder.as_ref().ok_or_else(large::not_kept)?.answer(request);
                large::keep_with(node, unfinished, &|| over.load(Ordering::Acquire), &|| (), &answer)
            });
            ready(node, term);
            let (peers, began) = (Peers::new(&part, unfinished), Instant::now());
            let mut server =
                Server { durable, reader: disk, part: &part, losses, peers, groups, progress, began };
            let served = server.serve(stop, || writer.is_finished() || keeper.is_finished());
            drop(server);
            over.store(true, Ordering::Release);
            let kept = keeper.join().unwrap_or_else(|_| {
                Err(Error::other("the thread of large values has panicked; what was acknowledged is safe"))
            });
            let served = served.and(kept);
            match writer.join() {
                Ok(written) => served.and(written),
                Err(_) => {
                    Err(Error::other("the thread of the journal has panicked; what was acknowledged is safe"))
                }
            }
        })
    }
}

/// Ends the thread of large values, even if another thread panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The journal's thread: commits as many groups at once as are queued.
fn keep(
    node: &Node,
    mut store: Box<dyn Store>,
    groups: &Receiver<Group>,
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let part = node.attach()?;
    let pool = part.find(ADDRESS, LINGER)?;
    while let Ok(Group { mut number, mut changes }) = groups.recv() {
        while changes.len() < MOST
            && let Ok(next) = groups.try_recv()
        {
            number = next.number;
            changes.extend(next.changes);
        }
        while !changes.is_empty() {
            let Err(error) = store.commit(&changes) else {
                progress.set_stalled(None);
                break;
            };
            progress.set_stalled(Some(error.to_string()));
            wake(&part, pool);
            if stop.load(Ordering::Acquire) {
                return Err(Error::other(format!(
                    "the journal cannot be written: {error}; what was not acknowledged is lost"
                )));
            }
            thread::sleep(AGAIN);
        }
        // Pairs with the load in `turn`: a group is durable before it is reported so.
        progress.durable.store(number, Ordering::Release);
        wake(&part, pool);
    }
    Ok(())
}

fn wake(part: &Part, pool: Target) {
    // Best effort: the pool polls anyway, after a while.
    let _ = part.try_send(pool, &[]);
    part.flush();
}

/// A snapshot of a pool, whose thread waits meanwhile.
#[cfg(feature = "metrics")]
fn snapshot(durable: &Mutex<Durable>, file: Option<&std::path::Path>) -> crate::pool::seen::Seen {
    let mut seen = locked(durable).seen();
    if let Some(journal) = &mut seen.journal {
        journal.bytes = file.and_then(|file| file.metadata().ok()).map(|file| file.len());
    }
    seen
}

fn locked(durable: &Mutex<Durable>) -> MutexGuard<'_, Durable> {
    durable.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Server<'a> {
    /// Shared with monitoring.
    durable: Arc<Mutex<Durable>>,
    reader: Disk,
    part: &'a Part,
    losses: Losses,
    peers: Peers<'a>,
    groups: Sender<Group>,
    progress: &'a Progress,
    began: Instant,
}

impl Server<'_> {
    /// Serves until `stop` is set and every change is durable.
    fn serve(&mut self, stop: &AtomicBool, is_broken: impl Fn() -> bool) -> Result<(), Error> {
        let (mut wait, mut stopping) = (Duration::ZERO, None);
        loop {
            let first = self.peers.wait(wait)?;
            let written = self.turn(first, &mut wait);
            if is_broken() {
                return Ok(());
            }
            if stop.load(Ordering::Acquire) {
                let since = *stopping.get_or_insert_with(Instant::now);
                if written || since.elapsed() > LINGER {
                    return Ok(());
                }
            }
        }
    }

    /// Handles received messages and answers them. Returns whether every change is durable.
    fn turn(&mut self, first: Option<pdbp::Message>, wait: &mut Duration) -> bool {
        let (now, shared) = (self.began.elapsed(), Arc::clone(&self.durable));
        let mut durable = locked(&shared);
        durable.set_stalled(self.progress.stalled());
        // Pairs with the store in `keep`.
        durable.durable(self.progress.durable.load(Ordering::Acquire));
        // First those that are lost: the tasks that a process holds are its own again when it is back, as another node or in the same place.
        let mut lost = self.losses.take();
        lost.iter().for_each(|node| self.lose_node(&mut durable, *node));
        let (mut message, mut count) = (first, 0);
        while let Some(next) = message {
            // An empty message is the journal's wake-up; its progress was read above, or will be in the next round.
            if !next.is_empty() {
                match self.peers.receive(&next, |from| durable.pool.is_refused(from)) {
                    Received::Message(from, message) => {
                        if matches!(message, Up::Hello { .. }) {
                            lost.retain(|node| *node != from.node);
                        }
                        self.receive(&mut durable, now, from, message);
                    }
                    Received::Malformed(from) => durable.pool.malformed(from),
                    Received::TooMuch(refused, why) => {
                        refused.into_iter().for_each(|from| durable.ignore(from, &why));
                    }
                    Received::Nothing => {}
                }
            }
            count += 1;
            message = if count < AT_ONCE { self.part.try_recv() } else { None };
        }
        // Again those of which nobody is back: a report of before the loss has made processors of them.
        lost.extend(self.losses.take());
        lost.into_iter().for_each(|node| self.lose_node(&mut durable, node));
        // Discards returned messages, whose recipient has left: they would take up the room of its successor in that place.
        while let Ok(Some(_)) = self.part.try_returned() {}
        while let Some(out) = durable.poll(now) {
            match out {
                Output::Down(to, down) => self.peers.queue(to, &down),
                // Many requests may have arrived before the first of them is answered.
                Output::Read(to, reading) if self.reads_answers(&mut durable, to) => {
                    let answer = self.read(&reading);
                    self.peers.queue(to, &Down::Answer { id: reading.id, answer });
                }
                Output::Read(..) => {}
            }
        }
        while let Some(group) = durable.take_group() {
            // The receiver lives as long as this sender.
            let _ = self.groups.send(group);
        }
        for gone in self.peers.send() {
            durable.leave(gone);
        }
        let next = durable.next_time().map_or(IDLE, |next| next.saturating_sub(now).min(IDLE));
        *wait = if self.progress.durable.load(Ordering::Acquire) > durable.is_durable() {
            Duration::ZERO
        } else {
            next
        };
        durable.is_written()
    }

    fn lose_node(&mut self, durable: &mut Durable, node: u16) {
        durable.lose_node(node);
        self.peers.lose_node(node);
    }

    fn receive(&mut self, durable: &mut Durable, now: Duration, from: Processor, message: Up) {
        if !matches!(message, Up::Request { .. }) || self.reads_answers(durable, from) {
            durable.receive(now, from, message);
        }
    }

    /// Whether a client reads its answers. One that does not is refused.
    fn reads_answers(&mut self, durable: &mut Durable, client: Processor) -> bool {
        let unread = self.peers.unread(client);
        if unread > UNREAD {
            let why = format!("it sends requests but has not read {unread} bytes of answers");
            durable.pool.refuse(client, why);
            self.peers.forget(client);
        }
        !durable.pool.is_refused(client)
    }

    fn read(&self, reading: &Reading) -> Answer {
        let (mut next, mut results, mut bytes) = (reading.from, Vec::new(), 0);
        for (number, behind) in &reading.items {
            let ended = match self.reader.ended(reading.job, *number) {
                Ok(Some(ended)) => ended,
                Ok(None) => return Answer::Results { next, over: false, results },
                Err(error) => return Answer::No(format!("a result cannot be read: {error}")),
            };
            bytes += ended.result.as_ref().map_or(0, |bytes| bytes.len());
            next = *behind;
            results
                .push(ResultOf { number: *number, result: ended.result.map_err(|error| error.to_string()) });
            if bytes > ANSWER {
                return Answer::Results { next, over: false, results };
            }
        }
        Answer::Results { next, over: reading.over, results }
    }
}
