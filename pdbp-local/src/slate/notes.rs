//! Notes: each member writes its contribution to a short call once, where all others read it, and nothing is passed on.
//!
//! Each member has a ring of [`NOTES`] notes. All members count the calls done by notes alike, and note number n lies in place n mod [`NOTES`]
//! of the rings of the call's writers. A note begins with a flag, which is written last: the number, and a checksum of all calls by notes so
//! far; then come two words that describe the call, and the data. So a reader sees whether the writer has called the same.
//!
//! ```text
//!   │ done │ 0: flag, call, data │ 1 │ … │
//! ```
//!
//! A member records in `done` how many such calls it has finished, and overwrites a note only once all have finished the call that it belonged
//! to: a member is at most [`HISTORY`] calls ahead. A call in which all write, and a barrier, imply the same for all calls before.

use pdbp_core::collective::Writers;

use super::super::sync::{AtomicU64, Ordering, fence, spin_loop};
use super::{End, LINE, Slate, Sleepers, WORD, copy_in, copy_out};

/// Words of a note, with room for 512 bytes; fewer in slates for shorter messages. A broadcast of 1 KiB between two members takes 0.94 us in
/// this way, and 0.81 by a message.
const MAX_WORDS: usize = (HEAD + 512 / WORD).next_multiple_of(LINE);
/// Notes per member. Half of them would do; those of earlier calls tell in which call members differed.
const NOTES: usize = 16;
const HISTORY: u64 = NOTES as u64 / 2;
/// Words in front of the data: one more than is used, so that long loads do not straddle cache lines.
const HEAD: usize = 4;

/// Who has written its note in the last call by notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotesState {
    /// All of the call's writers.
    All,
    /// This member has not, nor perhaps have others.
    Missing(usize),
    /// This member has called something else, now or before.
    Differs(usize),
}

/// A member's state in notes.
pub(super) struct Notes {
    /// The number of calls begun, and a checksum of them.
    number: u64,
    sum: u32,
    /// The last calls.
    calls: [[u64; 2]; NOTES],
    /// The number of calls that all members are known to have finished.
    done: u64,
    writers: Writers,
    /// In the last call, all writers below `first_missing` have written; there are none from `end` on.
    first_missing: usize,
    end: usize,
    /// This member has begun the last call, and waits for its notes, or has yet to read them.
    is_open: bool,
}

impl Notes {
    pub(super) fn new() -> Self {
        let (number, sum, calls, done) = (0, 0, [[0; 2]; NOTES], 0);
        Self { number, sum, calls, done, writers: Writers::All, first_missing: 0, end: 0, is_open: false }
    }

    /// A checksum that is the same at all members that have made the same calls by notes.
    pub(super) fn history(&self) -> u32 {
        self.sum
    }

    /// All members have finished all calls.
    pub(super) fn are_read(&mut self) {
        self.done = self.number;
    }

    fn flag(&self) -> u64 {
        number_of(self.number) << 32 | u64::from(self.sum)
    }
}

/// The number as stored in a flag.
fn number_of(number: u64) -> u64 {
    number % (1 << 32)
}

fn place(number: u64) -> usize {
    (number % NOTES as u64) as usize
}

/// The words of all notes of a member, with its `done`, in a slate with slots of `slot_words`.
pub(super) fn member_words(slot_words: usize) -> usize {
    LINE + NOTES * slot_words.min(MAX_WORDS)
}

impl Slate {
    /// Where the notes of a member begin; for the rank past the last, where all notes end.
    pub(super) fn notes(&self, rank: usize) -> usize {
        (1 + self.members) * LINE + rank * member_words(self.slot_words)
    }

    /// The number of calls that a member has finished.
    fn done(&self, rank: usize) -> Option<&AtomicU64> {
        self.line(self.notes(rank), 1).first()
    }

    /// How often it has [progressed](End::mark_progress).
    fn steps(&self, rank: usize) -> Option<&AtomicU64> {
        self.line(self.notes(rank), 2).get(1)
    }

    /// A note: its flag, the words that describe the call, and its data.
    #[inline]
    fn note(&self, rank: usize, number: u64) -> Option<(&AtomicU64, [&AtomicU64; 2], &[AtomicU64])> {
        let words = self.slot_words.min(MAX_WORDS);
        let note = self.line(self.notes(rank) + LINE + place(number) * words, words);
        let ([flag, call @ .., _], body) = note.split_first_chunk::<HEAD>()?;
        Some((flag, call.each_ref(), body))
    }
}

impl End {
    /// The most bytes of data in a note.
    pub fn longest_note(&self) -> usize {
        (self.slate.slot_words.min(MAX_WORDS) - HEAD) * WORD
    }

    /// The member that must first read what this one has written, if any; `None` if this member may write in another call.
    #[inline]
    pub fn unread_by(&mut self) -> Option<usize> {
        if self.notes.number - self.notes.done < HISTORY { None } else { self.last_to_read() }
    }

    fn last_to_read(&mut self) -> Option<usize> {
        let number = self.notes.number;
        let done = |rank| {
            // Pairs with the store in `end_note`: a note is not overwritten before it has been read. Others may be ahead of this member.
            let done = self.slate.done(rank).map_or(0, |done| done.load(Ordering::Acquire));
            (done.min(number), rank)
        };
        let (done, rank) = (0..self.slate.members).filter(|rank| *rank != self.rank).map(done).min()?;
        self.notes.done = self.notes.done.max(done);
        (number - self.notes.done >= HISTORY).then_some(rank)
    }

    /// Begins the next call by notes. All members begin the same calls, described by `call`, in the same order, and do not write before they
    /// [may](Self::unread_by).
    #[inline]
    pub fn begin_note(&mut self, call: [u64; 2], writers: Writers) {
        let notes = &mut self.notes;
        notes.number += 1;
        notes.sum = sum(notes.sum, call);
        if let Some(last) = notes.calls.get_mut(place(notes.number)) {
            *last = call;
        }
        (notes.writers, notes.is_open) = (writers, true);
        (notes.first_missing, notes.end) = match writers {
            Writers::One(rank) => (rank, rank + 1),
            Writers::AllBut(_) | Writers::All => (0, self.slate.members),
        };
    }

    /// Writes this member's contribution, which must fit into a note at all members. Also returns whom to wake.
    #[inline]
    pub fn write_note(&mut self, data: &[u8]) -> Sleepers {
        let notes = &self.notes;
        if let Some((flag, words, body)) = self.slate.note(self.rank, notes.number) {
            let call = notes.calls.get(place(notes.number)).copied().unwrap_or_default();
            for (word, value) in words.into_iter().zip(call) {
                word.store(value, Ordering::Relaxed);
            }
            copy_in(body, data);
            // Pairs with the loads in `noted` and `differing`.
            flag.store(notes.flag(), Ordering::Release);
        }
        // Pairs with the fence in `announce_sleep`, and with the other members' fences here, as in `arrive`. Of all who write, the one whose fence comes
        // last sees all other notes, and all sleepers; or a member about to sleep has its fence after that one, and sees all notes.
        fence(Ordering::SeqCst);
        let others = !super::bit(self.rank);
        let is_last = self.slate.has_sleepers(others) && self.noted() == NotesState::All;
        Sleepers(if is_last { self.slate.take_sleepers(others) } else { 0 })
    }

    /// Polls up to `polls` times whether all writers have written, and does nothing else.
    #[inline]
    pub fn poll_notes(&mut self, polls: u32) -> NotesState {
        for _ in 1..polls {
            let NotesState::Missing(_) = self.noted() else { break };
            spin_loop();
        }
        self.noted()
    }

    /// The number of members, among those still to be checked in the last call, that have not been found to have written.
    pub fn missing_notes(&self) -> usize {
        self.notes.end - self.notes.first_missing
    }

    /// The writers that have not written in the last call.
    pub fn missing_writers(&self) -> impl Iterator<Item = usize> {
        let others = (self.notes.first_missing..self.notes.end).filter(|rank| *rank != self.rank);
        let writers = others.filter(|rank| self.notes.writers.contains(*rank));
        writers.filter(|rank| {
            self.slate.note(*rank, self.notes.number).is_none_or(|(flag, ..)| {
                // Reading the note orders this.
                flag.load(Ordering::Relaxed) >> 32 != number_of(self.notes.number)
            })
        })
    }

    /// The last call's notes no longer keep this member [awake](Self::announce_sleep): they are all there, and it waits for something else.
    pub fn stop_awaiting_notes(&mut self) {
        self.notes.is_open = false;
    }

    /// Whether this member waits for notes and need not.
    pub(super) fn may_read(&self) -> bool {
        self.notes.is_open && self.missing_writers().next().is_none()
    }

    #[inline]
    fn noted(&mut self) -> NotesState {
        let Self { slate, rank: own, notes, .. } = self;
        while notes.first_missing < notes.end {
            let rank = notes.first_missing;
            if rank != *own
                && notes.writers.contains(rank)
                && let Some((flag, words, _)) = slate.note(rank, notes.number)
            {
                // Pairs with the store in `write_note`.
                let flag = flag.load(Ordering::Acquire);
                if flag >> 32 != number_of(notes.number) {
                    return NotesState::Missing(rank);
                }
                let call = words.map(|word| word.load(Ordering::Relaxed));
                if flag != notes.flag() || notes.calls.get(place(notes.number)) != Some(&call) {
                    return NotesState::Differs(rank);
                }
            }
            notes.first_missing += 1;
        }
        NotesState::All
    }

    /// Copies the bytes of a member's note from `at` on, until the note or `into` ends. All [must have written](NotesState::All).
    #[inline]
    pub fn read_note(&self, rank: usize, at: usize, into: &mut [u8]) {
        let Some((.., body)) = self.slate.note(rank, self.notes.number) else { return };
        let (Some(mut body), skip) = (body.get(at / WORD..), at % WORD) else { return };
        let mut into = into;
        if let (true, Some((first, rest))) = (skip > 0, body.split_first()) {
            let bytes = first.load(Ordering::Relaxed).to_ne_bytes();
            let (head, tail) = into.split_at_mut(into.len().min(WORD - skip));
            head.iter_mut().zip(bytes.iter().skip(skip)).for_each(|(to, from)| *to = *from);
            (body, into) = (rest, tail);
        }
        if !into.is_empty() {
            copy_out(body, into);
        }
    }

    /// Ends the call for this member: it has read all that it needs.
    #[inline]
    pub fn end_note(&mut self) {
        let notes = &mut self.notes;
        notes.is_open = false;
        if notes.writers == Writers::All {
            // All have begun this call, so they have finished those before.
            notes.done = notes.number - 1;
        }
        if let Some(done) = self.slate.done(self.rank) {
            // Pairs with the load in `last_to_read`.
            done.store(notes.number, Ordering::Release);
        }
    }

    /// Whether the note that a member wrote in the last call by notes is still valid, and was not [revoked](Self::revoke_notes). If so, what was
    /// read before from the member's memory was valid at the time.
    pub fn is_valid(&self, rank: usize) -> bool {
        // Pairs with the fence in `revoke_notes`: if the note still stands, what was read before had not been overwritten since.
        fence(Ordering::SeqCst);
        let note = self.slate.note(rank, self.notes.number);
        note.is_some_and(|(flag, ..)| flag.load(Ordering::Acquire) == self.notes.flag())
    }

    /// Takes back all notes: addresses in them are no longer valid. For a member that gives up a call.
    pub fn revoke_notes(&self) {
        for number in 0..NOTES as u64 {
            if let Some((flag, ..)) = self.slate.note(self.rank, number) {
                flag.store(0, Ordering::Release);
            }
        }
        // Pairs with the fence in `is_valid`.
        fence(Ordering::SeqCst);
    }

    /// Tells the members that wait for this one's next note that it makes progress in a call.
    pub fn mark_progress(&self) {
        if let Some(steps) = self.slate.steps(self.rank) {
            // Publishes nothing else.
            steps.store(steps.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// A number that changes when any member [progresses](Self::mark_progress).
    pub fn steps(&self) -> u64 {
        let steps = (0..self.slate.members).filter_map(|rank| self.slate.steps(rank));
        steps.fold(0, |sum, steps| sum.wrapping_add(steps.load(Ordering::Relaxed)))
    }

    /// The first of the last calls by notes in which a member has called something other than this one, which has begun its call `number`: the
    /// member, and its call. Members may be ahead of this one.
    pub fn differing(&self, number: u32) -> Option<(usize, [u64; 2])> {
        let own = self.notes.number;
        let numbers = own.saturating_sub(HISTORY - 1).max(1)..=own + HISTORY;
        let others = (0..self.slate.members).filter(|rank| *rank != self.rank);
        numbers.flat_map(|at| others.clone().map(move |rank| (at, rank))).find_map(|(at, rank)| {
            let (flag, words, _) = self.slate.note(rank, at)?;
            // Pairs with the store in `write_note`. The note is not overwritten before this member has finished calls later than its own last
            // one.
            if flag.load(Ordering::Acquire) >> 32 != number_of(at) {
                return None;
            }
            let call = words.map(|word| word.load(Ordering::Relaxed));
            let differs = if at > own {
                // The member makes by notes a call that this one has made, or makes, by other means; unless it is a later note of the call that
                // both make.
                self.notes.calls.get(place(own)) != Some(&call)
                    && number.wrapping_sub(call[0] as u32) as i32 >= 0
            } else {
                self.notes.calls.get(place(at)) != Some(&call)
            };
            differs.then_some((rank, call))
        })
    }
}

/// A checksum of the calls so far and the next one.
fn sum(before: u32, call: [u64; 2]) -> u32 {
    const ODD: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93];
    let both = (u64::from(before) ^ call[0]).wrapping_mul(ODD[0]) ^ call[1];
    (both.wrapping_mul(ODD[1]) >> 32) as u32
}

const _: () = assert!(HEAD < LINE, "a slot of one line has room for a note");
