//! What has come to a host's parts and is not read, and what its engine had to say.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pdbp_core::engine::PrivatePipes;
use pdbp_core::id::{NodeId, PipeId, StreamNo};
use pdbp_core::{Delivery, Event};

use super::payload::{Payload, Way};

/// In the order in which it came.
#[derive(Debug)]
pub(super) enum Item {
    /// For the part with this local index.
    Delivery(u16, Delivery),
    /// No more of this stream comes.
    Broken(NodeId, StreamNo),
}

/// The private pipes of a host's parts, and what the engine had to say.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    items: VecDeque<Item>,
    deliveries: usize,
    capacity: usize,
    /// The pipe of the second part.
    pub(super) second: Option<PipeId>,
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
    pub(super) fn new(capacity: usize, watched: bool) -> Self {
        Self { capacity, given: watched.then(BTreeMap::new), ..Self::default() }
    }

    /// Deliveries that are not read.
    pub(super) fn unread(&self) -> usize {
        self.deliveries
    }

    pub(super) fn next(&mut self) -> Option<Item> {
        let item = self.items.pop_front();
        self.deliveries -= usize::from(matches!(item, Some(Item::Delivery(..))));
        item
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
        let local = u16::from(self.second == Some(pipe));
        if local == 0 {
            self.watch(&delivery);
        }
        self.deliveries += 1;
        self.items.push_back(Item::Delivery(local, delivery));
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
            Event::StreamBroken { mapping } => {
                self.items.push_back(Item::Broken(mapping.source, mapping.number));
            }
            Event::StreamStopped { number, .. } => self.stopped.push(number),
            Event::FlushWanted => self.flush_wanted = true,
            _ => {}
        }
    }
}
