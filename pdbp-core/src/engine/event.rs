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
    /// A change of PTA was answered: the part is known (or no longer known) on every live node.
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
    /// Messages for a part that does not exist or has no private pipe were discarded. An endpoint may combine those of several
    /// blocks.
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
    /// The peer has another value of a setting that must be the same on all nodes. The link to it counts as failed.
    SettingsDiffer(Disagreement),
    /// There is another primary master.
    NewMaster {
        /// The new master.
        node: NodeId,
        /// Its term.
        epoch: Epoch,
    },
    /// This node was declared down: it is no longer a member of the cluster, has no peers, and asks to be readmitted.
    Expelled,
    /// The members have admitted a node: it is one of [`Engine::members`] again. All members are told, whether they have a link to
    /// it or not. If it is this node: it is a member again, and others may have come or gone while it was not.
    NodeUp {
        /// The node.
        node: NodeId,
    },
    /// The members have declared a node down: it is no longer one of [`Engine::members`], and its parts are forgotten. All members
    /// are told, whether they have a link to it or not; a link that fails for one of them alone is a
    /// [`PeerFailed`](Self::PeerFailed).
    NodeDown {
        /// The node.
        node: NodeId,
    },
    /// This node is the relay of two others, and cannot forward messages because its link to the second has failed.
    NotPassedOn {
        /// The node that sent them.
        source: NodeId,
        /// Their destination.
        dest: NodeId,
        /// Number of messages.
        messages: u32,
    },
    /// A stream of this node goes no further: its relay has no room for another one to that destination, or has lost its link to
    /// it. What the relay did not forward is lost.
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
    /// There is a trunk to another cluster. (Reported by a host that joins clusters, not by an engine.)
    ClusterUp {
        /// Its name.
        name: crate::tables::Name,
    },
    /// The trunk to another cluster is down: its parts are unreachable, and what had not been handed on there comes back.
    ClusterDown {
        /// Its name.
        name: crate::tables::Name,
        /// Messages that its gateway had taken without reporting that they were handed on, when it went without a farewell: some
        /// may have arrived. They do not come back.
        in_doubt: u64,
    },
    /// Parts were forgotten, or may have been: [`Engine::has_part`] says whether a part is still there. Reported before this node
    /// confirms that it has forgotten them.
    PartsForgotten {
        /// The current [`Engine::recurrence`]. If it is not 0, part numbers are being reused, and ids must be looked up again before
        /// anything is sent to them.
        recurrence: u64,
    },
    /// Writers should submit their open blocks: somebody asks whether all messages have been received, or a peer has failed. Blocks
    /// opened before a failure come back, even if the link is up again by then.
    FlushWanted,
}
