//! What travels through the rings, and the record of blocks that peers hold.

use std::ptr::NonNull;

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::umb::Lender;
use pdbp_core::{ArrivedBlock, SealedBlock};

/// A block in flight through a ring, in either direction. Each `put` into [`Outstanding`] makes one, which goes to the peer once; the peer
/// makes one from the arrived block, which comes back once.
#[derive(Debug)]
pub(super) struct BlockRef {
    id: BlockId,
    base: NonNull<u8>,
    length: u32,
}

// SAFETY: a reference stands for a block that its sender has put away, whose memory every `Local` of the network keeps in place; the
// holder of the reference may read it.
unsafe impl Send for BlockRef {}

impl BlockRef {
    #[inline]
    fn new(id: BlockId, bytes: &[u8]) -> Self {
        Self { id, base: NonNull::from(bytes).cast(), length: bytes.len() as u32 }
    }

    /// The bytes, until the reference goes back.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the block's bytes are not changed until the reference has come back to its sender, which consumes it.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length as usize) }
    }
}

/// The blocks of a peer that are being read here.
#[derive(Debug, Default)]
pub(super) struct Borrowed(Lender);

impl Borrowed {
    /// Lends the reader the block of a reference.
    #[inline]
    pub(super) fn lend(&mut self, block_ref: BlockRef) -> ArrivedBlock {
        // SAFETY: the sender takes the block up again when its reference comes back, which `take_back` makes, or when this node's end of
        // the network is dropped, unless `outstanding` reports then that it is being read: so it is not written before. This end keeps
        // its memory, in that case for ever. Blocks begin on multiples of 64 bytes.
        unsafe { self.0.lend(block_ref.id, block_ref.base, block_ref.length) }
    }

    /// Takes a block back from its reader, and returns the reference that goes back to the block's owner.
    ///
    /// # Errors
    /// Returns the block if it did not come by this link.
    #[inline]
    pub(super) fn take_back(&mut self, block: ArrivedBlock) -> Result<BlockRef, ArrivedBlock> {
        let block_ref = BlockRef::new(block.id(), block.bytes());
        self.0.reclaim(block).map(|()| block_ref)
    }

    /// Whether any blocks are being read.
    pub(super) fn has_readers(&self) -> bool {
        self.0.outstanding() > 0
    }
}

/// The blocks of one node that its peers hold, by block index.
#[derive(Debug, Default)]
pub(super) struct Outstanding(Vec<Option<Sent>>);

/// A block that a peer holds.
#[derive(Debug)]
struct Sent {
    peer: NodeId,
    /// Its number among all blocks sent to the peer.
    number: u64,
    block: SealedBlock,
}

impl Outstanding {
    /// Keeps a block whose reference goes to `peer`.
    ///
    /// # Errors
    /// Returns the block if another one of that index is away.
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

    /// Takes back a block whose reference came back from `peer`. Returns `None` if the reference does not stand for a block that the
    /// peer holds.
    #[inline]
    pub(super) fn take(&mut self, peer: NodeId, block_ref: BlockRef) -> Option<SealedBlock> {
        let slot = self.0.get_mut(block_ref.id.index as usize)?;
        let is_match = |sent: &mut Sent| {
            sent.peer == peer && std::ptr::eq(sent.block.bytes().as_ptr(), block_ref.base.as_ptr())
        };
        slot.take_if(is_match).map(|sent| sent.block)
    }

    /// Takes back the blocks that a peer held when it was dropped, from number `first` on, in the order in which they were sent.
    pub(super) fn take_all(&mut self, peer: NodeId, first: u64) -> Vec<SealedBlock> {
        let is_one = |sent: &mut Sent| sent.peer == peer && sent.number >= first;
        let mut taken: Vec<_> = self.0.iter_mut().filter_map(|slot| slot.take_if(is_one)).collect();
        taken.sort_by_key(|sent| sent.number);
        taken.into_iter().map(|sent| sent.block).collect()
    }
}
