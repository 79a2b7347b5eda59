//! Errors, by operation. Every message names the value and tells what to do.

mod lookup;
mod start;

use std::fmt;
use std::io;
use std::time::Duration;

use pdbp_core::engine::{Disagreement, RegisterError as CoreRegisterError, Setting};
use pdbp_core::id::{NodeId, PartId as Target, StreamNo};
use pdbp_core::pipe::PipeError;

use crate::node::{OWN_ROWS, WaitFailure};

pub use lookup::LookupError;
pub use start::StartError;

/// A call that waited as long as it was allowed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// How long it waited.
    pub waited: Duration,
    /// The nodes it waited for, if known.
    pub peers: Vec<NodeId>,
    /// What they have not done.
    pub missing: &'static str,
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timed out after {:?}: ", self.waited)?;
        for (i, peer) in self.peers.iter().enumerate() {
            write!(f, "{}{peer}", if i == 0 { "" } else { ", " })?;
        }
        let has = match self.peers.len() {
            0 => "no node has",
            1 => " has not",
            _ => " have not",
        };
        write!(f, "{has} {}", self.missing)
    }
}

impl std::error::Error for Timeout {}

/// Why a call of a node ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// It waited as long as it was allowed to.
    Timeout(Timeout),
    /// The call cannot complete, since this node has left or failed.
    PeerFailed(NodeId),
    /// The wait was ended by [`Node::interrupt`](crate::Node::interrupt) or [`interruptible`](crate::interruptible).
    Interrupted,
    /// A task would have to wait, but the node's [`Progress`](crate::Progress) is `Inline`, so nothing would wake it.
    NobodyPolls,
}

/// Message for a task that nobody would wake.
const NOBODY_POLLS: &str = "a task is waiting, but with `progress` = \"inline\" nothing polls the node to wake it; set \"thread\", or \"host\" \
    and poll the node in a loop";

/// Message for a call that was interrupted.
const INTERRUPTED: &str = "interrupted before the call completed; it may be repeated";

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(t) => t.fmt(f),
            Self::PeerFailed(node) => {
                write!(f, "{node} has left or failed, without which this cannot complete")
            }
            Self::Interrupted => f.write_str(
                "interrupted before the call completed; it may be repeated, except a barrier, at which this node has now arrived",
            ),
            Self::NobodyPolls => f.write_str(NOBODY_POLLS),
        }
    }
}

impl std::error::Error for WaitError {}

macro_rules! from_wait_failure {
    ($($error:ident)+) => {$(
        impl From<WaitFailure> for $error {
            fn from(late: WaitFailure) -> Self {
                match late {
                    WaitFailure::Timeout(t) => Self::Timeout(t),
                    WaitFailure::Interrupted => Self::Interrupted,
                }
            }
        }
    )+};
}

from_wait_failure!(WaitError SendError RecvError RegisterError);

/// Two nodes were given different values of a setting that must be the same on all nodes. They cannot talk to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsDiffer {
    /// The other node.
    pub peer: NodeId,
    /// The setting, by its name in files.
    pub setting: &'static str,
    /// Its value at the node that reports this.
    pub own: String,
    /// Its value at the other.
    pub theirs: String,
}

impl SettingsDiffer {
    pub(crate) fn of(found: &Disagreement, nodes: u16) -> Self {
        let (setting, show): (_, fn(u64, u16) -> String) = match found.setting {
            Setting::Nodes => ("nodes", |value, _| value.to_string()),
            Setting::Body => ("block_bytes", |value, _| value.to_string()),
            Setting::StreamPipes => ("stream_pipes", |value, _| value.to_string()),
            Setting::Masters => ("masters", |value, _| value.to_string()),
            Setting::Voters => ("found", |value, _| format!("with {value} voters")),
            Setting::Lease => ("lease_ms", |value, _| (value as f64 / 1e6).to_string()),
            Setting::Routing => ("routing", |value, _| if value == 0 { "direct" } else { "grid" }.to_owned()),
            // The engine's figure includes the rows that each node may take for itself, in addition to those of parts.
            Setting::Parts => {
                ("parts", |value, nodes| value.saturating_sub(OWN_ROWS as u64 * u64::from(nodes)).to_string())
            }
            // Not a setting of programs: the peer runs another version of this library.
            _ => ("version", |value, _| format!("with another value inside ({value})")),
        };
        Self { peer: found.peer, setting, own: show(found.own, nodes), theirs: show(found.theirs, nodes) }
    }
}

impl fmt::Display for SettingsDiffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, setting, own, theirs } = self;
        write!(
            f,
            "`{setting}` is {own} here but {theirs} at {peer}; give all nodes of the cluster the same value and restart them"
        )
    }
}

impl std::error::Error for SettingsDiffer {}

/// Why a message or stream segment was not sent. No part of it is in flight, except for segments of a message longer than a block, which
/// the receiver then discards.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// No room now: the peer has not read what was sent before. Only non-blocking calls return it.
    WouldBlock,
    /// There was still no room when the timeout ran out.
    Timeout(Timeout),
    /// The wait for room was ended by [`Node::interrupt`](crate::Node::interrupt) or [`interruptible`](crate::interruptible).
    Interrupted,
    /// The node has failed.
    PeerFailed(NodeId),
    /// The relay on the only route to a node has failed.
    RelayFailed {
        /// The relay.
        relay: NodeId,
        /// The destination.
        dest: NodeId,
    },
    /// A relay stopped the stream; what it did not pass on is lost.
    StreamStopped {
        /// Its number.
        number: StreamNo,
        /// The relay, which has no room for another stream or no longer has a link to the destination.
        relay: NodeId,
        /// The destination.
        dest: NodeId,
    },
    /// The trunk to the reader's cluster is down.
    ClusterGone {
        /// The cluster.
        cluster: String,
    },
    /// A task waits while nobody polls the node, as with [`Progress::Inline`](crate::Progress::Inline).
    NobodyPolls,
    /// The part no longer exists. This is noticed when a block is begun for it. Messages that were packed into a block already open, or
    /// sent before this node had learnt of it, are discarded at the part's node, without an error here (see [`Part`](crate::Part)).
    NoSuchPart(Target),
    /// The target names a node that the cluster does not have: it comes from another cluster, or is no target at all.
    NoSuchNode(NodeId),
    /// The message is longer than what a receiver reassembles.
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit, the setting `assembly_bytes`.
        limit: usize,
    },
    /// The message is longer than a block, and a non-blocking call cannot send its segments.
    NeedsWaiting {
        /// Its length.
        bytes: usize,
        /// The longest message that travels in one block.
        limit: usize,
    },
    /// A command, or one of many small messages of a device, does not fit in a block. These cannot be split.
    LongerThanBlock {
        /// Its length.
        bytes: usize,
        /// The longest message that travels in one block.
        limit: usize,
    },
    /// The loan does not fit in a block.
    LoanTooLong {
        /// The length asked for.
        bytes: usize,
        /// The longest loan.
        limit: usize,
    },
    /// The part holds a loan for this node, which no message may overtake.
    Loaned(NodeId),
    /// The list of destinations is empty.
    NoDestination,
    /// The list of destinations does not fit in a block.
    TooManyDestinations {
        /// The number of parts.
        parts: usize,
    },
    /// The stream has been finished.
    StreamFinished(StreamNo),
    /// MPI could not send device memory.
    Direct {
        /// The destination.
        node: NodeId,
        /// What MPI reported.
        reason: String,
    },
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => f.write_str("no room now; receive, or try again later"),
            Self::Timeout(t) => t.fmt(f),
            Self::Interrupted => f.write_str(INTERRUPTED),
            Self::PeerFailed(node) => write!(f, "{node} has failed"),
            Self::RelayFailed { relay, dest } => {
                write!(f, "{dest} is unreachable: {relay}, the only relay to it, has failed")
            }
            Self::ClusterGone { cluster } => write!(
                f,
                "the stream was cut off: cluster \"{cluster}\" is unreachable; look up its part again once the trunk is up (`Event::ClusterUp`)"
            ),
            Self::StreamStopped { number, relay, dest } => write!(
                f,
                "{relay} stopped stream {} to {dest}: it has lost its link to {dest}, or already forwards as many streams to \
                 it as `stream_pipes` allows; try again once others have finished, or raise the setting",
                number.0
            ),
            Self::NobodyPolls => f.write_str(NOBODY_POLLS),
            Self::NoSuchPart(target) => {
                write!(f, "{target} does not exist or has been freed; look it up again by its name")
            }
            Self::NoSuchNode(node) => {
                write!(
                    f,
                    "this cluster has no {node}; a target is only valid in the cluster that looked it up"
                )
            }
            Self::TooLong { bytes, limit } => write!(
                f,
                "a message of {bytes} bytes exceeds `assembly_bytes` = {limit}; send a stream, or raise the setting"
            ),
            Self::NeedsWaiting { bytes, limit } => write!(
                f,
                "a message of {bytes} bytes needs several blocks (one holds {limit} bytes), which a non-blocking call cannot \
                 reserve; use a call that waits, or raise `block_bytes`"
            ),
            Self::LongerThanBlock { bytes, limit } => write!(
                f,
                "{bytes} bytes do not fit in a block of {limit}, and a command or a device's small message cannot be split; \
                 send an ordinary message, or raise `block_bytes`"
            ),
            Self::LoanTooLong { bytes, limit } => {
                write!(
                    f,
                    "a loan of {bytes} bytes does not fit in a block of {limit}; raise `block_bytes`, or use `send`"
                )
            }
            Self::Loaned(node) => {
                write!(f, "this part holds a loan for {node}; send or drop it first")
            }
            Self::NoDestination => f.write_str("the list of destinations is empty"),
            Self::TooManyDestinations { parts } => {
                write!(f, "{parts} destinations do not fit in a block; send to fewer at a time")
            }
            Self::StreamFinished(number) => write!(f, "stream {} has been finished", number.0),
            Self::Direct { node, reason } => write!(
                f,
                "MPI cannot send device memory to {node}: {reason}; set `mpi_device_bytes` = 0 to send it in blocks"
            ),
        }
    }
}

impl std::error::Error for SendError {}

/// For [`StreamWriter`](crate::StreamWriter)'s [`std::io::Write`].
impl From<SendError> for io::Error {
    fn from(e: SendError) -> Self {
        let kind = match &e {
            SendError::Timeout(_) => io::ErrorKind::TimedOut,
            SendError::WouldBlock => io::ErrorKind::WouldBlock,
            SendError::PeerFailed(_) | SendError::RelayFailed { .. } | SendError::StreamStopped { .. } => {
                io::ErrorKind::ConnectionReset
            }
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, e)
    }
}

/// Why nothing was received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecvError {
    /// Nothing arrived before the timeout ran out.
    Timeout(Timeout),
    /// The wait was ended by [`Node::interrupt`](crate::Node::interrupt) or [`interruptible`](crate::interruptible).
    Interrupted,
    /// The part has no private pipe.
    NoPipe,
    /// Every other node has failed or left, and this node has no other part: nothing can arrive. In an open cluster (the setting
    /// `found`) this node may only have been cut off and may be readmitted; to wait for that, receive again after a moment.
    NobodyLeft,
    /// A task waits while nobody polls the node, as with [`Progress::Inline`](crate::Progress::Inline).
    NobodyPolls,
    /// The node has failed, so the superstep cannot end.
    PeerFailed(NodeId),
    /// Another part of this node is in a superstep.
    SuperstepTaken,
    /// A node was asked to wait for a part that belongs to another node.
    OtherNode {
        /// The part.
        part: Target,
        /// The node that was asked.
        node: NodeId,
    },
    /// The stream ended before its last segment: its writer gave it up, or the writer's node or the link to it failed.
    StreamBroken {
        /// The part that wrote it.
        source: Target,
        /// The stream's number at that part's node.
        number: StreamNo,
    },
    /// MPI could not receive device memory.
    Direct {
        /// The source.
        node: NodeId,
        /// What MPI reported.
        reason: String,
    },
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(t) => t.fmt(f),
            Self::Interrupted => f.write_str(INTERRUPTED),
            Self::NoPipe => {
                f.write_str("the part has released its private pipe; call `apply_pipe` to receive again")
            }
            Self::NobodyLeft => f.write_str(
                "every other node has failed or left and this one has no other part, so no message can arrive any more",
            ),
            Self::NobodyPolls => f.write_str(NOBODY_POLLS),
            Self::PeerFailed(node) => write!(f, "{node} has failed, so the superstep cannot end"),
            Self::SuperstepTaken => f.write_str(
                "another part of this node is in a superstep; let only one part of each node call `advance` at a time",
            ),
            Self::OtherNode { part, node } => {
                write!(f, "{node} cannot wait for {part} of another node; call that node")
            }
            Self::StreamBroken { source, number } => write!(
                f,
                "stream {} from {source} ended before its last segment: its writer gave it up, or its node failed",
                number.0
            ),
            Self::Direct { node, reason } => write!(
                f,
                "MPI cannot receive from {node} into device memory: {reason}; `mpi_device_bytes` = 0 goes through blocks"
            ),
        }
    }
}

impl std::error::Error for RecvError {}

/// For [`StreamReader`](crate::StreamReader)'s [`std::io::Read`].
impl From<RecvError> for io::Error {
    fn from(e: RecvError) -> Self {
        let kind = match &e {
            RecvError::Timeout(_) => io::ErrorKind::TimedOut,
            RecvError::StreamBroken { .. } => io::ErrorKind::UnexpectedEof,
            RecvError::NoPipe | RecvError::NobodyLeft => io::ErrorKind::NotConnected,
            RecvError::PeerFailed(_) => io::ErrorKind::ConnectionReset,
            RecvError::SuperstepTaken => io::ErrorKind::ResourceBusy,
            RecvError::OtherNode { .. } => io::ErrorKind::InvalidInput,
            // Not `ErrorKind::Interrupted`: `read_to_end` and others would just retry, and nothing would be interrupted.
            RecvError::Interrupted | RecvError::NobodyPolls | RecvError::Direct { .. } => {
                io::ErrorKind::Other
            }
        };
        Self::new(kind, e)
    }
}

/// Why a part could not be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name is invalid or taken, or the node is full.
    Refused(CoreRegisterError),
    /// PTA has no room for another part.
    TableFull {
        /// The setting `parts`.
        parts: usize,
    },
    /// No private pipe is idle.
    Pipe(PipeError),
    /// Not all nodes confirmed the part in time.
    Timeout(Timeout),
    /// The wait was ended by [`Node::interrupt`](crate::Node::interrupt) or [`interruptible`](crate::interruptible).
    Interrupted,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(e) => e.fmt(f),
            Self::TableFull { parts } => {
                write!(f, "the cluster already has {parts} parts; free some, or raise `parts`")
            }
            Self::Pipe(e) => e.fmt(f),
            Self::Timeout(t) => t.fmt(f),
            Self::Interrupted => f.write_str(INTERRUPTED),
        }
    }
}

impl std::error::Error for RegisterError {}

/// This process hosts no node with that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchNode {
    /// The index asked for.
    pub index: usize,
    /// Nodes in the cluster.
    pub nodes: usize,
}

impl fmt::Display for NoSuchNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "node {} is not hosted by this process; the cluster has nodes 0 to {}",
            self.index,
            self.nodes.saturating_sub(1)
        )
    }
}

impl std::error::Error for NoSuchNode {}
