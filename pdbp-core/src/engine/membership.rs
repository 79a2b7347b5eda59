//! With whom data is exchanged: who is a member and has the same settings, while the link is up.

use super::{Engine, Event, PrivatePipes};
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Whether a peer is a member, as the agreement says.
    pub(super) fn set_down(&mut self, node: Slot, down: bool, pipes: &mut impl PrivatePipes) {
        let Some(peer) = self.peers.get_mut(node.index()).filter(|p| p.down != down) else { return };
        let was_open = !peer.is_gone();
        peer.down = down;
        if !down {
            self.tell(self.links.node(node), crate::mesp::Control::Welcome);
            self.open_peer(node, pipes);
            return;
        }
        // What it was told on this link does not count any more, nor does what it still sends.
        let linked = !peer.failed;
        if was_open {
            self.leave_peer(node, pipes);
        }
        if linked {
            self.transport.disconnect(self.links.node(node));
        }
    }

    /// Data may go to the peer again, if nothing speaks against it.
    pub(super) fn open_peer(&mut self, node: Slot, pipes: &mut impl PrivatePipes) {
        if !self.is_gone(node) {
            self.furnish(node);
            self.say_again(self.links.node(node));
            pipes.event(Event::PeerRestored { peer: self.links.node(node) });
        }
    }

    /// Streams from the peer end behind what has arrived.
    pub(super) fn stop_streams(&mut self, node: Slot, pipes: &mut impl PrivatePipes) {
        let session = self.peers.get(node.index()).map(|peer| peer.session);
        if let Some(row) = self.recv_rows.get_mut(node.index()) {
            row.ending = session;
        }
        self.end_streams(node, pipes);
    }

    /// No data goes to the peer from now on or comes from it.
    pub(super) fn leave_peer(&mut self, node: Slot, pipes: &mut impl PrivatePipes) {
        self.stop_streams(node, pipes);
        self.stop_streams_to(node);
        let (links, peer) = (self.links, self.links.node(node));
        self.pipes.cut_streams(|dest| links.relay_to(dest).unwrap_or(dest) == peer);
        self.lose_errands(|dest| links.relay_to(dest).unwrap_or(dest) == peer, node);
        self.set_aside(node);
        self.empty_control(node);
        self.give_up_queue(node, pipes);
        self.shrink_recv(node, u32::MAX);
    }

    /// The settings of a peer are others: nothing goes to it or is taken from it in this session of the link, but for what they are.
    pub(super) fn part_with(&mut self, node: Slot, pipes: &mut impl PrivatePipes) {
        let Some(peer) = self.peers.get_mut(node.index()) else { return };
        let was_gone = peer.is_gone();
        peer.part();
        self.control.stirred = true;
        self.agreement.link_down(self.control.now, self.links.node(node), false);
        self.control.tick_at = Some(self.control.now);
        if was_gone {
            self.stop_streams(node, pipes);
            self.set_aside(node);
        } else {
            self.leave_peer(node, pipes);
        }
    }
}
