//! The blocks of a session, in each direction, by number.

use std::collections::VecDeque;
use std::time::Instant;

use pdbp_core::{SealedBlock, VacantBlock};

use crate::framing::Head;
use crate::ring::Ring;
use crate::ring::codec::{Codec, Packing};
use crate::ring::copr::{Blocks, SendRow};
use crate::ring::decopr::RecvRow;
use crate::ring::workers::Done;

/// Blocks on their way to the peer.
pub(crate) struct Outgoing {
    pub(crate) queue: VecDeque<SealedBlock>,
    /// Those that have entered the ring.
    pub(crate) row: SendRow,
    /// Plain bytes that the peer has taken.
    taken_bytes: u64,
    /// The number of the first block in the queue.
    pub(crate) first: u64,
    /// The number of the first block that the peer has not taken.
    pub(crate) acknowledged: u64,
    /// The number of the block to write next.
    pub(crate) next: u64,
    /// The number of the first block that has never been written completely.
    pub(crate) sent: u64,
    /// The number of the first block for which the peer has posted nothing.
    pub(crate) granted: u64,
}

impl Outgoing {
    pub(crate) fn new(row: usize, codec: Codec) -> Self {
        let row = SendRow::new(row, codec);
        let (queue, taken_bytes) = Default::default();
        Self { queue, row, taken_bytes, first: 0, acknowledged: 0, next: 0, sent: 0, granted: 0 }
    }

    /// Begins a session in which the peer has posted `granted` blocks. Nothing of the last session may be left.
    pub(crate) fn begin(&mut self, granted: u64) {
        (self.first, self.acknowledged, self.next, self.sent, self.granted) = (0, 0, 0, 0, granted);
    }

    /// The bytes that travel for a block that has not come back: the packed ones if it is packed. Empty without a number.
    pub(crate) fn bytes_of(&self, number: Option<u64>) -> &[u8] {
        let Some(number) = number else { return &[] };
        let packed = if self.row.is_on() { self.row.packed(number) } else { None };
        packed.unwrap_or_else(|| self.plain(number))
    }

    fn plain(&self, number: u64) -> &[u8] {
        let place = number.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        place.and_then(|place| self.queue.get(place)).map_or(&[], SealedBlock::bytes)
    }

    /// Takes out the next block that the peer has taken.
    pub(crate) fn pop_taken(&mut self, now: Instant) -> Option<SealedBlock> {
        if self.first >= self.acknowledged {
            return None;
        }
        let block = self.queue.pop_front()?;
        self.first += 1;
        if self.row.is_on() {
            self.taken_bytes += block.bytes().len() as u64;
            if self.queue.is_empty() {
                self.row.idle(now);
            }
        }
        Some(block)
    }

    /// The next block that may be sent now, and how it is packed.
    #[inline]
    pub(crate) fn ready(&mut self, ring: &mut Ring) -> Option<(u64, Packing)> {
        let next = self.next;
        if !self.has_next() {
            return None;
        }
        if self.row.is_on() { self.ready_packed(ring) } else { Some((next, Packing::Raw)) }
    }

    fn ready_packed(&mut self, ring: &mut Ring) -> Option<(u64, Packing)> {
        let next = self.next;
        if self.row.ready(next, ring).is_none() {
            let (first, end, taken_bytes) = (self.first, self.end().min(self.granted), self.taken_bytes);
            let blocks = Blocks { queue: &self.queue, first, end, taken_bytes };
            self.row.copr(&blocks, next, ring);
        }
        Some((next, self.row.ready(next, ring)?))
    }

    /// Takes a block that a worker has packed, or found not to shrink.
    pub(crate) fn on_done(&mut self, done: Done, ring: &mut Ring) {
        let plain = self.plain(done.number).len();
        self.row.on_done(done, plain, ring);
    }

    fn end(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    /// Whether there is a block to write for which the peer has room.
    pub(crate) fn has_next(&self) -> bool {
        self.next < self.end().min(self.granted)
    }
}

/// Blocks on their way from the peer.
pub(crate) struct Incoming {
    pub(crate) posted: VecDeque<VacantBlock>,
    /// Blocks that have arrived and do not lie in posted ones yet.
    pub(crate) row: RecvRow,
    /// A block that waits for a buffer to be read into.
    pub(crate) waiting: Option<Head>,
    /// Posted blocks that have been filled in this session.
    pub(crate) taken: u64,
    /// What the peer has been told: blocks filled, and blocks filled and posted.
    pub(crate) sent_ack: (u64, u64),
    /// Polls that have found nothing to do while an acknowledgement was pending.
    waited: u8,
}

impl Incoming {
    pub(crate) fn new(row: usize) -> Self {
        let (posted, row) = (VecDeque::new(), RecvRow::new(row));
        Self { posted, row, waiting: None, taken: 0, sent_ack: (0, 0), waited: 0 }
    }

    /// Begins a session.
    pub(crate) fn begin(&mut self) {
        (self.taken, self.sent_ack, self.waited) = (0, (0, 0), 0);
    }

    /// The number of the next block from the peer.
    pub(crate) fn due(&self) -> u64 {
        self.taken + self.row.len() as u64
    }

    /// The current acknowledgement: blocks filled, and blocks filled and posted.
    pub(crate) fn acknowledgement(&self) -> (u64, u64) {
        let room = self.posted.len().min(usize::from(u16::MAX));
        (self.taken, self.taken + room as u64)
    }

    /// Whether an acknowledgement is pending that still waits for a record to ride on.
    pub(crate) fn is_holding_ack(&self, patience: u8) -> bool {
        self.owes_ack() && self.waited < patience
    }

    /// Whether an acknowledgement is pending: the peer has not been told the current state.
    pub(crate) fn owes_ack(&self) -> bool {
        self.sent_ack != self.acknowledgement()
    }

    /// Counts a poll that has found nothing to do.
    pub(crate) fn count_idle_poll(&mut self) {
        self.waited = if self.owes_ack() { self.waited.saturating_add(1) } else { 0 };
    }

    /// Ends the wait of a pending acknowledgement.
    pub(crate) fn flush_ack(&mut self) {
        self.waited = u8::MAX;
    }

    /// Whether the pending acknowledgement gets a record of its own: `ack_threshold` blocks were taken, the peer has room for no more than half of
    /// what is posted, or `patience` polls had nothing else to send.
    pub(crate) fn is_due(&self, ack_threshold: u64, patience: u8) -> bool {
        let (taken, end) = self.acknowledgement();
        let (known, left) = (self.sent_ack.0, self.sent_ack.1.saturating_sub(taken));
        let is_short = end > self.sent_ack.1 && 2 * left <= end - taken;
        self.owes_ack() && (taken - known >= ack_threshold || is_short || self.waited >= patience)
    }

    /// Notes that the record queued next carries the acknowledgement.
    pub(crate) fn mark_acknowledged(&mut self) {
        (self.sent_ack, self.waited) = (self.acknowledgement(), 0);
    }
}
