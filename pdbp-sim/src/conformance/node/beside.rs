//! What nodes of one process know of each other without the transport under test, and what a watchdog knows of a node.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;

/// The number of blocks that have arrived on each link.
#[derive(Debug)]
pub(in crate::conformance) struct SharedCounts {
    nodes: usize,
    arrived: Vec<AtomicU64>,
}

impl SharedCounts {
    pub(in crate::conformance) fn new(nodes: usize) -> Self {
        Self { nodes, arrived: (0..nodes * nodes).map(|_| AtomicU64::new(0)).collect() }
    }

    fn link(&self, from: NodeId, to: NodeId) -> Option<&AtomicU64> {
        self.arrived.get(from.index() * self.nodes + to.index())
    }

    /// Sets the number of blocks that have arrived.
    pub(super) fn set_arrived(&self, from: NodeId, to: NodeId, blocks: u64) {
        if let Some(link) = self.link(from, to) {
            // Only a count: nothing else is read on the strength of it.
            link.store(blocks, Ordering::Relaxed);
        }
    }

    /// Returns the number of blocks that have arrived; the maximum for a link that does not exist.
    pub(super) fn arrived(&self, from: NodeId, to: NodeId) -> u64 {
        self.link(from, to).map_or(u64::MAX, |link| link.load(Ordering::Relaxed))
    }
}

/// The transport call in progress at a node.
#[derive(Debug, Default)]
pub(in crate::conformance) struct Call(Mutex<Option<(&'static str, Instant)>>);

impl Call {
    fn set(&self, call: Option<(&'static str, Instant)>) {
        if let Ok(mut under_way) = self.0.lock() {
            *under_way = call;
        }
    }

    /// Makes the call.
    pub(super) fn of<R>(&self, name: &'static str, call: impl FnOnce() -> R) -> R {
        self.set(Some((name, Instant::now())));
        let result = call();
        self.set(None);
        result
    }

    /// The call in progress, if it takes longer than that.
    pub(in crate::conformance) fn longer_than(&self, patience: Duration) -> Option<&'static str> {
        let call = self.0.lock().ok().and_then(|call| *call);
        call.filter(|(_, since)| since.elapsed() > patience).map(|(name, _)| name)
    }
}
