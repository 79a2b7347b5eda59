//! Messages between replicas.

use crate::id::{Epoch, NodeId, PartId, Time};
use crate::tables::{NodeEntry, PartEntry};

/// A change to the tables, the content of a log entry.
#[derive(Clone, Debug)]
pub enum Change {
    /// A no-op: the first entry of a cluster, appended by a primary whose log is empty.
    Nothing,
    /// Adds a row to NTA; the node becomes a member if it was not one.
    NodeUp(NodeEntry),
    /// The node is no longer a member.
    NodeDown(NodeId),
    /// A part was registered.
    PartAdded(PartEntry),
    /// A part was removed.
    PartRemoved(PartId),
}

/// An entry of the log.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The epoch of the primary that made it.
    pub epoch: Epoch,
    /// What it does.
    pub change: Change,
}

/// A position in the log: entries at equal positions are equal, and so are all entries before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of the entry; the first is 1.
    pub index: u64,
    /// Epoch of the entry.
    pub epoch: Epoch,
}

impl Position {
    /// The position before the first entry.
    pub const START: Self = Self { index: 0, epoch: Epoch(0) };
}

/// The last index of a log. No log gets that far; the bound keeps sums of indices from overflowing.
pub(super) const LAST_INDEX: u64 = (1 << 48) - 1;

/// The last epoch. No cluster gets that far by elections, but a corrupted message can contain it; then nobody is elected any more.
pub(super) const LAST_EPOCH: Epoch = Epoch(u32::MAX / 2 - 1);

/// The two ballots of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ballot {
    /// A pre-vote: requests support but binds nobody.
    PreVote,
    /// A vote: each node has one per epoch.
    Binding,
}

/// What the follower found at the position before the appended entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogMatch {
    /// Its log matches the primary's up to `matched`.
    Matches,
    /// It has another entry there, or none. Everything up to `matched` is committed, and therefore equal to the primary's.
    Differs,
}

/// Number of nodes in one [`Body::Members`].
pub const MEMBERS: usize = 256;

/// A message: the sender's epoch and the content.
#[derive(Clone, Debug)]
pub struct Message {
    /// The sender's epoch.
    pub epoch: Epoch,
    /// The content.
    pub body: Body,
}

/// The content of a message. P: from the primary; F: to the primary; A: to any node.
#[derive(Clone, Debug)]
pub enum Body {
    /// P: an entry, or an update of the commit and stable indices.
    Append {
        /// The entry before.
        previous: Position,
        /// Everything up to here is committed.
        commit: u64,
        /// Everything up to here is applied at all nodes that may show their tables.
        stable: u64,
        /// The entry with the index after `previous`.
        entry: Option<Entry>,
    },
    /// F: up to where the sender's log matches the primary's.
    Appended {
        /// The number of the last snapshot from this primary, 0 for none.
        round: u32,
        /// See [`LogMatch`].
        matched: u64,
        /// Everything up to here is in its tables.
        applied: u64,
        /// Whether the last [`Body::Append`] was accepted.
        log_match: LogMatch,
    },
    /// A: requests a vote: in the binding ballot for the sender's epoch, in the pre-vote for the next one.
    Vote {
        /// Pre-vote or binding.
        ballot: Ballot,
        /// The last entry of the candidate.
        last: Position,
    },
    /// A: the answer to [`Body::Vote`].
    Voted {
        /// The ballot it answers.
        ballot: Ballot,
        /// The epoch of the [`Body::Vote`] that it answers.
        asked: Epoch,
        /// Whether the vote is granted.
        granted: bool,
    },
    /// F: requests a lease.
    Alive {
        /// When it was sent, by the sender's clock.
        sent: Time,
        /// The `stamp` of the last grant received.
        stamp: Time,
    },
    /// P: a lease, during which the receiver votes for nobody.
    Grant {
        /// The `sent` of the [`Body::Alive`] that it answers.
        sent: Time,
        /// When it was made, by the primary's clock.
        stamp: Time,
        /// Whether the receiver may read its tables under it.
        readable: bool,
    },
    /// A: the sender's epoch, in reply to an older one, at the start of a session, or on stepping down.
    Hello {
        /// Whether the sender is the primary of that epoch.
        leads: bool,
    },
    /// P: the receiver is not a member.
    Expelled,
    /// A: the sender is not a member, or has lost its state, and requests admission.
    Join {
        /// Number of the attempt to join.
        number: u32,
        /// Its row of NTA.
        entry: NodeEntry,
    },
    /// P: a snapshot begins.
    Begin {
        /// Number of the attempt to join that it answers.
        number: u32,
        /// Number of the snapshot.
        round: u32,
        /// The log continues after this entry.
        base: Position,
        /// The rows contain everything up to here. Log entries up to here that concern the receiver belong to earlier lives.
        covered: u64,
    },
    /// P: part of a snapshot: which nodes are members.
    Members {
        /// The node of the first bit.
        first: u16,
        /// One bit per node, lowest first.
        bits: [u8; MEMBERS / 8],
    },
    /// P: part of a snapshot: a row of the tables.
    Row {
        /// The change that creates the row.
        change: Change,
    },
    /// P: the end of a snapshot.
    End,
    /// F: a request for a change.
    Request {
        /// The requester's number for the request.
        number: u32,
        /// The requested change.
        change: Change,
    },
    /// P: the answer to a request.
    Answer {
        /// Number of the request.
        number: u32,
        /// Whether the change was accepted; if not, the table is full.
        accepted: bool,
    },
}

impl Body {
    /// Whether only the primary of an epoch sends it.
    pub(super) fn is_from_primary(&self) -> bool {
        match self {
            Self::Append { .. } | Self::Grant { .. } | Self::Expelled | Self::Begin { .. } => true,
            Self::Members { .. } | Self::Row { .. } | Self::End | Self::Answer { .. } => true,
            Self::Appended { .. } | Self::Vote { .. } | Self::Voted { .. } | Self::Alive { .. } => false,
            Self::Hello { .. } | Self::Join { .. } | Self::Request { .. } => false,
        }
    }
}
