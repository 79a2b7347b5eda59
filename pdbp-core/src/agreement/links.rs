//! Links come and go.

use super::peer::{Flow, owe};
use super::{Agreement, Flaw, Role, Stage};
use crate::id::{NodeId, Time};

impl Agreement<'_> {
    /// The link to and from the peer is down; what was on its way is lost. `ended`: the peer is known to have ended, and not
    /// merely out of reach. Without leases, where all nodes vote, all that are left then decide without it, whatever their number. To be said before it
    /// can be let in again.
    pub fn link_down(&mut self, now: Time, peer: NodeId, ended: bool) {
        self.go_on(now);
        let leaves_out =
            self.leaves_out_ended() || (self.has_flaw(Flaw::LeavesOutEnded) && self.settings.lease == 0);
        let gone = ended || self.has_flaw(Flaw::CutsLeases);
        let Some(record) = self.peers.get_mut(peer.index()) else { return };
        record.linked = false;
        record.ended |= ended && leaves_out;
        record.gone |= gone;
        self.lose_messages(peer);
        if self.primary == Some(peer) && self.settings.lease == 0 {
            // If it is still primary it says so as soon as there is a new link.
            self.primary = None;
            self.act_at = self.clock.after(self.own_patience());
        }
    }

    /// Whether members that are known to have ended do not count.
    pub(super) fn leaves_out_ended(&self) -> bool {
        // Where there are learners, they may hold what was decided and no voter that is left has; see the module. Under leases a
        // member may have been declared down that still runs, and those that did so may all have ended since.
        self.settings.lease == 0 && self.settings.voters >= self.settings.nodes
    }

    /// Of what the two have said to each other some may be lost. All is as after [`link_down`](Self::link_down) and
    /// [`link_up`](Self::link_up) at both ends, but that neither takes the other to have failed: who is primary remains it, and says
    /// if it is not. Nothing that the peer has sent before it did the same may be handled after this.
    pub fn link_renewed(&mut self, now: Time, peer: NodeId) {
        self.go_on(now);
        self.lose_messages(peer);
        self.greet(peer);
        if self.role != Role::Primary {
            // Its word that it is not may be lost; that it is the log says.
            self.owe(peer, owe::HELLO);
        }
    }

    /// What was on its way to and from the peer is lost.
    fn lose_messages(&mut self, peer: NodeId) {
        let member = self.participates(peer);
        let Some(record) = self.peers.get_mut(peer.index()) else { return };
        record.owes &= owe::DOWN | owe::UP;
        record.flow = if member { Flow::Probe } else { Flow::Idle };
        (record.matched, record.goal) = (0, 0);
        (record.voted, record.alive, record.request) = (None, None, None);
        (record.waits, record.answer, record.join) = (None, None, None);
        (record.admitted, record.asked) = (None, None);
        self.stirred = true;
        if self.primary == Some(peer) {
            (self.ack, self.alive_due, self.ask_sent) = (None, false, false);
            self.ask_again();
        }
        if self.role == Role::Primary {
            self.look_at_all();
        }
    }

    /// There is a new link to and from the peer, on which nothing was sent. `life` says which process is at its other end
    /// ([`NodeEntry::life`](crate::tables::NodeEntry::life)).
    pub fn link_up(&mut self, now: Time, peer: NodeId, life: u64) {
        self.go_on(now);
        let Some(record) = self.peers.get_mut(peer.index()) else { return };
        (record.linked, record.gone, record.link_life) = (true, false, life);
        self.greet(peer);
        if peer.index() < usize::from(self.settings.masters) {
            self.owe(peer, owe::HELLO);
        }
    }

    /// Says what a peer is to know that has been told nothing.
    fn greet(&mut self, peer: NodeId) {
        if peer.index() >= self.peers.len() {
            return;
        }
        let master = peer.index() < usize::from(self.settings.masters);
        if master && self.stage == Stage::Asking {
            self.owe(peer, owe::JOIN);
        }
        if self.primary == Some(peer) {
            self.alive_due = self.settings.lease > 0;
        }
        if self.role == Role::Primary {
            self.look_at_quorum();
        }
        self.stirred = true;
    }
}
