//! The writer's token.

use super::block::{RawBlock, SealedBlock, Token};
use crate::cdu::{BLOCK_HEADER, Full, Lent, Packed, Packer, Route, SegmentHeader};
use crate::id::{NodeId, PartId};
use crate::routing::LinkId;

/// Identifies the stream segment that a block carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTag {
    /// The public pipe of the stream at its source (`group` and `PipeA` of MTA).
    pub group: u16,
    /// The stream's number.
    pub number: crate::id::StreamNo,
    /// Number of this segment, from 0; see [`after`](Self::after).
    pub segment: u32,
    /// The receiving part.
    pub dest: PartId,
    /// Marks the first or last segment, or an aborted stream: bits of [`flag`](crate::cdu::flag).
    pub flags: u16,
}

impl StreamTag {
    /// The number of the segment after number `segment`. The numbers wrap around to 1: 0 means that a stream begins.
    #[inline]
    pub const fn after(segment: u32) -> u32 {
        match segment.checked_add(1) {
            Some(next) => next,
            None => 1,
        }
    }
}

/// A block being filled with CDUs by its holder. Send it with [`Engine::submit`](crate::Engine::submit).
#[derive(Debug)]
#[must_use = "a block that is not submitted is lost to the pool"]
pub struct OpenBlock {
    pub(crate) raw: RawBlock,
    pub(crate) packer: Packer,
    pub(crate) dest: NodeId,
    pub(crate) row: LinkId,
    /// How often the link had been closed when the block was opened. After another time its messages do not travel: earlier ones
    /// may have been lost.
    pub(crate) closings: u32,
    pub(crate) load: Load,
}

// A larger value would be moved by calling `memcpy`.
const _: () = assert!(size_of::<OpenBlock>() <= 128);

/// What a block carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Messages,
    /// Messages that overtake others waiting for the same node.
    Urgent,
    /// A segment of a stream.
    Segment(StreamTag),
}

impl OpenBlock {
    /// The node that the block goes to.
    #[inline]
    pub fn dest(&self) -> NodeId {
        self.dest
    }

    /// Bytes packed so far.
    #[inline]
    pub fn written(&self) -> usize {
        self.packer.written()
    }

    /// Messages packed so far.
    #[inline]
    pub fn messages(&self) -> u32 {
        self.packer.messages()
    }

    /// Total bytes available to CDUs.
    #[inline]
    pub fn room(&self) -> usize {
        self.raw.room as usize - BLOCK_HEADER
    }

    /// Limits the block to `room` bytes of CDUs, so that it leaves sooner. Everything already packed stays.
    #[inline]
    pub fn limit(&mut self, room: usize) {
        let least = (self.packer.written() + 7) & !7;
        self.raw.room = (BLOCK_HEADER + self.room().min(room.max(least))) as u32;
    }

    /// Makes the block a segment of a stream. Such a block holds one CDU.
    pub fn set_stream(&mut self, tag: StreamTag) {
        self.load = Load::Segment(tag);
    }

    /// Appends one message; see [`Packer::push`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    #[inline(always)]
    pub fn push(&mut self, route: Route, data: &[u8]) -> Result<(), Full> {
        self.reserve(route, data.len())?.copy_from_slice(data);
        Ok(())
    }

    /// Reserves room for one message; see [`Packer::reserve`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    #[inline(always)]
    pub fn reserve(&mut self, route: Route, length: usize) -> Result<&mut [u8], Full> {
        let Self { raw, packer, .. } = self;
        packer.reserve(raw.body_mut(), route, length)
    }

    /// Appends one message of `length` bytes, which `fill` writes in place. If that panics, nothing was appended.
    ///
    /// # Errors
    /// Hands `fill` back if there is no room.
    #[inline]
    pub(crate) fn push_with<F: FnOnce(&mut [u8])>(
        &mut self,
        route: Route,
        length: usize,
        fill: F,
    ) -> Result<(), F> {
        let Self { raw, packer, .. } = self;
        let mut packed = *packer;
        let Ok(room) = packed.reserve(raw.body_mut(), route, length) else { return Err(fill) };
        fill(room);
        *packer = packed;
        Ok(())
    }

    /// Lends the open train and the room after it to a caller that packs by itself; see [`Packer::lend`].
    #[inline]
    pub fn lend_room(&mut self) -> Option<Lent<'_>> {
        let Self { raw, packer, .. } = self;
        packer.lend(raw.body_mut())
    }

    /// Records what was packed into [lent room](Self::lend_room); see [`Packer::commit`].
    #[inline]
    pub fn commit(&mut self, packed: Packed) {
        let Self { raw, packer, .. } = self;
        packer.commit(raw.body_mut(), packed);
    }

    /// Reserves room for several messages of one length; see [`Packer::reserve_train`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    pub fn reserve_train(
        &mut self,
        route: Route,
        length: usize,
        most: u32,
    ) -> Result<(&mut [u8], u32), Full> {
        let Self { raw, packer, .. } = self;
        packer.reserve_train(raw.body_mut(), route, length, most)
    }

    /// Reserves room for a segment of a long message; see [`Packer::reserve_segment`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    pub fn reserve_segment(
        &mut self,
        route: Route,
        segment: SegmentHeader,
        length: usize,
    ) -> Result<&mut [u8], Full> {
        let Self { raw, packer, .. } = self;
        packer.reserve_segment(raw.body_mut(), route, segment, length)
    }

    /// Reserves room for a message to several parts; see [`Packer::reserve_set`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    pub fn reserve_set(
        &mut self,
        route: Route,
        set: &[PartId],
        segment: Option<SegmentHeader>,
        length: usize,
    ) -> Result<&mut [u8], Full> {
        let Self { raw, packer, .. } = self;
        packer.reserve_set(raw.body_mut(), route, set, segment, length)
    }

    /// Makes the block overtake others waiting for the same node. Has no effect on a segment of a stream, which would otherwise
    /// overtake earlier segments.
    pub fn into_urgent(self) -> Self {
        match self.load {
            Load::Segment(_) => self,
            _ => Self { load: Load::Urgent, ..self },
        }
    }

    /// The last `length` bytes packed, that is, the most recent reservation.
    pub fn last_reserved(&self, length: usize) -> &[u8] {
        let end = BLOCK_HEADER + self.packer.written();
        self.raw.bytes().get(end.saturating_sub(length)..end).unwrap_or(&[])
    }

    /// The current packing state. Pass it to [`rewind`](Self::rewind) to undo later reservations.
    pub fn mark(&self) -> Packer {
        self.packer
    }

    /// Undoes all reservations made since `mark` was taken, or all of them if `mark` is a new [`Packer`]. A mark beyond what is
    /// packed belongs to another block and is ignored.
    pub fn rewind(&mut self, mark: Packer) {
        if mark.written() <= self.packer.written() {
            self.packer = self.packer.rewound(mark);
        }
    }

    /// Closes the last train and returns the length of header and body.
    #[inline]
    pub(crate) fn finish(&mut self) -> u32 {
        let Self { raw, packer, .. } = self;
        (BLOCK_HEADER + packer.finish(raw.body_mut())) as u32
    }

    /// Converts to the block as it travels, with its header yet to be written; `length` counts header and body.
    #[inline]
    pub(crate) fn into_sealed(self, length: u32) -> SealedBlock {
        SealedBlock::new(self.raw, length as usize)
    }
}

impl Token for OpenBlock {
    #[inline]
    fn raw(&self) -> &RawBlock {
        &self.raw
    }
    #[inline]
    fn into_raw(self) -> RawBlock {
        self.raw
    }
}
