//! Elections: which node is primary, and in which epoch.

use super::message::{Ballot, Body, Change, Entry, LAST_EPOCH, Message, Position};
use super::peer::{Pending, notice};
use super::{Agreement, Flaw, Replica, Role, Stage, Start, Term};
use crate::id::{Epoch, NodeId, Time};

impl Agreement<'_> {
    /// Returns how long this node waits before it campaigns. Candidates are staggered by index; learners wait one step longer than
    /// the last candidate.
    pub(super) fn own_patience(&self) -> u64 {
        let turn = self.me.index().min(usize::from(self.settings.voters));
        self.settings.patience.saturating_mul(1 + turn as u64)
    }

    /// Whether the node counts in quorums while it is a member.
    pub(super) fn is_voter(&self, node: NodeId) -> bool {
        node.index() < usize::from(self.settings.voters)
    }

    /// Whether this node grants votes.
    pub(super) fn may_vote(&self) -> bool {
        self.is_admitted() && (self.is_voter(self.me) || self.has_flaw(Flaw::LearnerVotes))
    }

    /// Whether an entry that admits this node belongs to an earlier life, because a snapshot contained it.
    pub(super) fn is_former(&self, index: u64) -> bool {
        index <= self.covered && !self.has_flaw(Flaw::FormerLife)
    }

    /// Whether this node remembers everything it has sent, votes included. A node that lost its state counts as remembering again
    /// once the entry that makes it a member is in its log; see the [module](super).
    pub(super) fn is_admitted(&self) -> bool {
        self.stage == Stage::Member
            || self.pending.is_some_and(|p| self.admits(p) && !self.is_former(p.index))
            || self.has_flaw(Flaw::AmnesiacVotes)
    }

    /// Whether the entry admits this process, rather than another one in the same place.
    fn admits(&self, entry: Pending) -> bool {
        entry.node == self.me && entry.joins && entry.life == self.settings.entry.life
    }

    pub(super) fn is_candidate(&self) -> bool {
        let campaigns = self.me.index() < usize::from(self.settings.masters) || self.regent;
        campaigns && self.is_voter(self.me) && self.may_vote() && self.participates(self.me)
    }

    /// Makes a primary that is not a master step down once a master has its whole log.
    pub(super) fn yield_leadership(&mut self) {
        let (masters, last) = (usize::from(self.settings.masters), self.log.last().index);
        if self.me.index() < masters || self.commit < self.term.floor {
            return;
        }
        if self.peers.iter().take(masters).any(|p| p.member && p.linked && p.matched == last) {
            self.step_down();
        }
    }

    /// Whether this node is under a vow not to vote.
    pub(super) fn is_vowed(&self) -> bool {
        if self.role == Role::Primary {
            return self.is_serving(self.clock);
        }
        if self.has_flaw(Flaw::BreaksVows) {
            return false;
        }
        match self.settings.lease {
            0 => self.primary.is_some_and(|p| self.is_linked(p)),
            _ => self.clock < self.vow_until,
        }
    }

    /// Moves to a newer epoch.
    pub(super) fn adopt(&mut self, epoch: Epoch) {
        if epoch <= self.epoch {
            return;
        }
        self.epoch = epoch;
        self.voted = None;
        self.step_down();
        self.begin_epoch();
        self.restart_snapshot();
    }

    /// Starts an epoch, knowing nothing of its primary yet: entries that matched another primary's log need not match the new one's.
    /// Within an epoch a match stays valid, even if this node stops following the primary and hears from it again.
    fn begin_epoch(&mut self) {
        self.round = 0;
        self.matched = self.commit;
    }

    /// Follows no primary until one is heard from.
    pub(super) fn step_down(&mut self) {
        if self.role == Role::Primary {
            for peer in self.peers.iter_mut() {
                peer.notices |= notice::HELLO;
            }
        }
        self.role = Role::Follower;
        self.regent = false;
        self.primary = None;
        self.own_request_sent = false;
        self.lease_until = Time(0);
        self.stamp = Time(0);
        (self.ack, self.alive_due) = (None, false);
        if self.stage == Stage::Member {
            self.act_at = self.act_at.max(self.clock.after(self.own_patience()));
        }
        self.dirty = true;
    }

    pub(super) fn dispatch(&mut self, from: NodeId, message: Message, replica: &mut impl Replica) {
        let Message { epoch, body } = message;
        match body {
            Body::Join { number, entry } => return self.on_join(from, number, entry),
            Body::Vote { ballot, last } => return self.on_vote(from, epoch, ballot, last),
            Body::Expelled if self.primary.is_none() && (self.since..self.epoch).contains(&epoch) => {
                return self.rejoin();
            }
            _ => {}
        }
        if epoch < self.epoch && !(self.has_flaw(Flaw::NoFencing) && matches!(body, Body::Append { .. })) {
            let answered = body.is_from_primary()
                || matches!(body, Body::Alive { .. } | Body::Request { .. } | Body::Hello { .. });
            if answered {
                self.queue_notice(from, notice::HELLO);
                self.refuse_stranger(from);
            }
            return;
        }
        if self.refuse_stranger(from) {
            return;
        }
        self.adopt(epoch);
        if body.is_from_primary() && !self.follow(from) {
            return;
        }
        match body {
            Body::Append { previous, commit, stable, entry } => {
                self.on_append(previous, commit, stable, entry, replica);
            }
            Body::Appended { round, matched, applied, log_match } => {
                self.on_appended(from, round, matched, applied, log_match);
            }
            Body::Voted { ballot, asked, granted } => self.on_voted(from, ballot, asked, granted),
            Body::Alive { sent, stamp } => self.on_alive(from, sent, stamp),
            Body::Grant { sent, stamp, readable } => self.on_grant(sent, stamp, readable),
            Body::Expelled => self.rejoin(),
            Body::Begin { number, round, base, covered } => {
                self.on_begin(number, round, base, covered, replica);
            }
            Body::Members { first, bits } => self.on_members(first, &bits),
            Body::Row { change } => self.on_row(&change, replica),
            Body::End => self.on_end(),
            Body::Request { number, change } => self.on_request(from, number, change),
            Body::Answer { number, accepted } => self.on_answer(number, accepted),
            Body::Hello { leads } => self.on_hello(from, leads),
            Body::Join { .. } | Body::Vote { .. } => {}
        }
    }

    fn on_hello(&mut self, from: NodeId, leads: bool) {
        if self.primary != Some(from) || self.role == Role::Primary {
            return;
        }
        if leads {
            self.ack.get_or_insert(super::LogMatch::Matches);
        } else {
            // The former primary no longer relies on vows.
            self.vow_until = Time(0);
            self.step_down();
        }
        self.dirty = true;
    }

    /// At the primary: whether the message comes from a non-member, or from a process other than the member; if so, tells the
    /// sender.
    fn refuse_stranger(&mut self, from: NodeId) -> bool {
        let Some(peer) = self.peers.get(from.index()) else { return false };
        if self.role != Role::Primary || (self.participates(from) && self.is_current_process(from, peer)) {
            return false;
        }
        let joins = peer.join.is_some();
        if !joins {
            self.queue_notice(from, notice::EXPELLED);
        }
        !joins
    }

    /// Accepts the sender as primary of this epoch; `false` if another node is.
    fn follow(&mut self, from: NodeId) -> bool {
        if self.role == Role::Primary {
            return false;
        }
        if self.primary != Some(from) {
            if self.primary.is_some() && !self.has_flaw(Flaw::NoFencing) {
                return false;
            }
            self.role = Role::Follower;
            self.primary = Some(from);
            self.new_primary = true;
            // It may be the primary that this node followed before, still waiting for an earlier answer.
            if matches!(self.stage, Stage::Following | Stage::Member) {
                self.ack = Some(super::LogMatch::Matches);
            }
            self.own_request_sent = false;
            self.alive_due = self.settings.lease > 0 && self.stage == Stage::Member;
            self.alive_at = self.clock;
            if self.stage == Stage::Asking && self.attempt > 0 {
                self.queue_notice(from, notice::JOIN);
            }
            self.dirty = true;
        }
        if self.stage == Stage::Member {
            self.act_at = self.clock.after(self.settings.lease.saturating_add(self.own_patience()));
        }
        true
    }

    /// Starts a ballot, because the primary is missing or an election has failed.
    pub(super) fn campaign(&mut self, ballot: Ballot) {
        self.act_at = self.clock.after(self.own_patience());
        self.primary = None;
        if self.epoch >= LAST_EPOCH {
            return;
        }
        self.role = Role::Candidate(ballot);
        if ballot == Ballot::Binding {
            self.epoch = Epoch(self.epoch.0.saturating_add(1));
            self.voted = Some(self.me);
            self.begin_epoch();
        }
        let all = self.has_flaw(Flaw::LearnerVotes);
        let asked = if all { self.peers.len() } else { usize::from(self.settings.voters) };
        for (i, peer) in self.peers.iter_mut().enumerate() {
            peer.granted = false;
            peer.notices |= if i < asked { notice::VOTE } else { 0 };
        }
        self.dirty = true;
        self.count_votes();
    }

    fn count_votes(&mut self) {
        let Role::Candidate(ballot) = self.role else { return };
        let ayes = |node, peer: &super::Peer| node == self.me || peer.granted;
        let (joint, own) = (self.is_quorum(ayes), self.withdrawable());
        if !joint && (own.is_none() || !self.is_quorum_of_old(ayes)) {
            return;
        }
        if ballot == Ballot::PreVote {
            return self.campaign(Ballot::Binding);
        }
        match own {
            // From now on this node's log ends in this epoch.
            Some(own) if joint => self.proposed = Some(Position { epoch: self.epoch, ..own }),
            Some(own) => self.truncate(own.index),
            None => {}
        }
        self.become_leader();
    }

    /// Returns the pending membership change if it can be withdrawn: this node has proposed it, has not committed it, and has
    /// followed no later primary that might have; see the [module](super).
    fn withdrawable(&self) -> Option<Position> {
        let own = self.proposed.filter(|p| self.pending.is_some_and(|e| e.index == p.index))?;
        let untouched = self.log.last().epoch == own.epoch && self.commit < own.index;
        (untouched || self.has_flaw(Flaw::Withdraws)).then_some(own)
    }

    fn on_vote(&mut self, from: NodeId, epoch: Epoch, ballot: Ballot, last: Position) {
        // A candidate is no longer primary.
        if self.primary == Some(from) && epoch >= self.epoch {
            self.primary = None;
            self.lease_until = Time(0);
            self.own_request_sent = false;
        }
        self.refuse_stranger(from);
        let vowed = self.is_vowed();
        if ballot == Ballot::Binding && !vowed && self.may_vote() {
            self.adopt(epoch);
        }
        let own = self.log.last();
        let fresh =
            (last.epoch, last.index) >= (own.epoch, own.index) || self.has_flaw(Flaw::VotesForStaleLog);
        let free = match ballot {
            Ballot::PreVote => epoch >= self.epoch,
            Ballot::Binding => {
                let unbound = self.voted.is_none_or(|v| v == from) || self.has_flaw(Flaw::VotesTwice);
                epoch == self.epoch && self.role != Role::Primary && unbound
            }
        };
        let granted = self.may_vote() && !vowed && fresh && free;
        let can_lead = self.settings.reach == super::Reach::All;
        if self.may_vote() && !vowed && free && !fresh && can_lead && !self.is_candidate() {
            // Perhaps no master has everything that this node has, so it campaigns itself, and gives way to the first master that
            // has it too.
            self.regent = true;
            self.act_at = self.clock.after(self.own_patience());
        }
        if granted && ballot == Ballot::Binding {
            self.voted = Some(from);
            self.role = Role::Follower;
            self.act_at = self.act_at.max(self.clock.after(self.own_patience()));
        }
        if let Some(peer) = self.peers.get_mut(from.index()) {
            peer.voted = Some((epoch, ballot, granted));
            self.dirty = true;
        }
    }

    fn on_voted(&mut self, from: NodeId, ballot: Ballot, asked: Epoch, granted: bool) {
        if self.role != Role::Candidate(ballot) || asked != self.epoch || !granted {
            return;
        }
        if let Some(peer) = self.peers.get_mut(from.index()) {
            peer.granted = true;
        }
        self.count_votes();
    }

    fn become_leader(&mut self) {
        let last = self.log.last();
        let next = last.index.saturating_add(1);
        let floor = last.index.max(1);
        if last.index == 0 {
            self.log.push(Entry { epoch: self.epoch, change: Change::Nothing }, 0);
        } else {
            // The last entry becomes one of this epoch, whose quorum commits it and everything before it. So a term takes no room
            // in the log, and a node with more entries, of an earlier epoch, recognises that they are void.
            self.log.renew(Position { index: last.index, epoch: self.epoch });
        }
        self.role = Role::Primary;
        self.primary = Some(self.me);
        self.new_primary = true;
        // A founder that begins alone has no predecessor that could have granted leases.
        let founds = self.settings.start == Start::Alone && last.index == 0;
        for peer in self.peers.iter_mut() {
            peer.start_term(self.clock, next);
            peer.last_heard = peer.last_heard.filter(|_| peer.member || !founds);
        }
        self.term = Term {
            floor,
            since: self.clock,
            additions: self.count_additions(),
            check_commit: true,
            check_stable: true,
            check_members: true,
            check_at: self.clock,
            ..Term::default()
        };
        self.update_serving_time();
        self.submit_own_request();
        self.dirty = true;
    }
}
