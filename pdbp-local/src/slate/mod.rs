//! Slates: memory through which the members of a group that are on one host hand each other short messages, without an engine between.
//!
//! From each member to each other one leads a ring of [`SLOTS`] slots. A slot begins with a flag: the number of the message that it holds,
//! and its length. The writer puts the message in, then the flag; the reader looks at nothing but the flag of the next slot, copies the
//! message out and counts it as taken. So a message costs the writer a copy and the reader a copy and a few cache lines.
//!
//! A [barrier](End::arrive) takes no message: each member has a line that says which barrier it has come to, and looks at those of the others.
//! Nor does a short call: members write [notes](End::write_note), which all others read.
//!
//! ```text
//!                 barriers: one line per member   notes of 0, of 1, …   rings: from 0 to 0, 0 to 1, …
//!   │ key, asleep │ 0 │ 1 │ …                     │ done │ note 0 │ … │ taken │ slot 0: flag, message │ slot 1 │ … │
//! ```
//!
//! All of it is words that are written and read as atomics, so that a peer that writes nonsense, or dies while it writes, can spoil messages
//! and no memory. Lengths are checked by who reads. It lies on the heap, for threads, or in a file without a name, for processes of one
//! host.

mod barrier;
mod carry;
mod notes;

use std::io;
use std::sync::Arc;

pub use super::mapping::Location;
use super::mapping::Mapping;
use super::stores::StoreTimes;
use super::sync::{AtomicU64, Ordering, fence, spin_loop, zeros};
use super::words::{Stores, load_lines, store_lines};
use barrier::Barriers;
pub use barrier::{Met, Sleepers};
pub use notes::Noted;
use notes::Notes;

/// Messages that are under way from one member to another, at most.
pub const SLOTS: usize = 16;
/// Most members of a group with a slate: a member looks at the flags of all others in turn, and each has a bit of the word that says who
/// sleeps.
pub const MOST_MEMBERS: usize = 64;
/// From so many bytes on a message is stored by whole cache lines, by one of two [kinds of stores](super::stores).
const LONG: usize = 4 << 10;
/// Bytes that are copied out of a slot before they are combined.
const PART: usize = 4 << 10;
/// Words of a cache line.
const LINE: usize = 8;
const WORD: usize = size_of::<u64>();

/// The memory of a group.
pub struct Slate {
    memory: Memory,
    /// The first word that lies on a cache line of its own.
    first: usize,
    members: usize,
    slot_words: usize,
}

enum Memory {
    Heap(Box<[AtomicU64]>),
    Mapped(Mapping),
}

impl Slate {
    /// A slate on the heap, for messages of up to `longest` bytes; `None` for fewer than 1 or more than [`MOST_MEMBERS`] members,
    /// and without memory for it.
    pub fn new(members: usize, longest: usize) -> Option<Arc<Self>> {
        let (slot_words, length) = lengths(members, longest)?;
        let words = zeros(length.checked_add(LINE)?)?;
        let first = words.as_ptr().align_offset(LINE * WORD).min(LINE);
        Some(Arc::new(Self { memory: Memory::Heap(words), first, members, slot_words }))
    }

    /// A slate in memory that other processes of the host find by its location, and know by a key. As long as it lives it can be found.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::Unsupported`] on others than Linux; [`io::ErrorKind::InvalidInput`] for a number of members
    /// that [`new`](Self::new) has none for.
    pub fn shared(members: usize, longest: usize, key: u64) -> io::Result<(Arc<Self>, Location)> {
        let (slot_words, length) = lengths(members, longest).ok_or(io::ErrorKind::InvalidInput)?;
        let (mapping, at) = Mapping::create(length)?;
        let slate = Self { memory: Memory::Mapped(mapping), first: 0, members, slot_words };
        // Whoever opens it has heard of it by a message.
        slate.line(0, 1).iter().for_each(|word| word.store(key, Ordering::Release));
        Ok((Arc::new(slate), at))
    }

    /// The slate that a process of this host has made for as many members and as long messages.
    ///
    /// # Errors
    /// What the system says: the process cannot be seen from here, or is another user's. [`io::ErrorKind::InvalidData`] for memory that is
    /// not this slate.
    pub fn open(members: usize, longest: usize, key: u64, at: Location) -> io::Result<Arc<Self>> {
        let (slot_words, length) = lengths(members, longest).ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::open(at, length)?;
        let slate = Self { memory: Memory::Mapped(mapping), first: 0, members, slot_words };
        let found = slate.line(0, 1).first().map(|word| word.load(Ordering::Acquire));
        if found == Some(key) { Ok(Arc::new(slate)) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// How many members it is for.
    pub fn members(&self) -> usize {
        self.members
    }

    fn longest(&self) -> usize {
        (self.slot_words - 1) * WORD
    }

    #[inline]
    fn line(&self, at: usize, length: usize) -> &[AtomicU64] {
        // Places are computed from ranks below `members`.
        let words = match &self.memory {
            Memory::Heap(words) => words,
            Memory::Mapped(mapping) => mapping.words(),
        };
        words.get(self.first + at..self.first + at + length).unwrap_or(&[])
    }

    /// Who sleeps: a bit for each member.
    #[inline]
    fn asleep(&self) -> Option<&AtomicU64> {
        self.line(1, 1).first()
    }

    /// Whether any of those members sleeps.
    #[inline]
    fn has_sleepers(&self, members: u64) -> bool {
        self.asleep().is_some_and(|asleep| asleep.load(Ordering::Relaxed) & members != 0)
    }

    /// Of those members, who slept until now: whoever gets a member from this wakes it, and nobody else does.
    #[inline]
    fn take_sleepers(&self, members: u64) -> u64 {
        match self.asleep() {
            // Seldom, so that the line stays in the caches of all.
            Some(asleep) if asleep.load(Ordering::Relaxed) & members != 0 => {
                asleep.fetch_and(!members, Ordering::Relaxed) & members
            }
            _ => 0,
        }
    }

    fn ring(&self, from: usize, to: usize) -> usize {
        self.notes(self.members) + (from * self.members + to) * ring_words(self.slot_words)
    }

    /// How many messages the reader of a ring has taken.
    fn taken(&self, from: usize, to: usize) -> Option<&AtomicU64> {
        self.line(self.ring(from, to), 1).first()
    }

    #[inline]
    fn slot(&self, from: usize, to: usize, count: u64) -> Option<(&AtomicU64, &[AtomicU64])> {
        let number = (count % SLOTS as u64) as usize;
        let at = self.ring(from, to) + LINE + number * self.slot_words;
        self.line(at, self.slot_words).split_first()
    }
}

fn ring_words(slot_words: usize) -> usize {
    LINE + SLOTS * slot_words
}

/// Words of a slot, and of all.
fn lengths(members: usize, longest: usize) -> Option<(usize, usize)> {
    let slot_words = (1 + longest.div_ceil(WORD)).checked_next_multiple_of(LINE)?;
    let rings = members.checked_mul(members)?.checked_mul(ring_words(slot_words))?;
    let notes = members.checked_mul(notes::member_words(slot_words))?;
    let length = rings.checked_add(notes)?.checked_add(members.checked_add(1)?.checked_mul(LINE)?)?;
    (1..=MOST_MEMBERS).contains(&members).then_some((slot_words, length))
}

/// What has become of a message that was to be put on a slate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It can be read.
    Done,
    /// It can be read, and the reader sleeps: whoever gets this wakes it, and nobody else does.
    Wake,
    /// All slots to that member are taken, or the message is longer than a slot.
    NoRoom,
}

/// The end of one member.
pub struct End {
    slate: Arc<Slate>,
    rank: usize,
    /// For each member: messages put, how many of them it has taken as far as is known, and messages taken from it.
    counts: Box<[Counts]>,
    /// Who is looked at next.
    turn: usize,
    barriers: Barriers,
    notes: Notes,
    /// Where a message lies that is used and not only copied.
    message: Box<[u8]>,
}

#[derive(Clone, Copy)]
struct Counts {
    put: u64,
    taken_there: u64,
    taken: u64,
    /// A long message has come from it since one was put there.
    has_answered: bool,
    store_times: StoreTimes,
}

impl Counts {
    const NEW: Self =
        Self { put: 0, taken_there: 0, taken: 0, has_answered: false, store_times: StoreTimes::NEW };
}

impl End {
    /// The end of the member `rank`, of which there is one; `None` for a rank that is none.
    pub fn new(slate: &Arc<Slate>, rank: usize) -> Option<Self> {
        (rank < slate.members).then(|| Self {
            slate: Arc::clone(slate),
            rank,
            counts: vec![Counts::NEW; slate.members].into(),
            turn: 0,
            barriers: Barriers::new(slate.members),
            notes: Notes::new(),
            message: vec![0; slate.longest()].into(),
        })
    }

    /// Puts a message before a member: a header, of a multiple of 8 bytes, and data.
    #[inline]
    pub fn put(&mut self, to: usize, header: &[u8], data: &[u8]) -> Put {
        let Some(counts) = self.counts.get_mut(to) else { return Put::NoRoom };
        let length = header.len() + data.len();
        if length > self.slate.longest() || !header.len().is_multiple_of(WORD) {
            return Put::NoRoom;
        }
        if counts.put.wrapping_sub(counts.taken_there) >= SLOTS as u64 {
            // Pairs with the store in `take`: what was read there is not overwritten before.
            let taken = self.slate.taken(self.rank, to).map_or(0, |taken| taken.load(Ordering::Acquire));
            counts.taken_there = taken;
            // A peer that says nonsense gets nothing more.
            if counts.put.wrapping_sub(taken) >= SLOTS as u64 {
                return Put::NoRoom;
            }
        }
        let Some((flag, body)) = self.slate.slot(self.rank, to, counts.put) else { return Put::NoRoom };
        let (head, body) = body.split_at(header.len() / WORD);
        // A few words, which is not worth a call.
        for (word, bytes) in head.iter().zip(header.as_chunks::<WORD>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if data.len() >= LONG {
            let is_one_way = !std::mem::take(&mut counts.has_answered) && self.slate.members == 2;
            counts.store_times.store(is_one_way, data.len(), |stores| copy_lines_in(stores, body, data));
        } else if !data.is_empty() {
            copy_in(body, data);
        }
        counts.put += 1;
        // Pairs with the load in `take`.
        flag.store(flag_of(counts.put, length), Ordering::Release);
        // Pairs with the fence in `doze`: either this sees that the reader sleeps, or the reader sees the flag.
        fence(Ordering::SeqCst);
        if self.slate.take_sleepers(bit(to)) == 0 { Put::Done } else { Put::Wake }
    }

    /// Takes the next message, of any member, and hands it to `take` with the rank of who has put it there; one whose length is nonsense as
    /// one of no bytes. Returns whether there was one.
    #[inline]
    pub fn take(&mut self, take: impl FnOnce(usize, &mut Incoming<'_>)) -> bool {
        for _ in 0..self.slate.members {
            let from = self.turn;
            let count = self.counts.get(from).map_or(0, |counts| counts.taken);
            let found = self.slate.slot(from, self.rank, count).and_then(|(flag, body)| {
                // Pairs with the store in `put`.
                let flag = flag.load(Ordering::Acquire);
                (flag >> 32 == flag_of(count + 1, 0) >> 32).then_some((flag as u32 as usize, body))
            });
            let Some((length, body)) = found else {
                self.turn = if from + 1 == self.slate.members { 0 } else { from + 1 };
                continue;
            };
            let length = if length > self.message.len() { 0 } else { length };
            take(from, &mut Incoming { body, length, copy: &mut self.message });
            if let Some(counts) = self.counts.get_mut(from) {
                counts.taken += 1;
                counts.has_answered |= length >= LONG;
            }
            if let Some(taken) = self.slate.taken(from, self.rank) {
                // Pairs with the load in `put`.
                taken.store(count + 1, Ordering::Release);
            }
            return true;
        }
        false
    }

    /// Looks up to so many times whether a message of one member has come, and does nothing else. Returns whether it has.
    #[inline]
    pub fn watch(&self, from: usize, looks: u32) -> bool {
        (0..looks).any(|_| {
            let has_come = self.has_come_from(from);
            if !has_come {
                spin_loop();
            }
            has_come
        })
    }

    /// Whether there is a message to [`take`](Self::take).
    #[inline]
    pub fn has_come(&self) -> bool {
        (0..self.slate.members).any(|from| self.has_come_from(from))
    }

    #[inline]
    fn has_come_from(&self, from: usize) -> bool {
        let Some(counts) = self.counts.get(from) else { return false };
        let slot = self.slate.slot(from, self.rank, counts.taken);
        // `take` looks again, and orders what it reads.
        slot.is_some_and(|(flag, _)| flag.load(Ordering::Relaxed) >> 32 == flag_of(counts.taken + 1, 0) >> 32)
    }

    /// Says that this member is about to sleep. Returns whether it may: nothing has come, and neither all to a barrier at which it waits nor all notes for
    /// which it does. It then has to [`rouse`](Self::rouse) itself.
    pub fn doze(&self) -> bool {
        if let Some(asleep) = self.slate.asleep() {
            asleep.fetch_or(bit(self.rank), Ordering::Relaxed);
        }
        // Pairs with the fences in `put`, `arrive` and `write_note`.
        fence(Ordering::SeqCst);
        let may_sleep = !self.has_come() && !self.may_pass() && !self.may_read();
        if !may_sleep {
            self.rouse();
        }
        may_sleep
    }

    /// Says that this member does not sleep any more.
    pub fn rouse(&self) {
        if let Some(asleep) = self.slate.asleep() {
            asleep.fetch_and(!bit(self.rank), Ordering::Relaxed);
        }
    }
}

fn bit(rank: usize) -> u64 {
    // Ranks are below `MOST_MEMBERS`.
    1 << (rank % MOST_MEMBERS)
}

/// A message in its slot. Its writer can change it at any time, if it does what it should not: what is read twice may be two things.
pub struct Incoming<'m> {
    body: &'m [AtomicU64],
    length: usize,
    copy: &'m mut [u8],
}

impl Incoming<'_> {
    /// How many bytes it has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Copies what begins at a byte, a multiple of 8, as far as both go.
    #[inline]
    pub fn read(&self, at: usize, into: &mut [u8]) {
        let length = self.length.saturating_sub(at).min(into.len());
        if length == 0 {
            return;
        }
        if let (Some(body), Some(into)) = (self.body.get(at / WORD..), into.get_mut(..length)) {
            copy_out(body, into);
        }
    }

    /// What begins at a byte, a multiple of 8, in memory that nobody else sees.
    pub fn bytes(&mut self, at: usize) -> &[u8] {
        let length = self.length.saturating_sub(at);
        if let (Some(body), Some(copy)) = (self.body.get(at / WORD..), self.copy.get_mut(..length)) {
            copy_out(body, copy);
        }
        self.copy.get(..length).unwrap_or(&[])
    }

    /// The same part by part, each of which is still in the nearest cache when it is used: where it begins, and its bytes.
    pub fn parts(&mut self, at: usize, take: &mut dyn FnMut(usize, &[u8])) {
        let length = self.length.saturating_sub(at);
        for start in (0..length).step_by(PART) {
            let part = PART.min(length - start);
            if let (Some(body), Some(copy)) =
                (self.body.get((at + start) / WORD..), self.copy.get_mut(..part))
            {
                copy_out(body, copy);
                take(start, copy);
            }
        }
    }
}

/// The number of a message, from 1, and its length. Zeroed memory holds the number of none.
fn flag_of(number: u64, length: usize) -> u64 {
    (number % (1 << 32)) << 32 | length as u64
}

fn copy_lines_in(stores: Stores, into: &[AtomicU64], from: &[u8]) {
    let lines = store_lines(stores, into, from);
    if let (Some(into), Some(from)) = (into.get(..lines.start), from.get(..lines.start * WORD)) {
        copy_in(into, from);
    }
    if let (Some(into), Some(from)) = (into.get(lines.end..), from.get(lines.end * WORD..)) {
        copy_in(into, from);
    }
}

fn copy_in(into: &[AtomicU64], from: &[u8]) {
    let (chunks, rest) = from.as_chunks::<WORD>();
    for (word, bytes) in into.iter().zip(chunks) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if let (false, Some(word)) = (rest.is_empty(), into.get(chunks.len())) {
        let mut bytes = [0; WORD];
        bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

#[inline]
fn copy_out(from: &[AtomicU64], into: &mut [u8]) {
    let done = if into.len() < LINE * WORD { 0 } else { load_lines(from, into) };
    let (Some(from), Some(into)) = (from.get(done..), into.get_mut(done * WORD..)) else { return };
    let (chunks, rest) = into.as_chunks_mut::<WORD>();
    let place = chunks.len();
    for (bytes, word) in chunks.iter_mut().zip(from) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if let Some(word) = from.get(place).filter(|_| !rest.is_empty()) {
        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        rest.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    }
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "End({} of {})", self.rank, self.slate.members)
    }
}
