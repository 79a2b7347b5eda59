//! Sizes and times of an engine, and the storage for its tables.

use managed::ManagedSlice;

use super::receiving::Element;
use super::sending::PublicPipe;
use super::{Local, Peer};
use crate::agreement;
use crate::cdu::{Packer, VIA_HEADER};
use crate::id::{NodeId, PipeId};
use crate::matrix::{RecvRow, SendRow};
use crate::pipe::{PipeEntry, StreamMapping};
use crate::routing::{Links, Routing};
use crate::tables::{Name, NodeEntry, NodeKind, PartEntry};
use crate::umb::BlockInfo;

/// Whether blocks carry a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The transport is trusted to keep bytes as they are.
    Off,
    /// CRC-32 of header and body of every block; a block whose bytes changed on the way is refused.
    On,
}

/// Sizes and times. All nodes of a cluster use the same `nodes` and `body`.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// Nodes in the communication domain (M).
    pub nodes: u16,
    /// Name of this node in NTA.
    pub name: Name,
    /// Bytes of a block behind its header.
    pub body: usize,
    /// Largest number of elements of a row (N).
    pub row: u32,
    /// Real elements that every row has at the start (m).
    pub initial: u32,
    /// Blocks set aside for control messages.
    pub control_blocks: u32,
    /// Parts that this node can host.
    pub local_parts: u16,
    /// Private pipes of this node.
    pub private_pipes: u16,
    /// Public pipes of the stream group of *each* node.
    pub stream_pipes: u16,
    /// Nanoseconds after which a message given to [`Engine::send`](super::Engine::send) leaves in a block that is not full.
    pub flush_after: u64,
    /// Nanoseconds between two looks of the policy at rows that could give space back.
    pub interval: u64,
    /// Checksums on sent blocks. Received ones are checked if they carry one.
    pub checksum: Checksum,
    /// Nodes that may become primary master: those with an index below this.
    pub masters: u16,
    /// Nanoseconds for which a node may rely on its tables without news from the primary, and after which (and an eighth
    /// more) it is declared down; 0: who has failed is told by transports alone.
    pub lease: u64,
    /// Nanoseconds that a standby waits before it stands for election; more than a message and its answer take.
    pub patience: u64,
    /// Which nodes have links, and how messages go between those that have none. The same on all nodes.
    pub routing: Routing,
    /// The node was started again while the others went on: it has to be let in.
    pub joining: bool,
}

/// A value that cannot work, and what would.
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
    /// A block body of so many bytes cannot hold a message with its header, or does not fit a wire length.
    Body(usize),
    /// Row size, initial space or control blocks of zero, or an initial space larger than the row.
    Row {
        /// N.
        row: u32,
        /// m.
        initial: u32,
        /// Control blocks.
        control: u32,
    },
    /// Too few blocks for the initial space of all rows and the control blocks.
    Blocks {
        /// Blocks there are.
        have: u32,
        /// Blocks needed.
        need: u64,
    },
    /// What the agreement on the tables cannot work with.
    Agreement(agreement::SettingsError),
    /// A slice of [`Storage`] is shorter than the configuration asks for.
    Storage {
        /// The slice.
        slice: &'static str,
        /// Its length.
        have: usize,
        /// The length it needs.
        need: usize,
    },
    /// The transport serves another node, another number of nodes, or only shorter blocks.
    Transport {
        /// The longest block that the transport carries.
        largest_block: usize,
        /// The block length that the configuration asks for.
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
                write!(f, "a block of {n} bytes is of no use; choose 256 bytes to 1 GiB")
            }
            Self::Row { row, initial, control } => write!(
                f,
                "rows of {row} elements with {initial} at the start and {control} control blocks; choose at least 1 of \
                 each and no more at the start than a row has"
            ),
            Self::Blocks { have, need } => write!(
                f,
                "{have} blocks are too few: the rows' initial space and the control blocks need {need}; give more memory, \
                 or a smaller block or initial space"
            ),
            Self::Agreement(e) => e.fmt(f),
            Self::Storage { slice, have, need } => {
                write!(f, "storage slice `{slice}` has {have} entries and needs {need}")
            }
            Self::Transport { largest_block, block } => write!(
                f,
                "the transport does not fit: it carries blocks of up to {largest_block} bytes ({block} asked for), or it \
                 belongs to another node or number of nodes"
            ),
        }
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// The smallest block body that is accepted.
    pub const LEAST_BODY: usize = 256;
    /// The largest block body that is accepted.
    pub const MOST_BODY: usize = 1 << 30;

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.nodes == 0 || self.node.index() >= usize::from(self.nodes) {
            return Err(ConfigError::Nodes { node: self.node.index(), nodes: self.nodes });
        }
        if self.body < Self::LEAST_BODY || self.body > Self::MOST_BODY {
            return Err(ConfigError::Body(self.body));
        }
        if self.row == 0 || self.initial == 0 || self.initial > self.row || self.control_blocks == 0 {
            return Err(ConfigError::Row {
                row: self.row,
                initial: self.initial,
                control: self.control_blocks,
            });
        }
        Ok(())
    }

    pub(super) fn entry(&self) -> NodeEntry {
        let kind =
            if self.node.index() < usize::from(self.masters) { NodeKind::Master } else { NodeKind::Compute };
        NodeEntry { id: self.node, name: self.name.clone(), kind, failed: false }
    }

    pub(super) fn agreement(&self) -> agreement::Settings {
        agreement::Settings {
            entry: self.entry(),
            nodes: self.nodes,
            masters: self.masters,
            lease: self.lease,
            patience: self.patience,
            start: if self.joining { agreement::Start::Joining } else { agreement::Start::Together },
        }
    }

    /// The links of this node.
    pub(super) fn links(&self) -> Links {
        Links::new(self.routing, self.node, self.nodes, self.masters)
    }

    /// Rows of SM and RM: the links of this node, and one for itself. With [`Routing::Direct`] as many as there are nodes.
    pub fn rows(&self) -> usize {
        self.links().len()
    }

    pub(super) fn elements(&self) -> usize {
        self.rows() * self.row as usize
    }

    pub(super) fn pipes(&self) -> usize {
        // One message pipe for every part that can be registered.
        usize::from(self.private_pipes) + usize::from(self.local_parts) + usize::from(self.stream_pipes)
    }

    /// The longest message that travels in one block, whichever way it goes.
    pub fn longest_unsegmented(&self) -> usize {
        let extension = match self.routing {
            Routing::Direct => 0,
            Routing::Grid => VIA_HEADER,
        };
        Packer::longest(self.body) - extension
    }
}

/// Entries that the log of the tables keeps: a node that misses more gets the tables whole.
const LOG: usize = 64;

/// The memory of an engine's tables. With borrowed slices the engine runs without a heap.
pub struct Storage<'a> {
    /// UMBInfo-Tab: one entry per block.
    pub blocks: ManagedSlice<'a, BlockInfo>,
    /// SM: rows × row size; see [`Config::rows`].
    pub send_matrix: ManagedSlice<'a, u32>,
    /// RM: rows × row size.
    pub recv_matrix: ManagedSlice<'a, Element>,
    /// One per row.
    pub send_rows: ManagedSlice<'a, SendRow>,
    /// One per row.
    pub recv_rows: ManagedSlice<'a, RecvRow>,
    /// One per row.
    pub peers: ManagedSlice<'a, Peer>,
    /// One per row.
    pub public_pipes: ManagedSlice<'a, PublicPipe>,
    /// NTA: one per node.
    pub nodes: ManagedSlice<'a, Option<NodeEntry>>,
    /// PTA: one per part of the whole cluster.
    pub parts: ManagedSlice<'a, Option<PartEntry>>,
    /// One per part of this node.
    pub local_parts: ManagedSlice<'a, Local>,
    /// GP-Pipe-Bind-Tab: one per part of this node.
    pub bound: ManagedSlice<'a, Option<PipeId>>,
    /// Pipe-Tab: private pipes + local parts + stream pipes.
    pub pipes: ManagedSlice<'a, PipeEntry>,
    /// MTA: rows × stream pipes.
    pub streams: ManagedSlice<'a, Option<StreamMapping>>,
    /// The log of the tables, and a record per node.
    pub agreement: agreement::Storage<'a>,
}

impl Storage<'_> {
    pub(super) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let nodes = usize::from(config.nodes);
        let rows = config.rows();
        let local = usize::from(config.local_parts);
        for (slice, have, need) in [
            ("send_matrix", self.send_matrix.len(), config.elements()),
            ("recv_matrix", self.recv_matrix.len(), config.elements()),
            ("send_rows", self.send_rows.len(), rows),
            ("recv_rows", self.recv_rows.len(), rows),
            ("peers", self.peers.len(), rows),
            ("public_pipes", self.public_pipes.len(), rows),
            ("nodes", self.nodes.len(), nodes),
            ("agreement.peers", self.agreement.peers.len(), nodes),
            ("agreement.log", self.agreement.log.len(), agreement::LEAST_LOG),
            ("parts", self.parts.len(), 1),
            ("local_parts", self.local_parts.len(), local),
            ("bound", self.bound.len(), local),
            ("pipes", self.pipes.len(), config.pipes()),
            ("streams", self.streams.len(), rows * usize::from(config.stream_pipes)),
        ] {
            if have < need {
                return Err(ConfigError::Storage { slice, have, need });
            }
        }
        Ok(())
    }
}

#[cfg(feature = "alloc")]
impl Storage<'static> {
    /// Tables on the heap for `config`, with `blocks` blocks and room for `parts` parts in the whole cluster.
    pub fn allocate(config: &Config, blocks: usize, parts: usize) -> Self {
        use alloc::vec::Vec;
        fn table<T: Default>(len: usize) -> ManagedSlice<'static, T> {
            ManagedSlice::Owned((0..len).map(|_| T::default()).collect::<Vec<_>>())
        }
        let nodes = usize::from(config.nodes);
        let rows = config.rows();
        let local = usize::from(config.local_parts);
        Self {
            blocks: table(blocks),
            send_matrix: table(config.elements()),
            recv_matrix: table(config.elements()),
            send_rows: table(rows),
            recv_rows: table(rows),
            peers: table(rows),
            public_pipes: table(rows),
            nodes: table(nodes),
            parts: table(parts),
            local_parts: table(local),
            bound: table(local),
            pipes: table(config.pipes()),
            streams: table(rows * usize::from(config.stream_pipes)),
            agreement: agreement::Storage::allocate(config.nodes, LOG),
        }
    }
}

/// Storage of constant size, for a `static` or a stack frame.
///
/// `ELEMENTS` = `NODES` × row size, `PIPES` = private pipes + `LOCAL` + stream pipes, `STREAMS` = `NODES` × stream pipes.
pub struct StaticStorage<
    const NODES: usize,
    const BLOCKS: usize,
    const ELEMENTS: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const PIPES: usize,
    const STREAMS: usize,
> {
    blocks: [BlockInfo; BLOCKS],
    send_matrix: [u32; ELEMENTS],
    recv_matrix: [Element; ELEMENTS],
    send_rows: [SendRow; NODES],
    recv_rows: [RecvRow; NODES],
    peers: [Peer; NODES],
    public_pipes: [PublicPipe; NODES],
    nodes: [Option<NodeEntry>; NODES],
    parts: [Option<PartEntry>; PARTS],
    local_parts: [Local; LOCAL],
    bound: [Option<PipeId>; LOCAL],
    pipes: [PipeEntry; PIPES],
    streams: [Option<StreamMapping>; STREAMS],
    log: [Option<agreement::Entry>; LOG],
    records: [agreement::Peer; NODES],
}

impl<
    const NODES: usize,
    const BLOCKS: usize,
    const ELEMENTS: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const PIPES: usize,
    const STREAMS: usize,
> StaticStorage<NODES, BLOCKS, ELEMENTS, PARTS, LOCAL, PIPES, STREAMS>
{
    /// Empty tables.
    #[expect(clippy::new_without_default, reason = "too large to be made in passing")]
    pub fn new() -> Self {
        use core::array::from_fn;
        Self {
            blocks: [BlockInfo::default(); BLOCKS],
            send_matrix: [0; ELEMENTS],
            recv_matrix: from_fn(|_| Element::default()),
            send_rows: [SendRow::default(); NODES],
            recv_rows: [RecvRow::default(); NODES],
            peers: from_fn(|_| Peer::default()),
            public_pipes: from_fn(|_| PublicPipe::default()),
            nodes: [const { None }; NODES],
            parts: [const { None }; PARTS],
            local_parts: from_fn(|_| Local::default()),
            bound: [None; LOCAL],
            pipes: [PipeEntry::default(); PIPES],
            streams: [None; STREAMS],
            log: [const { None }; LOG],
            records: from_fn(|_| agreement::Peer::default()),
        }
    }

    /// The tables as an engine takes them.
    pub fn storage(&mut self) -> Storage<'_> {
        Storage {
            blocks: ManagedSlice::Borrowed(&mut self.blocks),
            send_matrix: ManagedSlice::Borrowed(&mut self.send_matrix),
            recv_matrix: ManagedSlice::Borrowed(&mut self.recv_matrix),
            send_rows: ManagedSlice::Borrowed(&mut self.send_rows),
            recv_rows: ManagedSlice::Borrowed(&mut self.recv_rows),
            peers: ManagedSlice::Borrowed(&mut self.peers),
            public_pipes: ManagedSlice::Borrowed(&mut self.public_pipes),
            nodes: ManagedSlice::Borrowed(&mut self.nodes),
            parts: ManagedSlice::Borrowed(&mut self.parts),
            local_parts: ManagedSlice::Borrowed(&mut self.local_parts),
            bound: ManagedSlice::Borrowed(&mut self.bound),
            pipes: ManagedSlice::Borrowed(&mut self.pipes),
            streams: ManagedSlice::Borrowed(&mut self.streams),
            agreement: agreement::Storage {
                log: ManagedSlice::Borrowed(&mut self.log),
                peers: ManagedSlice::Borrowed(&mut self.records),
            },
        }
    }
}
