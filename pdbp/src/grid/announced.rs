//! Parts of this cluster that another one has heard of.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pdbp_core::id::PartId;

use crate::node::NodeEngine;

/// See the [module](self).
#[derive(Default)]
pub(super) struct AnnouncedParts {
    /// The time of each part's last message.
    parts: BTreeMap<u64, Instant>,
}

impl AnnouncedParts {
    /// Records that the other cluster has heard of a part, or from it.
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

    /// Parts that have gone. A nameless part goes without notice: one that has sent nothing for `patience` counts as gone,
    /// until it sends again.
    pub(super) fn removed<'a>(
        &'a self,
        engine: &'a NodeEngine,
        patience: Duration,
    ) -> impl Iterator<Item = u64> + 'a {
        let exists = move |bits: u64, since: &Instant| {
            PartId::from_bits(bits).is_some_and(|part| {
                engine.has_part(part) && (!part.is_nameless() || since.elapsed() < patience)
            })
        };
        self.parts.iter().filter(move |(bits, since)| !exists(**bits, since)).map(|(bits, _)| *bits)
    }
}
