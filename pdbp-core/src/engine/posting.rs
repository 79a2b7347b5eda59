//! Posted arrival: blocks that the transport has to receive into.
//!
//! A row has one for each of its vacant elements, which is the credit that its peer can use, and two more for control messages. So
//! what a peer sends never waits on the link for what this node's readers have. What the transport is too busy to take is set aside
//! for its link all the same: were it free, another row could grow by it, and the link would have nothing to receive into.

use super::Engine;
use super::link::Link;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::{Op, Reason, Transport};
use crate::umb::{BlockMemory, BlockState, Umb, VacantBlock};

/// Blocks that each row posts beyond its credit, for control messages.
pub(super) const SPARE_POSTS: u32 = 2;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Gives the transport blocks to receive into, as many as the row's space asks for.
    pub(super) fn post(&mut self, id: LinkId) {
        self.set_posts_aside(id);
        while let Some(link) = self.links.get_mut(id)
            && let Some(index) = link.recv.unposted.pop_front(&mut self.umb)
        {
            if !self.post_block(id, index) {
                return;
            }
        }
    }

    /// Takes from the UMB what the row is to post and has not, or gives back what it is not to post any more.
    fn set_posts_aside(&mut self, id: LinkId) {
        let Self { links, umb, space, .. } = self;
        let Some(link) = links.get_mut(id) else { return };
        let due = link.posts_due();
        while link.recv.to_post() < due {
            // The first ones are those that were reserved while the link was down.
            let first = link.recv.to_post() <= SPARE_POSTS;
            let Some(index) = (if first || space.free_blocks(umb) > 0 { umb.take() } else { None }) else {
                self.short_of_posts = true;
                break;
            };
            link.keep_unposted(umb, index);
        }
        while link.recv.to_post() > due
            && let Some(index) = link.recv.unposted.pop_front(umb)
        {
            umb.give(index);
        }
    }

    /// Tries again to post what could not be posted before, for want of blocks or since the transport was busy.
    pub(super) fn post_missing(&mut self) {
        if !core::mem::take(&mut self.short_of_posts) {
            return;
        }
        for id in self.links.ids() {
            if id != self.links.own && self.links.get(id).is_some_and(|link| link.posted) {
                self.post(id);
            }
        }
    }

    /// Gives the transport a block of the row. `false`: it did not take it.
    fn post_block(&mut self, id: LinkId, index: u32) -> bool {
        let Self { links, umb, transport, .. } = self;
        let Some(link) = links.get_mut(id) else { return false };
        let Some(block) = umb.lend_vacant(index) else { return false };
        link.note_posted(umb, index);
        let Err(refused) = transport.submit(Op::Recv { peer: link.peer, block }) else { return true };
        let given = matches!(&refused.op, Op::Recv { block, .. } if umb.index_of(block) == Some(index));
        // One that hands back something else has the block, and is not to be trusted with others.
        if !given || !matches!(refused.reason, Reason::Busy) {
            self.give_up(id);
        }
        self.short_of_posts = true;
        match refused.op {
            Op::Recv { block, .. } if given => {
                if self.umb.take_back(block).is_ok() {
                    self.note_unposted(index);
                    if let Some(link) = self.links.get_mut(id) {
                        link.keep_unposted(&mut self.umb, index);
                    }
                }
            }
            op => self.handed_back(op),
        }
        false
    }

    /// A block that was filled, and has been read, is posted anew, unless the row has shrunk.
    pub(super) fn repost(&mut self, id: LinkId, index: u32) {
        let due = |link: &Link| link.posted && link.recv.posted < link.posts_due();
        if self.links.get(id).is_some_and(due) {
            self.post_block(id, index);
        } else {
            self.umb.give(index);
        }
    }

    /// A block that was posted is not with the transport any more: its own row has one less.
    pub(super) fn note_unposted(&mut self, index: u32) -> Option<LinkId> {
        let entry = self.umb.entry(index).filter(|entry| entry.state == BlockState::Posted)?;
        entry.state = BlockState::Vacant;
        let id = LinkId::from_index(usize::from(entry.row));
        if let Some(link) = self.links.get_mut(id) {
            link.recv.posted = link.recv.posted.saturating_sub(1);
        }
        Some(id)
    }

    /// A block of ours was filled. One that was posted for another peer is missing there.
    pub(super) fn note_filled(&mut self, id: LinkId, index: u32) {
        self.short_of_posts |= self.note_unposted(index) != Some(id);
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

impl Link {
    /// The blocks that the row is to have posted: one for each vacant element, and the spare ones in any case.
    fn posts_due(&self) -> u32 {
        if self.state.is_down() { 0 } else { SPARE_POSTS + self.recv.space.vacant() }
    }

    /// Keeps a block for when the transport takes it.
    fn keep_unposted<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>, index: u32) {
        if let Some(entry) = umb.entry(index) {
            entry.state = BlockState::Vacant;
            entry.row = self.id.raw();
        }
        self.recv.unposted.push_back(umb, index);
    }

    /// A block is given to the transport to receive into.
    fn note_posted<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>, index: u32) {
        if let Some(entry) = umb.entry(index) {
            (entry.state, entry.row) = (BlockState::Posted, self.id.raw());
        }
        self.recv.posted += 1;
    }
}
