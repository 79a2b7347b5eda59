//! Errors in settings.

use std::fmt;
use std::path::PathBuf;

use pdbp_core::umb::stride;

use super::{KEYS, Origin, Settings};

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The key does not exist.
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
    /// `memory_bytes` is too small for the blocks that each row, and control messages, have from the start.
    TooLittleMemory {
        /// The setting.
        bytes: usize,
        /// Where it was set.
        origin: Origin,
        /// The smallest value that would do, with the other settings as they are.
        least: usize,
    },
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
                write!(f, "unknown setting `{key}` ({origin}); ")?;
                if let Some(meant) = most_similar(key) {
                    return write!(f, "did you mean `{meant}`?");
                }
                write!(f, "known settings: ")?;
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
                "`{key}` is \"{value}\" ({origin}), but this program was built without the feature `{feature}` of `pdbp`: \
                 rebuild it with that feature, or set {key} = \"{}\"",
                if *key == "transport" { "auto" } else { "off" }
            ),
            Self::File { path, reason } => {
                write!(f, "cannot use configuration file {}: {reason}", path.display())
            }
            Self::Engine(e) => e.fmt(f),
            Self::TooLittleMemory { bytes, origin, least } => write!(
                f,
                "`memory_bytes` is {bytes} ({origin}), but each node needs at least {least}; raise it to that, set it to 0 to derive \
                 it, or lower `block_bytes`, `initial_blocks` or `nodes`"
            ),
            Self::Memory { bytes } => {
                write!(
                    f,
                    "cannot allocate {bytes} bytes for blocks; lower `memory_bytes`, or, where that is 0, `block_bytes`, \
                     `initial_blocks` or `nodes`"
                )
            }
        }
    }
}

/// The setting that was probably meant: most of it is the beginning and the end of `key`.
fn most_similar(key: &str) -> Option<&'static str> {
    let shared = |known: &str| {
        let same = |(a, b): &(u8, u8)| a == b;
        let begin = known.bytes().zip(key.bytes()).take_while(same).count();
        let rest = known.len().min(key.len()) - begin;
        begin + known.bytes().rev().zip(key.bytes().rev()).take(rest).take_while(same).count()
    };
    let known = KEYS.iter().map(|known| known.name);
    let best = known.max_by_key(|known| 100 * shared(known) / known.len().max(key.len()))?;
    (3 * shared(best) >= 2 * best.len().max(key.len())).then_some(best)
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// Translates what the engine reports about settings into the names that users know.
    pub(crate) fn of(settings: &Settings, error: pdbp_core::ConfigError) -> Self {
        let mut entries = settings.entries();
        match (error, entries.find(|entry| entry.key == "memory_bytes" && settings.memory_bytes != 0)) {
            (pdbp_core::ConfigError::Blocks { need, .. }, Some(entry)) => Self::TooLittleMemory {
                bytes: settings.memory_bytes,
                origin: entry.origin.clone(),
                least: usize::try_from(need)
                    .map_or(usize::MAX, |need| need.saturating_mul(stride(settings.block_bytes))),
            },
            (error, _) => Self::Engine(error),
        }
    }
}

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
