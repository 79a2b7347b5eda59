//! Sends that do not wait and found no room.

use std::sync::atomic::Ordering;

use pdbp_core::id::NodeId;

use super::{Part, Share};
use crate::node::NodeEngine;

/// Sends that found no room between two polls, when nothing else polls.
const RETRY: u32 = 8;

/// A send found no room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// Of the row (`FullRows::turn`), if it is full.
    row: Option<u32>,
    /// Of the node.
    turn: u64,
    /// What parts of the node have polled, as it was seen last, and how often it was tried since.
    polls: u64,
    tries: u32,
}

impl Stall {
    /// There is none.
    pub(super) const NONE: Self = Self { row: None, turn: u64::MAX, polls: 0, tries: 0 };
}

impl<S: Share> Part<S> {
    /// Whether a send to the node found no room and there has been none since. A part that tries again and again is told so at once, without the
    /// engine's lock; every [`RETRY`]th time it looks all the same, unless its row is full and parts have polled meanwhile.
    pub(super) fn is_stalled(&self, node: NodeId) -> bool {
        let Some(cell) = self.stalled.get(node.index()) else { return false };
        let (stall, shared) = (cell.get(), self.shared());
        let is_over = match stall.row {
            Some(_) => stall.row != shared.full_rows.turn(node),
            // Something else is missing, which anything that happens at this node may bring.
            None => stall.turn != shared.turns.load(Ordering::Relaxed),
        };
        if is_over || self.lanes.with(|outbox| outbox.room(node.index())).is_some() {
            return false;
        }
        let polls = shared.polls.load(Ordering::Relaxed);
        // Whoever polls looks at full rows.
        let is_watched = stall.row.is_some() && polls != stall.polls;
        let tries = if is_watched { 0 } else { stall.tries.wrapping_add(1) };
        cell.set(Stall { polls, tries, ..stall });
        tries % RETRY != RETRY - 1
    }

    /// The next attempt to send to the node looks for room, whether or not something has happened.
    pub(super) fn look_again(&self, node: NodeId) {
        if let Some(stalled) = self.stalled.get(node.index()) {
            stalled.set(Stall::NONE);
        }
    }

    /// There was no room: until there is some it need not be looked for again.
    pub(super) fn stall(&self, engine: &NodeEngine, node: NodeId) {
        if let Some(stalled) = self.stalled.get(node.index()) {
            let shared = self.shared();
            let [turn, polls] = [&shared.turns, &shared.polls].map(|count| count.load(Ordering::Relaxed));
            stalled.set(Stall { row: shared.full_rows.note(engine, node), turn, polls, tries: 0 });
        }
    }
}
