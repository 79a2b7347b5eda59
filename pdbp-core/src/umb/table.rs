//! The pool of free blocks, and UMBInfo-Tab.

use managed::ManagedSlice;

use super::block::RawBlock;
use super::held::Held;
use super::memory::BlockMemory;
use crate::cdu::BLOCK_HEADER;
use crate::id::{BlockId, NodeId};

/// State of a block, a column of UMBInfo-Tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BlockState {
    /// In the pool.
    #[default]
    Free,
    /// A real element of a row, without data.
    Vacant,
    /// Being filled by a writer.
    Open,
    /// Sealed, waiting in its row.
    Queued,
    /// With the transport.
    InFlight,
    /// On its way back to the parts that wrote it, since its peer has failed.
    Returned,
}

/// A row of UMBInfo-Tab.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockInfo {
    pub(crate) state: BlockState,
    /// Node whose row the block serves.
    pub(crate) row: u16,
    /// The element of the row that holds the block.
    pub(crate) slot: u32,
    /// The next block of the list that the block is in (free list or send queue).
    pub(crate) next: u32,
    /// Length of header and body once sealed.
    pub(crate) length: u32,
    /// Of a returned block: deliveries that are out, and one while it is not routed to its end.
    pub(crate) readers: u32,
}

pub(crate) const NIL: u32 = u32::MAX;

/// Distance between blocks: header and body, rounded up to cache lines.
pub const fn stride(body: usize) -> usize {
    (BLOCK_HEADER + body + 63) & !63
}

/// The blocks of one node.
pub(crate) struct Umb<'a, M> {
    pub(crate) memory: Held<M>,
    pub(super) segment: NodeId,
    pub(super) body: usize,
    pub(crate) info: ManagedSlice<'a, BlockInfo>,
    free_head: u32,
    free: u32,
}

impl<'a, M: BlockMemory> Umb<'a, M> {
    /// Divides `memory` into as many blocks of `body` bytes as it and `info` have room for.
    pub(crate) fn new(
        memory: M,
        segment: NodeId,
        body: usize,
        mut info: ManagedSlice<'a, BlockInfo>,
    ) -> Self {
        let count = (memory.len() / stride(body)).min(info.len()).min(NIL as usize - 1) as u32;
        for (i, entry) in info.iter_mut().enumerate() {
            let next = i as u32 + 1;
            *entry = BlockInfo { next: if next < count { next } else { NIL }, ..BlockInfo::default() };
        }
        let free_head = if count == 0 { NIL } else { 0 };
        Self { memory: Held::new(memory), segment, body, info, free_head, free: count }
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Takes the block that was freed last: it is the most likely to be in a cache.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let index = self.free_head;
        let entry = self.info.get_mut(index as usize)?;
        self.free_head = entry.next;
        self.free -= 1;
        Some(index)
    }

    pub(crate) fn give(&mut self, index: u32) {
        if let Some(entry) = self.info.get_mut(index as usize) {
            debug_assert_ne!(entry.state, BlockState::Free, "block {index} freed twice");
            entry.state = BlockState::Free;
            entry.next = self.free_head;
            self.free_head = index;
            self.free += 1;
        }
    }

    pub(crate) fn entry(&mut self, index: u32) -> Option<&mut BlockInfo> {
        self.info.get_mut(index as usize)
    }

    /// Whether a token that was handed in names a block of this very pool. Without this check a token of another engine, or
    /// one mixed up by a transport, would give a second right to one of our blocks.
    pub(crate) fn owns(&self, block: &RawBlock) -> bool {
        let index = block.id.index as usize;
        let at = stride(self.body).checked_mul(index);
        at.filter(|at| index < self.info.len() && at + stride(self.body) <= self.memory.len())
            .is_some_and(|at| self.memory.base().addr().get() + at == block.base.addr().get())
    }

    /// The token of block `index`. The caller passes on the only right to it that there is.
    pub(crate) fn raw(&self, index: u32) -> RawBlock {
        // In bounds of the region: `index` comes from the free list, which holds indices below `len / stride`.
        let at = stride(self.body) * index as usize;
        debug_assert!(at + stride(self.body) <= self.memory.len());
        // SAFETY: `at` is inside the region, which is one allocation (contract of `BlockMemory`).
        let base = unsafe { self.memory.base().add(at) };
        RawBlock {
            id: BlockId { segment: self.segment, index },
            base,
            room: (BLOCK_HEADER + self.body) as u32,
        }
    }
}
