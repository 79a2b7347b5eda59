//! Figures of a node's links and of its door.

use crate::door::DoorStats;
use crate::ring::codec::Packing;

/// Figures of a node's links and of its door.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// By node; the node's own entry stays empty.
    pub links: Vec<LinkStats>,
    /// What the door has refused.
    pub door: DoorStats,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// It has a session and a connection.
    Up,
    /// The session waits for a connection, for [`Options::outage`](crate::Options::outage) at most.
    Cut,
    /// It has no session: none has begun yet, or it has failed.
    #[default]
    Down,
}

/// Figures of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// Its current state.
    pub state: LinkState,
    /// Blocks that the peer has taken, in all sessions.
    pub sent: u64,
    /// Their bytes before packing, block heads included.
    pub sent_bytes: u64,
    /// Blocks of the peer that were delivered here.
    pub received: u64,
    /// Their bytes, expanded.
    pub received_bytes: u64,
    /// Connections so far.
    pub connections: u64,
    /// Blocks that were written again because an earlier connection was lost with them.
    pub sent_again: u64,
    /// Connections that were closed because of malformed input.
    pub malformed: u64,
    /// The part of those that was due to a packed block that did not match its stated length, or stated more than there was room for.
    pub bombs: u64,
    /// Sessions that have failed, for instance because no connection came about for too long, or because the peer left.
    pub failures: u64,
    /// The codec of the last block that was packed.
    pub packing: Packing,
    /// Blocks that were packed. The next two fields are their bytes before and after.
    pub packed: u64,
    /// See [`packed`](Self::packed).
    pub plain_bytes: u64,
    /// See [`packed`](Self::packed).
    pub packed_bytes: u64,
    /// Blocks of the link that enter one column of the ring, according to its rate: k of S2.
    pub density: usize,
}
