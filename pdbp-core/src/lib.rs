//! The protocol engine of PDBP. It has no clock, threads, sockets or allocator of its own.
//!
//! A cluster is a set of nodes, each running one [`Engine`]. Parts (the documents' generalised processes) send messages and
//! streams to parts on any node. The engine packs them into blocks of a single memory region, and a [`Transport`] carries the
//! blocks. The modules, in the order in which data flows:
//!
//! 1. [`cdu`]: the unit of all transfer and its layered wire format; [`mesp`]: the control messages.
//! 2. [`umb`]: the block pool and the tokens that own blocks. **A block has one owner at a time.**
//! 3. [`matrix`] and [`policy`]: SM and RM, the rows of send queues and receive credit, and how much space each row gets.
//! 4. [`pipe`] and [`tables`]: the pipe pool, and the tables NTA, PTA and MTA.
//! 5. [`engine`]: ties these together; [`Engine::poll`] does a bounded amount of work.
//! 6. [`outbox`]: a sender's open blocks, long messages and streams; [`inbox`]: what a part reads.
//! 7. [`endpoint`]: a whole node as one value; [`embed`]: the same through a shared reference, with its memory and a transport
//!    over any wire, for programs that run the engine in their own event loop.
//! 8. [`collective`]: operations that involve every member of a group, over anything that carries messages.
//! 9. [`transport`]: the trait that a backend implements.
//!
//! Time, randomness and memory are passed in. All tables are created before the start: in a `static` by [`storage!`] or, with the
//! `alloc` feature, on the heap by `Storage::allocate` and similar constructors. `pdbp-core/no-std-check` is a program that runs
//! two nodes on static memory, without std and without a heap.
//!
//! # Sources
//! S0, patent CN102201992, is the source of addressing, tables, pipes and the CDU. S1, a 2016 paper, is the source of the pool
//! with its threshold algorithm, and of the message protocol. Where this crate departs from the documents, and why:
//!
//! * Pipes hold *block ids*, not bytes: data that the documents copy four times is written once and read in place.
//! * RCBP's real space doubles as the peer's *credit*, so the policy governs both ends.
//! * An MTA mapping tuple travels with the first block of its stream rather than ahead of it, and is removed with the last.
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
