//! Frames of a link layer above the fabric: messages of one or more packets that the fabric does not acknowledge. The sender
//! numbers them, and gets one event when a frame has left its endpoint and another when all of it has arrived. Times are in
//! nanoseconds.
//!
//! Packets of one source, destination and priority stay in order, so a frame is complete when its last packet arrives. The contents
//! do not travel through the fabric: packets have the right length, but carry zeros.

use std::sync::Arc;

use pdbp_core::collective::{Call, Kind};

use super::fabric::Fabric;
use super::outages::Down;
use super::packet::{DATA, Packet, PacketKind};
use super::port::Buffer;
use super::timing::Timing;
use super::topology::{Topology, TopologyError};
use super::{HIGHEST, PACKET};

/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;

/// An event of a frame, or of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameEvent {
    /// The last packet of the frame of this number has left its endpoint.
    Sent(u32),
    /// All of it has arrived.
    Arrived(u32),
    /// A call of this endpoint has ended or made progress.
    Wakes(u16),
}

/// A fabric that carries frames. Endpoints have the ids of the whole fabric, also while some of it is down.
#[derive(Debug)]
pub(crate) struct Frames {
    /// What is up.
    pub(super) fabric: Fabric,
    /// The data of a full packet.
    full: Arc<[u8]>,
    /// The topology without outages, and its tree's place of each endpoint.
    pub(super) whole: Topology,
    pub(super) places: Vec<usize>,
    pub(super) down: Down,
    /// The id that each endpoint has in `fabric`, and the reverse.
    pub(super) ids: Vec<Option<u16>>,
    pub(super) endpoints_of: Vec<u16>,
    /// Packets sent before the last change.
    pub(super) packets_before: u64,
    /// Groups of lower numbers have been ended by a change.
    pub(super) ended_groups: usize,
}

impl Frames {
    pub(crate) fn new(topology: &Topology, timing: Timing) -> Result<Self, TopologyError> {
        let fabric = Fabric::new(topology, timing)?;
        let ids: Vec<u16> = (0..fabric.tree.endpoints() as u16).collect();
        Ok(Self {
            full: Arc::from(vec![0; DATA]),
            whole: topology.clone(),
            places: ids.iter().map(|id| fabric.tree.place(*id)).collect(),
            down: Down::default(),
            ids: ids.iter().copied().map(Some).collect(),
            endpoints_of: ids,
            packets_before: 0,
            ended_groups: 0,
            fabric,
        })
    }

    pub(crate) fn endpoints(&self) -> usize {
        self.places.len()
    }

    /// Queues the packets of a frame, at least one, at the output of its endpoint. `false` if no route leads to the destination: the frame is
    /// lost.
    pub(crate) fn send(
        &mut self,
        now: u64,
        (from, to): (u16, u16),
        priority: u8,
        number: u32,
        bytes: usize,
    ) -> bool {
        let (Some(from), Some(to)) = (self.id(from), self.id(to)) else { return false };
        self.reach(now);
        let fabric = &mut self.fabric;
        let packets = bytes.div_ceil(DATA).max(1);
        let endpoint = &mut fabric.endpoints[usize::from(from)];
        endpoint.sent += packets as u64;
        let output = endpoint.output;
        for sequence in 0..packets {
            let length = bytes - (sequence * DATA).min(bytes);
            let data = if length >= DATA { Arc::clone(&self.full) } else { Arc::from(vec![0; length]) };
            let packet = Packet {
                kind: PacketKind::Frame,
                priority: priority.min(HIGHEST),
                source: from,
                dest: to,
                number,
                sequence: sequence as u32,
                run: (0, 1),
                // The number of packets.
                tag: packets as u64,
                call: Call::moving(Kind::Tagged, 0, bytes),
                data,
                mismatch: None,
            };
            fabric.push(output, 0, packet, Buffer::None);
        }
        true
    }

    /// Advances the clock to this time, if it is behind.
    pub(super) fn reach(&mut self, now: u64) {
        let cycles = u128::from(now) * u128::from(self.fabric.timing.frequency);
        self.fabric.now = self.fabric.now.max(cycles.div_ceil(SECOND) as u64);
    }

    /// The time of the next event on the fabric.
    pub(crate) fn due(&self) -> Option<u64> {
        self.fabric.due().map(|cycles| self.nanos(cycles))
    }

    /// Executes that event, and appends its consequences for frames and calls.
    pub(crate) fn step(&mut self, events: &mut Vec<FrameEvent>) {
        self.fabric.step();
        events.append(&mut self.fabric.frame_events);
        let endpoints = self.fabric.woken.drain(..).filter_map(|id| self.endpoints_of.get(usize::from(id)));
        events.extend(endpoints.copied().map(FrameEvent::Wakes));
    }

    pub(crate) fn now(&self) -> u64 {
        self.nanos(self.fabric.now)
    }

    pub(crate) fn digest(&self) -> u64 {
        self.fabric.digest.value()
    }

    /// Packets sent by all endpoints.
    pub(crate) fn packets(&self) -> u64 {
        self.packets_before + self.packets_now()
    }

    /// The same, since the last change.
    pub(super) fn packets_now(&self) -> u64 {
        self.fabric.endpoints.iter().map(|endpoint| endpoint.sent).sum()
    }

    /// The switch of an endpoint.
    pub(crate) fn board(&self, id: u16) -> usize {
        self.places.get(usize::from(id)).map_or(0, |place| self.whole.switch_of()[*place])
    }

    /// Boards, switches and links, whether they are up or not.
    pub(crate) fn whole(&self) -> &Topology {
        &self.whole
    }

    /// The endpoint with the longest route from the first one.
    pub(crate) fn farthest(&self) -> u16 {
        let tree = &self.fabric.tree;
        (0..tree.endpoints() as u16).max_by_key(|id| tree.route(0, *id).len()).unwrap_or(0)
    }

    /// An upper bound on how long a frame of this many bytes takes on the idle fabric: until its last packet has passed twice the switches of
    /// the longest route.
    pub(crate) fn longest_latency(&self, bytes: usize) -> u64 {
        let Fabric { tree, timing, .. } = &self.fabric;
        let switches = 2 * tree.route(0, self.farthest()).len() as u64;
        let packet = timing.occupied(PACKET, false);
        let packets = bytes.div_ceil(DATA).max(1) as u64;
        self.nanos(packets * packet + (switches + 1) * (packet + timing.switch + timing.link))
    }

    fn nanos(&self, cycles: u64) -> u64 {
        (u128::from(cycles) * SECOND / u128::from(self.fabric.timing.frequency.max(1))) as u64
    }
}

impl FrameEvent {
    /// The event of a packet, if it is the last one of its frame.
    pub(super) fn of(packet: &Packet, event: fn(u32) -> Self) -> Option<Self> {
        let is_last = packet.kind == PacketKind::Frame && u64::from(packet.sequence) + 1 == packet.tag;
        is_last.then(|| event(packet.number))
    }
}
