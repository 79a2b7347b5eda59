//! The medium that frames travel on: wires, or a [fabric](crate::rapidio) of switches, where a frame is split into as many packets
//! as needed.
//!
//! The link layer is the same on both. On a fabric, no frame overtakes another on the same route, none is lost except at random and when
//! links or switches fail or come back, and the time that a frame takes follows from the other traffic. **A frame has left when its last packet has left its endpoint**:
//! frames waiting there are not sent again.

use std::collections::BTreeMap;

use super::Network;
use super::events::Kind;
use super::pair::Frame;
use super::physics::{Physics, PhysicsError, Probability};
use super::port::lock;
use super::switches::GroupKey;
use super::wire::{Net, key};
use crate::rapidio::frames::{FrameEvent, Frames};
use crate::rapidio::{Timing, Topology};

/// Acknowledgements and returned blocks overtake waiting data.
const SHORT_FIRST: u8 = 1;
const DATA: u8 = 0;

/// The medium that the frames of a network travel on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Ground {
    /// A wire between each two nodes, with the properties in [`Physics`].
    #[default]
    Wires,
    /// A fabric of switches. The nodes are its endpoints, in the order in which Init numbers them; endpoints may outnumber nodes.
    ///
    /// Latency, jitter, rates and reordering follow from the fabric; the rest of [`Physics`] applies. A lost frame crosses the
    /// fabric and is found corrupted on arrival. The processor cost of work is set by [`HostCosts`](super::HostCosts), not by
    /// [`Timing::message`].
    Fabric {
        /// Boards, switches and links.
        topology: Topology,
        /// How long things take.
        timing: Timing,
    },
}

/// A fabric and the traffic on it.
#[derive(Debug)]
pub(super) struct OnFabric {
    pub(super) frames: Frames,
    under_way: BTreeMap<u32, UnderWay>,
    numbers: u32,
    events: Vec<FrameEvent>,
    /// The key of each group, and how many ends it has.
    pub(super) ends: BTreeMap<u16, (GroupKey, usize)>,
    /// Number of groups created so far.
    pub(super) groups: u32,
}

/// A frame on the fabric.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// The event on arrival.
    what: Kind,
    is_lost: bool,
    /// Whether its last packet has left its endpoint.
    has_left: bool,
}

impl Ground {
    /// Returns the nanoseconds until a block of this many bytes, including its header, has arrived completely at the endpoint
    /// farthest from the first one, without other traffic; `None` on wires.
    ///
    /// ```
    /// use pdbp_sim::network::Ground;
    /// use pdbp_sim::rapidio::{DATA, PACKET, Timing, Topology};
    ///
    /// let timing = Timing::SRIO;
    /// let ground = Ground::Fabric { topology: Topology::boards(4).ring(), timing };
    /// let nanos = ground.time_of_block(128 << 10)?.unwrap();
    /// let rate = f64::from(128 << 13) * 1e9 / nanos as f64;
    /// assert!(rate > 0.95 * timing.speed() * DATA as f64 / PACKET as f64);
    /// # Ok::<(), pdbp_sim::network::PhysicsError>(())
    /// ```
    ///
    /// # Errors
    /// A topology that is impossible.
    pub fn time_of_block(&self, bytes: usize) -> Result<Option<u64>, PhysicsError> {
        let Self::Fabric { topology, timing } = self else { return Ok(None) };
        let mut frames = Frames::new(topology, *timing).map_err(PhysicsError::Topology)?;
        let farthest = frames.farthest();
        frames.send(0, (0, farthest), DATA, 0, bytes);
        let mut events = Vec::new();
        while frames.due().is_some() && !events.contains(&FrameEvent::Arrived(0)) {
            frames.step(&mut events);
        }
        Ok(Some(frames.now()))
    }
}

impl Physics {
    /// Returns these properties as adapted to their ground for this many nodes, and the fabric if the ground is one.
    pub(super) fn on_ground(&self, nodes: usize) -> Result<(Self, Option<OnFabric>), PhysicsError> {
        let Ground::Fabric { topology, timing } = &self.ground else { return Ok((self.clone(), None)) };
        let frames = Frames::new(topology, *timing).map_err(PhysicsError::Topology)?;
        let endpoints = frames.endpoints();
        if endpoints < nodes {
            return Err(PhysicsError::Endpoints { nodes, endpoints });
        }
        let latency = frames.longest_latency(self.largest_block);
        let (jitter, reorder, rate) = (0, Probability::NEVER, 0);
        let physics = Self { latency, jitter, reorder, rate, host_rate: 0, ..self.clone() };
        let ground = OnFabric {
            frames,
            under_way: BTreeMap::new(),
            numbers: 0,
            events: Vec::new(),
            ends: BTreeMap::new(),
            groups: 0,
        };
        Ok((physics, Some(ground)))
    }
}

impl OnFabric {
    /// Whether any packet is in flight.
    pub(super) fn is_moving(&self) -> bool {
        self.frames.due().is_some()
    }
}

impl Net {
    /// Sends something as a message of the fabric, if the ground is one; `what` happens once it has arrived completely at the other
    /// end.
    pub(super) fn send_on_fabric(&mut self, bytes: usize, what: Kind) -> bool {
        let Some(ground) = &mut self.ground else { return false };
        let (ends, priority) = match what {
            Kind::Frame { from, to, .. } if bytes > super::wire::SHORT_FRAME => ((from, to), DATA),
            Kind::Ack { from, to, .. } => ((to, from), SHORT_FIRST),
            Kind::Frame { from, to, .. } => ((from, to), SHORT_FIRST),
            _ => return false,
        };
        ground.numbers = ground.numbers.wrapping_add(1);
        let is_lost = self.physics.loss.strikes(&mut self.random);
        if ground.frames.send(self.now, ends, priority, ground.numbers, bytes) {
            self.counts.lost += u64::from(is_lost);
            ground.under_way.insert(ground.numbers, UnderWay { what, is_lost, has_left: false });
        } else {
            self.counts.lost += 1;
            self.leaves(what, self.now);
        }
        true
    }

    /// Advances the fabric until then, or until the next event of the link layer.
    pub(super) fn run_fabric(&mut self, until: u64) {
        loop {
            let last = self.queue.due().map_or(until, |due| due.min(until));
            let Some(ground) = &mut self.ground else { return };
            if ground.frames.due().is_none_or(|due| due > last) {
                return;
            }
            let mut events = std::mem::take(&mut ground.events);
            ground.frames.step(&mut events);
            let now = ground.frames.now();
            events.drain(..).for_each(|event| self.on_frame_event(event, now));
            if let Some(ground) = &mut self.ground {
                ground.events = events;
            }
        }
    }

    fn on_frame_event(&mut self, event: FrameEvent, now: u64) {
        let Some(ground) = &mut self.ground else { return };
        match event {
            FrameEvent::Sent(number) => {
                if let Some(under_way) = ground.under_way.get_mut(&number) {
                    under_way.has_left = true;
                    let what = under_way.what;
                    self.leaves(what, now);
                }
            }
            FrameEvent::Wakes(node) => self.ring(node),
            FrameEvent::Arrived(number) => {
                if let Some(UnderWay { what, is_lost: false, .. }) = ground.under_way.remove(&number) {
                    self.queue.plan(now, what);
                }
            }
        }
    }

    /// Notes that a copy of a frame has left its endpoint.
    fn leaves(&mut self, what: Kind, now: u64) {
        if let Kind::Frame { from, to, session, sequence } = what
            && let Some(pair) = self.pairs.get_mut(&key(from, to))
            && pair.session == session
            && let Some(frame) = pair.ends_of(from, to).0.out.frame(sequence)
        {
            frame.leaves(now);
        }
    }

    /// Changes what of the fabric is up. If `change` returns `true`, everything under way on it is lost.
    pub(super) fn change_fabric(&mut self, change: impl FnOnce(&mut Frames, u64) -> bool) {
        let now = self.now;
        let Some(ground) = &mut self.ground else { return };
        if !change(&mut ground.frames, now) {
            return;
        }
        for UnderWay { what, is_lost, has_left } in std::mem::take(&mut ground.under_way).into_values() {
            self.counts.lost += u64::from(!is_lost);
            if !has_left {
                self.leaves(what, now);
            }
        }
        // Those that wait for a call that has ended with the tables.
        (0..self.nodes.len() as u16).for_each(|node| self.ring(node));
        self.check_all_links();
    }

    /// Whether the ground has a way to this node.
    pub(super) fn has_way_to(&self, node: u16) -> bool {
        self.ground.as_ref().is_none_or(|ground| ground.frames.is_reachable(node))
    }
}

impl Network {
    /// Takes the link of two switches of the fabric down, or brings it up: see [`Fault::Link`](super::Fault::Link). Returns `false` on wires, and
    /// if these switches are not linked.
    pub fn set_link(&self, a: usize, b: usize, is_up: bool) -> bool {
        let has_it = self.has_link(a, b);
        if has_it {
            lock(&self.0).change_fabric(|frames, now| frames.set_link(now, (a, b), is_up));
        }
        has_it
    }

    /// Takes a switch of the fabric down with its links and endpoints, or brings it up: see [`Fault::Switch`](super::Fault::Switch). Returns
    /// `false` on wires, and if there is no such switch.
    pub fn set_switch(&self, switch: usize, is_up: bool) -> bool {
        let has_it = self.has_switch(switch);
        if has_it {
            lock(&self.0).change_fabric(|frames, now| frames.set_switch(now, switch, is_up));
        }
        has_it
    }

    pub(super) fn has_link(&self, a: usize, b: usize) -> bool {
        lock(&self.0).ground.as_ref().is_some_and(|ground| ground.frames.whole().has_link(a, b))
    }

    pub(super) fn has_switch(&self, switch: usize) -> bool {
        lock(&self.0).ground.as_ref().is_some_and(|ground| switch < ground.frames.whole().switches())
    }
}

impl Frame {
    /// Notes that one of the copies waiting at the endpoint has left.
    fn leaves(&mut self, now: u64) {
        self.waiting = self.waiting.saturating_sub(1);
        self.left = now;
    }
}
