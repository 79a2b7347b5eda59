//! Runs the engine in a program's own event loop: on bare metal, in an operating-system task, or inside another runtime.
//!
//! 1. [`storage!`](crate::storage) declares the memory of a node: a `static` sized for what the node must hold.
//! 2. The program implements [`Wire`], which carries frames. [`WireTransport`] turns it into a transport.
//! 3. A [`Host`] is the node. The program calls [`Host::poll`] whenever a frame has been received or sent, and no later than
//!    [`Host::next_poll`].
//!
//! # On bare metal
//! `examples/skeleton.rs`:
//! ```ignore
#![doc = include_str!("../../examples/skeleton.rs")]
//! ```
//! On processors without compare-and-swap, the feature `critical-section` takes its place. `ci/no-std` builds
//! `pdbp-core/no-std-check` for four processors and prints its size.
//!
//! # In an event loop
//! `examples/event_loop.rs`:
//! ```ignore
#![doc = include_str!("../../examples/event_loop.rs")]
//! ```
mod host;
mod memory;
mod received;
mod rings;
mod sending;
mod sizes;
mod stream;
mod wakers;
mod wire;

pub use host::{Error, Host};
#[doc(hidden)]
pub use memory::Tables;
pub use memory::{MemoryTaken, NodeMemory, StaticNode};
pub use received::{Batch, Message, Returned};
pub(crate) use rings::{RingState, Rings};
pub use sending::{Sending, SendingSet};
pub use sizes::{Sizes, SizesError};
pub use stream::{Piece, Segment, StreamReader, StreamWriter};
pub use wire::{Wire, WireError, WireStorage, WireTransport};

// What the calls of `Host` take and return.
pub use crate::endpoint::{Barrier, Quiescence, SendError};
pub use crate::engine::{LocalPart, RegisterError, SuperstepError};
pub use crate::outbox::StreamError;
pub use crate::pipe::PipeError;
pub use crate::tables::PartKind;
