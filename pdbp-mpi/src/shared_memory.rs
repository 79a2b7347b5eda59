//! Links within a host: blocks stay where they are, and their locations travel through rings in the window.
//!
//! ```text
//!   this process                                       peer
//!   send ──▶ ring Out, in our part ───────────────▶ Received     (reads our part of the window)
//!   Sent ◀────────────── ring Back, in the peer's part ◀── Return
//! ```
//! No system call, no copy, no lock; the bell rings only when the peer sleeps.
//!
//! # Short blocks
//! Fetching a cache line that another core has written takes as long as all other work on a block, and the reader learns the lines of a block
//! only from its entry. So a block of up to [`SLOT_ROOM`] bytes is copied into its slot of the ring, and read there in place, as the block would
//! be. Until that block is given back no other one is copied into the slot: the next entry in the slot points to its block, as entries of longer
//! blocks do.
//!
//! # The end of a link
//! The rings of a process that leaves or dies stay intact: its peers take what is in them, and report it failed. They get their blocks back once
//! that process can no longer read them: a transport that is dropped records whether any readers remain ([`SharedMemoryLink::close`]), and a
//! dead process has none. Blocks that readers keep longer than their transport, and those of a process that exits without dropping its
//! transport, come back when it has died.

use std::ptr::NonNull;
use std::sync::Arc;

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::umb::Lender;
use pdbp_core::{ArrivedBlock, SealedBlock};

use crate::process;
use crate::process_watch::ProcessWatch;
use crate::ring::{Consumer, Entry, Producer};
use crate::sync::prefetch;
use crate::window::{BACK, Cells, Direction, LINE, OUT, Part, Region, SLOT_ROOM};

/// Cache lines of a block that are prefetched when its entry arrives.
const PREFETCH_LINES: usize = 32;

/// The link to and from one process of the host.
pub(crate) struct SharedMemoryLink {
    node: NodeId,
    out: Producer<Cells, OUT>,
    returning: Producer<Cells, BACK>,
    incoming: Consumer<Cells, OUT>,
    back: Consumer<Cells, BACK>,
    region: Arc<Region>,
    /// The peer's number on the host.
    peer: usize,
    process: ProcessWatch,
    /// Our blocks that the peer holds, by index, with the offsets in our part where it reads them; at most `capacity`, so the rings never
    /// overflow.
    away: Vec<Option<(SealedBlock, u64)>>,
    away_count: usize,
    /// Slots of `out` from which the peer may read a block.
    lent: Vec<bool>,
    /// Blocks of the peer that this process holds.
    borrowed: usize,
    /// The next poll checks for blocks of the peer alone.
    skips_back: bool,
    lender: Lender,
    capacity: usize,
    largest: usize,
    pub(crate) failed: bool,
    /// The peer's process or transport ended; it did not write invalid data.
    pub(crate) ended: bool,
}

/// Something that happened on the link.
pub(crate) enum Event {
    Sent(SealedBlock),
    Received(ArrivedBlock),
    /// The peer wrote invalid data.
    Invalid,
}

impl SharedMemoryLink {
    /// The link to `node`, which has number `peer` on the host.
    pub(crate) fn new(region: &Arc<Region>, peer: usize, node: NodeId, sizes: (usize, usize)) -> Self {
        let (me, (capacity, largest)) = (region.number(), sizes);
        Self {
            node,
            out: Producer::new(region.ring(me, peer, Direction::Out)),
            returning: Producer::new(region.ring(me, peer, Direction::Back)),
            incoming: Consumer::new(region.ring(peer, me, Direction::Out)),
            back: Consumer::new(region.ring(peer, me, Direction::Back)),
            process: ProcessWatch::of(region.part(peer).process()),
            region: Arc::clone(region),
            peer,
            away: Vec::new(),
            away_count: 0,
            lent: vec![false; region.slots()],
            borrowed: 0,
            skips_back: false,
            lender: Lender::new(),
            capacity,
            largest,
            failed: false,
            ended: false,
        }
    }

    fn part(&self) -> Part<'_> {
        self.region.part(self.peer)
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn is_full(&self) -> bool {
        self.away_count >= self.capacity
    }

    /// Whether the peer holds a block with this one's number: two pools may share the memory.
    pub(crate) fn is_away(&self, block: &SealedBlock) -> bool {
        self.away.get(block.id().index as usize).is_some_and(Option::is_some)
    }

    /// Sends a block that lies at `offset` of our part. The link must not be [full](Self::is_full), nor another block of that number
    /// [away](Self::is_away).
    pub(crate) fn send(&mut self, block: SealedBlock, offset: u64) {
        let index = block.id().index;
        let offset = self.copy_into_slot(block.bytes()).unwrap_or(offset);
        let entry = Entry { index, length: block.bytes().len() as u32, offset };
        if self.away.len() <= index as usize {
            self.away.resize_with(index as usize + 1, || None);
        }
        if let Some(slot) = self.away.get_mut(index as usize) {
            *slot = Some((block, offset));
        }
        self.away_count += 1;
        self.out.push(entry);
        self.ring();
    }

    /// Copies a block into the next slot, if it is short enough and the slot is no longer read. Returns the slot's offset in our part.
    fn copy_into_slot(&mut self, block: &[u8]) -> Option<u64> {
        if block.len() > SLOT_ROOM {
            return None;
        }
        let slot = self.out.slot();
        let lent = self.lent.get_mut(slot).filter(|lent| !**lent)?;
        *lent = true;
        self.out.copy(block);
        Some(self.region.own().slot_at(self.peer, slot))
    }

    /// Gives a block of the peer back to it. Returns `Err` if the block is not the peer's, or if more are given back than arrived.
    pub(crate) fn return_block(&mut self, block: ArrivedBlock) -> Result<(), ArrivedBlock> {
        let length = block.bytes().len() as u32;
        // The block is the peer's if its bytes lie in the peer's part.
        let place = self.part().place_of(self.region.number(), block.bytes());
        let (Some(offset), true) = (place, self.borrowed > 0) else {
            return Err(block);
        };
        let index = block.id().index;
        self.lender.reclaim(block)?;
        self.borrowed -= 1;
        self.returning.push(Entry { index, length, offset });
        self.ring();
        Ok(())
    }

    /// Polls for the next event. After a poll that found a block from the peer, the next one checks only for another such block and skips
    /// returned blocks; it does so every other time. A peer that answers gives our block back right behind its answer, and a caller waiting for
    /// the answer would otherwise wait for that cache line, too.
    pub(crate) fn poll(&mut self) -> Option<Event> {
        let skips_back = std::mem::take(&mut self.skips_back);
        if !skips_back && let Some(entry) = self.back.pop() {
            return Some(self.on_return(entry).map_or(Event::Invalid, Event::Sent));
        }
        let slot = self.incoming.slot();
        let entry = self.incoming.pop()?;
        self.skips_back = !skips_back;
        Some(self.arrived(entry, slot).map_or(Event::Invalid, Event::Received))
    }

    /// Takes back a block of ours that the peer has returned.
    fn on_return(&mut self, entry: Entry) -> Option<SealedBlock> {
        let slot = self.away.get_mut(entry.index as usize)?;
        let (block, _) = slot.take_if(|(_, offset)| *offset == entry.offset)?;
        self.away_count -= 1;
        let lent = self.region.own().slot_of(self.peer, entry.offset);
        if let Some(lent) = lent.and_then(|slot| self.lent.get_mut(slot)) {
            *lent = false;
        }
        Some(block)
    }

    /// Takes a block of the peer, whose entry was in this slot.
    fn arrived(&mut self, entry: Entry, slot: usize) -> Option<ArrivedBlock> {
        let (part, me) = (self.part(), self.region.number());
        let base = match part.block(entry.offset, entry.length) {
            Some(base) => {
                fetch(base, entry.length);
                base
            }
            None if entry.offset == part.slot_at(me, slot) => part.block_in_slot(me, slot, entry.length)?,
            None => return None,
        };
        if entry.length as usize > self.largest || self.borrowed >= self.capacity {
            return None;
        }
        self.borrowed += 1;
        let id = BlockId { segment: self.node, index: entry.index };
        // The bytes stay mapped as long as the transport, which leaves them mapped for ever if it is dropped while tokens are alive (`Mpi::drop`).
        // SAFETY: they lie in the peer's blocks, on a multiple of 64, or in a slot of its ring, on a multiple of 16. The peer has let go of the
        // block, and of the room in the slot, and takes them up again when the block is given back, when this transport has ended without
        // tokens, or when the process has died (`take_back`).
        Some(unsafe { self.lender.lend(id, base, entry.length) })
    }

    /// Whether the peer has left or died and the rings hold nothing more from it.
    pub(crate) fn has_ended(&mut self, probe: bool) -> bool {
        let gone = self.part().is_gone() || probe && self.has_died();
        // In this order: anything the peer pushed before its end is seen here.
        gone && self.incoming.is_empty() && self.back.is_empty()
    }

    /// Records a death of the peer, so that this process does not wait for it in `MPI_Finalize`.
    pub(crate) fn probe(&self) {
        let _ = self.has_died();
    }

    fn has_died(&self) -> bool {
        let died = self.process.has_died();
        if died && !self.part().is_gone() {
            process::record_death();
        }
        died
    }

    /// Takes back our blocks that are no longer read, on a link that has ended. Blocks that are still read follow in later calls.
    pub(crate) fn take_back(&mut self, probe: bool) -> Vec<SealedBlock> {
        let mut back = Vec::new();
        // A process that is exiting may still give some back.
        while self.away_count > 0
            && let Some(entry) = self.back.pop()
        {
            back.extend(self.on_return(entry));
        }
        if self.away_count > 0
            && (self.part().has_no_readers(self.region.number()) || probe && self.has_died())
        {
            self.away_count = 0;
            back.extend(self.away.iter_mut().filter_map(Option::take).map(|(block, _)| block));
        }
        back
    }

    /// Whether the peer holds blocks of ours.
    pub(crate) fn has_blocks_away(&self) -> bool {
        self.away_count > 0
    }

    /// Closes this end as its transport is dropped. Records in the window whether readers here still hold the peer's blocks, and returns that.
    pub(crate) fn close(&self) -> bool {
        let has_readers = self.lender.outstanding() > 0;
        if !has_readers {
            self.region.own().set_no_readers(self.peer);
        }
        has_readers
    }

    /// Wakes the peer, which has something to poll.
    pub(crate) fn ring(&self) {
        self.part().bell().ring();
    }
}

/// Prefetches the first lines of a block, all at once: its reader would otherwise wait for one after the other.
fn fetch(block: NonNull<u8>, length: u32) {
    let lines = (length as usize).div_ceil(LINE).min(PREFETCH_LINES);
    (0..lines).for_each(|line| prefetch(block.as_ptr().wrapping_add(line * LINE)));
}

#[cfg(test)]
mod tests;
