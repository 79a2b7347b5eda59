//! Blocks out of Rust's sight: what travels through the rings, and what is known of blocks that peers have.

use std::ptr::NonNull;

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::{ArrivedBlock, SealedBlock};

/// A block on its way through a ring, there or back. Each `put` into [`Away`] makes one, which goes to the peer once; the peer
/// makes one of the arrived block, which comes back once.
#[derive(Debug)]
pub(super) struct Parcel {
    id: BlockId,
    base: NonNull<u8>,
    length: u32,
}

// SAFETY: a parcel stands for a block that its sender has let go of (`SealedBlock::into_raw`); the memory it points to is
// kept alive by every `Local` of the network.
unsafe impl Send for Parcel {}

impl Parcel {
    /// The parcel that goes back to the owner of an arrived block, which the caller gives up.
    pub(super) fn of(block: &ArrivedBlock) -> Self {
        Self { id: block.id(), base: NonNull::from(block.bytes()).cast(), length: block.bytes().len() as u32 }
    }

    /// The block at its reader.
    pub(super) fn into_arrived(self) -> ArrivedBlock {
        // SAFETY: the sender gave the block up with `into_raw` and takes it up again only when the parcel has come back, so
        // nobody writes it before; its memory lives as long as this node's `Local`. Blocks begin on multiples of 64 bytes.
        unsafe { ArrivedBlock::in_place(self.id, self.base, self.length) }
    }
}

/// The blocks of one node that its peers have, by block index.
#[derive(Debug, Default)]
pub(super) struct Away {
    blocks: Vec<Option<(NodeId, NonNull<u8>, u32)>>,
    segment: Option<NodeId>,
}

// SAFETY: addresses of blocks that are owned by this table until they are taken out.
unsafe impl Send for Away {}

impl Away {
    /// Lets go of a block; its parcel goes to `peer`.
    pub(super) fn put(&mut self, peer: NodeId, block: SealedBlock) -> Parcel {
        let (id, base, length) = block.into_raw();
        let index = id.index as usize;
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, None);
        }
        self.segment = Some(id.segment);
        self.blocks[index] = Some((peer, base, length));
        Parcel { id, base, length }
    }

    /// Takes a block up again whose parcel came back from `peer`. `None` for a parcel that does not stand for a block that it
    /// has.
    pub(super) fn take(&mut self, peer: NodeId, parcel: Parcel) -> Option<SealedBlock> {
        let slot = self.blocks.get_mut(parcel.id.index as usize)?;
        let (_, base, length) = slot.take_if(|(holder, base, _)| *holder == peer && *base == parcel.base)?;
        // SAFETY: the three values are those of `into_raw` in `put`; taking them out of the table makes sure that this
        // happens once; the peer gave the block up by sending the parcel back.
        Some(unsafe { SealedBlock::from_raw(parcel.id, base, length) })
    }

    /// Takes up all blocks that a peer had when it was dropped.
    pub(super) fn take_all(&mut self, peer: NodeId) -> Vec<SealedBlock> {
        let Some(segment) = self.segment else { return Vec::new() };
        let mut taken = Vec::new();
        for (index, slot) in self.blocks.iter_mut().enumerate() {
            if let Some((_, base, length)) = slot.take_if(|(holder, ..)| *holder == peer) {
                let id = BlockId { segment, index: index as u32 };
                // SAFETY: as in `take`; the peer's `Local` is gone, and with it all readers (an engine that has readers left
                // leaks its transport instead of dropping it).
                taken.push(unsafe { SealedBlock::from_raw(id, base, length) });
            }
        }
        taken
    }
}
