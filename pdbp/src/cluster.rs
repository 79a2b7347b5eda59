//! The cluster: which nodes there are and what connects them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pdbp_core::Arrival;
use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::umb::HeapMemory;
use pdbp_sim::local::Local;

use crate::config::{ConfigError, Origin, Progress, Settings};
use crate::error::{NoSuchNode, Timeout};
use crate::node::{Backend, Driver, Memory, Node, Shared};

/// A running cluster, as far as this process hosts it. Nodes stop when the cluster, their [`Node`]s and their parts are dropped;
/// what they have sent and nobody has taken in is lost then, so let [`Node::quiesce`] end a program that must not lose anything.
pub struct Cluster {
    nodes: Vec<Node>,
    settings: Settings,
}

/// Why a cluster did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration cannot work.
    Config(ConfigError),
    /// A progress thread could not be started.
    Thread(std::io::Error),
    /// Not all nodes have reported to the master in time.
    Timeout(Timeout),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Config(e) => e.fmt(f),
            Self::Thread(e) => {
                write!(f, "cannot start a progress thread: {e}; use progress = \"inline\" to do without")
            }
            Self::Timeout(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ConfigError> for StartError {
    fn from(e: ConfigError) -> Self {
        Self::Config(e)
    }
}

impl From<pdbp_core::ConfigError> for StartError {
    fn from(e: pdbp_core::ConfigError) -> Self {
        Self::Config(e.into())
    }
}

impl Cluster {
    /// A cluster of `nodes` nodes in this process, with settings from environment and file.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn local(nodes: u16) -> Result<Self, StartError> {
        Self::builder()?.nodes(nodes).start()
    }

    /// Starts from environment and file (`PDBP_CONFIG`); what is set on the builder goes first.
    ///
    /// # Errors
    /// A setting there that cannot be used.
    pub fn builder() -> Result<Builder, ConfigError> {
        Ok(Builder { settings: Settings::load(None)?, wrong: None })
    }

    /// Nodes of the whole cluster.
    pub fn size(&self) -> usize {
        usize::from(self.settings.nodes)
    }

    /// The settings in effect; prints as a TOML file with the origin of each value.
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

    /// The nodes as values of their own. A node that is dropped with all its clones and parts stops, and its peers see it fail.
    pub fn into_nodes(self) -> Vec<Node> {
        self.nodes
    }

    /// Runs a function once for every node that this process hosts, each on a thread of its own, and returns the results in the
    /// order of the nodes. A panic in one of them is passed on when all are done.
    pub fn run<R: Send>(&self, program: impl Fn(Node) -> R + Sync) -> Vec<R> {
        let program = &program;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.nodes.iter().map(|node| scope.spawn(move || program(node.clone()))).collect();
            let results: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            results.into_iter().map(|r| r.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }
}

/// Collects the settings of a cluster. A method that takes a value out of range makes [`start`](Self::start) fail with it.
#[derive(Clone, Debug)]
pub struct Builder {
    settings: Settings,
    wrong: Option<ConfigError>,
}

/// From settings that were put together before, their origins included.
impl From<Settings> for Builder {
    fn from(settings: Settings) -> Self {
        Self { settings, wrong: None }
    }
}

impl Builder {
    /// Reads settings from a file; they count as if `PDBP_CONFIG` named it.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn file(path: &Path) -> Result<Self, ConfigError> {
        Ok(Self { settings: Settings::load(Some(path))?, wrong: None })
    }

    /// Sets any value by its name, as text: `set("block_bytes", "32768")`.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        if let Err(e) = self.settings.set(key, value, Origin::Builder) {
            self.wrong.get_or_insert(e);
        }
        self
    }

    /// Nodes of the cluster.
    #[must_use]
    pub fn nodes(self, nodes: u16) -> Self {
        self.set("nodes", &nodes.to_string())
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self, bytes: usize) -> Self {
        self.set("block_bytes", &bytes.to_string())
    }

    /// Bytes of block memory of each node.
    #[must_use]
    pub fn memory_bytes(self, bytes: usize) -> Self {
        self.set("memory_bytes", &bytes.to_string())
    }

    /// How long calls without a timeout of their own wait.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set("timeout_ms", &timeout.as_millis().to_string())
    }

    /// Who makes progress.
    #[must_use]
    pub fn progress(self, progress: Progress) -> Self {
        let name = match progress {
            Progress::Thread => "thread",
            Progress::Inline => "inline",
            Progress::Host => "host",
        };
        self.set("progress", name)
    }

    /// The settings as they stand.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Starts the nodes and returns when they know each other.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Cluster, StartError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong.into());
        }
        let settings = self.settings;
        settings.check()?;
        let count = usize::from(settings.nodes);
        let bytes = settings.memory();
        let memories = (0..count).map(|_| HeapMemory::new(bytes)).collect::<Option<Vec<_>>>();
        let memories = memories.ok_or(ConfigError::Memory { bytes })?;
        let in_flight = settings.row_blocks as usize + 16;
        let ends =
            Local::network(&memories, Arrival::InPlace, settings.block_bytes + BLOCK_HEADER, in_flight);
        let ends = ends.into_iter().map(|end| {
            let bell = end.doorbell();
            Backend::new(end, bell)
        });
        let memories = memories.into_iter().map(|memory| Box::new(memory) as Memory);
        Self { settings, wrong: None }.start_on(ends.zip(memories).collect())
    }

    /// Starts the nodes whose transports and block memories are given, and returns when they and all others of the cluster know
    /// each other. This is how a backend is chosen by the program: a process of an MPI job gives its one node, tests give
    /// several. The number of nodes is that of the transports; block memory is as long as it is, whatever `memory_bytes` says.
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
        let mut hosted = Vec::with_capacity(nodes.len());
        for (backend, memory) in nodes {
            let id = pdbp_core::Transport::capabilities(&backend).node;
            hosted.push(Arc::new(Shared::new(id, settings.nodes, settings.clone(), backend, memory)?));
        }
        Self::connect(hosted, settings)
    }

    /// Introduces the nodes of this process to each other, starts their threads and waits until all are ready.
    fn connect(hosted: Vec<Arc<Shared>>, settings: Settings) -> Result<Cluster, StartError> {
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
            nodes.push(Node { shared, _driver: driver });
        }
        for node in &nodes {
            let ready = node.shared.wait_for(
                settings.timeout,
                "reported to the master",
                |engine| engine.is_ready().then_some(()),
                |_| Vec::new(),
            );
            ready.map_err(StartError::Timeout)?;
        }
        Ok(Cluster { nodes, settings })
    }
}
