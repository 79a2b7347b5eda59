//! What is laid out in blocks.

use std::ops::Range;

use super::{Arrived, HostBlock, VacantBlock};
use crate::device::{DeviceError, Piece};

/// The messages of one block, as they are laid out: which bytes of the device's memory belong where in the block.
///
/// Bytes that lie side by side at both ends become one piece, whatever messages they are of.
pub struct Pieces<'t> {
    table: &'t mut [Piece],
    /// Entries that are used.
    count: usize,
    messages: usize,
    /// Bytes of the memory that messages may lie in.
    window: Range<usize>,
    /// Bytes of the block from the first to the last of a message.
    span: Option<Range<usize>>,
    /// A message does not lie in the window.
    beyond: Option<DeviceError>,
}

/// Messages of one length, equally far apart in the memory, and side by side in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Where the first begins in the memory.
    pub at: usize,
    /// Bytes from the beginning of one to that of the next.
    pub apart: usize,
    /// Bytes of each.
    pub bytes: usize,
    /// How many.
    pub count: usize,
}

/// The list of a block has no entry left for a message: it belongs in the next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// What a block's list says when it is done.
pub(super) struct Listed {
    pub(super) count: usize,
    pub(super) messages: usize,
    /// `None` when the messages have no bytes.
    pub(super) span: Option<Range<usize>>,
}

/// Blocks of messages: those that wait to be received, for a [`Scatter`](super::Scatter), or that are to be sent. No call waits.
pub trait Bundles {
    /// A block with messages in it.
    type Block: HostBlock;
    /// What can go wrong.
    type Error;

    /// The next block: lists its messages, one by one. A block to be sent is laid out, and the bytes of its messages come later.
    ///
    /// # Errors
    /// No more blocks will come, though there are messages left.
    fn poll_bundle(&mut self, pieces: &mut Pieces<'_>) -> Result<Arrived<Self::Block>, Self::Error>;
}

/// Where the blocks of a [`Gather`](super::Gather) go.
pub trait Outgoing: Bundles<Block: VacantBlock> {
    /// Sends a block that has the bytes of all its messages. Between these it holds nothing of use: what belongs there is written
    /// now. Blocks come in the order in which they were laid out.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    fn send(&mut self, block: Self::Block) -> Result<(), Self::Error>;
}

/// The most bytes of a piece: longer ones are several, so that all warps of a kernel have a like share.
const LONGEST: u32 = 4096;

/// Entries that a table for blocks of so many bytes has: as many as there can be messages of 12 bytes, wherever these are, and enough
/// for a few of less.
pub(super) const fn entries(block: usize) -> usize {
    let entries = block / 12;
    if entries < 64 { 64 } else { entries }
}

impl<'t> Pieces<'t> {
    /// An empty list, of messages in that window of the memory.
    pub(super) fn new(table: &'t mut [Piece], window: Range<usize>) -> Self {
        Self { table, count: 0, messages: 0, window, span: None, beyond: None }
    }

    /// Messages that it lists.
    pub fn messages(&self) -> usize {
        self.messages
    }

    /// Adds a message of so many bytes, which begins at byte `at` of the memory that the flow was given, and at byte `placed` of
    /// the block. A message that does not lie in the flow's memory makes the flow fail.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing was added.
    #[inline]
    pub fn push(&mut self, at: usize, placed: usize, bytes: usize) -> Result<(), NoRoom> {
        let added = self.push_rows(Rows { at, apart: bytes, bytes, count: 1 }, placed);
        if added == 1 { Ok(()) } else { Err(NoRoom) }
    }

    /// Adds messages, of which the first is at byte `placed` of the block, and says how many: those that are left have no room. It takes
    /// as long as [`push`](Self::push) for 4 KiB of them. Messages that do not lie in the flow's memory make the flow fail.
    pub fn push_rows(&mut self, rows: Rows, placed: usize) -> usize {
        let Rows { at, apart, bytes, count } = rows;
        let Some(before) = count.checked_sub(1) else { return 0 };
        let last = before.checked_mul(apart).and_then(|before| at.checked_add(before));
        let end = last.and_then(|last| last.checked_add(bytes));
        let placed_end = bytes.checked_mul(count).and_then(|bytes| placed.checked_add(bytes));
        let (Some(end), Some(placed_end)) = (end, placed_end) else { return self.refuse(rows) };
        if end > self.window.len() || placed_end > u32::MAX as usize {
            return self.refuse(rows);
        }
        let added = if bytes == 0 { count } else { self.add_rows(rows, placed) };
        if added * bytes > 0 {
            let span = self.span.get_or_insert(placed..placed);
            *span = span.start.min(placed)..span.end.max(placed + added * bytes);
        }
        self.messages += added;
        added
    }

    /// The flow is to fail.
    #[cold]
    fn refuse(&mut self, rows: Rows) -> usize {
        let Rows { at, apart, bytes, count } = rows;
        // Of the first that is not in the window.
        let inside =
            self.window.len().saturating_sub(bytes).checked_sub(at).map_or(0, |room| room / apart.max(1) + 1);
        let at = if inside < count { at.saturating_add(inside.saturating_mul(apart)) } else { at };
        self.beyond = Some(DeviceError::OutOfBounds { at, bytes, room: self.window.len() });
        self.messages += count;
        count
    }

    /// Rows of one byte and more; how many there was room for.
    fn add_rows(&mut self, rows: Rows, placed: usize) -> usize {
        let Rows { at, apart, bytes, count } = rows;
        let first = (self.window.start + at) as u64;
        // Side by side they are as one, and too far apart, or long, each by itself.
        let alone = bytes >= LONGEST as usize || apart > u32::MAX as usize;
        let together = if alone { 1 } else { LONGEST as usize / bytes };
        let mut added = 0;
        while added < count {
            let some = together.min(count - added);
            let (at, staged) = (first + (added * apart) as u64, (placed + added * bytes) as u32);
            // No more than the end, which fits.
            let piece = if apart == bytes || some == 1 {
                Piece::row(at, staged, (some * bytes) as u32)
            } else {
                Piece { at, staged, bytes: bytes as u32, rows: some as u32, apart: apart as u32 }
            };
            if self.add(piece).is_err() {
                break;
            }
            added += some;
        }
        added
    }

    #[inline]
    fn add(&mut self, piece: Piece) -> Result<(), NoRoom> {
        let last = self.table.get_mut(..self.count).and_then(<[Piece]>::last_mut);
        let last = last.filter(|last| {
            (last.rows, piece.rows) == (1, 1)
                && last.at + u64::from(last.bytes) == piece.at
                && last.staged + last.bytes == piece.staged
        });
        let joined = last.as_ref().map_or(0, |last| piece.bytes.min(LONGEST.saturating_sub(last.bytes)));
        if joined == piece.bytes
            && let Some(last) = last
        {
            last.bytes += joined;
            return Ok(());
        }
        if piece.rows == 1 && (piece.bytes > LONGEST || joined > 0) {
            return self.add_split(piece, joined);
        }
        *self.table.get_mut(self.count).ok_or(NoRoom)? = piece;
        self.count += 1;
        Ok(())
    }

    /// Adds what is more than one piece, of which so many bytes join the last.
    #[cold]
    fn add_split(&mut self, piece: Piece, joined: u32) -> Result<(), NoRoom> {
        let more = (piece.bytes - joined).div_ceil(LONGEST) as usize;
        let free = self.table.get_mut(self.count..self.count + more).ok_or(NoRoom)?;
        for (i, free) in (0..).zip(free) {
            let done = joined + i * LONGEST;
            *free = Piece::row(
                piece.at + u64::from(done),
                piece.staged + done,
                (piece.bytes - done).min(LONGEST),
            );
        }
        if joined > 0
            && let Some(last) = self.table.get_mut(..self.count).and_then(<[Piece]>::last_mut)
        {
            last.bytes += joined;
        }
        self.count += more;
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Listed, DeviceError> {
        let Self { count, messages, span, .. } = self;
        match self.beyond {
            Some(e) => Err(e),
            None => Ok(Listed { count, messages, span }),
        }
    }
}
