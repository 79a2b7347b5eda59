//! Nodes that are gone, as their node learns of it, independently of who takes its events.

use pdbp::{Event, Node, NodeId, Watch};

/// See the [module](self).
pub(crate) struct Losses {
    node: Node,
    watch: Watch,
    /// Events that the watch had lost at the last call.
    missed: u64,
}

impl Losses {
    pub(crate) fn new(node: &Node) -> Self {
        Self { node: node.clone(), watch: node.watch(), missed: 0 }
    }

    /// Nodes that have gone since the last call. May repeat some that had gone before.
    pub(crate) fn take(&mut self) -> Vec<u16> {
        let mut gone = Vec::new();
        while let Some(event) = self.watch.next_event() {
            if let Event::PeerFailed { peer: node, .. } | Event::NodeDown { node } = event {
                gone.push(node);
            }
        }
        let missed = self.watch.lost();
        if std::mem::replace(&mut self.missed, missed) != missed {
            let members = self.node.members();
            let all = (0..self.node.settings().nodes).filter_map(NodeId::new);
            gone.extend(all.filter(|node| !members.contains(node)));
        }
        gone.into_iter().map(|node| node.index() as u16).collect() // nodes are numbered by 16 bits
    }
}
