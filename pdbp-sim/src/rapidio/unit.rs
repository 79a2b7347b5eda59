//! The unit of a switch: joins what a gather brings (algorithm 2 of the paper), combines values, and counts who has come to a barrier
//! (algorithm 3).
//!
//! It knows beforehand by which ports something comes: those of the group but the one towards the root ("the remaining port"), and at
//! the top, for calls whose result all get, all of them. It does one thing at a time. **Values are combined in the order of ports,
//! whatever came first**, by the same [`combine`] that members call.

use std::sync::Arc;

use pdbp_core::collective::{Call, Kind, Left, combine};

use super::Mismatch;
use super::fabric::{Fabric, Happening};
use super::packet::{DATA, HIGHEST, Packet, What};
use super::spanning::{Members, Tree};

/// What is held until all of it has come.
#[derive(Debug)]
pub(super) struct Slot {
    /// What the first packet said is called, and the rank of its source.
    call: Call,
    by: usize,
    held: Held,
    is_broken: bool,
}

#[derive(Debug)]
enum Held {
    /// One packet of each port.
    Parts { parts: Vec<(u8, Arc<[u8]>)>, wanted: usize },
    /// Blocks of a range of ranks, and how many packets have yet to leave.
    Blocks { first: usize, blocks: Vec<Option<Arc<[u8]>>>, left: usize },
}

/// Blocks that a packet takes; 0 if not even two fit, and blocks travel one by one in as many packets as they need.
pub(super) fn blocks_in_packet(block: usize) -> usize {
    if block > DATA / 2 { 0 } else { DATA / block.max(1) }
}

impl Slot {
    /// One for what comes to a switch by all ports of the group but `out`.
    fn new(call: Call, by: usize, (tree, at): (&Tree, usize), group: &Members, out: Option<u8>) -> Self {
        let held = match out {
            Some(out) if call.kind == Kind::Gather => {
                let (first, count) = group.behind(tree, at, out);
                let left = count.div_ceil(blocks_in_packet(call.bytes));
                Held::Blocks { first, blocks: vec![None; count], left }
            }
            _ => {
                let ports = group.mask(at).len();
                Held::Parts { parts: Vec::with_capacity(ports), wanted: ports - usize::from(out.is_some()) }
            }
        };
        Self { call, by, held, is_broken: false }
    }

    /// Adds what has come by a port; the packets that are whole now, and whether nothing more will come.
    fn add(&mut self, port: u8, packet: &Packet, ranks: usize) -> (Vec<Packet>, bool) {
        match &mut self.held {
            Held::Parts { parts, wanted } => {
                parts.push((port, Arc::clone(&packet.data)));
                if parts.len() < *wanted {
                    return (Vec::new(), false);
                }
                (vec![Packet { data: fold(packet.call, parts), ..packet.clone() }], true)
            }
            Held::Blocks { first, blocks, left } => {
                let made = join(*first, blocks, ranks, packet);
                *left = left.saturating_sub(made.len());
                (made, *left == 0)
            }
        }
    }
}

impl Fabric {
    /// Takes a packet that has come by a port to be joined or combined with others.
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
        let new = || Slot::new(call, by, (&self.tree, at), group, out);
        let slot = switch.slots.entry(key).or_insert_with(new);
        if slot.call != call {
            if !std::mem::replace(&mut slot.is_broken, true) {
                let mismatch =
                    Mismatch { number: packet.number, one: (slot.by, slot.call), other: (by, call) };
                let told = Packet { mismatch: Some(Arc::new(mismatch)), ..packet.answer(What::Mismatch) };
                self.make(at, ready, told, None);
            }
            return;
        }
        let (whole, is_over) = slot.add(port, &packet, group.ids.len());
        switch.most_slots = switch.most_slots.max(switch.slots.len());
        if is_over {
            switch.slots.remove(&key);
        }
        let (what, above) = if out.is_some() { (What::Call, 0) } else { (What::Result, 1) };
        for made in whole {
            let priority = HIGHEST.min(made.priority + above);
            self.make(at, ready, Packet { what, priority, ..made }, out);
        }
    }

    /// Sends what the unit has made when it has.
    fn make(&mut self, at: usize, ready: u64, packet: Packet, out: Option<u8>) {
        self.switches[at].made.push_back((packet, out));
        self.plan(ready, Happening::Made(at));
    }

    /// What the unit has made first leaves.
    pub(super) fn made(&mut self, at: usize) {
        let switch = &mut self.switches[at];
        let ports = switch.ports;
        match switch.made.pop_front() {
            Some((packet, Some(port))) => self.push(self.switches[at].output(port), ports, packet, None),
            Some((packet, None)) => self.copy(at, None, &packet, None),
            None => {}
        }
    }
}

/// All parts combined, in the order of ports.
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

/// Puts the blocks of a packet to the others; the packets that are whole now. Which blocks share a packet does not depend on what came
/// first.
fn join(first: usize, blocks: &mut [Option<Arc<[u8]>>], ranks: usize, packet: &Packet) -> Vec<Packet> {
    let (start, count) = (usize::from(packet.run.0), usize::from(packet.run.1));
    let place = (start + ranks - first) % ranks;
    let block = packet.call.bytes;
    for (index, bytes) in packet.data.chunks(block.max(1)).take(count).enumerate() {
        if let Some(held) = blocks.get_mut(place + index) {
            *held = Some(bytes.into());
        }
    }
    let size = blocks_in_packet(block);
    let touched = place / size..=(place + count - 1) / size;
    let mut made = Vec::new();
    for chunk in touched {
        let start = chunk * size;
        let these = start..blocks.len().min(start + size);
        let Some(these) = blocks.get_mut(these) else { continue };
        if these.iter().all(Option::is_some) {
            let data: Vec<u8> = these.iter_mut().filter_map(Option::take).flat_map(|b| b.to_vec()).collect();
            let run = (((first + start) % ranks) as u16, these.len() as u16);
            made.push(Packet { run, data: data.into(), ..packet.clone() });
        }
    }
    made
}
