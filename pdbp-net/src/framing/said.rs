//! What is on its way out on a connection.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Slices that go out in one call to the system: those of a message with the most blocks.
pub(crate) const SLICES: usize = 36;
/// Text that has left and is kept, until it is more than that.
const LEFT: usize = 16 << 10;

/// Messages: pieces of text, some with a block behind them.
#[derive(Default)]
pub(crate) struct Said {
    text: Vec<u8>,
    /// Bytes of the text that have left.
    left: usize,
    /// Where the text begins that is in no piece yet.
    open: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have left, and whether its message has begun to leave.
    offset: usize,
    begun: bool,
    /// Whether a message has wholly left.
    has_left: bool,
}

struct Piece {
    text: usize,
    /// The number of the block behind it.
    block: Option<u64>,
    /// Whether a message ends with it.
    ends: bool,
}

impl Said {
    /// Where the text of the next piece is added.
    pub(crate) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// What was added is a piece.
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

    /// Whether a message has wholly left.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Pieces that have not wholly left.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// What is to leave next, where `bytes_of` has the blocks: so many of these slices.
    pub(crate) fn slices<'a>(
        &'a self,
        bytes_of: impl Fn(Option<u64>) -> &'a [u8],
    ) -> ([IoSlice<'a>; SLICES], usize) {
        let (mut slices, mut count) = ([IoSlice::new(&[]); SLICES], 0);
        let (mut skip, mut text) = (self.offset, self.text.get(self.left..).unwrap_or(&[]));
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

    /// So many bytes have left. `written` is told of each block that has wholly left.
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
            (self.left, self.begun) = (self.left + piece.text, !piece.ends);
            self.has_left |= piece.ends;
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() && self.left == self.text.len() {
            self.text.clear();
            (self.left, self.open) = (0, 0);
        } else if self.left > LEFT {
            self.text.drain(..self.left);
            (self.left, self.open) = (0, self.open - self.left);
        }
    }

    /// Nothing leaves any more but the rest of the message that has begun to. How many messages do not.
    pub(crate) fn end_after_begun(&mut self) -> usize {
        let begun = if self.begun { self.pieces.iter().position(|piece| piece.ends) } else { None };
        let kept = begun.map_or(0, |last| last + 1);
        let dropped = self.pieces.iter().skip(kept).filter(|piece| piece.ends).count();
        self.pieces.truncate(kept);
        self.open = self.left + self.pieces.iter().map(|piece| piece.text).sum::<usize>();
        self.text.truncate(self.open);
        dropped
    }
}
