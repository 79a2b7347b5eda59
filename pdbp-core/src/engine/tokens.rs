//! Blocks of ours that come back from the transport by another way than they went, and the count of those that are posted.
//!
//! A transport may mix up what it has, or hand back what it got from somebody else. Whatever token it hands back is looked at itself:
//! one of ours goes where its own row of UMBInfo-Tab says, any other is dropped, and counted at its own home.

use super::Engine;
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::{Op, Transport};
use crate::umb::{BlockMemory, BlockState, VacantBlock};

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// A block is given to the transport to receive into.
    pub(super) fn note_posted(&mut self, peer: Slot, index: u32) {
        if let Some(entry) = self.umb.entry(index) {
            (entry.state, entry.row) = (BlockState::Posted, peer.raw());
        }
        if let Some(row) = self.recv_rows.get_mut(peer.index()) {
            row.posted += 1;
        }
    }

    /// A block that was posted is not with the transport any more: its own row has one less.
    pub(super) fn note_unposted(&mut self, index: u32) -> Option<Slot> {
        let entry = self.umb.entry(index).filter(|entry| entry.state == BlockState::Posted)?;
        entry.state = BlockState::Vacant;
        let row = Slot::from_index(usize::from(entry.row));
        if let Some(row) = self.recv_rows.get_mut(row.index()) {
            row.posted = row.posted.saturating_sub(1);
        }
        Some(row)
    }

    /// A block of ours was filled. One that was posted for another peer is missing there.
    pub(super) fn note_filled(&mut self, peer: Slot, index: u32) {
        self.short_of_posts |= self.note_unposted(index) != Some(peer);
    }

    /// A block was posted and will not be filled.
    pub(super) fn unpost(&mut self, block: VacantBlock) {
        match self.umb.take_back(block) {
            Ok(index) => {
                self.note_unposted(index);
                self.umb.give(index);
            }
            Err(_) => self.counters.foreign_tokens += 1,
        }
    }

    /// The transport has handed back another block than the one that it refused.
    #[cold]
    pub(super) fn handed_back(&mut self, op: Op) {
        match op {
            Op::Send { peer, block } => {
                self.counters.foreign_tokens += u64::from(self.umb.index_of(&block).is_some());
                self.sent(self.links.slot(peer), block, true);
            }
            Op::Recv { block, .. } => {
                self.counters.foreign_tokens += u64::from(self.umb.index_of(&block).is_some());
                self.unpost(block);
            }
            Op::Return { block, .. } => {
                // A peer's block has no other way back than the one that it was given by.
                self.counters.foreign_tokens += 1;
                if let Ok(index) = self.umb.take_back(block) {
                    self.note_unposted(index);
                    self.umb.give(index);
                }
            }
        }
    }
}
