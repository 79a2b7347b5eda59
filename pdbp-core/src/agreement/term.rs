//! A term as primary: its state, and the work that has become possible.

use super::{Agreement, Replica, Role, Stage};
use crate::id::Time;

/// State of a primary's term.
#[derive(Clone, Debug, Default)]
pub(super) struct Term {
    /// The last entry at the time it became leader.
    pub(super) floor: u64,
    /// The time since when, at the latest, a quorum has been missing.
    pub(super) since: Time,
    /// The time until which a quorum has vowed to vote for nobody else, by this node's clock.
    pub(super) serves_until: Time,
    pub(super) check_at: Time,
    /// Number of voters (`ayes`) that have the entry `commit_next`, the next to be committed.
    pub(super) commit_next: u64,
    pub(super) ayes: usize,
    /// Number of voting members when `ayes` was counted, not including those that have terminated.
    pub(super) voters: usize,
    /// Number of replicas (`behind`) that have not applied `stable_next`, the next index to become stable.
    pub(super) stable_next: u64,
    pub(super) behind: usize,
    /// Number of parts that log entries not applied yet will add.
    pub(super) additions: usize,
    pub(super) rounds: u32,
    /// Whether something waits for room in the log, or for members to have the entries that a joining node starts from.
    pub(super) log_blocked: bool,
    /// Number of requests waiting for an answer.
    pub(super) waiting: usize,
    /// Which kinds of work may have become possible.
    pub(super) check_commit: bool,
    pub(super) check_stable: bool,
    pub(super) check_members: bool,
    pub(super) check_requests: bool,
}

impl Agreement<'_> {
    /// Does the work that has become possible.
    pub(super) fn advance(&mut self, replica: &mut impl Replica) {
        // Each round builds on the one before. In a cluster of one node, a request is committed, applied and answered in one call.
        for _ in 0..4 {
            if self.role == Role::Primary && core::mem::take(&mut self.term.check_commit) {
                self.try_commit();
                self.yield_leadership();
            }
            self.apply_committed(replica);
            if self.role != Role::Primary {
                return;
            }
            if core::mem::take(&mut self.term.check_stable) {
                self.advance_stable();
            }
            if core::mem::take(&mut self.term.check_members) {
                self.propose_members();
            }
            if core::mem::take(&mut self.term.check_requests) {
                self.propose_requests(replica);
            }
            if !self.has_checks() {
                return;
            }
        }
    }

    /// At the primary: checks everything, because a node may have failed.
    pub(super) fn recheck_all(&mut self) {
        self.term.check_members = true;
        self.term.check_stable = true;
        self.term.check_commit = true;
        self.update_serving_time();
    }

    fn has_checks(&self) -> bool {
        let Term { check_commit, check_stable, check_members, check_requests, .. } = self.term;
        self.role == Role::Primary && (check_commit || check_stable || check_members || check_requests)
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        if self.has_checks() {
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
