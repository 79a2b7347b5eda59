//! Nodes that are gone, as their node learns of it, independently of who takes its events.

use std::collections::BTreeSet;

use pdbp::{Event, Node, NodeId, Watch};

/// See the [module](self).
pub(crate) struct Losses {
    node: Node,
    watch: Watch,
    /// Events that the watch had lost at the last call.
    missed: u64,
    /// Nodes that have gone and not come back.
    gone: BTreeSet<NodeId>,
}

impl Losses {
    pub(crate) fn new(node: &Node) -> Self {
        Self { node: node.clone(), watch: node.watch(), missed: 0, gone: BTreeSet::new() }
    }

    /// Nodes that have gone since the last call. May repeat some that had gone before.
    pub(crate) fn take(&mut self) -> Vec<u16> {
        let mut gone = Vec::new();
        while let Some(event) = self.watch.next_event() {
            match event {
                Event::PeerFailed { peer: node, .. } | Event::NodeDown { node } => {
                    gone.push(node);
                    self.gone.insert(node);
                }
                Event::PeerRestored { peer: node } | Event::NodeUp { node } => _ = self.gone.remove(&node),
                _ => {}
            }
        }
        let missed = self.watch.lost();
        if std::mem::replace(&mut self.missed, missed) != missed {
            let members = self.node.members();
            let all = (0..self.node.settings().nodes).filter_map(NodeId::new);
            // Beside those whose link has failed, which may still be members.
            self.gone.extend(all.filter(|node| !members.contains(node)));
            gone.extend(&self.gone);
        }
        gone.into_iter().map(|node| node.index() as u16).collect() // nodes are numbered by 16 bits
    }

    /// The other nodes of a cluster of fixed size, if all are gone.
    pub(crate) fn all(&self) -> Option<&BTreeSet<NodeId>> {
        let settings = self.node.settings();
        let others = usize::from(settings.nodes).saturating_sub(1);
        (!settings.found && others > 0 && self.gone.len() >= others).then_some(&self.gone)
    }
}
