//! A cluster of engines on an in-memory network, driven by operations and checked against an oracle. The property tests use it,
//! and so does the fuzz target `engine`, which includes it by path; so it names everything through the crate's public interface.
//!
//! Everything is deterministic. Nodes are polled when an operation requests it, and the network does what operations tell it to
//! (hold back, refuse as busy, flip a byte, inject blocks that nobody sent).
#![allow(
    dead_code,
    missing_docs,
    unused_imports,
    unsafe_code,
    unreachable_pub,
    clippy::missing_panics_doc,
    clippy::type_complexity
)]

mod apply;
mod check;
mod cluster;
mod host;
mod net;
mod operation;
mod oracle;
mod setup;

use pdbp_core::engine::Config;
use pdbp_core::id::{NodeId, PartId};
use pdbp_core::outbox::{Outbox, Rule};

pub use cluster::Cluster;
pub use host::Host;
pub use net::{Links, Net, port};
pub use operation::Operation;
pub use oracle::Oracle;
pub use setup::{Policy, Setup};

pub const BODY: usize = 512;
pub const PARTS: u16 = 2;

pub fn node(i: usize) -> NodeId {
    NodeId::new(i as u16).unwrap()
}

/// An outbox with a lane per link.
pub fn outbox(config: &Config) -> Outbox<'static> {
    Outbox::allocate(config.rows(), Rule { flush_after: config.flush_after, pack: config.body })
}

pub fn part(n: usize, local: u16) -> PartId {
    PartId::new(node(n), local).unwrap()
}
