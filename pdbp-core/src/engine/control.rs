//! What engines say to each other beside data: the agreement on the tables, and barriers.
//!
//! Barriers and quiescence go through the primary master. Each kind of message has at most one instance under way per link, so
//! that the outboxes are small and bounded; those of the agreement are made when a block has room for them. Under a new primary
//! every node says again what it waits for; after an unreadable control block both ends of the link say again what may have been in
//! it, or in its answers: see [`round`](super::round).

use heapless::Deque;

use super::protocol::Accord;
use super::{Engine, Event, LocalPart, PrivatePipes};
use crate::agreement::{self, Change};
use crate::cdu::{BLOCK_HEADER, Cdus, Malformed};
use crate::id::{NodeId, StreamNo, Time};
use crate::mesp::{AGREEMENT, Control, SETTINGS};
use crate::outbox::Due;
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::tables::{LATE, Name};
use crate::transport::Transport;
use crate::umb::{ArrivedBlock, BlockMemory};

const ASKS: usize = 32;

/// What a node, and the primary, remember of control in progress.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The time of the poll under way.
    pub(super) now: Time,
    begun: bool,
    /// When the agreement wants to be called.
    pub(super) tick_at: Option<Time>,
    /// Something has happened since `advance_control` found nothing to do.
    pub(super) stirred: bool,
    /// The row with which the next round of control messages begins.
    pub(super) turn: usize,
    /// Some peer's blocks were refused for good.
    pub(super) refused: bool,
    /// Requests of this node for parts; number of the one that is asked, and whether that is the first of them.
    pub(super) asks: Deque<Change, ASKS>,
    asked: Option<(u32, Asked)>,
    introduced: bool,
    /// The next part of this node that is to be registered anew, since this node was no member for a while.
    relist: Option<u16>,
    /// Barriers: arrived at, and passed.
    pub(super) generation: u32,
    pub(super) passed: u32,
    /// Quiescence: requests made by and answered to this node.
    pub(super) quiet_asked: u32,
    pub(super) quiet_done: u32,
    /// At the primary: wave under way, and the sum that the last wave found.
    pub(super) wave: u32,
    pub(super) counting: bool,
    pub(super) last_sum: Option<u64>,
}

/// What the agreement is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The node's own row.
    Introduction,
    /// The first of the requests that wait.
    First,
    /// A part that had been registered.
    Again(u16),
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    pub(super) fn is_master(&self) -> bool {
        self.agreement.primary() == Some(self.config.node)
    }

    /// The primary master, if there is one that this node knows of.
    pub fn master(&self) -> Option<NodeId> {
        self.agreement.primary()
    }

    /// The agreement on the tables: its epoch, its members, how far its log is applied.
    pub fn agreement(&self) -> &agreement::Agreement<'_> {
        &self.agreement
    }

    /// Whether the tables of this node can be relied on now: no change that any node knows to be made is missing from them.
    pub fn is_current(&self, now: Time) -> bool {
        self.agreement.is_current(now)
    }

    /// Whether all members are in the table of nodes, so that names can be used.
    pub fn is_ready(&self) -> bool {
        let known = |(i, slot): (usize, &Option<_>)| {
            slot.is_some() || !self.agreement.is_member(NodeId::from_index(i))
        };
        self.control.introduced
            && self.tables.nodes.iter().take(usize::from(self.config.nodes)).enumerate().all(known)
    }

    pub(super) fn is_asked(&self, name: &Name) -> bool {
        self.control.asks.iter().any(|c| matches!(c, Change::PartAdded(e) if e.name == *name))
    }

    /// Queues a request for a change of PTA.
    pub(super) fn ask(&mut self, change: Change) -> Result<(), Change> {
        self.control.asks.push_back(change)?;
        self.control.stirred = true;
        Ok(())
    }

    /// Arrives at the next barrier; it is passed when [`barrier_passed`](Self::barrier_passed) says so. Call once per node and barrier.
    pub fn arrive(&mut self) -> u32 {
        self.control.generation = self.control.generation.wrapping_add(1);
        self.say_arrival();
        self.control.generation
    }

    fn say_arrival(&mut self) {
        let (me, generation) = (self.config.node, self.control.generation);
        match self.master() {
            Some(master) if master == me => self.note_arrival(me, generation),
            Some(master) => self.tell(master, Control::Arrived { generation }),
            // The next one is told.
            None => {}
        }
    }

    /// Whether all nodes have arrived at barrier `generation`.
    pub fn barrier_passed(&self, generation: u32) -> bool {
        self.control.passed.wrapping_sub(generation) < u32::MAX / 2
    }

    /// Nodes that have not arrived at barrier `generation`, as far as this node knows: all of them at the primary, else the
    /// primary, and without one the masters that could be it.
    pub fn barrier_missing(&self, generation: u32) -> impl Iterator<Item = NodeId> {
        let (me, master) = (self.config.node, self.master());
        (0..usize::from(self.config.nodes)).map(NodeId::from_index).filter(move |n| match master {
            Some(master) if master == me => {
                let arrived = self.peers.get(self.links.slot(*n).index()).map_or(0, |p| p.arrived);
                arrived.wrapping_sub(generation) >= u32::MAX / 2
            }
            Some(master) => *n == master,
            None => *n != me && n.index() < usize::from(self.config.masters),
        })
    }

    /// Data may go to the peer again. What the two had said to each other of barriers and quiescence may be lost.
    pub(super) fn say_again(&mut self, node: NodeId) {
        self.control.stirred = true;
        if self.is_master() {
            let wave = self.control.wave;
            let peer = self.peers.get_mut(self.links.slot(node).index());
            if let Some(peer) = peer.filter(|p| self.control.counting && p.count.is_none()) {
                peer.post(Control::CountRequest { wave });
            }
        } else if self.master() == Some(node) {
            if let Some(own) = self.peers.get_mut(self.own.index()) {
                own.quiet_request = None;
            }
            if !self.barrier_passed(self.control.generation) {
                self.say_arrival();
            }
        }
    }

    pub(super) fn tell(&mut self, node: NodeId, message: Control) {
        if let Some(peer) = self.peers.get_mut(self.links.slot(node).index()) {
            self.counters.dropped_control += u64::from(!peer.post(message));
        }
    }

    /// Lets the agreement do what is due, and follows what it says.
    pub(super) fn advance_agreement(&mut self, pipes: &mut impl PrivatePipes) {
        let now = self.control.now;
        if !core::mem::replace(&mut self.control.begun, true) {
            self.agreement.begin(now);
            self.control.tick_at = Some(now);
        }
        let due = self.control.tick_at.is_some_and(|at| at <= now);
        if !due && !self.control.stirred && !self.agreement.has_news() {
            return;
        }
        self.ask_next();
        self.control.tick_at = self.agreement.tick(now, &mut self.tables);
        while let Some(event) = self.agreement.next_event() {
            self.control.stirred = true;
            match event {
                agreement::Event::Answered { number, accepted } => self.answered(number, accepted, pipes),
                agreement::Event::MemberDown(node) => self.member_down(node, pipes),
                agreement::Event::MemberUp(node) => self.member_up(node, pipes),
                agreement::Event::Expelled => self.expelled(pipes),
                agreement::Event::NewPrimary { node, epoch } => {
                    self.start_term();
                    pipes.event(Event::NewMaster { node, epoch });
                }
            }
        }
    }

    /// Asks for the next change that this node wants.
    fn ask_next(&mut self) {
        if self.control.asked.is_some() || self.agreement.is_asking() {
            return;
        }
        let (change, asked) = if !self.control.introduced {
            (Change::NodeUp(self.config.entry()), Asked::Introduction)
        } else if let Some((local, change)) = self.next_to_relist() {
            (change, Asked::Again(local))
        } else if let Some(change) = self.control.asks.front().cloned() {
            (change, Asked::First)
        } else {
            return;
        };
        if let Ok(number) = self.agreement.request(change) {
            self.control.asked = Some((number, asked));
        }
    }

    fn wants_to_ask(&self) -> bool {
        !self.control.introduced || self.control.relist.is_some() || !self.control.asks.is_empty()
    }

    fn next_to_relist(&mut self) -> Option<(u16, Change)> {
        let from = self.control.relist.filter(|_| self.agreement.is_member(self.config.node))?;
        let mut rest = self.local.iter().enumerate().skip(usize::from(from));
        let found = rest.find_map(|(i, local)| match (local.state, &local.entry) {
            (LocalPart::Known, Some(entry)) => Some((i as u16, Change::PartAdded(entry.clone()))),
            _ => None,
        });
        if found.is_none() {
            self.control.relist = None;
        }
        found
    }

    fn answered(&mut self, number: u32, accepted: bool, pipes: &mut impl PrivatePipes) {
        let Some((_, asked)) = self.control.asked.take_if(|(n, _)| *n == number) else { return };
        let (part, state) = match asked {
            Asked::Introduction => {
                self.control.introduced = true;
                return;
            }
            Asked::Again(local) => {
                self.control.relist = self.control.relist.map(|_| local.saturating_add(1));
                if accepted {
                    return;
                }
                let entry = self.local.get(usize::from(local)).and_then(|l| l.entry.clone());
                let Some(entry) = entry else { return };
                (entry.id, LocalPart::Refused)
            }
            Asked::First => match self.control.asks.pop_front() {
                Some(Change::PartAdded(entry)) if accepted => (entry.id, LocalPart::Known),
                Some(Change::PartAdded(entry)) => (entry.id, LocalPart::Refused),
                Some(Change::PartRemoved(id)) => (id, LocalPart::Free),
                _ => return,
            },
        };
        if let Some(slot) = self.local.get_mut(self.places.of(part.local())) {
            slot.state = state;
        }
        let recurs = part.generation() > 0 || part.local() >= LATE;
        self.recurrence_known |= recurs && state == LocalPart::Known;
        pipes.event(Event::Changed { part, accepted });
    }

    /// The node is no member any more: nothing is sent to it or taken from it until it is one again.
    fn member_down(&mut self, node: NodeId, pipes: &mut impl PrivatePipes) {
        if node != self.config.node {
            self.set_member(node, false, pipes);
        }
    }

    /// A node without a link to this one is known by what the agreement says alone.
    fn set_member(&mut self, node: NodeId, member: bool, pipes: &mut impl PrivatePipes) {
        match self.links.slot(node) {
            Slot::NONE if member => pipes.event(Event::PeerRestored { peer: node }),
            Slot::NONE => {
                self.lose_errands(|dest| dest == node, Slot::NONE);
                pipes.event(Event::PeerFailed { peer: node, undelivered: 0 });
                pipes.event(Event::FlushWanted);
                pipes.event(Event::LinkEnded { peer: node });
            }
            slot => self.set_down(slot, !member, pipes),
        }
    }

    fn member_up(&mut self, node: NodeId, pipes: &mut impl PrivatePipes) {
        if node != self.config.node {
            return self.set_member(node, true, pipes);
        }
        for peer in (0..usize::from(self.config.nodes)).map(NodeId::from_index).filter(|n| *n != node) {
            let member = self.agreement.is_member(peer);
            self.set_member(peer, member, pipes);
        }
    }

    /// This node is no member: it has no peers until it is let in again, and registers its parts anew then.
    fn expelled(&mut self, pipes: &mut impl PrivatePipes) {
        let me = self.config.node;
        for peer in (0..usize::from(self.config.nodes)).map(NodeId::from_index).filter(|n| *n != me) {
            self.set_member(peer, false, pipes);
        }
        self.control.relist = Some(0);
        pipes.event(Event::Expelled);
    }

    /// There is another primary: it is told what this node waits for; if this is the node, it knows of nobody yet.
    fn start_term(&mut self) {
        self.control.counting = false;
        self.control.last_sum = None;
        let me = self.own;
        for (i, peer) in self.peers.iter_mut().enumerate() {
            (peer.quiet_request, peer.count) = (None, None);
            if i != me.index() {
                peer.arrived = 0;
            }
        }
        if self.control.generation > 0 {
            self.say_arrival();
        }
    }

    /// Takes the next steps that depend on nothing but this node's state. A poll in which nothing has happened and nothing is
    /// under way costs a look at one flag, however many nodes there are.
    pub(super) fn advance_control(&mut self, pipes: &mut impl PrivatePipes) {
        self.advance_agreement(pipes);
        if !self.control.stirred {
            return;
        }
        let mut busy = self.control.asked.is_none() && self.wants_to_ask();
        if self.is_master() {
            busy |= self.advance_quiet(pipes);
        } else if let Some(master) = self.master() {
            let (asked, done) = (self.control.quiet_asked, self.control.quiet_done);
            busy |= asked != done;
            let waiting = self.peers.get(self.own.index()).is_some_and(|p| p.quiet_request.is_some());
            if asked != done && !waiting {
                self.tell(master, Control::QuietRequest { number: asked });
                if let Some(own) = self.peers.get_mut(self.own.index()) {
                    own.quiet_request = Some((asked, 0));
                }
            }
        }
        self.control.stirred = busy;
    }

    fn note_arrival(&mut self, node: NodeId, generation: u32) {
        let (me, passed) = (self.own, self.control.passed);
        // How far a node is beyond the last barrier that all have passed.
        let beyond =
            |arrived: u32| Some(arrived.wrapping_sub(passed)).filter(|n| *n < u32::MAX / 2).unwrap_or(0);
        if let Some(peer) = self.peers.get_mut(self.links.slot(node).index())
            && (beyond(generation) > beyond(peer.arrived) || peer.arrived == 0)
        {
            peer.arrived = generation;
        }
        let all = self.peers.iter().map(|p| beyond(p.arrived)).min().unwrap_or(0);
        if all > 0 {
            self.control.passed = passed.wrapping_add(all);
        }
        // Also who has not heard of it, since the primary that said so has failed, is told.
        let generation = self.control.passed;
        for (_, peer) in self.peers.iter_mut().enumerate().filter(|(i, _)| *i != me.index()) {
            let is_behind = |arrived: u32| generation != 0 && arrived.wrapping_sub(generation) == 0;
            if all > 0 || is_behind(peer.arrived) {
                peer.post(Control::Released { generation });
            }
        }
    }

    /// Reads the messages of a control block that was written in `round`.
    pub(super) fn read_control(
        &mut self,
        peer: NodeId,
        block: &ArrivedBlock,
        round: u32,
        pipes: &mut impl PrivatePipes,
    ) {
        self.follow_round(self.links.slot(peer), round);
        let body = block.bytes().get(BLOCK_HEADER..).unwrap_or(&[]);
        for train in Cdus::new(body) {
            let Ok(train) = train else {
                self.counters.malformed += 1;
                self.note_missed(self.links.slot(peer));
                return;
            };
            for message in train.messages() {
                self.read_message(peer, (train.command(), round), message, pipes);
            }
        }
    }

    fn read_message(
        &mut self,
        peer: NodeId,
        (command, round): (u16, u32),
        message: &[u8],
        pipes: &mut impl PrivatePipes,
    ) {
        let control = Control::decode(command, message);
        match (command, self.accord(peer)) {
            // These are the same in all rounds.
            (SETTINGS, _) => return self.read_protocol(peer, message, pipes),
            _ if matches!(control, Some(Control::Probe)) => return self.note_probe(self.links.slot(peer)),
            // It has not heard yet that it need not say more.
            (_, Accord::Unlike) => return,
            _ if self.is_void(self.links.slot(peer), round) => return,
            (_, Accord::Unknown) => {}
            (AGREEMENT, _) => {
                if let Some(message) = agreement::Message::decode(message) {
                    return self.handle_agreement(peer, message);
                }
            }
            _ => {
                if let Some(control) = control {
                    return self.handle_control(peer, control, pipes);
                }
            }
        }
        self.note_missed(self.links.slot(peer));
        self.note_malformed(peer, Malformed::Field, pipes);
    }

    pub(super) fn handle_control(&mut self, from: NodeId, message: Control, pipes: &mut impl PrivatePipes) {
        let master = self.is_master();
        let of_master = self.master() == Some(from);
        self.control.stirred = true;
        match message {
            Control::Arrived { generation } if master => self.note_arrival(from, generation),
            Control::Released { generation } if of_master => {
                if generation.wrapping_sub(self.control.passed) < u32::MAX / 2 {
                    self.control.passed = generation;
                }
            }
            Control::QuietRequest { number } if master => {
                if let Some(peer) = self.peers.get_mut(self.links.slot(from).index()) {
                    peer.quiet_request = Some((number, 0));
                }
            }
            // Who has not heard of its primary for long answers too: it is not asked again.
            Control::CountRequest { wave } if self.master().is_none_or(|node| node == from) => {
                self.flush_relayed(Due::All);
                pipes.event(Event::FlushWanted);
                let (sent, delivered, open) = self.counts();
                self.tell(from, Control::Count { wave, sent, delivered, open });
            }
            Control::Count { wave, sent, delivered, open } if master => {
                let current = wave == self.control.wave;
                if let Some(peer) = self.peers.get_mut(self.links.slot(from).index()).filter(|_| current) {
                    peer.count = Some((wave, sent, delivered, open));
                }
            }
            Control::Quiet { number } if of_master => {
                self.control.quiet_done = number;
                if let Some(own) = self.peers.get_mut(self.own.index()) {
                    own.quiet_request = None;
                }
            }
            Control::Welcome => {
                if let Some(peer) = self.peers.get_mut(self.links.slot(from).index())
                    && !core::mem::replace(&mut peer.welcome, true)
                {
                    self.open_peer(self.links.slot(from), pipes);
                }
            }
            Control::StreamAnswer { group, number, taken } => {
                self.stream_answered(from, (group, StreamNo(number)), taken, pipes);
            }
            Control::Room { to, number, by, limit } => self.room_answered(to, number, by, limit),
            // Of or for a master that was one; or this node does not know who is, and is told again when it does.
            _ => self.counters.misdirected += u64::from(self.master().is_some()),
        }
    }

    pub(super) fn handle_agreement(&mut self, from: NodeId, message: agreement::Message) {
        let now = self.control.now;
        self.agreement.handle(now, from, message, &mut self.tables);
        self.control.stirred = true;
        self.control.tick_at = Some(now);
    }
}
