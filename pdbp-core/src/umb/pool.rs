//! A block pool for use without an engine.

use alloc::vec::Vec;

use managed::ManagedSlice;

use super::{
    ArrivedBlock, BlockInfo, BlockMemory, BlockState, SealedBlock, Umb, VacantBlock, block::Token,
    table::layout,
};
use crate::id::NodeId;

/// A pool of blocks in one memory region, for code that drives a [`Transport`](crate::Transport) itself: the conformance suite,
/// wrappers that deliver their own blocks, tests of a backend.
///
/// If a pool is dropped while any of its blocks are out, it leaks its memory instead of freeing it, so no token ever dangles. A
/// dropped token is counted, and its block is not reused.
///
/// ```
/// use pdbp_core::id::NodeId;
/// use pdbp_core::umb::{BlockPool, HeapMemory};
///
/// let memory = HeapMemory::new(4096).ok_or("no memory")?;
/// let mut pool = BlockPool::new(memory, NodeId::new(0).ok_or("no node")?, 1000);
/// let mut block = pool.take().ok_or("no block")?;
/// block.bytes_mut()[64] = 7;
/// let sealed = pool.seal(block, 65);
/// assert_eq!(sealed.bytes().len(), 65);
/// assert!(pool.give_sealed(sealed).is_ok());
/// # Ok::<(), &str>(())
/// ```
pub struct BlockPool<M: BlockMemory> {
    umb: Umb<'static, M>,
    blocks: u32,
}

impl<M: BlockMemory> BlockPool<M> {
    /// Divides `memory` into as many blocks with bodies of `body` bytes as fit. Their ids name the node `segment`.
    pub fn new(memory: M, segment: NodeId, body: usize) -> Self {
        let count = memory.len() / layout(body).1;
        let info = (0..count).map(|_| BlockInfo::default()).collect::<Vec<_>>();
        let umb = Umb::new(memory, segment, body, ManagedSlice::Owned(info));
        let blocks = umb.free();
        Self { umb, blocks }
    }

    /// Total number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Number of blocks in the pool.
    pub fn free(&self) -> u32 {
        self.umb.free()
    }

    /// Maximum length of header and body.
    pub fn room(&self) -> usize {
        self.umb.room()
    }

    /// Takes a block; `None` if all are out.
    pub fn take(&mut self) -> Option<VacantBlock> {
        let index = self.umb.take()?;
        if let Some(entry) = self.umb.entry(index) {
            entry.state = BlockState::Vacant;
        }
        self.umb.lend_vacant(index)
    }

    /// Makes a block ready to travel. `length` counts header and body, and is capped at the room of the block.
    pub fn seal(&self, block: VacantBlock, length: usize) -> SealedBlock {
        SealedBlock::new(block.raw, length)
    }

    /// Returns an unused block to the pool.
    ///
    /// # Errors
    /// Hands the block back if it is not from this pool.
    pub fn give_vacant(&mut self, block: VacantBlock) -> Result<(), VacantBlock> {
        self.give(block)
    }

    /// Returns to the pool a block that was sent.
    ///
    /// # Errors
    /// Hands the block back if it is not from this pool.
    pub fn give_sealed(&mut self, block: SealedBlock) -> Result<(), SealedBlock> {
        self.give(block)
    }

    /// Returns to the pool a block that was posted, filled and read.
    ///
    /// # Errors
    /// Hands the block back if it is not from this pool.
    pub fn give_arrived(&mut self, block: ArrivedBlock) -> Result<(), ArrivedBlock> {
        self.give(block)
    }

    fn give<B: Token>(&mut self, block: B) -> Result<(), B> {
        self.umb.reclaim(block).map(|index| self.umb.give(index))
    }
}

impl<M: BlockMemory> core::fmt::Debug for BlockPool<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "BlockPool({} of {} blocks free)", self.free(), self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::umb::{HeapMemory, stride};

    fn pool(node: u16) -> BlockPool<HeapMemory> {
        BlockPool::new(HeapMemory::new(4 * stride(100)).unwrap(), NodeId::new(node).unwrap(), 100)
    }

    #[test]
    fn all_blocks_can_be_out_and_come_back_in_every_form() {
        let mut pool = pool(0);
        let mut out: Vec<_> = core::iter::from_fn(|| pool.take()).collect();
        assert_eq!((out.len(), pool.free(), pool.blocks()), (4, 0, 4));
        let sealed = pool.seal(out.pop().unwrap(), usize::MAX);
        assert_eq!(sealed.bytes().len(), pool.room());
        pool.give_sealed(sealed).unwrap();
        pool.give_arrived(out.pop().unwrap().into_arrived(64)).unwrap();
        out.into_iter().for_each(|block| pool.give_vacant(block).unwrap());
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn blocks_of_another_pool_are_handed_back() {
        let (mut own, mut other_node, mut same_node) = (pool(0), pool(1), pool(0));
        let _out = own.take().unwrap();
        assert!(own.give_vacant(other_node.take().unwrap()).is_err());
        assert!(own.give_vacant(same_node.take().unwrap()).is_err());
        assert_eq!(own.free(), 3);
    }
}
