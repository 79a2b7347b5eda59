//! Hosts and transports that break their contracts, in safe Rust: no byte that somebody may read changes or goes, no block gets two
//! owners, and what the engine counts stays right. Run under AddressSanitizer by `ci/sanitize`.
#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "modules of a test")]

mod ends;
mod hosts;
mod refusals;
mod rig;
mod tokens;
