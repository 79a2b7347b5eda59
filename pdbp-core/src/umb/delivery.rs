//! The token of a reader.

use core::ptr::NonNull;
use core::slice;

use super::block::ArrivedBlock;
use crate::cdu::BLOCK_HEADER;
use crate::id::NodeId;
use crate::routing::Slot;

/// What a delivery is a piece of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryKind {
    /// Messages; all CDUs of the piece are for the part it is delivered to.
    Messages {
        /// Whether they go ahead of other messages (commands).
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
        /// Whether the stream was given up, by its writer or because a segment was lost.
        aborted: bool,
    },
    /// Messages or a segment of a stream that this part has sent and that were not delivered, since the link to
    /// [`Delivery::source`] has failed; in the order in which they were sent. All CDUs of the piece are this part's.
    Returned {
        /// Of a segment: the stream's number, and the segment's.
        stream: Option<(crate::id::StreamNo, u32)>,
    },
}

/// The right of one part to read one piece of an arrived block in place. Goes back with
/// [`Engine::release`](crate::Engine::release).
///
/// The bytes stay valid for as long as the value lives: an engine that is dropped while deliveries or open blocks exist
/// leaves its memory and its transport in place (leaks them) instead of freeing them.
#[derive(Debug)]
#[must_use = "a delivery that is not released keeps its block from being used again"]
pub struct Delivery {
    block: NonNull<u8>,
    start: u32,
    end: u32,
    pub(crate) row: u16,
    source: NodeId,
    pub(crate) element: u32,
    kind: DeliveryKind,
}

// SAFETY: the value gives shared access to bytes that nobody writes while it lives; that is safe from any thread.
unsafe impl Send for Delivery {}
// SAFETY: as for `Send`; `&Delivery` only reads.
unsafe impl Sync for Delivery {}

impl Delivery {
    /// A piece, `start..end` behind the header, of the block in element `element` of row `row`.
    pub(crate) fn new(
        block: &ArrivedBlock,
        (start, end): (usize, usize),
        (row, element): (Slot, u32),
        source: NodeId,
        kind: DeliveryKind,
    ) -> Self {
        debug_assert!(start <= end && BLOCK_HEADER + end <= block.length as usize);
        Self {
            block: block.raw.base(),
            start: start as u32,
            end: end as u32,
            row: row.raw(),
            source,
            element,
            kind,
        }
    }

    /// The same piece again, for the engine that counts its readers.
    pub(crate) fn again(&self) -> Self {
        let Self { block, start, end, row, source, element, kind } = *self;
        Self { block, start, end, row, source, element, kind }
    }

    /// The node that sent it; of what was returned the node that it was for.
    pub fn source(&self) -> NodeId {
        self.source
    }

    /// Whether it is a piece of `block`, as held by element `element` of row `row`.
    pub(crate) fn is_of(&self, block: &ArrivedBlock, (row, element): (Slot, u32)) -> bool {
        self.block == block.raw.base() && self.row == row.raw() && self.element == element
    }

    /// What it is.
    pub fn kind(&self) -> DeliveryKind {
        self.kind
    }

    /// The header of the block that it lies in.
    pub fn block(&self) -> &crate::cdu::BlockHeader {
        // SAFETY: the block starts with a header, of alignment 1, that was read when it arrived; the engine keeps the
        // block until this value is released (see the type's documentation).
        unsafe { self.block.cast().as_ref() }
    }

    /// The bytes of its CDUs.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `new` was given a range inside the block.
        let at = unsafe { self.block.add(BLOCK_HEADER + self.start as usize) };
        // SAFETY: as above; the engine keeps the block until this value is released, and nobody writes it.
        unsafe { slice::from_raw_parts(at.as_ptr(), (self.end - self.start) as usize) }
    }

    /// Its CDUs.
    pub fn cdus(&self) -> crate::cdu::Cdus<'_> {
        crate::cdu::Cdus::new(self.bytes())
    }
}
