//! Barriers: each member writes into a line of its own to which one it has come, and reads those of the others.
//!
//! A line has two words, of the last two barriers, so that who has passed one and comes to the next leaves what others have yet to read:
//! nobody gets to the one after that before all have come to the next, and so have passed this one. Each is the number of the barrier, and what
//! [notes](super::notes) its member has counted before.

use super::super::sync::{AtomicU64, Ordering, fence, spin_loop};
use super::{End, LINE, MOST_MEMBERS};

const _: () = assert!(MOST_MEMBERS == u64::BITS as usize);

/// Who has come to a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// All.
    All,
    /// Not this member, nor perhaps others.
    Missing(usize),
    /// This member has come to one that has another number: it has called something else in between.
    Another {
        /// The member.
        rank: usize,
        /// The number.
        number: u32,
    },
    /// This member has come to it by other [notes](End::begin_note) than this one.
    Parted(usize),
}

/// Members that slept while this one came to a barrier as the last: whoever gets them wakes them, and nobody else does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "nobody else wakes them"]
pub struct Sleepers(pub(super) u64);

impl Iterator for Sleepers {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let rank = self.0.trailing_zeros();
        // Without its lowest bit; of 0 there is none.
        self.0 &= self.0.wrapping_sub(1);
        (rank < u64::BITS).then_some(rank as usize)
    }
}

/// What a member knows of barriers.
pub(super) struct Barriers {
    /// The numbers of the last two that this member has come to, as they stand in its line: the last one was the first, third, …, or the
    /// second, fourth, ….
    numbers: [u32; 2],
    is_odd: bool,
    /// The number that stands at the place of the last in lines of members that have not come to it.
    before: u32,
    /// All below have come to the last one. As many as there are members: it has been passed.
    first_missing: usize,
}

impl Barriers {
    pub(super) fn new(members: usize) -> Self {
        Self { numbers: [0; 2], is_odd: false, before: 0, first_missing: members }
    }

    fn number(&self) -> u32 {
        self.numbers[usize::from(self.is_odd)]
    }
}

impl End {
    /// Comes to the next barrier, which has the same number at all members, and another than the two before: who comes to one of another
    /// number is [told apart](Met::Another). Also says whom to wake.
    ///
    /// What was put before this is there for all that have passed the barrier.
    #[inline]
    pub fn arrive(&mut self, number: u32) -> (Met, Sleepers) {
        let barriers = &mut self.barriers;
        barriers.is_odd = !barriers.is_odd;
        let place = &mut barriers.numbers[usize::from(barriers.is_odd)];
        barriers.before = std::mem::replace(place, number);
        barriers.first_missing = 0;
        let word = u64::from(number) | u64::from(self.notes.history()) << 32;
        if let Some(own) = self.barrier(self.rank) {
            // Pairs with the load in `word_of`.
            own.store(word, Ordering::Release);
        }
        // Pairs with the fence in `doze`, and with that of the others here: of all who come the one whose fence is the last sees all others,
        // and all that sleep; or who is about to sleep has its fence after that one, and sees that all have come.
        fence(Ordering::SeqCst);
        let met = self.met();
        let others = if met == Met::All { !super::bit(self.rank) } else { 0 };
        (met, Sleepers(self.slate.take_sleepers(others)))
    }

    /// Looks up to so many times who has come to the barrier to which this member has come, and does nothing else.
    #[inline]
    pub fn meet(&mut self, looks: u32) -> Met {
        for _ in 1..looks {
            let Met::Missing(_) = self.met() else { break };
            spin_loop();
        }
        self.met()
    }

    /// The members that have not come to the barrier to which this one has come.
    pub fn missing(&self) -> impl Iterator<Item = usize> {
        let is_there =
            |rank: &usize| *rank == self.rank || self.word_of(*rank) as u32 != self.barriers.before;
        (self.barriers.first_missing..self.slate.members).filter(move |rank| !is_there(rank))
    }

    /// Whether this member waits at a barrier, and needs not: all have come, or one to another.
    pub(super) fn may_pass(&self) -> bool {
        self.barriers.first_missing < self.slate.members && self.missing().next().is_none()
    }

    #[inline]
    fn met(&mut self) -> Met {
        let number = self.barriers.number();
        let expected = u64::from(number) | u64::from(self.notes.history()) << 32;
        while self.barriers.first_missing < self.slate.members {
            let rank = self.barriers.first_missing;
            if rank != self.rank {
                let word = self.word_of(rank);
                if word as u32 == self.barriers.before {
                    return Met::Missing(rank);
                }
                if word as u32 != number {
                    return Met::Another { rank, number: word as u32 };
                }
                if word != expected {
                    return Met::Parted(rank);
                }
            }
            self.barriers.first_missing += 1;
        }
        // All have done what they did before.
        self.notes.are_read();
        Met::All
    }

    /// The word of a member that stands for the last barrier.
    #[inline]
    fn barrier(&self, rank: usize) -> Option<&AtomicU64> {
        self.slate.line((1 + rank) * LINE + usize::from(self.barriers.is_odd), 1).first()
    }

    #[inline]
    fn word_of(&self, rank: usize) -> u64 {
        // Pairs with the store in `arrive`.
        self.barrier(rank).map_or(0, |word| word.load(Ordering::Acquire))
    }
}
