//! Errors in settings.

use std::fmt;
use std::path::PathBuf;

use super::{KEYS, Origin};

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such key.
    UnknownKey {
        /// The key.
        key: String,
        /// Where it was set.
        origin: Origin,
    },
    /// The value is not valid for its key.
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// Where it was set.
        origin: Origin,
        /// What is valid.
        expected: &'static str,
    },
    /// The setting needs a feature that this program was built without.
    NotBuilt {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// Where it was set.
        origin: Origin,
        /// The feature of this crate that is missing.
        feature: &'static str,
    },
    /// The file cannot be read, or is not TOML.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The values contradict each other.
    Engine(pdbp_core::ConfigError),
    /// The block memory of a node could not be allocated.
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey { key, origin } => {
                write!(f, "unknown setting `{key}` ({origin}); known settings: ")?;
                for (i, known) in KEYS.iter().enumerate() {
                    write!(f, "{}{}", if i == 0 { "" } else { ", " }, known.name)?;
                }
                Ok(())
            }
            Self::Value { key, value, origin, expected } => {
                write!(f, "`{key}` is \"{value}\" ({origin}); expected {expected}")
            }
            Self::NotBuilt { key, value, origin, feature } => write!(
                f,
                "`{key}` is \"{value}\" ({origin}), but this program was built without it: build it with the feature `{feature}` of \
                 `pdbp`, or set {key} = \"{}\"",
                if *key == "transport" { "auto" } else { "off" }
            ),
            Self::File { path, reason } => {
                write!(f, "cannot use configuration file {}: {reason}", path.display())
            }
            Self::Engine(e) => e.fmt(f),
            Self::Memory { bytes } => {
                write!(f, "no memory for {bytes} bytes of blocks; lower `memory_bytes`")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl From<pdbp_core::ConfigError> for ConfigError {
    fn from(e: pdbp_core::ConfigError) -> Self {
        Self::Engine(e)
    }
}

/// Whether this library was built with a feature.
pub(super) fn is_built(feature: &str) -> bool {
    let built = [
        ("desk", cfg!(feature = "desk")),
        ("metrics", cfg!(feature = "metrics")),
        ("net", cfg!(feature = "net")),
        ("rapidio", cfg!(feature = "rapidio")),
        ("tls", cfg!(feature = "tls")),
    ];
    built.contains(&(feature, true))
}
