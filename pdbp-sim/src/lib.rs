//! Backends of PDBP that need no network, and the tools to check any backend.
//!
//! * [`local`]: nodes on threads of one process; blocks are handed over by reference. The default backend.
#![deny(unsafe_code)]

pub mod local;
