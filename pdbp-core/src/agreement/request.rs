//! Requests for changes, and their answers.

use super::message::Change;
use super::{Agreement, Replica, Role, Stage};
use crate::id::NodeId;

/// Why a request was refused. The change is handed back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// The previous request has not been answered yet.
    Busy(Change),
    /// Only the primary decides which nodes are up or down; a node may only introduce itself.
    NotARequest(Change),
}

impl core::fmt::Display for RequestError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Busy(_) => {
                f.write_str("the previous request has not been answered; try again after its answer")
            }
            Self::NotARequest(_) => f.write_str(
                "only parts and the node's own row can be requested; all other changes are the primary's",
            ),
        }
    }
}

impl core::error::Error for RequestError {}

impl Agreement<'_> {
    /// Whether `node` may request the change.
    fn is_allowed(change: &Change, node: NodeId) -> bool {
        match change {
            Change::PartAdded(entry) => entry.id.node() == node,
            Change::PartRemoved(id) => id.node() == node,
            Change::NodeUp(entry) => entry.id == node,
            Change::NodeDown(_) | Change::Nothing => false,
        }
    }

    /// Requests a change of the tables: of a part of this node, or of the node's own row, with which it introduces itself. Returns
    /// the number that [`Answered`](super::Event::Answered) will carry. Only one request at a time; it is repeated whenever the
    /// primary changes.
    ///
    /// # Errors
    /// See [`RequestError`]; the change is handed back.
    pub fn request(&mut self, change: Change) -> Result<u32, RequestError> {
        if !Self::is_allowed(&change, self.me) {
            return Err(RequestError::NotARequest(change));
        }
        if self.own_request.is_some() || self.answered.is_some() {
            return Err(RequestError::Busy(change));
        }
        self.numbers = self.numbers.wrapping_add(1);
        self.own_request = Some((self.numbers, change));
        self.own_request_sent = false;
        self.dirty = true;
        self.submit_own_request();
        Ok(self.numbers)
    }

    /// Whether a request has not been answered yet.
    pub fn is_requesting(&self) -> bool {
        self.own_request.is_some()
    }

    /// At the primary: submits its own request.
    pub(super) fn submit_own_request(&mut self) {
        if self.role == Role::Primary
            && let Some((number, change)) = self.own_request.clone()
        {
            self.own_request_sent = true;
            self.on_request(self.me, number, change);
        }
    }

    pub(super) fn on_request(&mut self, from: NodeId, number: u32, change: Change) {
        if self.role != Role::Primary || !Self::is_allowed(&change, from) {
            return;
        }
        // A node admitted by an entry that is not applied here may already know that it is a member, and requests only once.
        if !self.participates(from) {
            return;
        }
        let Some(peer) = self.peers.get_mut(from.index()).filter(|p| p.join.is_none()) else { return };
        if from != self.me && peer.last_request.replace(number) == Some(number) {
            return;
        }
        self.term.waiting -= usize::from(peer.deferred_answer.take().is_some()).min(self.term.waiting);
        peer.answer = None;
        peer.request = Some((number, change));
        self.term.check_requests = true;
    }

    /// Number of parts that entries not applied yet will add.
    pub(super) fn count_additions(&self) -> usize {
        let range = self.applied.saturating_add(1)..=self.log.last().index;
        range.filter(|i| self.log.get(*i).is_some_and(|e| matches!(e.change, Change::PartAdded(_)))).count()
    }

    /// At the primary: turns requests into entries, as many as the log and the table have room for.
    pub(super) fn propose_requests(&mut self, replica: &impl Replica) {
        if self.commit < self.term.floor || self.stage != Stage::Member {
            return;
        }
        // A quarter of the log is reserved for the first entries of later primaries, and for membership changes.
        let most = self.log.capacity() - self.log.capacity() / 4;
        let mut strict = None;
        for i in 0..self.peers.len() {
            let Some(peer) = self.peers.get(i).filter(|p| p.request.is_some() && p.member) else { continue };
            let leaves = self.pending.is_some_and(|p| p.node.index() == i);
            if peer.join.is_some() || leaves {
                continue;
            }
            let strict = *strict.get_or_insert_with(|| self.droppable(true));
            if self.log.last().index - strict >= most {
                self.term.log_blocked = true;
                return;
            }
            self.propose_request(NodeId::from_index(i), replica);
        }
    }

    fn propose_request(&mut self, node: NodeId, replica: &impl Replica) {
        let Some((number, change)) = self.peers.get(node.index()).and_then(|p| p.request.clone()) else {
            return;
        };
        let settled = self.applied == self.log.last().index;
        let adds = matches!(change, Change::PartAdded(_));
        let index = if settled && replica.contains(&change) {
            self.applied
        } else if adds && replica.room() <= self.term.additions {
            if !settled {
                // A change in progress may make room, or be this same change.
                return;
            }
            return self.refuse(node, number);
        } else {
            let Some(index) = self.propose(change) else { return };
            index
        };
        if let Some(peer) = self.peers.get_mut(node.index()) {
            peer.request = None;
            peer.deferred_answer = Some((number, index));
            self.term.waiting += 1;
            self.term.check_stable = true;
        }
    }

    fn refuse(&mut self, node: NodeId, number: u32) {
        if let Some(peer) = self.peers.get_mut(node.index()) {
            peer.request = None;
            peer.answer = (node != self.me).then_some((number, false));
            self.dirty = true;
        }
        if node == self.me {
            self.on_answer(number, false);
        }
    }
}
