//! Control messages between engines: host information, changes of PTA, barriers and quiescence.
//!
//! Everything goes through the master, node 0. Each kind of message has at most one instance under way per link, so that the
//! outboxes are small and bounded.

use heapless::Deque;

use super::{BUDGET, Engine, Event, LocalPart, PrivatePipes};
use crate::cdu::{BLOCK_HEADER, BlockClass, CduClass, Packer, Route};
use crate::id::NodeId;
use crate::mesp::{CONTROL, Change, Control};
use crate::policy::SpacePolicy;
use crate::tables::{Name, NodeEntry, NodeKind};
use crate::transport::Transport;
use crate::umb::{BlockMemory, BlockState, SealedBlock};

const OUTBOX: usize = 16;
const ASKS: usize = 32;

/// What is known of the other end of a link.
#[derive(Debug, Default)]
pub struct Peer {
    /// Blocks given to the transport, all classes: the next sequence number.
    pub(super) sent: u64,
    /// The sequence number expected next.
    pub(super) received: u64,
    pub(super) data_sent: u64,
    pub(super) data_acked: u64,
    /// Blocks that we may have unreleased at the peer.
    pub(super) window: u32,
    /// Data blocks of the peer that we have released, and what of it the peer has been told.
    pub(super) released: u64,
    released_told: u64,
    window_told: u32,
    /// Data blocks of the peer that have arrived, unreadable ones included as soon as they are known.
    pub(super) data_received: u64,
    /// Blocks refused as unreadable since the last one that was not.
    pub(super) unread: u64,
    /// Data blocks of the peer that went to private pipes, or were refused.
    pub(super) delivered: u64,
    /// Control blocks that the transport has.
    pub(super) control_away: u32,
    /// The peer wants a block, to see its numbers.
    probed: bool,
    /// Messages that the peer did not get, since it failed.
    pub(super) undelivered: u64,
    pub(super) failed: bool,
    pub(super) malformed: u64,
    outbox: Deque<Control, OUTBOX>,
    /// At the master: rows of NTA sent, the request that waits, whether the change under way is applied.
    hosts_told: u16,
    request: Option<(u32, Change)>,
    applied: bool,
    arrived: u32,
    quiet_request: Option<(u32, u32)>,
    count: Option<(u32, u64, u64, u32)>,
}

impl Peer {
    pub(super) fn new(window: u32) -> Self {
        Self { window, window_told: window, ..Self::default() }
    }

    /// The peer has been told the credit by a block that leaves now.
    pub(super) fn announced(&mut self, window: u32) {
        self.released_told = self.released;
        self.window_told = window;
        self.probed = false;
    }

    /// The link has failed: nothing is for this peer or wanted of it any more.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        self.outbox.clear();
        self.request = None;
        self.quiet_request = None;
        self.count = None;
    }

    /// Puts a message into the outbox. `false`: there is no room, since the peer asked for more than it should.
    ///
    /// Of the kinds that the latest replaces one is there at most, of the others few are under way (see the module).
    fn post(&mut self, message: Control) -> bool {
        let same = |m: &&mut Control| m.command() == message.command();
        match &message {
            _ if self.failed => true,
            Control::HostInfo { .. }
            | Control::Request { .. }
            | Control::Answer { .. }
            | Control::Binding { .. }
            | Control::Applied { .. } => self.outbox.push_back(message).is_ok(),
            _ => match self.outbox.iter_mut().find(same) {
                Some(before) => {
                    *before = message;
                    true
                }
                None => self.outbox.push_back(message).is_ok(),
            },
        }
    }
}

/// What a node, and the master, remember of control in progress.
#[derive(Debug, Default)]
pub(super) struct State {
    /// A peer that the transport reported failed in answer to a submission.
    pub(super) failing: Option<NodeId>,
    /// Requests of this node; the first is with the master when `asked`.
    asks: Deque<(u32, Change), ASKS>,
    asked: bool,
    next_request: u32,
    /// The master's log position, and the change under way.
    index: u64,
    under_way: Option<(NodeId, u32)>,
    /// Barriers: arrived at, and passed.
    generation: u32,
    passed: u32,
    /// Quiescence: requests made by and answered to this node.
    quiet_asked: u32,
    quiet_done: u32,
    /// At the master: wave under way, and the sum that the last wave found.
    wave: u32,
    counting: bool,
    last_sum: Option<u64>,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    const MASTER: NodeId = NodeId::from_index(0);

    fn is_master(&self) -> bool {
        self.config.node == Self::MASTER
    }

    /// Reports this node to the master.
    pub(super) fn introduce(&mut self) {
        let me = self.config.node;
        let kind = if self.is_master() { NodeKind::Master } else { NodeKind::Compute };
        let entry = NodeEntry { id: me, name: self.config.name.clone(), kind, failed: false };
        let info = Control::HostInfo { node: me, kind, name: entry.name.clone() };
        self.set_node(entry);
        if !self.is_master() {
            self.tell(Self::MASTER, info);
        }
    }

    /// Whether the master's table of nodes has arrived in full, so that names can be used.
    pub fn is_ready(&self) -> bool {
        let known = self.tables.nodes.iter().take(usize::from(self.config.nodes));
        known.into_iter().all(Option::is_some)
            && (!self.is_master()
                || self.peers.iter().take(usize::from(self.config.nodes)).enumerate().all(|(i, p)| {
                    i == 0 || p.failed || usize::from(p.hosts_told) == usize::from(self.config.nodes)
                }))
    }

    pub(super) fn is_asked(&self, name: &Name) -> bool {
        self.control.asks.iter().any(|(_, c)| matches!(c, Change::PartAdded(e) if e.name == *name))
    }

    /// Queues a request to the master.
    pub(super) fn ask(&mut self, change: Change) -> Result<(), Change> {
        let number = self.control.next_request;
        self.control.asks.push_back((number, change)).map_err(|(_, change)| change)?;
        self.control.next_request = number.wrapping_add(1);
        Ok(())
    }

    /// Arrives at the next barrier; it is passed when [`barrier_passed`](Self::barrier_passed) says so. Call once per node and barrier.
    pub fn arrive(&mut self) -> u32 {
        self.control.generation = self.control.generation.wrapping_add(1);
        let generation = self.control.generation;
        if self.is_master() {
            self.note_arrival(Self::MASTER, generation);
        } else {
            self.tell(Self::MASTER, Control::Arrived { generation });
        }
        generation
    }

    /// Whether all nodes have arrived at barrier `generation`.
    pub fn barrier_passed(&self, generation: u32) -> bool {
        self.control.passed.wrapping_sub(generation) < u32::MAX / 2
    }

    /// Nodes that have not arrived at barrier `generation`, as far as this node knows: all of them at the master, else the master.
    pub fn barrier_missing(&self, generation: u32) -> impl Iterator<Item = NodeId> {
        let at_master = self.is_master();
        (0..usize::from(self.config.nodes)).map(NodeId::from_index).filter(move |n| {
            let arrived = self.peers.get(n.index()).map_or(0, |p| p.arrived);
            if at_master { arrived.wrapping_sub(generation) >= u32::MAX / 2 } else { *n == Self::MASTER }
        })
    }

    /// Asks the master to find out when all that was sent before, by any node, has been put into private pipes; done when
    /// [`is_quiet`](Self::is_quiet) says so. Requests made while one is under way are answered together after it.
    pub fn ask_quiet(&mut self) -> u32 {
        self.control.quiet_asked = self.control.quiet_asked.wrapping_add(1);
        self.control.quiet_asked
    }

    /// Whether request `number` has been answered.
    pub fn is_quiet(&self, number: u32) -> bool {
        self.control.quiet_done.wrapping_sub(number) < u32::MAX / 2
    }

    fn set_node(&mut self, entry: NodeEntry) {
        if let Some(slot) = self.tables.nodes.get_mut(entry.id.index()) {
            *slot = Some(entry);
        }
    }

    pub(super) fn tell(&mut self, node: NodeId, message: Control) {
        if let Some(peer) = self.peers.get_mut(node.index()) {
            self.counters.dropped_control += u64::from(!peer.post(message));
        }
    }

    /// Takes the next steps that depend on nothing but this node's state.
    pub(super) fn advance_control(&mut self, pipes: &mut impl PrivatePipes) {
        self.forward_asks();
        if self.is_master() {
            self.tell_hosts();
            self.advance_change(pipes);
            self.advance_quiet(pipes);
        } else {
            let (asked, done) = (self.control.quiet_asked, self.control.quiet_done);
            let waiting = self.peers.get(self.config.node.index()).is_some_and(|p| p.quiet_request.is_some());
            if asked != done && !waiting {
                self.tell(Self::MASTER, Control::QuietRequest { number: asked });
                if let Some(own) = self.peers.get_mut(self.config.node.index()) {
                    own.quiet_request = Some((asked, 0));
                }
            }
        }
    }

    fn forward_asks(&mut self) {
        if self.control.asked {
            return;
        }
        let Some((number, change)) = self.control.asks.front().cloned() else { return };
        self.control.asked = true;
        if self.is_master() {
            if let Some(own) = self.peers.get_mut(0) {
                own.request = Some((number, change));
            }
        } else {
            self.tell(Self::MASTER, Control::Request { number, change });
        }
    }

    /// Master: sends the table of nodes once it is complete, a few rows at a time.
    fn tell_hosts(&mut self) {
        let nodes = usize::from(self.config.nodes);
        if self.tables.nodes.iter().take(nodes).any(Option::is_none) {
            return;
        }
        for peer in self.peers.iter_mut().take(nodes).skip(1).filter(|p| !p.failed) {
            while usize::from(peer.hosts_told) < nodes && peer.outbox.len() < OUTBOX / 2 {
                if let Some(Some(entry)) = self.tables.nodes.get(usize::from(peer.hosts_told)) {
                    peer.post(Control::HostInfo {
                        node: entry.id,
                        kind: entry.kind,
                        name: entry.name.clone(),
                    });
                }
                peer.hosts_told += 1;
            }
        }
    }

    /// Master: takes the next request when no change is under way, and answers the asker when all have applied it.
    fn advance_change(&mut self, pipes: &mut impl PrivatePipes) {
        if let Some((asker, number)) = self.control.under_way {
            if self.peers.iter().take(usize::from(self.config.nodes)).any(|p| !p.applied && !p.failed) {
                return;
            }
            self.control.under_way = None;
            self.answer(asker, number, true, pipes);
        }
        let next = self.peers.iter_mut().enumerate().find_map(|(i, p)| Some((i, p.request.take()?)));
        let Some((asker, (number, change))) = next else { return };
        let asker = NodeId::from_index(asker);
        if matches!(change, Change::PartAdded(_)) && !self.tables.has_room() {
            self.answer(asker, number, false, pipes);
            return;
        }
        self.control.index += 1;
        let index = self.control.index;
        self.control.under_way = Some((asker, number));
        for (i, peer) in self.peers.iter_mut().take(usize::from(self.config.nodes)).enumerate() {
            peer.applied = i == 0;
            if i != 0 && !peer.failed {
                peer.post(Control::Binding { index, change: change.clone() });
            }
        }
        self.apply(change);
    }

    fn answer(&mut self, asker: NodeId, number: u32, accepted: bool, pipes: &mut impl PrivatePipes) {
        if asker == self.config.node {
            self.answered(number, accepted, pipes);
        } else {
            self.tell(asker, Control::Answer { number, accepted });
        }
    }

    fn answered(&mut self, number: u32, accepted: bool, pipes: &mut impl PrivatePipes) {
        if self.control.asks.front().is_none_or(|(n, _)| *n != number) {
            return;
        }
        let Some((_, change)) = self.control.asks.pop_front() else { return };
        self.control.asked = false;
        let (part, state) = match change {
            Change::PartAdded(entry) if accepted => (entry.id, LocalPart::Known),
            Change::PartAdded(entry) => (entry.id, LocalPart::Refused),
            Change::PartRemoved(id) => (id, LocalPart::Free),
        };
        if let Some(slot) = self.local.get_mut(usize::from(part.local())) {
            *slot = state;
        }
        pipes.event(Event::Changed { part, accepted });
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::PartAdded(entry) => self.tables.insert(entry),
            Change::PartRemoved(id) => self.tables.remove(id),
        }
    }

    fn note_arrival(&mut self, node: NodeId, generation: u32) {
        let passed = self.control.passed;
        // How far a node is beyond the last barrier that all have passed.
        let beyond =
            |arrived: u32| Some(arrived.wrapping_sub(passed)).filter(|n| *n < u32::MAX / 2).unwrap_or(0);
        if let Some(peer) = self.peers.get_mut(node.index())
            && beyond(generation) > beyond(peer.arrived)
        {
            peer.arrived = generation;
        }
        let all = self.peers.iter().map(|p| beyond(p.arrived)).min().unwrap_or(0);
        if all > 0 {
            let generation = passed.wrapping_add(all);
            self.control.passed = generation;
            for peer in self.peers.iter_mut().skip(1) {
                peer.post(Control::Released { generation });
            }
        }
    }

    /// Data blocks sent and delivered, and blocks at writers, by this node's counts. Links that have failed do not count:
    /// what was on them will not arrive.
    fn counts(&self) -> (u64, u64, u32) {
        let (mut sent, mut delivered, mut open) = (0, 0, 0);
        let live = self.send_rows.iter().zip(self.peers.iter()).filter(|(_, p)| !p.failed);
        for (row, peer) in live {
            sent += row.blocks;
            delivered += peer.delivered;
            open += row.open;
        }
        (sent, delivered, open)
    }

    /// Master: counts in waves until two in a row find every block sent delivered, and the same number of them.
    fn advance_quiet(&mut self, pipes: &mut impl PrivatePipes) {
        let nodes = usize::from(self.config.nodes);
        if !self.control.counting {
            let own = self.control.quiet_asked != self.control.quiet_done;
            let wave = self.control.wave;
            let mut wanted = own;
            for peer in self.peers.iter_mut().take(nodes) {
                wanted |= peer.quiet_request.is_some();
                // A request counts from the first wave that starts after it.
                if let Some((_, since)) = &mut peer.quiet_request
                    && *since == 0
                {
                    *since = wave + 1;
                }
            }
            if wanted {
                self.start_wave(pipes);
            }
            return;
        }
        if self.peers.iter().take(nodes).any(|p| p.count.is_none() && !p.failed) {
            return;
        }
        let counts = || self.peers.iter().take(nodes).filter(|p| !p.failed).filter_map(|p| p.count);
        let sent: u64 = counts().map(|c| c.1).sum();
        let delivered: u64 = counts().map(|c| c.2).sum();
        let open: u32 = counts().map(|c| c.3).sum();
        self.control.counting = false;
        let settled = sent == delivered && open == 0;
        if !settled || self.control.last_sum != Some(sent) {
            self.control.last_sum = settled.then_some(sent);
            return;
        }
        // This wave and the one before agree: what was sent before the first of them has been received.
        let first = self.control.wave - 1;
        for peer in self.peers.iter_mut().take(nodes) {
            if let Some((number, since)) = peer.quiet_request
                && since != 0
                && since <= first
            {
                peer.quiet_request = None;
                peer.post(Control::Quiet { number });
            }
        }
        if let Some(own) = self.peers.get_mut(0) {
            // The master's own answer needs no message.
            while let Some(message) = own.outbox.pop_front() {
                if let Control::Quiet { number } = message {
                    self.control.quiet_done = number;
                }
            }
        }
        self.control.last_sum = None;
    }

    fn start_wave(&mut self, pipes: &mut impl PrivatePipes) {
        let nodes = usize::from(self.config.nodes);
        let asked = self.control.quiet_asked;
        let wave = self.control.wave + 1;
        self.control.wave = wave;
        self.control.counting = true;
        for (i, peer) in self.peers.iter_mut().take(nodes).enumerate() {
            peer.count = None;
            if i == 0 {
                if asked != self.control.quiet_done && peer.quiet_request.is_none() {
                    peer.quiet_request = Some((asked, wave));
                }
            } else if !peer.failed {
                peer.post(Control::CountRequest { wave });
            }
        }
        self.flush();
        pipes.event(Event::FlushWanted);
        let (sent, delivered, open) = self.counts();
        if let Some(own) = self.peers.get_mut(0) {
            own.count = Some((wave, sent, delivered, open));
        }
    }

    pub(super) fn handle_control(&mut self, from: NodeId, message: Control, pipes: &mut impl PrivatePipes) {
        let master = self.is_master();
        let of_master = from == Self::MASTER;
        match message {
            Control::HostInfo { node, kind, name } if if master { node == from } else { of_master } => {
                if node.index() < usize::from(self.config.nodes) {
                    let failed = self.has_failed(node);
                    self.set_node(NodeEntry { id: node, name, kind, failed });
                }
            }
            Control::Request { number, change } if master => {
                let own = match &change {
                    Change::PartAdded(entry) => entry.id.node() == from,
                    Change::PartRemoved(id) => id.node() == from,
                };
                if let Some(peer) = self.peers.get_mut(from.index()).filter(|_| own) {
                    peer.request = Some((number, change));
                }
            }
            Control::Answer { number, accepted } if of_master => self.answered(number, accepted, pipes),
            Control::Binding { index, change } if of_master => {
                self.apply(change);
                self.tell(Self::MASTER, Control::Applied { index });
            }
            Control::Applied { index } if master => {
                let current = index == self.control.index;
                if let Some(peer) = self.peers.get_mut(from.index()).filter(|_| current) {
                    peer.applied = true;
                }
            }
            Control::Arrived { generation } if master => self.note_arrival(from, generation),
            Control::Released { generation } if of_master => self.control.passed = generation,
            Control::QuietRequest { number } if master => {
                if let Some(peer) = self.peers.get_mut(from.index()) {
                    peer.quiet_request = Some((number, 0));
                }
            }
            Control::CountRequest { wave } if of_master => {
                self.flush();
                pipes.event(Event::FlushWanted);
                let (sent, delivered, open) = self.counts();
                self.tell(Self::MASTER, Control::Count { wave, sent, delivered, open });
            }
            Control::Count { wave, sent, delivered, open } if master => {
                let current = wave == self.control.wave;
                if let Some(peer) = self.peers.get_mut(from.index()).filter(|_| current) {
                    peer.count = Some((wave, sent, delivered, open));
                }
            }
            Control::Quiet { number } if of_master => {
                self.control.quiet_done = number;
                if let Some(own) = self.peers.get_mut(self.config.node.index()) {
                    own.quiet_request = None;
                }
            }
            Control::Probe => {
                if let Some(peer) = self.peers.get_mut(from.index()) {
                    peer.probed = true;
                }
            }
            _ => self.counters.misdirected += 1,
        }
    }

    /// Sends what waits in the outboxes, and credit that no other block carries. `idle`: there was nothing else to do.
    pub(super) fn pump_control(&mut self, idle: bool) -> u32 {
        let mut worked = 0;
        // A peer that does not take its blocks must not hold those of all others.
        let share = (self.config.control_blocks / u32::from(self.config.nodes)).max(1);
        for node in (0..usize::from(self.config.nodes)).map(NodeId::from_index) {
            if node == self.config.node || self.peers.get(node.index()).is_none_or(|p| p.failed) {
                continue;
            }
            for _ in 0..BUDGET {
                if !self.flush_control_queue(node) || !self.wants_control(node, idle) {
                    break;
                }
                if self.peers.get(node.index()).is_some_and(|p| p.control_away >= share) {
                    break;
                }
                let Some(index) = self.dequeue(|e| Some(&mut e.reserve)) else { break };
                self.fill_control(node, index);
                self.enqueue(index, |e| e.send_rows.get_mut(node.index()).map(|r| &mut r.control));
                worked += 1;
            }
        }
        worked
    }

    /// Gives the transport the control blocks that it refused before. `false`: it still does.
    fn flush_control_queue(&mut self, node: NodeId) -> bool {
        while let Some(index) = self.dequeue(|e| e.send_rows.get_mut(node.index()).map(|r| &mut r.control)) {
            if !self.transmit(node, index, false) {
                self.requeue(index, |e| e.send_rows.get_mut(node.index()).map(|r| &mut r.control));
                return false;
            }
        }
        true
    }

    fn wants_control(&self, node: NodeId, idle: bool) -> bool {
        let posted = self.capabilities.arrival == crate::transport::Arrival::Posted;
        let Some(real) = self.recv_rows.get(node.index()).map(|r| r.space.real()) else { return false };
        let Some(peer) = self.peers.get(node.index()) else { return false };
        let news = peer.released - peer.released_told;
        // A reader may keep half of the blocks while it waits for more: then news of fewer matters to the peer too, as
        // soon as it may be out of credit (less the element kept for commands).
        let short = peer.data_received.saturating_sub(peer.released_told) + 1 >= u64::from(real);
        let credit = news >= u64::from((real / 2).max(1)) || (news > 0 && idle && short);
        peer.window_told != real || (posted && credit) || peer.probed || !peer.outbox.is_empty()
    }

    /// Packs the messages of an outbox, as many as fit, into a block set aside for control.
    fn fill_control(&mut self, node: NodeId, index: u32) {
        let mut raw = self.umb.raw(index);
        let mut packer = Packer::new();
        let body = raw.body_mut();
        if let Some(peer) = self.peers.get_mut(node.index()) {
            while let Some(message) = peer.outbox.front() {
                let bytes: [u8; CONTROL] = message.encode();
                let route = Route::raw(CduClass::ShortMessage as u8, message.command(), 0, 0);
                if packer.push(body, route, &bytes).is_err() {
                    break;
                }
                peer.outbox.pop_front();
            }
        }
        let messages = packer.messages();
        let length = (BLOCK_HEADER + packer.finish(body)) as u32;
        let mut block = SealedBlock { raw, length };
        self.write_fixed(&mut block, node, BlockClass::Control, 0, messages);
        if let Some(entry) = self.umb.entry(index) {
            entry.state = BlockState::Queued;
            entry.length = length;
        }
    }
}
