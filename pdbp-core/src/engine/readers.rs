//! Readers of arrived blocks: elements of RM, and the deliveries made from their blocks.

use super::link::Label;
use super::receiving::Cursor;
use super::{Delivery, DeliveryKind, Engine, PrivatePipes};
use crate::cdu::BlockClass;
use crate::id::PipeId;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::{BlockMemory, NIL, Place, SharedBlock};

/// An element of RM: an arrived block and who still needs it.
#[derive(Debug)]
pub(crate) struct Element {
    pub(super) block: SharedBlock,
    pub(super) label: Label,
    /// Whether routing has reached the end of the block, so that only its readers still need it.
    pub(super) routed: bool,
    /// Session of the link in which the block arrived.
    pub(super) session: u32,
    /// Next element of this element's list (free or pending).
    pub(super) next: u32,
    /// Where routing resumes: the offset in the body, and the number of parts of a destination set already served.
    pub(super) at: usize,
    pub(super) served: usize,
}

impl Default for Element {
    fn default() -> Self {
        let label = Label::new(BlockClass::Message, 0, 0);
        Self { block: SharedBlock::default(), label, routed: false, session: 0, next: NIL, at: 0, served: 0 }
    }
}

impl Element {
    /// Whether the block can return to its owner.
    pub(super) fn is_done(&self) -> bool {
        self.routed && !self.block.has_readers()
    }

    /// Drops its block, unless the block is being read.
    pub(super) fn clear(&mut self) {
        self.block = SharedBlock::default();
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Takes back a delivery. When the last delivery of a block is back, the block returns to its owner.
    pub fn release(&mut self, delivery: Delivery) {
        if let DeliveryKind::Returned { .. } = delivery.kind() {
            self.release_returned(delivery);
            return;
        }
        let (id, element) = delivery.place();
        let at = self.config.element(id, element);
        let Some(slot) = self.rm.get_mut(at) else { return self.release_copy(delivery) };
        if slot.block.reclaim(delivery, (id, element)).is_err() {
            self.counters.foreign_tokens += 1;
            return;
        }
        let done = slot.is_done();
        self.tokens -= 1;
        if done {
            self.free_element(id, element);
        }
    }

    /// Returns a second delivery of the same piece, for an independent reader such as a device. It must be
    /// [released](Self::release) as well. `None` for a delivery of another engine.
    pub fn share(&mut self, delivery: &Delivery) -> Option<Delivery> {
        if let DeliveryKind::Returned { .. } = delivery.kind() {
            let again = self.umb.lend_again(delivery)?;
            self.tokens += 1;
            return Some(again);
        }
        let (id, element) = delivery.place();
        let at = self.config.element(id, element);
        let again = match self.rm.get_mut(at) {
            Some(slot) => slot.block.lend_again(delivery, (id, element))?,
            None => self.copies.share(delivery)?,
        };
        self.tokens += 1;
        Some(again)
    }

    /// Offers a piece of the block, or a copy of it, to a private pipe. Returns `false` if the pipe is full. The delivery is
    /// counted, and the cursor saved, before the host gets it, so a host that panics is offered this piece again.
    #[inline(always)]
    pub(super) fn offer(
        &mut self,
        pipe: PipeId,
        range: (usize, usize),
        kind: DeliveryKind,
        to: &mut Cursor,
        pipes: &mut impl PrivatePipes,
    ) -> bool {
        if to.copies
            && let Some(room) = self.offer_copy(pipe, range, kind, to, pipes)
        {
            return room;
        }
        let place = (to.id, to.element);
        let at = self.config.element(place.0, place.1);
        let Some(slot) = self.rm.get_mut(at) else { return true };
        (slot.at, slot.served) = (to.at, to.served);
        let delivery = slot.block.lend(range, place, to.source, kind);
        let Some(delivery) = delivery else { return true };
        self.tokens += 1;
        to.readers += 1;
        match pipes.deliver(pipe, delivery) {
            Ok(()) => true,
            Err(back) => self.take_refused(back, (place, range.0), to),
        }
    }

    /// Takes back a delivery that a host refused. Returns `true` if it is not the one offered, which the host has then kept.
    #[inline(never)]
    pub(super) fn take_refused(
        &mut self,
        back: Delivery,
        (place, start): (Place, usize),
        to: &mut Cursor,
    ) -> bool {
        let returned = matches!(back.kind(), DeliveryKind::Returned { .. });
        let kept = returned || !back.begins_at(place, start);
        to.readers -= u32::from(!kept);
        self.release(back);
        kept
    }

    /// Frees an element whose block was routed and read, and returns the block to its owner.
    #[inline(always)]
    fn free_element(&mut self, id: LinkId, element: u32) {
        let Self { links, rm, space, config, .. } = self;
        let is_own = id == links.own;
        let Some(slot) = rm.get_mut(config.element(id, element)) else { return };
        let Some(block) = slot.block.take() else { return };
        let Some(link) = links.data_mut(id) else { return };
        slot.next = core::mem::replace(&mut link.recv.free, element);
        link.recv.space.give();
        if is_own {
            if let Ok(index) = self.umb.reclaim(block) {
                self.recycle(index);
            }
            return;
        }
        let (peer, posted) = (link.peer, link.posted);
        link.numbers.released += u64::from(link.session == slot.session);
        if !link.is_up() || link.session != slot.session {
            let spare = if link.is_up() { 1 } else { u32::MAX };
            if link.session != slot.session {
                // The element belongs to an earlier session and is not part of the current window.
                link.recv.old = link.recv.old.saturating_sub(1);
            }
            space.shrink_recv(link, spare);
            links.mark_dirty();
        }
        let in_place = !posted && self.umb.index_of(&block).is_none();
        if in_place { self.return_to(peer, block) } else { self.return_block(id, block) }
    }

    /// As [`free_element`](Self::free_element), for a block of which nothing was delivered.
    #[cold]
    #[inline(never)]
    pub(super) fn free_unread(&mut self, id: LinkId, element: u32) {
        self.free_element(id, element);
    }
}
