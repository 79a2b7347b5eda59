//! The private pipes of a host's parts, and what its engine had to say.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pdbp_core::engine::{DeliveryKind, PrivatePipes};
use pdbp_core::id::{NodeId, PipeId, StreamNo};
use pdbp_core::inbox::Arrival;
use pdbp_core::{Config, Delivery, Event};

use super::payload::{Payload, Way};

/// A private pipe, in the order in which things came.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    commands: VecDeque<Delivery>,
    arrivals: VecDeque<Arrival>,
}

/// The private pipes of a host's parts, and what the engine had to say.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pipes: [Pipe; 2],
    deliveries: usize,
    capacity: usize,
    /// The pipe of the second part.
    pub(super) second: Option<PipeId>,
    /// By relay: the nodes that it is the relay of on their way here.
    behind: BTreeMap<u16, Vec<NodeId>>,
    /// Peers whose link has failed, now or before.
    pub(super) failed: BTreeSet<u16>,
    /// Those of them that have failed since the host took note.
    pub(super) fresh: Vec<u16>,
    /// Streams that their relays have stopped since then.
    pub(super) stopped: Vec<StreamNo>,
    /// The engine has asked for all open blocks.
    pub(super) flush_wanted: bool,
    /// What the first part has been given, by source and way: life, and the number that is next. `None`: nobody asks.
    pub(super) given: Option<BTreeMap<(u16, Way), (u32, u64)>>,
    #[cfg(test)]
    pub(super) hides: Option<super::sabotage::Hidden>,
}

impl Inbox {
    pub(super) fn new(capacity: usize, watched: bool, config: &Config) -> Self {
        let mut behind = BTreeMap::<u16, Vec<NodeId>>::new();
        for from in (0..config.nodes).filter_map(NodeId::new) {
            let relay = config.routing.relay(config.nodes, config.masters, from, config.node);
            if let Some(relay) = relay.filter(|_| from != config.node) {
                behind.entry(relay.raw()).or_default().push(from);
            }
        }
        Self { capacity, behind, given: watched.then(BTreeMap::new), ..Self::default() }
    }

    /// Deliveries that are in the pipes.
    pub(super) fn unread(&self) -> usize {
        self.deliveries
    }

    /// The next delivery of commands for a part.
    pub(super) fn pull_command(&mut self, local: u16) -> Option<Delivery> {
        let delivery = self.pipes.get_mut(usize::from(local))?.commands.pop_front()?;
        self.deliveries -= 1;
        Some(delivery)
    }

    /// What has come next for a part, commands aside.
    pub(super) fn pull(&mut self, local: u16) -> Option<Arrival> {
        let arrival = self.pipes.get_mut(usize::from(local))?.arrivals.pop_front()?;
        self.deliveries -= usize::from(matches!(arrival, Arrival::Piece(_)));
        Some(arrival)
    }

    /// Notes what there is for the first part. Unreadable messages are found when they are read.
    fn watch(&mut self, delivery: &Delivery) {
        let Some(given) = &mut self.given else { return };
        let messages = delivery.cdus().flatten().flat_map(|train| train.messages());
        for payload in messages.filter_map(Payload::fields).filter(|p| p.source == delivery.source().raw()) {
            given.insert((payload.source, payload.way), (payload.life, payload.number + 1));
        }
    }
}

impl PrivatePipes for Inbox {
    fn deliver(&mut self, pipe: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        if self.deliveries >= self.capacity {
            return Err(delivery);
        }
        let local = usize::from(self.second == Some(pipe));
        if local == 0 {
            self.watch(&delivery);
        }
        let Some(pipe) = self.pipes.get_mut(local) else { return Err(delivery) };
        self.deliveries += 1;
        match delivery.kind() {
            DeliveryKind::Messages { urgent: true } => pipe.commands.push_back(delivery),
            _ => pipe.arrivals.push_back(Arrival::Piece(delivery)),
        }
        Ok(())
    }

    fn event(&mut self, event: Event) {
        #[cfg(test)]
        if self.hides.is_some_and(|hidden| hidden.covers(&event)) {
            return;
        }
        match event {
            Event::PeerFailed { peer, .. } => {
                self.failed.insert(peer.raw());
                self.fresh.push(peer.raw());
            }
            Event::LinkEnded { peer } => {
                let behind = self.behind.get(&peer.raw()).cloned().unwrap_or_default();
                for node in behind.into_iter().chain([peer]) {
                    self.pipes.iter_mut().for_each(|pipe| pipe.arrivals.push_back(Arrival::Failed(node)));
                }
            }
            Event::StreamBroken { mapping } => {
                let broken = Arrival::StreamBroken { source: mapping.source, number: mapping.number };
                if let Some(pipe) = self.pipes.get_mut(usize::from(mapping.part)) {
                    pipe.arrivals.push_back(broken);
                }
            }
            Event::StreamStopped { number, .. } => self.stopped.push(number),
            Event::FlushWanted => self.flush_wanted = true,
            _ => {}
        }
    }
}
