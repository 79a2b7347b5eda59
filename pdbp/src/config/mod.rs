//! Configuration: builder over environment over file over default.
//!
//! Every setting has one name. In a TOML file it is a key (`block_bytes = 65536`), in the environment a variable
//! (`PDBP_BLOCK_BYTES=65536`), on the [`Builder`] a method or [`set`](Builder::set). File and environment count for a builder made by
//! [`Builder::from_env`] or [`Builder::file`], and for [`Cluster::from_env`](crate::Cluster::from_env); not for [`Builder::new`] and
//! [`Cluster::local`](crate::Cluster::local). The file is named by `PDBP_CONFIG`. A key that does not exist, or a value out of range, is
//! an error that names it and where it came from. [`Settings`] prints as a TOML file that says where each value came from.

mod builder;
mod error;
mod keys;
mod kinds;
#[cfg(feature = "net")]
mod net;
mod source;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::engine::{Checksum, Config};
use pdbp_core::id::NodeId;
use pdbp_core::policy::Threshold;
use pdbp_core::umb::stride;
use pdbp_core::{Arrival, Routing};

pub use builder::Builder;
pub use error::ConfigError;
pub(crate) use keys::KEYS;
#[cfg(feature = "net")]
pub(crate) use keys::is_cluster;
pub use kinds::{
    Codec, Framing, MonitorKind, MpiLibrary, Origin, PinMemory, PolicyKind, Progress, Role, Scheme, Tls,
    TransportKind, Trunk,
};

/// Where a setting stands in [`KEYS`]; behind all of them for a name that is none.
fn position(key: &str) -> usize {
    KEYS.iter().position(|known| known.name == key).unwrap_or(KEYS.len())
}

/// Blocks set aside for control messages on a node of many; those with more links have one for each.
const CONTROL_BLOCKS: usize = 16;

/// One setting as text, from [`Settings::entries`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// Its name in files, and for [`Settings::set`].
    pub key: &'static str,
    /// The environment variable that sets it.
    pub variable: String,
    /// Its value, as `set` takes it.
    pub value: String,
    /// Where the value came from.
    pub origin: &'a Origin,
    /// What it means and which values it takes.
    pub expected: &'static str,
}

/// All settings with their effective values.
///
/// Nodes have to agree on `block_bytes`, `routing`, `masters`, `lease`, `parts` and `stream_pipes`: who finds at the start that another
/// has other values says so ([`SettingsDiffer`](crate::SettingsDiffer)). All other settings are a node's own; over MPI the
/// processes also compare `row_blocks` and `mpi_shared_memory`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Nodes of the in-process cluster. Over sockets the processes that the founder waits for, itself included; those that join
    /// learn it from there. Over MPI there are as many as processes, whatever this says.
    pub nodes: u16,
    /// What carries blocks between nodes.
    pub transport: TransportKind,
    /// The fabric on which the nodes of this process are with [`TransportKind::Rapidio`]: steps in a row, `boards=N` (four endpoints and a switch
    /// each), `bare=N` (switches), `endpoint=S`, then `chain`, `ring`, `tree=D` or `link=A-B`. If [`nodes`](Self::nodes) is not set there is one on
    /// each endpoint. Needs the feature `rapidio`.
    pub fabric: Option<String>,
    /// Over sockets: where this process listens, as host and port. Without [`join`](Self::join) it founds a cluster of
    /// [`nodes`](Self::nodes) processes, which join there; port 0 is any free one, for tests. An address in reach of other hosts takes a
    /// [`token_file`](Self::token_file), and [`tls`](Self::tls) or [`plain`](Self::plain).
    pub listen: Option<String>,
    /// Over sockets: where others reach this process, as host and port, if that is not where it [listens](Self::listen), or not the address
    /// that it is seen to call from: behind a router that forwards a port. All others call it there, those of its own network too.
    pub advertise: Option<String>,
    /// Over sockets: where the process listens that founds the cluster to which this one is to belong, or has founded it. Of an open one any of its
    /// processes will do, and there may be several addresses, with commas between them, which are tried in turn.
    pub join: Option<String>,
    /// Over sockets: whether this process, alone, founds an *open* cluster of [`nodes`](Self::nodes) places (16 if nothing is set). Others
    /// [`join`](Self::join) it whenever they like, and leave. With one of [`masters`](Self::masters), which is the default there, the cluster ends with
    /// this process. With three any one of them may die, this one too; one that is started again while its masters live joins them, as a
    /// master, for which it waits three seconds at its [`listen`](Self::listen), which it needs. Were none of them to reach it in that time it would found a
    /// second cluster, which a [`founding_file`](Self::founding_file) prevents.
    pub found: bool,
    /// A file that a process writes when it [`founds`](Self::found) a cluster of several masters. Where it finds the file it founds none: it waits for a call of the
    /// masters of the one before, as long as [`timeout`](Self::timeout) says, joins them, and fails otherwise. Remove it when that cluster has ended.
    pub founding_file: Option<PathBuf>,
    /// In an open cluster: whether this process has a place of a master.
    pub role: Role,
    /// The name of this cluster among those that it is joined with by trunks: a letter, then letters, digits, `-` and `_`, 16
    /// at most. The process with node 0
    /// carries the trunks; they are taken at [`listen`](Self::listen). Needs the feature `net`.
    pub grid: Option<String>,
    /// The clusters that this one calls, each with where its gateway listens. It takes a name for this one, [`grid`](Self::grid).
    pub trunks: Vec<Trunk>,
    /// Bytes that a gateway holds for each trunk: half of it for what goes out, half for what comes in. Of either half one part has at most as
    /// much as all leave free. What exceeds it waits with its senders.
    pub trunk_bytes: usize,
    /// How long a gateway that ends waits for parts of its own cluster that do not read what comes back to them. After that it is lost.
    pub farewell: Duration,
    /// A file with the secret that all processes of a cluster over sockets know: 32 characters or more. A founder writes it if it
    /// does not exist.
    pub token_file: Option<PathBuf>,
    /// Over sockets: whether connections are encrypted, and whose certificates count; the same in all processes. Needs a
    /// [`token_file`](Self::token_file) and the feature `tls`.
    pub tls: Tls,
    /// Over sockets: without [`tls`](Self::tls), what travels may be read and changed by whoever is between the hosts.
    pub plain: bool,
    /// Over sockets: how what processes say travels on the connections that this one makes; each takes calls in either framing. Trunks have
    /// theirs in [`trunks`](Self::trunks).
    pub framing: Framing,
    /// Over sockets: what this process packs the blocks by that it sends, to nodes of its cluster and over trunks alike. Unless this is set
    /// that is [`Codec::None`] in the cluster, and [`Codec::Auto`] over trunks. What it receives it expands, whatever this says.
    pub codec: Codec,
    /// Over sockets: how long a link without a connection is only slow, before it has failed. Nothing is lost or doubled meanwhile.
    pub outage: Duration,
    /// Which nodes have links, and whether the others send to each other by relays; the same on all nodes. With
    /// [`Routing::Grid`] a node needs memory for about 2·√M of M peers, and what has two hops takes twice as long; see
    /// [`pdbp_core::routing`]. Up to some hundred nodes [`Routing::Direct`] is the better choice.
    pub routing: Routing,
    /// Over MPI: which library is loaded. A process uses one, and keeps it.
    pub mpi: MpiLibrary,
    /// Over MPI: whether the processes of a host read each other's blocks in shared memory.
    pub mpi_shared_memory: bool,
    /// Whether the members of a [group](crate::collective::Group) that all share memory hand each other what they send through flags and
    /// slots there (*slates*), which takes a fraction of the time of a message. A group in which one has it off does without.
    pub group_shared_memory: bool,
    /// Whether members of a [group](crate::collective::Group) that all share memory read long data where it is in each other's memory
    /// (`process_vm_readv`), so that it is copied once. The system has to let each of them read the others, as a debugger
    /// does ([`pdbp_local::reading`]); a group in which it does not, or one has this off, does without.
    pub group_reads: bool,
    /// Whether the switches of a [`fabric`](Self::fabric) carry out what they can of the calls of a [group](crate::collective::Group) with a
    /// member on each of several nodes. A group in which one has it off does without.
    pub group_switches: bool,
    /// Device messages of so many bytes and more are carried by MPI itself, from the one device's memory to the other's, between
    /// ranks whose MPI knows devices; 0: all go through blocks. Needs the features `cuda` and `mpi`.
    pub mpi_device_bytes: usize,
    /// Bytes of a block behind its header. A longer message travels in segments. The same on all nodes.
    pub block_bytes: usize,
    /// Bytes at which a block with short messages leaves. Less than a block costs throughput where nodes run on cores of their
    /// own, and may gain some where they share a small cache.
    pub pack_bytes: usize,
    /// Bytes of the UMB of each node. It never grows. 0 stands for 8 MiB, or twice what the rows of all nodes begin with if that
    /// is more: little enough to stay in a cache. Besides, a part that sends much to other nodes of its host has 16 KiB for each of them, of 32 at
    /// most, and a stream or a loan to them up to the bytes of a block.
    pub memory_bytes: usize,
    /// Whether CUDA devices are told of the blocks of all nodes of this process, and of those of other processes of the host that
    /// are read in place. Starting takes longer then, and what is locked is not there for others; without it the driver copies
    /// through memory of its own, which takes longer. Needs the feature `cuda`.
    pub pin_memory: PinMemory,
    /// N, the largest number of elements of a row.
    pub row_blocks: u32,
    /// m, the real elements of a row at the start; 0 lets the other values decide.
    pub initial_blocks: u32,
    /// Which policy decides the space of rows.
    pub policy: PolicyKind,
    /// The value of SU above which rows grow, in thousandths.
    pub threshold: Threshold,
    /// How long a message waits at least in a block that is not full; with a progress thread up to half a millisecond more (4 ms where nodes
    /// outnumber processors), and up to 50 times as long while the node has not read what was sent to it before.
    /// [`flush`](crate::Part::flush) does not wait.
    pub flush_after: Duration,
    /// Time between two looks at rows that could give space back.
    pub interval: Duration,
    /// Checksums on blocks.
    pub checksum: Checksum,
    /// Nodes that may become primary master: node 0 and those after it. The same on all nodes. In an open cluster ([`found`](Self::found)) so many of its
    /// places, fewer than [`nodes`](Self::nodes), are for processes with the [`role`](Self::role) of a master; there it is 1 if nothing is set, and those
    /// that join learn it.
    pub masters: u16,
    /// A node that gives no sign of life for so long is declared down; zero: only when its transport reports it failed. All nodes
    /// have to poll more often than that, so with [`Progress::Inline`] a program has to call. The same on all nodes. Over
    /// sockets with progress threads, where nothing else tells of a host that has gone, 2 s if nothing is set.
    pub lease: Duration,
    /// Who makes progress.
    pub progress: Progress,
    /// How long calls without a timeout of their own wait.
    pub timeout: Duration,
    /// Parts of the whole cluster (PTA). The same on all nodes.
    pub parts: usize,
    /// Parts of one node.
    pub local_parts: u16,
    /// Private pipes of one node.
    pub private_pipes: u16,
    /// Stream pipes of one node: streams it can send at a time. The same on all nodes.
    pub stream_pipes: u16,
    /// Deliveries that a private pipe holds.
    pub pipe_depth: usize,
    /// Bytes of messages longer than a block that all parts of a node together put together at a time, until they are dropped. Who sends
    /// one waits until there is room for it; a longer one is refused at its sender.
    pub assembly_bytes: usize,
    /// Whether nodes answer who asks for their figures.
    pub monitor: MonitorKind,
    /// Where the figures of all nodes are served over HTTP, as host and port; port 0 is any free one. Needs the feature `metrics`.
    pub metrics: Option<String>,
    /// Names of hosts under which clients ask for them, and for `desk`, besides those in these settings, `localhost` and any IP address; see
    /// `monitor::Endpoint`.
    pub metrics_hosts: Vec<String>,
    /// Index of the node that serves them.
    pub metrics_node: u16,
    /// Where programs without PDBP talk to parts by SOAP, as host and port; port 0 is any free one. An address in reach of other hosts takes
    /// a [`client_token_file`](Self::client_token_file), and [`desk_tls`](Self::desk_tls) or [`plain`](Self::plain). Needs the feature
    /// `desk`, and somebody else than the program's calls who makes [`progress`](Self::progress).
    pub desk: Option<String>,
    /// Index of the node that serves it.
    pub desk_node: u16,
    /// A folder with the certificate `cert.pem`, those it was signed by behind it, and its key `key.pem`: with it [`desk`](Self::desk) speaks TLS
    /// 1.3. Needs the feature `tls`.
    pub desk_tls: Option<PathBuf>,
    /// A file with the secret that clients of `desk` and `metrics` send as bearer. Another one than
    /// [`token_file`](Self::token_file): who may ask may not join.
    pub client_token_file: Option<PathBuf>,
    /// The file for a trace of what nodes do.
    pub trace: Option<PathBuf>,
    /// The most events of a trace.
    pub trace_events: usize,
    /// How long masters wait for each other's messages, and who is to be let in for an answer: several times what a message and its answer take.
    pub(crate) patience: Duration,
    origins: Vec<Origin>,
    /// In an open cluster, a node that joins has a link to the founder alone, and begins when that is there: those that come and go do not need
    /// each other. It tries to join once.
    pub(crate) needs_founder_only: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nodes: 2,
            transport: TransportKind::Auto,
            fabric: None,
            listen: None,
            advertise: None,
            join: None,
            found: false,
            founding_file: None,
            role: Role::Auto,
            grid: None,
            trunks: Vec::new(),
            trunk_bytes: 64 << 20,
            farewell: Duration::from_secs(1),
            token_file: None,
            tls: Tls::Off,
            plain: false,
            framing: Framing::Tcp,
            codec: Codec::None,
            outage: Duration::from_secs(2),
            routing: Routing::Direct,
            mpi: MpiLibrary::Auto,
            mpi_shared_memory: true,
            group_shared_memory: true,
            group_reads: true,
            group_switches: true,
            mpi_device_bytes: 0,
            block_bytes: (128 << 10) + 64,
            pack_bytes: 128 << 10,
            memory_bytes: 0,
            pin_memory: PinMemory::Off,
            row_blocks: 8,
            initial_blocks: 0,
            policy: PolicyKind::Adaptive,
            threshold: Threshold::DEFAULT,
            flush_after: Duration::from_micros(100),
            interval: Duration::from_millis(10),
            checksum: Checksum::Off,
            masters: 2,
            lease: Duration::ZERO,
            progress: Progress::Thread,
            timeout: Duration::from_secs(30),
            parts: 1024,
            local_parts: 256,
            private_pipes: 256,
            stream_pipes: 256,
            pipe_depth: 64,
            assembly_bytes: 64 << 20,
            monitor: MonitorKind::Auto,
            metrics: None,
            metrics_hosts: Vec::new(),
            metrics_node: 0,
            desk: None,
            desk_node: 0,
            desk_tls: None,
            client_token_file: None,
            trace: None,
            trace_events: 1_000_000,
            // Also where nodes outnumber processors.
            patience: Duration::from_millis(100),
            origins: vec![Origin::Default; KEYS.len()],
            needs_founder_only: false,
        }
    }
}

impl Settings {
    /// The bytes of block memory that these settings stand for, of a node that has links to all others.
    pub fn memory(&self) -> usize {
        self.memory_for(usize::from(self.nodes))
    }

    /// As [`memory`](Self::memory), of any node: with [`Routing::Grid`] most have links to few others.
    pub fn memory_of(&self, node: NodeId) -> usize {
        self.memory_for(Config::rows_of(self.routing, node, self.nodes, self.masters_there_are()))
    }

    fn memory_for(&self, rows: usize) -> usize {
        const LEAST: usize = 8 << 20;
        // Two blocks for each row of SM (and half of all left for rows to grow into), and those set aside for control. Over
        // MPI and sockets as many again for each row of RM, to receive into.
        let per_row =
            if matches!(self.transport, TransportKind::Mpi | TransportKind::Net | TransportKind::Rapidio) {
                8
            } else {
                4
            };
        let blocks = per_row * rows + CONTROL_BLOCKS.max(rows);
        let needed = blocks.saturating_mul(stride(self.block_bytes));
        if self.memory_bytes == 0 { needed.max(LEAST) } else { self.memory_bytes }
    }

    /// Blocks set aside for control messages on a node that needs so many at least.
    pub(crate) fn control_blocks(&self, least: u32) -> u32 {
        u32::from(self.nodes).clamp(2, CONTROL_BLOCKS as u32).max(least)
    }

    pub(crate) fn masters_there_are(&self) -> u16 {
        self.masters.clamp(1, self.nodes.max(1))
    }

    /// How blocks arrive between two nodes of this process; `None` when they have no link.
    pub(crate) fn local_link(&self, from: usize, to: usize) -> Option<Arrival> {
        let node = |i: usize| u16::try_from(i).ok().and_then(NodeId::new);
        let relay = self.routing.relay(self.nodes, self.masters_there_are(), node(from)?, node(to)?);
        relay.is_none().then_some(Arrival::InPlace)
    }

    /// Whether nodes have a monitor.
    pub(crate) fn is_monitored(&self) -> bool {
        match self.monitor {
            MonitorKind::Auto => self.metrics.is_some(),
            MonitorKind::On => true,
            MonitorKind::Off => false,
        }
    }

    /// Whether nodes have a part that listens to gateways.
    pub(crate) fn has_flow(&self) -> bool {
        cfg!(feature = "net") && self.grid.is_some()
    }

    /// Header and body of a block.
    pub(crate) fn largest_block(&self) -> usize {
        self.block_bytes + BLOCK_HEADER
    }

    /// Blocks under way on a link: a full row, and control messages.
    pub(crate) fn in_flight(&self) -> usize {
        self.row_blocks as usize + CONTROL_BLOCKS
    }

    /// What connects the nodes, where the setting `transport` leaves it open; `in_job` says whether an MPI launcher has started this
    /// process as one of several.
    pub(crate) fn transport_here(&self, in_job: bool) -> TransportKind {
        match self.transport {
            TransportKind::Auto if self.join.is_some() || self.found => TransportKind::Net,
            TransportKind::Auto if in_job => TransportKind::Mpi,
            TransportKind::Auto if self.listen.is_some() && self.grid.is_none() => TransportKind::Net,
            TransportKind::Auto if self.fabric.is_some() => TransportKind::Rapidio,
            TransportKind::Auto => TransportKind::Local,
            chosen => chosen,
        }
    }

    /// Sets what has another default on a fabric of so many endpoints.
    #[cfg(feature = "rapidio")]
    pub(crate) fn prepare_for_fabric(&mut self, endpoints: usize) {
        if !self.is_set("nodes") {
            self.nodes = u16::try_from(endpoints).unwrap_or(u16::MAX);
        }
    }

    /// Sets one value by name; `origin` says on whose behalf.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`] and [`ConfigError::Value`].
    pub fn set(&mut self, key: &str, value: &str, origin: Origin) -> Result<(), ConfigError> {
        let Some((i, known)) = KEYS.iter().enumerate().find(|(_, k)| k.name == key) else {
            return Err(ConfigError::UnknownKey { key: key.to_owned(), origin });
        };
        if (known.set)(self, value.trim()).is_none() {
            let (value, expected) = (value.to_owned(), known.expected);
            return Err(ConfigError::Value { key: known.name, value, origin, expected });
        }
        self.note(i, origin);
        Ok(())
    }

    /// Whether anybody has written the value of a setting.
    #[cfg(any(feature = "net", feature = "rapidio"))]
    fn is_set(&self, key: &str) -> bool {
        self.origins.get(position(key)).is_some_and(|origin| *origin != Origin::Default)
    }

    /// The value of setting number `i` was written by `origin`.
    fn note(&mut self, i: usize, origin: Origin) {
        if let Some(before) = self.origins.get_mut(i) {
            *before = origin;
        }
    }

    /// Refuses values that `set` would not take, since the fields can be written without it, and those for which this was not built.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.check_for(is_built)
    }

    /// The same, of a library with the features for which `has` says so.
    fn check_for(&self, has: impl Fn(&str) -> bool) -> Result<(), ConfigError> {
        for (known, origin) in KEYS.iter().zip(&self.origins) {
            let value = (known.show)(self);
            // Within one process nobody listens or joins.
            let is_local = self.transport == TransportKind::Local;
            let needed = match known.name {
                "desk" if self.desk.is_some() => Some("desk"),
                "desk_tls" if self.desk_tls.is_some() => Some("tls"),
                "metrics" if self.metrics.is_some() => Some("metrics"),
                "monitor" if self.monitor == MonitorKind::On => Some("metrics"),
                "listen" if self.listen.is_some() && !is_local => Some("net"),
                "advertise" if self.advertise.is_some() && !is_local => Some("net"),
                "join" if self.join.is_some() && !is_local => Some("net"),
                "found" if self.found && !is_local => Some("net"),
                "grid" if self.grid.is_some() => Some("net"),
                "transport" if self.transport == TransportKind::Net => Some("net"),
                "transport" if self.transport == TransportKind::Rapidio => Some("rapidio"),
                "fabric" if self.fabric.is_some() && !is_local => Some("rapidio"),
                _ => None,
            };
            if let Some(feature) = needed.filter(|feature| !has(feature)) {
                let origin = origin.clone();
                return Err(ConfigError::NotBuilt { key: known.name, value, origin, feature });
            }
            // A trunk has two named ends.
            let unnamed = known.name == "trunks" && !self.trunks.is_empty() && self.grid.is_none();
            // What is forwarded to any free port arrives nowhere.
            let unreachable = known.name == "advertise" && self.advertise.is_some() && self.listen.is_none();
            if unnamed || unreachable || (known.set)(&mut self.clone(), &value).is_none() {
                let (origin, expected) = (origin.clone(), known.expected);
                return Err(ConfigError::Value { key: known.name, value, origin, expected });
            }
        }
        Ok(())
    }

    /// All settings as text, in the order of the fields.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        KEYS.iter().zip(&self.origins).map(|(known, origin)| Entry {
            key: known.name,
            variable: format!("PDBP_{}", known.name.to_ascii_uppercase()),
            value: (known.show)(self),
            origin,
            expected: known.expected,
        })
    }
}

/// Whether this library has a feature.
fn is_built(feature: &str) -> bool {
    let built = [
        ("desk", cfg!(feature = "desk")),
        ("metrics", cfg!(feature = "metrics")),
        ("net", cfg!(feature = "net")),
        ("rapidio", cfg!(feature = "rapidio")),
        ("tls", cfg!(feature = "tls")),
    ];
    built.contains(&(feature, true))
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Entry { key, value, origin, expected, .. } in self.entries() {
            let value = if value.parse::<u64>().is_ok() { value } else { format!("\"{value}\"") };
            writeln!(f, "{:<30} # {origin}; {expected}", format!("{key} = {value}"))?;
        }
        Ok(())
    }
}
