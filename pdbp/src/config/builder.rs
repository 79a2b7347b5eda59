//! The settings that a program makes: one method for each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pdbp_core::Routing;
use pdbp_core::engine::Checksum;
use pdbp_core::policy::Threshold;

use super::{
    Codec, ConfigError, Framing, MonitorKind, MpiLibrary, Origin, PinMemory, PolicyKind, Progress, Role,
    Settings, Tls, TransportKind, Trunk, position,
};

/// Collects the settings of a cluster, then [starts](Self::start) it.
///
/// [`new`](Self::new) begins with the defaults and reads nothing else; [`from_env`](Self::from_env) begins with the configuration
/// file and the environment. Methods override both. A value out of range makes [`start`](Self::start) fail with an error that names
/// the setting.
///
/// ```
/// use pdbp::{Builder, Progress};
/// use std::time::Duration;
///
/// let builder = Builder::new().nodes(4).progress(Progress::Inline).timeout(Duration::from_secs(5));
/// assert_eq!(builder.settings().nodes, 4);
/// assert!(builder.pack_bytes(1).start().is_err_and(|e| e.to_string().contains("pack_bytes")));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Builder {
    pub(crate) settings: Settings,
    pub(crate) wrong: Option<ConfigError>,
}

/// Begins with existing settings, keeping their origins.
impl From<Settings> for Builder {
    fn from(settings: Settings) -> Self {
        Self { settings, wrong: None }
    }
}

/// Generates the setters from (method, key, type of value).
macro_rules! setters {
    ($($method:ident: $field:ident, $key:literal, $type:ty;)*) => {
        impl Builder {
            $(
                #[doc = concat!("The setting `", $key, "`: see [`Settings::", stringify!($field), "`].")]
                #[must_use]
                pub fn $method(mut self, value: $type) -> Self {
                    self.settings.$field = value.into();
                    self.settings.record_origin(position($key), Origin::Builder);
                    self
                }
            )*
        }

        #[cfg(test)]
        pub(super) const SETTERS: &[&str] = &[$($key),*];
    };
}

setters! {
    nodes: nodes, "nodes", u16;
    transport: transport, "transport", TransportKind;
    fabric: fabric, "fabric", String;
    listen: listen, "listen", String;
    advertise: advertise, "advertise", String;
    join: join, "join", String;
    found: found, "found", bool;
    founding_file: founding_file, "founding_file", PathBuf;
    role: role, "role", Role;
    grid: grid, "grid", String;
    trunks: trunks, "trunks", Vec<Trunk>;
    trunk_bytes: trunk_bytes, "trunk_bytes", usize;
    farewell: farewell, "farewell_ms", Duration;
    token_file: token_file, "token_file", PathBuf;
    tls: tls, "tls", Tls;
    plain: plain, "plain", bool;
    framing: framing, "framing", Framing;
    codec: codec, "codec", Codec;
    outage: outage, "outage_ms", Duration;
    routing: routing, "routing", Routing;
    mpi: mpi, "mpi", MpiLibrary;
    mpi_shared_memory: mpi_shared_memory, "mpi_shared_memory", bool;
    group_shared_memory: group_shared_memory, "group_shared_memory", bool;
    group_reads: group_reads, "group_reads", bool;
    group_switches: group_switches, "group_switches", bool;
    mpi_device_bytes: mpi_device_bytes, "mpi_device_bytes", usize;
    block_bytes: block_bytes, "block_bytes", usize;
    pack_bytes: pack_bytes, "pack_bytes", usize;
    memory_bytes: memory_bytes, "memory_bytes", usize;
    pin_memory: pin_memory, "pin_memory", PinMemory;
    row_blocks: row_blocks, "row_blocks", u32;
    initial_blocks: initial_blocks, "initial_blocks", u32;
    policy: policy, "policy", PolicyKind;
    threshold: threshold, "threshold", Threshold;
    flush_after: flush_after, "flush_after_us", Duration;
    interval: interval, "interval_us", Duration;
    checksum: checksum, "checksum", Checksum;
    progress: progress, "progress", Progress;
    masters: masters, "masters", u16;
    lease: lease, "lease_ms", Duration;
    timeout: timeout, "timeout_ms", Duration;
    parts: parts, "parts", usize;
    local_parts: local_parts, "local_parts", u16;
    private_pipes: private_pipes, "private_pipes", u16;
    stream_pipes: stream_pipes, "stream_pipes", u16;
    pipe_depth: pipe_depth, "pipe_depth", usize;
    assembly_bytes: assembly_bytes, "assembly_bytes", usize;
    monitor: monitor, "monitor", MonitorKind;
    metrics: metrics, "metrics", String;
    metrics_hosts: metrics_hosts, "metrics_hosts", Vec<String>;
    metrics_node: metrics_node, "metrics_node", u16;
    desk: desk, "desk", String;
    desk_node: desk_node, "desk_node", u16;
    desk_tls: desk_tls, "desk_tls", PathBuf;
    client_token_file: client_token_file, "client_token_file", PathBuf;
    trace: trace, "trace", PathBuf;
    trace_events: trace_events, "trace_events", usize;
}

impl Builder {
    /// Begins with the defaults. Ignores the environment, so that a program with its own settings runs the same everywhere.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins with the environment and the file that `PDBP_CONFIG` names; see the [module](super).
    ///
    /// # Errors
    /// [`ConfigError`] for a setting in them that cannot be used.
    pub fn from_env() -> Result<Self, ConfigError> {
        Settings::load(None).map(Self::from)
    }

    /// As [`from_env`](Self::from_env), with this file in place of the one that `PDBP_CONFIG` names.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn file(path: &Path) -> Result<Self, ConfigError> {
        Settings::load(Some(path)).map(Self::from)
    }

    /// Adds a trunk to another cluster, `cluster`, whose gateway listens at `address`: host and port, or a URL such as
    /// `https://host:7210`. Adds to [`Settings::trunks`]. This cluster needs its own name, [`grid`](Self::grid).
    #[must_use]
    pub fn trunk(self, cluster: &str, address: impl std::fmt::Display) -> Self {
        let known = self.settings.trunks.iter().map(|trunk| trunk.to_string());
        let all: Vec<_> = known.chain([format!("{cluster}={address}")]).collect();
        self.set("trunks", &all.join(","))
    }

    /// Sets any setting by its name, with its value as text: `set("block_bytes", "32768")`.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        if let Err(e) = self.settings.set(key, value, Origin::Builder) {
            self.wrong.get_or_insert(e);
        }
        self
    }

    /// The current settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
