//! Posted arrival: blocks that the transport has to receive into.
//!
//! A row has one for each of its vacant elements, which is the credit that its peer can use, and two more for control messages. So
//! what a peer sends never waits on the link for what this node's readers have. What the transport is too busy to take is set aside
//! for its link all the same: were it free, another row could grow by it, and the link would have nothing to receive into.

use super::Engine;
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::{Op, Reason, Transport};
use crate::umb::{BlockMemory, BlockState, VacantBlock};

/// Blocks that each row posts beyond its credit, for control messages.
pub(super) const SPARE_POSTS: u32 = 2;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Gives the transport blocks to receive into, as many as the row's space asks for.
    pub(super) fn post(&mut self, node: Slot) {
        self.set_posts_aside(node);
        while let Some(index) = self.dequeue(|e| e.recv_rows.get_mut(node.index()).map(|r| &mut r.unposted)) {
            if !self.post_block(node, index) {
                return;
            }
        }
    }

    /// Takes from the UMB what the row is to post and has not, or gives back what it is not to post any more.
    fn set_posts_aside(&mut self, node: Slot) {
        let due = self.posts_due(node);
        let have = |e: &Self| e.recv_rows.get(node.index()).map_or(due, |r| r.posted + r.unposted.len);
        while have(self) < due {
            // The first ones are those that were set aside while the link was down.
            let first = have(self) <= SPARE_POSTS;
            let Some(index) = (if first || self.free_for_rows() > 0 { self.umb.take() } else { None }) else {
                self.short_of_posts = true;
                break;
            };
            self.keep_unposted(node, index);
        }
        while have(self) > due
            && let Some(index) = self.dequeue(|e| e.recv_rows.get_mut(node.index()).map(|r| &mut r.unposted))
        {
            self.umb.give(index);
        }
    }

    fn keep_unposted(&mut self, node: Slot, index: u32) {
        if let Some(entry) = self.umb.entry(index) {
            entry.state = BlockState::Vacant;
            entry.row = node.raw();
        }
        self.enqueue(index, |e| e.recv_rows.get_mut(node.index()).map(|r| &mut r.unposted));
    }

    /// Blocks that a row is to have posted: one for each vacant element, and the spare ones in any case.
    fn posts_due(&self, node: Slot) -> u32 {
        let failed = self.peers.get(node.index()).is_none_or(|p| p.failed);
        let row = self.recv_rows.get(node.index()).filter(|_| !failed);
        row.map_or(0, |r| SPARE_POSTS + r.space.vacant())
    }

    /// Tries again to post what could not be posted before, for want of blocks or since the transport was busy.
    pub(super) fn post_missing(&mut self) {
        if !core::mem::take(&mut self.short_of_posts) {
            return;
        }
        for node in (0..self.recv_rows.len()).map(Slot::from_index) {
            if node != self.own && self.is_posted_link(node) {
                self.post(node);
            }
        }
    }

    /// Gives the transport a block of the row. `false`: it did not take it.
    fn post_block(&mut self, peer: Slot, index: u32) -> bool {
        let Some(block) = self.umb.lend_vacant(index) else { return false };
        self.note_posted(peer, index);
        let Err(refused) = self.transport.submit(Op::Recv { peer: self.links.node(peer), block }) else {
            return true;
        };
        let given = matches!(&refused.op, Op::Recv { block, .. } if self.umb.index_of(block) == Some(index));
        // One that hands back something else has the block, and is not to be trusted with others.
        if !given || !matches!(refused.reason, Reason::Busy) {
            self.give_up(peer);
        }
        self.short_of_posts = true;
        match refused.op {
            Op::Recv { block, .. } if given => {
                if self.umb.take_back(block).is_ok() {
                    self.note_unposted(index);
                    self.keep_unposted(peer, index);
                }
            }
            op => self.handed_back(op),
        }
        false
    }

    /// A block that was filled, and has been read, is posted anew, unless the row has shrunk.
    pub(super) fn repost(&mut self, peer: Slot, index: u32) {
        let posted = self.recv_rows.get(peer.index()).map_or(u32::MAX, |r| r.posted);
        if !self.is_posted_link(peer) || posted >= self.posts_due(peer) {
            self.umb.give(index);
        } else {
            self.post_block(peer, index);
        }
    }

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
}
