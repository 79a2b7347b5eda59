//! Copies short deliveries out of their blocks when their readers do not keep up.
//!
//! A message sent alone occupies a whole block until it has been read, and a peer may have only as many blocks here as it has
//! credit. Without copies, a few parts that read late would stop all other parts to which the same peer sends, and its senders:
//! for good, if one thread drives them or they wait for each other. So while unread blocks use more than half of a link's credit,
//! and the row cannot grow, a delivery of up to a sixteenth of a block is copied, and its part gets the copy. The block is
//! returned at once.
//!
//! * Copies are kept in free blocks of the UMB: at most [`copy_blocks`](crate::Config::copy_blocks), and no more than are left
//!   free for rows. If there is no space, the delivery is read in place, and an idle reader stops its sender as usual.
//! * A copy takes the place of its delivery in the private pipe, so order is kept; it counts as delivered when its block does.
//! * Readers need not know: a copy has the header of its block, and is given back by [`release`](Engine::release).

use super::link::Label;
use super::receiving::Cursor;
use super::{Delivery, DeliveryKind, Engine, PrivatePipes};
use crate::cdu::BlockClass;
use crate::id::PipeId;
use crate::matrix::kept;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::{BlockMemory, BlockState};

/// In UMBInfo-Tab: a block that holds copies.
const COPY_ROW: u16 = u16::MAX - 1;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Returns the number of UMB blocks that hold copies of short deliveries.
    pub fn copy_blocks(&self) -> u32 {
        self.copies.held()
    }

    /// Whether to copy the pieces of a block that has arrived on a link and is already counted there.
    pub(super) fn should_copy(&self, id: LinkId, label: &Label) -> bool {
        let Some(link) = self.links.get(id) else { return false };
        if label.class == BlockClass::Control || label.length as usize > self.copies.longest() {
            return false;
        }
        let held = &link.recv.space;
        if id == self.links.own {
            // Its blocks belong to the send row.
            return 2 * held.used() > link.send.space.real();
        }
        let is_full = held.vacant() <= kept(held.real());
        2 * held.used() > held.real() && (is_full || held.virtual_space() == 0)
    }

    /// Offers a private pipe a copy of a piece, as [`offer`](Self::offer) does with the piece itself. `None` if there is no space
    /// for a copy.
    #[cold]
    #[inline(never)]
    pub(super) fn offer_copy(
        &mut self,
        pipe: PipeId,
        range: (usize, usize),
        kind: DeliveryKind,
        to: &mut Cursor,
        pipes: &mut impl PrivatePipes,
    ) -> Option<bool> {
        let copy = self.copy(range, kind, to)?;
        let place = copy.place();
        self.tokens += 1;
        to.readers += 1;
        Some(match pipes.deliver(pipe, copy) {
            Ok(()) => {
                self.counters.copied += 1;
                true
            }
            Err(back) => self.take_refused(back, (place, 0), to),
        })
    }

    fn copy(&mut self, range: (usize, usize), kind: DeliveryKind, to: &Cursor) -> Option<Delivery> {
        let Self { rm, config, copies, umb, space, .. } = self;
        let slot = rm.get_mut(config.element(to.id, to.element))?;
        (slot.at, slot.served) = (to.at, to.served);
        if let Some(copy) = copies.copy(&slot.block, range, to.source, kind) {
            return Some(copy);
        }
        if !copies.has_place() || copies.held() >= space.free_blocks(umb) {
            return None;
        }
        let index = umb.take()?;
        if let Some(entry) = umb.entry(index) {
            (entry.row, entry.state) = (COPY_ROW, BlockState::InFlight);
        }
        let refused = umb.lend(index).and_then(|block| copies.give_block(block).err());
        debug_assert!(refused.is_none(), "there is a place");
        copies.copy(&slot.block, range, to.source, kind)
    }

    /// Takes back a delivery of a copy. The last delivery of a copy block frees the block.
    #[cold]
    #[inline(never)]
    pub(super) fn release_copy(&mut self, delivery: Delivery) {
        match self.copies.reclaim(delivery) {
            Ok(block) => {
                self.tokens -= 1;
                if let Some(Ok(index)) = block.map(|block| self.umb.reclaim(block)) {
                    self.umb.give(index);
                }
            }
            Err(_) => self.counters.foreign_tokens += 1,
        }
    }
}
