//! Sizes and times of an engine.

use super::control_queue::CONTROL_CAPACITY;
use crate::agreement::{self, Start};
use crate::cdu::{BLOCK_HEADER, Packer, VIA_HEADER};
use crate::id::NodeId;
use crate::routing::{LinkId, Routing, Topology};
use crate::tables::{Name, NodeEntry, NodeKind};
use crate::transport::Capabilities;

/// Whether blocks carry a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The transport is trusted to deliver bytes unchanged.
    Off,
    /// CRC-32 of the header and body of every block. A block whose bytes changed on the way is refused.
    On,
}

/// Sizes and times. Values marked *protocol* must be the same on all nodes of a cluster, and nodes compare them when they meet
/// ([`Setting`](super::Setting)). The same holds for the lengths of the tables `parts` and `agreement.log` in
/// [`Storage`](super::Storage). Each node chooses all other values for itself.
///
/// [`Config::new`] sets values that work together; any field may be changed:
///
/// ```
/// use pdbp_core::{Config, id::NodeId};
///
/// let mut config = Config::new(NodeId::new(0).ok_or("no node")?, 4);
/// config.body = 1024;
/// config.lease = 50_000_000;
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// Number of nodes in the communication domain (M). Protocol.
    pub nodes: u16,
    /// Name of this node in NTA.
    pub name: Name,
    /// Payload bytes of a block, excluding its header. Protocol: the peer must have room for a block.
    pub body: usize,
    /// Maximum number of elements of a row (N). Applies to this node's rows only; peers are told how much credit they have.
    pub row: u32,
    /// Initial number of real elements in every row of this node (m).
    pub initial: u32,
    /// Blocks reserved for control messages and shared out among the links: at least [one for each](Self::min_control_blocks).
    pub control_blocks: u32,
    /// Maximum number of free blocks used to hold copies of unread short deliveries, so that a few parts that read late do not
    /// block all others to which the same node sends. While unread blocks use more than half of a link's credit, a delivery of up
    /// to a sixteenth of a block is copied, and its block is returned. Each copy block takes 4 KiB of
    /// [`Storage`](super::Storage). 0 in the memory of [`embed`](crate::embed).
    pub copy_blocks: u16,
    /// Maximum number of parts on this node, at most [`MAX_PARTS`](Self::MAX_PARTS).
    pub local_parts: u16,
    /// Number of private pipes of this node. An [`Endpoint`](crate::endpoint::Endpoint) needs one for each of `local_parts`.
    pub private_pipes: u16,
    /// Number of public stream pipes of *each* node. With relays, also the number of simultaneous streams from one relay to one
    /// destination. Protocol: pipes are identified by number.
    pub stream_pipes: u16,
    /// Nanoseconds after which a block of relayed messages leaves even if it is not full; see [`outbox`](crate::outbox).
    pub flush_after: u64,
    /// Nanoseconds between the policy's checks for rows that could give space back.
    pub interval: u64,
    /// Checksums on sent blocks. Received blocks that carry one are checked regardless of this setting.
    pub checksum: Checksum,
    /// Nodes with an index below this may become primary master. Protocol.
    pub masters: u16,
    /// Nanoseconds for which a node may rely on its tables without news from the primary, and after which (plus an eighth) it is
    /// declared down. 0: only transports report failures. Protocol: a node relies on promises made by others.
    pub lease: u64,
    /// Nanoseconds that a standby waits before it campaigns; must exceed a round trip. Protocol: candidates wait for staggered
    /// times.
    pub patience: u64,
    /// Nodes with an index below this vote on the tables. The others are learners, any number of which may come and go. From
    /// [`masters`](Self::masters) to [`nodes`](Self::nodes). With fewer than `nodes`, the cluster is *open*: `nodes` is its
    /// number of places, and barriers wait for members only. See [`agreement`]. Protocol.
    pub voters: u16,
    /// Which nodes have links, and how messages are routed between nodes without one. Protocol.
    pub routing: Routing,
    /// Whether the node starts together with all others, founds a cluster alone, or must be admitted because it joins later or
    /// was restarted while the others kept running.
    pub start: Start,
}

/// A value that cannot work, with the value or bound that would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// `nodes` is zero, or `node` is not below it.
    Nodes {
        /// This node's index.
        node: usize,
        /// The number of nodes.
        nodes: u16,
    },
    /// A block body of this many bytes cannot hold a message with its header, or exceeds the wire format.
    Body(usize),
    /// A row size, initial space or number of control blocks of zero, or an initial space larger than the row.
    Row {
        /// N.
        row: u32,
        /// m.
        initial: u32,
        /// Control blocks.
        control: u32,
    },
    /// More parts (this many) than part numbers can distinguish when they wrap around.
    LocalParts(u16),
    /// More pipes (this many) than pipe numbers can distinguish: private pipes, stream pipes, and one for each part.
    Pipes(usize),
    /// Too few blocks for the initial space of all rows and the control blocks.
    Blocks {
        /// Number of blocks.
        have: u32,
        /// Blocks needed.
        need: u64,
    },
    /// Fewer control blocks than links, so that one link could block others.
    Control {
        /// Number of control blocks.
        have: u32,
        /// Number of links of this node.
        need: u32,
    },
    /// The transport has too little capacity on a link for both data and control messages.
    Capacity {
        /// The peer at its other end.
        peer: NodeId,
        /// The [`Transport::capacity`](crate::Transport::capacity).
        have: usize,
        /// The capacity needed: [`Config::MIN_CAPACITY`].
        need: usize,
    },
    /// Fewer private pipes than parts: each part of an [`Endpoint`](crate::endpoint::Endpoint) has one from the start.
    PrivatePipes {
        /// Number of private pipes.
        have: u16,
        /// Number of parts.
        need: u16,
    },
    /// Settings with which the agreement cannot work.
    Agreement(agreement::SettingsError),
    /// A slice of [`Storage`](super::Storage) is shorter than the configuration requires.
    Storage {
        /// The slice.
        slice: &'static str,
        /// Its length.
        have: usize,
        /// The length it needs.
        need: usize,
    },
    /// The transport serves a different node or number of nodes, or carries only shorter blocks.
    Transport {
        /// The longest block that the transport carries.
        largest_block: usize,
        /// The block length that the configuration requires.
        block: usize,
    },
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Nodes { node, nodes } => {
                write!(
                    f,
                    "node index {node} does not fit {nodes} nodes; use an index below a count of 1 to 65535"
                )
            }
            Self::Body(n) => {
                write!(f, "invalid block size of {n} bytes; choose 256 bytes to 1 GiB")
            }
            Self::Row { row, initial, control } => write!(
                f,
                "rows of {row} elements with {initial} at the start and {control} control blocks are not possible; \
                 choose at least 1 of each, and no more at the start than a row has"
            ),
            Self::LocalParts(n) => {
                write!(f, "a node cannot have {n} parts; choose at most {}", Config::MAX_PARTS)
            }
            Self::Pipes(n) => write!(
                f,
                "a node cannot have {n} pipes; choose fewer private pipes, stream pipes or parts, which have one each: {} in all",
                Config::MAX_PIPES
            ),
            Self::Blocks { have, need } => write!(
                f,
                "{have} blocks are too few: the rows' initial space and the control blocks need {need}; give more memory, \
                 or choose smaller blocks or less initial space"
            ),
            Self::Control { have, need } => write!(
                f,
                "{have} control blocks are too few for {need} links; set aside one for each, {need} at least"
            ),
            Self::Capacity { peer, have, need } => write!(
                f,
                "the transport takes only {have} blocks at a time for {peer}; give it room for {need} at least, of which two \
                 are for control messages"
            ),
            Self::PrivatePipes { have, need } => {
                write!(f, "{have} private pipes are too few for {need} parts; choose at least {need}")
            }
            Self::Agreement(e) => e.fmt(f),
            Self::Storage { slice, have, need } => {
                write!(f, "storage slice `{slice}` has {have} entries and needs {need}")
            }
            Self::Transport { largest_block, block } => write!(
                f,
                "unsuitable transport: it carries blocks of up to {largest_block} bytes ({block} needed), or it belongs to \
                 another node or number of nodes"
            ),
        }
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Creates the configuration of node `node` of `nodes`, with values that suit a small cluster: blocks of 4 KiB, rows of 8, no
    /// [copies](Self::copy_blocks), 8 parts on a node, checksums, two masters, no leases, and a vote for each node. Reserves a
    /// control block for each link that a node can have, whatever the [routing](Self::routing).
    pub fn new(node: NodeId, nodes: u16) -> Self {
        Self {
            node,
            nodes,
            name: Name::of_node(node),
            body: 4096 - BLOCK_HEADER,
            row: 8,
            initial: 2,
            control_blocks: u32::from(nodes.saturating_sub(1)).max(2),
            copy_blocks: 0,
            local_parts: 8,
            private_pipes: 8,
            stream_pipes: 4,
            flush_after: 100_000,
            interval: 10_000_000,
            checksum: Checksum::On,
            masters: nodes.clamp(1, 2),
            lease: 0,
            patience: 100_000_000,
            voters: nodes,
            routing: Routing::Direct,
            start: Start::Together,
        }
    }

    /// The smallest valid block body.
    pub const MIN_BODY: usize = 256;
    /// The largest valid block body.
    pub const MAX_BODY: usize = 1 << 30;
    /// The largest valid [`local_parts`](Self::local_parts): ensures that a reused slot gets a different number in messages.
    pub const MAX_PARTS: u16 = (1 << 15) - 1;
    /// Maximum number of [`private_pipes`](Self::private_pipes), [`local_parts`](Self::local_parts) and
    /// [`stream_pipes`](Self::stream_pipes) together.
    pub const MAX_PIPES: usize = u16::MAX as usize;
    /// The smallest valid [capacity](crate::Transport::capacity) of a link: one block of data and two of control.
    pub const MIN_CAPACITY: usize = 1 + CONTROL_CAPACITY as usize;

    /// Checks that a transport belongs to this node and carries its blocks.
    pub(super) fn check_transport(&self, transport: &Capabilities) -> Result<(), ConfigError> {
        let (largest_block, block) = (transport.largest_block, BLOCK_HEADER + self.body);
        if largest_block < block || transport.node != self.node || transport.nodes != self.nodes {
            return Err(ConfigError::Transport { largest_block, block });
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.nodes == 0 || self.node.index() >= usize::from(self.nodes) {
            return Err(ConfigError::Nodes { node: self.node.index(), nodes: self.nodes });
        }
        if self.body < Self::MIN_BODY || self.body > Self::MAX_BODY {
            return Err(ConfigError::Body(self.body));
        }
        if self.row == 0 || self.initial == 0 || self.initial > self.row || self.control_blocks == 0 {
            return Err(ConfigError::Row {
                row: self.row,
                initial: self.initial,
                control: self.control_blocks,
            });
        }
        if self.local_parts > Self::MAX_PARTS {
            return Err(ConfigError::LocalParts(self.local_parts));
        }
        if self.pipes() > Self::MAX_PIPES {
            return Err(ConfigError::Pipes(self.pipes()));
        }
        let (have, need) = (self.control_blocks, self.min_control_blocks());
        if have < need {
            return Err(ConfigError::Control { have, need });
        }
        Ok(())
    }

    /// This node's row of NTA, for the process `life`.
    pub(super) fn entry(&self, life: u64) -> NodeEntry {
        let kind =
            if self.node.index() < usize::from(self.masters) { NodeKind::Master } else { NodeKind::Compute };
        NodeEntry { id: self.node, name: self.name.clone(), kind, failed: false, life }
    }

    pub(super) fn agreement(&self, life: u64) -> agreement::Settings {
        agreement::Settings {
            entry: self.entry(life),
            nodes: self.nodes,
            masters: self.masters,
            lease: self.lease,
            patience: self.patience,
            // Where not all nodes have links to each other, all have links to the masters.
            reach: if self.topology().links_to_all() {
                agreement::Reach::All
            } else {
                agreement::Reach::Masters
            },
            voters: self.voters,
            start: self.start,
        }
    }

    /// Whether nodes come and go while the cluster runs: there are fewer [`voters`](Self::voters) than places.
    pub fn is_open(&self) -> bool {
        self.voters < self.nodes
    }

    /// The links of this node.
    pub(super) fn topology(&self) -> Topology {
        Topology::new(self.routing, self.node, self.nodes, self.masters)
    }

    /// Returns the relay for messages to a node; `None` if there is a link.
    pub fn relay_to(&self, dest: NodeId) -> Option<NodeId> {
        self.topology().relay_to(dest)
    }

    /// Returns the number of rows of SM and RM: one per link of this node, and one for the node itself. With [`Routing::Direct`],
    /// this is the number of nodes.
    pub fn rows(&self) -> usize {
        self.topology().len()
    }

    /// As [`rows`](Self::rows), for any node.
    pub fn rows_of(routing: Routing, node: NodeId, nodes: u16, masters: u16) -> usize {
        Topology::new(routing, node, nodes, masters).len()
    }

    /// The smallest valid [`control_blocks`](Self::control_blocks): one for each link of this node, and at least one.
    pub fn min_control_blocks(&self) -> u32 {
        (self.rows() as u32).saturating_sub(1).max(1)
    }

    /// Number of lanes of the engine's own outbox.
    pub(super) fn relay_lanes(&self) -> usize {
        if self.routing == Routing::Direct { 0 } else { self.rows() }
    }

    /// Index in RM of an element of a link's row.
    #[inline]
    pub(super) fn element(&self, id: LinkId, element: u32) -> usize {
        id.index() * self.row as usize + element as usize
    }

    pub(super) fn elements(&self) -> usize {
        // A product that does not fit is more than any table has.
        self.rows().saturating_mul(self.row as usize)
    }

    /// Returns the number of entries of MTA.
    pub fn streams(&self) -> usize {
        self.rows().saturating_mul(usize::from(self.stream_pipes) + self.circuits())
    }

    /// Number of streams of other nodes that a link can carry at a time.
    pub(super) fn circuits(&self) -> usize {
        // Circuit numbers follow the pipe numbers, and have 16 bits.
        let (pipes, most) = (usize::from(self.stream_pipes), usize::from(u16::MAX));
        if self.routing == Routing::Direct { 0 } else { pipes.min(most - pipes) }
    }

    pub(super) fn pipes(&self) -> usize {
        // One message pipe for every part that can be registered.
        usize::from(self.private_pipes) + usize::from(self.local_parts) + usize::from(self.stream_pipes)
    }

    /// Returns the length of the longest message that travels in one block on any route.
    pub fn longest_unsegmented(&self) -> usize {
        let extension = match self.routing {
            Routing::Direct => 0,
            Routing::Grid => VIA_HEADER,
        };
        Packer::longest(self.body) - extension
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_pipes_than_numbers_are_refused() {
        let me = NodeId::new(0).expect("a small number names a node");
        let with = |stream_pipes| Config {
            private_pipes: Config::MAX_PARTS,
            local_parts: Config::MAX_PARTS,
            stream_pipes,
            ..Config::new(me, 2)
        };
        assert_eq!(with(1).check(), Ok(()));
        assert_eq!(with(2).check(), Err(ConfigError::Pipes(1 << 16)));
    }
}
