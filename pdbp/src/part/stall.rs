//! Non-blocking sends that found no room.

use std::sync::atomic::Ordering;

use pdbp_core::id::NodeId;

use super::{Part, Share};
use crate::node::NodeEngine;

/// Failed sends between two polls, if nothing else polls.
const RETRY: u32 = 8;

/// The state of a send that found no room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// Generation of the row (`FullRows::generation`), if it is full.
    row: Option<u32>,
    /// Turn of the node.
    turn: u64,
    /// Polls by parts of the node, as last seen, and the retries since then.
    polls: u64,
    tries: u32,
}

impl Stall {
    /// No send is stalled.
    pub(super) const NONE: Self = Self { row: None, turn: u64::MAX, polls: 0, tries: 0 };
}

impl<S: Share> Part<S> {
    /// Whether a send to the node found no room and none has appeared since. A part that keeps retrying is refused at once,
    /// without the engine's lock. Every [`RETRY`]th try looks anyway, unless its row is full and parts have polled meanwhile.
    pub(super) fn is_stalled(&self, node: NodeId) -> bool {
        let Some(cell) = self.stalled.get(node.index()) else { return false };
        let (stall, shared) = (cell.get(), self.shared());
        let is_over = match stall.row {
            Some(_) => !self.finds_full(node),
            // Something else is missing, and any event at this node may bring it.
            None => stall.turn != shared.productive_polls.load(Ordering::Relaxed),
        };
        if is_over || self.lanes.with(|outbox| outbox.room(node.index())).is_some() {
            return false;
        }
        let polls = shared.polls.load(Ordering::Relaxed);
        // Every poll checks full rows.
        let is_watched = stall.row.is_some() && polls != stall.polls;
        let tries = if is_watched { 0 } else { stall.tries.wrapping_add(1) };
        cell.set(Stall { polls, tries, ..stall });
        tries % RETRY != RETRY - 1
    }

    /// Whether the last attempt found the node's row full, and it has been so since.
    pub(super) fn finds_full(&self, node: NodeId) -> bool {
        let stall = self.stalled.get(node.index()).and_then(|cell| cell.get().row);
        stall.is_some() && stall == self.shared().full_rows.generation(node)
    }

    /// Makes the next attempt to send to the node look for room, whether or not anything has happened.
    pub(super) fn retry_now(&self, node: NodeId) {
        if let Some(stalled) = self.stalled.get(node.index()) {
            stalled.set(Stall::NONE);
        }
    }

    /// Records that there was no room, so that the part does not look again until there may be some.
    pub(super) fn stall(&self, engine: &NodeEngine, node: NodeId) {
        if let Some(stalled) = self.stalled.get(node.index()) {
            let shared = self.shared();
            let [turn, polls] =
                [&shared.productive_polls, &shared.polls].map(|count| count.load(Ordering::Relaxed));
            stalled.set(Stall { row: shared.full_rows.mark_full(engine, node), turn, polls, tries: 0 });
        }
    }
}
