//! Handles links that go down and come up.

use super::peer::{Flow, notice};
use super::{Agreement, Flaw, Role, Stage};
use crate::id::{NodeId, Time};

impl Agreement<'_> {
    /// Reports that the link with the peer is down, so messages in flight are lost. `ended`: the peer is known to have terminated,
    /// rather than being merely unreachable. Without leases, if all nodes vote, the remaining nodes then decide without it,
    /// whatever their number. Must be called before the peer can be readmitted.
    pub fn link_down(&mut self, now: Time, peer: NodeId, ended: bool) {
        self.advance_clock(now);
        let leaves_out =
            self.excludes_ended() || (self.has_flaw(Flaw::LeavesOutEnded) && self.settings.lease == 0);
        let terminated = ended || self.has_flaw(Flaw::CutsLeases);
        let Some(record) = self.peers.get_mut(peer.index()) else { return };
        record.linked = false;
        record.ended |= ended && leaves_out;
        record.terminated |= terminated;
        self.lose_messages(peer);
        if self.primary == Some(peer) && self.settings.lease == 0 {
            // If it is still primary, it announces that as soon as there is a new link.
            self.primary = None;
            self.act_at = self.clock.after(self.own_patience());
        }
    }

    /// Whether members that are known to have terminated do not count.
    pub(super) fn excludes_ended(&self) -> bool {
        // With learners: they may hold something decided that no remaining voter has; see the module. With leases: a member may
        // have been declared down and still run, and those that declared it down may all have terminated since.
        self.settings.lease == 0 && self.settings.voters >= self.settings.nodes
    }

    /// Reports that some messages between the two may be lost. Equivalent to [`link_down`](Self::link_down) and
    /// [`link_up`](Self::link_up) at both ends, except that neither end takes the other to have failed: the primary stays the same,
    /// and announces it if it is no longer primary. After this call, messages that the peer sent before its own call must not be
    /// handled.
    pub fn link_renewed(&mut self, now: Time, peer: NodeId) {
        self.advance_clock(now);
        self.lose_messages(peer);
        self.greet(peer);
        if self.role != Role::Primary {
            // An announcement that this node is not primary may have been lost. A primary needs none: its log shows that it is
            // still primary.
            self.queue_notice(peer, notice::HELLO);
        }
    }

    /// Records that messages in flight to and from the peer are lost.
    fn lose_messages(&mut self, peer: NodeId) {
        let member = self.participates(peer);
        let Some(record) = self.peers.get_mut(peer.index()) else { return };
        record.notices &= notice::DOWN | notice::UP;
        record.flow = if member { Flow::Probe } else { Flow::Idle };
        (record.matched, record.admit_at) = (0, 0);
        (record.voted, record.alive, record.request) = (None, None, None);
        (record.deferred_answer, record.answer, record.join) = (None, None, None);
        (record.admitted, record.last_request) = (None, None);
        self.dirty = true;
        if self.primary == Some(peer) {
            (self.ack, self.alive_due, self.own_request_sent) = (None, false, false);
            self.restart_snapshot();
        }
        if self.role == Role::Primary {
            self.recheck_all();
        }
    }

    /// Reports a new link with the peer, on which nothing has been sent. `life` identifies the process at its other end
    /// ([`NodeEntry::life`](crate::tables::NodeEntry::life)).
    pub fn link_up(&mut self, now: Time, peer: NodeId, life: u64) {
        self.advance_clock(now);
        let Some(record) = self.peers.get_mut(peer.index()) else { return };
        (record.linked, record.terminated, record.link_life) = (true, false, life);
        self.greet(peer);
        if peer.index() < usize::from(self.settings.masters) {
            self.queue_notice(peer, notice::HELLO);
        }
    }

    /// Queues what a peer needs to know when it has been told nothing.
    fn greet(&mut self, peer: NodeId) {
        if peer.index() >= self.peers.len() {
            return;
        }
        let master = peer.index() < usize::from(self.settings.masters);
        if master && self.stage == Stage::Asking {
            self.queue_notice(peer, notice::JOIN);
        }
        if self.primary == Some(peer) {
            self.alive_due = self.settings.lease > 0;
        }
        if self.role == Role::Primary {
            self.update_serving_time();
        }
        self.dirty = true;
    }
}
