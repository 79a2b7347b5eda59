//! What a connection has read ahead, and the block that goes past it.

use std::io::{ErrorKind, IoSliceMut, Read};

use crate::error::Lost;

/// Bytes that are read ahead of a block, and of what is behind it.
pub(crate) const AHEAD: usize = 16 << 10;

/// Puts what is read together from whatever pieces a socket gives, and lets bodies of blocks go straight from the socket to where they belong.
pub(crate) struct Ahead {
    ahead: Box<[u8]>,
    /// What has been read ahead and not used.
    start: usize,
    end: usize,
    /// Bytes of the block under way: all, and those that are in place.
    block: Option<(usize, usize)>,
}

impl Ahead {
    pub(crate) fn new() -> Self {
        Self { ahead: vec![0; AHEAD].into(), start: 0, end: 0, block: None }
    }

    /// What has been read and not used.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.ahead.get(self.start..self.end).unwrap_or(&[])
    }

    /// So many bytes are used.
    pub(crate) fn take(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Whether no more can be read before something is used.
    pub(crate) fn is_full(&self) -> bool {
        self.end - self.start == self.ahead.len()
    }

    /// What comes next is a block of so many bytes.
    pub(crate) fn begin_block(&mut self, length: usize) {
        self.block = Some((length, 0));
    }

    /// Whether a block is under way.
    pub(crate) fn is_in_block(&self) -> bool {
        self.block.is_some()
    }

    /// Takes what there is of the block under way from what was read ahead. Its length, if it is complete.
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

    /// Reads once: the rest of the block under way, and what follows it. Whether something came.
    ///
    /// # Errors
    /// The end of the connection.
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
