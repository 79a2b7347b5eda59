//! The pool of free blocks, and UMBInfo-Tab.

use core::ptr::NonNull;
use core::slice;

use managed::ManagedSlice;

use super::block::{RawBlock, SealedBlock, Token, VacantBlock};
use super::delivery::{Delivery, DeliveryKind};
use super::leakable::Leakable;
use super::memory::BlockMemory;
use super::origin::Origin;
use super::shared::Place;
use crate::cdu::BLOCK_HEADER;
use crate::id::{BlockId, NodeId};

/// State of a block, a column of UMBInfo-Tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BlockState {
    /// In the pool.
    #[default]
    Free,
    /// An element of a row that has its block but no data.
    Vacant,
    /// Being filled by a writer.
    Open,
    /// Sealed, waiting in its row.
    Queued,
    /// With the transport, to be sent, or with parts of this node that are reading it.
    InFlight,
    /// With the transport, to receive into, or received but not completely read.
    Posted,
    /// Being returned to the parts that wrote it, because its peer has failed.
    Returned,
    /// Returned to the parts that wrote it.
    Reread,
}

/// A row of UMBInfo-Tab.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockInfo {
    used: BlockUse,
    /// [`CHECKED_OUT`], or the number of outstanding deliveries.
    claims: u32,
}

/// In [`BlockInfo`]: the block's token is out, or the block does not exist.
const CHECKED_OUT: u32 = u32::MAX;

/// How the engine uses a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockUse {
    pub(crate) state: BlockState,
    /// The node whose row the block serves.
    pub(crate) row: u16,
    /// The element of the row that holds the block.
    pub(crate) slot: u32,
    /// The next block in the list that contains this one (free list or send queue).
    pub(crate) next: u32,
    /// Length of header and body, once sealed.
    pub(crate) length: u32,
}

const _: () = assert!(size_of::<BlockInfo>() == 20);

pub(crate) const NIL: u32 = u32::MAX;

/// Distance between blocks: header and body, rounded up to cache lines.
pub const fn stride(body: usize) -> usize {
    (BLOCK_HEADER + body + 63) & !63
}

/// Length of a block (header and body), and the distance between blocks. Lengths too large for either yield blocks that fit in no
/// memory.
pub(super) fn layout(body: usize) -> (u32, usize) {
    let room = BLOCK_HEADER.checked_add(body).and_then(|room| u32::try_from(room).ok());
    let layout = room.and_then(|room| Some((room, (room as usize).checked_next_multiple_of(64)?)));
    layout.unwrap_or((0, usize::MAX))
}

/// The blocks of one node. A block's token is made only while the block is here, and not again until it has come back. If the value
/// is dropped while a token or delivery is outstanding, the memory stays in place. So whatever the engine, its host and its
/// transport do with block numbers and tokens, no byte has two owners.
pub(crate) struct Umb<'a, M> {
    memory: Leakable<M>,
    segment: NodeId,
    /// Length of header and body, and the distance between blocks.
    room: u32,
    stride: usize,
    info: ManagedSlice<'a, BlockInfo>,
    origin: Origin,
    /// Tokens that have not come back.
    out: usize,
    /// Deliveries made by [`lend_piece`](Self::lend_piece) that have not come back.
    readers: usize,
    free_head: u32,
    free: u32,
}

impl<'a, M: BlockMemory> Umb<'a, M> {
    /// Divides `memory` into blocks with bodies of `body` bytes: as many as `memory` and `info` have room for.
    pub(crate) fn new(
        memory: M,
        segment: NodeId,
        body: usize,
        mut info: ManagedSlice<'a, BlockInfo>,
    ) -> Self {
        let (room, stride) = layout(body);
        let count = (memory.len() / stride).min(info.len()).min(NIL as usize - 1) as u32;
        for (i, entry) in info.iter_mut().enumerate() {
            let (i, next) = (i as u32, i as u32 + 1);
            let used = BlockUse { next: if next < count { next } else { NIL }, ..BlockUse::default() };
            *entry = BlockInfo { used, claims: if i < count { 0 } else { CHECKED_OUT } };
        }
        let origin = Origin::new(memory.base());
        let free_head = if count == 0 { NIL } else { 0 };
        let memory = Leakable::new(memory);
        Self { memory, segment, room, stride, info, origin, out: 0, readers: 0, free_head, free: count }
    }

    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Length of header and body.
    pub(crate) fn room(&self) -> usize {
        self.room as usize
    }

    /// Takes the most recently freed block, which is the most likely to be in a cache.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let index = self.free_head;
        let entry = self.entry(index)?;
        self.free_head = entry.next;
        self.free -= 1;
        Some(index)
    }

    pub(crate) fn give(&mut self, index: u32) {
        let head = self.free_head;
        if let Some(entry) = self.entry(index) {
            debug_assert_ne!(entry.state, BlockState::Free, "block {index} freed twice");
            entry.state = BlockState::Free;
            entry.next = head;
            self.free_head = index;
            self.free += 1;
        }
    }

    /// Iterates over the uses of all blocks.
    pub(crate) fn uses(&self) -> impl Iterator<Item = &BlockUse> {
        self.info.iter().map(|entry| &entry.used)
    }

    #[inline]
    pub(crate) fn entry(&mut self, index: u32) -> Option<&mut BlockUse> {
        self.info.get_mut(index as usize).map(|entry| &mut entry.used)
    }

    /// Makes the token of a block. `None` if there is no such block, or it is out.
    #[inline(always)]
    pub(crate) fn lend(&mut self, index: u32) -> Option<RawBlock> {
        let entry = self.info.get_mut(index as usize).filter(|entry| entry.claims == 0)?;
        entry.claims = CHECKED_OUT;
        self.out += 1;
        let id = BlockId { segment: self.segment, index };
        Some(RawBlock { origin: self.origin, base: self.place(index), id, room: self.room })
    }

    /// As [`lend`](Self::lend), for a block to be sent.
    #[inline]
    pub(crate) fn lend_sealed(&mut self, index: u32) -> Option<SealedBlock> {
        let length = self.entry(index)?.length;
        self.lend(index).map(|raw| SealedBlock::new(raw, length as usize))
    }

    /// As [`lend`](Self::lend), for a block to receive into.
    pub(crate) fn lend_vacant(&mut self, index: u32) -> Option<VacantBlock> {
        self.lend(index).map(|raw| VacantBlock { raw })
    }

    /// Takes a token back and returns the block's number.
    ///
    /// # Errors
    /// Hands the token back if it belongs to another region.
    #[inline]
    pub(crate) fn reclaim<B: Token>(&mut self, block: B) -> Result<u32, B> {
        let Some(index) = self.index_of(&block) else { return Err(block) };
        block.into_raw().forget();
        self.out -= 1;
        if let Some(entry) = self.info.get_mut(index as usize) {
            entry.claims = 0;
        }
        Ok(index)
    }

    /// The number of a block, from its token; `None` if the token belongs to another region, whatever its id says.
    #[inline]
    pub(crate) fn index_of(&self, block: &impl Token) -> Option<u32> {
        let raw = block.raw();
        (raw.origin == self.origin).then_some(raw.id.index)
    }

    /// The sealed bytes of a block (header and body). `None` if there is no such block, or its token is out.
    pub(crate) fn sealed(&self, index: u32) -> Option<&[u8]> {
        let entry = self.info.get(index as usize).filter(|entry| entry.claims != CHECKED_OUT)?;
        let length = self.room().min(entry.used.length as usize);
        // SAFETY: the range is inside the block, which is initialised (contract of `BlockMemory`), and nobody writes it: no token
        // is out, and none is made while `self` is borrowed.
        Some(unsafe { slice::from_raw_parts(self.place(index).as_ptr(), length) })
    }

    /// Lends a piece, `start..end` after the header, of a sealed block that is here. No token of the block is made until the
    /// delivery has come back. `None` if there is no such piece.
    pub(crate) fn lend_piece(
        &mut self,
        (start, end): (usize, usize),
        place: Place,
        source: NodeId,
        kind: DeliveryKind,
    ) -> Option<Delivery> {
        let index = place.1;
        let length = self.sealed(index)?.len().checked_sub(BLOCK_HEADER)?;
        if start > end || end > length {
            return None;
        }
        let entry = self.info.get_mut(index as usize)?;
        entry.claims = entry.claims.checked_add(1).filter(|claims| *claims != CHECKED_OUT)?;
        self.readers += 1;
        Some(Delivery::new(self.place(index), (start, end), place, source, kind))
    }

    /// As [`lend_piece`](Self::lend_piece), but lends the whole block, for routing.
    pub(crate) fn lend_whole(&mut self, place: Place, source: NodeId) -> Option<Delivery> {
        let length = self.sealed(place.1)?.len().checked_sub(BLOCK_HEADER)?;
        self.lend_piece((0, length), place, source, DeliveryKind::Returned { stream: None })
    }

    /// Lends a piece again that [`lend_piece`](Self::lend_piece) has lent. `None` if it was not lent there.
    pub(crate) fn lend_again(&mut self, delivery: &Delivery) -> Option<Delivery> {
        let place = delivery.place();
        let block = self.lent_at(place)?;
        let entry = self.info.get_mut(place.1 as usize).filter(|_| delivery.is_at(block, place))?;
        entry.claims = entry.claims.checked_add(1).filter(|claims| *claims != CHECKED_OUT)?;
        self.readers += 1;
        Some(delivery.again())
    }

    /// Address of a block that has outstanding deliveries.
    fn lent_at(&self, place: Place) -> Option<NonNull<u8>> {
        let entry = self.info.get(place.1 as usize)?;
        (entry.claims != 0 && entry.claims != CHECKED_OUT).then(|| self.place(place.1))
    }

    /// Takes back a delivery made by [`lend_piece`](Self::lend_piece).
    ///
    /// # Errors
    /// Hands the delivery back if it was not made there.
    pub(crate) fn take_piece(&mut self, delivery: Delivery) -> Result<(), Delivery> {
        let place = delivery.place();
        if !self.lent_at(place).is_some_and(|block| delivery.is_at(block, place)) {
            return Err(delivery);
        }
        self.readers -= 1;
        if let Some(entry) = self.info.get_mut(place.1 as usize) {
            entry.claims -= 1;
        }
        Ok(())
    }

    /// Whether neither the token of a block nor any delivery of it is out.
    pub(crate) fn is_idle(&self, index: u32) -> bool {
        self.info.get(index as usize).is_some_and(|entry| entry.claims == 0)
    }

    /// Address of a block. It lies within the region: the callers have found the block's entry, and [`new`](Self::new) marks
    /// entries past the region as out forever.
    fn place(&self, index: u32) -> NonNull<u8> {
        let at = self.stride * index as usize;
        debug_assert!(at + self.stride <= self.memory.len());
        // SAFETY: `at` is inside the region, which is one allocation (contract of `BlockMemory`).
        unsafe { self.memory.base().add(at) }
    }
}

impl<M> Umb<'_, M> {
    /// Whether any tokens are outstanding.
    fn has_lent(&self) -> bool {
        // SAFETY: only `drop` frees the home.
        let dropped = unsafe { self.origin.dropped() };
        self.out != dropped
    }
}

impl<M> Drop for Umb<'_, M> {
    fn drop(&mut self) {
        let lent = self.has_lent();
        self.memory.leak = lent || self.readers > 0;
        if !lent {
            // SAFETY: no token is outstanding, and none will be made.
            unsafe { self.origin.free() }
        }
    }
}
