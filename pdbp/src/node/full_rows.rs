//! Send rows that were full, and whether they may have room since.
//!
//! A part that sends to many nodes without waiting tries again and again, and each try takes the engine's lock and a poll. So a full row is
//! tried again only when it has room, not whenever anything has happened at the node: otherwise senders to one peer that does not read would
//! try in vain each time another peer does.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pdbp_core::id::NodeId;

use super::NodeEngine;

/// Of each node whether its row was full, and how often it was not any more. All is written under the engine's lock, and hints without it, so that no
/// order is needed.
pub(crate) struct FullRows {
    any: AtomicBool,
    rows: Box<[FullRow]>,
}

#[derive(Default)]
struct FullRow {
    is_full: AtomicBool,
    turn: AtomicU32,
}

impl FullRows {
    pub(super) fn new(nodes: u16) -> Self {
        Self { any: AtomicBool::new(false), rows: (0..nodes).map(|_| FullRow::default()).collect() }
    }

    /// How often the row was full and had room again. While that stays what [`note`](Self::note) has said there is none.
    #[inline]
    pub(crate) fn turn(&self, node: NodeId) -> Option<u32> {
        self.rows.get(node.index()).map(|row| row.turn.load(Ordering::Relaxed))
    }

    /// Somebody has found no room on the way to the node. `None`: it is not this row that is full, and who looks again may find some any time.
    pub(crate) fn note(&self, engine: &NodeEngine, node: NodeId) -> Option<u32> {
        let row = self.rows.get(node.index()).filter(|_| !engine.may_open(node))?;
        row.is_full.store(true, Ordering::Relaxed);
        self.any.store(true, Ordering::Relaxed);
        Some(row.turn.load(Ordering::Relaxed))
    }

    /// After each poll: a peer may have taken something, or a reader given back what it held.
    #[inline]
    pub(super) fn look(&self, engine: &NodeEngine) {
        if self.any.load(Ordering::Relaxed) {
            self.look_at_all(engine);
        }
    }

    #[cold]
    fn look_at_all(&self, engine: &NodeEngine) {
        let mut any = false;
        for (row, node) in self.rows.iter().zip((0..).filter_map(NodeId::new)) {
            if !row.is_full.load(Ordering::Relaxed) {
                continue;
            }
            if engine.may_open(node) {
                row.is_full.store(false, Ordering::Relaxed);
                row.turn.store(row.turn.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            } else {
                any = true;
            }
        }
        self.any.store(any, Ordering::Relaxed);
    }
}
