//! Frames that a gateway holds for a part of another cluster, and whether the part's senders must wait.

use std::collections::{BTreeSet, VecDeque};

use pdbp_core::id::NodeId;

use super::flow;
use super::session::{Line, weight};
use super::wire::{Head, command};
use crate::node::Node;
use crate::part::{Part, Shared, Target};

/// Frames for a part that do not fit in the other gateway's window.
///
/// **The rule.** A part may use at most as much of the gateway's space as is still free, so some is left however many parts do not
/// read. Beyond that its senders wait, until only a quarter is left. Frames that arrive before all nodes have confirmed are still
/// taken.
#[derive(Default)]
pub(super) struct Hold {
    frames: VecDeque<(Head, Vec<u8>)>,
    bytes: u64,
    stop: Option<Stop>,
}

/// State while senders wait.
#[derive(Default)]
struct Stop {
    /// Nodes that have been told to stop.
    told: BTreeSet<NodeId>,
    /// Those told that have not confirmed.
    awaited: BTreeSet<NodeId>,
    /// Whether nodes remain to be told to go on.
    goes: bool,
}

impl Hold {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn put(&mut self, line: &mut Line, head: Head, bytes: &[u8]) {
        line.held += weight(bytes.len());
        self.bytes += weight(bytes.len());
        self.frames.push_back((head, bytes.to_vec()));
    }

    pub(super) fn take(&mut self, line: &mut Line) -> Option<(Head, Vec<u8>)> {
        let frame = self.frames.pop_front()?;
        let bytes = weight(frame.1.len());
        self.bytes -= bytes;
        line.held -= bytes;
        Some(frame)
    }

    /// Whether any frame comes from this part of this cluster.
    pub(super) fn has_of(&self, origin: u64) -> bool {
        self.frames.iter().any(|(head, _)| head.origin == origin)
    }

    /// Records a node's confirmation that nothing for the part leaves it any more.
    pub(super) fn note_stopped(&mut self, node: NodeId) {
        if let Some(stop) = &mut self.stop {
            stop.awaited.remove(&node);
        }
    }

    /// Tells nodes what they do not know yet. Returns whether there was anything to tell.
    pub(super) fn advance(&mut self, node: &Node, gate: &Part<Shared>, part: Target, line: &Line) -> bool {
        let free = line.room.saturating_sub(line.held);
        match &mut self.stop {
            None if self.bytes > 0 && self.bytes >= free => self.stop = Some(Stop::default()),
            None => return false,
            Some(stop) => {
                stop.awaited.retain(|node_of| !node.shared.engine().has_failed(*node_of));
                stop.goes |= stop.awaited.is_empty() && self.bytes <= free / 4;
            }
        }
        let Some(stop) = &mut self.stop else { return false };
        let bits = part.to_bits().to_le_bytes();
        if stop.goes {
            let before = stop.told.len();
            stop.told.retain(|node_of| !tell(node, gate, *node_of, command::GO, &bits));
            let worked = stop.told.len() < before;
            if stop.told.is_empty() {
                self.stop = None;
            }
            return worked;
        }
        let mut worked = false;
        for node_of in nodes(node) {
            if !stop.told.contains(&node_of) && tell(node, gate, node_of, command::STOP, &bits) {
                stop.told.insert(node_of);
                stop.awaited.insert(node_of);
                worked = true;
            }
        }
        worked
    }

    /// Releases the senders when the part has gone: they notice when they check.
    pub(super) fn end(&mut self, node: &Node, part: &Part<Shared>) {
        for node_of in self.stop.take().into_iter().flat_map(|stop| stop.told) {
            tell(node, part, node_of, command::GO, &part.id().to_bits().to_le_bytes());
        }
    }
}

/// Nodes that can be told.
fn nodes(node: &Node) -> Vec<NodeId> {
    let engine = node.shared.engine();
    let parts = engine.parts().filter(|part| part.name.as_str() == flow::NAME);
    parts.map(|part| part.id.node()).filter(|node| !engine.has_failed(*node)).collect()
}

/// Tells a node. Returns whether the node was told, or has gone.
fn tell(node: &Node, gate: &Part<Shared>, to: NodeId, number: u16, bits: &[u8]) -> bool {
    let part = node.shared.engine().lookup(to, flow::NAME).map(|part| part.id);
    let Some(part) = part else { return true };
    gate.sender(part).no_wait().command(number).send(bits) != Err(crate::error::SendError::WouldBlock)
}
