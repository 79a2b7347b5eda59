//! Handles nodes that leave and return.

use super::message::{Body, Change, MEMBERS, Position};
use super::peer::{Flow, Pending, notice};
use super::{Agreement, Replica, Role, Stage};
use crate::id::{Epoch, NodeId, Time};
use crate::tables::NodeEntry;

impl Agreement<'_> {
    /// At the primary: declares a member down, or admits a node, one membership change at a time.
    pub(super) fn propose_members(&mut self) {
        if self.pending.is_some() || self.commit < self.term.floor {
            return;
        }
        if !self.is_member(self.me) {
            // Its predecessor declared this node down, in an entry that this node has taken over.
            self.propose(Change::NodeUp(self.settings.entry.clone()));
            return;
        }
        // After a suspension or a partition it knows nothing of the other nodes.
        if !self.is_serving(self.clock) {
            return;
        }
        let me = self.me.index();
        let failed =
            self.peers.iter().enumerate().find(|(i, p)| *i != me && p.member && self.has_failed(*i, p));
        if let Some((i, _)) = failed {
            self.term.log_blocked |= self.propose(Change::NodeDown(NodeId::from_index(i))).is_none();
            return;
        }
        // A node that joins may become primary next, and must then be able to bring all members up to date from its log. One slot
        // of the log is reserved for a NodeDown.
        let kept = self.droppable(true);
        let room = self.log.last().index - kept < self.log.capacity() - 1;
        let is_ready = |p: &super::Peer| {
            !p.member
                && p.join.is_some()
                && p.flow == Flow::Stream
                && p.admit_at > 0
                && p.applied >= p.admit_at
        };
        // Where places pass between processes, every node must first know that the previous process is gone.
        let (open, floor, stable) =
            (self.settings.voters < self.settings.nodes, self.term.floor, self.stable);
        let is_known = |p: &super::Peer| !open || stable >= floor.max(p.down_at);
        let now = self.clock;
        self.term.log_blocked |= self.peers.iter().any(is_ready);
        let ready = self.peers.iter_mut().find(|p| is_ready(p) && is_known(p) && p.base <= kept && room);
        if let Some(peer) = ready
            && let Some((_, entry)) = peer.request.clone()
        {
            peer.last_heard = Some(now);
            self.propose(entry);
        }
    }

    /// Drops this node's state and requests admission, because it is no longer a member.
    pub(super) fn rejoin(&mut self) {
        if self.stage == Stage::Member {
            self.expelled = true;
        }
        self.rejoin_quietly();
    }

    pub(super) fn rejoin_quietly(&mut self) {
        self.stage = Stage::Asking;
        self.epoch = Epoch(0);
        self.voted = None;
        self.step_down();
        self.log.restart(Position::START);
        (self.pending, self.proposed) = (None, None);
        (self.commit, self.applied, self.stable, self.matched) = (0, 0, 0, 0);
        (self.round, self.covered) = (0, 0);
        self.vow_until = Time(0);
        self.act_at = self.clock.after(self.settings.patience / 4);
        self.dirty = true;
    }

    /// Restarts an interrupted snapshot transfer.
    pub(super) fn restart_snapshot(&mut self) {
        if matches!(self.stage, Stage::Installing | Stage::Following) && !self.is_admitted() {
            self.rejoin_quietly();
        }
    }

    /// Requests admission from all masters, and from the primary if it is known, since it need not be a master.
    pub(super) fn request_admission(&mut self) {
        let wait = self.settings.patience.saturating_add(self.settings.lease).saturating_mul(2);
        self.act_at = self.clock.after(wait);
        if self.stage != Stage::Asking {
            self.rejoin_quietly();
            self.act_at = self.clock.after(wait);
        }
        self.attempt = self.attempt.wrapping_add(1);
        // Every fourth attempt goes to all nodes: if all masters are out, another node is primary.
        let all = self.attempt.is_multiple_of(4);
        let asked = if all { self.peers.len() } else { usize::from(self.settings.masters) };
        for peer in self.peers.iter_mut().take(asked) {
            peer.notices |= notice::JOIN;
        }
        if let Some(primary) = self.primary {
            self.queue_notice(primary, notice::JOIN);
        }
        self.dirty = true;
    }

    pub(super) fn on_join(&mut self, from: NodeId, number: u32, entry: NodeEntry) {
        if self.role != Role::Primary || entry.id != from {
            return;
        }
        let Some(peer) = self.peers.get_mut(from.index()) else { return };
        // A process that held the place before the one admitted last stays out.
        if entry.life != peer.link_life || entry.life < peer.life {
            return;
        }
        let late = peer.member && peer.admitted.is_some_and(|n| number <= n);
        if late || (peer.join == Some(number) && peer.flow != Flow::Idle) {
            return;
        }
        peer.join = Some(number);
        peer.request = Some((number, Change::NodeUp(entry)));
        (peer.matched, peer.applied, peer.admit_at) = (0, 0, 0);
        (peer.alive, peer.stamp, peer.answer, peer.last_request) = (None, None, None, None);
        self.term.waiting -= usize::from(peer.deferred_answer.take().is_some()).min(self.term.waiting);
        peer.notices &= !notice::EXPELLED;
        peer.lost = peer.member;
        peer.flow = if peer.member { Flow::Idle } else { Flow::Begin };
        self.recheck_all();
        self.dirty = true;
    }

    /// At the primary: generates the next message of a snapshot.
    pub(super) fn next_snapshot_message(&mut self, to: NodeId, replica: &impl Replica) -> Option<Body> {
        let nodes = self.settings.nodes;
        // Even a node that starts over after its entry is in the log may become primary next, so it must have everything that
        // members lack.
        let kept = self.droppable(true).max(self.log.base().index);
        let from = if self.participates(to) { self.applied.min(kept) } else { self.applied };
        let base = self.log.position(from)?;
        let flow = self.peers.get(to.index())?.flow;
        let mut bits = [0; MEMBERS / 8];
        if let Flow::Members(first) = flow {
            for (i, peer) in self.peers.iter().skip(usize::from(first)).take(MEMBERS).enumerate() {
                if let Some(byte) = bits.get_mut(i / 8) {
                    *byte |= u8::from(peer.member) << (i % 8);
                }
            }
        }
        let applied = self.applied;
        let peer = self.peers.get_mut(to.index())?;
        match flow {
            Flow::Begin => {
                self.term.rounds = self.term.rounds.wrapping_add(1);
                (peer.round, peer.flow) = (self.term.rounds, Flow::Members(0));
                (peer.matched, peer.applied, peer.admit_at) = (0, 0, 0);
                (peer.base, peer.next) = (base.index, base.index.saturating_add(1));
                (peer.sent_commit, peer.sent_stable) = (0, 0);
                Some(Body::Begin { number: peer.join?, round: peer.round, base, covered: applied })
            }
            Flow::Members(first) => {
                let next = first.saturating_add(MEMBERS as u16);
                peer.flow = if next < nodes { Flow::Members(next) } else { Flow::Rows(0) };
                Some(Body::Members { first, bits })
            }
            Flow::Rows(cursor) => match replica.row(cursor) {
                Some((change, next)) => {
                    peer.flow = Flow::Rows(next);
                    Some(Body::Row { change })
                }
                None => {
                    peer.flow = Flow::Stream;
                    peer.admit_at = applied.max(1);
                    Some(Body::End)
                }
            },
            _ => None,
        }
    }

    pub(super) fn on_begin(
        &mut self,
        number: u32,
        round: u32,
        base: Position,
        covered: u64,
        replica: &mut impl Replica,
    ) {
        if self.stage == Stage::Member {
            // The primary sends snapshots only to non-members.
            return self.rejoin();
        }
        // An entry that admits this node, and that the primary lacks, is void if the primary has committed another in its place.
        let stale = |p: Pending| self.log.epoch_at(p.index).is_some_and(|epoch| epoch < base.epoch);
        let void = self.pending.is_some_and(|p| p.index <= base.index || stale(p));
        if self.is_admitted() && !void {
            // This node's own request arrived late. It keeps its log, which the primary continues, and answers as expected.
            self.round = round;
            return;
        }
        if number != self.attempt {
            return;
        }
        self.stage = Stage::Installing;
        self.round = round;
        replica.clear();
        self.log.restart(base);
        self.pending = None;
        (self.commit, self.applied, self.matched) = (base.index, base.index, base.index);
        (self.stable, self.covered) = (0, covered);
        self.postpone_joining();
    }

    /// Postpones the next request for admission, which is not needed while data arrives.
    fn postpone_joining(&mut self) {
        let wait = self.settings.patience.saturating_add(self.settings.lease).saturating_mul(2);
        self.act_at = self.clock.after(wait);
    }

    pub(super) fn on_members(&mut self, first: u16, bits: &[u8; MEMBERS / 8]) {
        if self.stage != Stage::Installing {
            return;
        }
        for (i, node) in (first..self.settings.nodes).take(MEMBERS).enumerate() {
            let member = bits.get(i / 8).is_some_and(|byte| byte >> (i % 8) & 1 == 1);
            self.set_member(NodeId::from_index(usize::from(node)), member);
        }
        self.postpone_joining();
    }

    pub(super) fn on_row(&mut self, change: &Change, replica: &mut impl Replica) {
        if self.stage != Stage::Installing {
            return;
        }
        if matches!(change, Change::PartAdded(_)) && replica.room() == 0 && !replica.contains(change) {
            return self.rejoin_quietly();
        }
        if let Change::NodeUp(entry) = change {
            self.record_life(entry);
        }
        replica.apply(change);
        self.postpone_joining();
    }

    pub(super) fn on_end(&mut self) {
        if self.stage == Stage::Installing {
            self.stage = Stage::Following;
            self.ack = Some(super::LogMatch::Matches);
            self.dirty = true;
            self.postpone_joining();
        }
    }
}
