//! What is packed: messages, and segments of messages.

use super::Piece;
use crate::cdu::{Full, Packer, Route, SegmentHeader};
use crate::id::PartId;
use crate::umb::OpenBlock;

/// How messages are copied into blocks: by the processor, or by a function of the host.
#[derive(Clone, Copy, Default)]
pub struct CopyBy<'m>(Option<&'m dyn Copying>);

/// A function that copies bytes into a slice of the same length.
pub trait Copying: Fn(&mut [u8], &[u8]) {}

impl<F: Fn(&mut [u8], &[u8])> Copying for F {}

impl<'m> CopyBy<'m> {
    /// Copies by this function, or by the processor if there is none.
    pub const fn function(function: Option<&'m dyn Copying>) -> Self {
        Self(function)
    }

    /// Copies bytes into a slice of the same length.
    ///
    /// # Panics
    /// If the lengths differ. A host's function may behave differently.
    pub fn copy(self, into: &mut [u8], from: &[u8]) {
        match self.0 {
            Some(function) => function(into, from),
            None => into.copy_from_slice(from),
        }
    }
}

impl core::fmt::Debug for CopyBy<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.0.is_some() { "CopyBy(a function)" } else { "CopyBy(the processor)" })
    }
}

/// A message, or a segment of one, to be packed.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'m> {
    route: Route,
    data: &'m [u8],
    set: &'m [PartId],
    segment: Option<SegmentHeader>,
    copy: CopyBy<'m>,
}

impl<'m> Outgoing<'m> {
    /// A message to one part.
    #[inline]
    pub const fn message(route: Route, data: &'m [u8]) -> Self {
        Self { route, data, set: &[], segment: None, copy: CopyBy(None) }
    }

    /// A message to a set of parts, received by those on the destination node.
    pub const fn to_set(route: Route, set: &'m [PartId], data: &'m [u8]) -> Self {
        Self { route, data, set, segment: None, copy: CopyBy(None) }
    }

    /// The same message as a segment of a longer one.
    #[must_use]
    pub const fn segment(self, header: SegmentHeader) -> Self {
        Self { segment: Some(header), ..self }
    }

    /// The same message, copied as `copy` specifies.
    #[must_use]
    pub const fn copied(self, copy: CopyBy<'m>) -> Self {
        Self { copy, ..self }
    }

    /// The same message with other bytes.
    #[must_use]
    pub const fn with_bytes<'n>(self, data: &'n [u8]) -> Outgoing<'n>
    where
        'm: 'n,
    {
        Outgoing { data, ..self }
    }

    /// One segment of this message.
    #[must_use]
    pub fn piece(&self, piece: &Piece) -> Self {
        let data = self.data.get(piece.range.clone()).unwrap_or(&[]);
        Self { data, segment: Some(piece.header), ..*self }
    }

    /// Its bytes.
    pub const fn bytes(&self) -> &'m [u8] {
        self.data
    }

    /// Whether it is a message to one part in one piece, copied by the processor.
    pub const fn is_plain(&self) -> bool {
        self.set.is_empty() && self.segment.is_none() && self.copy.0.is_none()
    }

    /// Whether it is a segment of a longer message.
    pub(super) const fn is_segment(&self) -> bool {
        self.segment.is_some()
    }

    /// Size in bytes; determines how early its block leaves.
    pub(super) const fn length(&self) -> usize {
        self.data.len() + if self.set.is_empty() { 0 } else { Packer::overhead(self.set.len()) }
    }

    /// Appends it to a block.
    ///
    /// # Errors
    /// [`Full`] if there is no room; nothing was written.
    #[inline]
    pub fn pack(&self, block: &mut OpenBlock) -> Result<(), Full> {
        let (route, length) = (self.route, self.data.len());
        let room = match self.segment {
            _ if !self.set.is_empty() => block.reserve_set(route, self.set, self.segment, length),
            Some(segment) => block.reserve_segment(route, segment, length),
            None => block.reserve(route, length),
        };
        self.copy.copy(room?, self.data);
        Ok(())
    }
}
