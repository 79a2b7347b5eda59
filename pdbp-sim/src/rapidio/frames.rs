//! Frames of a link layer above the fabric: messages of one or more packets that nobody on the fabric answers. Whoever sends them numbers
//! them, and hears of it when one has left its endpoint and when it is whole at the other. Times are in nanoseconds.
//!
//! Packets of one source, destination and priority stay in order, so that a frame is whole when its last packet is there. What it
//! carries stays where it is: packets have its length, and zeros in them.

use std::sync::Arc;

use pdbp_core::collective::{Call, Kind};

use super::fabric::Fabric;
use super::packet::{DATA, Packet, What};
use super::port::Place;
use super::timing::Timing;
use super::topology::{Topology, TopologyError};
use super::{HIGHEST, PACKET};

/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;

/// What has become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The last packet of that number has left its endpoint.
    Left(u32),
    /// It is whole at the other end.
    Whole(u32),
    /// A call of this endpoint has ended, or gone on.
    Wakes(u16),
}

/// A fabric that carries frames.
#[derive(Debug)]
pub(crate) struct Frames {
    pub(super) fabric: Fabric,
    /// What is in a packet that is full.
    full: Arc<[u8]>,
}

impl Frames {
    pub(crate) fn new(topology: &Topology, timing: Timing) -> Result<Self, TopologyError> {
        Ok(Self { fabric: Fabric::new(topology, timing)?, full: Arc::from(vec![0; DATA]) })
    }

    pub(crate) fn endpoints(&self) -> usize {
        self.fabric.endpoints.len()
    }

    /// Queues the packets of a frame at the output of its endpoint: one at least.
    pub(crate) fn send(&mut self, now: u64, (from, to): (u16, u16), priority: u8, number: u32, bytes: usize) {
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
                what: What::Frame,
                priority: priority.min(HIGHEST),
                source: from,
                dest: to,
                number,
                sequence: sequence as u32,
                run: (0, 1),
                // How many there are.
                tag: packets as u64,
                call: Call::moving(Kind::Tagged, 0, bytes),
                data,
                mismatch: None,
            };
            fabric.push(output, 0, packet, Place::None);
        }
    }

    /// It is that time at least.
    pub(super) fn reach(&mut self, now: u64) {
        let cycles = u128::from(now) * u128::from(self.fabric.timing.frequency);
        self.fabric.now = self.fabric.now.max(cycles.div_ceil(SECOND) as u64);
    }

    /// When something happens next on the fabric.
    pub(crate) fn due(&self) -> Option<u64> {
        self.fabric.due().map(|cycles| self.nanos(cycles))
    }

    /// Lets that happen, and says what of it is about frames, or about whoever has called something.
    pub(crate) fn step(&mut self, told: &mut Vec<Told>) {
        self.fabric.step();
        told.append(&mut self.fabric.told);
        told.extend(self.fabric.woken.drain(..).map(Told::Wakes));
    }

    pub(crate) fn now(&self) -> u64 {
        self.nanos(self.fabric.now)
    }

    pub(crate) fn digest(&self) -> u64 {
        self.fabric.digest.value()
    }

    /// Packets that endpoints have sent.
    pub(crate) fn packets(&self) -> u64 {
        self.fabric.endpoints.iter().map(|endpoint| endpoint.sent).sum()
    }

    /// The switch of an endpoint.
    pub(crate) fn board(&self, id: u16) -> usize {
        self.fabric.tree.home(id).0
    }

    /// The endpoint to which the way from the first one is the longest.
    pub(crate) fn farthest(&self) -> u16 {
        let tree = &self.fabric.tree;
        (0..tree.endpoints() as u16).max_by_key(|id| tree.way(0, *id).len()).unwrap_or(0)
    }

    /// How long the last packet of a frame of so many bytes takes where there is nothing else, if it passes all the switches of the
    /// longest way or more.
    pub(crate) fn longest_way(&self, bytes: usize) -> u64 {
        let Fabric { tree, timing, .. } = &self.fabric;
        let switches = 2 * tree.way(0, self.farthest()).len() as u64;
        let packet = timing.occupied(PACKET, false);
        let packets = bytes.div_ceil(DATA).max(1) as u64;
        self.nanos(packets * packet + (switches + 1) * (packet + timing.switch + timing.link))
    }

    fn nanos(&self, cycles: u64) -> u64 {
        (u128::from(cycles) * SECOND / u128::from(self.fabric.timing.frequency.max(1))) as u64
    }
}

impl Told {
    /// What is told of a packet, if it is the last one of a frame.
    pub(super) fn of(packet: &Packet, told: fn(u32) -> Self) -> Option<Self> {
        let is_last = packet.what == What::Frame && u64::from(packet.sequence) + 1 == packet.tag;
        is_last.then(|| told(packet.number))
    }
}
