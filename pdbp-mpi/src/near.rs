//! Links within a host: blocks stay where they are, and their places travel through rings in the window.
//!
//! ```text
//!   this process                                       peer
//!   send ──▶ ring Out, in our part ───────────────▶ Received     (reads our part of the window)
//!   Sent ◀────────────── ring Back, in the peer's part ◀── Return
//! ```
//! No system call, no copy, no lock; a ring of the bell when the peer sleeps. A process that dies leaves rings that are whole:
//! its peers take what is in them, get back the blocks that it had, and report it failed.

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::umb::Lender;
use pdbp_core::{ArrivedBlock, SealedBlock};

use crate::alive::Alive;
use crate::process;
use crate::ring::{Consumer, Entry, Producer};
use crate::window::{Part, Way};

/// The link to and from one process of the host.
pub(crate) struct Near {
    node: NodeId,
    out: Producer<'static>,
    give_back: Producer<'static>,
    incoming: Consumer<'static>,
    back: Consumer<'static>,
    part: Part,
    alive: Alive,
    /// Our blocks that the peer has, by index; at most `capacity`, so that rings are never too full.
    away: Vec<Option<SealedBlock>>,
    away_count: usize,
    /// Blocks of the peer that are here.
    here: usize,
    lender: Lender,
    capacity: usize,
    largest: usize,
    pub(crate) failed: bool,
    /// It failed since its process, or its transport, is gone, and not since it wrote what cannot be.
    pub(crate) ended: bool,
}

/// Something that happened on the link.
pub(crate) enum Turn {
    Sent(SealedBlock),
    Received(ArrivedBlock),
    /// The peer has written nonsense.
    Astray,
}

impl Near {
    /// The link of the process with number `me` on the host to `node`, which has number `peer` there.
    pub(crate) fn new(
        own: &Part,
        part: Part,
        (me, peer): (usize, usize),
        node: NodeId,
        sizes: (usize, usize),
    ) -> Self {
        let (capacity, largest) = sizes;
        Self {
            node,
            out: Producer::new(own.ring(peer, Way::Out)),
            give_back: Producer::new(own.ring(peer, Way::Back)),
            incoming: Consumer::new(part.ring(me, Way::Out)),
            back: Consumer::new(part.ring(me, Way::Back)),
            alive: Alive::of(part.process()),
            part,
            away: Vec::new(),
            away_count: 0,
            here: 0,
            lender: Lender::new(),
            capacity,
            largest,
            failed: false,
            ended: false,
        }
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

    /// Whether the peer has a block with the number of this one: two pools may share the memory.
    pub(crate) fn is_away(&self, block: &SealedBlock) -> bool {
        self.away.get(block.id().index as usize).is_some_and(Option::is_some)
    }

    /// Whether blocks of the peer are read here.
    pub(crate) fn is_read(&self) -> bool {
        self.lender.alive() > 0
    }

    /// Hands a block over that lies at `offset` of our part.
    pub(crate) fn send(&mut self, block: SealedBlock, offset: u64) {
        let index = block.id().index;
        let entry = Entry { index, length: block.bytes().len() as u32, offset };
        if self.away.len() <= index as usize {
            self.away.resize_with(index as usize + 1, || None);
        }
        if let Some(slot) = self.away.get_mut(index as usize) {
            *slot = Some(block);
        }
        self.away_count += 1;
        self.out.push(entry);
        self.part.bell().ring();
    }

    /// Gives a block of the peer back to it. `Err`: it is none, or more come back than came.
    pub(crate) fn give_back(&mut self, block: ArrivedBlock) -> Result<(), ArrivedBlock> {
        let length = block.bytes().len() as u32;
        // The block is the peer's if its bytes lie in the peer's part.
        let (Some(offset), true) = (self.part.offset_of(block.bytes()), self.here > 0) else {
            return Err(block);
        };
        let index = block.id().index;
        self.lender.take_back(block)?;
        self.here -= 1;
        self.give_back.push(Entry { index, length, offset });
        self.part.bell().ring();
        Ok(())
    }

    pub(crate) fn poll(&mut self) -> Option<Turn> {
        if let Some(entry) = self.back.pop() {
            let block = self.away.get_mut(entry.index as usize).and_then(Option::take);
            let Some(block) = block else { return Some(Turn::Astray) };
            self.away_count -= 1;
            return Some(Turn::Sent(block));
        }
        let entry = self.incoming.pop()?;
        Some(self.arrived(entry).map_or(Turn::Astray, Turn::Received))
    }

    fn arrived(&mut self, entry: Entry) -> Option<ArrivedBlock> {
        let base = self.part.block(entry.offset, entry.length)?;
        if entry.length as usize > self.largest || self.here >= self.capacity {
            return None;
        }
        self.here += 1;
        let id = BlockId { segment: self.node, index: entry.index };
        // SAFETY: the bytes lie in the peer's blocks, on a multiple of 64, and stay mapped as long as the transport, which leaves the
        // mapping, and does not leave the domain, if it is dropped while tokens are alive; the peer has let go of the block and takes
        // it up again when it is given back, or when this process has left or died.
        Some(unsafe { self.lender.lend(id, base, entry.length) })
    }

    /// Whether the peer has left or died, and all that it left has been taken.
    pub(crate) fn has_ended(&mut self, look: bool) -> bool {
        let gone = self.part.is_gone() || look && self.has_died();
        // In this order: what the peer put in before its end is seen here.
        gone && self.incoming.is_empty() && self.back.is_empty()
    }

    fn has_died(&self) -> bool {
        let died = self.alive.has_died();
        if died && !self.part.is_gone() {
            process::note_death();
        }
        died
    }

    /// Our blocks that the peer had at its end.
    pub(crate) fn take_all(&mut self) -> Vec<SealedBlock> {
        self.away_count = 0;
        self.away.iter_mut().filter_map(Option::take).collect()
    }

    /// Wakes the peer, which has something to see.
    pub(crate) fn ring(&self) {
        self.part.bell().ring();
    }
}
