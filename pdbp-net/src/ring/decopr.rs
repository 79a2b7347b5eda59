//! DECOPR: expands packed blocks, and hands them on in order.

use std::collections::VecDeque;

use super::Ring;
use super::codec::{self, Packing};
use super::workers::{Done, Job, Work};
use crate::framing::Malformed;

/// A link's row of RM: blocks that have arrived and do not lie in posted ones yet.
pub(crate) struct RecvRow {
    row: usize,
    generation: u64,
    /// The number of the first block in the row, and the blocks.
    first: u64,
    blocks: VecDeque<Stage>,
    /// The buffer for the block being read, unless that goes into a posted one.
    open: Option<(Packing, Box<[u8]>)>,
}

enum Stage {
    /// A worker is expanding it.
    AtWork,
    Plain(Box<[u8]>, usize),
    /// It cannot be expanded.
    Bad(Malformed),
}

impl RecvRow {
    pub(crate) fn new(row: usize) -> Self {
        Self { row, generation: 0, first: 0, blocks: VecDeque::new(), open: None }
    }

    /// Blocks that have arrived and wait for their turn.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Prepares for a block that is about to be read. Returns whether there is room; a raw block whose turn it is needs none here.
    pub(crate) fn begin(&mut self, packing: Packing, ring: &mut Ring) -> bool {
        if packing == Packing::Raw && self.blocks.is_empty() {
            return true;
        }
        self.open = ring.receive.buffers.take(self.row).map(|buffer| (packing, buffer));
        self.open.is_some()
    }

    /// The buffer for the block being read, unless that goes into a posted one.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        self.open.as_mut().map(|(_, buffer)| &mut **buffer)
    }

    /// Takes block `number`, of `length` bytes, which has been read. Returns `None` if it is now in the row, or its expanded length if it lies
    /// in `posted` (which may be longer).
    ///
    /// # Errors
    /// [`Malformed`], if it cannot be expanded.
    pub(crate) fn read(
        &mut self,
        number: u64,
        length: usize,
        posted: &mut [u8],
        ring: &mut Ring,
    ) -> Result<Option<usize>, Malformed> {
        let Some((packing, buffer)) = self.open.take() else { return Ok(Some(length)) };
        if self.blocks.is_empty() {
            self.first = number;
        }
        let row = self.row;
        if packing == Packing::Raw {
            self.blocks.push_back(Stage::Plain(buffer, length));
            ring.receive.enter(row, ring.now, None);
        } else if ring.has_workers() || !self.blocks.is_empty() {
            // A block expanded inline is handed on at once, so that is possible only if none waits before it.
            let (work, generation) = (Work::Expand(posted.len()), self.generation);
            let job = Job { work, packing, row, generation, number, buffer, length };
            self.blocks.push_back(Stage::AtWork);
            ring.receive.enter(row, ring.now, Some(job));
            ring.submit_jobs();
        } else {
            let packed = buffer.get(..length).unwrap_or(&[]);
            let result = codec::expand(packing, packed, posted).map(Some);
            ring.receive.buffers.give(row, buffer);
            return result;
        }
        Ok(None)
    }

    /// Delivers the first block into `posted` if it is ready. Returns its length.
    ///
    /// # Errors
    /// [`Malformed`], if it cannot be expanded.
    pub(crate) fn deliver(&mut self, posted: &mut [u8], ring: &mut Ring) -> Option<Result<usize, Malformed>> {
        if matches!(self.blocks.front()?, Stage::AtWork) {
            return None;
        }
        let stage = self.blocks.pop_front()?;
        self.first += 1;
        ring.receive.pools.leave(self.row);
        match stage {
            Stage::Plain(buffer, length) => {
                let plain = buffer.get(..length).unwrap_or(&[]);
                posted.iter_mut().zip(plain).for_each(|(to, from)| *to = *from);
                ring.receive.buffers.give(self.row, buffer);
                Some(Ok(length))
            }
            Stage::Bad(what) => Some(Err(what)),
            Stage::AtWork => None,
        }
    }

    /// Takes a block that a worker has expanded, or could not expand.
    pub(crate) fn on_done(&mut self, done: Done, ring: &mut Ring) {
        let place = done.number.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        let block = place.filter(|_| done.generation == self.generation);
        let block = block.and_then(|place| self.blocks.get_mut(place));
        let Some(block) = block.filter(|block| matches!(block, Stage::AtWork)) else {
            return ring.receive.buffers.give(self.row, done.buffer);
        };
        *block = match done.result {
            Ok((_, length)) => Stage::Plain(done.buffer, length),
            Err(what) => {
                ring.receive.buffers.give(self.row, done.buffer);
                Stage::Bad(what)
            }
        };
    }

    /// Empties the row at the end of the connection: the peer sends again what was not handed on.
    pub(crate) fn forget(&mut self, ring: &mut Ring) {
        self.generation += 1;
        ring.receive.forget(self.row);
        if let Some((_, buffer)) = self.open.take() {
            ring.receive.buffers.give(self.row, buffer);
        }
        for stage in self.blocks.drain(..) {
            if let Stage::Plain(buffer, _) = stage {
                ring.receive.buffers.give(self.row, buffer);
            }
        }
    }
}
