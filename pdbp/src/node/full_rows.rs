//! Send rows that were full, and whether they may have room again.
//!
//! A part that sends to many nodes without waiting retries often, and each retry takes the engine's lock and a poll. So a full row
//! is retried only when it may have room, not whenever anything happens at the node: otherwise senders to a slow peer would retry
//! in vain each time another peer reads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pdbp_core::id::NodeId;

use super::NodeEngine;

/// Per node: whether its row was full, and how often it has stopped being full. Written only under the engine's lock; outside it
/// the values are hints, so relaxed ordering is enough.
pub(crate) struct FullRows {
    any: AtomicBool,
    rows: Box<[FullRow]>,
}

#[derive(Default)]
struct FullRow {
    is_full: AtomicBool,
    generation: AtomicU32,
}

impl FullRow {
    fn renew(&self) {
        self.is_full.store(false, Ordering::Relaxed);
        self.generation.store(self.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

impl FullRows {
    pub(super) fn new(nodes: u16) -> Self {
        Self { any: AtomicBool::new(false), rows: (0..nodes).map(|_| FullRow::default()).collect() }
    }

    /// Number of times that the row was full and got room again. While this equals what [`mark_full`](Self::mark_full) returned, there is
    /// still no room.
    #[inline]
    pub(crate) fn generation(&self, node: NodeId) -> Option<u32> {
        self.rows.get(node.index()).map(|row| row.generation.load(Ordering::Relaxed))
    }

    /// Records that there was no room on the way to the node. Returns `None` if it is not the node's row that is full; room may
    /// then appear at any time.
    pub(crate) fn mark_full(&self, engine: &NodeEngine, node: NodeId) -> Option<u32> {
        let row = self.rows.get(node.index()).filter(|_| !engine.may_open(node))?;
        row.is_full.store(true, Ordering::Relaxed);
        self.any.store(true, Ordering::Relaxed);
        Some(row.generation.load(Ordering::Relaxed))
    }

    /// Records that messages to the node have room again, in a block that its parts share.
    pub(super) fn renew(&self, node: NodeId) {
        if let Some(row) = self.rows.get(node.index()) {
            row.renew();
        }
    }

    /// Whether any row may be full.
    #[inline]
    pub(super) fn are_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Called after each poll: a peer may have read something, or a reader released blocks. Returns whether any row has room again.
    #[inline]
    pub(super) fn update(&self, engine: &NodeEngine) -> bool {
        self.are_any() && self.scan(engine)
    }

    #[cold]
    fn scan(&self, engine: &NodeEngine) -> bool {
        let (mut any, mut renewed) = (false, false);
        for (row, node) in self.rows.iter().zip((0..).filter_map(NodeId::new)) {
            if !row.is_full.load(Ordering::Relaxed) {
                continue;
            }
            if engine.may_open(node) {
                row.renew();
                renewed = true;
            } else {
                any = true;
            }
        }
        self.any.store(any, Ordering::Relaxed);
        renewed
    }
}
