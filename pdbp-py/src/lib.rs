//! The Python module `pypdbp`: parts of a cluster that send messages and streams to each other by name. This is its compiled half,
//! `pypdbp._pypdbp`; file and array interfaces are in `python/pypdbp`, on top of it.
//!
//! # The map
//! * `cluster` and `node`: `start`, and what it returns. `events`: events at a node.
//! * `part`: sending and receiving. `part::held` has the one lock of a part, `part::message` what arrives, `part::device` memory of CUDA
//!   devices, `part::together` all streams to a part, `part::loan` and `part::stream` the rest; `part::tasks` is for asyncio.
//! * `group`: collective calls.
//! * `buffer`: the buffer protocol, in both directions.
//! * `calls`: the GIL, Ctrl-C, the end of the interpreter, forks.
//! * `error`: the exceptions.
//!
//! # Figures
//! `benches/messages.py` and, under `mpirun -n 2`, `benches/arrays.py` measure against mpi4py, in one run; their first lines say how. A release
//! wheel, CPython 3.11, two processors of a virtual AMD EPYC with much other work, kept away by `chrt -r 1` before the
//! command; medians of three to six runs. What misses its aim is in **bold**.
//!
//! | one process, 64 bytes | ns | aim |
//! |---|---|---|
//! | `send(bytes)` and `recv` | 158 | 200 |
//! | the same, read by `memoryview(message)[0]` | 297 | 320 |
//! | the same in `with b.recv() as m, memoryview(m) as view` | 541 | |
//! | of these what Python takes alone, with a `bytearray` for the message: a `memoryview`, and in two `with` | 99, 377 | |
//! | `send_rows` and `batches`, for each row; of 8 bytes | 2.9; 0.4 | 5 |
//! | `queue.SimpleQueue`, `put` and `get`, which copies nothing | 40 | |
//! | mpi4py, `Sendrecv` to itself | 639 | |
//!
//! Ctrl-C ends a waiting call after 31 ms (aim 100): the signal comes 20 ms after the call has begun, and the call checks every 50 ms.
//!
//! Between two ranks this machine has two states, which change within minutes: the host has placed its processors near each other or not.
//! mpi4py takes 0.5 µs for half a round trip in the one and 0.8 in the other. With Open MPI 4.1 and MPICH 4.0 (mpi4py 4.1):
//!
//! | two ranks, Python | near | far | aim |
//! |---|---|---|---|
//! | 8 bytes, half a round trip, by `try_recv`, µs | 0.95 | 1.6 | 1.5 |
//! | by `recv`, which polls for a while and then sleeps | 1.43 | **2.0** | 1.5 |
//! | the same as ratios to mpi4py's `Send` and `Recv`: `try_recv`, `recv` | **1.8**, **2.7** | **2.0**, **2.6** | 1.5 (2.5 in the prototype) |
//! | arrays written, sent and summed, mpi4py's `Isend` and `Irecv` with new buffers in each round: 64 KiB | 4.8 to 6 | **0.7 to 1** | 1.4 |
//! | 1 MiB | 4.1 to 8.7 | **1.3 to 1.9**, once 3.6 | 2.5 |
//! | 4 MiB | 4.4 to 8.9 | 1.5 to 3.1 | 2 |
//! | the same where mpi4py uses its buffers again, 64 KiB | 3.4 to 5 | **0.7 to 1** | |
//! | 1 MiB | 1.0 to 3.6 | **0.7 to 0.9**, once 1.6 | |
//! | 4 MiB | 0.8 to 2.3 | **0.6 to 1.3** | |
//! | `send_array` of 16 MiB, beside `write` and `readinto_all` of a stream | 0.9 | 0.7 to 1.5 | 0.8 |
//! | beside mpi4py's `Send` and `Recv` into the same buffers | **0.8** | **0.5** | |
//!
//! A round trip in Python is one in Rust (0.85 µs over MPI, `benches/figures/shared-memory.md`) plus a microsecond of Python. Messages of a block or less
//! are written into the outgoing block (`loan`) and summed where they arrive; longer ones are reassembled, which costs another copy. Most of the distance
//! to mpi4py with new buffers is due to the kernel, which has to map their pages. Where processors are far from each other, numpy's sum of freshly
//! written data waits for each line of it; mpi4py's copy requests several at a time.
//!
//! Group calls on numpy arrays, two ranks on the two processors of a virtual AMD EPYC (Zen 5) that were near each other, against mpi4py over Open MPI
//! 4.1 (`mpirun -n 2 python benches/groups.py 40`, the best of 80 rounds, in turns):
//!
//! | | barrier | broadcast: 8 B, 1 KiB, 64 KiB, 1 MiB | all_reduce | all_gather |
//! |---|---|---|---|---|
//! | `pypdbp`, µs | 0.22 | 0.25, 0.37, 2.4, 29 | 0.43, 0.61, 5.9, 82 | 0.39, 0.53, 4.6, 68 |
//! | mpi4py, µs | 0.26 | 0.45, 0.71, 6.2, 67 | 0.61, 0.82, 10.6, 85 | 0.71, 0.91, 7.2, 86 |
//! | `pypdbp`/mpi4py | 0.84 | 0.56, 0.53, 0.38, 0.43 | 0.70, 0.74, 0.56, 0.96 | 0.56, 0.58, 0.64, 0.79 |
//!
//! In a run a quarter of an hour earlier, while the processors moved apart, all_reduce and all_gather of 1 MiB took 247 and 223 µs (**1.34** and
//! **2.57**), everything else 0.50 to 0.89 of mpi4py's time.
//!
//! A binding translates types, ownership and errors, and has no logic of its own: missing features go into `pdbp`.
#![deny(unsafe_code)]

mod buffer;
mod calls;
mod cluster;
mod error;
mod events;
mod group;
mod node;
mod part;
mod stats;

use pyo3::prelude::*;

/// The compiled half of `pypdbp`.
#[pymodule(gil_used = true)]
mod _pypdbp {
    #[pymodule_export]
    use crate::buffer::_check_bytes;
    #[pymodule_export]
    use crate::calls::_forked;
    #[pymodule_export]
    use crate::cluster::{_close_all, Cluster, start};
    #[pymodule_export]
    use crate::events::{_poll_event, Event, Watch};
    #[pymodule_export]
    use crate::group::Group;
    #[pymodule_export]
    use crate::node::Node;
    #[pymodule_export]
    use crate::part::{
        _poll_batch, _poll_piece, _poll_recv, _poll_send, _recv_device, _send_device, Batch, Batches, Loan,
        Message, Part, Piece, RawReader, RawWriter, Ready, Returned, StreamId, Streams, Target,
    };

    use pyo3::prelude::*;
    use pyo3::types::PyModule;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // Whether clusters over MPI were built in.
        module.add("HAS_MPI", cfg!(feature = "mpi"))
    }
}
