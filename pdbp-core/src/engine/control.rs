//! Control traffic between engines: agreement on the tables, barriers and termination detection.
//!
//! Barriers and termination detection go through the primary master. At most one message of each kind is in flight per link, so
//! the queues are small and bounded; messages of the agreement are generated when a block has room for them. Under a new primary,
//! every node repeats whatever it is waiting for. After an unreadable control block, both ends of the link repeat everything that
//! may have been in it, or in its answers: see [`round`](super::round).

use super::termination::Count;
use super::{Engine, Event, PrivatePipes};
use crate::agreement;
use crate::cdu::{BLOCK_HEADER, Cdus, Malformed};
use crate::id::{NodeId, StreamNo};
use crate::mesp::{AGREEMENT, Control, SETTINGS};
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::{ArrivedBlock, BlockMemory};

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    pub(super) fn is_master(&self) -> bool {
        self.agreement.primary() == Some(self.config.node)
    }

    /// The primary master, if this node knows of one.
    pub fn master(&self) -> Option<NodeId> {
        self.agreement.primary()
    }

    /// The agreement on the tables: its epoch, its members, and how much of its log has been applied.
    pub fn agreement(&self) -> &agreement::Agreement<'_> {
        &self.agreement
    }

    /// Returns the members of the cluster known to this node, itself included; while it is not a member itself, those it last
    /// knew. The members together declare nodes down and readmit them, so all of them see the same changes in the same order
    /// ([`Event::NodeUp`], [`Event::NodeDown`]).
    pub fn members(&self) -> impl Iterator<Item = NodeId> {
        let nodes = (0..usize::from(self.config.nodes)).map(NodeId::from_index);
        nodes.filter(|node| self.agreement.is_member(*node))
    }

    /// Whether this node's tables are reliable now: they lack no change that any node knows to have been made.
    pub fn is_current(&self, now: crate::id::Time) -> bool {
        self.agreement.is_current(now)
    }

    /// Notes that the agreement has something to do, and perhaps to send.
    pub(super) fn wake_agreement(&mut self) {
        self.control_dirty = true;
        self.agreement_due = Some(self.now);
    }

    /// Repeats control messages when data may go to the peer again: anything the two reported to each other about barriers and
    /// termination may have been lost.
    pub(super) fn resend_control(&mut self, id: LinkId) {
        self.control_dirty = true;
        if self.is_master() {
            if let Some(link) = self.links.get_mut(id)
                && let Some(request) = self.termination.pending_request(&link.tally)
            {
                link.queue_control(request);
            }
        } else if self.master() == Some(self.links.peer(id)) {
            self.termination.repeat_request(&mut self.links);
            self.repeat_arrival();
        }
    }

    /// Queues a control message for a peer.
    pub(super) fn queue_control(&mut self, id: LinkId, message: Control) {
        if let Some(link) = self.links.get_mut(id) {
            self.counters.dropped_control += u64::from(!link.queue_control(message));
        }
    }

    /// Lets the agreement do whatever is due, and acts on its events.
    fn advance_agreement(&mut self, pipes: &mut impl PrivatePipes) {
        let now = self.now;
        if !core::mem::replace(&mut self.is_started, true) {
            self.agreement.begin(now);
            self.agreement_due = Some(now);
        }
        self.submit_next();
        if self.agreement_due.is_some_and(|at| at <= now) {
            self.note_arrivals();
        }
        self.agreement_due = self.agreement.tick(now, &mut self.tables);
        while let Some(event) = self.agreement.next_event() {
            self.control_dirty = true;
            match event {
                agreement::Event::Answered { number, accepted } => self.on_answer(number, accepted, pipes),
                agreement::Event::MemberDown(node) if node == self.config.node => {}
                agreement::Event::MemberDown(node) => self.on_membership_change(node, false, pipes),
                agreement::Event::MemberUp(node) if node == self.config.node => self.on_admitted(pipes),
                agreement::Event::MemberUp(node) => self.on_membership_change(node, true, pipes),
                agreement::Event::Expelled => self.on_expelled(pipes),
                agreement::Event::NewPrimary { node, epoch } => {
                    self.termination.start_term(&mut self.links);
                    self.restart_barrier();
                    pipes.event(Event::NewMaster { node, epoch });
                }
            }
        }
        self.vacate_places();
        self.report_primary();
    }

    /// At the primary: notes which members have sent blocks since this was last called.
    fn note_arrivals(&mut self) {
        if !self.is_master() {
            return;
        }
        for link in self.links.iter_mut() {
            let received = link.numbers.received as u32;
            if core::mem::replace(&mut link.heard, received) != received {
                self.agreement.heard_from(link.peer, self.now);
            }
        }
    }

    /// Handles the members' decision to admit another node or to declare it down.
    fn on_membership_change(&mut self, node: NodeId, member: bool, pipes: &mut impl PrivatePipes) {
        self.update_member(node, member, pipes);
        if !member {
            self.release_place(node);
        }
        self.on_member_change(node);
        pipes.event(if member { Event::NodeUp { node } } else { Event::NodeDown { node } });
    }

    /// Handles a node that has become a member or has ceased to be one. Without a link to it, this node learns of that from the
    /// agreement alone.
    fn update_member(&mut self, node: NodeId, member: bool, pipes: &mut impl PrivatePipes) {
        match self.links.id(node) {
            LinkId::NONE if member => pipes.event(Event::PeerRestored { peer: node }),
            LinkId::NONE => {
                self.fail_room_requests(|dest| dest == node, LinkId::NONE);
                self.orphan_rooms(node);
                pipes.event(Event::PeerFailed { peer: node, undelivered: 0 });
                pipes.event(Event::FlushWanted);
                pipes.event(Event::LinkEnded { peer: node });
            }
            id => self.set_member(id, member && self.agreement.is_linked_member(node), pipes),
        }
    }

    fn others(&self) -> impl Iterator<Item = NodeId> + use<T, M, P> {
        let me = self.config.node;
        (0..usize::from(self.config.nodes)).map(NodeId::from_index).filter(move |node| *node != me)
    }

    /// This node is a member again.
    fn on_admitted(&mut self, pipes: &mut impl PrivatePipes) {
        for peer in self.others() {
            let member = self.agreement.is_member(peer);
            self.update_member(peer, member, pipes);
        }
        self.request_barrier();
        pipes.event(Event::NodeUp { node: self.config.node });
    }

    /// This node is not a member. It has no peers until it is readmitted, and then registers its parts anew.
    fn on_expelled(&mut self, pipes: &mut impl PrivatePipes) {
        for peer in self.others() {
            self.update_member(peer, false, pipes);
        }
        self.leave_barriers();
        self.requests.reregister();
        pipes.event(Event::Expelled);
    }

    /// Whether [`advance_control`](Self::advance_control) may have something to do. Checks two flags and a time, regardless of
    /// the number of nodes.
    #[inline]
    pub(super) fn is_control_dirty(&self) -> bool {
        self.control_dirty || self.agreement.has_news() || self.agreement_due.is_some_and(|at| at <= self.now)
    }

    /// Takes the next steps that depend only on this node's state, and notifies the host of forgotten parts.
    #[inline(never)]
    pub(super) fn advance_control(&mut self, pipes: &mut impl PrivatePipes) {
        self.advance_agreement(pipes);
        if self.control_dirty {
            self.control_dirty = self.requests.is_busy() | self.advance_termination(pipes);
        }
        self.report_forgotten(pipes);
    }

    /// Reads the messages of a control block.
    pub(super) fn read_control(
        &mut self,
        id: LinkId,
        round: u32,
        block: &ArrivedBlock,
        pipes: &mut impl PrivatePipes,
    ) {
        self.follow_round(id, round);
        let body = block.bytes().get(BLOCK_HEADER..).unwrap_or(&[]);
        for train in Cdus::new(body) {
            let Ok(train) = train else {
                self.counters.malformed += 1;
                self.on_missed_control(id);
                return;
            };
            for message in train.messages() {
                self.read_message(id, (train.command(), round), message, pipes);
            }
        }
    }

    fn read_message(
        &mut self,
        id: LinkId,
        (command, round): (u16, u32),
        message: &[u8],
        pipes: &mut impl PrivatePipes,
    ) {
        let Some(link) = self.links.get_mut(id) else { return };
        let peer = link.peer;
        let control = Control::decode(command, message);
        match command {
            // The same in all rounds.
            SETTINGS => return self.read_protocol(peer, message, pipes),
            _ if matches!(control, Some(Control::Probe)) => return link.on_probe(),
            // The peer has not learnt yet that it need not send more.
            _ if link.state.is_incompatible() => return,
            _ if link.round.is_cancelled(round) => return,
            _ if link.state.is_unknown() => {}
            AGREEMENT => {
                if let Some(message) = agreement::Message::decode(message) {
                    self.agreement.handle(self.now, peer, message, &mut self.tables);
                    return self.wake_agreement();
                }
            }
            _ => {
                if let Some(control) = control {
                    return self.handle_control(id, control, pipes);
                }
            }
        }
        self.on_missed_control(id);
        self.report_malformed(peer, Malformed::Field, pipes);
    }

    pub(super) fn handle_control(&mut self, id: LinkId, message: Control, pipes: &mut impl PrivatePipes) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (from, primary) = (link.peer, self.agreement.primary());
        let (is_master, of_master) = (primary == Some(self.config.node), primary == Some(from));
        self.control_dirty = true;
        match message {
            Control::Arrived { generation, passed } if is_master => {
                self.barrier.learn_passed(&mut self.links, passed);
                self.barrier.record_arrival(&mut self.links, id, generation);
                self.announce_lost();
            }
            Control::BarrierRequest if is_master => self.on_barrier_request(id),
            Control::Released { generation } if of_master => self.on_released(generation),
            Control::Lost { generation, node, ended } if of_master => {
                self.barrier.record_lost(generation, node, ended);
            }
            Control::QuietRequest { number } if is_master => self.termination.on_request(link, number),
            // A node that has long not heard from its primary answers too: it will not be asked again.
            Control::CountRequest { wave } if primary.is_none_or(|node| node == from) => {
                self.on_count_request(id, wave, pipes);
            }
            Control::Count { wave, sent, delivered, open } if is_master => {
                self.termination.on_count(link, wave, Count { sent, delivered, open });
            }
            Control::Quiet { number } if of_master => {
                self.termination.on_answer(&mut self.links, number);
            }
            Control::Welcome => self.on_welcome(id, pipes),
            Control::StreamAnswer { group, number, taken } => {
                self.stream_answered(from, (group, StreamNo(number)), taken, pipes);
            }
            // Requests leave by this link, and answers come back the same way.
            Control::Room { to, number, dest, limit }
                if self.relay_to(dest.node()).unwrap_or(dest.node()) == from =>
            {
                self.on_room_answer(to, number, dest, limit);
            }
            // From or for a former master. Or this node does not know the master yet; it will be told again once it does.
            _ => self.counters.misdirected += u64::from(primary.is_some()),
        }
    }
}
