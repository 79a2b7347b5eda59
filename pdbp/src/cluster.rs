//! The cluster: its nodes and what connects them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pdbp_core::id::NodeId;
use pdbp_core::umb::HeapMemory;
use pdbp_local::Local;
#[cfg(feature = "mpi")]
use pdbp_mpi::{Hosts, Mpi, MpiMemory, Options, Threads};

use crate::config::{Builder, ConfigError, Progress, Settings, TransportKind};
use crate::error::{NoSuchNode, SettingsDiffer, StartError};
use crate::launch::Launch;
use crate::node::{
    self, Backend, Driver, Memory, Node, NodeEngine, SeenInterrupts, Shared, WaitFailure, interruptible,
};
use crate::served::Listeners;
use crate::trace::Trace;

/// The nodes of a running cluster that this process hosts. A node stops once the cluster, all its [`Node`] handles, its parts and all messages
/// that they have received are dropped; until then others see it as a member. Messages it sent that have not yet arrived are then lost; to wait
/// for them, call [`Node::quiesce`] first.
pub struct Cluster {
    nodes: Vec<Node>,
    settings: Settings,
}

impl Cluster {
    /// Starts a cluster of `nodes` nodes in this process with the default settings, even under a launcher such as `mpirun`. Ignores
    /// the environment; see [`from_env`](Self::from_env).
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn local(nodes: u16) -> Result<Self, StartError> {
        Builder::new().nodes(nodes).transport(TransportKind::Local).start()
    }

    /// Starts the cluster that the environment and the configuration file describe, as `Builder::from_env()?.start()`. Under a
    /// launcher such as `mpirun`, each process hosts one node; otherwise this process hosts all nodes, the number given by the
    /// setting `nodes`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn from_env() -> Result<Self, StartError> {
        Builder::from_env()?.start()
    }

    /// Returns a builder with the default settings, as [`Builder::new`]. The environment is ignored.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Number of nodes in the whole cluster. In an open cluster (the setting `found`) this is the number of places;
    /// [`Node::members`] lists those that are taken.
    pub fn size(&self) -> usize {
        usize::from(self.settings.nodes)
    }

    /// The address at which the cluster's gateway accepts trunks, if the gateway is in this process: the setting `listen` of a
    /// cluster with a name (`grid`). Needs the feature `net`.
    #[cfg(feature = "net")]
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        self.nodes.iter().find_map(|node| node.gateway.as_ref()?.address())
    }

    /// The settings in effect; they print as a TOML file with the origin of each value.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Node `index`, if this process hosts it.
    ///
    /// # Errors
    /// [`NoSuchNode`].
    pub fn node(&self, index: usize) -> Result<Node, NoSuchNode> {
        let found = self.nodes.iter().find(|n| n.id().index() == index).cloned();
        found.ok_or(NoSuchNode { index, nodes: self.size() })
    }

    /// The nodes that this process hosts.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the nodes by value. Once a node and all its clones and parts have been dropped, it stops, and its peers see it fail.
    pub fn into_nodes(self) -> Vec<Node> {
        self.nodes
    }

    /// Runs a function once for every node that this process hosts, each on its own thread, and returns the results in node order.
    ///
    /// # Panics
    /// If one call panics, the blocking calls of the others return the error `Interrupted`, as in
    /// [`interruptible`](crate::interruptible), since what they wait for may never come. The first panic resumes once all threads
    /// have returned.
    pub fn run<R: Send>(&self, program: impl Fn(Node) -> R + Sync) -> Vec<R> {
        let (first, ends) = (Mutex::new(None), Arc::new(AtomicBool::new(false)));
        let run = |node: &Node| {
            // The flag guards no other data, so relaxed ordering is enough.
            let is_over = Arc::clone(&ends);
            let check = move || is_over.load(Ordering::Relaxed);
            let result = interruptible(check, || catch_unwind(AssertUnwindSafe(|| program(node.clone()))));
            result.map_err(|panic| {
                first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                ends.store(true, Ordering::Relaxed);
            })
        };
        let run = &run;
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = self.nodes.iter().map(|node| scope.spawn(move || run(node))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()?.ok()).collect()
        });
        let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
        first.map_or(results, |panic| resume_unwind(panic))
    }
}

impl Builder {
    /// Starts the nodes that this process hosts, and returns once all nodes of the cluster know each other. The setting `transport`
    /// selects what connects them. By default that is MPI under a launcher such as `mpirun`, sockets if `listen` or `join` is set
    /// (both with one node per process), and threads of this process otherwise.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Cluster, StartError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong.into());
        }
        crate::prepare();
        let mut settings = self.settings;
        settings.check()?;
        let launch = Launch::find().filter(|launch| launch.ranks > 1);
        settings.transport = settings.transport_here(launch.is_some());
        match settings.transport {
            TransportKind::Local | TransportKind::Auto => Self::from(settings).start_local(),
            TransportKind::Mpi => Self::from(settings).start_mpi(launch),
            TransportKind::Net => Self::from(settings).start_net(),
            TransportKind::Rapidio => Self::from(settings).start_on_fabric(),
        }
    }

    fn start_local(self) -> Result<Cluster, StartError> {
        let settings = self.settings;
        let count = usize::from(settings.nodes);
        let bytes = (0..settings.nodes).filter_map(NodeId::new).map(|node| settings.memory_of(node));
        let memories = bytes.map(|bytes| HeapMemory::new(bytes).ok_or(ConfigError::Memory { bytes }));
        let memories = memories.collect::<Result<Vec<_>, _>>()?;
        let sizes = (settings.largest_block(), settings.in_flight());
        let ends = Local::network_of_links(&memories, |a, b| settings.local_link(a, b), sizes.0, sizes.1);
        let crowded = std::thread::available_parallelism().is_ok_and(|cores| count > cores.get());
        let ends = ends.into_iter().map(|end| {
            let bell = end.doorbell();
            Backend::new(end, bell).crowded(crowded)
        });
        let memories = memories.into_iter().map(|memory| Box::new(memory) as Memory);
        Self::from(settings).start_on(ends.zip(memories).collect())
    }

    /// Never reached: the settings check refuses a fabric without the feature.
    #[cfg(not(feature = "rapidio"))]
    fn start_on_fabric(self) -> Result<Cluster, StartError> {
        Err(StartError::NoFabric)
    }

    /// Never reached: the settings check refuses sockets without the feature.
    #[cfg(not(feature = "net"))]
    fn start_net(self) -> Result<Cluster, StartError> {
        Err(StartError::NoAddress)
    }

    #[cfg(feature = "net")]
    fn start_net(self) -> Result<Cluster, StartError> {
        Ok(self.start_net_at()?.0)
    }

    /// Starts this process's node of a cluster over sockets; also returns the address it listens at.
    #[cfg(feature = "net")]
    pub(crate) fn start_net_at(self) -> Result<(Cluster, std::net::SocketAddr), StartError> {
        let mut settings = self.settings;
        let end = crate::net::connect(&mut settings)?;
        let address = end.address();
        let bytes = settings.memory_of(pdbp_core::Transport::capabilities(&end).node);
        let memory = HeapMemory::new(bytes).ok_or(ConfigError::Memory { bytes })?;
        let backend = Backend::over_sockets(end);
        Ok((Self::from(settings).start_on(vec![(backend, Box::new(memory))])?, address))
    }

    #[cfg(not(feature = "mpi"))]
    fn start_mpi(self, launch: Option<Launch>) -> Result<Cluster, StartError> {
        Err(StartError::NoMpi { ranks: launch.map(|launch| launch.ranks) })
    }

    #[cfg(feature = "mpi")]
    fn start_mpi(self, launch: Option<Launch>) -> Result<Cluster, StartError> {
        // Bind before MPI starts: a process that fails later keeps the others waiting until they time out.
        if let Some(node) = launch.and_then(|launch| NodeId::new(u16::try_from(launch.rank).ok()?)) {
            let ranks = launch.and_then(|launch| u16::try_from(launch.ranks).ok());
            let mut settings = self.settings.clone();
            settings.nodes = ranks.unwrap_or(settings.nodes);
            Listeners::bind(&settings, &[node])?;
        }
        self.join_mpi(launch.map(|launch| (launch.rank, launch.ranks)), Mpi::start)
    }

    /// Starts this process's node of a cluster made of all processes of an MPI communicator, using a duplicate of it. For programs
    /// that initialise and finalise MPI themselves. Collective: every process of the communicator must call it, and processes that start
    /// several clusters together start them in the same order, one after the other. Needs the feature `mpi`; communicators of the crate
    /// `mpi` (rsmpi) need `mpi-linked`.
    ///
    /// With a progress thread, MPI must have been initialised with `MPI_THREAD_MULTIPLE`, since the program may call it at the same
    /// time; otherwise `MPI_THREAD_SERIALIZED` is enough.
    ///
    /// # Errors
    /// See [`StartError`].
    #[cfg(feature = "mpi")]
    pub fn start_on_communicator(self, comm: &impl pdbp_mpi::Communicator) -> Result<Cluster, StartError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong.into());
        }
        let place = Mpi::place_in(comm, &(&self.settings.mpi).into()).map_err(StartError::from)?;
        self.join_mpi(Some(place), |options| Mpi::start_on(comm, options))
    }

    /// As [`start_on_communicator`](Self::start_on_communicator), with the handle of the communicator (an `MPI_Comm`) as a number,
    /// in C `(uintptr_t)comm`. Needs the feature `mpi`.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Safety
    /// `comm` must be the handle of a communicator of the MPI library that this process has loaded.
    #[cfg(feature = "mpi")]
    #[expect(unsafe_code, reason = "the caller's promise of a handle")]
    pub unsafe fn start_on_raw_communicator(self, comm: usize) -> Result<Cluster, StartError> {
        // SAFETY: the caller's promise.
        self.start_on_communicator(&unsafe { pdbp_mpi::RawCommunicator::new(comm) })
    }

    #[cfg(feature = "mpi")]
    fn join_mpi(
        self,
        place: Option<(usize, usize)>,
        join: impl FnOnce(&Options) -> Result<(Mpi, MpiMemory), pdbp_mpi::StartError>,
    ) -> Result<Cluster, StartError> {
        let mut settings = self.settings;
        settings.transport = TransportKind::Mpi;
        settings.nodes = place.and_then(|(_, ranks)| u16::try_from(ranks).ok()).unwrap_or(settings.nodes);
        settings.check()?;
        let node = place.and_then(|(rank, _)| NodeId::new(u16::try_from(rank).ok()?));
        let memory = node.map_or(settings.memory(), |node| settings.memory_of(node));
        let mut options = Options::new(memory, settings.largest_block());
        options.in_flight = settings.in_flight();
        options.hosts = if settings.mpi_shared_memory { Hosts::Detected } else { Hosts::Apart };
        options.library = (&settings.mpi).into();
        let both = settings.progress == Progress::Thread
            && pdbp_mpi::is_initialised_by_program(&options.library).map_err(StartError::from)?;
        options.threads = if both { Threads::Multiple } else { Threads::Serialised };
        let (end, memory) = join(&options).map_err(StartError::from)?;
        let mut backend = Backend::over_mpi(end);
        if let Some(direct) = backend.direct.as_mut().filter(|_| settings.mpi_device_bytes > 0) {
            direct.least = settings.mpi_device_bytes;
            direct.knows_devices = node::knows_devices(&direct.link, node);
        }
        Self::from(settings).start_on(vec![(backend, Box::new(memory))])
    }

    /// Starts nodes on the given transports and block memories, and returns once they and all other nodes of the cluster know each
    /// other. This lets a program choose its backend: a process of an MPI job passes its one node (`Backend::over_mpi`), tests pass
    /// several. The transports determine the number of nodes, and each memory its own size: `memory_bytes` is ignored. Nodes of
    /// other processes need the same values of the settings that must agree ([`Setting`](pdbp_core::engine::Setting)); if values
    /// differ, both sides report which.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_on(self, nodes: Vec<(Backend, Memory)>) -> Result<Cluster, StartError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong.into());
        }
        let mut settings = self.settings;
        if let Some((backend, _)) = nodes.first() {
            settings.nodes = pdbp_core::Transport::capabilities(backend).nodes;
        }
        settings.check()?;
        let ids: Vec<_> = nodes.iter().map(|(b, _)| pdbp_core::Transport::capabilities(b).node).collect();
        let listeners = Listeners::bind(&settings, &ids)?;
        let trace = trace(&settings, &ids)?;
        let (backends, memories): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let memories = node::pin(settings.pin_memory, memories)?;
        let mut hosted = Vec::with_capacity(ids.len());
        for ((backend, memory), id) in backends.into_iter().zip(memories).zip(ids) {
            let trace = trace.as_ref().and_then(|trace| trace.of(id));
            hosted.push(Arc::new(Shared::new(id, settings.nodes, settings.clone(), backend, memory, trace)?));
        }
        Self::connect(hosted, settings, listeners)
    }

    /// Introduces the nodes of this process to each other, starts their threads and waits until all are ready.
    fn connect(
        hosted: Vec<Arc<Shared>>,
        settings: Settings,
        mut listeners: Listeners,
    ) -> Result<Cluster, StartError> {
        for node in &hosted {
            let siblings = hosted.iter().map(Arc::downgrade).collect();
            let first = node.siblings.set(siblings).is_ok();
            debug_assert!(first, "siblings are set once");
        }
        let mut nodes = Vec::with_capacity(hosted.len());
        for shared in hosted {
            let driver = match settings.progress {
                Progress::Thread => Some(Arc::new(Driver::start(&shared).map_err(StartError::Thread)?)),
                Progress::Inline | Progress::Host => None,
            };
            let mut node = Node {
                seen: SeenInterrupts::all(&shared),
                shared,
                driver,
                endpoint: None,
                desk: None,
                #[cfg(feature = "net")]
                gateway: None,
            };
            listeners.serve(&mut node)?;
            nodes.push(node);
        }
        for node in &nodes {
            let ready = node.wait_for(
                settings.timeout,
                "reported to the master",
                |engine| match engine.disagreement() {
                    Some(found) => Some(Err(SettingsDiffer::of(&found, settings.nodes))),
                    None => {
                        let is_there = engine.is_ready() && unlinked(engine, &settings).next().is_none();
                        is_there.then_some(Ok(()))
                    }
                },
                |engine| unlinked(engine, &settings).collect(),
            );
            match ready {
                Ok(agreed) => agreed.map_err(StartError::SettingsDiffer)?,
                Err(WaitFailure::Timeout(late)) => return Err(StartError::Timeout(late)),
                Err(WaitFailure::Interrupted) => return Err(StartError::Interrupted),
            }
        }
        #[cfg(feature = "net")]
        if let Some(first) = nodes.iter_mut().find(|node| node.id().index() == 0) {
            first.gateway = crate::grid::Gateway::start(first, &settings)?.map(Arc::new);
        }
        Ok(Cluster { nodes, settings })
    }
}

/// In an open cluster: the members to which this node needs a link and has none yet.
fn unlinked(engine: &NodeEngine, settings: &Settings) -> impl Iterator<Item = NodeId> {
    let (me, is_open) = (engine.config().node, engine.config().is_open());
    let is_needed = move |node: NodeId| !settings.needs_founder_only || node.index() == 0;
    engine
        .members()
        .filter(move |node| is_open && *node != me && is_needed(*node) && engine.has_failed(*node))
}

fn trace(settings: &Settings, hosted: &[NodeId]) -> Result<Option<Arc<Trace>>, StartError> {
    let Some(path) = &settings.trace else { return Ok(None) };
    match Trace::start(path, settings.trace_events, hosted, settings.nodes) {
        Ok(trace) => Ok(Some(Arc::new(trace))),
        Err((path, error)) => Err(StartError::Trace { path, error }),
    }
}
