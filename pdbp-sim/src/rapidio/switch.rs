//! What a switch does with a packet that has come: sends it on by its table, copies it (algorithm 1 of the paper), divides it, or gives
//! it to its [unit](super::unit).
//!
//! Of each group a switch has a mask of ports. **It never sends a copy back by the port by which the packet has come.**

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pdbp_core::collective::Kind;

use super::fabric::Fabric;
use super::packet::{Packet, What};
use super::port::Place;
use super::spanning::Neighbor;
use super::unit::Slot;

/// A switch.
#[derive(Debug)]
pub(super) struct Switch {
    /// The first of its outputs, which lie in a row.
    first: usize,
    pub(super) ports: usize,
    /// Groups for which it has a mask.
    pub(super) masks: usize,
    /// Until when its unit is at work.
    pub(super) busy: u64,
    /// What the unit holds, by group, call and place in the call.
    pub(super) slots: BTreeMap<(u16, u32, u32), Slot>,
    /// What the unit has made, and the port it leaves by; all of the group's if there is none.
    pub(super) made: VecDeque<(Packet, Option<u8>)>,
    /// Of each group and source, call and place of the last packet that was copied.
    seen: BTreeMap<(u16, u16), (u32, u32)>,
    /// Packets for which there was no way, and those seen before.
    pub(super) dropped: u64,
    /// By group, packets that are held to be combined, and those of gathers to be joined.
    pub(super) in_use: BTreeMap<u16, [usize; 2]>,
    /// The most that were held of one group, of either.
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

    /// Slots in use, and packets that its unit has made.
    pub(super) fn held(&self) -> usize {
        self.slots.len() + self.made.len()
    }

    /// Forgets a group.
    pub(super) fn forget(&mut self, group: u16) {
        self.slots.retain(|(of, ..), _| *of != group);
        self.seen.retain(|(of, _), _| *of != group);
        self.in_use.remove(&group);
    }

    /// Whether this packet of a broadcast is new; it is seen then.
    fn sees(&mut self, packet: &Packet) -> bool {
        let id = (packet.number, packet.sequence);
        let last = self.seen.insert((packet.dest, packet.source), id);
        last.is_none_or(|last| last < id)
    }
}

impl Fabric {
    /// Takes a packet that has come by a port.
    pub(super) fn arrive(&mut self, at: usize, port: u8, packet: Packet, mut place: Place) {
        match (packet.what, packet.call.kind) {
            (What::Message | What::Frame | What::MessageAnswer | What::NoRoute, _) => {
                self.drop_packet(at, &packet, place);
            }
            // Among others what was under way when its group was forgotten.
            _ if !self.is_of_group(at, port, &packet) => {
                self.switches[at].dropped += 1;
                self.release(&mut place);
            }
            (What::AnswerRun, _) => self.divide(at, Some(port), &packet, place),
            (What::Call, Kind::Scatter) => {
                self.answer_source(at, port, &packet);
                self.divide(at, Some(port), &packet, place);
            }
            (What::Call, Kind::Broadcast) => {
                if self.switches[at].sees(&packet) {
                    self.answer_source(at, port, &packet);
                    self.copy(at, Some(port), &packet, place);
                } else {
                    self.switches[at].dropped += 1;
                    self.release(&mut place);
                }
            }
            (What::Call | What::Taken, _) => {
                // It has a slot, and frees its place in the input.
                self.release(&mut place);
                self.combine(at, port, packet);
            }
            (What::Result | What::Answer | What::AnswerAll | What::Granted | What::Mismatch, _) => {
                self.copy(at, Some(port), &packet, place);
            }
        }
    }

    /// Whether a packet that has come by a port is one of its group. Nobody can say anything in the name of an endpoint that is elsewhere, nor an
    /// endpoint in that of a switch.
    fn is_of_group(&self, at: usize, port: u8, packet: &Packet) -> bool {
        let Some(group) = self.groups.get(usize::from(packet.dest)) else { return false };
        if group.ids.is_empty() || !packet.is_sound(group.ids.len()) {
            return false;
        }
        let may_come = match packet.what {
            What::Call => {
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
            What::Result | What::Granted | What::Answer => {
                matches!(self.tree.neighbor(at, port), Neighbor::Switch(..))
            }
            _ => true,
        };
        may_come && group.mask(at).contains(&port)
    }

    /// What has no route is dropped and counted, and its source told.
    fn drop_packet(&mut self, at: usize, packet: &Packet, mut place: Place) {
        self.switches[at].dropped += 1;
        self.release(&mut place);
        let back = self.tree.port(at, packet.source).filter(|_| packet.what == What::Message);
        if let Some(port) = back {
            let told = Packet { dest: packet.source, source: packet.dest, ..packet.answer(What::NoRoute) };
            let Switch { ports, .. } = self.switches[at];
            self.push(self.switches[at].output(port), ports, told, Place::None);
        }
    }

    /// Copies it to all ports of the group but that by which it has come. Each copy leaves when it can.
    pub(super) fn copy(&mut self, at: usize, in_port: Option<u8>, packet: &Packet, mut place: Place) {
        let mask = self.groups[usize::from(packet.dest)].mask(at).to_vec();
        let input = in_port.map_or(self.switches[at].ports, usize::from);
        for port in mask.into_iter().filter(|port| Some(*port) != in_port) {
            self.push(self.switches[at].output(port), input, packet.clone(), place.share());
        }
        self.release(&mut place);
    }

    /// Divides the run of a packet where the ways of its members part.
    fn divide(&mut self, at: usize, in_port: Option<u8>, packet: &Packet, mut place: Place) {
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

    /// Answers a packet that has come from the endpoint that sent it, as its own switch: it has taken it.
    fn answer_source(&mut self, at: usize, port: u8, packet: &Packet) {
        if self.tree.neighbor(at, port) == Neighbor::Endpoint(packet.source) {
            let ports = self.switches[at].ports;
            self.push(self.switches[at].output(port), ports, packet.answer(What::Answer), Place::None);
        }
    }
}
