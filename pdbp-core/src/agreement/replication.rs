//! Replication: the primary sends its log to all nodes; a quorum commits it, and all nodes apply it.

use super::message::{Body, Change, Entry, LogMatch, Position};
use super::peer::{Flow, Pending, notice};
use super::{Agreement, Flaw, Replica, Role, Stage};
use crate::id::NodeId;
use crate::tables::NodeEntry;

impl Agreement<'_> {
    /// Returns the membership change that an entry would be if it were appended now.
    fn membership_change(&self, index: u64, change: &Change) -> Option<Pending> {
        let (node, joins, life) = match change {
            Change::NodeUp(entry) => (entry.id, true, entry.life),
            Change::NodeDown(node) => (*node, false, 0),
            _ => return None,
        };
        let known = node.index() < usize::from(self.settings.nodes);
        (known && self.is_member(node) != joins).then_some(Pending { index, node, joins, life })
    }

    /// Appends an entry; `None` if the log has no room, or another membership change is pending.
    pub(super) fn push(&mut self, entry: Entry, droppable: u64) -> Option<u64> {
        let index = self.log.last().index.checked_add(1)?;
        let pending = self.membership_change(index, &entry.change);
        if pending.is_some() && self.pending.is_some() {
            return None;
        }
        self.log.push(entry, droppable)?;
        if let Some(Pending { node, joins, .. }) = pending {
            if let Some(peer) = self.peers.get_mut(node.index()).filter(|_| joins) {
                // The process being admitted is not the one that terminated.
                peer.ended = false;
            }
            self.pending = pending;
            if self.role == Role::Primary {
                self.update_serving_time();
            }
        }
        Some(index)
    }

    /// At the primary: appends an entry.
    pub(super) fn propose(&mut self, change: Change) -> Option<u64> {
        let adds = matches!(change, Change::PartAdded(_));
        // Entries that only failed members lack may be dropped to make room, so that these members can be declared down.
        let repairs = matches!(change, Change::NodeDown(_)) || !self.is_member(self.me);
        let index = self.push(Entry { epoch: self.epoch, change }, self.droppable(!repairs))?;
        if self.pending.is_some_and(|p| p.index == index) {
            self.proposed = Some(Position { index, epoch: self.epoch });
        }
        self.term.additions += usize::from(adds);
        self.term.check_commit |= self.term.commit_next == 0;
        self.dirty = true;
        Some(index)
    }

    /// Returns the index up to which entries may leave the log: those applied here that no member needs; if `strict`, not even a
    /// failed one. A member may be needed for the quorum that declares it, or another member, down, and only the log can bring it
    /// up to date.
    pub(super) fn droppable(&self, strict: bool) -> u64 {
        let needs = |(i, p): (usize, &super::Peer)| {
            let counts = p.member && !p.lost && !p.ended && (strict || !self.has_failed(i, p));
            (counts && i != self.me.index()).then_some(p.matched)
        };
        self.peers.iter().enumerate().filter_map(needs).min().unwrap_or(u64::MAX).min(self.applied)
    }

    pub(super) fn on_append(
        &mut self,
        previous: Position,
        commit: u64,
        stable: u64,
        entry: Option<Entry>,
        replica: &mut impl Replica,
    ) {
        if matches!(self.stage, Stage::Asking | Stage::Installing) {
            return;
        }
        self.dirty = true;
        let fits = previous.index <= self.commit
            || self.log.position(previous.index).is_some_and(|p| p.epoch == previous.epoch);
        if !fits {
            self.ack = Some(LogMatch::Differs);
            return;
        }
        self.learn_commit(commit.min(previous.index), replica);
        self.log.renew(previous);
        let next = previous.index.saturating_add(1);
        if next > self.commit && self.log.epoch_at(next).is_some_and(|epoch| epoch < previous.epoch) {
            // A primary became leader without these entries.
            self.truncate(next);
        }
        let mut matched = previous.index;
        if let Some(entry) = entry {
            let index = previous.index.saturating_add(1);
            if index > self.commit && self.log.epoch_at(index) != Some(entry.epoch) {
                self.truncate(index);
                if self.push(entry, self.applied) != Some(index) {
                    return;
                }
            } else {
                self.log.renew(Position { index, epoch: entry.epoch });
            }
            matched = index;
        }
        self.learn_commit(commit.min(matched), replica);
        self.matched =
            matched.max(self.commit).max(if self.ack == Some(LogMatch::Matches) { self.matched } else { 0 });
        self.stable = self.stable.max(stable);
        self.ack = Some(LogMatch::Matches);
    }

    /// Removes the entries from `index` on.
    pub(super) fn truncate(&mut self, index: u64) {
        self.log.truncate(index);
        self.matched = self.matched.min(self.log.last().index);
        if self.pending.is_some_and(|p| p.index >= index) {
            self.pending = None;
        }
    }

    fn learn_commit(&mut self, commit: u64, replica: &mut impl Replica) {
        self.commit = self.commit.max(commit.min(self.log.last().index));
        self.apply_committed(replica);
    }

    /// Builds a follower's report about its log.
    pub(super) fn report(&self, log_match: LogMatch) -> Body {
        let matched =
            if log_match == LogMatch::Matches { self.matched.max(self.commit) } else { self.commit };
        Body::Appended { round: self.round, matched, applied: self.applied, log_match }
    }

    pub(super) fn on_appended(
        &mut self,
        from: NodeId,
        round: u32,
        matched: u64,
        applied: u64,
        log_match: LogMatch,
    ) {
        let (base, last) = (self.log.base().index, self.log.last().index);
        if self.role != Role::Primary || matched > last {
            return;
        }
        let (commit, votes, term) = (self.commit, self.is_voter(from), &mut self.term);
        let Some(peer) = self.peers.get_mut(from.index()).filter(|p| p.round == round) else { return };
        match log_match {
            LogMatch::Matches if peer.flow == Flow::Probing => {
                (peer.flow, peer.next) = (Flow::Stream, matched.saturating_add(1));
            }
            // A match up to this index may have been reported meanwhile, in answer to something else.
            LogMatch::Differs if matched.max(peer.matched) >= base => {
                (peer.flow, peer.next) = (Flow::Stream, matched.max(peer.matched).saturating_add(1));
            }
            // The follower may have entries that it does not know to be committed: search backwards for the point where the two
            // logs agree.
            LogMatch::Differs if peer.flow == Flow::Probing && peer.next > base.saturating_add(1) => {
                (peer.flow, peer.next) = (Flow::Probe, peer.next.min(last.saturating_add(1)) - 1);
                self.dirty = true;
                return;
            }
            LogMatch::Differs => return self.restore(from),
            LogMatch::Matches => {}
        }
        let applied = applied.min(commit).max(peer.applied);
        let matched = matched.max(peer.matched);
        if peer.matched < term.commit_next && matched >= term.commit_next {
            // A learner may be awaited too: it must have the entry that admits it.
            term.ayes += usize::from(votes);
            term.check_commit |= !votes || term.ayes * 2 >= term.voters / 2 || term.voters < 8;
        }
        let Some(peer) = self.peers.get_mut(from.index()) else { return };
        if peer.applied < term.stable_next && applied >= term.stable_next {
            term.behind = term.behind.saturating_sub(1);
            term.check_stable |= term.behind == 0;
        }
        (peer.matched, peer.applied) = (matched, applied);
        let log_blocked = core::mem::take(&mut term.log_blocked);
        term.check_members |= (peer.join.is_some() && applied >= peer.admit_at) || log_blocked;
        term.check_requests |= last > commit || log_blocked;
        self.dirty = true;
    }

    /// Makes a node restart from a snapshot because it needs entries that have left the log.
    pub(super) fn restore(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(node.index()) else { return };
        if peer.member {
            peer.lost = true;
            peer.flow = Flow::Probe;
            self.recheck_all();
        } else {
            peer.flow = if peer.join.is_some() { Flow::Begin } else { Flow::Idle };
        }
        self.dirty = true;
    }

    /// Whether a quorum has the entry, and so has every master that has not failed: a successor must have everything that is
    /// committed, or nobody could be elected. A node that the entry admits must have it too, unless it has failed: without the
    /// entry it cannot vote, and would count as one failure from the start. Where a single member decides alone once all others
    /// have terminated, all other members must have such an entry first: if that member did not know who was admitted, the two
    /// would decide against each other.
    fn is_replicated(&self, index: u64) -> bool {
        let joins = self.pending.filter(|p| p.joins);
        let admits = joins.map_or(u64::MAX, |p| p.index) <= index;
        let all = admits && self.excludes_ended();
        let needed = if all { self.peers.len() } else { usize::from(self.settings.masters) };
        let needed = self.peers.iter().enumerate().take(needed);
        let lacks = |(i, p): (usize, &super::Peer)| {
            i != self.me.index() && p.member && p.matched < index && !self.has_failed(i, p)
        };
        let joins = joins.filter(|p| admits && p.node != self.me);
        let waits = joins.and_then(|p| Some((p, self.peers.get(p.node.index())?)));
        let is_there = |p: Pending, peer: &super::Peer| !self.has_failed(p.node.index(), peer);
        if waits.is_some_and(|(p, peer)| peer.matched < p.index && is_there(p, peer)) {
            return false;
        }
        self.is_quorum(|node, peer| node == self.me || peer.matched >= index)
            && (!needed.into_iter().any(lacks) || self.has_flaw(Flaw::MinorityCommits))
    }

    pub(super) fn try_commit(&mut self) {
        let last = self.log.last();
        self.term.commit_next = 0;
        if last.index <= self.commit {
            return;
        }
        if last.epoch == self.epoch && self.is_replicated(last.index) {
            self.commit = last.index;
            self.term.check_stable = true;
            self.dirty = true;
            return;
        }
        // Not all of it can be committed yet: find the newest entry that a quorum has.
        let mut least = self.commit;
        for index in (self.commit.saturating_add(1)..last.index).rev() {
            let own = self.log.epoch_at(index) == Some(self.epoch);
            if !own {
                break;
            }
            if self.is_replicated(index) {
                least = index;
                break;
            }
        }
        if least > self.commit {
            self.commit = least;
            self.term.check_stable = true;
            self.dirty = true;
        }
        // The next index to count is the first uncommitted one that would suffice.
        self.term.commit_next = self.commit.saturating_add(1).max(self.term.floor);
        let commit_next = self.term.commit_next;
        let voters = self.peers.iter().take(usize::from(self.settings.voters));
        self.term.ayes = voters.clone().filter(|p| p.matched >= commit_next).count();
        self.term.voters = voters.filter(|p| p.member && !p.ended).count();
    }

    pub(super) fn apply_committed(&mut self, replica: &mut impl Replica) {
        if self.applied >= self.commit {
            return;
        }
        while self.applied < self.commit {
            let index = self.applied + 1;
            let Some(Entry { change, .. }) = self.log.get(index).cloned() else { break };
            let adds = matches!(change, Change::PartAdded(_));
            if adds && self.stage == Stage::Following && replica.room() == 0 && !replica.contains(&change) {
                // A row added after the snapshot is taking the room.
                return self.rejoin_quietly();
            }
            self.applied = index;
            if self.role == Role::Primary && adds {
                self.term.additions = self.term.additions.saturating_sub(1);
            }
            replica.apply(&change);
            if self.pending.is_some_and(|p| p.index <= index) {
                self.pending = None;
            }
            match change {
                Change::NodeUp(entry) => self.on_node_up(&entry, index),
                Change::NodeDown(node)
                    if node == self.me && self.stage == Stage::Member && self.role != Role::Primary =>
                {
                    return self.rejoin();
                }
                Change::NodeDown(node) => self.on_node_down(node),
                _ => {}
            }
        }
        self.ack.get_or_insert(LogMatch::Matches);
        self.dirty = true;
        if self.role == Role::Primary {
            self.term.check_stable = true;
            self.term.check_requests = true;
            self.term.check_members = true;
            self.term.check_commit |= self.log.last().index > self.commit;
        }
    }

    fn on_node_up(&mut self, entry: &NodeEntry, index: u64) {
        let (node, me) = (entry.id, self.me);
        if node == me && (self.is_former(index) || entry.life != self.settings.entry.life) {
            return;
        }
        self.record_unlinked(node, true);
        self.record_life(entry);
        if let Some(peer) = self.peers.get_mut(node.index())
            && !peer.member
        {
            peer.member = true;
            peer.notices |= notice::UP;
            self.news = true;
            if peer.join.is_some() {
                peer.request = None;
            }
            peer.admitted = peer.join.take();
            peer.lost = false;
            if self.role == Role::Primary {
                peer.last_heard = Some(self.clock);
                self.update_serving_time();
                if node == me {
                    self.submit_own_request();
                }
            }
        }
        if node == me && self.stage != Stage::Member {
            (self.stage, self.since) = (Stage::Member, self.epoch);
            self.alive_due = self.settings.lease > 0;
            self.act_at = self.clock.after(self.settings.lease.saturating_add(self.own_patience()));
        }
    }

    /// Records which process holds a node's place, according to a row of the tables.
    pub(super) fn record_life(&mut self, entry: &NodeEntry) {
        if let Some(peer) = self.peers.get_mut(entry.id.index()).filter(|_| entry.id != self.me) {
            peer.life = entry.life;
        }
    }

    fn on_node_down(&mut self, node: NodeId) {
        self.record_unlinked(node, false);
        let Some(peer) = self.peers.get_mut(node.index()) else { return };
        if !peer.member {
            return;
        }
        (peer.member, peer.ended, peer.down_at) = (false, false, self.applied);
        peer.notices = (peer.notices | notice::DOWN) & !notice::UP;
        self.news = true;
        let terminated = matches!(peer.request, Some((_, ref c)) if !matches!(c, Change::NodeUp(_)));
        if terminated || peer.join.is_none() {
            peer.request = None;
        }
        (peer.deferred_answer, peer.answer, peer.lost) = (None, None, false);
        peer.flow = if peer.join.is_some() { Flow::Begin } else { Flow::Idle };
        if self.role == Role::Primary {
            self.update_serving_time();
            self.term.check_members = true;
        }
    }

    /// At the primary: whether, as far as this node knows, the other node may be able to read its own tables.
    fn may_read(&self, node: usize, peer: &super::Peer) -> bool {
        if node == self.me.index() {
            return false;
        }
        let lease = self.settings.lease;
        let is_leased =
            |last_heard| lease > 0 && self.clock.since(last_heard) <= super::lease::lease_of_others(lease);
        let leased = peer.last_heard.is_some_and(is_leased);
        peer.member || (leased && !peer.terminated)
    }

    /// At the primary: finds the index up to which all nodes that may read have applied the log, and answers the requests that this
    /// settles.
    pub(super) fn advance_stable(&mut self) {
        let (floor, own) = (self.term.floor, self.applied);
        let mut least = own;
        let mut behind = 0;
        for (i, peer) in self.peers.iter().enumerate() {
            if self.may_read(i, peer) {
                least = least.min(peer.applied);
                behind += usize::from(peer.applied < own);
            }
        }
        (self.term.stable_next, self.term.behind) = (own, behind);
        if least >= floor && least > self.stable {
            self.stable = least;
            self.dirty = true;
            self.term.check_requests = true;
        }
        self.answer_stable();
    }

    fn answer_stable(&mut self) {
        let early = self.has_flaw(Flaw::AnswersEarly);
        let stable = if early { self.commit } else { self.stable };
        if self.term.waiting == 0 || (stable < self.term.floor && !early) {
            return;
        }
        let mut own = None;
        for (i, peer) in self.peers.iter_mut().enumerate() {
            if let Some((number, _)) = peer.deferred_answer.take_if(|(_, index)| *index <= stable) {
                self.term.waiting = self.term.waiting.saturating_sub(1);
                self.dirty = true;
                match i == self.me.index() {
                    true => own = Some(number),
                    false => peer.answer = Some((number, true)),
                }
            }
        }
        if let Some(number) = own {
            self.on_answer(number, true);
        }
    }

    /// Records the answer to this node's request, for the event.
    pub(super) fn on_answer(&mut self, number: u32, accepted: bool) {
        if self.own_request.take_if(|(n, _)| *n == number).is_some() {
            self.answered = Some((number, accepted));
        }
    }
}
