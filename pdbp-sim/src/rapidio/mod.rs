//! A fabric of switches that do the work of collectives: the platform and the library MPIRIO of a paper of 2021, in virtual time.
//!
//! S3 of the documents, "Design of a parallel communication interface for BWDSP", puts four signal processors and a switch on a board,
//! joins boards by RapidIO, and lets switches copy, join and combine what processes send to each other. Modules, in the order in which
//! a fabric comes about:
//!
//! 1. [`Topology`]: boards, switches, links. [`Timing`]: how long things take.
//! 2. [`Tree`]: what Init finds out: a spanning tree (Prim), ids along it, and the tables of the switches.
//! 3. packets, ports and switches: who is next, what is copied, divided, joined and combined.
//! 4. [`mpirio`]: the library. A program is an `async` closure that runs once per process; see there for an example.
//!
//! A [network](crate::network) of PDBP's nodes runs on it as well ([`Ground::Fabric`](crate::network::Ground::Fabric)): a frame of its link layer is
//! a message without answers.
//!
//! # Rules
//! * **Values are combined in the order of ports along the tree**, whatever comes first, by [`pdbp_core::collective::combine`]. The same
//!   call gives the same bits in every run on the same topology, with any timing.
//! * Packets of one source, destination and priority stay in order. A switch never sends a copy back where it came from.
//! * A switch holds 64 packets of a group at most, and nobody is further ahead of the others than that (`flow.rs`);
//!   [`most_slots`](mpirio::Report::most_slots) and [`most_early`](mpirio::Report::most_early) say how many there were. A switch has masks for
//!   [`MASKS`] groups; those of others are done by messages.
//! * An input takes a packet only when it has room. What is held in a switch for others to come has left its input, so that nothing waits
//!   in a circle: on a tree a packet never turns back, and endpoints always take.
//! * A run depends on its arguments alone: the same gives the same [`digest`](mpirio::Report::digest).
//!
//! # Not modelled
//! * Headers as bytes. A packet has the length that they give it.
//! * Links and switches that fail, and what Init costs in time.
//! * A bound for messages that lie at an endpoint and that nobody has asked for.
//! * Storage.

mod endpoint;
mod fabric;
mod flow;
pub(crate) mod frames;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod groups;
pub mod mpirio;
mod operation;
mod packet;
mod port;
mod spanning;
mod switch;
#[cfg(test)]
mod tests;
mod timing;
mod topology;
mod unit;
mod up_down;

use std::fmt;

use pdbp_core::collective::{Call, Kind, Refused};

pub use fabric::{LinkEnd, LinkTraffic};
pub use packet::{DATA, HIGHEST, PACKET, VALUES};
pub use spanning::{RoutingLoop, Tree};
pub use timing::{PortTime, Timing};
pub use topology::{BOARD, ENDPOINTS, Link, MASKS, PORTS, Topology, TopologyError};

/// Two members that called different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The number of the call in its group, from 1.
    pub number: u32,
    /// One rank and what it called.
    pub one: (usize, Call),
    /// Another, and what that called.
    pub other: (usize, Call),
}

/// Why an operation of a process failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// It was not begun; nothing was sent.
    Refused(Refused),
    /// Switches do not do such calls.
    NotInSwitches {
        /// Which.
        kind: Kind,
    },
    /// Members of the group called different things; every later call of the group says so.
    Mismatch(Mismatch),
    /// A switch that the group needs has no mask left: its calls are done by messages.
    NoMask,
    /// There are 65,536 groups, which is as many as have numbers.
    NoNumber,
    /// The process is none of those that it has named for a group, or one is named twice.
    NotOfGroup {
        /// Its rank, or the one named twice.
        rank: usize,
    },
    /// No table has a way there.
    NoRoute {
        /// The id of the endpoint.
        dest: u16,
    },
    /// A message is longer or shorter than what was waited for; it is lost.
    Length {
        /// The rank of its sender among all.
        from: u16,
        /// Its length.
        bytes: usize,
        /// What was waited for.
        wanted: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::NotInSwitches { kind } => {
                write!(f, "switches do no {kind:?}; put it together from others, or use pdbp::collective")
            }
            Self::NoMask => {
                write!(
                    f,
                    "switches have {MASKS} masks, and one has none left for this group; use `by_messages`"
                )
            }
            Self::NoNumber => {
                f.write_str("65,536 groups have all numbers there are; use those that the program has made")
            }
            Self::NotOfGroup { rank } => {
                write!(f, "rank {rank} makes a group and is not in its list, or is there twice; name it once")
            }
            Self::Mismatch(Mismatch { number, one, other }) => write!(
                f,
                "call {number}: rank {} called {}, and rank {} called {}; all members have to make the same calls in the same order",
                one.0, one.1, other.0, other.1
            ),
            Self::NoRoute { dest } => write!(f, "no way leads to endpoint {dest}; check the tables"),
            Self::Length { from, bytes, wanted } => {
                write!(f, "a message of {bytes} bytes from {from}, where {wanted} were waited for")
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}
