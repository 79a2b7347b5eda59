//! The processing unit of a switch: merges the packets of a gather (algorithm 2 of the paper), combines values, and counts arrivals
//! at a barrier (algorithm 3).
//!
//! It knows in advance at which ports packets will come in: all of the group except the one towards the root ("the remaining
//! port"); at the top, for calls whose result goes to all members, all of the group. It does one thing at a time. **Values are
//! combined in the order of ports, not of arrival**, by the same [`combine`] that members call. Packets of a gather are merged
//! while there is room to hold them ([`flow`](super::flow)), and otherwise forwarded unchanged.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use pdbp_core::collective::{Call, Kind, Left, combine};

use super::Mismatch;
use super::fabric::{Event, Fabric};
use super::flow::SLOTS;
use super::packet::{DATA, HIGHEST, Packet, PacketKind};
use super::port::Buffer;
use super::spanning::{Members, Tree};

/// Packets of one position of a call, held until all of them have arrived.
#[derive(Debug)]
pub(super) struct Slot {
    /// The call of the first packet, and the rank of its source.
    call: Call,
    by: usize,
    held: Held,
    is_broken: bool,
}

#[derive(Debug)]
enum Held {
    /// One packet from each port.
    Parts { parts: Vec<(u8, Arc<[u8]>)>, wanted: usize },
    /// Blocks of a range of ranks, and how many of them have not left yet.
    Blocks { first: usize, blocks: Vec<Block>, left: usize },
}

/// The block of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Block {
    Missing,
    Held(Arc<[u8]>),
    Left,
}

/// Blocks per packet; 0 if not even two fit: then each block travels in packets of its own.
pub(super) fn blocks_in_packet(block: usize) -> usize {
    if block > DATA / 2 { 0 } else { DATA / block.max(1) }
}

impl Slot {
    /// A slot for packets that come to a switch at any port of the group except `out`.
    fn new(call: Call, by: usize, (tree, at): (&Tree, usize), group: &Members, out: Option<u8>) -> Self {
        let held = match out {
            Some(out) if call.kind == Kind::Gather => {
                let (first, count) = group.behind(tree, at, out);
                Held::Blocks { first, blocks: vec![Block::Missing; count], left: count }
            }
            _ => {
                let ports = group.mask(at).len();
                Held::Parts { parts: Vec::with_capacity(ports), wanted: ports - usize::from(out.is_some()) }
            }
        };
        Self { call, by, held, is_broken: false }
    }

    /// Whether the packet is the first of its kind, and from members behind this switch.
    fn takes(&self, port: u8, packet: &Packet, ranks: usize) -> bool {
        match &self.held {
            Held::Parts { parts, .. } => parts.iter().all(|(of, _)| *of != port),
            Held::Blocks { first, blocks, .. } => {
                let place = (usize::from(packet.run.0) + ranks - first) % ranks;
                let these = blocks.get(place..place + usize::from(packet.run.1));
                these.is_some_and(|these| these.iter().all(|block| *block == Block::Missing))
            }
        }
    }

    /// Adds a packet that has come in at a port. Returns the packets that leave now, and whether nothing more will come. `in_use` counts the
    /// packets held to be combined, and those to be merged.
    fn add(
        &mut self,
        port: u8,
        packet: &Packet,
        ranks: usize,
        in_use: &mut [usize; 2],
    ) -> (Vec<Packet>, bool) {
        match &mut self.held {
            Held::Parts { parts, wanted } => {
                // Acknowledged batches take no room: a bit for each port would do.
                let counts = usize::from(packet.kind == PacketKind::Call);
                in_use[0] += if parts.is_empty() { counts } else { 0 };
                parts.push((port, Arc::clone(&packet.data)));
                if parts.len() < *wanted {
                    return (Vec::new(), false);
                }
                in_use[0] -= counts;
                (vec![Packet { data: fold(packet.call, parts), ..packet.clone() }], true)
            }
            Held::Blocks { first, blocks, left } => {
                let made = join(*first, blocks, ranks, packet, &mut in_use[1]);
                *left = left.saturating_sub(made.iter().map(|made| usize::from(made.run.1)).sum());
                (made, *left == 0)
            }
        }
    }
}

impl Fabric {
    /// Merges or combines a packet that has come in at a port with others.
    pub(super) fn combine(&mut self, at: usize, port: u8, packet: Packet) {
        let call = packet.call;
        let cost = if call.op.is_some() { self.timing.operate } else { self.timing.combine };
        let ready = self.now.max(self.switches[at].busy) + cost;
        self.switches[at].busy = ready;
        let group = &self.groups[usize::from(packet.dest)];
        let has_root = matches!(call.kind, Kind::Gather | Kind::Reduce);
        let out = group.out(&self.tree, at, has_root.then_some(call.root));
        if call.kind == Kind::Gather && blocks_in_packet(call.bytes) == 0 {
            return self.make(at, ready, packet, out);
        }
        let by = group.rank(packet.source).unwrap_or(0);
        let key = (packet.dest, packet.number, packet.sequence);
        let switch = &mut self.switches[at];
        let ranks = group.ids.len();
        let slot = match switch.slots.entry(key) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(place) => {
                let slot = Slot::new(call, by, (&self.tree, at), group, out);
                if !slot.takes(port, &packet, ranks) {
                    switch.dropped += 1;
                    return;
                }
                place.insert(slot)
            }
        };
        if slot.call == call && !slot.takes(port, &packet, ranks) {
            switch.dropped += 1;
            return;
        }
        if slot.call != call {
            if !std::mem::replace(&mut slot.is_broken, true) {
                let mismatch =
                    Mismatch { number: packet.number, one: (slot.by, slot.call), other: (by, call) };
                let told =
                    Packet { mismatch: Some(Arc::new(mismatch)), ..packet.answer(PacketKind::Mismatch) };
                self.make(at, ready, told, None);
            }
            return;
        }
        let in_use = switch.in_use.entry(packet.dest).or_default();
        let before = *in_use;
        let (whole, is_over) = slot.add(port, &packet, ranks, in_use);
        // What leaves at once was held for a moment, too.
        let held = in_use.iter().zip(before).map(|(after, before)| before.max(*after)).max();
        switch.most_slots = switch.most_slots.max(held.unwrap_or(0));
        if is_over {
            switch.slots.remove(&key);
        }
        let (kind, above) = match (packet.kind, out) {
            (PacketKind::Taken, None) => (PacketKind::Granted, 0),
            (_, None) => (PacketKind::Result, 1),
            (what, Some(_)) => (what, 0),
        };
        for made in whole {
            let priority = HIGHEST.min(made.priority + above);
            self.make(at, ready, Packet { kind, priority, ..made }, out);
        }
    }

    /// Sends a packet of the unit once it is ready.
    fn make(&mut self, at: usize, ready: u64, packet: Packet, out: Option<u8>) {
        self.switches[at].made.push_back((packet, out));
        self.plan(ready, Event::Made(at as u32));
    }

    /// The unit's next packet is ready, and leaves.
    pub(super) fn made(&mut self, at: usize) {
        let switch = &mut self.switches[at];
        let ports = switch.ports;
        match switch.made.pop_front() {
            Some((packet, Some(port))) => {
                self.push(self.switches[at].output(port), ports, packet, Buffer::None)
            }
            Some((packet, None)) => self.copy(at, None, &packet, Buffer::None),
            None => {}
        }
    }
}

/// Combines all parts, in the order of ports.
fn fold(call: Call, parts: &mut [(u8, Arc<[u8]>)]) -> Arc<[u8]> {
    parts.sort_by_key(|(port, _)| *port);
    let Some(((_, first), rest)) = parts.split_first() else { return Arc::new([]) };
    let Some(op) = call.op else { return Arc::clone(first) };
    let mut all = first.to_vec();
    for (_, part) in rest {
        combine(op, call.element, Left::Own, &mut all, part);
    }
    all.into()
}

/// Adds the blocks of a packet to those held. Returns the packets that leave now. While there is room, the order of arrival does
/// not affect which blocks share a packet.
fn join(
    first: usize,
    blocks: &mut [Block],
    ranks: usize,
    packet: &Packet,
    in_use: &mut usize,
) -> Vec<Packet> {
    let (start, count) = (usize::from(packet.run.0), usize::from(packet.run.1));
    let place = (start + ranks - first) % ranks;
    let (block, size) = (packet.call.bytes, blocks_in_packet(packet.call.bytes));
    let mut made = Vec::new();
    for chunk in place / size..=(place + count - 1) / size {
        let range = chunk * size..blocks.len().min((chunk + 1) * size);
        let Some(these) = blocks.get_mut(range.clone()) else { continue };
        let was_held = these.iter().any(|block| matches!(block, Block::Held(_)));
        let new = range.start.max(place)..range.end.min(place + count);
        for at in new.clone() {
            let bytes = packet.data.get((at - place) * block..(at - place + 1) * block);
            these[at - range.start] = Block::Held(bytes.unwrap_or(&[]).into());
        }
        let is_whole = !these.contains(&Block::Missing);
        let leaves = if is_whole {
            range.clone()
        } else if !was_held && *in_use >= SLOTS {
            new
        } else {
            *in_use += usize::from(!was_held);
            continue;
        };
        *in_use -= usize::from(was_held);
        let these = &mut these[leaves.start - range.start..leaves.end - range.start];
        let mut at = leaves.start;
        for run in these.chunk_by(|a, b| (*a == Block::Left) == (*b == Block::Left)) {
            let held = run
                .iter()
                .filter_map(|block| if let Block::Held(bytes) = block { Some(bytes) } else { None });
            let data: Vec<u8> = held.flat_map(|bytes| bytes.iter().copied()).collect();
            if !data.is_empty() {
                let run = (((first + at) % ranks) as u16, run.len() as u16);
                made.push(Packet { run, data: data.into(), ..packet.clone() });
            }
            at += run.len();
        }
        these.fill(Block::Left);
    }
    made
}
