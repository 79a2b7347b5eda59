//! Clusters in virtual time, and tools to check any backend of PDBP.
//!
//! * [`conformance`](mod@conformance): the suite that checks the transport contract, for every backend and wrapper.
//! * [`tracer`]: a wrapper that keeps the latest operations and completions.
//! * [`fault`]: a wrapper that refuses, delays, corrupts and fails, driven by a seed.
//! * [`network`]: any number of nodes in virtual time on one thread, with engines, traffic, faults and checks.
//! * [`rapidio`]: a fabric of switches that perform collectives, in virtual time, and the library for it.
//! * [`recorder`]: a wrapper that records everything that passes, and a transport that replays it to an engine.
#![deny(unsafe_code)]

pub mod conformance;
pub mod fault;
pub mod network;
mod random;
pub mod rapidio;
pub mod recorder;
pub mod tracer;
