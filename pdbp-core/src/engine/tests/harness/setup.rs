//! How a cluster is set up.

use std::cell::RefCell;
use std::format;
use std::rc::Rc;
use std::vec::Vec;

use pdbp_core::agreement::{self, Start};
use pdbp_core::engine::{Checksum, LocalPart, Setting};
use pdbp_core::id::Time;
use pdbp_core::matrix::{RowSpace, Side};
use pdbp_core::policy::{Adaptive, Fixed, Growth, SpacePolicy, Threshold, ThresholdAllocation};
use pdbp_core::tables::{Name, PartKind};
use pdbp_core::umb::{HeapMemory, stride};
use pdbp_core::{Arrival, Config, Engine, Routing, Storage};

use super::host::Host;
use super::net::{Links, Net, port};
use super::oracle::Oracle;
use super::{BODY, Cluster, PARTS, node, part};

/// Any of the policies.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    Fixed,
    Published,
    Adaptive,
    /// Gives everything back.
    Miser,
    /// Wants more than exists.
    Glutton,
}

impl SpacePolicy for Policy {
    fn at_critical(&self, row: &RowSpace, free: u32) -> Growth {
        match self {
            Self::Glutton => Growth::By(1_000_000),
            Self::Fixed | Self::Miser => Fixed.at_critical(row, free),
            Self::Published => ThresholdAllocation { threshold: Threshold::DEFAULT }.at_critical(row, free),
            Self::Adaptive => Adaptive::DEFAULT.at_critical(row, free),
        }
    }
    fn at_stall(&self, row: &RowSpace, free: u32) -> Growth {
        // Rows without room would ask over and over; see `SpacePolicy::at_stall`.
        assert!(row.side() != Side::Send || row.virtual_space() > 0, "a full row of SM cannot grow");
        if let Self::Adaptive = self { Adaptive::DEFAULT.at_stall(row, free) } else { Growth::Keep }
    }
    fn surplus(&self, row: &RowSpace) -> u32 {
        match self {
            Self::Adaptive => Adaptive::DEFAULT.surplus(row),
            Self::Miser => u32::MAX,
            _ => 0,
        }
    }
    fn at_request(&self, row: &RowSpace, free: u32) -> Growth {
        match self {
            Self::Glutton => Growth::By(1_000_000),
            Self::Adaptive => Adaptive::DEFAULT.at_request(row, free),
            _ => Growth::Keep,
        }
    }
    fn spare(&self, row: &RowSpace, free: u32) -> u32 {
        if let Self::Adaptive = self { Adaptive::DEFAULT.spare(row, free) } else { 0 }
    }
}

/// How a cluster is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub nodes: usize,
    pub routing: Routing,
    pub links: Links,
    pub trusted: bool,
    pub policy: Policy,
    pub checksum: Checksum,
    pub row: u32,
    pub initial: u32,
    /// Blocks beyond what is needed.
    pub extra: u32,
    /// Blocks reserved for control messages; a node with more links has one for each.
    pub control: u32,
    /// Maximum number of free blocks to which short messages are copied.
    pub copies: u16,
    /// Maximum number of blocks in flight on one link, at least 3.
    pub capacity: usize,
    /// Number of deliveries that a private pipe takes.
    pub pipe: usize,
    /// Stream pipes of a node, and circuits of a link.
    pub streams: u16,
    pub body: usize,
    /// Rows of PTA.
    pub parts: usize,
    /// Nanoseconds of a lease; 0 for no leases.
    pub lease: u64,
    /// The node that is admitted by the others, which start together.
    pub joining: Option<usize>,
    /// Node 0 founds an open cluster alone; the places of the others are vacant until their links are mended.
    pub open: bool,
    /// Number of nodes that vote in an open cluster.
    pub voters: u16,
    /// A node with a different value of a setting.
    pub odd: Option<(usize, Setting)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            nodes: 3,
            routing: Routing::Direct,
            links: Links::InPlace,
            trusted: false,
            policy: Policy::Adaptive,
            checksum: Checksum::Off,
            row: 8,
            initial: 2,
            extra: 6,
            control: 4,
            copies: 2,
            capacity: 64,
            pipe: 1 << 20,
            streams: 2,
            body: BODY,
            parts: 64,
            lease: 0,
            joining: None,
            open: false,
            voters: 1,
            odd: None,
        }
    }
}

impl Setup {
    /// Blocks of node `i`.
    pub fn blocks(&self, i: usize) -> u32 {
        let linked = |p: &usize| {
            let relay = self.routing.relay(self.nodes as u16, self.masters(), node(i), node(*p));
            *p != i && relay.is_none()
        };
        let posted = |p: &usize| self.links.between(i, *p) == Arrival::Posted;
        let posted = (0..self.nodes).filter(linked).filter(posted);
        self.rows(i) * self.initial
            + posted.count() as u32 * (self.initial + 2)
            + self.control_blocks(i)
            + self.extra
    }

    fn rows(&self, i: usize) -> u32 {
        Config::rows_of(self.routing, node(i), self.nodes as u16, self.masters()) as u32
    }

    pub fn control_blocks(&self, i: usize) -> u32 {
        self.control.max(self.rows(i) - 1)
    }

    pub(super) fn masters(&self) -> u16 {
        match self.routing {
            _ if self.open => self.voters,
            // The fewer nodes have links to all, the more messages are relayed.
            Routing::Grid => 1,
            Routing::Direct => self.nodes.min(2) as u16,
        }
    }

    pub fn config(&self, i: usize) -> Config {
        let mut config = Config::new(node(i), self.nodes as u16);
        config.name = Name::new(&format!("n{i}")).unwrap();
        config.body = self.body;
        config.row = self.row;
        config.initial = self.initial;
        config.control_blocks = self.control_blocks(i);
        (config.local_parts, config.private_pipes) = (PARTS + 1, PARTS + 1);
        config.copy_blocks = self.copies;
        config.stream_pipes = self.streams;
        config.flush_after = 1000;
        config.interval = 10_000;
        config.checksum = self.checksum;
        config.masters = self.masters();
        config.lease = self.lease;
        config.patience = 2000;
        config.routing = self.routing;
        if self.joining == Some(i) {
            config.start = Start::Joining;
        }
        if self.open {
            config.voters = self.voters;
            config.start = if i == 0 { Start::Alone } else { Start::Joining };
        }
        match self.odd.filter(|(odd, _)| *odd == i) {
            Some((_, Setting::Body)) => config.body -= 64,
            Some((_, Setting::StreamPipes)) => config.stream_pipes += 1,
            Some((_, Setting::Masters)) => config.masters -= 1,
            Some((_, Setting::Voters)) => config.voters -= 1,
            Some((_, Setting::Lease)) => config.lease += 5_000,
            Some((_, Setting::Patience)) => config.patience += 1,
            Some((_, Setting::Routing)) => config.routing = Routing::Grid,
            _ => {}
        }
        config
    }

    fn storage(&self, i: usize, config: &Config) -> Storage<'static> {
        let odd = self.odd.filter(|(odd, _)| *odd == i).map(|(_, setting)| setting);
        let parts = self.parts + usize::from(odd == Some(Setting::Parts));
        let storage = Storage::allocate(config, self.blocks(i) as usize, parts);
        if odd == Some(Setting::Log) { storage.with_log(Storage::LOG + 1) } else { storage }
    }

    /// Creates engines that have not met yet.
    pub fn start(&self) -> Cluster {
        let memories: Vec<_> = (0..self.nodes)
            .map(|i| HeapMemory::new(stride(self.body) * self.blocks(i) as usize).unwrap())
            .collect();
        let net = Rc::new(RefCell::new(Net::new(self, &memories)));
        let oracle = Rc::new(RefCell::new(Oracle::default()));
        let hosts = memories.into_iter().enumerate().map(|(i, memory)| {
            let config = self.config(i);
            let storage = self.storage(i, &config);
            let engine = Engine::new(config, self.policy, port(i, &net), memory, storage).unwrap();
            Some(Host::new(i, engine, self.pipe, &oracle))
        });
        Cluster {
            setup: self.clone(),
            hosts: hosts.collect(),
            net,
            oracle,
            now: Time(1),
            dead: Vec::new(),
            graves: Vec::new(),
        }
    }

    /// Creates a cluster whose parts are registered everywhere and have their private pipes.
    pub fn ready(&self) -> Cluster {
        self.start().ready()
    }
}

impl Cluster {
    /// Waits until all nodes know each other, and registers their parts.
    pub fn ready(mut self) -> Self {
        let nodes = self.setup.nodes;
        self.run(60 * nodes.max(3) / 3, |c| c.hosts.iter().flatten().all(|h| h.engine.is_ready()));
        for i in 0..nodes {
            for local in 0..PARTS {
                let host = self.host(i);
                let id = host.engine.register(&format!("p{local}"), PartKind::Cpu).unwrap();
                assert_eq!(id, part(i, local));
                let pipe = host.engine.bind_pipe(id).unwrap();
                host.pipes.owner.insert(pipe.0, local);
            }
        }
        let parts = nodes * usize::from(PARTS);
        self.run(100 + 60 * parts, |c| {
            c.hosts.iter().flatten().all(|h| {
                h.engine.parts().count() == parts
                    && (0..PARTS).all(|p| h.engine.local_part(p) == LocalPart::Registered)
            })
        });
        self
    }
}
