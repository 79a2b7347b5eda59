//! Watches whether processes of other hosts are alive.
//!
//! MPI does not report when one of them dies. So each pair of processes on different hosts keeps a TCP connection, which carries nothing
//! after a greeting. The operating system closes it when the process at the other end dies, for whatever reason, and its keepalive probes
//! notice when a host is gone.
//!
//! Each process listens, and tells the others by MPI where: up to [`ADDRESSES`] addresses. The process with the lower rank calls the other
//! and tries its addresses in turn, since some may be on other networks, or name another host there (a bridge of containers). Both send a
//! secret that they exchanged by MPI, so that no other process is taken for a peer.
//!
//! Processes that cannot be reached in this way (a firewall, no IPv4), or whose ranks are more than [`MOST`] apart, are not watched: if one
//! dies, its links hang as if there were no lifelines. A closed connection says nothing about data that the process sent earlier by MPI;
//! the links take care of that.

#[cfg(target_os = "linux")]
mod connections;
#[cfg(not(target_os = "linux"))]
#[path = "absent.rs"]
mod connections;

pub(crate) use connections::Lifelines;

/// Addresses of a process that others try.
const ADDRESSES: usize = 4;
/// The greatest distance in rank, wrapping round at the end, over which processes watch each other.
const MOST: usize = 128;

/// What a process tells the others: its secret, and where it listens (port and IPv4 address, or 0).
pub(crate) type Offer = [u64; 1 + ADDRESSES];

/// Whether two of `processes` processes watch each other.
fn are_near(one: usize, other: usize, processes: usize) -> bool {
    let apart = one.abs_diff(other);
    apart.min(processes - apart.min(processes)) <= MOST
}
