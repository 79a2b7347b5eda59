//! What an engine has to say to its host.

use super::Disagreement;
#[cfg(doc)]
use super::Engine;
use crate::cdu::Malformed;
use crate::id::{Epoch, NodeId, PartId, StreamNo};
use crate::pipe::StreamMapping;

/// Something that a host may want to act on or report.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A request to change PTA was answered: the part is known (or no longer known) on every live node.
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
    /// Messages for a part that does not exist or has no private pipe were discarded. From an endpoint it may be those of several blocks.
    Unroutable {
        /// The peer that sent them.
        peer: NodeId,
        /// Number of the part.
        part: u16,
        /// How many.
        messages: u32,
    },
    /// The link to and from the peer is down. `undelivered` messages had not left this node, or may not have arrived.
    PeerFailed {
        /// The peer.
        peer: NodeId,
        /// Messages that are lost.
        undelivered: u64,
    },
    /// The link to and from a peer that had failed is up again; nothing is on it.
    PeerRestored {
        /// The peer.
        peer: NodeId,
    },
    /// The peer has another value of a setting that has to be the same on all nodes. The link to it counts as failed.
    SettingsDiffer(Disagreement),
    /// There is another primary master.
    NewMaster {
        /// Which.
        node: NodeId,
        /// Its term of office.
        epoch: Epoch,
    },
    /// This node was declared down: it is no member of the cluster, has no peers, and asks to be let in again.
    Expelled,
    /// The members have let a node in: it is one of [`Engine::members`] again. All members are told, whether they have a link to it
    /// or not. Of this node itself: it is a member again, and others may have come or gone while it was none.
    NodeUp {
        /// Which.
        node: NodeId,
    },
    /// The members have declared a node down: it is none of [`Engine::members`] any more, and its parts are forgotten. All members are
    /// told, whether they have a link to it or not; a link that fails for one of them alone is a [`PeerFailed`](Self::PeerFailed).
    NodeDown {
        /// Which.
        node: NodeId,
    },
    /// This node is the relay of two others, and cannot pass messages on since its link to the second has failed.
    NotPassedOn {
        /// The node that has sent them.
        source: NodeId,
        /// The node that they are for.
        dest: NodeId,
        /// How many.
        messages: u32,
    },
    /// A stream of this node goes no further: its relay has no room for another one to that destination, or has lost its link
    /// to it. What the relay did not pass on is lost.
    StreamStopped {
        /// The part that sends it.
        part: PartId,
        /// Its number.
        number: StreamNo,
        /// The relay that says so.
        relay: NodeId,
        /// The node to which it goes.
        dest: NodeId,
    },
    /// All that had come from the peer by the link that has failed was put into private pipes.
    LinkEnded {
        /// The peer.
        peer: NodeId,
    },
    /// A stream from a failed node, or by a relay that has failed, has ended without its last segment.
    StreamBroken {
        /// The mapping tuple that was removed.
        mapping: StreamMapping,
    },
    /// There is a trunk to another cluster. (A host that joins clusters says so, not an engine.)
    ClusterUp {
        /// Its name.
        name: crate::tables::Name,
    },
    /// The trunk to another cluster has gone: its parts are out of reach, and what had not been handed on there comes back.
    ClusterDown {
        /// Its name.
        name: crate::tables::Name,
        /// Messages that its gateway had taken and not said to have handed on, when it went without a farewell: some may have arrived. They do not
        /// come back.
        in_doubt: u64,
    },
    /// Numbers of parts recur, and parts were forgotten, or may have been: ids have to be looked for again before something is sent
    /// to them. It is said before this node confirms that it has forgotten them.
    PartsForgotten {
        /// What [`Engine::recurrence`] says now.
        recurrence: u64,
    },
    /// Writers should submit their open blocks: somebody asks whether all messages have been received, or a peer has failed, and what is packed
    /// into blocks that were opened before comes back, were the link up again by then.
    FlushWanted,
}
