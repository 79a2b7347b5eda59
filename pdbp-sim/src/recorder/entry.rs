//! The entries of a recording.

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::{Completion, Op};

/// One recorded event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An operation was submitted.
    Call(Call, Answer),
    /// A poll returned a completion.
    Outcome(Outcome),
    /// This many polls in a row returned nothing.
    Idle(u64),
    /// From the next poll on, the transport says this of a peer.
    Peer {
        /// The peer.
        peer: NodeId,
        /// See [`Transport::has_ended`](pdbp_core::Transport::has_ended).
        has_ended: bool,
        /// See [`Transport::life`](pdbp_core::Transport::life).
        life: u64,
    },
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// [`Op::Send`].
    Send,
    /// [`Op::Recv`].
    Recv,
    /// [`Op::Return`].
    Return,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its kind.
    pub kind: CallKind,
    /// The other node.
    pub peer: NodeId,
    /// Its block.
    pub block: BlockId,
    /// Bytes of header and body; 0 for a vacant block.
    pub length: usize,
    /// FNV-1a hash of these bytes.
    pub hash: u64,
}

impl Call {
    pub(super) fn of(op: &Op) -> Self {
        let (kind, peer, block, bytes) = match op {
            Op::Send { peer, block } => (CallKind::Send, *peer, block.id(), block.bytes()),
            Op::Recv { peer, block } => (CallKind::Recv, *peer, block.id(), &[][..]),
            Op::Return { peer, block } => (CallKind::Return, *peer, block.id(), block.bytes()),
        };
        Self { kind, peer, block, length: bytes.len(), hash: hash(bytes) }
    }
}

/// The transport's answer to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was taken.
    Taken,
    /// [`Reason::Busy`](pdbp_core::Reason::Busy).
    Busy,
    /// [`Reason::PeerFailed`](pdbp_core::Reason::PeerFailed).
    PeerFailed,
    /// [`Reason::Unsupported`](pdbp_core::Reason::Unsupported).
    Unsupported,
    /// Refused for another reason.
    Other,
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// [`Completion::Sent`].
    Sent(NodeId, BlockId),
    /// [`Completion::Received`], with header and body.
    Received(NodeId, BlockId, Vec<u8>),
    /// [`Completion::Failed`].
    Failed(NodeId, BlockId),
    /// [`Completion::Unused`].
    Unused(NodeId, BlockId),
    /// [`Completion::PeerFailed`].
    PeerFailed(NodeId),
    /// [`Completion::PeerRestored`], with the session.
    PeerRestored(NodeId, u32),
}

impl Outcome {
    pub(super) fn of<E>(completion: &Completion<E>) -> Self {
        match completion {
            Completion::Sent { peer, block } => Self::Sent(*peer, block.id()),
            Completion::Received { peer, block } => Self::Received(*peer, block.id(), block.bytes().to_vec()),
            Completion::Failed { peer, block } => Self::Failed(*peer, block.id()),
            Completion::Unused { peer, block } => Self::Unused(*peer, block.id()),
            Completion::PeerFailed { peer, .. } => Self::PeerFailed(*peer),
            Completion::PeerRestored { peer, session } => Self::PeerRestored(*peer, *session),
        }
    }
}

/// FNV-1a, 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3))
}
