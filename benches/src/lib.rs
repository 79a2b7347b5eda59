//! The experiments of PDBP: n↔n, 1→n and n→1 traffic of equal unit packets between threads of one process, over PDBP and its rivals, compared with
//! the limit set by one `memcpy`.
//!
//! The modules, in the order a measurement runs through them:
//!
//! * [`scenario`] — what is measured: traffic [`Pattern`](scenario::Pattern), nodes, packet size, tuning.
//! * [`source`] — where packets come from, and how every arriving byte is read and accounted for.
//! * [`fabric`] — what a peer must implement: the [`Fabric`](fabric::Fabric) and [`Endpoint`](fabric::Endpoint) traits.
//! * [`peers`] — one file per peer: channels, byte rings, the `memcpy` limits.
//! * [`exchange`] — the node's loop, which is the same for all; timing; verification.
//! * [`experiment`] — calibrates, interleaves the peers run by run, and keeps the results.
//! * [`statistics`] — the mean without the highest and the lowest run.
//! * [`round_trip`] — both ends on one thread, for timing and counting single packets.
//! * [`slate`] — calls of a group in shared memory, both members on one thread, for counting instructions.
//! * [`report`] — tables in the style of the OSU benchmarks, CSV, plots.
//! * [`arguments`] — bounds of the programs' options, and how programs end.
//!
//! With the feature `mpi` there is also the module `mpi`: the same traffic between the ranks of an MPI job, and with `desk` the
//! module `grpc`: calls and streams by tonic.
//!
//! Nothing here depends on a peer's internals, and the hot loops are monomorphised: no virtual call stands between the traffic and the peer.
//!
//! # What keeps the comparison fair
//!
//! Every peer copies each packet's bytes out of the same kind of source buffer, has every byte read at the receiver by the same function, waits in
//! the same way, and is run in turn with the others within each repetition, so that a noisy moment of the machine hits all alike. Sums and counts
//! of arrivals are checked against what was sent; if a peer loses, repeats or alters a byte, the program ends and names it.

pub mod arguments;
pub mod exchange;
pub mod experiment;
pub mod fabric;
#[cfg(feature = "desk")]
pub mod grpc;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod peers;
pub mod report;
pub mod round_trip;
pub mod scenario;
pub mod slate;
pub mod source;
pub mod statistics;
