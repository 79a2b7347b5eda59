//! The set-up of a cluster, and errors in it.

use std::fmt;

use pdbp_core::agreement::Start;
use pdbp_core::cdu::{BLOCK_HEADER, Packer, VIA_HEADER};
use pdbp_core::engine::{Checksum, Config, RegisterError};
use pdbp_core::id::NodeId;
use pdbp_core::policy::Choice;
use pdbp_core::tables::Name;
use pdbp_core::umb::stride;
use pdbp_core::{Arrival, ConfigError, Routing};

use super::check::{Broken, Division};
use super::host::HostCosts;
use super::{Mix, Physics, PhysicsError, Traffic};

/// The set-up of a cluster.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of nodes, 1 to 65535.
    pub nodes: usize,
    /// The seed that determines everything random.
    pub seed: u64,
    /// The network. `largest_block` is set to that of the engines.
    pub physics: Physics,
    /// Bytes of a block after its header, 256 or more.
    pub body: usize,
    /// Maximum number of blocks of a row.
    pub row: u32,
    /// Number of blocks of a row at the start.
    pub initial: u32,
    /// How rows grow and shrink.
    pub policy: Choice,
    /// Number of blocks reserved for control messages; a node with more links has one for each link.
    pub control: u32,
    /// Number of blocks beyond those needed.
    pub extra: u32,
    /// Maximum number of free blocks that short messages are copied to: see [`Config::copy_blocks`].
    pub copies: u16,
    /// Maximum number of deliveries that a host has not read.
    pub pipe: usize,
    /// Whether blocks carry a checksum.
    pub checksum: Checksum,
    /// Nanoseconds after which a message leaves even if its block is not full.
    pub flush_after: u64,
    /// Number of nodes that may become primary master; in an open cluster these are the voters.
    pub masters: u16,
    /// Whether node 0 founds an [open](Config::voters) cluster alone and the other nodes join, as does node 0 when it comes again.
    /// A place that was left is taken again only once the primary has given it up
    /// ([`Transport::vacate`](pdbp_core::Transport::vacate)). A [`Fault::Crash`](super::Fault::Crash) of a master waits until three
    /// or more masters are all members, and does not happen otherwise, since it would end the cluster.
    pub open: bool,
    /// In an open cluster: nodes that are absent at the start; [`Fault::Restart`](super::Fault::Restart) makes them come.
    pub late: Vec<u16>,
    /// Nanoseconds of a lease; 0 for none.
    pub lease: u64,
    /// Nanoseconds that a standby waits before it stands for election.
    pub patience: u64,
    /// The cost of a host's work.
    pub costs: HostCosts,
    /// Which nodes have links, and the route of messages between those that have none.
    pub routing: Routing,
    /// The messages that nodes send.
    pub traffic: Traffic,
    /// What is done besides sending short messages.
    pub mix: Mix,
    /// Maximum number of parts that an [`Actor`](super::Actor) of a node has at a time.
    pub actor_parts: u16,
    /// Nanoseconds from the start that are not measured: only later messages count for latencies, and only the time after counts
    /// for blocks in use.
    pub warm_up: u64,
    /// The virtual time in nanoseconds after which nothing is sent any more.
    pub traffic_until: u64,
}

impl Setup {
    /// `nodes` nodes with blocks of 2 KiB, and no traffic.
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes,
            seed: 0,
            physics: Physics::default(),
            body: 2048 - BLOCK_HEADER,
            row: 16,
            initial: 2,
            policy: Choice::DEFAULT,
            control: 8,
            extra: 64,
            copies: 0,
            pipe: 64,
            checksum: Checksum::Off,
            flush_after: 20_000,
            masters: 2,
            open: false,
            late: Vec::new(),
            lease: 0,
            patience: 1_000_000,
            costs: HostCosts::default(),
            routing: Routing::Direct,
            traffic: Traffic::uniform().rate(0),
            mix: Mix::default(),
            actor_parts: 0,
            warm_up: 0,
            traffic_until: u64::MAX,
        }
    }

    /// Number of rows of a node; with direct routing, the number of nodes.
    pub fn rows(&self, node: NodeId) -> usize {
        Config::rows_of(self.routing, node, self.nodes as u16, self.masters())
    }

    /// Number of blocks of a node.
    pub fn blocks(&self, node: NodeId) -> u32 {
        let rows = self.rows(node) as u32;
        let posted = match self.physics.arrival {
            Arrival::Posted => rows.saturating_sub(1) * (self.initial + 2),
            Arrival::InPlace => 0,
        };
        rows * self.initial + posted + self.control_blocks(node) + self.extra
    }

    /// Number of blocks that a node reserves for control messages.
    pub fn control_blocks(&self, node: NodeId) -> u32 {
        self.control.max((self.rows(node) as u32).saturating_sub(1))
    }

    /// Bytes of block memory of a node.
    pub fn memory(&self, node: NodeId) -> usize {
        stride(self.body) * self.blocks(node) as usize
    }

    pub(super) fn masters(&self) -> u16 {
        self.masters.min(self.nodes as u16).max(1)
    }

    /// Length of the longest message.
    pub(super) fn longest(&self) -> usize {
        match self.routing {
            Routing::Direct => Packer::longest(self.body),
            Routing::Grid => Packer::longest(self.body).saturating_sub(VIA_HEADER),
        }
    }

    /// Builds the configuration of a node. `joining`: the node was started again.
    pub(super) fn config(&self, node: NodeId, name: Name, joining: bool) -> Config {
        let parts = 2 + u16::from(self.mix.guests > 0) + self.actor_parts;
        let mut config = Config::new(node, self.nodes as u16);
        config.name = name;
        config.body = self.body;
        config.row = self.row;
        config.initial = self.initial;
        config.control_blocks = self.control_blocks(node);
        (config.local_parts, config.private_pipes) = (parts, parts);
        config.copy_blocks = self.copies;
        config.stream_pipes = self.mix.stream_pipes().max(self.actor_parts);
        config.flush_after = self.flush_after;
        config.interval = 1_000_000;
        config.checksum = self.checksum;
        config.masters = self.masters();
        config.lease = self.lease;
        config.patience = self.patience;
        config.routing = self.routing;
        config.start = if joining { Start::Joining } else { Start::Together };
        if self.open {
            config.voters = self.masters();
            config.start = if node.index() == 0 && !joining { Start::Alone } else { Start::Joining };
        }
        config
    }

    pub(super) fn division(&self, node: NodeId) -> Division {
        Division {
            nodes: self.nodes as u16,
            blocks: self.blocks(node),
            control: self.control_blocks(node),
            row: self.row,
            posted: self.physics.arrival == Arrival::Posted,
        }
    }
}

/// Why a cluster could not start or continue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClusterError {
    /// The network is impossible.
    Physics(PhysicsError),
    /// The engines cannot be set up.
    Config(ConfigError),
    /// This many bytes of memory are not available for each node; use fewer nodes or smaller blocks.
    Memory(usize),
    /// The part of a node could not be registered.
    Register(RegisterError),
    /// The private pipe of a node could not be bound.
    Pipe(pdbp_core::pipe::PipeError),
    /// The traffic does not fit the cluster.
    Traffic(String),
    /// [`Setup::actor_parts`] is 0, but actors were requested, which have parts. Set it to the largest number that one registers.
    NoActorParts,
    /// There is no such node.
    NoSuchNode(u16),
    /// These switches are not linked, or the ground is no fabric.
    NoSuchLink(usize, usize),
    /// There is no such switch, or the ground is no fabric.
    NoSuchSwitch(usize),
    /// An invariant does not hold.
    Broken(Box<Broken>),
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Physics(e) => e.fmt(f),
            Self::Config(e) => e.fmt(f),
            Self::Memory(n) => {
                write!(f, "{n} bytes for each node are not to be had; use fewer or smaller blocks")
            }
            Self::Register(e) => e.fmt(f),
            Self::Pipe(e) => e.fmt(f),
            Self::Traffic(what) => f.write_str(what),
            Self::NoActorParts => {
                f.write_str("actor_parts is 0; set it to the most parts that an actor registers")
            }
            Self::NoSuchNode(node) => {
                write!(f, "there is no node {node}; name one below the number of nodes")
            }
            Self::NoSuchLink(a, b) => {
                write!(
                    f,
                    "there is no fabric with a link of switches {a} and {b}; name one that the topology has"
                )
            }
            Self::NoSuchSwitch(switch) => {
                write!(f, "there is no fabric with a switch {switch}; name one that the topology has")
            }
            Self::Broken(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ClusterError {}
