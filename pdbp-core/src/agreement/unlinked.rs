//! Nodes without a record. Where messages go through relays, a node that is not a master discusses the tables with masters only. Of
//! any other node it keeps only whether that node is a member: two bytes, where a record takes hundreds.

use super::Agreement;
use super::peer::notice;
use crate::id::NodeId;

/// The nodes that a node exchanges messages with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reach {
    /// All others: each has a link and a record.
    #[default]
    All,
    /// Only the masters. The node itself is not a master and never campaigns.
    Masters,
}

/// What a replica knows of a node without a record. One per such node, in [`Storage`](super::Storage).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unlinked {
    member: bool,
    /// Events that the host has not taken yet.
    news: u8,
}

impl Unlinked {
    pub(super) fn new(member: bool) -> Self {
        Self { member, news: 0 }
    }

    /// Takes the next event that the host has not taken: `true` if the node has become a member, `false` if it has ceased to be
    /// one.
    pub(super) fn take_news(&mut self) -> Option<bool> {
        let joins = if self.news & notice::DOWN != 0 {
            false
        } else {
            (self.news & notice::UP != 0).then_some(true)?
        };
        self.news &= if joins { !notice::UP } else { !notice::DOWN };
        Some(joins)
    }
}

impl Agreement<'_> {
    fn unlinked(&mut self, node: NodeId) -> Option<&mut Unlinked> {
        let place = node.index().checked_sub(self.peers.len())?;
        self.unlinked.get_mut(place)
    }

    /// Whether the node is a member, according to the entries applied here.
    pub fn is_member(&self, node: NodeId) -> bool {
        match self.peers.get(node.index()) {
            Some(peer) => peer.member,
            None => {
                let place = node.index().saturating_sub(self.peers.len());
                self.unlinked.get(place).is_some_and(|unlinked| unlinked.member)
            }
        }
    }

    /// Records that a node without a record has become a member, or has ceased to be one.
    pub(super) fn record_unlinked(&mut self, node: NodeId, member: bool) {
        let Some(unlinked) = self.unlinked(node).filter(|unlinked| unlinked.member != member) else { return };
        unlinked.member = member;
        unlinked.news =
            if member { unlinked.news | notice::UP } else { (unlinked.news | notice::DOWN) & !notice::UP };
        self.news = true;
    }

    /// Records from a snapshot whether the node is a member.
    pub(super) fn set_member(&mut self, node: NodeId, member: bool) {
        match self.peers.get_mut(node.index()) {
            // A node reported as terminated may have returned while this node was out.
            Some(peer) => (peer.member, peer.ended) = (member, false),
            None => {
                if let Some(unlinked) = self.unlinked(node) {
                    unlinked.member = member;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_a_node_are_told_once_and_in_order() {
        let mut unlinked = Unlinked { member: true, news: notice::DOWN | notice::UP };
        assert_eq!(
            [unlinked.take_news(), unlinked.take_news(), unlinked.take_news()],
            [Some(false), Some(true), None]
        );
    }
}
