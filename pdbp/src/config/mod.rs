//! Configuration: builder over environment over file over default.
//!
//! Every setting has one name. In a TOML file it is a key (`block_bytes = 65536`), in the environment a variable
//! (`PDBP_BLOCK_BYTES=65536`), on the [`Builder`] a method or [`set`](Builder::set). File and environment apply to a builder made by
//! [`Builder::from_env`] or [`Builder::file`], and to [`Cluster::from_env`](crate::Cluster::from_env), but not to [`Builder::new`] and
//! [`Cluster::local`](crate::Cluster::local). `PDBP_CONFIG` names the file. An unknown key, or a value out of range, is an error that
//! names it and where it was set. [`Settings`] prints as a TOML file that notes where each value came from.

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
use error::is_built;
pub(crate) use keys::KEYS;
#[cfg(feature = "net")]
pub(crate) use keys::is_cluster;
pub use kinds::{
    Codec, Framing, MonitorKind, MpiLibrary, Origin, PinMemory, PolicyKind, Progress, Role, Scheme, Tls,
    TransportKind, Trunk,
};

/// Index of a setting in [`KEYS`]; past the end for an unknown name.
fn position(key: &str) -> usize {
    KEYS.iter().position(|known| known.name == key).unwrap_or(KEYS.len())
}

/// Blocks reserved for control messages on a node of a large cluster; a node with more links has one per link.
const CONTROL_BLOCKS: usize = 16;

/// One setting as text, from [`Settings::entries`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// Its name in files, and for [`Settings::set`].
    pub key: &'static str,
    /// The environment variable that sets it.
    pub variable: String,
    /// Its value, as `set` accepts it.
    pub value: String,
    /// Where the value came from.
    pub origin: &'a Origin,
    /// What it means and which values it takes.
    pub expected: &'static str,
}

/// All settings with their effective values.
///
/// Nodes must agree on `block_bytes`, `routing`, `masters`, `lease`, `parts` and `stream_pipes`: a starting node that finds a different
/// value on another reports it ([`SettingsDiffer`](crate::SettingsDiffer)). All other settings may differ from node to node; over MPI
/// the processes also compare `row_blocks` and `mpi_shared_memory`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Number of nodes. Over sockets, the number of processes that the founder waits for, itself included; those that join learn it from
    /// the founder. Over MPI, the number of processes counts instead.
    pub nodes: u16,
    /// What carries blocks between nodes.
    pub transport: TransportKind,
    /// The fabric that the nodes of this process are on with [`TransportKind::Rapidio`]: a list of steps, `boards=N` (four
    /// endpoints and a switch each), `bare=N` (switches), `endpoint=S`, then `chain`, `ring`, `tree=D` or `link=A-B`. Unless
    /// [`nodes`](Self::nodes) is set, there is one node on each endpoint. Needs the feature `rapidio`.
    pub fabric: Option<String>,
    /// Over sockets: where this process listens, as host and port. Without [`join`](Self::join) it founds a cluster of
    /// [`nodes`](Self::nodes) processes, which join there. Port 0 picks any free port, for tests. An address that other hosts can
    /// reach needs a [`token_file`](Self::token_file), and [`tls`](Self::tls) or [`plain`](Self::plain).
    pub listen: Option<String>,
    /// Over sockets: the address at which others reach this process, as host and port, if that is neither where it
    /// [listens](Self::listen) nor the address its connections come from: behind a router that forwards a port. All others use it,
    /// including those in its own network.
    pub advertise: Option<String>,
    /// Over sockets: the address of the founder of the cluster that this process joins. To join an open cluster, the address of any
    /// member will do; several addresses, separated by commas, are tried in turn.
    pub join: Option<String>,
    /// Over sockets: whether this process, alone, founds an *open* cluster of [`nodes`](Self::nodes) places (16 by default), which
    /// others [`join`](Self::join) and leave at any time. With one of [`masters`](Self::masters), the default here, the cluster ends
    /// with this process. With three, any one of them may die, this one included. A master that is restarted while the others live
    /// rejoins as a master: it waits three seconds for them at its [`listen`](Self::listen) address, which must be set for that. If none
    /// of them reached it in that time, it would found a second cluster; a [`founding_file`](Self::founding_file) prevents that.
    pub found: bool,
    /// A file that a process writes when it [`founds`](Self::found) a cluster of several masters. If the file exists already, the
    /// process founds no cluster: it waits up to [`timeout`](Self::timeout) to be contacted by the masters of the earlier one and
    /// joins them, or fails. Remove it once that cluster has ended.
    pub founding_file: Option<PathBuf>,
    /// In an open cluster: whether this process takes a master's place.
    pub role: Role,
    /// The name of this cluster among those it has trunks to: a letter, then letters, digits, `-` and `_`, 16 characters at most.
    /// The process with node 0 is the gateway and accepts trunks at [`listen`](Self::listen). Needs the feature `net`.
    pub grid: Option<String>,
    /// The clusters to which this one opens trunks, with the address of each one's gateway. This cluster needs a name too,
    /// [`grid`](Self::grid).
    pub trunks: Vec<Trunk>,
    /// Bytes that a gateway buffers for each trunk, half of them outbound and half inbound. One part may take as much of a half as
    /// is still free in it. Beyond that, senders wait.
    pub trunk_bytes: usize,
    /// How long a gateway that shuts down waits for parts of its own cluster that do not read the messages returned to them. Anything
    /// unread after that is lost.
    pub farewell: Duration,
    /// A file with a secret that all processes of a cluster over sockets share: 32 characters or more. A founder creates it if it
    /// does not exist.
    pub token_file: Option<PathBuf>,
    /// Over sockets: whether connections are encrypted, and which certificates are trusted; the same in all processes. Needs a
    /// [`token_file`](Self::token_file) and the feature `tls`.
    pub tls: Tls,
    /// Over sockets: permits unencrypted connections between hosts, which anybody in between can read and change; see
    /// [`tls`](Self::tls).
    pub plain: bool,
    /// Over sockets: the framing of the connections that this process opens; it accepts either. For trunks, [`trunks`](Self::trunks)
    /// determines it.
    pub framing: Framing,
    /// Over sockets: how this process compresses the blocks that it sends, to nodes of its cluster and over trunks alike. The default is
    /// [`Codec::None`] within the cluster and [`Codec::Auto`] over trunks. Received blocks are decompressed regardless of this setting.
    pub codec: Codec,
    /// Over sockets: how long a link may be without a connection before it counts as failed. Until then nothing is lost or
    /// duplicated.
    pub outage: Duration,
    /// Which nodes have links, and whether the others reach each other through relays; the same on all nodes. With
    /// [`Routing::Grid`] a node needs memory for about 2·√M of M peers, and two hops take twice as long; see
    /// [`pdbp_core::routing`]. Up to a few hundred nodes [`Routing::Direct`] is the better choice.
    pub routing: Routing,
    /// Over MPI: which library to load. A process loads only one, once.
    pub mpi: MpiLibrary,
    /// Over MPI: whether processes of one host read each other's blocks in shared memory.
    pub mpi_shared_memory: bool,
    /// Whether the members of a [group](crate::collective::Group) that all share memory exchange data through flags and slots there
    /// (*slates*), which takes a fraction of the time of a message. If one member has it off, the whole group does without.
    pub group_shared_memory: bool,
    /// Whether members of a [group](crate::collective::Group) that all share memory read long data directly from each other's memory
    /// (`process_vm_readv`), which copies it only once. The system must let each of them read the others, as a debugger does
    /// ([`pdbp_local::reading`]). If it does not, or one member has this off, the whole group does without.
    pub group_reads: bool,
    /// Whether the switches of a [`fabric`](Self::fabric) carry out what they can of the calls of a
    /// [group](crate::collective::Group) that has one member on each of several nodes. If one member has it off, the whole group
    /// does without.
    pub group_switches: bool,
    /// MPI itself carries device messages of at least this many bytes, from device memory to device memory, between ranks whose MPI is
    /// CUDA-aware; with 0, all go through blocks. Needs the features `cuda` and `mpi`.
    pub mpi_device_bytes: usize,
    /// Payload bytes of a block, its header excluded. A longer message travels in segments. The same on all nodes.
    pub block_bytes: usize,
    /// Bytes at which a block of short messages is sent. Less than a block costs throughput where each node has its own cores, and
    /// may gain some where they share a small cache.
    pub pack_bytes: usize,
    /// Bytes of the UMB of each node. It never grows. 0 means 8 MiB, or twice what all rows need at the start if that is more: little
    /// enough to stay in a cache. In addition, a part that sends much to other nodes of its host has 16 KiB for each of them, for at
    /// most 32 nodes, and a stream or a loan to them has up to a block.
    pub memory_bytes: usize,
    /// Whether the blocks of all nodes of this process, and those of other processes of the host that are read in place, are page-locked
    /// for CUDA devices. This makes starting slower, and locked memory cannot be swapped out; without it the driver copies through its
    /// own buffer, which is slower. Needs the feature `cuda`.
    pub pin_memory: PinMemory,
    /// N, the maximum number of elements in a row.
    pub row_blocks: u32,
    /// m, the number of real elements in a row at the start; 0 derives it from the other settings.
    pub initial_blocks: u32,
    /// Which policy decides how much space rows get.
    pub policy: PolicyKind,
    /// The value of SU above which rows grow, in thousandths.
    pub threshold: Threshold,
    /// Minimum time for which a message waits in a block that is not full. With a progress thread it may take half a millisecond more (4
    /// ms if there are more nodes than processors), and up to 50 times as long while the destination has not read what it was sent
    /// before. [`flush`](crate::Part::flush) sends at once.
    pub flush_after: Duration,
    /// Interval between checks for rows that could give space back.
    pub interval: Duration,
    /// Checksums on blocks.
    pub checksum: Checksum,
    /// Number of nodes, from node 0, that may become primary master. The same on all nodes. In an open cluster
    /// ([`found`](Self::found)) this many of its places, fewer than [`nodes`](Self::nodes), are for processes with the
    /// [`role`](Self::role) of a master; there the default is 1, and processes that join learn it.
    pub masters: u16,
    /// A node that gives no sign of life for this long is declared down; with zero, only when its transport reports that it has failed.
    /// All nodes must poll more often than that, so with [`Progress::Inline`] a program must keep calling. The same on all nodes. Over
    /// sockets with progress threads the default is 2 s, since nothing else detects that a host has gone.
    pub lease: Duration,
    /// What drives progress.
    pub progress: Progress,
    /// How long a call waits if it takes no timeout.
    pub timeout: Duration,
    /// Maximum number of parts in the whole cluster (PTA). The same on all nodes.
    pub parts: usize,
    /// Maximum number of parts on one node.
    pub local_parts: u16,
    /// Number of private pipes of one node.
    pub private_pipes: u16,
    /// Number of stream pipes of one node: how many streams it can send at a time. The same on all nodes.
    pub stream_pipes: u16,
    /// Number of deliveries that a private pipe holds.
    pub pipe_depth: usize,
    /// Bytes that reassembly may hold at a time, on one node, for messages longer than a block; they count until the messages are
    /// dropped. A sender waits until there is room for its message; a message longer than this is refused at its sender.
    pub assembly_bytes: usize,
    /// Whether nodes answer requests for their figures.
    pub monitor: MonitorKind,
    /// Where the figures of all nodes are served over HTTP, as host and port; port 0 picks any free port. Needs the feature
    /// `metrics`.
    pub metrics: Option<String>,
    /// Host names that `metrics` and `desk` answer to, in addition to those in these settings, `localhost` and any IP address; see
    /// `monitor::Endpoint`.
    pub metrics_hosts: Vec<String>,
    /// Index of the node that serves `metrics`.
    pub metrics_node: u16,
    /// Where programs without PDBP reach parts through SOAP, as host and port; port 0 picks any free port. An address that other hosts
    /// can reach needs a [`client_token_file`](Self::client_token_file), and [`desk_tls`](Self::desk_tls) or [`plain`](Self::plain).
    /// Needs the feature `desk`, and a [`progress`](Self::progress) mode that does not depend on the program's calls.
    pub desk: Option<String>,
    /// Index of the node that serves `desk`.
    pub desk_node: u16,
    /// A folder with the certificate chain `cert.pem` and its key `key.pem`, with which [`desk`](Self::desk) uses TLS 1.3. Needs the
    /// feature `tls`.
    pub desk_tls: Option<PathBuf>,
    /// A file with the secret that clients of `desk` and `metrics` send as a bearer token. Not the one in
    /// [`token_file`](Self::token_file): a client may make requests, but not join.
    pub client_token_file: Option<PathBuf>,
    /// The file that a trace of the nodes' activity is written to.
    pub trace: Option<PathBuf>,
    /// Maximum number of events in a trace.
    pub trace_events: usize,
    /// How long masters wait for each other's messages, and a joining process for an answer: several times a round trip.
    pub(crate) patience: Duration,
    origins: Vec<Origin>,
    /// In an open cluster, a node that joins links to the founder only and starts once that link is up: short-lived nodes do not
    /// need each other. It tries to join once.
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
            // Long enough even with more nodes than processors.
            patience: Duration::from_millis(100),
            // One by one: for a copied enum, valgrind reports a read of uninitialised memory.
            origins: KEYS.iter().map(|_| Origin::Default).collect(),
            needs_founder_only: false,
        }
    }
}

impl Settings {
    /// Bytes of block memory that these settings give a node with links to all others.
    pub fn memory(&self) -> usize {
        self.memory_for(usize::from(self.nodes))
    }

    /// As [`memory`](Self::memory), for one node: with [`Routing::Grid`] most nodes have few links.
    pub fn memory_of(&self, node: NodeId) -> usize {
        self.memory_for(Config::rows_of(self.routing, node, self.nodes, self.master_count()))
    }

    fn memory_for(&self, rows: usize) -> usize {
        const LEAST: usize = 8 << 20;
        // Two blocks for each row of SM, as much again for rows to grow into, and those reserved for control. Over MPI and sockets
        // twice that, for the rows of RM to receive into.
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

    /// Blocks reserved for control messages on a node that needs at least `least`.
    pub(crate) fn control_blocks(&self, least: u32) -> u32 {
        u32::from(self.nodes).clamp(2, CONTROL_BLOCKS as u32).max(least)
    }

    pub(crate) fn master_count(&self) -> u16 {
        self.masters.clamp(1, self.nodes.max(1))
    }

    /// How blocks arrive between two nodes of this process; `None` if they have no link.
    pub(crate) fn local_link(&self, from: usize, to: usize) -> Option<Arrival> {
        let node = |i: usize| u16::try_from(i).ok().and_then(NodeId::new);
        let relay = self.routing.relay(self.nodes, self.master_count(), node(from)?, node(to)?);
        relay.is_none().then_some(Arrival::InPlace)
    }

    /// Whether nodes run a monitor.
    pub(crate) fn is_monitored(&self) -> bool {
        match self.monitor {
            MonitorKind::Auto => self.metrics.is_some(),
            MonitorKind::On => true,
            MonitorKind::Off => false,
        }
    }

    /// Whether nodes have a part that takes requests from gateways.
    pub(crate) fn has_flow(&self) -> bool {
        cfg!(feature = "net") && self.grid.is_some()
    }

    /// Bytes of a whole block, header included.
    pub(crate) fn largest_block(&self) -> usize {
        self.block_bytes + BLOCK_HEADER
    }

    /// Blocks in flight on a link: a full row, and control messages.
    pub(crate) fn in_flight(&self) -> usize {
        self.row_blocks as usize + CONTROL_BLOCKS
    }

    /// The transport to use if the setting `transport` leaves it open. `in_job`: whether an MPI launcher has started this process as one
    /// of several.
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

    /// Applies the defaults that differ on a fabric of this many endpoints.
    #[cfg(feature = "rapidio")]
    pub(crate) fn prepare_for_fabric(&mut self, endpoints: usize) {
        if !self.is_set("nodes") {
            self.nodes = u16::try_from(endpoints).unwrap_or(u16::MAX);
        }
    }

    /// Sets one setting by name; `origin` records where the value came from.
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
        self.record_origin(i, origin);
        Ok(())
    }

    /// Whether a setting has been given a value.
    #[cfg(any(feature = "net", feature = "rapidio"))]
    fn is_set(&self, key: &str) -> bool {
        self.origins.get(position(key)).is_some_and(|origin| *origin != Origin::Default)
    }

    /// Records that setting number `i` was set by `origin`.
    fn record_origin(&mut self, i: usize, origin: Origin) {
        if let Some(before) = self.origins.get_mut(i) {
            *before = origin;
        }
    }

    /// Refuses values that `set` would not accept, since the fields are public, and those that need a feature this library was
    /// built without.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.check_for(is_built)
    }

    /// As [`check`](Self::check), for a library with the features that `has` reports.
    fn check_for(&self, has: impl Fn(&str) -> bool) -> Result<(), ConfigError> {
        for (known, origin) in KEYS.iter().zip(&self.origins) {
            let value = (known.show)(self);
            // A cluster within one process neither listens nor joins.
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
            // Both ends of a trunk need a name, and not the same one.
            let is_own = |trunk: &Trunk| self.grid.as_ref().is_none_or(|own| *own == trunk.cluster);
            let unnamed = known.name == "trunks" && self.trunks.iter().any(is_own);
            // A port that is forwarded to an arbitrary free port leads nowhere.
            let unreachable = known.name == "advertise" && self.advertise.is_some() && self.listen.is_none();
            // With it a client could join.
            let file = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
            let shared = known.name == "client_token_file"
                && self.client_token_file.is_some()
                && self.client_token_file.as_ref().map(file) == self.token_file.as_ref().map(file);
            if unnamed || unreachable || shared || (known.set)(&mut self.clone(), &value).is_none() {
                let (origin, expected) = (origin.clone(), known.expected);
                return Err(ConfigError::Value { key: known.name, value, origin, expected });
            }
        }
        Ok(())
    }

    /// All settings as text, in field order.
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

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Entry { key, value, origin, expected, .. } in self.entries() {
            let is_number = value.parse::<u64>().is_ok_and(|number| number.to_string() == value);
            // TOML escapes as JSON does.
            let value = if is_number { value } else { crate::trace::quoted(&value) };
            writeln!(f, "{:<30} # {origin}; {expected}", format!("{key} = {value}"))?;
        }
        Ok(())
    }
}
