//! What a program needs that has the engine in its own loop: on bare metal, in an operating system's task, in another runtime.
//!
//! 1. [`storage!`](crate::storage) makes the memory of a node, as a `static` of the size that follows from what the node has room for.
//! 2. A [`Wire`] is what the program has to write: it carries frames. [`Posted`] makes a transport of it.
mod memory;
mod rings;
mod wire;

pub use memory::{NodeMemory, Sizes, StaticNode, Taken};
pub use rings::Ends;
pub use wire::{Link, Posted, PostedStorage, Wire, WireError};
