//! A term as primary: its state, and the work that becomes possible.

use super::{Agreement, Replica, Role, Stage};
use crate::id::Time;

/// State of a primary's term.
#[derive(Clone, Debug, Default)]
pub(super) struct Term {
    /// The last entry when it became leader.
    pub(super) floor: u64,
    /// A quorum has been missing since then, at the latest.
    pub(super) since: Time,
    /// A quorum has vowed to vote for nobody else until then, by this node's clock.
    pub(super) serves_until: Time,
    pub(super) check_at: Time,
    /// Voters that have the entry `sought`, the next to be committed.
    pub(super) sought: u64,
    pub(super) ayes: usize,
    /// Number of voting members when that was counted, less those that have terminated.
    pub(super) voters: usize,
    /// Replicas that have not applied `settling`, the next to become stable.
    pub(super) settling: u64,
    pub(super) behind: usize,
    /// Parts to be added by log entries not applied yet.
    pub(super) adding: usize,
    pub(super) rounds: u32,
    /// Something waits for room in the log, or for members to have what a joining node starts from.
    pub(super) cramped: bool,
    /// Number of requests that wait for an answer.
    pub(super) waiting: usize,
    /// What may have become possible.
    pub(super) look_commit: bool,
    pub(super) look_stable: bool,
    pub(super) look_members: bool,
    pub(super) look_requests: bool,
}

impl Agreement<'_> {
    /// Does what has become possible.
    pub(super) fn advance(&mut self, replica: &mut impl Replica) {
        // Each round builds on the one before; in a cluster of one node a request is committed, applied and answered in one call.
        for _ in 0..4 {
            if self.role == Role::Primary && core::mem::take(&mut self.term.look_commit) {
                self.try_commit();
                self.give_way();
            }
            self.apply_committed(replica);
            if self.role != Role::Primary {
                return;
            }
            if core::mem::take(&mut self.term.look_stable) {
                self.settle();
            }
            if core::mem::take(&mut self.term.look_members) {
                self.propose_members();
            }
            if core::mem::take(&mut self.term.look_requests) {
                self.propose_requests(replica);
            }
            if !self.is_looking() {
                return;
            }
        }
    }

    /// At the primary: a node may have failed.
    pub(super) fn look_at_all(&mut self) {
        self.term.look_members = true;
        self.term.look_stable = true;
        self.term.look_commit = true;
        self.look_at_quorum();
    }

    fn is_looking(&self) -> bool {
        let Term { look_commit, look_stable, look_members, look_requests, .. } = self.term;
        self.role == Role::Primary && (look_commit || look_stable || look_members || look_requests)
    }

    pub(super) fn next_call(&self) -> Option<Time> {
        if self.is_looking() {
            return Some(self.clock);
        }
        let leases = self.settings.lease > 0;
        if self.role == Role::Primary {
            return leases.then_some(self.term.check_at);
        }
        let idle = !leases && self.stage == Stage::Member && self.is_vowed();
        let act = (!idle).then_some(self.act_at);
        let alive =
            (leases && self.stage == Stage::Member && self.primary.is_some()).then_some(self.alive_at);
        [act, alive].into_iter().flatten().min()
    }
}
