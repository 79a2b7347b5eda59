//! What frames travel on: wires, or a [fabric](crate::rapidio) of switches, where a frame is as many packets as it needs.
//!
//! The link layer is the same on both. On a fabric no frame passes another that goes the same way, none is lost but by chance, and how long
//! one takes follows from what else is under way. **A frame has left when its last packet has left its endpoint**: what waits there is
//! not sent again.

use std::collections::BTreeMap;

use super::events::Kind;
use super::pair::Frame;
use super::physics::{Physics, PhysicsError, Probability};
use super::switches::GroupKey;
use super::wire::{Net, key};
use crate::rapidio::frames::{FrameEvent, Frames};
use crate::rapidio::{Timing, Topology};

/// Acknowledgements, and blocks that go back, pass data that waits.
const SHORT_FIRST: u8 = 1;
const DATA: u8 = 0;

/// What the frames of a network travel on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Ground {
    /// A wire from each node to each other, as [`Physics`] says.
    #[default]
    Wires,
    /// A fabric of switches. Nodes are its endpoints, in the order in which Init numbers them; there may be more endpoints than nodes.
    ///
    /// Of [`Physics`] it keeps all but latency, jitter, rates and reordering, which follow from it. A frame that is lost crosses the
    /// fabric and is found broken where it arrives. What work costs a processor is for [`HostCosts`](super::HostCosts) to say,
    /// not for [`Timing::message`].
    Fabric {
        /// Boards, switches and links.
        topology: Topology,
        /// How long things take.
        timing: Timing,
    },
}

/// A fabric, and what is under way on it.
#[derive(Debug)]
pub(super) struct OnFabric {
    pub(super) frames: Frames,
    /// By number, what arrives, if anything does.
    under_way: BTreeMap<u32, (Kind, Fate)>,
    numbers: u32,
    told: Vec<FrameEvent>,
    /// Of each group, its key and how many ends there are.
    pub(super) ends: BTreeMap<u16, (GroupKey, usize)>,
    /// Groups that there have been.
    pub(super) groups: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    IsLost,
}

impl Ground {
    /// Nanoseconds until a block of so many bytes, header included, is whole at the endpoint that is farthest from the first one, with
    /// nothing else under way; `None` on wires.
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
    /// A topology that cannot be.
    pub fn time_of_block(&self, bytes: usize) -> Result<Option<u64>, PhysicsError> {
        let Self::Fabric { topology, timing } = self else { return Ok(None) };
        let mut frames = Frames::new(topology, *timing).map_err(PhysicsError::Topology)?;
        let farthest = frames.farthest();
        frames.send(0, (0, farthest), DATA, 0, bytes);
        let mut told = Vec::new();
        while frames.due().is_some() && !told.contains(&FrameEvent::Arrived(0)) {
            frames.step(&mut told);
        }
        Ok(Some(frames.now()))
    }
}

impl Physics {
    /// Its values on its ground for so many nodes, and the fabric if it is one.
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
            told: Vec::new(),
            ends: BTreeMap::new(),
            groups: 0,
        };
        Ok((physics, Some(ground)))
    }
}

impl OnFabric {
    /// Whether a packet is under way.
    pub(super) fn is_moving(&self) -> bool {
        self.frames.due().is_some()
    }
}

impl Net {
    /// Sends something as a message of the fabric, if there is one; `what` happens when it is whole at the other end.
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
        self.counts.lost += u64::from(is_lost);
        ground.under_way.insert(ground.numbers, (what, if is_lost { Fate::IsLost } else { Fate::Arrives }));
        ground.frames.send(self.now, ends, priority, ground.numbers, bytes);
        true
    }

    /// Lets happen what happens on the fabric until then, or until something of the link layer does.
    pub(super) fn run_fabric(&mut self, until: u64) {
        loop {
            let last = self.queue.due().map_or(until, |due| due.min(until));
            let Some(ground) = &mut self.ground else { return };
            if ground.frames.due().is_none_or(|due| due > last) {
                return;
            }
            let mut told = std::mem::take(&mut ground.told);
            ground.frames.step(&mut told);
            let now = ground.frames.now();
            told.drain(..).for_each(|told| self.on_frame_event(told, now));
            if let Some(ground) = &mut self.ground {
                ground.told = told;
            }
        }
    }

    fn on_frame_event(&mut self, told: FrameEvent, now: u64) {
        let Some(ground) = &mut self.ground else { return };
        match told {
            FrameEvent::Sent(number) => {
                if let Some((Kind::Frame { from, to, session, sequence }, _)) = ground.under_way.get(&number)
                    && let Some(pair) = self.pairs.get_mut(&key(*from, *to))
                    && pair.session == *session
                    && let Some(frame) = pair.ends_of(*from, *to).0.out.frame(*sequence)
                {
                    frame.leaves(now);
                }
            }
            FrameEvent::Wakes(node) => self.ring(node),
            FrameEvent::Arrived(number) => {
                if let Some((what, Fate::Arrives)) = ground.under_way.remove(&number) {
                    self.queue.plan(now, what);
                }
            }
        }
    }
}

impl Frame {
    /// One of the copies that wait at the endpoint has left.
    fn leaves(&mut self, now: u64) {
        self.waiting = self.waiting.saturating_sub(1);
        self.left = now;
    }
}
