//! The protocol engine of PDBP: no clock, threads, sockets or allocation of its own.
//!
//! A cluster is a set of nodes, each with one [`Engine`]. Parts (the generalised processes of the documents) send
//! messages and streams to parts on any node; the engine packs them into blocks of one memory region, and a
//! [`Transport`] carries the blocks. Modules, in the order in which data flows:
//!
//! 1. [`cdu`]: the unit of all transfer, and its layered wire format; [`mesp`]: the control messages.
//! 2. [`umb`]: the block pool, and the tokens that own blocks. **A block has one owner at a time.**
//! 3. [`matrix`] and [`policy`]: SM and RM, the rows of send queues and receive credit, and how much space each gets.
//! 4. [`pipe`] and [`tables`]: the pipe pool, NTA, PTA and MTA.
//! 5. [`engine`]: puts it together; [`Engine::poll`] does a bounded amount of work.
//! 6. [`outbox`]: a sender's open blocks, long messages and streams, and [`inbox`]: what a part reads.
//! 7. [`endpoint`]: all of it as one value; [`embed`]: the same by shared reference, with its memory and a transport over any wire,
//!    for programs that run the engine in their own event loop.
//! 8. [`collective`]: calls of all members of a group, over anything that carries messages.
//! 9. [`transport`]: what a backend implements.
//!
//! Time, randomness and memory are arguments. All tables are made before the start: in a `static` by [`storage!`] or, with the
//! feature `alloc`, on the heap by `Storage::allocate` and its like. `pdbp-core/no-std-check` is a program without std and heap
//! that runs two nodes on static memory.
//!
//! # Sources
//! S0, patent CN102201992, is the source of addressing, tables, pipes and the CDU; S1, a paper of 2016, of the pool with its
//! threshold algorithm and of the message protocol. Differences from the documents, and why:
//!
//! * Pipes hold *block ids*, not bytes: data that the documents copy four times is written once and read in place.
//! * RCBP's real space is also the *credit* of the peer, so the policy governs both ends.
//! * A mapping tuple of MTA travels with the first block of its stream instead of ahead of it, and goes with the last.
#![no_std]
#![deny(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(test)]
extern crate self as pdbp_core;
#[cfg(any(test, feature = "flaws"))]
extern crate std;

pub mod agreement;
pub mod cdu;
pub mod collective;
pub mod embed;
pub mod endpoint;
pub mod engine;
#[cfg(not(feature = "flaws"))]
mod flaw;
#[cfg(feature = "flaws")]
#[doc(hidden)]
pub mod flaw;
pub mod id;
pub mod inbox;
pub mod matrix;
pub mod mesp;
pub mod outbox;
pub mod pipe;
pub mod policy;
pub mod routing;
pub mod tables;
pub mod transport;
pub mod umb;

pub use endpoint::Endpoint;
pub use engine::{Config, ConfigError, Delivery, Engine, Event, OpenError, PrivatePipes, Progress, Storage};
pub use routing::Routing;
pub use transport::{Arrival, Bell, Capabilities, Completion, Op, Reason, Refused, Transport};
pub use umb::{ArrivedBlock, BlockMemory, OpenBlock, SealedBlock, Space, VacantBlock};
