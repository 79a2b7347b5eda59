//! Posted arrival: blocks for the transport to receive into.
//!
//! A row posts one block for each vacant element, which is the credit available to its peer, and two more for control messages.
//! So blocks kept by readers of this node never hold up anything that a peer sends on the link. Blocks that the transport is too
//! busy to take stay reserved for their link: otherwise another row could grow by them, and the link would have nothing to
//! receive into.

use super::Engine;
use super::link::{Link, Work};
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::{Op, Reason, Transport};
use crate::umb::{BlockMemory, BlockState, Umb, VacantBlock};

/// Number of blocks that each row posts beyond its credit, for control messages.
pub(super) const SPARE_POSTS: u32 = 2;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Posts as many receives as the row's space calls for.
    pub(super) fn post(&mut self, id: LinkId) {
        self.reserve_posts(id);
        while let Some(link) = self.links.get_mut(id)
            && let Some(index) = link.recv.unposted.pop_front(&mut self.umb)
        {
            if !self.post_block(id, index) {
                return;
            }
        }
    }

    /// Takes missing blocks for the row from the UMB, or returns surplus ones.
    fn reserve_posts(&mut self, id: LinkId) {
        let Self { links, umb, space, .. } = self;
        let Some(link) = links.get_mut(id) else { return };
        let due = link.posts_due();
        while link.recv.post_count() < due {
            // The first ones were reserved while the link was down.
            let first = link.recv.post_count() <= SPARE_POSTS;
            let Some(index) = (if first || space.free_blocks(umb) > 0 { umb.take() } else { None }) else {
                links.mark(id, Work::POST);
                return;
            };
            link.queue_unposted(umb, index);
        }
        while link.recv.post_count() > due
            && let Some(index) = link.recv.unposted.pop_front(umb)
        {
            umb.give(index);
        }
    }

    /// Retries posts that failed for lack of blocks or because the transport was busy.
    pub(super) fn post_missing(&mut self) {
        let mut short = self.links.first_with(Work::POST);
        while let Some(id) = short {
            self.post(id);
            short = self.links.next_with(id, Work::POST);
        }
    }

    /// Submits a block of the row to the transport. Returns `false` if the transport did not take it.
    fn post_block(&mut self, id: LinkId, index: u32) -> bool {
        let Self { links, umb, transport, .. } = self;
        let Some(link) = links.get_mut(id) else { return false };
        let Some(block) = umb.lend_vacant(index) else { return false };
        link.on_posted(umb, index);
        let Err(refused) = transport.submit(Op::Recv { peer: link.peer, block }) else { return true };
        let given = matches!(&refused.op, Op::Recv { block, .. } if umb.index_of(block) == Some(index));
        // A transport that hands back something else has kept the block, and is trusted with no more blocks.
        if !given || !matches!(refused.reason, Reason::Busy) {
            self.schedule_link_failure(id);
        }
        self.links.mark(id, Work::POST);
        match refused.op {
            Op::Recv { block, .. } if given => {
                if self.umb.reclaim(block).is_ok() {
                    self.on_unposted(index);
                    if let Some(link) = self.links.get_mut(id) {
                        link.queue_unposted(&mut self.umb, index);
                    }
                }
            }
            op => self.reclaim_op(op),
        }
        false
    }

    /// Posts a block again after it was filled and read, unless the row has shrunk.
    pub(super) fn repost(&mut self, id: LinkId, index: u32) {
        let due = |link: &Link| link.posted && link.recv.posted < link.posts_due();
        if self.links.get(id).is_some_and(due) {
            self.post_block(id, index);
        } else {
            self.umb.give(index);
        }
    }

    /// Notes that a posted block has left the transport, so its row has one less. Returns the row's link.
    pub(super) fn on_unposted(&mut self, index: u32) -> Option<LinkId> {
        let entry = self.umb.entry(index).filter(|entry| entry.state == BlockState::Posted)?;
        entry.state = BlockState::Vacant;
        let id = LinkId::from_index(usize::from(entry.row));
        if let Some(link) = self.links.get_mut(id) {
            link.recv.posted = link.recv.posted.saturating_sub(1);
        }
        Some(id)
    }

    /// Notes that a block of this node was filled. If it was posted for a different peer, that row is one short.
    pub(super) fn on_filled(&mut self, id: LinkId, index: u32) {
        if let Some(other) = self.on_unposted(index).filter(|other| *other != id) {
            self.links.mark(other, Work::POST);
        }
    }

    /// Takes back a posted block that was not used. Returns the link that it was posted for.
    pub(super) fn unpost(&mut self, block: VacantBlock) -> Option<LinkId> {
        match self.umb.reclaim(block) {
            Ok(index) => {
                let link = self.on_unposted(index);
                self.umb.give(index);
                link
            }
            Err(_) => {
                self.counters.foreign_tokens += 1;
                None
            }
        }
    }

    /// Handles a posted block that came back by mistake: its row is one short.
    #[cold]
    pub(super) fn post_again(&mut self, link: Option<LinkId>) {
        if let Some(id) = link {
            self.links.mark(id, Work::POST);
        }
    }
}

impl Link {
    /// Number of blocks that the row should have posted: one for each vacant element, plus the spare ones.
    fn posts_due(&self) -> u32 {
        if self.state.is_down() { 0 } else { SPARE_POSTS + self.recv.space.vacant() }
    }

    /// Keeps a block until the transport has room for it.
    fn queue_unposted<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>, index: u32) {
        if let Some(entry) = umb.entry(index) {
            entry.state = BlockState::Vacant;
            entry.row = self.id.raw();
        }
        self.recv.unposted.push_back(umb, index);
    }

    /// Notes that a block was submitted to the transport to receive into.
    fn on_posted<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>, index: u32) {
        if let Some(entry) = umb.entry(index) {
            (entry.state, entry.row) = (BlockState::Posted, self.id.raw());
        }
        self.recv.posted += 1;
    }
}
