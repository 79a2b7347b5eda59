//! How a switch handles an arrived packet: it forwards it by its routing table, replicates it (algorithm 1 of the paper), splits
//! it, or hands it to its [unit](super::unit).
//!
//! For each group, a switch has a mask of ports. **It never sends a copy back out of the port at which the packet came in.**

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pdbp_core::collective::Kind;

use super::fabric::Fabric;
use super::packet::{Packet, PacketKind};
use super::port::Buffer;
use super::spanning::Neighbor;
use super::unit::Slot;

/// A switch.
#[derive(Debug)]
pub(super) struct Switch {
    /// The index of its first output; they are consecutive.
    first: usize,
    pub(super) ports: usize,
    /// The number of masks in use.
    pub(super) masks: usize,
    /// Until when its unit is busy.
    pub(super) busy: u64,
    /// What the unit holds, by group, call and position in the call.
    pub(super) slots: BTreeMap<(u16, u32, u32), Slot>,
    /// Packets created by the unit, and the port each leaves by; `None`: all ports of the group.
    pub(super) made: VecDeque<(Packet, Option<u8>)>,
    /// By group and source, call and position of the last packet that was replicated.
    seen: BTreeMap<(u16, u16), (u32, u32)>,
    /// Packets dropped: without a route, invalid, or seen before.
    pub(super) dropped: u64,
    /// By group, packets held to be combined, and packets of gathers held to be merged.
    pub(super) in_use: BTreeMap<u16, [usize; 2]>,
    /// The maximum of either for any group.
    pub(super) most_slots: usize,
}

impl Switch {
    pub(super) fn new(first: usize, ports: usize) -> Self {
        Self {
            first,
            ports,
            masks: 0,
            busy: 0,
            slots: BTreeMap::new(),
            made: VecDeque::new(),
            seen: BTreeMap::new(),
            dropped: 0,
            in_use: BTreeMap::new(),
            most_slots: 0,
        }
    }

    pub(super) fn output(&self, port: u8) -> usize {
        self.first + usize::from(port)
    }

    /// Slots in use, plus packets that its unit has created and not sent yet.
    pub(super) fn held(&self) -> usize {
        self.slots.len() + self.made.len()
    }

    /// Forgets a group.
    pub(super) fn forget(&mut self, group: u16) {
        self.slots.retain(|(of, ..), _| *of != group);
        self.seen.retain(|(of, _), _| *of != group);
        self.in_use.remove(&group);
    }

    /// Whether this packet of a broadcast has not been seen before. It counts as seen from now on.
    fn sees(&mut self, packet: &Packet) -> bool {
        let id = (packet.number, packet.sequence);
        let last = self.seen.insert((packet.dest, packet.source), id);
        last.is_none_or(|last| last < id)
    }
}

impl Fabric {
    /// Handles a packet that has come in at a port.
    pub(super) fn arrive(&mut self, at: usize, port: u8, packet: Packet, mut place: Buffer) {
        match (packet.kind, packet.call.kind) {
            (
                PacketKind::Message | PacketKind::Frame | PacketKind::MessageAnswer | PacketKind::NoRoute,
                _,
            ) => {
                self.drop_packet(at, &packet, place);
            }
            // For example, one that was in flight when its group was closed.
            _ if !self.is_of_group(at, port, &packet) => {
                self.switches[at].dropped += 1;
                self.release(&mut place);
            }
            (PacketKind::AnswerRun, _) => self.divide(at, Some(port), &packet, place),
            (PacketKind::Call, Kind::Scatter) => {
                self.answer_source(at, port, &packet);
                self.divide(at, Some(port), &packet, place);
            }
            (PacketKind::Call, Kind::Broadcast) => {
                if self.switches[at].sees(&packet) {
                    self.answer_source(at, port, &packet);
                    self.copy(at, Some(port), &packet, place);
                } else {
                    self.switches[at].dropped += 1;
                    self.release(&mut place);
                }
            }
            (PacketKind::Call | PacketKind::Taken, _) => {
                // It moves to a slot, which was reserved for it, and frees its input buffer.
                self.release(&mut place);
                self.combine(at, port, packet);
            }
            (
                PacketKind::Result
                | PacketKind::Answer
                | PacketKind::AnswerAll
                | PacketKind::Granted
                | PacketKind::Mismatch,
                _,
            ) => {
                self.copy(at, Some(port), &packet, place);
            }
        }
    }

    /// Whether a packet may come in at this port: it is valid in its group, claims no source behind another port and, if it comes
    /// from an endpoint, is not of a kind that only switches send.
    fn is_of_group(&self, at: usize, port: u8, packet: &Packet) -> bool {
        let Some(group) = self.groups.get(usize::from(packet.dest)) else { return false };
        if group.ids.is_empty() || !packet.is_sound(group.ids.len()) {
            return false;
        }
        let may_come = match packet.kind {
            PacketKind::Call => {
                let is_behind = |id: u16| self.tree.port_on_tree(at, id) == Some(port);
                let members = group.ids.len();
                let (first, count) = (usize::from(packet.run.0), usize::from(packet.run.1));
                let mut run = (first..first + count).filter_map(|rank| group.ids.get(rank % members));
                let is_roots = group.ids.get(packet.call.root) == Some(&packet.source);
                let may_send = match packet.call.kind {
                    Kind::Broadcast | Kind::Scatter => is_roots,
                    Kind::Gather => !is_roots && run.all(|id| is_behind(*id)),
                    Kind::Reduce => !is_roots,
                    _ => true,
                };
                may_send && group.rank(packet.source).is_some() && is_behind(packet.source)
            }
            PacketKind::Result | PacketKind::Granted | PacketKind::Answer => {
                matches!(self.tree.neighbor(at, port), Neighbor::Switch(..))
            }
            _ => true,
        };
        may_come && group.mask(at).contains(&port)
    }

    /// Drops and counts a packet without a route, and tells its source.
    fn drop_packet(&mut self, at: usize, packet: &Packet, mut place: Buffer) {
        self.switches[at].dropped += 1;
        self.release(&mut place);
        let back = self.tree.port(at, packet.source).filter(|_| packet.kind == PacketKind::Message);
        if let Some(port) = back {
            let told =
                Packet { dest: packet.source, source: packet.dest, ..packet.answer(PacketKind::NoRoute) };
            let Switch { ports, .. } = self.switches[at];
            self.push(self.switches[at].output(port), ports, told, Buffer::None);
        }
    }

    /// Replicates a packet to all ports of the group except the one at which it came in. Each copy leaves on its own.
    pub(super) fn copy(&mut self, at: usize, in_port: Option<u8>, packet: &Packet, mut place: Buffer) {
        let mask = self.groups[usize::from(packet.dest)].mask(at).to_vec();
        let input = in_port.map_or(self.switches[at].ports, usize::from);
        for port in mask.into_iter().filter(|port| Some(*port) != in_port) {
            self.push(self.switches[at].output(port), input, packet.clone(), place.share());
        }
        self.release(&mut place);
    }

    /// Splits a packet where the routes to the members of its run part.
    fn divide(&mut self, at: usize, in_port: Option<u8>, packet: &Packet, mut place: Buffer) {
        let group = &self.groups[usize::from(packet.dest)];
        let (first, count) = (usize::from(packet.run.0), usize::from(packet.run.1));
        let rank = |place: usize| (first + place) % group.ids.len();
        let ports: Vec<_> =
            (0..count).map(|place| self.tree.port_on_tree(at, group.ids[rank(place)])).collect();
        let mut parts = Vec::new();
        let mut start = 0;
        for same in ports.chunk_by(|a, b| a == b) {
            if let Some(port) = same[0] {
                let data = if same.len() == count {
                    Arc::clone(&packet.data)
                } else {
                    let block = packet.data.len() / count;
                    packet.data[start * block..(start + same.len()) * block].into()
                };
                let run = (rank(start) as u16, same.len() as u16);
                parts.push((port, Packet { run, data, ..packet.clone() }));
            }
            start += same.len();
        }
        let input = in_port.map_or(self.switches[at].ports, usize::from);
        for (port, part) in parts {
            self.push(self.switches[at].output(port), input, part, place.share());
        }
        self.release(&mut place);
    }

    /// Acknowledges a packet if this is the switch of the endpoint that sent it.
    fn answer_source(&mut self, at: usize, port: u8, packet: &Packet) {
        if self.tree.neighbor(at, port) == Neighbor::Endpoint(packet.source) {
            let ports = self.switches[at].ports;
            self.push(self.switches[at].output(port), ports, packet.answer(PacketKind::Answer), Buffer::None);
        }
    }
}
