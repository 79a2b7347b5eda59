//! A replica of the tables.

use std::string::String;
use std::vec::Vec;

use crate::agreement::{Change, Replica};
use crate::id::{NodeId, PartId};
use crate::tables::{Name, NodeEntry, NodeKind, PartEntry, PartKind};

#[derive(Clone, Default)]
pub(super) struct Table {
    pub(super) nodes: Vec<Option<NodeEntry>>,
    pub(super) parts: Vec<Option<PartEntry>>,
    /// What was applied since it was last looked at.
    pub(super) applied: Vec<Change>,
}

impl Table {
    pub(super) fn new(nodes: usize, parts: usize) -> Self {
        Self {
            nodes: (0..nodes).map(|_| None).collect(),
            parts: (0..parts).map(|_| None).collect(),
            applied: Vec::new(),
        }
    }

    pub(super) fn has(&self, id: PartId) -> bool {
        self.parts.iter().flatten().any(|p| p.id == id)
    }

    pub(super) fn listing(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.parts.iter().flatten().map(|p| p.id.raw()).collect();
        ids.sort_unstable();
        ids
    }
}

impl Replica for Table {
    fn apply(&mut self, change: &Change) {
        self.applied.push(change.clone());
        match change {
            Change::Nothing => {}
            Change::NodeUp(entry) => {
                if let Some(slot) = self.nodes.get_mut(entry.id.index()) {
                    *slot = Some(entry.clone());
                }
            }
            Change::NodeDown(node) => {
                if let Some(Some(entry)) = self.nodes.get_mut(node.index()) {
                    entry.failed = true;
                }
            }
            Change::PartAdded(entry) => {
                let same = self.parts.iter().position(|p| p.as_ref().is_some_and(|p| p.id == entry.id));
                let slot = same.or_else(|| self.parts.iter().position(Option::is_none));
                let slot = slot.expect("there is room for a part that is added");
                self.parts[slot] = Some(entry.clone());
            }
            Change::PartRemoved(id) => {
                for slot in self.parts.iter_mut().filter(|p| p.as_ref().is_some_and(|p| p.id == *id)) {
                    *slot = None;
                }
            }
        }
    }

    fn contains(&self, change: &Change) -> bool {
        match change {
            Change::Nothing => true,
            Change::NodeUp(e) => self.nodes.iter().flatten().any(|n| n.id == e.id && !n.failed),
            Change::NodeDown(node) => self.nodes.iter().flatten().any(|n| n.id == *node && n.failed),
            Change::PartAdded(entry) => self.has(entry.id),
            Change::PartRemoved(id) => !self.has(*id),
        }
    }

    fn room(&self) -> usize {
        self.parts.iter().filter(|p| p.is_none()).count()
    }

    fn row(&self, cursor: u64) -> Option<(Change, u64)> {
        let nodes = self.nodes.iter().map(|n| n.clone().map(Change::NodeUp));
        let parts = self.parts.iter().map(|p| p.clone().map(Change::PartAdded));
        let rows = nodes.chain(parts).enumerate().skip(cursor as usize);
        rows.into_iter().find_map(|(i, row)| Some((row?, i as u64 + 1)))
    }

    fn clear(&mut self) {
        *self = Self::new(self.nodes.len(), self.parts.len());
    }
}

pub(super) fn node(index: usize) -> NodeId {
    NodeId::new(index as u16).unwrap()
}

pub(super) fn entry(index: usize) -> NodeEntry {
    let name = Name::new(&std::format!("host {index}")).unwrap();
    NodeEntry { id: node(index), name, kind: NodeKind::Compute, failed: false, life: 0 }
}

pub(super) fn part(owner: usize, local: u16) -> PartId {
    PartId::new(node(owner), local).unwrap()
}

pub(super) fn added(id: PartId) -> Change {
    let name: String = std::format!("part {}", id.local());
    Change::PartAdded(PartEntry { id, name: Name::new(&name).unwrap(), kind: PartKind::Cpu })
}
