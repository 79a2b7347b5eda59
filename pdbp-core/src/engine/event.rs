//! Events that an engine reports to its host.

use core::fmt;

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
    /// Messages for a part that does not exist or has no private pipe were discarded. An endpoint or a node combines the
    /// counts of several blocks.
    Unroutable {
        /// The peer that sent them.
        peer: NodeId,
        /// Number of the part.
        part: u16,
        /// Number of messages.
        messages: u32,
    },
    /// The link with the peer is down. `undelivered` messages had not left this node, or may not have arrived. Messages that come
    /// back later are in the next event of this peer, if there is one.
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
    /// Everything that arrived over the peer's failed link has been put into private pipes. Comes again if more arrives over it.
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

impl Event {
    /// Whether it reports messages that were discarded: [`Unroutable`](Self::Unroutable) and
    /// [`NotForwarded`](Self::NotForwarded). They come block by block, many per poll, unlike all others.
    pub fn is_discard(&self) -> bool {
        matches!(self, Self::Unroutable { .. } | Self::NotForwarded { .. })
    }

    /// Adds the messages of a later discard to those of this one, if both have the same kind, source and target. Returns whether it
    /// did.
    pub fn merge(&mut self, later: &Self) -> bool {
        let (count, more) = match (self, later) {
            (
                Self::Unroutable { peer, part, messages },
                Self::Unroutable { peer: from, part: number, messages: more },
            ) if (*peer, *part) == (*from, *number) => (messages, *more),
            (
                Self::NotForwarded { source, dest, messages },
                Self::NotForwarded { source: from, dest: to, messages: more },
            ) if (*source, *dest) == (*from, *to) => (messages, *more),
            _ => return false,
        };
        let Some(all) = count.checked_add(more) else { return false };
        *count = all;
        true
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { part, accepted: true } => {
                write!(f, "{part} was registered or removed on all nodes")
            }
            Self::Changed { part, accepted: false } => {
                write!(f, "{part} was refused: the table of parts is full")
            }
            Self::Malformed { peer, reason } => write!(f, "refused a block from {peer}: {reason}"),
            Self::Unroutable { peer, part, messages } => write!(
                f,
                "discarded {} from {peer} for part {part}, which does not exist or has no pipe",
                Messages((*messages).into())
            ),
            Self::PeerFailed { peer, undelivered: 0 } => write!(f, "the link with {peer} has failed"),
            Self::PeerFailed { peer, undelivered } => {
                write!(f, "the link with {peer} has failed; {} may not have arrived", Messages(*undelivered))
            }
            Self::PeerRestored { peer } => write!(f, "the link with {peer} is up"),
            Self::SettingsDiffer(settings) => settings.fmt(f),
            Self::NewMaster { node, epoch } => write!(f, "{node} is the primary master, in term {}", epoch.0),
            Self::Expelled => f.write_str("this node was declared down, and asks to be readmitted"),
            Self::NodeUp { node } => write!(f, "{node} is a member"),
            Self::NodeDown { node } => write!(f, "{node} was declared down"),
            Self::NotForwarded { source, dest, messages } => write!(
                f,
                "could not forward {} from {source}: the link with {dest} has failed",
                Messages((*messages).into())
            ),
            Self::StreamStopped { part, number, relay, dest } => {
                write!(f, "stream {} of {part} to {dest} was stopped at its relay {relay}", number.0)
            }
            Self::LinkEnded { peer } => {
                write!(f, "delivered everything that arrived from {peer} before the link failed")
            }
            Self::StreamBroken { mapping } => {
                let (number, source, part) = (mapping.number.0, mapping.source, mapping.part);
                write!(f, "stream {number} from {source} to part {part} ended before its last segment")
            }
            Self::ClusterUp { name } => write!(f, "the trunk to cluster {name} is up"),
            Self::ClusterDown { name, in_doubt: 0 } => write!(f, "the trunk to cluster {name} is down"),
            Self::ClusterDown { name, in_doubt } => {
                write!(f, "the trunk to cluster {name} is down; {} may not have arrived", Messages(*in_doubt))
            }
            Self::PartsForgotten { .. } => f.write_str("parts were forgotten"),
            Self::FlushWanted => f.write_str("open blocks should be submitted"),
        }
    }
}

/// Prints a number of messages.
struct Messages(u64);

impl fmt::Display for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} message{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_node_and_counts_its_messages() {
        let (peer, text) = (NodeId::new(3).unwrap(), |event: Event| std::format!("{event}"));
        let lost = |undelivered| text(Event::PeerFailed { peer, undelivered });
        assert_eq!(lost(0), "the link with node3 has failed");
        assert_eq!(lost(1), "the link with node3 has failed; 1 message may not have arrived");
        assert_eq!(lost(2), "the link with node3 has failed; 2 messages may not have arrived");
        assert_eq!(text(Event::NodeDown { node: peer }), "node3 was declared down");
        let unroutable = Event::Unroutable { peer, part: 7, messages: 1 };
        assert_eq!(
            text(unroutable),
            "discarded 1 message from node3 for part 7, which does not exist or has no pipe"
        );
    }
}
