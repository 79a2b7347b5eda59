//! The tokens that own a block at each stage of its journey.

use core::ptr::NonNull;
use core::slice;

use super::origin::Origin;
use crate::cdu::BLOCK_HEADER;
use crate::id::BlockId;

/// Address, room and identity of a block. Owning the value means owning the block. If the value is dropped, its home counts that,
/// and the block is not reused.
#[derive(Debug)]
pub(crate) struct RawBlock {
    pub(super) origin: Origin,
    pub(super) base: NonNull<u8>,
    pub(super) id: BlockId,
    /// Accessible bytes from `base` on: header and body, or fewer if the block is limited, sealed or filled. The next time the
    /// block is lent, the room is the full length again.
    pub(super) room: u32,
}

const _: () = assert!(size_of::<RawBlock>() <= 32);

// SAFETY: the value is the only access to its block, and the block's memory is plain bytes that stay where they are.
unsafe impl Send for RawBlock {}

impl RawBlock {
    /// Consumes the token without counting it as dropped, because its owner has taken the block back.
    #[inline]
    pub(super) fn forget(self) {
        core::mem::forget(self);
    }

    /// The block, limited to its first `length` bytes.
    #[inline]
    fn cut(self, length: usize) -> Self {
        let mut cut = self;
        cut.room = length.min(cut.room as usize) as u32;
        cut
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the block is `room` initialised bytes, and this value owns it.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.room as usize) }
    }

    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.room as usize) }
    }

    #[inline]
    pub(crate) fn body_mut(&mut self) -> &mut [u8] {
        // SAFETY: a block has `BLOCK_HEADER` bytes and more, see `stride`.
        let body = unsafe { self.base.add(BLOCK_HEADER) };
        // SAFETY: as in `bytes_mut`, less the header.
        unsafe { slice::from_raw_parts_mut(body.as_ptr(), self.room as usize - BLOCK_HEADER) }
    }
}

impl Drop for RawBlock {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: a home is freed only when no token of it remains.
        unsafe { self.origin.count_dropped() }
    }
}

/// A value that owns a block.
pub(crate) trait Token {
    fn raw(&self) -> &RawBlock;
    fn into_raw(self) -> RawBlock;
}

/// A block ready to travel, with final header and body. The transport owns it until the completion returns it.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost to the pool"]
pub struct SealedBlock {
    pub(super) raw: RawBlock,
}

impl SealedBlock {
    /// A block whose header and body are its first `length` bytes, limited to its room.
    #[inline]
    pub(crate) fn new(raw: RawBlock, length: usize) -> Self {
        Self { raw: raw.cut(length) }
    }

    /// The block's id.
    #[inline]
    pub fn id(&self) -> BlockId {
        self.raw.id
    }

    /// Header and body.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.raw.bytes()
    }

    #[inline]
    pub(crate) fn header_mut(&mut self) -> &mut [u8] {
        let header = self.raw.bytes_mut();
        header.get_mut(..BLOCK_HEADER).unwrap_or(&mut [])
    }

    /// Converts to the block as it arrives at a part of the same node.
    #[inline]
    pub(crate) fn into_arrived(self) -> ArrivedBlock {
        ArrivedBlock { raw: self.raw }
    }
}

/// An empty block of this node, given to a transport to receive into.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost to the pool"]
pub struct VacantBlock {
    pub(super) raw: RawBlock,
}

impl VacantBlock {
    /// The block's id.
    #[inline]
    pub fn id(&self) -> BlockId {
        self.raw.id
    }

    /// The memory for header and body.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.raw.bytes_mut()
    }

    /// Converts to a block that holds what a peer sent: `length` bytes of header and body, limited to the block's room.
    #[inline]
    pub fn into_arrived(self, length: usize) -> ArrivedBlock {
        ArrivedBlock { raw: self.raw.cut(length) }
    }
}

/// A block received from a peer: either this node's own block, filled by the transport, or the peer's block, read in place.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost to its owner's pool"]
pub struct ArrivedBlock {
    pub(super) raw: RawBlock,
}

impl ArrivedBlock {
    /// The block's id; its segment is the node that owns it.
    #[inline]
    pub fn id(&self) -> BlockId {
        self.raw.id
    }

    /// Header and body.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.raw.bytes()
    }

    /// Consumes the token without counting it as dropped, so it counts as outstanding forever.
    #[inline]
    pub(super) fn forget(self) {
        self.raw.forget();
    }
}

impl Token for SealedBlock {
    #[inline]
    fn raw(&self) -> &RawBlock {
        &self.raw
    }
    #[inline]
    fn into_raw(self) -> RawBlock {
        self.raw
    }
}

impl Token for VacantBlock {
    #[inline]
    fn raw(&self) -> &RawBlock {
        &self.raw
    }
    #[inline]
    fn into_raw(self) -> RawBlock {
        self.raw
    }
}

impl Token for ArrivedBlock {
    #[inline]
    fn raw(&self) -> &RawBlock {
        &self.raw
    }
    #[inline]
    fn into_raw(self) -> RawBlock {
        self.raw
    }
}

impl Token for RawBlock {
    #[inline]
    fn raw(&self) -> &RawBlock {
        self
    }
    #[inline]
    fn into_raw(self) -> RawBlock {
        self
    }
}
