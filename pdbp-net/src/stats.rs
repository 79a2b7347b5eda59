//! Figures of a node's links and of its door.

use crate::door::DoorStats;
use crate::ring::codec::Packing;

/// Figures of a node's links and of its door.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// By node; that of the node itself stays empty.
    pub links: Vec<LinkStats>,
    /// What became of strangers.
    pub door: DoorStats,
}

/// How a link is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// There is a session and a connection.
    Up,
    /// The session waits for a connection, for [`Options::outage`](crate::Options::outage) at most.
    Cut,
    /// There is no session: none has begun yet, or it has failed.
    #[default]
    Down,
}

/// Figures of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// How it is now.
    pub state: LinkState,
    /// Blocks that the peer has taken, in all sessions.
    pub sent: u64,
    /// Their bytes, heads of blocks included, before they were packed.
    pub sent_bytes: u64,
    /// Blocks of the peer that were delivered here.
    pub received: u64,
    /// Their bytes, expanded.
    pub received_bytes: u64,
    /// Connections that there were.
    pub connections: u64,
    /// Blocks that were written on a connection after another had been lost with them.
    pub sent_again: u64,
    /// Connections that were given up since what came was malformed.
    pub malformed: u64,
    /// Of those, for a packed block that was not what it stated, or stated more than there was room for.
    pub bombs: u64,
    /// Sessions that have failed: connections were missing for too long, or the peer has left.
    pub failures: u64,
    /// By what the last block was packed that was packed.
    pub packing: Packing,
    /// Blocks that were packed, their bytes before, and their bytes after.
    pub packed: u64,
    /// See [`packed`](Self::packed).
    pub plain_bytes: u64,
    /// See [`packed`](Self::packed).
    pub packed_bytes: u64,
    /// Blocks of the link that go into one column of the ring, by its rate: k of S2.
    pub density: usize,
}
