//! Generates messages when links have room for them.

use super::message::{Body, Message};
use super::peer::{Flow, notice};
use super::{Agreement, Replica, Role, Stage};
use crate::id::{Epoch, NodeId};

impl Agreement<'_> {
    /// Returns the next node for which there is a message and that `has_room`, in turns. When there is nothing to send, further
    /// calls check a single flag until something happens.
    pub fn next_receiver(&mut self, mut has_room: impl FnMut(NodeId) -> bool) -> Option<NodeId> {
        if !self.dirty {
            return None;
        }
        let nodes = self.peers.len();
        let mut waits = false;
        for i in 0..nodes {
            let node = NodeId::from_index((self.turn + i) % nodes);
            if !self.has_message(node) {
                continue;
            }
            if has_room(node) {
                self.turn = node.index() + 1;
                return Some(node);
            }
            waits = true;
        }
        self.dirty = waits;
        None
    }

    /// Whether there is a message for the node. O(1).
    pub fn has_message(&self, to: NodeId) -> bool {
        let Some(peer) = self.peers.get(to.index()).filter(|p| p.linked && to != self.me) else {
            return false;
        };
        let joins = peer.notices & notice::JOIN != 0 && self.stage == Stage::Asking;
        let asks = peer.notices & notice::VOTE != 0 && matches!(self.role, Role::Candidate(_));
        if peer.voted.is_some() || peer.notices & (notice::HELLO | notice::EXPELLED) != 0 || joins || asks {
            return true;
        }
        if self.role == Role::Primary {
            return peer.alive.is_some() || peer.answer.is_some() || self.has_log_for(to);
        }
        self.primary == Some(to) && (self.ack.is_some() || self.alive_due || self.has_request())
    }

    fn has_request(&self) -> bool {
        self.own_request.is_some() && !self.own_request_sent && self.stage == Stage::Member
    }

    fn has_log_for(&self, to: NodeId) -> bool {
        let Some(peer) = self.peers.get(to.index()) else { return false };
        if !(self.participates(to) && self.is_current_process(to, peer)) && peer.join.is_none() {
            return false;
        }
        match peer.flow {
            Flow::Idle | Flow::Probing => false,
            Flow::Probe => !peer.lost,
            Flow::Begin | Flow::Members(_) | Flow::Rows(_) => true,
            Flow::Stream => {
                let news = peer.sent_commit < self.commit || peer.sent_stable < self.stable;
                peer.next <= self.log.last().index || news
            }
        }
    }

    /// Takes the next message to the node, if any. It counts as sent: it arrives, or the link goes down or is renewed.
    pub fn next_message(&mut self, to: NodeId, replica: &impl Replica) -> Option<Message> {
        if !self.has_message(to) {
            return None;
        }
        let (own, last) = (self.epoch, self.log.last());
        let (role, stage, attempt) = (self.role, self.stage, self.attempt);
        let say = |body| Some(Message { epoch: own, body });
        let peer = self.peers.get_mut(to.index())?;
        if let Some((asked, ballot, granted)) = peer.voted.take() {
            let epoch = Epoch(own.0.max(asked.0));
            return Some(Message { epoch, body: Body::Voted { ballot, asked, granted } });
        }
        let mut take_notice = |what: u8| {
            let does = peer.notices & what != 0;
            peer.notices &= !what;
            does
        };
        if take_notice(notice::EXPELLED) && role == Role::Primary {
            return say(Body::Expelled);
        }
        if take_notice(notice::HELLO) {
            return say(Body::Hello { leads: role == Role::Primary });
        }
        if take_notice(notice::JOIN) && stage == Stage::Asking {
            return say(Body::Join { number: attempt, entry: self.settings.entry.clone() });
        }
        if take_notice(notice::VOTE)
            && let Role::Candidate(ballot) = role
        {
            return say(Body::Vote { ballot, last });
        }
        let body = if role == Role::Primary {
            self.next_primary_message(to, replica)
        } else {
            self.next_follower_message(to)
        };
        body.and_then(say)
    }

    fn next_follower_message(&mut self, to: NodeId) -> Option<Body> {
        if self.primary != Some(to) {
            return None;
        }
        if let Some(log_match) = self.ack.take() {
            return Some(self.report(log_match));
        }
        if core::mem::take(&mut self.alive_due) {
            return Some(Body::Alive { sent: self.clock, stamp: self.stamp });
        }
        if self.has_request() {
            self.own_request_sent = true;
            let (number, change) = self.own_request.clone()?;
            return Some(Body::Request { number, change });
        }
        None
    }

    fn next_primary_message(&mut self, to: NodeId, replica: &impl Replica) -> Option<Body> {
        let peer = self.peers.get_mut(to.index())?;
        if let Some(sent) = peer.alive.take() {
            return Some(self.grant(to, sent));
        }
        if let Some((number, accepted)) = peer.answer.take() {
            return Some(Body::Answer { number, accepted });
        }
        if !self.has_log_for(to) {
            return None;
        }
        match self.peers.get(to.index())?.flow {
            Flow::Probe => self.next_entry(to, Flow::Probing),
            Flow::Stream => self.next_entry(to, Flow::Stream),
            _ => self.next_snapshot_message(to, replica),
        }
    }

    fn next_entry(&mut self, to: NodeId, then: Flow) -> Option<Body> {
        let (commit, stable) = (self.commit, self.stable);
        let next = self.peers.get(to.index())?.next;
        let Some(previous) = next.checked_sub(1).and_then(|i| self.log.position(i)) else {
            self.restore(to);
            return None;
        };
        let entry = if then == Flow::Stream { self.log.get(next).cloned() } else { None };
        let peer = self.peers.get_mut(to.index())?;
        peer.next = next.saturating_add(u64::from(entry.is_some()));
        peer.flow = then;
        if then == Flow::Stream {
            (peer.sent_commit, peer.sent_stable) = (commit, stable);
        }
        Some(Body::Append { previous, commit, stable, entry })
    }
}
