//! What is packed: messages, and pieces of them.

use super::Piece;
use crate::cdu::{Full, Packer, Route, SegmentHeader};
use crate::id::PartId;
use crate::umb::OpenBlock;

/// Something to be packed: a message, or a piece of one.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'m> {
    route: Route,
    data: &'m [u8],
    set: &'m [PartId],
    segment: Option<SegmentHeader>,
}

impl<'m> Outgoing<'m> {
    /// A message to one part.
    #[inline]
    pub const fn message(route: Route, data: &'m [u8]) -> Self {
        Self { route, data, set: &[], segment: None }
    }

    /// A message to all parts of a set; those on the node of the lane receive it.
    pub const fn to_set(route: Route, set: &'m [PartId], data: &'m [u8]) -> Self {
        Self { route, data, set, segment: None }
    }

    /// The same, as a segment of a longer message.
    #[must_use]
    pub const fn segment(self, header: SegmentHeader) -> Self {
        Self { segment: Some(header), ..self }
    }

    /// The same with other bytes.
    #[must_use]
    pub const fn with_bytes<'n>(self, data: &'n [u8]) -> Outgoing<'n>
    where
        'm: 'n,
    {
        Outgoing { data, ..self }
    }

    /// One of the segments into which it is cut.
    #[must_use]
    pub fn piece(&self, piece: &Piece) -> Self {
        let data = self.data.get(piece.range.clone()).unwrap_or(&[]);
        Self { data, segment: Some(piece.header), ..*self }
    }

    /// Its bytes.
    pub const fn bytes(&self) -> &'m [u8] {
        self.data
    }

    /// Whether it is one of the segments into which a message was cut.
    pub(super) const fn is_segment(&self) -> bool {
        self.segment.is_some()
    }

    /// Bytes by which it is decided how early its block leaves.
    pub(super) const fn length(&self) -> usize {
        self.data.len() + if self.set.is_empty() { 0 } else { Packer::overhead(self.set.len()) }
    }

    /// Appends it to a block.
    ///
    /// # Errors
    /// [`Full`] when there is no room; nothing was written.
    #[inline]
    pub fn pack(&self, block: &mut OpenBlock) -> Result<(), Full> {
        let (route, length) = (self.route, self.data.len());
        let room = match self.segment {
            _ if !self.set.is_empty() => block.reserve_set(route, self.set, self.segment, length),
            Some(segment) => block.reserve_segment(route, segment, length),
            None => block.reserve(route, length),
        };
        room?.copy_from_slice(self.data);
        Ok(())
    }
}
