//! Nodes without a record. Where messages go through relays, a node that is not a master discusses the tables with masters only. Of
//! other nodes it keeps just whether they are members: two bytes, where a record has hundreds.

use super::Agreement;
use super::peer::owe;
use crate::id::NodeId;

/// Which nodes a node exchanges messages with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reach {
    /// All others: there is a link and a record for each.
    #[default]
    All,
    /// The masters, of which it is none. It never campaigns.
    Masters,
}

/// A replica's knowledge of a node without a record. One per node, in [`Storage`](super::Storage).
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

    /// The next event that the host has not taken: whether the node has become a member, or has ceased to be one.
    pub(super) fn take_news(&mut self) -> Option<bool> {
        let joins =
            if self.news & owe::DOWN != 0 { false } else { (self.news & owe::UP != 0).then_some(true)? };
        self.news &= if joins { !owe::UP } else { !owe::DOWN };
        Some(joins)
    }
}

impl Agreement<'_> {
    fn unlinked(&mut self, node: NodeId) -> Option<&mut Unlinked> {
        let place = node.index().checked_sub(self.peers.len())?;
        self.unlinked.get_mut(place)
    }

    /// Whether the node is a member, as far as is applied here.
    pub fn is_member(&self, node: NodeId) -> bool {
        match self.peers.get(node.index()) {
            Some(peer) => peer.member,
            None => {
                let place = node.index().saturating_sub(self.peers.len());
                self.unlinked.get(place).is_some_and(|unlinked| unlinked.member)
            }
        }
    }

    /// A node without a record has become a member, or has ceased to be one.
    pub(super) fn note_unlinked(&mut self, node: NodeId, member: bool) {
        let Some(unlinked) = self.unlinked(node).filter(|unlinked| unlinked.member != member) else { return };
        unlinked.member = member;
        unlinked.news = if member { unlinked.news | owe::UP } else { (unlinked.news | owe::DOWN) & !owe::UP };
        self.news = true;
    }

    /// From a snapshot: whether the node is a member.
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
        let mut unlinked = Unlinked { member: true, news: owe::DOWN | owe::UP };
        assert_eq!(
            [unlinked.take_news(), unlinked.take_news(), unlinked.take_news()],
            [Some(false), Some(true), None]
        );
    }
}
