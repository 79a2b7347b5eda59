//! A term as primary: what is known in it, and what is done as it becomes possible.

use super::{Agreement, Replica, Role, Stage};
use crate::id::Time;

/// What a primary knows in its term.
#[derive(Clone, Debug, Default)]
pub(super) struct Term {
    /// The last entry when it became leader.
    pub(super) floor: u64,
    /// Since when a quorum has been missing, at the latest.
    pub(super) since: Time,
    /// A quorum votes for nobody else until then, by this node's clock.
    pub(super) serves_until: Time,
    pub(super) check_at: Time,
    /// Voters that have the entry `sought`, which is to be committed next.
    pub(super) sought: u64,
    pub(super) ayes: usize,
    /// Members that vote when that was counted, but for those that have ended.
    pub(super) voters: usize,
    /// Replicas that have not applied `settling`, which is to be stable next.
    pub(super) settling: u64,
    pub(super) behind: usize,
    /// Parts in the log that are to be added and are not applied.
    pub(super) adding: usize,
    pub(super) rounds: u32,
    /// Something waits for room in the log, or for members to have what a node that joins starts from.
    pub(super) cramped: bool,
    /// Requests that wait for an answer.
    pub(super) waiting: usize,
    /// What may be possible now.
    pub(super) look_commit: bool,
    pub(super) look_stable: bool,
    pub(super) look_members: bool,
    pub(super) look_requests: bool,
}

impl Agreement<'_> {
    /// Does what has become possible.
    pub(super) fn advance(&mut self, replica: &mut impl Replica) {
        // Each round goes one step further with what the round before has made possible; in a cluster of one node a request
        // is committed, applied and answered in one call.
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

    /// At the primary: somebody may have failed.
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
