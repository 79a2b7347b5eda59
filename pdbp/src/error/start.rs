//! Errors of starting a cluster.

use std::fmt;
use std::path::PathBuf;

use super::{SettingsDiffer, Timeout};
use crate::config::ConfigError;

/// Why a cluster did not start.
///
/// `Debug` prints the same as `Display`, since a program whose `main` returns the error prints that: what is wrong and what to do.
#[non_exhaustive]
pub enum StartError {
    /// The settings are invalid.
    Config(ConfigError),
    /// A progress thread could not be started.
    Thread(std::io::Error),
    /// The program's own check ended the wait for the other nodes ([`interruptible`](crate::interruptible)).
    Interrupted,
    /// Not all nodes reported to the master in time.
    Timeout(Timeout),
    /// A node of this process and another node have different values of a setting.
    SettingsDiffer(SettingsDiffer),
    /// Over sockets, neither `listen` nor `join` is set.
    NoAddress,
    /// The settings of a process tell it both to found a cluster and to join one.
    FoundsAndJoins,
    /// The setting `fabric` is missing.
    NoFabric,
    /// The setting `fabric` describes no valid fabric.
    Fabric {
        /// The setting `fabric`.
        fabric: String,
        /// Which step is wrong, and what would be right.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The process could not get into a cluster over sockets.
    Sockets(Box<dyn std::error::Error + Send + Sync>),
    /// The transport could not be set up.
    Transport(Box<dyn std::error::Error + Send + Sync>),
    /// The figures cannot be served at this address.
    Metrics {
        /// The setting `metrics`.
        address: String,
        /// What the system reported.
        error: std::io::Error,
    },
    /// The desk cannot be served.
    Desk {
        /// The setting `desk`.
        address: String,
        /// What the system reported, or what is missing.
        error: std::io::Error,
    },
    /// The trace file cannot be written.
    Trace {
        /// Its name.
        path: PathBuf,
        /// What the system reported.
        error: std::io::Error,
    },
    /// The block memory cannot be page-locked for the device that was named.
    Pin {
        /// The setting `pin_memory`.
        number: u16,
        /// What the driver reported.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// MPI was requested, by the settings or by a launcher, and this program was built without it.
    NoMpi {
        /// Number of ranks, if a launcher requested it.
        ranks: Option<usize>,
    },
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(e) => e.fmt(f),
            Self::Thread(e) => {
                write!(f, "cannot start a progress thread: {e}; set progress = \"inline\" to run without one")
            }
            Self::Timeout(e) => e.fmt(f),
            Self::Interrupted => {
                f.write_str("interrupted before all nodes had reported; start the cluster again")
            }
            Self::SettingsDiffer(e) => e.fmt(f),
            Self::NoAddress => f.write_str(
                "transport = \"net\" needs an address: set `listen` in one process, to 127.0.0.1:7210 for example, and `join` to that address in the others",
            ),
            Self::FoundsAndJoins => f.write_str(
                "`found` and `join` are both set: set `found` and `listen` in the process that founds the cluster, and only `join` in the others",
            ),
            Self::NoFabric => f.write_str(
                "transport = \"rapidio\" needs a fabric: set `fabric`, to boards=4,ring for example (PDBP_FABRIC=boards=4,ring)",
            ),
            Self::Fabric { fabric, error } => write!(f, "cannot start on `fabric` = \"{fabric}\": {error}"),
            Self::Sockets(e) => write!(f, "cannot start over sockets: {e}"),
            Self::Transport(e) => write!(f, "cannot start over MPI: {e}"),
            Self::Metrics { address, error } => write!(
                f,
                "cannot serve figures at `metrics` = \"{address}\": {error}; use another port, 0 for any free one, or \"off\""
            ),
            Self::Desk { address, error } => {
                write!(f, "cannot serve clients at `desk` = \"{address}\": {error}; use another address, or set `desk` = \"off\"")
            }
            Self::Trace { path, error } => {
                write!(
                    f,
                    "cannot write `trace` = \"{}\": {error}; name another file, or \"off\"",
                    path.display()
                )
            }
            Self::Pin { number, error } => write!(
                f,
                "cannot page-lock block memory for CUDA (`pin_memory` = {number}): {error}; set `pin_memory` = \"auto\" to continue without"
            ),
            Self::NoMpi { ranks } => {
                match ranks {
                    Some(ranks) => write!(f, "started by an MPI launcher as one of {ranks} ranks")?,
                    None => f.write_str("transport = \"mpi\" is set")?,
                }
                f.write_str(
                    ", but this program was built without MPI: build it with the feature `mpi`, which is on by default, or set transport = \"local\" \
                     (PDBP_TRANSPORT=local) for a cluster in each process",
                )
            }
        }
    }
}

impl std::error::Error for StartError {}

#[cfg(feature = "mpi")]
impl From<pdbp_mpi::StartError> for StartError {
    fn from(e: pdbp_mpi::StartError) -> Self {
        Self::Transport(Box::new(e))
    }
}

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
