//! Configuration of a replica.

use managed::ManagedSlice;

use super::{Entry, Peer, Reach, Unlinked};
use crate::id::NodeId;
use crate::tables::NodeEntry;

/// How a node starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Together with all others, none of which has a log.
    Together,
    /// As the only member of a new cluster; all others join through [`Joining`](Self::Joining). Only once per cluster: a founder
    /// that has lost its state must join, too.
    Alone,
    /// As a non-member, initially or after losing its state. It neither votes nor reads until the members have admitted it.
    Joining,
}

/// Sizes and times. The same on all nodes, except `entry` and `start`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node, its name and its type.
    pub entry: NodeEntry,
    /// Number of nodes. All are members at the start; with [`Start::Alone`] only the founder is.
    pub nodes: u16,
    /// Nodes with an index below this are masters, which are preferred as primary; others campaign only if no master can be
    /// elected.
    pub masters: u16,
    /// Nodes with an index below this vote. The others are learners, in no quorum and never primary. From `masters` to `nodes`.
    /// With 1, the cluster ends with node 0, whatever other nodes run.
    pub voters: u16,
    /// Duration of a lease in nanoseconds. With 0 there are no leases, and only the transport reports failures.
    pub lease: u64,
    /// Nanoseconds that candidate 0 waits before an election, and the unit of other waits, such as between attempts to join. Must
    /// be longer than a round trip.
    pub patience: u64,
    /// Which nodes this node exchanges messages with.
    pub reach: Reach,
    /// How this node starts.
    pub start: Start,
}

impl Settings {
    /// Number of nodes that have records; these are the first ones.
    pub fn linked(&self) -> u16 {
        match self.reach {
            Reach::All => self.nodes,
            Reach::Masters => self.masters.min(self.nodes),
        }
    }

    /// Checks that a replica can work with these settings in that memory.
    pub(super) fn check(&self, storage: &Storage<'_>) -> Result<(), SettingsError> {
        let (nodes, records) = (usize::from(self.nodes), storage.peers.len());
        if self.entry.id.index() >= nodes {
            return Err(SettingsError::Nodes(self.nodes));
        }
        if self.masters == 0 || self.masters > self.nodes {
            return Err(SettingsError::Masters(self.masters));
        }
        let founds = self.start == Start::Alone;
        if self.voters < self.masters || self.voters > self.nodes {
            return Err(SettingsError::Voters(self.voters));
        }
        if founds && self.entry.id.index() >= usize::from(self.masters) {
            return Err(SettingsError::Founder(self.entry.id));
        }
        if self.patience == 0 {
            return Err(SettingsError::Patience);
        }
        if storage.log.len() < MIN_LOG {
            return Err(SettingsError::Log(storage.log.len()));
        }
        if records != usize::from(self.linked()) || records + storage.unlinked.len() != nodes {
            return Err(SettingsError::Peers(records));
        }
        Ok(())
    }
}

/// The memory of a replica; see `allocate`.
pub struct Storage<'a> {
    /// The latest entries of the log; at least [`MIN_LOG`], and the same number on all nodes.
    pub(crate) log: ManagedSlice<'a, Option<Entry>>,
    /// One per node; with [`Reach::Masters`] one per master.
    pub(crate) peers: ManagedSlice<'a, Peer>,
    /// One per node without a record in `peers`.
    pub(crate) unlinked: ManagedSlice<'a, Unlinked>,
}

/// The shortest log: three quarters for requests, a slot for the admission of a node, and one for a NodeDown.
pub const MIN_LOG: usize = 8;

#[cfg(feature = "alloc")]
impl Storage<'static> {
    /// Allocates memory for `nodes` nodes, with a log of `log` entries, for [`Reach::All`].
    pub fn allocate(nodes: u16, log: usize) -> Self {
        Self::allocate_linked(nodes, nodes, log)
    }

    /// As [`allocate`](Self::allocate), but with records for the first `linked` nodes only; see [`Settings::linked`].
    pub fn allocate_linked(nodes: u16, linked: u16, log: usize) -> Self {
        use alloc::vec::Vec;
        Self {
            log: ManagedSlice::Owned((0..log).map(|_| None).collect::<Vec<_>>()),
            peers: ManagedSlice::Owned((0..linked).map(|_| Peer::default()).collect::<Vec<_>>()),
            unlinked: ManagedSlice::Owned((linked..nodes).map(|_| Unlinked::default()).collect::<Vec<_>>()),
        }
    }
}

/// Settings or storage that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsError {
    /// There are no nodes, or this node is not one of them.
    Nodes(u16),
    /// There are no masters, or more than nodes.
    Masters(u16),
    /// There are fewer voters than masters, or more than nodes.
    Voters(u16),
    /// This node is meant to found the cluster but is not a master.
    Founder(NodeId),
    /// The patience is 0.
    Patience,
    /// The log has this many entries, fewer than [`MIN_LOG`].
    Log(usize),
    /// The number of records does not match the number of nodes, or of masters; or `unlinked` does not match the rest.
    Peers(usize),
}

impl core::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Nodes(n) => {
                write!(f, "this node's index is not below {n}, the number of nodes; use a lower one")
            }
            Self::Masters(n) => {
                write!(f, "invalid number of masters: {n}; choose 1 up to the number of nodes")
            }
            Self::Voters(n) => {
                write!(
                    f,
                    "invalid number of voters: {n}; choose from the number of masters up to the number of nodes"
                )
            }
            Self::Founder(node) => {
                write!(
                    f,
                    "{node} cannot found a cluster, since it is not a master; let one of the masters found it"
                )
            }
            Self::Patience => f.write_str("the patience is 0 ns; choose more than a round trip takes"),
            Self::Log(n) => write!(f, "a log of {n} entries is too short; give at least {MIN_LOG}"),
            Self::Peers(n) => {
                write!(f, "the storage has {n} node records; give it one for each node, or for each master")
            }
        }
    }
}

impl core::error::Error for SettingsError {}
