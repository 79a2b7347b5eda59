//! Notes: what a member gives in a short call it writes once, where all others read it, and nobody passes on anything.
//!
//! Each member has a ring of [`NOTES`] notes. All count the calls that are done by notes alike, and the one with number n lies in place
//! n mod [`NOTES`] of the rings of those that write in it. A note begins with a flag, which is written last: the number, and a sum over all calls by notes
//! so far; then come two words that say which call it is, and the data. So whoever reads it sees whether its writer has called the same.
//!
//! ```text
//!   │ done │ 0: flag, call, data │ 1 │ … │
//! ```
//!
//! A member says in `done` with how many such calls it is done, and writes nothing over before all have said so of the call that was there: it
//! is at most [`AHEAD`] calls ahead. A call in which all write, and a barrier, say the same of all calls before.

use pdbp_core::collective::Writers;

use super::super::sync::{AtomicU64, Ordering, fence, spin_loop};
use super::{End, LINE, Slate, Sleepers, WORD, copy_in, copy_out};

/// Words of a note that has room for 512 bytes; less in slates for shorter messages. A broadcast of 1 KiB between two takes 0.94 us so, and 0.81 by a
/// message.
const MOST_WORDS: usize = (HEAD + 512 / WORD).next_multiple_of(LINE);
/// Places of a member. Half of them would do; those of the calls before tell in which one members have called different things.
const NOTES: usize = 16;
const AHEAD: u64 = NOTES as u64 / 2;
/// Words in front of the data: one more than are used, so that long loads do not lie across cache lines.
const HEAD: usize = 4;

/// Who has written its note in the call by notes that was begun last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// All that write in it.
    All,
    /// Not this member, nor perhaps others.
    Missing(usize),
    /// This member has called something else, now or before.
    Differs(usize),
}

/// What a member knows of notes.
pub(super) struct Notes {
    /// Calls begun, and a sum over them.
    number: u64,
    sum: u32,
    /// The last ones.
    calls: [[u64; 2]; NOTES],
    /// All have done with so many, as far as is known.
    done: u64,
    writers: Writers,
    /// In the last call all of these that write have written; none from the second on does.
    first_missing: usize,
    end: usize,
    /// This member has begun it, and has not ended it.
    is_under_way: bool,
}

impl Notes {
    pub(super) fn new() -> Self {
        let (number, sum, calls, done) = (0, 0, [[0; 2]; NOTES], 0);
        Self {
            number,
            sum,
            calls,
            done,
            writers: Writers::All,
            first_missing: 0,
            end: 0,
            is_under_way: false,
        }
    }

    /// The same at all members that have made the same calls by notes.
    pub(super) fn history(&self) -> u32 {
        self.sum
    }

    /// All have done with all calls.
    pub(super) fn are_read(&mut self) {
        self.done = self.number;
    }

    fn flag(&self) -> u64 {
        number_of(self.number) << 32 | u64::from(self.sum)
    }
}

/// As a flag has it.
fn number_of(number: u64) -> u64 {
    number % (1 << 32)
}

fn place(number: u64) -> usize {
    (number % NOTES as u64) as usize
}

/// The words of all notes of a member, with its `done`, in a slate whose slots have so many.
pub(super) fn member_words(slot_words: usize) -> usize {
    LINE + NOTES * slot_words.min(MOST_WORDS)
}

impl Slate {
    /// Where those of a member begin; of one beyond the last, where all end.
    pub(super) fn notes(&self, rank: usize) -> usize {
        (1 + self.members) * LINE + rank * member_words(self.slot_words)
    }

    /// With how many calls a member is done.
    fn done(&self, rank: usize) -> Option<&AtomicU64> {
        self.line(self.notes(rank), 1).first()
    }

    /// How often it has said that it goes on.
    fn steps(&self, rank: usize) -> Option<&AtomicU64> {
        self.line(self.notes(rank), 2).get(1)
    }

    /// A note: its flag, the words that say which call it is, and its data.
    #[inline]
    fn note(&self, rank: usize, number: u64) -> Option<(&AtomicU64, [&AtomicU64; 2], &[AtomicU64])> {
        let words = self.slot_words.min(MOST_WORDS);
        let note = self.line(self.notes(rank) + LINE + place(number) * words, words);
        let ([flag, call @ .., _], body) = note.split_first_chunk::<HEAD>()?;
        Some((flag, call.each_ref(), body))
    }
}

impl End {
    /// The most data of a note.
    pub fn longest_note(&self) -> usize {
        (self.slate.slot_words.min(MOST_WORDS) - HEAD) * WORD
    }

    /// Whether this member may write in another call. If not a member has to read first what this one has written: this one.
    #[inline]
    pub fn unread_by(&mut self) -> Option<usize> {
        if self.notes.number - self.notes.done < AHEAD { None } else { self.last_to_read() }
    }

    fn last_to_read(&mut self) -> Option<usize> {
        let number = self.notes.number;
        let done = |rank| {
            // Pairs with the store in `end_note`: what was read there is not overwritten before. Others may be further than this one.
            let done = self.slate.done(rank).map_or(0, |done| done.load(Ordering::Acquire));
            (done.min(number), rank)
        };
        let (done, rank) = (0..self.slate.members).filter(|rank| *rank != self.rank).map(done).min()?;
        self.notes.done = self.notes.done.max(done);
        (number - self.notes.done >= AHEAD).then_some(rank)
    }

    /// Begins the next call by notes. All begin the same ones, which `call` describes, in the same order, and do not write before they
    /// [may](Self::unread_by).
    #[inline]
    pub fn begin_note(&mut self, call: [u64; 2], writers: Writers) {
        let notes = &mut self.notes;
        notes.number += 1;
        notes.sum = sum(notes.sum, call);
        if let Some(last) = notes.calls.get_mut(place(notes.number)) {
            *last = call;
        }
        (notes.writers, notes.is_under_way) = (writers, true);
        (notes.first_missing, notes.end) = match writers {
            Writers::One(rank) => (rank, rank + 1),
            Writers::AllBut(_) | Writers::All => (0, self.slate.members),
        };
    }

    /// Writes what this member gives, which is longer than a note at nobody. Also says whom to wake.
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
        // Pairs with the fence in `doze`, and with that of the others here, as in `arrive`: of all who write the one whose fence is the last sees all
        // other notes, and all that sleep; or who is about to sleep has its fence after that one, and sees all notes.
        fence(Ordering::SeqCst);
        let others = !super::bit(self.rank);
        let is_last = self.slate.has_sleepers(others) && self.noted() == Noted::All;
        Sleepers(if is_last { self.slate.take_sleepers(others) } else { 0 })
    }

    /// Looks up to so many times whether all that write have written, and does nothing else.
    #[inline]
    pub fn look_for_notes(&mut self, looks: u32) -> Noted {
        for _ in 1..looks {
            let Noted::Missing(_) = self.noted() else { break };
            spin_loop();
        }
        self.noted()
    }

    /// How many of those that write in the last call have not been found to have written.
    pub fn notes_to_come(&self) -> usize {
        self.notes.end - self.notes.first_missing
    }

    /// Those that have not written in the last call.
    pub fn without_note(&self) -> impl Iterator<Item = usize> {
        let others = (self.notes.first_missing..self.notes.end).filter(|rank| *rank != self.rank);
        let writers = others.filter(|rank| self.notes.writers.contains(*rank));
        writers.filter(|rank| {
            self.slate.note(*rank, self.notes.number).is_none_or(|(flag, ..)| {
                // Whoever reads the note orders that.
                flag.load(Ordering::Relaxed) >> 32 != number_of(self.notes.number)
            })
        })
    }

    /// Whether this member waits for notes, and needs not.
    pub(super) fn may_read(&self) -> bool {
        self.notes.is_under_way && self.without_note().next().is_none()
    }

    #[inline]
    fn noted(&mut self) -> Noted {
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
                    return Noted::Missing(rank);
                }
                let call = words.map(|word| word.load(Ordering::Relaxed));
                if flag != notes.flag() || notes.calls.get(place(notes.number)) != Some(&call) {
                    return Noted::Differs(rank);
                }
            }
            notes.first_missing += 1;
        }
        Noted::All
    }

    /// Copies what begins at a byte of the note of a member, as far as it goes. All [have written](Noted::All).
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

    /// This member is done with the call: it has read all that it reads.
    #[inline]
    pub fn end_note(&mut self) {
        let notes = &mut self.notes;
        notes.is_under_way = false;
        if notes.writers == Writers::All {
            // All have come to this call, so they have done with those before.
            notes.done = notes.number - 1;
        }
        if let Some(done) = self.slate.done(self.rank) {
            // Pairs with the load in `last_to_read`.
            done.store(notes.number, Ordering::Release);
        }
    }

    /// Whether the note that a member has written in the last call by notes still stands: it has not [taken it back](Self::take_back). What was read
    /// before in its memory was as it is then.
    pub fn stands(&self, rank: usize) -> bool {
        // Pairs with the fence in `take_back`: if the note stands, what was read before was not written after that.
        fence(Ordering::SeqCst);
        let note = self.slate.note(rank, self.notes.number);
        note.is_some_and(|(flag, ..)| flag.load(Ordering::Acquire) == self.notes.flag())
    }

    /// Takes back all notes: what they say where something is does not hold any more. For who gives up a call.
    pub fn take_back(&self) {
        for number in 0..NOTES as u64 {
            if let Some((flag, ..)) = self.slate.note(self.rank, number) {
                flag.store(0, Ordering::Release);
            }
        }
        // Pairs with the fence in `stands`.
        fence(Ordering::SeqCst);
    }

    /// Says that this member goes on in a call, to those who wait for its next note.
    pub fn go_on(&self) {
        if let Some(steps) = self.slate.steps(self.rank) {
            // Nothing else is told by it.
            steps.store(steps.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// A number that changes when a member [goes on](Self::go_on).
    pub fn steps(&self) -> u64 {
        let steps = (0..self.slate.members).filter_map(|rank| self.slate.steps(rank));
        steps.fold(0, |sum, steps| sum.wrapping_add(steps.load(Ordering::Relaxed)))
    }

    /// The first one among the last calls by notes in which a member has called something else than this one, which has begun its call
    /// `number`: the member, and what it has called. Members may be further than this one.
    pub fn differing(&self, number: u32) -> Option<(usize, [u64; 2])> {
        let own = self.notes.number;
        let numbers = own.saturating_sub(AHEAD - 1).max(1)..=own + AHEAD;
        let others = (0..self.slate.members).filter(|rank| *rank != self.rank);
        numbers.flat_map(|at| others.clone().map(move |rank| (at, rank))).find_map(|(at, rank)| {
            let (flag, words, _) = self.slate.note(rank, at)?;
            // Pairs with the store in `write_note`. It is not overwritten before this member is done with later calls than its own last one.
            if flag.load(Ordering::Acquire) >> 32 != number_of(at) {
                return None;
            }
            let call = words.map(|word| word.load(Ordering::Relaxed));
            let differs = if at > own {
                // It makes by notes what this one has made, or makes, by other means; but for a later note of the call that both make.
                self.notes.calls.get(place(own)) != Some(&call)
                    && number.wrapping_sub(call[0] as u32) as i32 >= 0
            } else {
                self.notes.calls.get(place(at)) != Some(&call)
            };
            differs.then_some((rank, call))
        })
    }
}

/// A sum over calls so far, and the next one.
fn sum(before: u32, call: [u64; 2]) -> u32 {
    const ODD: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93];
    let both = (u64::from(before) ^ call[0]).wrapping_mul(ODD[0]) ^ call[1];
    (both.wrapping_mul(ODD[1]) >> 32) as u32
}

const _: () = assert!(HEAD < LINE, "a slot of one line has room for a note");
