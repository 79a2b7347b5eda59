//! Figures of a node's links and of its door.

use std::fmt;
use std::sync::Arc;

use pdbp_core::id::NodeId;

use crate::door::{DoorStats, Shared};
use crate::ring::codec::Packing;

/// What any thread may ask of a [`Net`](crate::Net), whoever polls it: from [`Net::watch`](crate::Net::watch).
#[derive(Clone)]
pub struct Watch {
    shared: Arc<Shared>,
}

impl Watch {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Whether nobody was there when this node called the peer last: its host has refused the connection, or has not answered. There is
    /// no use in waiting for a link; when somebody listens there again, there will be one. Of peers that call this node, having come later, nothing is
    /// known.
    pub fn is_absent(&self, peer: NodeId) -> bool {
        self.shared.is_absent(peer.index())
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// Figures of a node's links and of its door.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// By node; that of the node itself stays empty.
    pub links: Vec<LinkStats>,
    /// What became of strangers.
    pub door: DoorStats,
}

/// Figures of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
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
