//! Properties of links and hosts: times in nanoseconds, rates in bits per second.

use std::fmt;

use pdbp_core::Arrival;
use pdbp_core::cdu::BLOCK_HEADER;

use super::ground::{Ground, OnFabric};
use crate::random::Random;
use crate::rapidio::TopologyError;

/// A probability, with a resolution of 32 binary places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Probability(u64);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0);

    /// A probability of `share`; `None` unless that is a number from 0 to 1.
    pub fn new(share: f64) -> Option<Self> {
        let whole = (1u64 << 32) as f64;
        (0.0..=1.0).contains(&share).then(|| Self((share * whole).round() as u64))
    }

    pub(super) fn strikes(self, random: &mut Random) -> bool {
        self.0 > 0 && random.next() >> 32 < self.0
    }
}

/// When the peers of a crashed node notice that it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashSight {
    /// Once they have heard nothing from it for [`Physics::give_up`].
    BySilence,
    /// At once, as when the operating system closes the connections of a crashed process.
    AtOnce,
}

/// The physics of a network. The default is a gigabit network without faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Physics {
    /// The medium that frames travel on.
    pub ground: Ground,
    /// How blocks arrive, on all links.
    pub arrival: Arrival,
    /// Nanoseconds from the last bit sent to the last bit received.
    pub latency: u64,
    /// Maximum nanoseconds by which a frame takes longer than that, drawn for each frame.
    pub jitter: u64,
    /// Bits per second that one link carries; 0 for no limit. Acknowledgements take none of them, except on a fabric.
    pub rate: u64,
    /// Bits per second that leave a host, over all its links together; 0 for no limit.
    pub host_rate: u64,
    /// Share of the frames, including acknowledgements, that are lost and sent again.
    pub loss: Probability,
    /// Share of the frames that take up to four times as long, so that later ones overtake them.
    pub reorder: Probability,
    /// Nanoseconds without an acknowledgement after which a frame is sent again, at most half of `give_up`. Doubles at each
    /// repetition, up to 64 times or a sixteenth of `give_up`; 0 derives it from latency and jitter.
    pub resend_after: u64,
    /// Nanoseconds of silence after which the link to a peer is given up, at both ends.
    pub give_up: u64,
    /// Maximum nanoseconds until an end notices that its link is down, drawn for each end.
    pub notice: u64,
    /// When peers notice a crash.
    pub crash_sight: CrashSight,
    /// Maximum number of blocks that one link has in flight, 1 or more; engines need 3.
    pub in_flight: usize,
    /// Length of the longest block in bytes, header and body.
    pub largest_block: usize,
}

impl Default for Physics {
    fn default() -> Self {
        Self {
            ground: Ground::Wires,
            arrival: Arrival::Posted,
            latency: 20_000,
            jitter: 0,
            rate: 1_000_000_000,
            host_rate: 0,
            loss: Probability::NEVER,
            reorder: Probability::NEVER,
            resend_after: 0,
            give_up: 1_000_000_000,
            notice: 100_000,
            crash_sight: CrashSight::BySilence,
            in_flight: 64,
            largest_block: 64 << 10,
        }
    }
}

/// A value that no network can have, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PhysicsError {
    /// An impossible number of nodes.
    Nodes(usize),
    /// No block may be in flight.
    InFlight,
    /// Blocks of this many bytes have no room for a header and a body.
    LargestBlock(usize),
    /// The fabric is impossible.
    Topology(TopologyError),
    /// The fabric has too few endpoints.
    Endpoints {
        /// Number of nodes.
        nodes: usize,
        /// Number of endpoints.
        endpoints: usize,
    },
    /// A link is given up before a frame can be acknowledged.
    GiveUp {
        /// Nanoseconds until a link is given up.
        give_up: u64,
        /// Nanoseconds of the longest round trip.
        round_trip: u64,
    },
}

impl fmt::Display for PhysicsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(n) => write!(f, "a network cannot have {n} nodes; choose 1 to 65535"),
            Self::InFlight => f.write_str("in_flight is 0, so no block could travel; set it to 1 or more"),
            Self::LargestBlock(n) => {
                write!(
                    f,
                    "blocks of {n} bytes have no room for a body; set largest_block above {BLOCK_HEADER}"
                )
            }
            Self::Topology(error) => error.fmt(f),
            Self::Endpoints { nodes, endpoints } => write!(
                f,
                "{nodes} nodes on a fabric of {endpoints} endpoints; add boards or endpoints, or run fewer nodes"
            ),
            Self::GiveUp { give_up, round_trip } => write!(
                f,
                "links are given up after {give_up} ns, but the way there and back takes up to {round_trip} ns; choose \
                 a longer give_up, or a shorter latency"
            ),
        }
    }
}

impl std::error::Error for PhysicsError {}

impl Physics {
    /// Checks whether a network of `nodes` nodes can have these properties.
    ///
    /// # Errors
    /// The first impossible value.
    pub fn check(&self, nodes: usize) -> Result<(), PhysicsError> {
        self.checked(nodes).map(|_| ())
    }

    /// The same; returns the properties adapted to their ground.
    pub(super) fn checked(&self, nodes: usize) -> Result<(Self, Option<OnFabric>), PhysicsError> {
        if nodes == 0 || nodes > usize::from(u16::MAX) {
            return Err(PhysicsError::Nodes(nodes));
        }
        if self.in_flight == 0 {
            return Err(PhysicsError::InFlight);
        }
        if self.largest_block <= BLOCK_HEADER {
            return Err(PhysicsError::LargestBlock(self.largest_block));
        }
        let on_ground = self.on_ground(nodes)?;
        let round_trip = on_ground.0.longest_way().saturating_mul(2);
        if self.give_up <= round_trip {
            return Err(PhysicsError::GiveUp { give_up: self.give_up, round_trip });
        }
        Ok(on_ground)
    }

    /// Nanoseconds that the slowest frame takes after it has left.
    pub(super) fn longest_way(&self) -> u64 {
        let usual = self.latency.saturating_add(self.jitter);
        if self.reorder == Probability::NEVER { usual } else { usual.saturating_mul(4) }
    }

    /// Nanoseconds after which a frame is sent again for the first time.
    pub(super) fn first_resend(&self) -> u64 {
        let given = match self.resend_after {
            0 => self.latency.saturating_add(self.jitter).saturating_mul(4).max(10_000),
            given => given,
        };
        given.min(self.give_up / 2).max(1)
    }

    /// Nanoseconds from the departure of a frame to its arrival.
    pub(super) fn way(&self, random: &mut Random) -> u64 {
        let usual = self.latency + random.below(self.jitter + 1);
        if self.reorder.strikes(random) {
            return usual + random.below(3 * (self.latency + self.jitter) + 1);
        }
        usual
    }
}

/// Nanoseconds that `bytes` bytes take at `rate` bits per second; 0 for a rate of 0, which means no limit.
pub(super) fn serialisation(bytes: usize, rate: u64) -> u64 {
    (bytes as u64 * 8).saturating_mul(1_000_000_000).checked_div(rate).unwrap_or(0)
}
