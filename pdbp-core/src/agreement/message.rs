//! What the replicas say to one another.

use crate::id::{Epoch, NodeId, PartId, Time};
use crate::tables::{NodeEntry, PartEntry};

/// A change of the tables: what an entry of the log does.
#[derive(Clone, Debug)]
pub enum Change {
    /// Nothing. The first entry of every primary, with which it commits what it has taken over.
    Nothing,
    /// A row of NTA; the node is a member from here on if it was none.
    NodeUp(NodeEntry),
    /// The node is no member any more.
    NodeDown(NodeId),
    /// A part was registered.
    PartAdded(PartEntry),
    /// A part was freed.
    PartRemoved(PartId),
}

/// An entry of the log.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Whose primary made it.
    pub epoch: Epoch,
    /// What it does.
    pub change: Change,
}

/// A place in the log: entries with equal places are equal, and so is all that precedes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of the entry; the first is 1.
    pub index: u64,
    /// Epoch of the entry.
    pub epoch: Epoch,
}

impl Position {
    /// Before the first entry.
    pub const START: Self = Self { index: 0, epoch: Epoch(0) };
}

/// The last index of a log. No log gets there; that none goes beyond keeps sums with indices from overflowing.
pub(super) const LAST_INDEX: u64 = (1 << 48) - 1;

/// The last epoch. No cluster gets there by elections; a damaged message can say it, and then nobody is elected any more.
pub(super) const LAST_EPOCH: Epoch = Epoch(u32::MAX / 2 - 1);

/// Which of the two ballots of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ballot {
    /// Would you vote for me? Binds nobody.
    PreVote,
    /// A vote: one for each node and epoch.
    Binding,
}

/// What the follower found when it looked for the entry before the appended one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Its log is the primary's up to `matched`.
    Fits,
    /// It has another entry there, or none; all up to `matched` is committed, and so is the primary's.
    Differs,
}

/// Nodes in one [`Body::Members`].
pub const MEMBERS: usize = 256;

/// A message: the sender's epoch, and what it says.
#[derive(Clone, Debug)]
pub struct Message {
    /// The epoch that the sender was in.
    pub epoch: Epoch,
    /// What it says.
    pub body: Body,
}

/// What a message says. P: from the primary; F: to the primary; A: to any node.
#[derive(Clone, Debug)]
pub enum Body {
    /// P: an entry, or news of what is committed.
    Append {
        /// The entry before.
        previous: Position,
        /// All up to here is committed.
        commit: u64,
        /// All up to here is applied wherever the tables can be read.
        stable: u64,
        /// The entry with the index after `previous`.
        entry: Option<Entry>,
    },
    /// F: how far the sender's log is the primary's.
    Appended {
        /// The number of the last snapshot from this primary, 0 for none.
        round: u32,
        /// See [`Fit`].
        matched: u64,
        /// All up to here is in its tables.
        applied: u64,
        /// Whether the last [`Body::Append`] went in.
        fit: Fit,
    },
    /// A: asks for a vote; in the binding ballot for the sender's epoch, in the pre-vote for the next.
    Vote {
        /// Pre-vote or binding.
        ballot: Ballot,
        /// The last entry of the candidate.
        last: Position,
    },
    /// A: the answer to [`Body::Vote`].
    Voted {
        /// The ballot that was asked about.
        ballot: Ballot,
        /// The epoch of the question.
        asked: Epoch,
        /// The vote.
        granted: bool,
    },
    /// F: asks for a lease.
    Alive {
        /// By the asker's clock.
        sent: Time,
        /// The `stamp` of the last grant that has arrived.
        stamp: Time,
    },
    /// P: who receives it votes for nobody for one lease.
    Grant {
        /// Of the [`Body::Alive`] that it answers.
        sent: Time,
        /// When it was made, by the primary's clock.
        stamp: Time,
        /// Whether the tables may be read under it.
        readable: bool,
    },
    /// A: the sender's epoch, in answer to an older one, at the start of a session, or when it steps down.
    Hello {
        /// Whether the sender is the primary of that epoch.
        leads: bool,
    },
    /// P: the receiver is no member.
    Expelled,
    /// A: the sender is no member, or has lost its state, and wants to be one.
    Join {
        /// Number of the attempt.
        number: u32,
        /// Its row of NTA.
        entry: NodeEntry,
    },
    /// P: a snapshot begins.
    Begin {
        /// Number of the attempt that it answers.
        number: u32,
        /// Number of the snapshot.
        round: u32,
        /// The log goes on after this entry.
        base: Position,
        /// The rows have all up to here: what the log says again of the receiver up to here is of earlier lives.
        covered: u64,
    },
    /// P: of a snapshot: which nodes are members.
    Members {
        /// The node of the first bit.
        first: u16,
        /// One bit a node, lowest first.
        bits: [u8; MEMBERS / 8],
    },
    /// P: of a snapshot: a row of the tables.
    Row {
        /// As the change that makes it.
        change: Change,
    },
    /// P: of a snapshot: that was all.
    End,
    /// F: a request for a change.
    Request {
        /// Number of the request at the asker.
        number: u32,
        /// What to change.
        change: Change,
    },
    /// P: the answer to a request.
    Answer {
        /// Number of the request.
        number: u32,
        /// `false`: the table is full.
        accepted: bool,
    },
}

impl Body {
    /// Whether only the primary of an epoch sends it.
    pub(super) fn is_of_primary(&self) -> bool {
        match self {
            Self::Append { .. } | Self::Grant { .. } | Self::Expelled | Self::Begin { .. } => true,
            Self::Members { .. } | Self::Row { .. } | Self::End | Self::Answer { .. } => true,
            Self::Appended { .. } | Self::Vote { .. } | Self::Voted { .. } | Self::Alive { .. } => false,
            Self::Hello { .. } | Self::Join { .. } | Self::Request { .. } => false,
        }
    }
}
