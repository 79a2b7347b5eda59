//! All switches, links and endpoints, and their events in virtual time.

use std::collections::VecDeque;

use super::endpoint::Endpoint;
use super::frames::FrameEvent;
use super::operation::Key;
use super::packet::{PACKET, Packet, PacketKind};
use super::port::{Buffer, Entry, Output, Slab};
use super::spanning::{Members, Neighbor, Tree};
use super::switch::Switch;
use super::timing::Timing;
use super::topology::{MASKS, Topology, TopologyError};
use crate::network::events::{Digest, Queue};

/// The fewest buffers of an input: one for answers, which have the highest priority, and one for each lower priority.
const FEWEST: u8 = 4;

/// An event that is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The last byte of a packet has left this output.
    Sent(u32),
    /// A packet that left this output has reached the other end of the link.
    Arrived(u32),
    /// The next packet made by the unit of this switch is ready.
    Made(u32),
    /// The processor of this endpoint starts its next operation.
    Begins(u16),
    /// The process of this endpoint resumes.
    Wakes(u16),
}

// With its time and its serial number it is 24 bytes long.
const _: () = assert!(size_of::<Event>() == 8);

/// Packets carried by one link, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTraffic {
    /// The switch at one end.
    pub switch: usize,
    /// The device at the other end.
    pub neighbor: LinkEnd,
    /// Whether it is in the tree.
    pub in_tree: bool,
    /// Packets of messages and calls, away from `switch` and towards it.
    pub requests: [u64; 2],
    /// Answers, in the same order.
    pub answers: [u64; 2],
}

/// The other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The endpoint of this id.
    Endpoint(u16),
    /// A switch with a greater number.
    Switch(usize),
}

/// The fabric.
#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) timing: Timing,
    pub(super) tree: Tree,
    pub(super) groups: Vec<Members>,
    /// Numbers of closed groups, which may be reused; those closed first come first.
    pub(super) closed: VecDeque<u16>,
    pub(super) switches: Vec<Switch>,
    pub(super) endpoints: Vec<Endpoint>,
    /// Those of the switches, port by port, followed by those of the endpoints.
    pub(super) outputs: Vec<Output>,
    slab: Slab,
    /// The device at the other end of each output.
    neighbors: Vec<Neighbor>,
    pub(super) queue: Queue<Event>,
    pub(super) most_planned: usize,
    pub(super) now: u64,
    pub(super) digest: Digest,
    /// Endpoints whose processes have been woken but not polled yet.
    pub(super) woken: Vec<u16>,
    /// Events of frames that have not been taken yet.
    pub(super) frame_events: Vec<FrameEvent>,
}

impl Fabric {
    /// Creates a fabric in its state after Init. Group 0 contains all endpoints.
    pub(super) fn new(topology: &Topology, timing: Timing) -> Result<Self, TopologyError> {
        let tree = Tree::new(topology)?;
        let buffers = timing.buffers.max(FEWEST);
        let (mut outputs, mut neighbors, mut switches) = (Vec::new(), Vec::new(), Vec::new());
        for ports in tree.ports() {
            switches.push(Switch::new(outputs.len(), ports.len()));
            for end in ports {
                let room = matches!(end, Neighbor::Switch(..)).then_some(buffers);
                outputs.push(Output::new(ports.len() + 1, room));
                neighbors.push(*end);
            }
        }
        let mut endpoints = Vec::new();
        for id in 0..tree.endpoints() as u16 {
            let (switch, port) = tree.home(id);
            endpoints.push(Endpoint::new(outputs.len()));
            outputs.push(Output::new(1, Some(buffers)));
            neighbors.push(Neighbor::Switch(switch, port));
        }
        let (queue, digest, woken) = (Queue::default(), Digest::NEW, Vec::new());
        let all = (0..tree.endpoints() as u16).collect();
        let mut fabric = Self {
            timing,
            tree,
            groups: Vec::new(),
            closed: VecDeque::new(),
            switches,
            endpoints,
            outputs,
            slab: Slab::default(),
            neighbors,
            queue,
            most_planned: 0,
            now: 0,
            digest,
            woken,
            frame_events: Vec::new(),
        };
        // Cannot fail: it is the first group.
        let _ = fabric.add_group(all);
        Ok(fabric)
    }

    /// Creates a group of endpoints, given by ascending id. Returns its number, or `None` if all numbers are in use. The switches
    /// perform its calls if each of those it needs has a mask left.
    pub(super) fn add_group(&mut self, ids: Vec<u16>) -> Option<u16> {
        // A number is not reused while packets of its former group may still arrive.
        let again = self.closed.front().copied().filter(|closed| !self.is_in_flight(*closed));
        let number = again.or_else(|| u16::try_from(self.groups.len()).ok())?;
        let mut group = Members::new(&self.tree, ids);
        group.in_switches = self.has_masks(&group);
        if group.in_switches {
            group.switches().for_each(|switch| self.switches[switch].masks += 1);
        }
        if again.is_some() {
            self.closed.pop_front();
            self.groups[usize::from(number)] = group;
        } else {
            self.groups.push(group);
        }
        Some(number)
    }

    /// Whether a closed group still has packets in the fabric or calls that have not started.
    fn is_in_flight(&self, group: u16) -> bool {
        let is_of = |packet: &Packet| packet.kind.is_of_group() && packet.dest == group;
        let mut made = self.switches.iter().flat_map(|switch| &switch.made);
        let mut begins = self.endpoints.iter().flat_map(Endpoint::begins);
        self.slab.packets().any(is_of)
            || made.any(|(packet, _)| is_of(packet))
            || begins.any(|key| matches!(key, Key::Call(of, _) if of == group))
    }

    /// Whether all switches that a group needs have a mask left.
    pub(super) fn has_masks(&self, group: &Members) -> bool {
        group.switches().all(|switch| self.switches[switch].masks < MASKS)
    }

    pub(super) fn plan(&mut self, at: u64, event: Event) {
        self.queue.plan(at, event);
    }

    /// The time of the next event.
    pub(super) fn due(&self) -> Option<u64> {
        self.queue.due()
    }

    /// Executes the next event. Returns `false` if there is none.
    pub(super) fn step(&mut self) -> bool {
        self.most_planned = self.most_planned.max(self.queue.len());
        let Some(event) = self.queue.next(u64::MAX) else { return false };
        self.now = event.at;
        self.digest.add(event.at);
        match event.kind {
            Event::Sent(output) => self.sent(output as usize),
            Event::Arrived(output) => {
                if let Some(number) = self.outputs[output as usize].land(&mut self.slab) {
                    self.deliver(output as usize, number);
                }
            }
            Event::Made(switch) => self.made(switch as usize),
            Event::Begins(id) => self.begin_next(id),
            Event::Wakes(id) => self.woken.push(id),
        }
        true
    }

    /// Queues a packet at an output.
    pub(super) fn push(&mut self, output: usize, input: usize, packet: Packet, place: Buffer) {
        let number = self.slab.insert(packet, place);
        self.queue_at(output, input, number);
    }

    fn queue_at(&mut self, output: usize, input: usize, number: u32) {
        let now = self.now;
        self.outputs[output].push(&mut self.slab, input, number, now);
        self.kick(output);
    }

    /// Whether this is the output of an endpoint.
    fn is_endpoint(&self, output: usize) -> bool {
        output >= self.outputs.len() - self.endpoints.len()
    }

    /// Starts sending the next packet, unless one is being sent.
    fn kick(&mut self, output: usize) {
        let is_endpoint = self.is_endpoint(output);
        let out = &mut self.outputs[output];
        if out.leaving.is_some() {
            return;
        }
        let Some(number) = out.pop(&mut self.slab) else { return };
        let entry = self.slab.at(number);
        let is_request = entry.packet.is_request();
        let cycles = self.timing.occupied(entry.bytes.into(), is_endpoint && !is_request);
        let count = if is_request { &mut out.requests } else { &mut out.answers };
        *count += 1;
        out.leaving = Some(number);
        self.queue.plan(self.now + cycles, Event::Sent(output as u32));
    }

    fn sent(&mut self, output: usize) {
        let Some(number) = self.outputs[output].leaving.take() else { return };
        let mut place = std::mem::replace(&mut self.slab.at(number).place, Buffer::None);
        self.release(&mut place);
        if self.is_endpoint(output) {
            let Entry { packet, .. } = self.slab.at(number);
            self.frame_events.extend(FrameEvent::of(packet, FrameEvent::Sent));
        }
        let to_switch = matches!(self.neighbors[output], Neighbor::Switch(..));
        let latency = self.timing.link + if to_switch { self.timing.switch } else { 0 };
        if latency == 0 {
            self.deliver(output, number);
        } else {
            self.outputs[output].fly(&mut self.slab, number);
            self.queue.plan(self.now + latency, Event::Arrived(output as u32));
        }
        self.kick(output);
    }

    /// Frees the input buffer of a packet once no copy occupies it any more.
    pub(super) fn release(&mut self, place: &mut Buffer) {
        if let Some(output) = place.take() {
            if let Some(room) = &mut self.outputs[output].room {
                *room += 1;
            }
            self.kick(output);
        }
    }

    fn deliver(&mut self, output: usize, number: u32) {
        let Entry { packet, .. } = self.slab.at(number);
        self.digest.add(u64::from(packet.source) << 48 | u64::from(packet.number) << 16 | output as u64);
        self.digest.add(u64::from(packet.sequence) << 8 | packet.kind as u64);
        match self.neighbors[output] {
            Neighbor::Endpoint(id) => {
                let packet = self.slab.take(number);
                self.receive(id, packet);
            }
            Neighbor::Switch(switch, port) => {
                let (what, dest) = (packet.kind, packet.dest);
                let is_message = matches!(
                    what,
                    PacketKind::Message | PacketKind::Frame | PacketKind::MessageAnswer | PacketKind::NoRoute
                );
                let entry = self.slab.at(number);
                let is_lost = is_message
                    && (entry.count_hop() > self.switches.len() || usize::from(entry.bytes) > PACKET);
                let out = if is_message && !is_lost { self.tree.port(switch, dest) } else { None };
                if let Some(out) = out {
                    // The common case: the packet is forwarded without being moved in memory.
                    self.slab.at(number).place = Buffer::Of(output as u32);
                    return self.queue_at(self.switches[switch].output(out), port.into(), number);
                }
                let packet = self.slab.take(number);
                self.arrive(switch, port, packet, Buffer::Of(output as u32));
            }
        }
    }

    /// Traffic of all links, those of switch 0 first.
    pub(super) fn traffic(&self) -> Vec<LinkTraffic> {
        let mut links = Vec::new();
        for (switch, ports) in self.tree.ports().iter().enumerate() {
            for (end, port) in ports.iter().zip(0u8..) {
                let (neighbor, back) = match *end {
                    Neighbor::Endpoint(id) => (LinkEnd::Endpoint(id), self.endpoints[usize::from(id)].output),
                    Neighbor::Switch(other, _) if other < switch => continue,
                    Neighbor::Switch(other, port) => {
                        (LinkEnd::Switch(other), self.switches[other].output(port))
                    }
                };
                let both = [self.switches[switch].output(port), back].map(|output| &self.outputs[output]);
                links.push(LinkTraffic {
                    switch,
                    neighbor,
                    in_tree: self.tree.uses(switch, port),
                    requests: both.map(|output| output.requests),
                    answers: both.map(|output| output.answers),
                });
            }
        }
        links
    }

    /// Packets dropped by switches and endpoints.
    pub(super) fn dropped(&self) -> u64 {
        let at_endpoints = self.endpoints.iter().map(|endpoint| endpoint.dropped);
        self.switches.iter().map(|switch| switch.dropped).chain(at_endpoints).sum()
    }

    /// Packets in slots, queues and on links, plus occupied input buffers. 0 when nothing is in progress.
    pub(super) fn held(&self) -> usize {
        let buffers = self.timing.buffers.max(FEWEST);
        let taken = |output: &Output| output.room.map_or(0, |room| usize::from(buffers - room));
        let outputs: usize = self.outputs.iter().map(|output| output.held() + taken(output)).sum();
        outputs + self.switches.iter().map(Switch::held).sum::<usize>()
    }
}
