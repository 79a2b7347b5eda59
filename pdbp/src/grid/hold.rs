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
    pause: Option<Pause>,
}

/// State while senders wait.
#[derive(Default)]
struct Pause {
    /// Nodes that have been told to pause.
    notified: BTreeSet<NodeId>,
    /// Those notified that have not confirmed.
    awaited: BTreeSet<NodeId>,
    /// Whether nodes remain to be told to go on.
    is_ending: bool,
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
    pub(super) fn has_from(&self, origin: u64) -> bool {
        self.frames.iter().any(|(head, _)| head.origin == origin)
    }

    /// Records a node's confirmation that nothing for the part leaves it any more.
    pub(super) fn confirm_stopped(&mut self, node: NodeId) {
        if let Some(pause) = &mut self.pause {
            pause.awaited.remove(&node);
        }
    }

    /// Tells nodes what they do not know yet. Returns whether there was anything to tell.
    pub(super) fn advance(&mut self, node: &Node, gate: &Part<Shared>, part: Target, line: &Line) -> bool {
        let free = line.room.saturating_sub(line.held);
        match &mut self.pause {
            None if self.bytes > 0 && self.bytes >= free => self.pause = Some(Pause::default()),
            None => return false,
            Some(pause) => {
                pause.awaited.retain(|node_of| !node.shared.engine().has_failed(*node_of));
                pause.is_ending |= pause.awaited.is_empty() && self.bytes <= free / 4;
            }
        }
        let Some(pause) = &mut self.pause else { return false };
        let bits = part.to_bits().to_le_bytes();
        if pause.is_ending {
            let before = pause.notified.len();
            pause.notified.retain(|node_of| !notify(node, gate, *node_of, command::GO, &bits));
            let worked = pause.notified.len() < before;
            if pause.notified.is_empty() {
                self.pause = None;
            }
            return worked;
        }
        let mut worked = false;
        for node_of in nodes(node) {
            if !pause.notified.contains(&node_of) && notify(node, gate, node_of, command::STOP, &bits) {
                pause.notified.insert(node_of);
                pause.awaited.insert(node_of);
                worked = true;
            }
        }
        worked
    }

    /// Releases the senders when the part has gone: they notice when they check.
    pub(super) fn end(&mut self, node: &Node, part: &Part<Shared>) {
        for node_of in self.pause.take().into_iter().flat_map(|pause| pause.notified) {
            notify(node, part, node_of, command::GO, &part.id().to_bits().to_le_bytes());
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
fn notify(node: &Node, gate: &Part<Shared>, to: NodeId, number: u16, bits: &[u8]) -> bool {
    let part = node.shared.engine().lookup(to, flow::NAME).map(|part| part.id);
    let Some(part) = part else { return true };
    gate.sender(part).no_wait().command(number).send(bits) != Err(crate::error::SendError::WouldBlock)
}
