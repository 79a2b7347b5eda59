//! Membership: opening links for data, and closing them.

use super::{Engine, Event, Link, PrivatePipes};
use crate::id::NodeId;
use crate::mesp::Control;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Sets whether a peer is a member, as decided by the agreement.
    pub(super) fn set_member(&mut self, id: LinkId, member: bool, pipes: &mut impl PrivatePipes) {
        let changed = self.links.get_mut(id).filter(|link| link.state.is_member() != member);
        let Some(link) = changed else { return };
        let (peer, was_up, was_down) = (link.peer, link.is_up(), link.state.is_down());
        link.state.set_member(member);
        if member {
            self.queue_control(id, Control::Welcome);
            self.open_link(id, pipes);
            return;
        }
        // Whatever the peer was told on this link no longer counts, nor does anything it still sends.
        if was_up {
            self.close_link(id, pipes);
        }
        if !was_down {
            self.transport.disconnect(peer);
        }
    }

    /// Notes that the peer accepts data from this node.
    pub(super) fn on_welcome(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) {
        if let Some(link) = self.links.get_mut(id).filter(|link| !link.is_up()) {
            link.state.welcome();
            self.open_link(id, pipes);
        }
    }

    /// Lets data go to the peer again, unless something else prevents it.
    fn open_link(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) {
        if self.links.is_up(id) {
            self.restore_space(id);
            self.resend_control(id);
            pipes.event(Event::PeerRestored { peer: self.links.peer(id) });
        }
    }

    /// Ends streams from the peer, behind everything that has arrived.
    pub(super) fn stop_streams(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) {
        if let Some(link) = self.links.get_mut(id) {
            link.recv.ending = Some(link.recv.pending.len);
        }
        self.end_streams(id, pipes);
    }

    /// Stops exchanging data with the peer.
    pub(super) fn close_link(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) {
        self.stop_streams(id, pipes);
        self.stop_streams_to(id);
        let (topology, peer) = (self.links.topology, self.links.peer(id));
        self.pipes.cut_streams(|dest| topology.relay_to(dest).unwrap_or(dest) == peer);
        self.fail_rooms(id);
        self.reserve_space(id);
        self.clear_control(id);
        self.return_queue(id, pipes);
        self.on_link_lost();
        if let Some(link) = self.links.get_mut(id) {
            link.closings = link.closings.wrapping_add(1);
            self.space.shrink_recv(link, u32::MAX);
        }
    }

    /// Ends what parts ask of the peer, or of nodes behind it, and what was asked over the link.
    pub(super) fn fail_rooms(&mut self, id: LinkId) {
        let (topology, peer) = (self.links.topology, self.links.peer(id));
        self.fail_room_requests(|dest| topology.relay_to(dest).unwrap_or(dest) == peer, id);
    }

    /// Frees the space of a link whose peer's place is vacant from the start: other rows may use it, except for what the link
    /// needs to carry anything at all.
    pub(super) fn clear_space(&mut self, id: LinkId) {
        let Self { links, umb, space, .. } = self;
        let Some(link) = links.get_mut(id) else { return };
        space.shrink_send(link, umb, u32::MAX);
        space.shrink_recv(link, u32::MAX);
        self.reserve_space(id);
    }

    /// Marks the place of a node that was declared down: once all members know, the transport may give the place to another
    /// process.
    pub(super) fn release_place(&mut self, node: NodeId) {
        if let Some(link) = self.links.to_mut(node) {
            link.leaves_place = true;
            self.vacates_at = Some(self.agreement.applied_index());
        }
    }

    /// Gives up the places of nodes that all members know to be down. Earlier than that, a member that knows only the former
    /// process would mistake the next one for it, and send it messages for the former one's parts.
    pub(super) fn vacate_places(&mut self) {
        if self.vacates_at.is_none_or(|at| self.agreement.stable_index() < at) {
            return;
        }
        self.vacates_at = None;
        let Self { links, transport, agreement, .. } = self;
        for link in links.iter_mut() {
            if core::mem::take(&mut link.leaves_place) && !agreement.is_expected(link.peer) {
                transport.vacate(link.peer);
            }
        }
    }

    /// Reports the primary to a transport that assigns places to processes. A node that has become primary, and knows its
    /// predecessors' decisions, gives up the places of all non-members: its predecessors may have given those to processes that
    /// it has never heard of.
    pub(super) fn report_primary(&mut self) {
        let reported_leader = (self.agreement.primary(), self.agreement.term());
        if !self.config.is_open() || reported_leader == self.reported_leader {
            return;
        }
        let begins = reported_leader.1.is_some() && reported_leader.1 != self.reported_leader.1;
        self.reported_leader = reported_leader;
        let Self { links, transport, agreement, .. } = self;
        transport.lead(reported_leader.0, reported_leader.1);
        for link in links.iter_mut().filter(|_| begins) {
            if !link.leaves_place && !agreement.is_expected(link.peer) {
                transport.vacate(link.peer);
            }
        }
    }

    /// Vacates the place of a process that was never admitted and whose link has failed: the primary has no state of it to undo.
    pub(super) fn vacate_unused(&mut self, id: LinkId) {
        let is_master = self.is_master();
        let Self { links, transport, agreement, .. } = self;
        let unused = |link: &&mut Link| !link.leaves_place && !agreement.is_expected(link.peer);
        if let Some(link) = links.get_mut(id).filter(|_| is_master).filter(unused) {
            transport.vacate(link.peer);
        }
    }

    /// Handles a peer with different settings: in this session of the link, nothing but settings is exchanged.
    pub(super) fn on_settings_mismatch(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (was_up, peer) = (link.is_up(), link.peer);
        link.differ();
        self.agreement.link_down(self.now, peer, false);
        self.wake_agreement();
        if was_up {
            self.close_link(id, pipes);
        } else {
            self.stop_streams(id, pipes);
            self.reserve_space(id);
        }
    }

    /// Prevents other rows from using what a link needs to carry anything at all, if the link may come up again.
    pub(super) fn reserve_space(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(id).filter(|_| self.transport.restores_links()) {
            self.space.reserve(link);
        }
    }

    /// Gives space to the rows of a link that is up again, as much as is available. A row that got none, because readers or
    /// writers hold its blocks, is served at the next interval.
    pub(super) fn restore_space(&mut self, id: LinkId) {
        let Self { links, umb, space, .. } = self;
        let Some(link) = links.get_mut(id) else { return };
        space.restore(link, umb);
        if link.posted {
            self.post(id);
        }
        if self.links.get(id).is_some_and(|link| !link.has_space()) {
            // Readers and writers still hold what the link lacks; no other row may take that when it comes back.
            self.reserve_space(id);
        }
    }

    /// At the end of each interval, asks the policy how much space rows give back.
    pub(super) fn maintain(&mut self) {
        if !self.space.end_interval(self.now, self.config.interval) {
            return;
        }
        for id in self.links.ids() {
            let Some(link) = self.links.get(id).filter(|link| link.is_up()) else { continue };
            if link.reserved {
                self.restore_space(id);
            }
            let own = self.links.own;
            if let Some(link) = self.links.get_mut(id) {
                self.space.take_surplus(link, &mut self.umb, own);
            }
        }
    }
}
