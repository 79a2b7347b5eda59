//! What travels through the rings, and what is known of blocks that peers have.

use std::ptr::NonNull;

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::umb::Lender;
use pdbp_core::{ArrivedBlock, SealedBlock};

/// A block on its way through a ring, there or back. Each `put` into [`Away`] makes one, which goes to the peer once; the peer
/// makes one of the arrived block, which comes back once.
#[derive(Debug)]
pub(super) struct BlockRef {
    id: BlockId,
    base: NonNull<u8>,
    length: u32,
}

// SAFETY: a reference stands for a block that its sender has put away, whose memory every `Local` of the network keeps in place; whoever
// has the reference may read it.
unsafe impl Send for BlockRef {}

impl BlockRef {
    #[inline]
    fn new(id: BlockId, bytes: &[u8]) -> Self {
        Self { id, base: NonNull::from(bytes).cast(), length: bytes.len() as u32 }
    }

    /// The bytes, until the reference goes back.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the block's bytes stay as they are until the reference has come back to its sender, which takes it.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length as usize) }
    }
}

/// The blocks of a peer that are read here.
#[derive(Debug, Default)]
pub(super) struct Here(Lender);

impl Here {
    /// The block of a reference, at its reader.
    #[inline]
    pub(super) fn lend(&mut self, block_ref: BlockRef) -> ArrivedBlock {
        // SAFETY: the sender takes the block up again when its reference comes back, which `take_back` makes, or when this node's end of
        // the network is dropped, unless `outstanding` says then that it is read: so nobody writes it before. Its memory is kept by this
        // end, for ever in that case. Blocks begin on multiples of 64 bytes.
        unsafe { self.0.lend(block_ref.id, block_ref.base, block_ref.length) }
    }

    /// The reference that goes back to the owner of a block.
    ///
    /// # Errors
    /// The block, when it did not come by this link.
    #[inline]
    pub(super) fn take_back(&mut self, block: ArrivedBlock) -> Result<BlockRef, ArrivedBlock> {
        let block_ref = BlockRef::new(block.id(), block.bytes());
        self.0.take_back(block).map(|()| block_ref)
    }

    /// Whether blocks are read.
    pub(super) fn is_read(&self) -> bool {
        self.0.outstanding() > 0
    }
}

/// The blocks of one node that its peers have, by block index.
#[derive(Debug, Default)]
pub(super) struct Away(Vec<Option<Sent>>);

/// A block that a peer has.
#[derive(Debug)]
struct Sent {
    peer: NodeId,
    /// Its number among all that were sent to the peer.
    number: u64,
    block: SealedBlock,
}

impl Away {
    /// Keeps a block whose reference goes to `peer`.
    ///
    /// # Errors
    /// The block, when another one of that index is away.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        peer: NodeId,
        number: u64,
        block: SealedBlock,
    ) -> Result<BlockRef, SealedBlock> {
        let index = block.id().index as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        let block_ref = BlockRef::new(block.id(), block.bytes());
        match self.0.get_mut(index) {
            Some(slot @ None) => *slot = Some(Sent { peer, number, block }),
            _ => return Err(block),
        }
        Ok(block_ref)
    }

    /// Takes a block up again whose reference came back from `peer`. `None` for a reference that does not stand for a block that it
    /// has.
    #[inline]
    pub(super) fn take(&mut self, peer: NodeId, block_ref: BlockRef) -> Option<SealedBlock> {
        let slot = self.0.get_mut(block_ref.id.index as usize)?;
        let is_it = |sent: &mut Sent| {
            sent.peer == peer && std::ptr::eq(sent.block.bytes().as_ptr(), block_ref.base.as_ptr())
        };
        slot.take_if(is_it).map(|sent| sent.block)
    }

    /// Takes up the blocks that a peer had when it was dropped, from number `first` on, in the order in which they were sent.
    pub(super) fn take_all(&mut self, peer: NodeId, first: u64) -> Vec<SealedBlock> {
        let is_one = |sent: &mut Sent| sent.peer == peer && sent.number >= first;
        let mut taken: Vec<_> = self.0.iter_mut().filter_map(|slot| slot.take_if(is_one)).collect();
        taken.sort_by_key(|sent| sent.number);
        taken.into_iter().map(|sent| sent.block).collect()
    }
}
