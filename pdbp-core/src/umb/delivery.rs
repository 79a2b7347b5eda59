//! The reader's token.

use core::ptr::NonNull;
use core::slice;

use super::shared::Place;
use crate::cdu::BLOCK_HEADER;
use crate::id::NodeId;
use crate::routing::LinkId;

/// The kind of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryKind {
    /// Messages. All CDUs of the piece are for the receiving part.
    Messages {
        /// Whether they overtake other messages (commands).
        urgent: bool,
    },
    /// A segment of a stream: one CDU.
    Stream {
        /// The stream's number at its source node.
        number: crate::id::StreamNo,
        /// The segment's number, from 0.
        segment: u32,
        /// Whether no segment follows.
        last: bool,
        /// Whether the stream was aborted, by its writer or because a segment was lost.
        aborted: bool,
    },
    /// Messages or a segment of a stream that this part sent and that were not delivered because the link to [`Delivery::source`]
    /// has failed. They are returned in the order sent. All CDUs of the piece are this part's own.
    Returned {
        /// For a segment: the numbers of the stream and of the segment.
        stream: Option<(crate::id::StreamNo, u32)>,
    },
}

/// One part's right to read one piece of an arrived block in place. Return it with [`Engine::release`](crate::Engine::release).
///
/// The bytes stay valid as long as the value lives: if the holder of the block is dropped before all deliveries have come back, it
/// leaves the block in place forever.
#[derive(Debug)]
#[must_use = "a delivery that is not released keeps its block from being used again"]
pub struct Delivery {
    block: NonNull<u8>,
    start: u32,
    end: u32,
    row: u16,
    source: NodeId,
    element: u32,
    kind: DeliveryKind,
}

// SAFETY: the value gives shared access to bytes that nobody writes while it lives, which is safe from any thread.
unsafe impl Send for Delivery {}
// SAFETY: as for `Send`; `&Delivery` only reads.
unsafe impl Sync for Delivery {}

impl Delivery {
    /// A delivery of a piece, `start..end` after the header, of the block at `block`, which the engine holds at `place`. The caller
    /// must count the delivery, and leave the block unchanged until it has come back.
    #[inline]
    pub(super) fn new(
        block: NonNull<u8>,
        (start, end): (usize, usize),
        (row, element): Place,
        source: NodeId,
        kind: DeliveryKind,
    ) -> Self {
        Self { block, start: start as u32, end: end as u32, row: row.raw(), source, element, kind }
    }

    /// A second delivery of the same piece; the caller must count it.
    #[inline]
    pub(super) fn again(&self) -> Self {
        let Self { block, start, end, row, source, element, kind } = *self;
        Self { block, start, end, row, source, element, kind }
    }

    /// The place where the engine that made this delivery holds the block.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        (LinkId::from_raw(self.row), self.element)
    }

    /// Whether this piece belongs to the block held at `place` and begins at `start`.
    #[inline]
    pub(crate) fn begins_at(&self, place: Place, start: usize) -> bool {
        self.place() == place && self.start as usize == start
    }

    /// The node that sent the piece; for a returned one, the node it was addressed to.
    pub fn source(&self) -> NodeId {
        self.source
    }

    /// Whether this is a piece of the block at `block`, held at `place`.
    #[inline]
    pub(super) fn is_at(&self, block: NonNull<u8>, place: Place) -> bool {
        self.block == block && self.place() == place
    }

    /// Its kind.
    #[inline]
    pub fn kind(&self) -> DeliveryKind {
        self.kind
    }

    /// The header of the block that contains the piece.
    pub fn block(&self) -> &crate::cdu::BlockHeader {
        // SAFETY: the block has room for a header, of alignment 1, and stays unchanged until this value has come back; both are
        // ensured by its maker: `SharedBlock`, `Umb::lend_piece` or `Copies`.
        unsafe { self.block.cast().as_ref() }
    }

    /// The bytes of its CDUs.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the callers of `new` pass a range inside the block.
        let at = unsafe { self.block.add(BLOCK_HEADER + self.start as usize) };
        // SAFETY: as above; nobody writes the block until this value has come back.
        unsafe { slice::from_raw_parts(at.as_ptr(), (self.end - self.start) as usize) }
    }

    /// Its CDUs.
    pub fn cdus(&self) -> crate::cdu::Cdus<'_> {
        crate::cdu::Cdus::new(self.bytes())
    }
}
