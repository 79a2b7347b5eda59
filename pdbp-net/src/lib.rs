//! PDBP over sockets: clusters of several processes without MPI.
#![forbid(unsafe_code)]

mod door;
mod error;
mod frame;
mod lane;
mod link;
mod net;
mod options;
mod reactor;
mod start;
#[cfg(test)]
mod tests;
mod token;

pub use door::DoorStats;
pub use error::{Malformed, NetError, Refusal, StartError, TokenError};
pub use link::LinkStats;
pub use net::{Net, Stats};
pub use options::Options;
pub use start::Founder;
pub use token::Token;
