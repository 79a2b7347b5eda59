//! Parts of this cluster that another one has heard of.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pdbp_core::id::PartId;

use super::flow;
use super::wire::command;
use crate::node::{Node, NodeEngine};
use crate::part::{Part, Shared, Target};

/// See the [module](self).
#[derive(Default)]
pub(super) struct AnnouncedParts {
    parts: BTreeMap<u64, Announced>,
}

/// A part's state.
struct Announced {
    /// When it last sent something, or its node was asked for it.
    since: Instant,
    /// Whether its node has said that it has gone.
    is_gone: bool,
}

impl AnnouncedParts {
    /// Records that the other cluster has heard of a part, or from it.
    pub(super) fn insert(&mut self, part: u64) {
        self.parts.insert(part, Announced { since: Instant::now(), is_gone: false });
    }

    pub(super) fn remove(&mut self, part: u64) {
        self.parts.remove(&part);
    }

    pub(super) fn contains(&self, part: u64) -> bool {
        self.parts.contains_key(&part)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Asks for parts without a name that have sent nothing for `patience`: only their own nodes know when they go.
    pub(super) fn ask(&mut self, node: &Node, gate: &Part<Shared>, patience: Duration) {
        for (bits, part) in &mut self.parts {
            let Some(id) = Target::from_bits(*bits).filter(|id| id.is_nameless() && id.node() != node.id())
            else {
                continue;
            };
            if part.since.elapsed() >= patience
                && let Some(to) = flow::part_of(node, id.node())
                && flow::tell(gate, to, command::EXISTS, &bits.to_le_bytes())
            {
                part.since = Instant::now();
            }
        }
    }

    /// Records that a part has gone, as its node has said. If a message of it follows, that one was overtaken.
    pub(super) fn confirm_gone(&mut self, part: Target) {
        if let Some(part) = self.parts.get_mut(&part.to_bits()) {
            part.is_gone = true;
        }
    }

    /// Parts that have gone.
    pub(super) fn removed<'a>(&'a self, engine: &'a NodeEngine) -> impl Iterator<Item = u64> + 'a {
        let exists = |bits: u64| PartId::from_bits(bits).is_some_and(|part| engine.has_part(part));
        self.parts.iter().filter(move |(bits, part)| part.is_gone || !exists(**bits)).map(|(bits, _)| *bits)
    }
}
