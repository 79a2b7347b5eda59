//! The read buffer of a connection, and the block that bypasses it.

use std::io::{ErrorKind, IoSliceMut, Read};

use crate::error::Lost;

/// Size of the buffer in bytes.
pub(crate) const CAPACITY: usize = 16 << 10;

/// Buffers what arrives in pieces of any size, and reads the bodies of blocks straight from the socket into their memory.
pub(crate) struct ReadAhead {
    ahead: Box<[u8]>,
    /// The range of the buffer that has been read and not used.
    start: usize,
    end: usize,
    /// The block in progress: its length, and how much of it has arrived.
    block: Option<(usize, usize)>,
}

impl ReadAhead {
    pub(crate) fn new() -> Self {
        Self { ahead: vec![0; CAPACITY].into(), start: 0, end: 0, block: None }
    }

    /// The bytes that have been read and not used.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.ahead.get(self.start..self.end).unwrap_or(&[])
    }

    /// Consumes this many bytes.
    pub(crate) fn take(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Whether nothing can be read before some bytes have been consumed.
    pub(crate) fn is_full(&self) -> bool {
        self.end - self.start == self.ahead.len()
    }

    /// A block of this many bytes comes next.
    pub(crate) fn begin_block(&mut self, length: usize) {
        self.block = Some((length, 0));
    }

    /// Whether a block is in progress.
    pub(crate) fn is_in_block(&self) -> bool {
        self.block.is_some()
    }

    /// Moves buffered bytes of the block in progress into its memory. Returns its length once it is complete.
    pub(crate) fn fill_block(&mut self, room: &mut [u8]) -> Option<usize> {
        let (length, filled) = self.block?;
        let filled = filled + self.copy(room.get_mut(filled..length).unwrap_or(&mut []));
        self.block = Some((length, filled)).filter(|_| filled < length);
        (filled >= length).then_some(length)
    }

    fn copy(&mut self, to: &mut [u8]) -> usize {
        let from = self.ahead.get(self.start..self.end).unwrap_or(&[]);
        let count = to.len().min(from.len());
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        self.start += count;
        count
    }

    /// Reads once: the rest of the block in progress, and what follows it. Returns whether there may be more; `false` when nothing had arrived.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn read(&mut self, source: &mut dyn Read, room: &mut [u8]) -> Result<bool, Lost> {
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let (length, filled) = self.block.unwrap_or((0, 0));
        let rest = room.get_mut(filled..length).unwrap_or(&mut []);
        let wanted = rest.len();
        let free = self.ahead.get_mut(self.end..).unwrap_or(&mut []);
        let result = if wanted == 0 {
            source.read(free)
        } else {
            source.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(free)])
        };
        match result {
            Ok(0) => Err(Lost::Closed),
            Ok(count) => {
                if let Some((_, filled)) = &mut self.block {
                    *filled += count.min(wanted);
                }
                self.end += count.saturating_sub(wanted);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(Lost::Broken(error)),
        }
    }
}
