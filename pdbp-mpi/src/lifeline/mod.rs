//! Watches whether processes of other hosts are alive.
//!
//! MPI does not say when one of them dies. So every two processes of different hosts hold a TCP connection, over which nothing goes after
//! a greeting: the operating system closes it when the process at its other end dies, however that was, and keepalive probes of the
//! system find out that a host is gone.
//!
//! Each process listens, and all know by MPI where: up to [`ADDRESSES`] addresses of it. The one with the lower number calls the
//! other, and tries these one after the other: some are those of other networks, or mean another host there (a bridge of
//! containers). Both say a secret that they have told each other by MPI, so that nobody else is taken for a peer.
//!
//! Who cannot be reached so (a firewall, no IPv4) is not watched, nor is, in jobs of many, who is further off in rank than [`MOST`]: if it
//! dies, its links stand still as if there were no lifelines. A connection that ends says nothing of what the process has sent by MPI before: that
//! is the links' business.

#[cfg(target_os = "linux")]
mod connections;
#[cfg(not(target_os = "linux"))]
#[path = "absent.rs"]
mod connections;

pub(crate) use connections::Lifelines;

/// Addresses of a process that others try.
const ADDRESSES: usize = 4;
/// The furthest in rank, round the end, that a process watches.
const MOST: usize = 128;

/// What a process tells the others: its secret, and where it listens (port and IPv4 address, or 0).
pub(crate) type Offer = [u64; 1 + ADDRESSES];

/// Whether two of so many processes watch each other.
fn are_near(one: usize, other: usize, processes: usize) -> bool {
    let apart = one.abs_diff(other);
    apart.min(processes - apart.min(processes)) <= MOST
}
