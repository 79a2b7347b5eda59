//! The tokens that own a block as it travels.

use core::ptr::NonNull;
use core::slice;

use crate::cdu::BLOCK_HEADER;
use crate::id::BlockId;

/// Address, room and identity of a block. Owning the value is owning the block.
#[derive(Debug)]
pub(crate) struct RawBlock {
    pub(super) id: BlockId,
    pub(super) base: NonNull<u8>,
    pub(super) room: u32,
}

// SAFETY: the value is the only right to its block, and the block's memory is plain bytes that stay where they are.
unsafe impl Send for RawBlock {}

impl RawBlock {
    pub(crate) fn id(&self) -> BlockId {
        self.id
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn bytes(&self, length: usize) -> &[u8] {
        debug_assert!(length <= self.room as usize);
        // SAFETY: the block is `room` initialised bytes, `length` of them are asked for, and this value owns it.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), length) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.room as usize) }
    }

    pub(crate) fn body_mut(&mut self) -> &mut [u8] {
        // SAFETY: a block has `BLOCK_HEADER` bytes and more, see `stride`.
        let body = unsafe { self.base.add(BLOCK_HEADER) };
        // SAFETY: as in `bytes_mut`, less the header.
        unsafe { slice::from_raw_parts_mut(body.as_ptr(), self.room as usize - BLOCK_HEADER) }
    }
}

/// A block ready to travel: header and body are final. The transport owns it until the completion gives it back.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost to the pool"]
pub struct SealedBlock {
    pub(crate) raw: RawBlock,
    pub(crate) length: u32,
}

impl SealedBlock {
    /// The block's name.
    pub fn id(&self) -> BlockId {
        self.raw.id
    }

    /// Header and body.
    pub fn bytes(&self) -> &[u8] {
        self.raw.bytes(self.length as usize)
    }

    pub(crate) fn header_mut(&mut self) -> &mut [u8] {
        let header = self.raw.bytes_mut();
        header.get_mut(..BLOCK_HEADER).unwrap_or(&mut [])
    }

    /// Address and length of header and body, for a transport that hands the block over in place. The block is out of
    /// Rust's sight until [`from_raw`](Self::from_raw).
    pub fn into_raw(self) -> (BlockId, NonNull<u8>, u32) {
        (self.raw.id, self.raw.base, self.length)
    }

    /// Takes up a block that [`into_raw`](Self::into_raw) put down.
    ///
    /// # Safety
    /// The three values come from one call of `into_raw`, no token was made of them since, and nobody reads the block
    /// any more.
    pub unsafe fn from_raw(id: BlockId, base: NonNull<u8>, length: u32) -> Self {
        Self { raw: RawBlock { id, base, room: length }, length }
    }
}

/// One of our blocks without data, given to a transport to receive into.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost to the pool"]
pub struct VacantBlock {
    pub(crate) raw: RawBlock,
}

impl VacantBlock {
    /// The block's name.
    pub fn id(&self) -> BlockId {
        self.raw.id
    }

    /// Where header and body go.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.raw.bytes_mut()
    }

    /// The block now holds what a peer sent: `length` bytes of header and body (cut to the block's room).
    pub fn into_arrived(self, length: usize) -> ArrivedBlock {
        let length = length.min(self.raw.room as usize) as u32;
        ArrivedBlock { raw: self.raw, length }
    }
}

/// A block that came from a peer: one of our own, filled by the transport, or the peer's, to be read in place.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost to its owner's pool"]
pub struct ArrivedBlock {
    pub(crate) raw: RawBlock,
    pub(crate) length: u32,
}

impl ArrivedBlock {
    /// The block's name; its segment is the node that owns it.
    pub fn id(&self) -> BlockId {
        self.raw.id
    }

    /// Header and body.
    pub fn bytes(&self) -> &[u8] {
        self.raw.bytes(self.length as usize)
    }

    /// A block of a peer's UMB, to be read in place.
    ///
    /// # Safety
    /// `base` is aligned to 8 bytes and valid for reads of `length` bytes, which nobody writes, until the token is
    /// handed to [`Op::Return`](crate::Op::Return).
    pub unsafe fn in_place(id: BlockId, base: NonNull<u8>, length: u32) -> Self {
        Self { raw: RawBlock { id, base, room: length }, length }
    }
}

impl SealedBlock {
    /// The block as it arrives at a part of the same node.
    pub(crate) fn into_arrived(self) -> ArrivedBlock {
        ArrivedBlock { raw: self.raw, length: self.length }
    }
}
