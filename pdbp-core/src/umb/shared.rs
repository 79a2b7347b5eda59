//! A block and its readers.

use super::block::ArrivedBlock;
use super::delivery::{Delivery, DeliveryKind};
use crate::cdu::BLOCK_HEADER;
use crate::id::NodeId;
use crate::routing::LinkId;

/// Where the engine holds a delivered block: a row, and the element or block in it.
pub(crate) type Place = (LinkId, u32);

/// An arrived block shared by readers, or empty. The block cannot be taken out before all its deliveries have come back; if the
/// value is dropped before that, the block's memory stays in place.
#[derive(Debug, Default)]
pub(crate) struct SharedBlock {
    block: Option<ArrivedBlock>,
    /// Number of deliveries that are out.
    readers: u32,
}

impl SharedBlock {
    /// Wraps a block that has no deliveries yet. Empty if the block is shorter than its header.
    #[inline]
    pub(crate) fn new(block: ArrivedBlock) -> Self {
        Self { block: (block.bytes().len() >= BLOCK_HEADER).then_some(block), readers: 0 }
    }

    /// Header and body.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        self.block.as_ref().map(ArrivedBlock::bytes)
    }

    /// Lends a piece, `start..end` after the header. `None` if there is no such piece.
    #[inline]
    pub(crate) fn lend(
        &mut self,
        (start, end): (usize, usize),
        place: Place,
        source: NodeId,
        kind: DeliveryKind,
    ) -> Option<Delivery> {
        let block = self.block.as_ref()?;
        let length = block.bytes().len() - BLOCK_HEADER;
        if start > end || end > length {
            return None;
        }
        self.readers = self.readers.checked_add(1)?;
        Some(Delivery::new(block.raw.base, (start, end), place, source, kind))
    }

    /// Lends the whole block, for routing.
    #[inline]
    pub(crate) fn lend_whole(&mut self, place: Place, source: NodeId) -> Option<Delivery> {
        let length = self.block.as_ref()?.bytes().len() - BLOCK_HEADER;
        self.lend((0, length), place, source, DeliveryKind::Messages { urgent: false })
    }

    /// Whether the delivery is of this block, held at `place`.
    #[inline]
    pub(crate) fn has_lent(&self, delivery: &Delivery, place: Place) -> bool {
        self.block.as_ref().is_some_and(|block| delivery.is_at(block.raw.base, place))
    }

    /// Lends the same piece again.
    pub(crate) fn lend_again(&mut self, delivery: &Delivery, place: Place) -> Option<Delivery> {
        if !self.has_lent(delivery, place) {
            return None;
        }
        self.readers = self.readers.checked_add(1)?;
        Some(delivery.again())
    }

    /// Takes a delivery back.
    ///
    /// # Errors
    /// Hands the delivery back if it is not of this block.
    #[inline]
    pub(crate) fn reclaim(&mut self, delivery: Delivery, place: Place) -> Result<(), Delivery> {
        if !self.has_lent(&delivery, place) {
            return Err(delivery);
        }
        // The delivery matches this block, so it was lent and counted here.
        self.readers -= 1;
        Ok(())
    }

    /// Whether any deliveries are outstanding.
    #[inline]
    pub(crate) fn has_readers(&self) -> bool {
        self.readers > 0
    }

    /// Takes the block out if no delivery of it is outstanding.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<ArrivedBlock> {
        if self.has_readers() { None } else { self.block.take() }
    }
}

impl Drop for SharedBlock {
    #[inline]
    fn drop(&mut self) {
        if self.has_readers()
            && let Some(block) = self.block.take()
        {
            // The block counts as out forever, so its owner leaves the memory in place.
            block.forget();
        }
    }
}
