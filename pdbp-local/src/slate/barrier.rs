//! Barriers: each member writes the barrier that it has reached into a line of its own, and reads the lines of the others.
//!
//! A line has two words, for the last two barriers, so a member that has passed one and reaches the next leaves intact what others have yet to
//! read: no member reaches the barrier after that before all have reached the next, and so have passed this one. Each word is the number of the
//! barrier, and a checksum of the calls by [notes](super::notes) that its member has begun before.

use super::super::sync::{AtomicU64, Ordering, fence, spin_loop};
use super::{End, LINE, MAX_MEMBERS};

const _: () = assert!(MAX_MEMBERS == u64::BITS as usize);

/// The state of a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierState {
    /// All members have reached it.
    All,
    /// This member has not, nor perhaps have others.
    Missing(usize),
    /// This member has reached one with another number: it has called something else in between.
    Another {
        /// The member's rank.
        rank: usize,
        /// The number of its barrier.
        number: u32,
    },
    /// This member has reached it with a different history of [notes](End::begin_note).
    Parted(usize),
}

/// Members that slept while this one was the last to reach a barrier. The caller must wake them; no other member does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "nobody else wakes them"]
pub struct Sleepers(pub(super) u64);

impl Iterator for Sleepers {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let rank = self.0.trailing_zeros();
        // Clears the lowest bit; does nothing to 0.
        self.0 &= self.0.wrapping_sub(1);
        (rank < u64::BITS).then_some(rank as usize)
    }
}

/// A member's state in barriers.
pub(super) struct Barriers {
    /// The numbers of the last two barriers that this member has reached, as they stand in its line: the first, third, … in one place, and the
    /// second, fourth, … in the other.
    numbers: [u32; 2],
    is_odd: bool,
    /// The number that stands in the last barrier's place in the lines of members that have not reached it.
    before: u32,
    /// All members below have reached the last barrier. Equals the number of members once it has been passed.
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
    /// Arrives at the next barrier. Its number must be the same at all members, and differ from those of the two before; a member that arrives
    /// at a barrier with another number is [detected](BarrierState::Another). Also returns whom to wake.
    ///
    /// Everything put before this is visible to all members that have passed the barrier.
    #[inline]
    pub fn arrive(&mut self, number: u32) -> (BarrierState, Sleepers) {
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
        // Pairs with the fence in `announce_sleep`, and with the other members' fences here. Of all who arrive, the one whose fence comes last sees all
        // others, and all sleepers; or a member about to sleep has its fence after that one, and sees that all have arrived.
        fence(Ordering::SeqCst);
        let met = self.met();
        let others = if met == BarrierState::All { !super::bit(self.rank) } else { 0 };
        (met, Sleepers(self.slate.take_sleepers(others)))
    }

    /// Polls the barrier that this member has reached up to `polls` times, and does nothing else.
    #[inline]
    pub fn meet(&mut self, polls: u32) -> BarrierState {
        for _ in 1..polls {
            let BarrierState::Missing(_) = self.met() else { break };
            spin_loop();
        }
        self.met()
    }

    /// The members that have not reached the barrier that this one has reached.
    pub fn missing(&self) -> impl Iterator<Item = usize> {
        let is_there =
            |rank: &usize| *rank == self.rank || self.word_of(*rank) as u32 != self.barriers.before;
        (self.barriers.first_missing..self.slate.members).filter(move |rank| !is_there(rank))
    }

    /// Whether this member waits at a barrier and need not: all have reached it, or one has reached another.
    pub(super) fn may_pass(&self) -> bool {
        self.barriers.first_missing < self.slate.members && self.missing().next().is_none()
    }

    #[inline]
    fn met(&mut self) -> BarrierState {
        let number = self.barriers.number();
        let expected = u64::from(number) | u64::from(self.notes.history()) << 32;
        while self.barriers.first_missing < self.slate.members {
            let rank = self.barriers.first_missing;
            if rank != self.rank {
                let word = self.word_of(rank);
                if word as u32 == self.barriers.before {
                    return BarrierState::Missing(rank);
                }
                if word as u32 != number {
                    return BarrierState::Another { rank, number: word as u32 };
                }
                if word != expected {
                    return BarrierState::Parted(rank);
                }
            }
            self.barriers.first_missing += 1;
        }
        // All have completed their earlier calls.
        self.notes.are_read();
        BarrierState::All
    }

    /// The word of a member for the last barrier.
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
