//! What was sent and received in all: the books of a program.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::thread;

/// A stream: the indices of writer and reader, and its number.
pub(super) type Stream = (usize, usize, u16);

type Counts = HashMap<(usize, usize, u8), u64>;

#[derive(Default)]
pub(super) struct Books {
    /// Messages and commands sent, by the indices of sender and receiver, and the superstep.
    pub(super) sent: Counts,
    pub(super) received: Counts,
    /// Messages to sets: the sender's number, and the receivers if all of them will get it.
    pub(super) sets: HashMap<(usize, u32), Option<Vec<usize>>>,
    /// What a part got of them.
    pub(super) got: HashSet<(usize, u32, usize)>,
    /// Bytes of streams that were written to their end.
    pub(super) finished: HashMap<Stream, u64>,
    /// Streams that a reader has read to the end, or has given up.
    pub(super) read: HashSet<Stream>,
}

/// What a part still has to do.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    Sends,
    Receives,
}

/// The books, and how many parts still send, or receive.
pub(super) struct Ledger {
    books: Mutex<Books>,
    busy: [AtomicUsize; 2],
    failed: AtomicBool,
}

impl Ledger {
    pub(super) fn new(parts: usize) -> Self {
        Self {
            books: Mutex::default(),
            busy: [AtomicUsize::new(parts), AtomicUsize::new(parts)],
            failed: AtomicBool::new(false),
        }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    /// A part has ended a stage.
    pub(super) fn end_one(&self, stage: Stage) {
        self.busy[stage as usize].fetch_sub(1, Relaxed);
    }

    fn busy(&self, stage: Stage) -> usize {
        self.busy[stage as usize].load(Relaxed)
    }

    pub(super) fn all_over(&self) -> bool {
        self.busy(Stage::Receives) == 0
    }

    /// Whether all has been sent and arrived at this part.
    pub(super) fn has_all(&self, at: usize) -> bool {
        if self.busy(Stage::Sends) > 0 {
            return false;
        }
        let books = self.books();
        let sum = |of: &Counts| -> u64 {
            of.iter().filter(|((_, to, _), _)| *to == at).map(|(_, count)| count).sum()
        };
        let has_sets = books.sets.iter().all(|((from, number), to)| {
            to.as_ref().is_none_or(|to| !to.contains(&at) || books.got.contains(&(*from, *number, at)))
        });
        let mine = books.finished.keys().filter(|(_, to, _)| *to == at);
        sum(&books.sent) <= sum(&books.received)
            && has_sets
            && mine.into_iter().all(|stream| books.read.contains(stream))
    }

    /// What has been sent to a part and has not arrived.
    pub(super) fn missing(&self, at: usize) -> String {
        let books = self.books();
        let short = books.sent.iter().filter(|((_, to, _), _)| *to == at);
        let messages: Vec<_> = short
            .map(|((from, _, step), sent)| {
                (*from, *sent, books.received.get(&(*from, at, *step)).copied().unwrap_or(0))
            })
            .filter(|(_, sent, received)| sent != received)
            .collect();
        let is_missing = |(from, number): &(usize, u32)| !books.got.contains(&(*from, *number, at));
        let sets = books.sets.iter().filter(|(_, to)| to.as_ref().is_some_and(|to| to.contains(&at)));
        let sets: Vec<_> = sets.map(|(set, _)| *set).filter(is_missing).collect();
        let mine = books.finished.iter().filter(|((_, to, _), _)| *to == at);
        let streams: Vec<_> = mine.filter(|(stream, _)| !books.read.contains(stream)).collect();
        format!(
            "{} send; messages (sender, sent, received) {messages:?}, sets {sets:?}, streams {streams:?}",
            self.busy(Stage::Sends)
        )
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Checks that a part has received everything of a superstep.
    pub(super) fn check_step(&self, at: usize, step: u8) {
        let books = self.books();
        let mine = books.sent.iter().filter(|((_, to, of), _)| (*to, *of) == (at, step));
        for (pair, sent) in mine.filter(|(_, sent)| **sent > 0) {
            assert_eq!(books.received.get(pair), Some(sent), "(sender, receiver, superstep): {pair:?}");
        }
    }

    /// To be called when all parts are over.
    pub(super) fn check(&self) {
        let mut books = self.books();
        books.sent.retain(|_, count| *count > 0);
        assert_eq!(books.sent, books.received);
    }
}

/// Tells the other threads when one panics.
pub(super) struct Alarm<'l>(pub(super) &'l Ledger);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Relaxed);
        }
    }
}
