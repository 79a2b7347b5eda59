//! Barriers: each member writes into a line of its own to which one it has come, and reads those of the others.
//!
//! A line has two numbers, of the last two barriers, so that who has passed one and comes to the next leaves what others have yet to read:
//! nobody gets to the one after that before all have come to the next, and so have passed this one.

use super::super::sync::{AtomicU64, Ordering, fence, spin_loop};
use super::{End, LINE, MOST_MEMBERS, Slate};

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
}

/// Members that slept while this one came to a barrier as the last: whoever gets them wakes them, and nobody else does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "nobody else wakes them"]
pub struct Sleepers(u64);

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

    fn word(&self) -> u64 {
        u64::from(self.numbers[0]) | u64::from(self.numbers[1]) << 32
    }

    /// The number in a line that stands for the last barrier.
    fn of_word(&self, word: u64) -> u32 {
        if self.is_odd { (word >> 32) as u32 } else { word as u32 }
    }
}

impl Slate {
    #[inline]
    fn barrier(&self, rank: usize) -> Option<&AtomicU64> {
        self.line((1 + rank) * LINE, 1).first()
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
        if let Some(own) = self.slate.barrier(self.rank) {
            // Pairs with the load in `met`.
            own.store(barriers.word(), Ordering::Release);
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
        let is_there = |rank: &usize| *rank == self.rank || self.number_of(*rank) != self.barriers.before;
        (self.barriers.first_missing..self.slate.members).filter(move |rank| !is_there(rank))
    }

    /// Whether this member waits at a barrier, and needs not: all have come, or one to another.
    pub(super) fn may_pass(&self) -> bool {
        self.barriers.first_missing < self.slate.members && self.missing().next().is_none()
    }

    #[inline]
    fn met(&mut self) -> Met {
        while self.barriers.first_missing < self.slate.members {
            let rank = self.barriers.first_missing;
            if rank != self.rank {
                let number = self.number_of(rank);
                if number == self.barriers.before {
                    return Met::Missing(rank);
                }
                if number != self.barriers.numbers[usize::from(self.barriers.is_odd)] {
                    return Met::Another { rank, number };
                }
            }
            self.barriers.first_missing += 1;
        }
        Met::All
    }

    #[inline]
    fn number_of(&self, rank: usize) -> u32 {
        // Pairs with the store in `arrive`.
        let word = self.slate.barrier(rank).map_or(0, |line| line.load(Ordering::Acquire));
        self.barriers.of_word(word)
    }
}
