//! Errors of looking up a part by its address.

use std::fmt;
use std::time::Duration;

use pdbp_core::tables::NameError;

use super::INTERRUPTED;

/// Why a lookup found no part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LookupError {
    /// No part, node or cluster can have a name that the address contains.
    BadAddress {
        /// The address, or only the beginning of a long one.
        address: String,
        /// What is wrong with the name.
        error: NameError,
    },
    /// No node has that name.
    UnknownNode {
        /// The name.
        node: String,
        /// The names of all nodes.
        known: Vec<String>,
    },
    /// No such part exists, on the named node or on any.
    UnknownPart {
        /// The address as given.
        address: String,
        /// The parts that exist.
        known: Vec<String>,
    },
    /// Several nodes have a part of that name.
    Ambiguous {
        /// The name.
        name: String,
        /// The addresses that it could mean.
        candidates: Vec<String>,
    },
    /// No trunk leads to the cluster that the address names.
    NoTrunk {
        /// The cluster.
        cluster: String,
        /// The clusters to which there are trunks.
        known: Vec<String>,
        /// Why the gateway has no trunk to it, if the gateway is in this process and knows.
        reason: Option<String>,
    },
    /// The other cluster reports that it has no such part.
    Remote {
        /// The cluster.
        cluster: String,
        /// What that cluster reports.
        reason: String,
    },
    /// This cluster has no room for the part that asks, or for a stand-in of the part in the other cluster.
    NoRoom {
        /// The other cluster.
        cluster: String,
        /// What is missing.
        reason: String,
    },
    /// This cluster, its gateway or the other's has not answered in time.
    NoAnswer {
        /// The cluster.
        cluster: String,
        /// How long the call waited.
        waited: Duration,
    },
    /// The wait was ended by [`Node::interrupt`](crate::Node::interrupt) or [`interruptible`](crate::interruptible).
    Interrupted,
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadAddress { address, error } => {
                write!(f, "{address:?} is not a valid address: {error}")
            }
            Self::UnknownNode { node, known } => {
                write!(f, "no node is named \"{node}\"; known: {}", list(known))
            }
            Self::UnknownPart { address, known } => {
                write!(f, "no part \"{address}\" is registered; known: {}", list(known))
            }
            Self::Ambiguous { name, candidates } => {
                write!(f, "\"{name}\" is ambiguous: {}; append @ and the node's name", list(candidates))
            }
            Self::NoTrunk { cluster, known, reason } => {
                write!(f, "no trunk to cluster \"{cluster}\"; known clusters: {}", list(known))?;
                match reason {
                    Some(reason) => write!(f, "; the last attempt failed: {reason}"),
                    None => write!(
                        f,
                        "; set `grid` and `listen` in one cluster, `grid` and `trunks` = \"{cluster}=tcp://host:port\" in the other, and check \
                         that both are running"
                    ),
                }
            }
            Self::Remote { cluster, reason } => write!(f, "cluster \"{cluster}\" reports: {reason}"),
            Self::NoRoom { cluster, reason } => {
                write!(f, "no room for a part of cluster \"{cluster}\": {reason}")
            }
            Self::NoAnswer { cluster, waited } => write!(
                f,
                "no answer from cluster \"{cluster}\" after {waited:?}: its trunk is slow or down; wait longer, or check `outage_ms`"
            ),
            Self::Interrupted => f.write_str(INTERRUPTED),
        }
    }
}

impl std::error::Error for LookupError {}

fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    if text.is_empty() { "none".to_owned() } else { text }
}
