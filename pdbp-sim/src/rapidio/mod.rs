//! A fabric whose switches perform collectives: the platform of a paper of 2021 and its library MPIRIO, in virtual time.
//!
//! S3 of the documents, "Design of a parallel communication interface for BWDSP", puts four signal processors and a switch on a
//! board, connects boards by RapidIO, and lets switches replicate, merge and combine the data that processes exchange. Modules, in
//! the order in which a fabric is set up:
//!
//! 1. [`Topology`]: boards, switches, links. [`Timing`]: latencies, rates and windows.
//! 2. [`Tree`]: the result of Init: a spanning tree (Prim), ids along it, and the routing tables of the switches.
//! 3. Packets, ports and switches: arbitration, replication, and the units that merge and combine.
//! 4. [`mpirio`]: the library. A program is an `async` closure that runs once per process; see there for an example.
//!
//! A [network](crate::network) of PDBP nodes also runs on it ([`Ground::Fabric`](crate::network::Ground::Fabric)): a frame of its
//! link layer is a message without acknowledgements.
//!
//! # Rules
//! * **Values are combined in the order of ports along the tree**, not of arrival, by [`pdbp_core::collective::combine`]. The same
//!   call gives the same bits in every run on the same topology, with any timing.
//! * Packets of one source, destination and priority stay in order. A switch never sends a copy back out of the port it came in at.
//! * A switch holds at most 64 packets of a group, and no member is further ahead of the others than that (`flow.rs`);
//!   [`most_slots`](mpirio::Report::most_slots) and [`most_early`](mpirio::Report::most_early) report the maxima. A switch has
//!   masks for [`MASKS`] groups; calls of further groups are performed by messages.
//! * An input accepts a packet only if it has a free buffer. A packet that a switch holds until others have arrived does not occupy
//!   its input buffer, so there is no deadlock: on a tree a packet never turns back, and endpoints always accept.
//! * A run depends only on its arguments: equal arguments give an equal [`digest`](mpirio::Report::digest).
//!
//! # Not modelled
//! * The contents of headers. They only count in a packet's length.
//! * The time that Init takes, and that neighbours take to notice that a link or a switch has failed. Only a network of PDBP nodes has such
//!   failures ([`Fault::Link`](crate::network::Fault::Link)); runs of MPIRIO have none.
//! * A bound on unexpected messages at an endpoint.
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
mod outages;
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

/// Two members that made different calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The number of the call in its group, from 1.
    pub number: u32,
    /// The rank of one, and its call.
    pub one: (usize, Call),
    /// The rank of the other, and its call.
    pub other: (usize, Call),
}

/// Why an operation of a process failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The call is invalid; nothing was sent.
    Refused(Refused),
    /// Switches do not perform such calls.
    NotInSwitches {
        /// The kind of call.
        kind: Kind,
    },
    /// Links or switches have failed or come back since the group was made; no call of it is carried out any more.
    Changed,
    /// Members of the group made different calls; every later call of the group fails with the same error.
    Mismatch(Mismatch),
    /// A switch that the group needs has no mask left: its calls must be performed by messages.
    NoMask,
    /// All 65,536 group numbers are in use.
    NoNumber,
    /// The list of a new group lacks the calling process, or contains a rank twice.
    NotOfGroup {
        /// The rank that is missing, or given twice.
        rank: usize,
    },
    /// There is no route to an endpoint.
    NoRoute {
        /// The id of the endpoint.
        dest: u16,
    },
    /// A message is longer or shorter than the receive that it matched; it is lost.
    Length {
        /// The rank of its sender among all.
        from: u16,
        /// Its length.
        bytes: usize,
        /// The length of the receive.
        wanted: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::NotInSwitches { kind } => {
                write!(
                    f,
                    "switches do not carry out {kind:?}; compose it from other calls, or use pdbp::collective"
                )
            }
            Self::NoMask => {
                write!(
                    f,
                    "a switch has {MASKS} masks, and one that this group needs has none left; use `by_messages`"
                )
            }
            Self::Changed => f.write_str("the fabric has changed since the group was made; make another one"),
            Self::NoNumber => {
                f.write_str("all 65,536 group numbers are in use; reuse groups that the program has made")
            }
            Self::NotOfGroup { rank } => {
                write!(
                    f,
                    "the list of the group lacks rank {rank}, which creates it, or names it twice; name it once"
                )
            }
            Self::Mismatch(Mismatch { number, one, other }) => write!(
                f,
                "call {number}: rank {} called {}, and rank {} called {}; all members have to make the same calls in the same order",
                one.0, one.1, other.0, other.1
            ),
            Self::NoRoute { dest } => {
                write!(f, "no route to endpoint {dest}; check the routing tables")
            }
            Self::Length { from, bytes, wanted } => {
                write!(
                    f,
                    "a message of {bytes} bytes from {from} matched a receive of {wanted}; make them equally long"
                )
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
