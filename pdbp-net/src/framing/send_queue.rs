//! The send queue of a connection.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Maximum slices per vectored write: enough for a message with the most blocks.
pub(crate) const SLICES: usize = 36;
/// Bytes of sent text that are kept before the rest is moved to the front.
const COMPACT_AT: usize = 16 << 10;

/// Messages to send: pieces of text, some of them followed by a block.
#[derive(Default)]
pub(crate) struct SendQueue {
    text: Vec<u8>,
    /// Bytes of the text that have been sent.
    sent: usize,
    /// Where the text starts that is not in a piece yet.
    open: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have been sent, and whether its message has been sent in part.
    offset: usize,
    begun: bool,
    /// Whether any message has been sent completely.
    has_completed: bool,
}

struct Piece {
    text: usize,
    /// The number of the block that follows it.
    block: Option<u64>,
    /// Whether a message ends with it.
    ends: bool,
}

impl SendQueue {
    /// The text, to which that of the next piece is appended.
    pub(crate) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Ends a piece: the text appended since the last one, and the block that follows it.
    pub(crate) fn end_piece(&mut self, block: Option<u64>) {
        let text = self.text.len() - self.open;
        self.open = self.text.len();
        self.pieces.push_back(Piece { text, block, ends: false });
    }

    /// A message ends with the last piece.
    pub(crate) fn end_message(&mut self) {
        if let Some(last) = self.pieces.back_mut() {
            last.ends = true;
        }
    }

    /// Whether any message has been sent completely.
    pub(crate) fn has_completed(&self) -> bool {
        self.has_completed
    }

    /// Number of pieces that have not been sent completely.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The slices to send next, and how many they are. `bytes_of` gives the bytes of a block.
    pub(crate) fn slices<'a>(
        &'a self,
        bytes_of: impl Fn(Option<u64>) -> &'a [u8],
    ) -> ([IoSlice<'a>; SLICES], usize) {
        let (mut slices, mut count) = ([IoSlice::new(&[]); SLICES], 0);
        let (mut skip, mut text) = (self.offset, self.text.get(self.sent..).unwrap_or(&[]));
        'all: for piece in &self.pieces {
            let (own, rest) = text.split_at(piece.text.min(text.len()));
            text = rest;
            for bytes in [own, bytes_of(piece.block)] {
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                if skipped < bytes.len() {
                    let Some(slice) = slices.get_mut(count) else { break 'all };
                    *slice = IoSlice::new(bytes.get(skipped..).unwrap_or(&[]));
                    count += 1;
                }
            }
        }
        (slices, count)
    }

    /// Notes that this many bytes have been sent. Calls `written` for each block that has been sent completely.
    pub(crate) fn advance(
        &mut self,
        count: usize,
        length_of: impl Fn(Option<u64>) -> usize,
        mut written: impl FnMut(u64),
    ) {
        self.offset += count;
        while let Some(piece) = self.pieces.front() {
            let length = piece.text + length_of(piece.block);
            if self.offset < length {
                self.begun |= self.offset > 0;
                break;
            }
            self.offset -= length;
            if let Some(number) = piece.block {
                written(number);
            }
            (self.sent, self.begun) = (self.sent + piece.text, !piece.ends);
            self.has_completed |= piece.ends;
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() && self.sent == self.text.len() {
            self.text.clear();
            (self.sent, self.open) = (0, 0);
        } else if self.sent > COMPACT_AT {
            self.text.drain(..self.sent);
            (self.sent, self.open) = (0, self.open - self.sent);
        }
    }

    /// Drops all messages except one that has been sent in part. Returns how many were dropped.
    pub(crate) fn truncate_to_begun(&mut self) -> usize {
        let begun = if self.begun { self.pieces.iter().position(|piece| piece.ends) } else { None };
        let kept = begun.map_or(0, |last| last + 1);
        let dropped = self.pieces.iter().skip(kept).filter(|piece| piece.ends).count();
        self.pieces.truncate(kept);
        self.open = self.sent + self.pieces.iter().map(|piece| piece.text).sum::<usize>();
        self.text.truncate(self.open);
        dropped
    }
}
