//! Clusters in virtual time, and the tools to check any backend of PDBP.
//!
//! * [`conformance`](mod@conformance): the suite that checks the contract of a transport, for every backend and wrapper.
//! * [`tracer`]: a wrapper that remembers the last operations and completions.
//! * [`fault`]: a wrapper that refuses, delays, corrupts and fails, from a seed.
//! * [`network`]: any number of nodes in virtual time on one thread, with engines, traffic, faults and checks.
//! * [`rapidio`]: a fabric of switches that carry out collectives, in virtual time, and the library for it.
//! * [`recorder`]: a wrapper that records all that passes, and a transport that plays it to an engine again.
#![deny(unsafe_code)]

pub mod conformance;
pub mod fault;
pub mod network;
mod random;
pub mod rapidio;
pub mod recorder;
pub mod tracer;
