//! The blocks of a session, either way, by their numbers.

use std::collections::VecDeque;

use pdbp_core::{SealedBlock, VacantBlock};

/// Blocks on their way to the peer.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) queue: VecDeque<SealedBlock>,
    /// The number of the first block in the queue.
    pub(crate) first: u64,
    /// The number of the first block that the peer has not taken.
    pub(crate) acknowledged: u64,
    /// The number of the block that is written next.
    pub(crate) next: u64,
    /// The number of the first block that was never wholly written.
    pub(crate) sent: u64,
    /// The number of the first block for which the peer has nothing posted.
    pub(crate) granted: u64,
}

impl Outgoing {
    /// The bytes of a block that has not come back; none without a number.
    pub(crate) fn bytes_of(&self, number: Option<u64>) -> &[u8] {
        let place = number.and_then(|number| usize::try_from(number.checked_sub(self.first)?).ok());
        place.and_then(|place| self.queue.get(place)).map_or(&[], SealedBlock::bytes)
    }

    fn end(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    /// Whether there is a block that may go.
    pub(crate) fn has_next(&self) -> bool {
        self.next < self.end().min(self.granted)
    }
}

/// Blocks on their way from the peer.
#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) posted: VecDeque<VacantBlock>,
    /// Blocks that were filled in this session.
    pub(crate) taken: u64,
    /// What the peer knows of the above: blocks filled, and blocks filled and posted.
    pub(crate) told: (u64, u64),
}

impl Incoming {
    /// What the peer is told.
    pub(crate) fn news(&self) -> (u64, u64) {
        let room = self.posted.len().min(usize::from(u16::MAX));
        (self.taken, self.taken + room as u64)
    }
}
