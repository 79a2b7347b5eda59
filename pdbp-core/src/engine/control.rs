//! Control messages between engines: host information, changes of PTA and barriers.
//!
//! Everything goes through the master, node 0. Each kind of message has at most one instance under way per link, so that the
//! outboxes are small and bounded.

use heapless::Deque;

use super::peer::OUTBOX;
use super::{Engine, Event, LocalPart, PrivatePipes};
use crate::id::NodeId;
use crate::mesp::{Change, Control};
use crate::policy::SpacePolicy;
use crate::tables::{Name, NodeEntry, NodeKind};
use crate::transport::Transport;
use crate::umb::BlockMemory;

const ASKS: usize = 32;

/// What a node, and the master, remember of control in progress.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Something has happened since `advance_control` found nothing to do.
    pub(super) stirred: bool,
    /// Some peer's blocks were refused for good.
    pub(super) refused: bool,
    /// Requests of this node; the first is with the master when `asked`.
    pub(super) asks: Deque<(u32, Change), ASKS>,
    pub(super) asked: bool,
    pub(super) next_request: u32,
    /// The master's log position, and the change under way.
    pub(super) index: u64,
    pub(super) under_way: Option<(NodeId, u32)>,
    /// Barriers: arrived at, and passed.
    pub(super) generation: u32,
    pub(super) passed: u32,
    /// Quiescence: requests made by and answered to this node.
    pub(super) quiet_asked: u32,
    pub(super) quiet_done: u32,
    /// At the master: wave under way, and the sum that the last wave found.
    pub(super) wave: u32,
    pub(super) counting: bool,
    pub(super) last_sum: Option<u64>,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    const MASTER: NodeId = NodeId::from_index(0);

    pub(super) fn is_master(&self) -> bool {
        self.config.node == Self::MASTER
    }

    /// Reports this node to the master.
    pub(super) fn introduce(&mut self) {
        let me = self.config.node;
        self.control.stirred = true;
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
        self.control.stirred = true;
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

    /// Takes the next steps that depend on nothing but this node's state. A poll in which nothing has happened and nothing is
    /// under way costs a look at one flag, however many nodes there are.
    pub(super) fn advance_control(&mut self, pipes: &mut impl PrivatePipes) {
        if !self.control.stirred {
            return;
        }
        let mut busy = !self.control.asks.is_empty();
        self.forward_asks();
        if self.is_master() {
            busy |= self.tell_hosts();
            busy |= self.advance_change(pipes);
            busy |= self.advance_quiet(pipes);
        } else {
            let (asked, done) = (self.control.quiet_asked, self.control.quiet_done);
            busy |= asked != done;
            let waiting = self.peers.get(self.config.node.index()).is_some_and(|p| p.quiet_request.is_some());
            if asked != done && !waiting {
                self.tell(Self::MASTER, Control::QuietRequest { number: asked });
                if let Some(own) = self.peers.get_mut(self.config.node.index()) {
                    own.quiet_request = Some((asked, 0));
                }
            }
        }
        self.control.stirred = busy;
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

    /// Master: sends the table of nodes once it is complete, a few rows at a time. Whether there is more to tell.
    fn tell_hosts(&mut self) -> bool {
        let nodes = usize::from(self.config.nodes);
        if self.tables.nodes.iter().take(nodes).any(Option::is_none) {
            return true;
        }
        let mut more = false;
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
            more |= usize::from(peer.hosts_told) < nodes;
        }
        more
    }

    /// Master: takes the next request when no change is under way, and answers the asker when all have applied it. Whether it
    /// wants to be called again.
    fn advance_change(&mut self, pipes: &mut impl PrivatePipes) -> bool {
        if let Some((asker, number)) = self.control.under_way {
            if self.peers.iter().take(usize::from(self.config.nodes)).any(|p| !p.applied && !p.failed) {
                return true;
            }
            self.control.under_way = None;
            self.answer(asker, number, true, pipes);
        }
        let next = self.peers.iter_mut().enumerate().find_map(|(i, p)| Some((i, p.request.take()?)));
        let Some((asker, (number, change))) = next else { return false };
        let asker = NodeId::from_index(asker);
        if matches!(change, Change::PartAdded(_)) && !self.tables.has_room() {
            self.answer(asker, number, false, pipes);
            return true;
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
        true
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

    pub(super) fn handle_control(&mut self, from: NodeId, message: Control, pipes: &mut impl PrivatePipes) {
        let master = self.is_master();
        let of_master = from == Self::MASTER;
        self.control.stirred = true;
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
}
