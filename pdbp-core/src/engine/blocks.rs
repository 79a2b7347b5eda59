//! The engine as the source of blocks for an outbox, and its own outbox for messages that it forwards.

use super::{Engine, OpenError};
use crate::id::{NodeId, Time};
use crate::outbox::{Blocks, Due, Hop};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::{BlockMemory, OpenBlock};

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Blocks for Engine<'_, T, M, P> {
    #[inline]
    fn open(&mut self, dest: NodeId) -> Result<OpenBlock, OpenError> {
        Self::open(self, dest)
    }

    #[inline]
    fn open_into(&mut self, dest: NodeId, place: &mut Option<OpenBlock>) -> Result<(), OpenError> {
        self.open_with(dest, |block| *place = Some(block))
    }

    #[inline]
    fn submit(&mut self, block: OpenBlock) {
        Self::submit(self, block);
    }

    #[inline]
    fn backlog(&self, dest: NodeId) -> u32 {
        Self::backlog(self, dest)
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Returns the lane for messages to a node, in an outbox that has one lane per link and one for the node itself
    /// ([`Config::rows`](super::Config::rows)).
    ///
    /// # Errors
    /// [`OpenError::NoSuchNode`]; [`OpenError::PeerFailed`] if the node is behind a relay and not a member.
    #[inline]
    pub fn hop(&self, dest: NodeId) -> Result<Hop, OpenError> {
        if self.is_direct() {
            return Ok(Hop::to_node(dest));
        }
        let (id, via) = self.first_hop(dest)?;
        Ok(Hop::by_link(id.index(), dest, via))
    }

    /// Whether no messages are relayed. All messages on a link are then for one node, and use [its lane](Hop::to_node).
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        !self.links.topology.is_grid()
    }

    /// Submits the blocks of forwarded messages that are due.
    pub(super) fn flush_relayed(&mut self, due: Due) -> u32 {
        let (mut flushed, mut at) = (0, 0);
        loop {
            let Self { relayed, links, .. } = self;
            let Some(block) = relayed.next_due(&mut at, due, |dest| links.backlog(dest)) else {
                return flushed;
            };
            self.submit(block);
            flushed += 1;
        }
    }

    /// When the first block of forwarded messages is due.
    pub(super) fn relayed_deadline(&self) -> Option<Time> {
        self.relayed.deadline(|dest| self.backlog(dest))
    }
}
