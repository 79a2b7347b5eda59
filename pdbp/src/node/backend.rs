//! The transport that carries a node's blocks, chosen at run time.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pdbp_core::agreement::Start;
use pdbp_core::cdu::{BLOCK_HEADER, VIA_HEADER};
use pdbp_core::engine::Config;
use pdbp_core::id::NodeId;
use pdbp_core::policy::{Adaptive, Choice, Fixed, ThresholdAllocation};
use pdbp_core::{Arrival, Bell, Capabilities, Completion, Op, Reason, Refused, Transport};

use crate::config::{PolicyKind, Settings};
use crate::trace::{Ring, Traced};

/// The error of any transport.
#[derive(Debug)]
pub struct BackendError(Box<dyn Error + Send + Sync>);

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for BackendError {}

/// A transport, with further information about it.
pub(crate) trait Carrier: Transport<Error = BackendError> + Send {
    /// Statistics of its links, if it uses sockets.
    #[cfg(feature = "net")]
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    fn links(&self) -> Option<pdbp_net::Stats> {
        None
    }
}

impl<T: Transport + Send> Carrier for Erased<T>
where
    T::Error: Send + Sync + 'static,
{
    #[cfg(feature = "net")]
    fn links(&self) -> Option<pdbp_net::Stats> {
        (self.1)(&self.0)
    }
}

impl Carrier for Traced {
    #[cfg(feature = "net")]
    fn links(&self) -> Option<pdbp_net::Stats> {
        self.inner().links()
    }
}

/// A transport of any type, and the bell that it rings when something has arrived.
pub struct Backend {
    transport: Box<dyn Carrier>,
    pub(crate) bell: Arc<dyn Bell>,
    pub(crate) crowded: bool,
    /// In an open cluster: distinguishes the processes that take this node's place one after the other.
    pub(crate) generation: Option<u32>,
    /// Whether this process founded that cluster rather than joined it.
    pub(crate) founds: bool,
    #[cfg(feature = "mpi")]
    pub(crate) direct: Option<Direct>,
    /// The fabric that the node is on.
    #[cfg(feature = "rapidio")]
    pub(crate) fabric: Option<Arc<crate::fabric::Fabric>>,
}

/// What MPI carries itself, besides the blocks.
#[cfg(feature = "mpi")]
#[derive(Clone, Debug)]
pub(crate) struct Direct {
    pub(crate) link: pdbp_mpi::Direct,
    /// Device messages of at least this many bytes.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) least: usize,
    /// Whether MPI supports device memory.
    pub(crate) knows_devices: bool,
}

#[cfg(all(feature = "mpi", feature = "cuda"))]
impl Direct {
    /// Whether MPI supports memory of that kind.
    pub(crate) fn knows(&self, space: pdbp_core::Space) -> bool {
        space != pdbp_core::Space::Device || self.knows_devices
    }
}

impl Backend {
    /// Wraps a transport. Whatever puts something into the transport rings `bell`; if nothing rings it, the transport is polled at
    /// intervals.
    pub fn new<T>(transport: T, bell: Arc<dyn Bell>) -> Self
    where
        T: Transport + Send + 'static,
        T::Error: Send + Sync + 'static,
    {
        let erased = Erased(
            transport,
            #[cfg(feature = "net")]
            |_| None,
        );
        Self::of(Box::new(erased), bell)
    }

    fn of(transport: Box<dyn Carrier>, bell: Arc<dyn Bell>) -> Self {
        Self {
            transport,
            bell,
            crowded: false,
            generation: None,
            founds: false,
            #[cfg(feature = "mpi")]
            direct: None,
            #[cfg(feature = "rapidio")]
            fabric: None,
        }
    }

    /// This process's end of a domain over sockets.
    #[cfg(feature = "net")]
    pub(crate) fn over_sockets(end: pdbp_net::Net) -> Self {
        let (bell, crowded) = (end.bell(), end.is_crowded());
        let (generation, founds) = (end.is_open().then(|| end.generation()), end.has_founded());
        let erased = Erased(end, |end: &pdbp_net::Net| Some(end.stats()));
        Self { crowded, generation, founds, ..Self::of(Box::new(erased), bell) }
    }

    /// Statistics of its links, if it uses sockets.
    #[cfg(feature = "net")]
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    pub(crate) fn links(&self) -> Option<pdbp_net::Stats> {
        self.transport.links()
    }

    /// This process's end of a domain over MPI, with everything MPI offers. Needs the feature `mpi`.
    #[cfg(feature = "mpi")]
    pub fn over_mpi(end: pdbp_mpi::Mpi) -> Self {
        let (bell, crowded) = (end.bell(), end.is_crowded());
        let direct = Some(Direct { link: end.direct(), least: usize::MAX, knows_devices: false });
        Self { direct, ..Self::new(end, bell).crowded(crowded) }
    }

    /// Traces what the transport does.
    pub(crate) fn traced(self, ring: Arc<Ring>) -> Self {
        Self { transport: Box::new(Traced::new(self.transport, ring)), ..self }
    }

    /// Sets whether this host has more nodes than processors. If so, a node that finds nothing to do yields, since what it waits
    /// for may need its processor.
    #[must_use]
    pub fn crowded(self, crowded: bool) -> Self {
        Self { crowded, ..self }
    }
}

impl Transport for Backend {
    type Error = BackendError;
    pdbp_core::forward_links!(transport);

    fn capabilities(&self) -> Capabilities {
        self.transport.capabilities()
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<BackendError>> {
        self.transport.submit(op)
    }

    fn poll_completion(&mut self) -> Option<Completion<BackendError>> {
        self.transport.poll_completion()
    }
}

/// A transport, with a function that returns the statistics of its links.
struct Erased<T>(T, #[cfg(feature = "net")] fn(&T) -> Option<pdbp_net::Stats>);

impl<T: Transport> Transport for Erased<T>
where
    T::Error: Send + Sync + 'static,
{
    type Error = BackendError;
    pdbp_core::forward_links!(0);

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<BackendError>> {
        self.0.submit(op).map_err(|Refused { op, reason }| {
            let reason = match reason {
                Reason::Busy => Reason::Busy,
                Reason::PeerFailed => Reason::PeerFailed,
                Reason::Transport(e) => Reason::Transport(BackendError(Box::new(e))),
                _ => Reason::Unsupported,
            };
            Refused { op, reason }
        })
    }

    fn poll_completion(&mut self) -> Option<Completion<BackendError>> {
        Some(match self.0.poll_completion()? {
            Completion::Sent { peer, block } => Completion::Sent { peer, block },
            Completion::Received { peer, block } => Completion::Received { peer, block },
            Completion::Failed { peer, block } => Completion::Failed { peer, block },
            Completion::Unused { peer, block } => Completion::Unused { peer, block },
            Completion::PeerRestored { peer, session } => Completion::PeerRestored { peer, session },
            Completion::PeerFailed { peer, cause } => {
                Completion::PeerFailed { peer, cause: cause.map(|e| BackendError(Box::new(e))) }
            }
        })
    }
}

/// Minimum time for which a process that joins an open cluster without leases waits for an answer before it asks again, which voids
/// the request in flight. Lines may be slow, and a link that is up loses nothing. If only the founder votes, no election waits for
/// this.
const SLOW_LINE: Duration = Duration::from_secs(2);

/// Maximum number of free blocks that hold copies of short messages for parts that read late: 1 MiB with the default block size.
const COPY_BLOCKS: u16 = 8;

/// Configuration of a node's engine, from the settings. The monitor and the part that takes requests from gateways each need a part
/// and a pipe in addition to the program's.
pub(crate) fn config(id: NodeId, nodes: u16, settings: &Settings, backend: &Backend) -> Config {
    let own = u16::from(settings.is_monitored()) + u16::from(settings.has_flow());
    let mut config = Config::new(id, nodes);
    config.body = settings.block_bytes;
    config.row = settings.row_blocks;
    config.initial = settings.initial_blocks;
    config.local_parts = settings.local_parts + own;
    config.private_pipes = settings.private_pipes + own;
    config.stream_pipes = settings.stream_pipes;
    config.copy_blocks = COPY_BLOCKS;
    config.flush_after = settings.flush_after.as_nanos() as u64;
    config.interval = settings.interval.as_nanos() as u64;
    config.checksum = settings.checksum;
    config.masters = settings.master_count();
    config.lease = settings.lease.as_nanos() as u64;
    config.patience = settings.patience.as_nanos() as u64;
    config.routing = settings.routing;
    if backend.generation.is_some() {
        config.voters = config.masters;
        config.start = if backend.founds { Start::Alone } else { Start::Joining };
        if config.voters == 1 && config.lease == 0 {
            config.patience = config.patience.max(SLOW_LINE.as_nanos() as u64);
        }
    }
    config.control_blocks = settings.control_blocks(config.min_control_blocks());
    config
}

/// Properties of blocks to a node.
#[derive(Clone, Copy)]
pub(crate) struct Body {
    /// The longest body that travels to the node at full speed.
    pub(crate) length: usize,
    /// The bytes of it reserved for relays.
    pub(crate) relay: usize,
    /// Whether another node reads the blocks in this node's memory, and finds them without a poll by this one.
    pub(crate) in_place: bool,
    /// As `in_place`, with the reader on another processor.
    pub(crate) read_elsewhere: bool,
}

/// Properties of blocks to each node.
pub(crate) fn bodies(config: &Config, backend: &Backend) -> Box<[Body]> {
    let peers = (0..config.nodes).filter_map(NodeId::new);
    let bodies = peers.map(|peer| {
        let relay = config.relay_to(peer);
        let next = relay.unwrap_or(peer);
        let length = backend.best_block(next).saturating_sub(BLOCK_HEADER).clamp(256, config.body);
        let in_place = next != config.node && backend.arrival(next) == Arrival::InPlace;
        let read_elsewhere = in_place && !backend.crowded;
        Body { length, relay: relay.map_or(0, |_| VIA_HEADER), in_place, read_elsewhere }
    });
    bodies.collect()
}

/// The policy that the settings select.
pub(crate) fn policy(settings: &Settings) -> Choice {
    let threshold = settings.threshold;
    match settings.policy {
        PolicyKind::Adaptive => Choice::Adaptive(Adaptive { threshold, ..Adaptive::DEFAULT }),
        PolicyKind::Threshold => Choice::Threshold(ThresholdAllocation { threshold }),
        PolicyKind::Fixed => Choice::Fixed(Fixed),
    }
}

/// Default of m: the largest value from 2 to 4 that leaves half of the blocks for rows to grow into, and those for control
/// messages.
pub(crate) fn initial_blocks(config: &Config, backend: &Backend, blocks: usize) -> u32 {
    let peers = (0..config.nodes).filter_map(NodeId::new).filter(|n| *n != config.node);
    let linked = peers.filter(|peer| config.relay_to(*peer).is_none());
    // Links that post blocks to receive into need as many again, and two more.
    let posted = linked.filter(|peer| backend.arrival(*peer) == Arrival::Posted).count();
    let (blocks, rows) = (blocks.saturating_sub(2 * posted), config.rows() + posted);
    let most = blocks.saturating_sub(config.control_blocks as usize) / rows;
    ((blocks / (2 * rows)).min(most).clamp(2, 4) as u32).min(config.row)
}
