//! What nodes offer, and how much of it is in use.

use std::collections::HashMap;

use crate::resources::{Resources, Shortfall, Used};

use super::lanes::{Demand, Isolation};

/// What a task lacks: any task that would take some of it must wait.
#[derive(Clone, Copy, Default)]
pub(super) struct Lacks {
    /// Processors, or a node for itself.
    all: bool,
    /// A node without another suspect.
    suspects: bool,
    of_use: Shortfall,
}

impl Lacks {
    pub(super) fn is_empty(self) -> bool {
        !self.all && !self.suspects && self.of_use.is_empty()
    }

    /// What either lacks.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            all: self.all || other.all,
            suspects: self.suspects || other.suspects,
            of_use: self.of_use.with(other.of_use),
        }
    }

    /// Whether a task with this demand would take any of it.
    pub(super) fn concern(self, demand: &Demand) -> bool {
        self.all
            || self.suspects && demand.isolation != Isolation::None
            || self.of_use.concerns(&demand.needs)
    }
}

/// A node's isolation state and resources in use. All of it may be forgotten.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    /// What its processors have announced. Until then a task can have one of its processors and nothing else.
    offer: Option<Resources>,
    used: Used,
    /// How many of its processors the pool knows.
    pub(super) processors: usize,
    /// How many of those hold something.
    busy: usize,
    /// Suspects that run here.
    suspects: usize,
    /// A task that has the node for itself runs here.
    taken: bool,
}

impl Room {
    #[cfg(feature = "metrics")]
    fn seen(&self, node: u16) -> super::seen::Node {
        let (offers, in_use) = (self.offer.clone(), self.used.all());
        super::seen::Node { node, processors: self.processors, busy: self.busy, offers, in_use }
    }

    /// Whether one of its processors holds something.
    pub(super) fn is_busy(&self) -> bool {
        self.busy > 0
    }

    /// Whether a task with this demand could run here if nothing else did.
    pub(super) fn could(&self, demand: &Demand) -> bool {
        self.processors > 0
            && (demand.needs.is_plain()
                || self.offer.as_ref().is_some_and(|offer| offer.covers(&demand.needs)))
    }

    /// Whether it can run here now, on a processor that holds nothing.
    pub(super) fn fits(&self, demand: &Demand) -> bool {
        self.could(demand) && self.lacks(demand).is_empty()
    }

    /// What a task that could run here lacks because of what runs now.
    pub(super) fn lacks(&self, demand: &Demand) -> Lacks {
        let apart = match demand.isolation {
            Isolation::None => false,
            Isolation::Processor => self.suspects > 0,
            Isolation::Node => self.busy > 0,
        };
        let of_use = self
            .offer
            .as_ref()
            .map_or_else(Shortfall::default, |offer| self.used.short(offer, &demand.needs));
        Lacks {
            all: of_use.cpus || self.taken || apart && demand.isolation == Isolation::Node,
            suspects: apart,
            of_use,
        }
    }

    /// A processor that held nothing takes a task. Returns the GPUs assigned to it.
    pub(super) fn take(&mut self, demand: &Demand) -> u64 {
        self.busy += 1;
        self.suspects += usize::from(demand.isolation != Isolation::None);
        self.taken |= demand.isolation == Isolation::Node;
        self.used.take(&demand.needs)
    }

    /// A processor has finished all that it was given.
    pub(super) fn release(&mut self, demand: &Demand, gpus: u64) {
        self.busy = self.busy.saturating_sub(1);
        if demand.isolation != Isolation::None {
            self.suspects = self.suspects.saturating_sub(1);
        }
        self.taken &= demand.isolation != Isolation::Node;
        self.used.release(&demand.needs, gpus);
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Nodes(HashMap<u16, Room>);

impl Nodes {
    pub(super) fn of(&mut self, node: u16) -> &mut Room {
        self.0.entry(node).or_default()
    }

    pub(super) fn get(&self, node: u16) -> Option<&Room> {
        self.0.get(&node)
    }

    pub(super) fn set_offer(&mut self, node: u16, offer: Resources) {
        self.of(node).offer = Some(offer);
    }

    pub(super) fn could(&self, demand: &Demand) -> bool {
        self.0.values().any(|room| room.could(demand))
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        format!("{:?}", self.0.iter().collect::<std::collections::BTreeMap<_, _>>())
    }

    /// Nodes with processors, by number.
    #[cfg(feature = "metrics")]
    pub(super) fn seen(&self) -> Vec<super::seen::Node> {
        let with = self.0.iter().filter(|(_, room)| room.processors > 0);
        let mut nodes: Vec<_> = with.map(|(node, room)| room.seen(*node)).collect();
        nodes.sort_unstable_by_key(|node| node.node);
        nodes
    }

    /// What the first few nodes offer, for people.
    pub(super) fn offers(&self) -> String {
        let mut all: Vec<_> = self.0.iter().filter(|(_, room)| room.processors > 0).collect();
        all.sort_unstable_by_key(|(node, _)| **node);
        let some: Vec<String> = all
            .iter()
            .take(4)
            .map(|(node, room)| match &room.offer {
                Some(offer) => format!("node{node} offers {offer}"),
                None => format!("node{node} offers processors only"),
            })
            .collect();
        match (some.is_empty(), all.len() - some.len()) {
            (true, _) => "there is no processor".to_owned(),
            (false, 0) => some.join(", "),
            (false, more) => format!("{} and {more} more", some.join(", ")),
        }
    }
}
