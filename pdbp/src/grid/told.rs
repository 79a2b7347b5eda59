//! Parts of this cluster that another one has heard of.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pdbp_core::id::PartId;

use crate::node::NodeEngine;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Told {
    /// Each with the time of its last message.
    parts: BTreeMap<u64, Instant>,
}

impl Told {
    /// A part has sent something there.
    pub(super) fn insert(&mut self, part: u64) {
        self.parts.insert(part, Instant::now());
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

    /// Parts that have gone. Nobody is told when a part without a name goes: one that has sent nothing for `patience` counts as
    /// gone, until it sends again.
    pub(super) fn gone<'a>(
        &'a self,
        engine: &'a NodeEngine,
        patience: Duration,
    ) -> impl Iterator<Item = u64> + 'a {
        let is_there = move |bits: u64, since: &Instant| {
            PartId::from_bits(bits).is_some_and(|part| {
                engine.has_part(part) && (!part.is_nameless() || since.elapsed() < patience)
            })
        };
        self.parts.iter().filter(move |(bits, since)| !is_there(**bits, since)).map(|(bits, _)| *bits)
    }
}
