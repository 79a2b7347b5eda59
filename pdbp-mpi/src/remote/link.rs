//! The state of one link, from its first block until both ends have closed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pdbp_core::VacantBlock;
use pdbp_core::id::NodeId;

use crate::error::MpiError;

/// How long the end of a link waits for sends that the peer may still take.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// How long it waits for receives that MPI does not give back.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A block posted for receiving.
pub(super) struct Posted {
    pub(super) block: VacantBlock,
    /// Set when the block is filled, or will never be.
    pub(super) outcome: Option<Option<usize>>,
}

#[derive(Debug)]
pub(super) enum State {
    Up,
    /// The peer has said goodbye after this many blocks.
    Leaving(u64),
    /// Requests are being brought to completion.
    Ending(Instant, Option<MpiError>),
    Down,
}

/// The link to and from one node of another host.
pub(super) struct Link {
    pub(super) peer: NodeId,
    pub(super) state: State,
    pub(super) sent: u64,
    pub(super) sends: usize,
    pub(super) received: u64,
    /// Receives in the order of posting; the number of the first is `received`.
    pub(super) posted: VecDeque<Posted>,
    /// Whether the user of the link takes the blocks that arrive.
    pub(super) is_wanted: bool,
    pub(super) sent_goodbye: bool,
    /// The number of blocks that the peer's goodbye counts.
    pub(super) expected: Option<u64>,
    /// While this node leaves: a receive is posted for a block that will not be read.
    pub(super) has_scrap: bool,
}

impl Link {
    pub(super) fn new(peer: NodeId, exists: bool) -> Self {
        Self {
            peer,
            state: if exists { State::Up } else { State::Down },
            sent: 0,
            sends: 0,
            received: 0,
            posted: VecDeque::new(),
            is_wanted: true,
            sent_goodbye: false,
            expected: None,
            has_scrap: false,
        }
    }

    /// Whether neither end needs anything more from the other.
    pub(super) fn is_drained(&self) -> bool {
        match &self.state {
            State::Down => true,
            State::Ending(since, _) => self.sends == 0 || since.elapsed() > GRACE,
            State::Up | State::Leaving(_) => {
                self.sends == 0 && self.expected.is_some_and(|expected| self.received >= expected)
            }
        }
    }
}
