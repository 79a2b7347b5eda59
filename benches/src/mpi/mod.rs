//! The experiments of SPEC §2 over MPI: every rank is a node; PDBP takes turns with MPI's own calls.
//!
//! The modules, in the order a measurement runs through them:
//!
//! * [`peer`] — who is measured: [`Peer`], and where each of them applies.
//! * [`group`] — the ranks that take part in a point: their start line, the longest time of all, the sleep of the others.
//! * [`bench`](mod@bench) — one timed run of one peer.
//! * [`alltoall`], [`window`], [`pdbp`] — the peers.
//! * [`latency`] — ping-pong between two ranks.
//! * [`load`], [`watch`] — how busy the machine was; a watchdog for runs that hang inside MPI.
//!
//! # Definitions
//!
//! **A host is a rank**, and each rank is one node of PDBP; with one rank per machine "per host" is literal.
//!
//! **1→n** and **n→1** take n + 1 ranks: rank 0 sends to, or receives from, n others; n concurrent streams. **n↔n** takes n ranks, each of which
//! sends to and receives from every other one, n·(n − 1) concurrent streams (S1 §5.3); 1↔1 are two ranks, so that n = 1 and n = 2 are the same
//! point. The first ranks take part; the others sleep meanwhile, waking every millisecond.
//!
//! **Rates** are payload per host: what rank 0 sends (1→n), what it receives (n→1), what each rank sends (n↔n, where it
//! receives as much at the same time). The share of a link is that rate over the link's in one direction.
//!
//! **The receiver reads every byte** of every packet, by the same function for all peers; sums and counts must equal those sent, or the program
//! ends, naming the peer. **The sender** differs by peer: MPI is given the packets where they lie, in a buffer of 64 KiB that stays in the cache,
//! so that it need not copy anything before it sends; PDBP's `send` copies them out of the same buffer into blocks, which counts as its work. Where
//! PDBP lends memory instead (`pdbp-loan`, `pdbp-stream`) the packet is written there, also from that buffer; `window-write` is MPI with that work
//! added.
//!
//! **Time** runs, at each rank, from leaving a barrier after the warm-up until its last packet is received and the memory of its last sent packet
//! is free again; a run takes as long as its slowest rank. Peers take turns: in each repetition all of them run one after another, each with as
//! many packets as make the run as long as asked, MPI's own in one job and PDBP in another. The highest and the lowest run are dropped, the rest
//! averaged.
//!
//! # What could be unfair
//!
//! Ranks that wait inside MPI spin, unless it is told to yield; with more ranks than cores that decides everything (Open MPI: `--mca
//! mpi_yield_when_idle 1`). Placement is the launcher's. MPI's own peers run after a plain `MPI_Init`, in jobs without PDBP, which asks for
//! `MPI_THREAD_SERIALIZED`: with thread support enabled, Open MPI takes locks. `MPI_Alltoall` also delivers each rank's packet to itself.

pub mod alltoall;
pub mod bench;
pub mod group;
pub mod latency;
pub mod load;
pub mod pdbp;
pub mod peer;
pub mod watch;
pub mod window;

pub use self::bench::{Bench, Setup, StartError};
pub use self::group::{Group, rest};
pub use self::load::Load;
pub use self::peer::Peer;

/// What exchanges a scenario's traffic at one rank.
trait Traffic {
    /// Sends `count` packets to each destination and receives as many of each origin. Every rank of the group calls it with
    /// the same number.
    fn exchange(&mut self, count: u64);

    /// Does this rank's share of the others' remaining work.
    fn help(&mut self) {}

    /// Panics when anything else arrived than `count` packets of each origin.
    fn verify(&self, count: u64);
}
