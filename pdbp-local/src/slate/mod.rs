//! Slates: memory through which the members of a group on one host hand each other short messages, without an engine.
//!
//! A ring of [`SLOTS`] slots leads from each member to each other one. A slot begins with a flag: the number of the message that it holds, and
//! its length. The writer stores the message, then the flag; the reader polls only the flag of the next slot, copies the message out and counts
//! it as taken. So a message costs the writer a copy and the reader a copy and a few cache lines.
//!
//! A [barrier](End::arrive) takes no message: each member records in a line of its own which barrier it has reached, and polls those of the
//! others. Nor does a short call: members write [notes](End::write_note), which all others read.
//!
//! ```text
//!                 barriers: one line per member   notes of 0, of 1, …   rings: from 0 to 0, 0 to 1, …
//!   │ key, asleep │ 0 │ 1 │ …                     │ done │ note 0 │ … │ taken │ slot 0: flag, message │ slot 1 │ … │
//! ```
//!
//! All of it is words that are written and read as atomics, so a peer that writes nonsense, or dies while it writes, can spoil messages but no
//! memory. The reader checks lengths. A slate lies on the heap, for threads, or in an anonymous file, for processes of one host.

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
pub use barrier::{BarrierState, Sleepers};
use notes::Notes;
pub use notes::NotesState;

/// The most messages in flight from one member to another.
pub const SLOTS: usize = 16;
/// The most members of a group with a slate: a member polls the flags of all others in turn, and each member has a bit in the word that records
/// who sleeps.
pub const MAX_MEMBERS: usize = 64;
/// The length from which a message is stored by whole cache lines, with one of two [kinds of stores](super::stores).
const LONG: usize = 4 << 10;
/// Bytes that are copied out of a slot at a time before they are combined.
const PART: usize = 4 << 10;
/// Words of a cache line.
const LINE: usize = 8;
const WORD: usize = size_of::<u64>();

/// The memory of a group.
pub struct Slate {
    memory: Memory,
    /// The first word that begins a cache line.
    first: usize,
    members: usize,
    slot_words: usize,
}

enum Memory {
    Heap(Box<[AtomicU64]>),
    Mapped(Mapping),
}

impl Slate {
    /// Makes a slate on the heap, for messages of up to `longest` bytes. Returns `None` for fewer than 1 or more than [`MAX_MEMBERS`] members,
    /// or if there is no memory for it.
    pub fn new(members: usize, longest: usize) -> Option<Arc<Self>> {
        let (slot_words, length) = lengths(members, longest)?;
        let words = zeros(length.checked_add(LINE)?)?;
        let first = words.as_ptr().align_offset(LINE * WORD).min(LINE);
        Some(Arc::new(Self { memory: Memory::Heap(words), first, members, slot_words }))
    }

    /// Makes a slate in memory that other processes of the host find by its location and recognise by a key. It can be found as long as the
    /// value lives.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::Unsupported`] on systems other than Linux; [`io::ErrorKind::InvalidInput`] for a number of members
    /// that [`new`](Self::new) refuses.
    pub fn shared(members: usize, longest: usize, key: u64) -> io::Result<(Arc<Self>, Location)> {
        let (slot_words, length) = lengths(members, longest).ok_or(io::ErrorKind::InvalidInput)?;
        let (mapping, at) = Mapping::create(length)?;
        let slate = Self { memory: Memory::Mapped(mapping), first: 0, members, slot_words };
        // A process that opens the slate has learnt of it by a message.
        slate.line(0, 1).iter().for_each(|word| word.store(key, Ordering::Release));
        Ok((Arc::new(slate), at))
    }

    /// Opens the slate that another process of this host has made, for as many members and as long messages.
    ///
    /// # Errors
    /// The system's error: the process cannot be seen from here, or is another user's. [`io::ErrorKind::InvalidData`] for memory that is not
    /// this slate.
    pub fn open(members: usize, longest: usize, key: u64, at: Location) -> io::Result<Arc<Self>> {
        let (slot_words, length) = lengths(members, longest).ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::open(at, length)?;
        let slate = Self { memory: Memory::Mapped(mapping), first: 0, members, slot_words };
        let found = slate.line(0, 1).first().map(|word| word.load(Ordering::Acquire));
        if found == Some(key) { Ok(Arc::new(slate)) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members
    }

    fn longest(&self) -> usize {
        (self.slot_words - 1) * WORD
    }

    #[inline]
    fn line(&self, at: usize, length: usize) -> &[AtomicU64] {
        // Offsets are computed from ranks below `members`.
        let words = match &self.memory {
            Memory::Heap(words) => words,
            Memory::Mapped(mapping) => mapping.words(),
        };
        words.get(self.first + at..self.first + at + length).unwrap_or(&[])
    }

    /// The members that sleep, one bit each.
    #[inline]
    fn asleep(&self) -> Option<&AtomicU64> {
        self.line(1, 1).first()
    }

    /// Whether any of these members sleeps.
    #[inline]
    fn has_sleepers(&self, members: u64) -> bool {
        self.asleep().is_some_and(|asleep| asleep.load(Ordering::Relaxed) & members != 0)
    }

    /// Returns which of these members sleep, and clears their bits. The caller must wake them; no other member does.
    #[inline]
    fn take_sleepers(&self, members: u64) -> u64 {
        match self.asleep() {
            // Rarely writes, so the line stays in all caches.
            Some(asleep) if asleep.load(Ordering::Relaxed) & members != 0 => {
                asleep.fetch_and(!members, Ordering::Relaxed) & members
            }
            _ => 0,
        }
    }

    fn ring(&self, from: usize, to: usize) -> usize {
        self.notes(self.members) + (from * self.members + to) * ring_words(self.slot_words)
    }

    /// The number of messages that the reader of a ring has taken.
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

/// Words of a slot, and of the whole slate.
fn lengths(members: usize, longest: usize) -> Option<(usize, usize)> {
    let slot_words = (1 + longest.div_ceil(WORD)).checked_next_multiple_of(LINE)?;
    let rings = members.checked_mul(members)?.checked_mul(ring_words(slot_words))?;
    let notes = members.checked_mul(notes::member_words(slot_words))?;
    let length = rings.checked_add(notes)?.checked_add(members.checked_add(1)?.checked_mul(LINE)?)?;
    (1..=MAX_MEMBERS).contains(&members).then_some((slot_words, length))
}

/// The outcome of putting a message on a slate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The message can be read.
    Done,
    /// The message can be read, and the reader sleeps. The caller must wake it; no other member does.
    Wake,
    /// All slots to that member are taken, the message is longer than a slot, or its header is not a multiple of 8 bytes.
    NoRoom,
}

/// One member's end.
pub struct End {
    slate: Arc<Slate>,
    rank: usize,
    /// For each member: messages put, how many of them it is known to have taken, and messages taken from it.
    counts: Box<[Counts]>,
    /// The member to poll next.
    turn: usize,
    barriers: Barriers,
    notes: Notes,
    /// Holds a message that is used and not only copied.
    message: Box<[u8]>,
}

#[derive(Clone, Copy)]
struct Counts {
    put: u64,
    taken_there: u64,
    taken: u64,
    /// A long message has come from that member since one was put there.
    has_answered: bool,
    store_times: StoreTimes,
}

impl Counts {
    const NEW: Self =
        Self { put: 0, taken_there: 0, taken: 0, has_answered: false, store_times: StoreTimes::NEW };
}

impl End {
    /// The end of member `rank`, of which there must be only one; `None` if there is no such rank.
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

    /// Puts a message for a member: a header, whose length must be a multiple of 8 bytes, and data.
    #[inline]
    pub fn put(&mut self, to: usize, header: &[u8], data: &[u8]) -> Put {
        let Some(counts) = self.counts.get_mut(to) else { return Put::NoRoom };
        let length = header.len() + data.len();
        if length > self.slate.longest() || !header.len().is_multiple_of(WORD) {
            return Put::NoRoom;
        }
        if counts.put.wrapping_sub(counts.taken_there) >= SLOTS as u64 {
            // Pairs with the store in `take`: the slot is not overwritten before it has been read.
            let taken = self.slate.taken(self.rank, to).map_or(0, |taken| taken.load(Ordering::Acquire));
            counts.taken_there = taken;
            // A peer that reports nonsense gets nothing more.
            if counts.put.wrapping_sub(taken) >= SLOTS as u64 {
                return Put::NoRoom;
            }
        }
        let Some((flag, body)) = self.slate.slot(self.rank, to, counts.put) else { return Put::NoRoom };
        let (head, body) = body.split_at(header.len() / WORD);
        // A few words, not worth a call.
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
        // Pairs with the fence in `announce_sleep`: either this sees that the reader sleeps, or the reader sees the flag.
        fence(Ordering::SeqCst);
        if self.slate.take_sleepers(bit(to)) == 0 { Put::Done } else { Put::Wake }
    }

    /// Takes the next message from any member, and passes it to `take` with the rank of its writer. A message with an invalid length is passed
    /// as empty. Returns whether there was a message.
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

    /// Polls up to `polls` times whether a message from one member has arrived, and does nothing else. Returns whether it has.
    #[inline]
    pub fn watch(&self, from: usize, polls: u32) -> bool {
        (0..polls).any(|_| {
            let has_message = self.has_message_from(from);
            if !has_message {
                spin_loop();
            }
            has_message
        })
    }

    /// Whether there is a message to [`take`](Self::take).
    #[inline]
    pub fn has_message(&self) -> bool {
        (0..self.slate.members).any(|from| self.has_message_from(from))
    }

    #[inline]
    fn has_message_from(&self, from: usize) -> bool {
        let Some(counts) = self.counts.get(from) else { return false };
        let slot = self.slate.slot(from, self.rank, counts.taken);
        // `take` checks again, and orders what it reads.
        slot.is_some_and(|(flag, _)| flag.load(Ordering::Relaxed) >> 32 == flag_of(counts.taken + 1, 0) >> 32)
    }

    /// Announces that this member is about to sleep. Returns whether it may: no message has arrived, a barrier at which it waits is incomplete,
    /// and so are the notes for which it waits. If so, it must [`cancel_sleep`](Self::cancel_sleep) afterwards.
    pub fn announce_sleep(&self) -> bool {
        if let Some(asleep) = self.slate.asleep() {
            asleep.fetch_or(bit(self.rank), Ordering::Relaxed);
        }
        // Pairs with the fences in `put`, `arrive` and `write_note`.
        fence(Ordering::SeqCst);
        let may_sleep = !self.has_message() && !self.may_pass() && !self.may_read();
        if !may_sleep {
            self.cancel_sleep();
        }
        may_sleep
    }

    /// Announces that this member no longer sleeps.
    pub fn cancel_sleep(&self) {
        if let Some(asleep) = self.slate.asleep() {
            asleep.fetch_and(!bit(self.rank), Ordering::Relaxed);
        }
    }
}

fn bit(rank: usize) -> u64 {
    // Ranks are below `MAX_MEMBERS`.
    1 << (rank % MAX_MEMBERS)
}

/// A message in its slot. A misbehaving writer can change it at any time: data that is read twice may differ.
pub struct Incoming<'m> {
    body: &'m [AtomicU64],
    length: usize,
    copy: &'m mut [u8],
}

impl Incoming<'_> {
    /// The length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Copies the bytes from `at`, a multiple of 8, until the message or `into` ends.
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

    /// Returns the bytes from `at`, a multiple of 8, in a private copy.
    pub fn bytes(&mut self, at: usize) -> &[u8] {
        let length = self.length.saturating_sub(at);
        if let (Some(body), Some(copy)) = (self.body.get(at / WORD..), self.copy.get_mut(..length)) {
            copy_out(body, copy);
        }
        self.copy.get(..length).unwrap_or(&[])
    }

    /// Passes the same bytes to `take` in parts, each still in the nearest cache when it is used: its offset, and its bytes.
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

/// The number of a message, from 1, and its length. Zeroed memory holds no message's number.
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
