//! COPR: takes the next blocks of a link, packs them, and puts them into SM, from where they are sent.

use std::collections::VecDeque;
use std::time::Instant;

use pdbp_core::SealedBlock;

use super::Ring;
use super::choice::Choice;
use super::codec::{self, Codec, Packing};
use super::density::Density;
use super::workers::{Done, Job, Work};

/// Maximum bytes that the poller packs in one go; one block if that is longer.
const IN_LINE: usize = 256 << 10;

/// A link's row of SM.
pub(crate) struct SendRow {
    row: usize,
    generation: u64,
    /// The number of the first block in the row, and the blocks.
    first: u64,
    blocks: VecDeque<Stage>,
    choice: Choice,
    density: Density,
    pub(crate) figures: Figures,
}

/// Figures of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) packed: u64,
    pub(crate) plain_bytes: u64,
    pub(crate) packed_bytes: u64,
    pub(crate) last: Packing,
}

enum Stage {
    /// A worker has a copy of the block.
    AtWork,
    Raw,
    Packed(Packing, Box<[u8]>, usize),
}

/// The blocks of a link from which COPR takes.
pub(crate) struct Blocks<'a> {
    pub(crate) queue: &'a VecDeque<SealedBlock>,
    /// The number of the first block in the queue, and one past the number of the last that the peer has room for.
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// How many plain bytes of this link the peer has taken.
    pub(crate) taken_bytes: u64,
}

impl SendRow {
    pub(crate) fn new(row: usize, codec: Codec) -> Self {
        let (blocks, figures) = Default::default();
        let (choice, density) = (Choice::new(codec), Density::new());
        Self { row, generation: 0, first: 0, blocks, choice, density, figures }
    }

    /// Whether blocks go through the ring.
    pub(crate) fn is_on(&self) -> bool {
        self.choice.is_on()
    }

    pub(crate) fn density(&self) -> usize {
        self.density.k()
    }

    /// Whether any block of the row is with a worker.
    pub(crate) fn waits(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, Stage::AtWork))
    }

    /// The packed bytes of a block, if it is packed.
    pub(crate) fn packed(&self, number: u64) -> Option<&[u8]> {
        match self.blocks.get(self.place(number)?)? {
            Stage::Packed(_, buffer, length) => buffer.get(..*length),
            Stage::AtWork | Stage::Raw => None,
        }
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    /// How a block travels, if it may be sent now: its column is closed, and no worker has it.
    pub(crate) fn ready(&self, number: u64, ring: &Ring) -> Option<Packing> {
        let place = self.place(number).filter(|place| *place < ring.send.pools.closed(self.row))?;
        match self.blocks.get(place)? {
            Stage::AtWork => None,
            Stage::Raw => Some(Packing::Raw),
            Stage::Packed(packing, ..) => Some(*packing),
        }
    }

    /// Lets blocks enter, up to this link's density for one column, or as many as there are buffers for. `next` is the number of the
    /// block to send next.
    pub(crate) fn copr(&mut self, blocks: &Blocks<'_>, next: u64, ring: &mut Ring) {
        if self.blocks.is_empty() {
            self.first = next;
        }
        self.density.measure(ring.now, blocks.first);
        let mut entered = self.first + self.blocks.len() as u64;
        self.choice.measure(ring.now, blocks.first, blocks.taken_bytes, entered);
        let packing = self.choice.packing();
        let mut left = if ring.has_workers() { usize::MAX } else { IN_LINE };
        while entered < blocks.end && left > 0 && ring.send.pools.open(self.row) < self.density.k() {
            let place = entered.checked_sub(blocks.first).and_then(|place| usize::try_from(place).ok());
            let Some(block) = place.and_then(|place| blocks.queue.get(place)) else { break };
            if !self.enter(entered, block.bytes(), packing, ring) {
                break;
            }
            left = left.saturating_sub(block.bytes().len());
            entered += 1;
        }
        // The poller has packed them inline, or there is nothing to pack.
        if ring.send.jobs.is_empty() {
            ring.send.close(None);
        }
        ring.submit_jobs();
    }

    /// Lets a block enter, unless it has to wait for a buffer.
    fn enter(&mut self, number: u64, plain: &[u8], packing: Packing, ring: &mut Ring) -> bool {
        let row = self.row;
        let has_workers = ring.has_workers();
        let (mut stage, mut job) = (Stage::Raw, None);
        if packing != Packing::Raw {
            let Some(mut buffer) = ring.send.buffers.take(row) else { return false };
            if !self.choice.should_try(|| codec::shrinks(plain, &mut buffer)) {
                ring.send.buffers.give(row, buffer);
            } else if has_workers {
                let length = plain.len();
                buffer.iter_mut().zip(plain).for_each(|(to, from)| *to = *from);
                let generation = self.generation;
                job = Some(Job { work: Work::Pack, packing, row, generation, number, buffer, length });
                stage = Stage::AtWork;
            } else {
                let length = codec::pack(packing, plain, &mut buffer);
                stage = self.packed_as(length.map(|length| (packing, length)), plain.len(), buffer, ring);
            }
        }
        self.blocks.push_back(stage);
        ring.send.enter(row, ring.now, job);
        true
    }

    /// Records the result of packing a block of `plain` bytes.
    fn packed_as(
        &mut self,
        packed: Option<(Packing, usize)>,
        plain: usize,
        buffer: Box<[u8]>,
        ring: &mut Ring,
    ) -> Stage {
        self.choice.record_try(packed.is_some());
        let Some((packing, length)) = packed else {
            ring.send.buffers.give(self.row, buffer);
            return Stage::Raw;
        };
        self.figures.packed += 1;
        self.figures.plain_bytes += plain as u64;
        self.figures.packed_bytes += length as u64;
        self.figures.last = packing;
        Stage::Packed(packing, buffer, length)
    }

    /// Takes the block of `plain` bytes that a worker has packed, or found not to shrink.
    pub(crate) fn on_done(&mut self, done: Done, plain: usize, ring: &mut Ring) {
        let place = self.place(done.number).filter(|_| done.generation == self.generation);
        let at_work = place.filter(|place| matches!(self.blocks.get(*place), Some(Stage::AtWork)));
        let Some(place) = at_work else { return ring.send.buffers.give(self.row, done.buffer) };
        let packed = done.result.ok().filter(|(packing, _)| *packing != Packing::Raw);
        let stage = self.packed_as(packed, plain, done.buffer, ring);
        if let Some(block) = self.blocks.get_mut(place) {
            *block = stage;
        }
    }

    /// Drops the packed bytes of blocks before this number, which have been written.
    pub(crate) fn written(&mut self, until: u64, ring: &mut Ring) {
        while self.first < until
            && let Some(stage) = self.blocks.pop_front()
        {
            self.first += 1;
            ring.send.pools.leave(self.row);
            if let Stage::Packed(_, buffer, _) = stage {
                ring.send.buffers.give(self.row, buffer);
            }
        }
    }

    /// Notes that the peer has taken everything.
    pub(crate) fn idle(&mut self, now: Instant) {
        self.choice.idle(now);
    }

    /// Empties the row, at the end of the connection or the session.
    pub(crate) fn forget(&mut self, ring: &mut Ring) {
        self.generation += 1;
        ring.send.forget(self.row);
        for stage in self.blocks.drain(..) {
            if let Stage::Packed(_, buffer, _) = stage {
                ring.send.buffers.give(self.row, buffer);
            }
        }
        self.choice.forget();
        self.density.forget();
    }
}
