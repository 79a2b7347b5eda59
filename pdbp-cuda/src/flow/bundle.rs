//! The layout of messages in blocks.

use std::ops::Range;

use super::{Arrived, HostBlock, VacantBlock};
use crate::device::{DeviceError, Piece};

/// The layout of one block's messages: which bytes of the device's memory belong where in the block.
///
/// Bytes that are adjacent at both ends become one piece, whichever messages they belong to.
pub struct Pieces<'t> {
    table: &'t mut [Piece],
    /// The number of entries in use.
    count: usize,
    messages: usize,
    /// Bytes of the memory that messages may lie in.
    window: Range<usize>,
    /// Bytes of the block from the first to the last of a message.
    span: Option<Range<usize>>,
    /// Set when a message does not lie in the window.
    beyond: Option<DeviceError>,
}

/// Messages of one length, equally far apart in the memory, and adjacent in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Where the first begins in the memory.
    pub at: usize,
    /// Bytes from the beginning of one to that of the next.
    pub apart: usize,
    /// Bytes of each.
    pub bytes: usize,
    /// The number of messages.
    pub count: usize,
}

/// The block's list has no entry left for a message, which belongs in the next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The result of a block's list.
pub(super) struct Listed {
    pub(super) count: usize,
    pub(super) messages: usize,
    /// `None` if the messages have no bytes.
    pub(super) span: Option<Range<usize>>,
}

/// Blocks of messages: those that wait to be received, for a [`Scatter`](super::Scatter), or those to be sent. No call waits.
pub trait Bundles {
    /// A block with messages in it.
    type Block: HostBlock;
    /// What can go wrong.
    type Error;

    /// Returns the next block, and lists its messages one by one. A block to be sent is only laid out; the bytes of its messages come
    /// later.
    ///
    /// # Errors
    /// No more blocks will come, though messages remain.
    fn poll_bundle(&mut self, pieces: &mut Pieces<'_>) -> Result<Arrived<Self::Block>, Self::Error>;
}

/// Where the blocks of a [`Gather`](super::Gather) go.
pub trait Outgoing: Bundles<Block: VacantBlock> {
    /// Sends a block that holds the bytes of all its messages. Between these the block holds nothing useful: what belongs there is written now.
    /// Blocks come in the order in which they were laid out.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    fn send(&mut self, block: Self::Block) -> Result<(), Self::Error>;
}

/// The most bytes of a piece: longer ones are split, so that all warps of a kernel have equal shares.
const LONGEST: u32 = 4096;

/// The number of entries in a table for blocks of `block` bytes: enough for messages of 12 bytes, wherever these lie, and for a few
/// shorter ones.
pub(super) const fn entries(block: usize) -> usize {
    let entries = block / 12;
    if entries < 64 { 64 } else { entries }
}

impl<'t> Pieces<'t> {
    /// An empty list, for messages in that window of the memory.
    pub(super) fn new(table: &'t mut [Piece], window: Range<usize>) -> Self {
        Self { table, count: 0, messages: 0, window, span: None, beyond: None }
    }

    /// The number of messages listed.
    pub fn messages(&self) -> usize {
        self.messages
    }

    /// Adds a message of `bytes` bytes, which begins at byte `at` of the flow's memory, and at byte `placed` of the block. A message
    /// that does not lie in the flow's memory makes the flow fail.
    ///
    /// # Errors
    /// [`NoRoom`] if nothing was added.
    #[inline]
    pub fn push(&mut self, at: usize, placed: usize, bytes: usize) -> Result<(), NoRoom> {
        let added = self.push_rows(Rows { at, apart: bytes, bytes, count: 1 }, placed);
        if added == 1 { Ok(()) } else { Err(NoRoom) }
    }

    /// Adds messages, the first of which lies at byte `placed` of the block. Returns how many were added: the rest have no room. This
    /// takes as long as [`push`](Self::push) for every 4 KiB of them. Messages that do not lie in the flow's memory make the flow fail.
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

    /// Makes the flow fail.
    #[cold]
    fn refuse(&mut self, rows: Rows) -> usize {
        let Rows { at, apart, bytes, count } = rows;
        // Reports the first that is not in the window.
        let inside =
            self.window.len().saturating_sub(bytes).checked_sub(at).map_or(0, |room| room / apart.max(1) + 1);
        let at = if inside < count { at.saturating_add(inside.saturating_mul(apart)) } else { at };
        self.beyond = Some(DeviceError::OutOfBounds { at, bytes, room: self.window.len() });
        self.messages += count;
        count
    }

    /// Adds rows of one byte or more; returns how many there was room for.
    fn add_rows(&mut self, rows: Rows, placed: usize) -> usize {
        let Rows { at, apart, bytes, count } = rows;
        let first = (self.window.start + at) as u64;
        // Adjacent rows count as one piece; rows that are long, or too far apart, become one piece each.
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

    /// Adds a row that takes more than one piece; `joined` of its bytes join the last piece.
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
