//! Leases: which nodes may read the tables, which must not vote, and which have failed.
//!
//! A follower requests a lease with [`Alive`](Body::Alive) every quarter of a lease. Each clock runs at a rate within 1 ± 1/16 of
//! true time, so a span of one clock lasts between 16/17 and 16/15 of that span in true time.
//!
//! | what ends | after, by the clock of | at the latest or earliest, in true time |
//! |---|---|---|
//! | a follower reads | 15/16 lease from sending its request, its own | at most 15/16 · 16/15 = 1 lease |
//! | the primary assumes that it can read | 9/8 lease from receiving the request, the primary | at least 9/8 · 16/17 = 1.058 leases |
//! | a follower keeps its vow not to vote | 1 lease from the grant's arrival, its own | at least 16/17 = 0.941 leases |
//! | the primary relies on the vow | 7/8 lease from making the grant, its own | at most 7/8 · 16/15 = 0.933 leases |
//!
//! In the first pair of rows the follower's span ends before the primary's; in the second pair the primary's ends first.
//!
//! The primary declares a member down from which nothing has arrived, requests or data, for as long as it assumes that it can read. It
//! probes a member from which something arrives, but no requests: the member may have taken the primary for missing, and then follows
//! none until it hears from one.
//!
//! # Suspended nodes
//! A stopped process, or a machine that sleeps, is a node whose time jumps. When it resumes, its leases have expired by its own
//! clock, so it shows no stale data and, as primary, decides nothing before a quorum has answered it again; its earlier decisions
//! count if a quorum has them, whatever the time. The other nodes have declared it down, or have another primary, and readmit it. A
//! node that was suspended for more than half a lease allows the others another lease, and a candidate another patience, before it
//! treats their silence as failure. So a cluster that was suspended as a whole continues as before if its nodes resume within a
//! lease of each other.
//!
//! All this requires clocks that keep running while a node is suspended. If the clock stops with the node (a virtual machine halted
//! without notice, a monotonic clock that excludes the machine's sleep), the node shows stale data for up to a lease. Committed
//! entries are still safe, since committing needs no clock.

use super::message::Body;
use super::peer::Flow;
use super::{Agreement, Flaw, Role, Stage};
use crate::id::{NodeId, Time};

/// How long a primary assumes that another node may read.
pub(super) const fn lease_of_others(lease: u64) -> u64 {
    lease.saturating_add(lease / 8)
}

/// How long a follower may read.
const fn own_lease(lease: u64) -> u64 {
    lease - lease / 16
}

/// How long a primary relies on a vow, in sixteenths of a lease.
const VOW: u64 = 14;

impl Agreement<'_> {
    /// Whether the tables of this node may be read: they lack no change that was answered, or that any other node can show.
    ///
    /// Returns `false` for a moment after each change, until all nodes have it.
    pub fn is_current(&self, now: Time) -> bool {
        let now = now.max(self.clock);
        let settled = self.applied <= self.stable || self.has_flaw(Flaw::ReadsUnstable);
        if self.stage != Stage::Member || !settled {
            return false;
        }
        if self.has_flaw(Flaw::ReadsWithoutLease) {
            return true;
        }
        match (self.role, self.settings.lease) {
            (Role::Primary, _) => self.is_serving(now) && self.stable >= self.term.floor,
            (_, 0) => self.primary.is_some_and(|p| self.is_linked(p)),
            _ => self.primary.is_some() && now < self.lease_until,
        }
    }

    /// At the primary: returns its term, once everything its predecessors decided is settled here.
    pub(crate) fn term(&self) -> Option<u32> {
        (self.role == Role::Primary && self.stable >= self.term.floor).then_some(self.epoch.0)
    }

    /// At the primary: whether a quorum has vowed to vote for nobody else.
    pub(super) fn is_serving(&self, now: Time) -> bool {
        self.role == Role::Primary && now < self.term.serves_until
    }

    /// Advances the time. If it has jumped, this node was suspended: that it heard nothing meanwhile proves nothing about the other
    /// nodes, which may have been suspended too and resume a moment later.
    pub(super) fn advance_clock(&mut self, now: Time) {
        let slept = now.since(self.clock);
        self.clock = now.max(self.clock);
        let lease = self.settings.lease;
        if lease == 0 || slept <= lease / 2 {
            return;
        }
        if self.role == Role::Primary {
            // This node serves again once a quorum has answered; until then it decides nothing.
            self.term.since = self.clock;
            for last_heard in self.peers.iter_mut().filter_map(|peer| peer.last_heard.as_mut()) {
                *last_heard = self.clock;
            }
        } else if self.stage == Stage::Member && self.primary.is_some() {
            // Allows the primary another patience to be heard from before this node acts.
            self.act_at = self.act_at.max(self.clock.after(self.own_patience()));
        }
    }

    /// At the primary: determines how long it may serve, in sixteenths of a lease.
    pub(super) fn update_serving_time(&mut self) {
        if self.role != Role::Primary {
            return;
        }
        let (me, now, lease) = (self.me, self.clock, self.settings.lease);
        if lease == 0 {
            let holds = self.is_quorum(|node, peer| node == me || peer.linked);
            self.term.serves_until = Time(if holds { u64::MAX } else { 0 });
            if !holds && !self.is_last() {
                self.step_down();
            }
            return;
        }
        let step = lease / 16;
        let until = |steps: u64| {
            let vowed = |node: NodeId, peer: &super::Peer| {
                let lasts = |stamp: Time| stamp.after(VOW * step) >= now.after(steps * step);
                node == me || (peer.linked && peer.stamp.is_some_and(lasts))
            };
            self.is_quorum(vowed).then(|| now.after(steps * step))
        };
        self.term.serves_until = (1..=VOW).rev().find_map(until).unwrap_or(Time(0));
        if self.is_serving(now) {
            self.term.since = self.term.serves_until;
        }
    }

    /// At the primary: whether it is the only member and is admitting another. If the other is half of both memberships, an
    /// election may need it before it may vote, and only this primary can give it the entry that lets it vote.
    fn is_last(&self) -> bool {
        let others = self.peers.iter().enumerate().any(|(i, p)| p.member && i != self.me.index());
        !others && self.is_member(self.me) && self.pending.is_some_and(|p| p.joins)
    }

    /// At the primary: notes that a member has sent something, of whatever kind. It lives, even if its requests for a lease are held up
    /// behind its data. This only prolongs what the primary assumes that the member may read.
    pub(crate) fn heard_from(&mut self, node: NodeId, now: Time) {
        let now = now.max(self.clock);
        let is_primary = self.role == Role::Primary;
        if let Some(peer) = self.peers.get_mut(node.index()).filter(|peer| is_primary && peer.member) {
            peer.last_heard = Some(now);
        }
    }

    pub(super) fn on_alive(&mut self, from: NodeId, sent: Time, stamp: Time) {
        if self.role != Role::Primary {
            return;
        }
        let now = self.clock;
        let Some(peer) = self.peers.get_mut(from.index()) else { return };
        if !peer.member {
            return;
        }
        peer.last_heard = Some(now);
        peer.alive = Some(sent);
        if stamp > Time(0) && stamp <= now {
            peer.stamp = Some(stamp);
        }
        self.dirty = true;
        if self.term.serves_until < now.after(self.settings.lease / 4) {
            self.update_serving_time();
        }
    }

    /// At the primary: probes members that have long requested no lease. One that takes this primary for missing no longer follows it
    /// until it hears from it; and since whatever else it sends shows that it lives, it is not declared down either.
    fn probe_silent(&mut self) {
        let (now, lease) = (self.clock, self.settings.lease);
        if !self.is_serving(now) {
            return;
        }
        let requests = |peer: &super::Peer| peer.stamp.is_some_and(|stamp| now.since(stamp) <= lease);
        for peer in self.peers.iter_mut().filter(|p| p.member && p.flow == Flow::Stream && !requests(p)) {
            peer.flow = Flow::Probe;
            self.dirty = true;
        }
    }

    /// Builds the answer to a node that requests a lease.
    pub(super) fn grant(&self, node: NodeId, sent: Time) -> Body {
        let covered = self.term.floor.max(self.stable);
        let up_to_date = self.peers.get(node.index()).is_some_and(|p| p.member && p.applied >= covered);
        let established = self.is_serving(self.clock) && self.commit >= self.term.floor;
        Body::Grant { sent, stamp: self.clock, readable: up_to_date && established }
    }

    pub(super) fn on_grant(&mut self, sent: Time, stamp: Time, readable: bool) {
        let lease = self.settings.lease;
        self.vow_until = self.vow_until.max(self.clock.after(lease));
        self.stamp = self.stamp.max(stamp);
        if readable && sent <= self.clock && self.stage == Stage::Member {
            self.lease_until = self.lease_until.max(sent.after(own_lease(lease)));
        }
    }

    pub(super) fn run_timers(&mut self) {
        let (now, lease) = (self.clock, self.settings.lease);
        if self.role == Role::Primary {
            if lease > 0 && now >= self.term.check_at {
                self.term.check_at = now.after((lease / 8).max(1));
                self.recheck_all();
                self.probe_silent();
                if !self.is_serving(now)
                    && !self.is_last()
                    && now > self.term.since.after(lease.saturating_mul(2))
                {
                    self.step_down();
                }
            }
            return;
        }
        if lease > 0 && self.stage == Stage::Member && self.primary.is_some() && now >= self.alive_at {
            self.alive_at = now.after((lease / 4).max(1));
            self.alive_due = true;
            self.dirty = true;
        }
        if now < self.act_at {
            return;
        }
        if self.stage != Stage::Member && !self.is_admitted() {
            self.request_admission();
        } else if self.is_candidate() {
            if self.is_vowed() {
                self.act_at = now.after(self.own_patience());
            } else {
                self.campaign(super::Ballot::PreVote);
            }
        } else {
            if !self.is_vowed() {
                self.probe_for_primary();
                // The masters have had their turn. If they are all out, one of the other nodes must stand for election.
                self.regent = self.settings.reach == super::Reach::All && self.is_voter(self.me);
            }
            self.act_at = now.after(self.own_patience().saturating_mul(2));
        }
    }

    /// Sends the masters a hello: a primary answers a node that is no longer a member and does not know it.
    fn probe_for_primary(&mut self) {
        if self.primary.is_some() {
            self.step_down();
        }
        for peer in self.peers.iter_mut().take(usize::from(self.settings.masters)) {
            peer.notices |= super::notice::HELLO;
        }
        self.dirty = true;
    }

    /// At the primary: whether a member must be declared down.
    pub(super) fn has_failed(&self, node: usize, peer: &super::Peer) -> bool {
        let lease = self.settings.lease;
        let is_there = peer.linked && self.is_current_process(NodeId::from_index(node), peer);
        let is_late = |last_heard| lease > 0 && self.clock.since(last_heard) > lease_of_others(lease);
        peer.lost || !is_there || peer.last_heard.is_some_and(is_late)
    }
}
