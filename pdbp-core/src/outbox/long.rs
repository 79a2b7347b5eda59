//! Messages longer than a block, cut into segments.

use core::ops::Range;

use crate::cdu::SegmentHeader;
use crate::flaw::Flaw;

/// The progress of a message that is sent in segments. The sender keeps the bytes, so if there is no room now it can continue
/// later from the same place.
///
/// ```
/// use pdbp_core::outbox::LongMessage;
///
/// let message = [7; 1000];
/// let mut long = LongMessage::new(3, message.len(), 400);
/// let mut lengths = Vec::new();
/// while let Some(piece) = long.piece() {
///     lengths.push(message[piece.range.clone()].len());
///     // Packed with `piece.header`, or tried again later; then:
///     long.advance();
/// }
/// assert_eq!(lengths, [400, 400, 200]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongMessage {
    number: u32,
    bytes: usize,
    most: usize,
    /// The number of the next segment, and its offset in the message.
    segment: u32,
    at: usize,
}

/// The next segment of a [`LongMessage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The header of its CDU.
    pub header: SegmentHeader,
    /// Its bytes, as a range of the message.
    pub range: Range<usize>,
}

impl LongMessage {
    /// Creates a message of `bytes` bytes in segments of `most` bytes (at least 1). `number` is its number at the sending part.
    pub fn new(number: u32, bytes: usize, most: usize) -> Self {
        Self { number, bytes, most: most.max(1), segment: 0, at: 0 }
    }

    /// The next segment; `None` when all have been packed.
    pub fn piece(&self) -> Option<Piece> {
        if self.at >= self.bytes {
            return None;
        }
        let header = SegmentHeader::new(self.number, self.segment, self.bytes as u64);
        let cut = usize::from(Flaw::CutsSegment.strikes());
        Some(Piece { header, range: self.at..self.end() - cut })
    }

    /// Advances past the next segment once that has been packed.
    pub fn advance(&mut self) {
        let next = u32::from(!Flaw::RepeatsSegment.strikes());
        (self.at, self.segment) = (self.end(), self.segment.wrapping_add(next));
    }

    /// Number of bytes packed so far.
    pub fn sent(&self) -> usize {
        self.at
    }

    fn end(&self) -> usize {
        self.at.saturating_add(self.most).min(self.bytes)
    }
}
