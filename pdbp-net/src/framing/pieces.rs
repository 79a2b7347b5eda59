//! An in-memory stream for tests of framings.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut, Read};

/// Yields bytes in pieces of given lengths; 0 means nothing for now.
pub(super) struct Pieces {
    bytes: VecDeque<u8>,
    lengths: Vec<usize>,
    turn: usize,
}

impl Pieces {
    pub(super) fn new(bytes: &[u8], lengths: Vec<usize>) -> Self {
        Self { bytes: bytes.iter().copied().collect(), lengths, turn: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Read for Pieces {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let length = self.lengths[self.turn % self.lengths.len()];
        self.turn += 1;
        if self.bytes.is_empty() || length == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = room.len().min(length).min(self.bytes.len());
        room.iter_mut().zip(self.bytes.drain(..count)).for_each(|(to, from)| *to = from);
        Ok(count)
    }

    /// Fills several slices, unlike the default.
    fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut all = 0;
        for room in rooms {
            match self.read(room) {
                Ok(count) if count == room.len() => all += count,
                Ok(count) => return Ok(all + count),
                Err(error) if all == 0 => return Err(error),
                Err(_) => return Ok(all),
            }
        }
        Ok(all)
    }
}
