//! What a replica knows of each node, and quorums.

use super::message::{Ballot, Change};
use super::{Agreement, Flaw};
use crate::id::{Epoch, NodeId, Time};

/// What a node is still to be told in addition to the log, as bits.
pub(super) mod notice {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const EXPELLED: u8 = 2;
    pub(crate) const VOTE: u8 = 4;
    pub(crate) const JOIN: u8 = 8;
    /// Events that the host has not taken yet.
    pub(crate) const DOWN: u8 = 16;
    pub(crate) const UP: u8 = 32;
}

/// The state of the log transfer from the primary to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    /// No transfer: the node is not a member and has not asked for admission.
    #[default]
    Idle,
    /// The node is to be asked up to where its log matches.
    Probe,
    /// The node has been asked.
    Probing,
    /// The node receives entries as they come.
    Stream,
    /// The node receives a snapshot: the `Begin` message is next.
    Begin,
    /// The snapshot's members from this node on are next.
    Members(u16),
    /// The snapshot's row with this cursor is next.
    Rows(u64),
}

/// What a replica knows of another node. One per node, in [`Storage`](super::Storage).
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Whether it is a member, according to the entries committed and applied here.
    pub(super) member: bool,
    pub(super) linked: bool,
    /// The life of the process that is, or was last, a member as this node, according to the entries applied here.
    pub(super) life: u64,
    /// The life of the process that is, or was last, at the other end of the link.
    pub(super) link_life: u64,
    /// Whether it will never vote again, at least not before it is readmitted.
    pub(super) ended: bool,
    /// Whether it is known to have terminated, regardless of what that means for votes: it no longer shows its tables, even if its
    /// lease has not expired.
    pub(super) terminated: bool,
    /// At the primary: whether it has lost its state.
    pub(super) lost: bool,
    pub(super) notices: u8,
    pub(super) voted: Option<(Epoch, Ballot, bool)>,
    /// Its vote in the current ballot.
    pub(super) granted: bool,
    pub(super) flow: Flow,
    pub(super) round: u32,
    pub(super) next: u64,
    pub(super) matched: u64,
    pub(super) applied: u64,
    pub(super) sent_commit: u64,
    pub(super) sent_stable: u64,
    /// When the primary last heard from it, or its predecessor may have granted it a lease. `None` if never.
    pub(super) last_heard: Option<Time>,
    /// The time of a lease request that has not been answered.
    pub(super) alive: Option<Time>,
    /// When the last grant that it is known to have received was made.
    pub(super) stamp: Option<Time>,
    /// A request that is not in the log yet; for a node that joins, its row.
    pub(super) request: Option<(u32, Change)>,
    /// Number of its last request in this session and term. A requester in doubt repeats a request, which must not be carried out
    /// twice.
    pub(super) last_request: Option<u32>,
    /// A request to be answered once this index is stable.
    pub(super) deferred_answer: Option<(u32, u64)>,
    pub(super) answer: Option<(u32, bool)>,
    /// Number of its attempt to join.
    pub(super) join: Option<u32>,
    /// The attempt with which it was admitted in this session. Joins with lower or equal numbers are delayed messages.
    pub(super) admitted: Option<u32>,
    /// For a joining node: the entry after which its log begins.
    pub(super) base: u64,
    /// For a joining node: it is admitted once it has applied this index.
    pub(super) admit_at: u64,
    /// The entry that last declared it down, as far as this term knows.
    pub(super) down_at: u64,
}

impl Peer {
    /// Resets the state that belongs to a term as primary.
    pub(super) fn start_term(&mut self, now: Time, next: u64) {
        let Self { member, linked, life, link_life, ended, notices, voted, .. } = *self;
        *self = Self {
            member,
            linked,
            life,
            link_life,
            ended,
            // Who was to be told that it is out may have been readmitted since.
            notices: notices & !notice::EXPELLED,
            voted,
            flow: Flow::Probe,
            next,
            last_heard: Some(now),
            ..Self::default()
        };
    }
}

/// A membership change in the log that is not known to be committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) index: u64,
    pub(super) node: NodeId,
    pub(super) joins: bool,
    /// For a joining node: the life of its process.
    pub(super) life: u64,
}

/// The vote count of one electorate.
#[derive(Default)]
struct Count {
    members: usize,
    ayes: usize,
    lowest: Option<bool>,
    /// Members that have not terminated and do not vote aye.
    reluctant: usize,
}

impl Count {
    fn add(&mut self, aye: bool, ended: bool) {
        self.members += 1;
        self.reluctant += usize::from(!aye && !ended);
        self.ayes += usize::from(aye);
        self.lowest.get_or_insert(aye);
    }

    /// More than half, or exactly half including the lowest-numbered member, or all that have not terminated. Members that have
    /// terminated are not simply left out of the count: before terminating, they may have decided, together with others, something
    /// that half of the remaining members do not know. Under leases nobody counts as terminated; see the [module](super).
    fn is_quorum(&self) -> bool {
        let half = self.ayes * 2 == self.members && self.lowest == Some(true);
        self.ayes * 2 > self.members || half || (self.reluctant == 0 && self.ayes > 0)
    }
}

impl Agreement<'_> {
    /// Whether the nodes for which `aye` holds form a quorum of the committed membership and, while a change is pending, also of
    /// the membership that results from it.
    pub(super) fn is_quorum(&self, aye: impl Fn(NodeId, &Peer) -> bool) -> bool {
        let (old, new) = self.count(aye);
        if self.has_flaw(Flaw::MinorityCommits) && self.role == super::Role::Primary {
            return old.ayes * 2 + 1 >= old.members.saturating_sub(1);
        }
        if self.has_flaw(Flaw::NoJointQuorum) && self.pending.is_some() {
            return new.is_quorum();
        }
        old.is_quorum() && new.is_quorum()
    }

    /// Whether these nodes form a quorum of the committed membership, regardless of any pending change.
    pub(super) fn is_quorum_of_old(&self, aye: impl Fn(NodeId, &Peer) -> bool) -> bool {
        self.count(aye).0.is_quorum()
    }

    fn count(&self, aye: impl Fn(NodeId, &Peer) -> bool) -> (Count, Count) {
        let (mut old, mut new) = (Count::default(), Count::default());
        for (i, peer) in self.peers.iter().enumerate() {
            let node = NodeId::from_index(i);
            let will = match self.pending {
                Some(p) if p.node == node => p.joins,
                _ => peer.member,
            };
            let forgotten = self.has_flaw(Flaw::ForgetsVoter) && node != self.me && !peer.linked;
            if (!peer.member && !will) || forgotten {
                continue;
            }
            let aye = !peer.ended && self.is_current_process(node, peer) && aye(node, peer);
            if !self.is_voter(node) {
                let counted = usize::from(aye && self.has_flaw(Flaw::LearnerVotes));
                (old.ayes, new.ayes) = (old.ayes + counted, new.ayes + counted);
                continue;
            }
            if peer.member {
                old.add(aye, peer.ended);
            }
            if will {
                new.add(aye, peer.ended);
            }
        }
        (old, new)
    }

    /// Whether the node is a member, or would be after the pending change.
    pub(super) fn participates(&self, node: NodeId) -> bool {
        self.is_member(node) || self.pending.is_some_and(|p| p.node == node && p.joins)
    }

    /// Whether the process at the other end of the link is the one that is a member as this node, or that a pending entry admits.
    /// Messages from an earlier or later holder of the place do not count.
    pub(super) fn is_current_process(&self, node: NodeId, peer: &Peer) -> bool {
        let life = match self.pending {
            Some(pending) if pending.joins && pending.node == node => pending.life,
            _ => peer.life,
        };
        node == self.me || peer.link_life == life || self.has_flaw(Flaw::ForgetsLives)
    }

    /// Whether this node is a member, as far as it knows.
    pub(crate) fn has_membership(&self) -> bool {
        self.stage == super::Stage::Member
    }

    /// Whether the node is a member, and the process that holds its place is at the other end of the link.
    pub(crate) fn is_linked_member(&self, node: NodeId) -> bool {
        let peer = self.peers.get(node.index());
        self.is_member(node) && peer.is_none_or(|peer| self.is_current_process(node, peer))
    }

    /// Whether the node is a member, or an entry that admits it is in the log.
    pub(crate) fn is_expected(&self, node: NodeId) -> bool {
        self.participates(node)
    }

    pub(super) fn is_linked(&self, node: NodeId) -> bool {
        self.peers.get(node.index()).is_some_and(|p| p.linked)
    }

    pub(super) fn queue_notice(&mut self, node: NodeId, what: u8) {
        if let Some(peer) = self.peers.get_mut(node.index()) {
            peer.notices |= what;
            self.dirty = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an earlier primary was to be told may be wrong by now: the node may have been readmitted since.
    #[test]
    fn a_new_term_tells_nobody_of_an_expulsion_of_an_earlier_one() {
        let mut peer = Peer { notices: notice::HELLO | notice::EXPELLED | notice::UP, ..Peer::default() };
        peer.start_term(Time(1), 1);
        assert_eq!(peer.notices, notice::HELLO | notice::UP);
    }
}
