//! Events that an engine reports to its host.

use super::Disagreement;
#[cfg(doc)]
use super::Engine;
use crate::cdu::Malformed;
use crate::id::{Epoch, NodeId, PartId, StreamNo};
use crate::pipe::StreamMapping;

/// An event that a host may want to act on or report.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A requested change of PTA was answered: every live node now knows the part, or no longer knows it.
    Changed {
        /// The part.
        part: PartId,
        /// `false`: PTA is full.
        accepted: bool,
    },
    /// A block from the peer was refused; none of it was delivered.
    Malformed {
        /// The peer.
        peer: NodeId,
        /// What was wrong.
        reason: Malformed,
    },
    /// Messages for a part that does not exist or has no private pipe were discarded. An endpoint may combine the counts of
    /// several blocks.
    Unroutable {
        /// The peer that sent them.
        peer: NodeId,
        /// Number of the part.
        part: u16,
        /// Number of messages.
        messages: u32,
    },
    /// The link with the peer is down. `undelivered` messages had not left this node, or may not have arrived.
    PeerFailed {
        /// The peer.
        peer: NodeId,
        /// Messages that are lost.
        undelivered: u64,
    },
    /// A failed link is up again; nothing is in flight on it.
    PeerRestored {
        /// The peer.
        peer: NodeId,
    },
    /// The peer has a different value of a setting that must be the same on all nodes. The link to it counts as failed.
    SettingsDiffer(Disagreement),
    /// There is another primary master.
    NewMaster {
        /// The new master.
        node: NodeId,
        /// Its term.
        epoch: Epoch,
    },
    /// This node was declared down. It is no longer a member of the cluster, has no peers, and asks to be readmitted.
    Expelled,
    /// The members have admitted a node, which is one of [`Engine::members`] again. All members get this event, whether or not
    /// they have a link to the node. For this node itself: it is a member again, and others may have come or gone in the
    /// meantime.
    NodeUp {
        /// The node.
        node: NodeId,
    },
    /// The members have declared a node down: it is no longer one of [`Engine::members`], and its parts are forgotten. All
    /// members get this event, whether or not they have a link to the node. A link that fails for only one of them is a
    /// [`PeerFailed`](Self::PeerFailed).
    NodeDown {
        /// The node.
        node: NodeId,
    },
    /// This node is the relay between two others, and cannot forward messages because its link to the second has failed.
    NotForwarded {
        /// The node that sent them.
        source: NodeId,
        /// Their destination.
        dest: NodeId,
        /// Number of messages.
        messages: u32,
    },
    /// A stream of this node was stopped at its relay, which has no room for another one to that destination or has lost its link
    /// to it. Data that the relay did not forward is lost.
    StreamStopped {
        /// The part that sends it.
        part: PartId,
        /// Its number.
        number: StreamNo,
        /// The relay that reported it.
        relay: NodeId,
        /// Its destination.
        dest: NodeId,
    },
    /// Everything that arrived over the peer's failed link has been put into private pipes.
    LinkEnded {
        /// The peer.
        peer: NodeId,
    },
    /// A stream from a failed node, or through a failed relay, has ended without its last segment.
    StreamBroken {
        /// The mapping tuple that was removed.
        mapping: StreamMapping,
    },
    /// A trunk to another cluster is up. (Reported by a host that joins clusters, not by an engine.)
    ClusterUp {
        /// Its name.
        name: crate::tables::Name,
    },
    /// The trunk to another cluster is down. Its parts are unreachable, and messages not yet handed on there come back.
    ClusterDown {
        /// Its name.
        name: crate::tables::Name,
        /// If the cluster's gateway went without a farewell: messages that it had taken without reporting that they were handed
        /// on. Some may have arrived. They do not come back.
        in_doubt: u64,
    },
    /// Parts were forgotten, or may have been: [`Engine::has_part`] tells whether a part still exists. Reported before this node
    /// confirms that it has forgotten them.
    PartsForgotten {
        /// The current [`Engine::recurrence`]. If it is not 0, part numbers are being reused, and ids must be looked up again
        /// before anything is sent to them.
        recurrence: u64,
    },
    /// Writers should submit their open blocks: a node has asked whether all messages have been received, or a peer has failed.
    /// Blocks opened before a failure come back, even if the link is up again by then.
    FlushWanted,
}
