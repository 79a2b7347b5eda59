//! The Python module `pypdbp`: parts of a cluster that send messages and streams to each other by name. This is its compiled half,
//! `pypdbp._pypdbp`; what is files and arrays is in `python/pypdbp`, over this.
//!
//! # The map
//! * `cluster` and `node`: `start`, and what it gives.
//! * `part`: sending and receiving. `part::held` has the one lock of a part, `part::message` what arrives, `part::device` memory of CUDA
//!   devices, `part::loan` and `part::stream` the rest.
//! * `buffer`: bytes of Python objects, and ours for them.
//! * `calls`: the GIL, Ctrl-C, the end of the interpreter, forks.
//! * `error`: what is raised.
//!
//! # Figures
//! `benches/messages.py` and, under `mpirun -n 2`, `benches/arrays.py` measure beside mpi4py, in one run; their first lines say how.
//!
//! A binding translates types, ownership and errors, and has no logic of its own: what it lacks goes into `pdbp`.
#![deny(unsafe_code)]

mod buffer;
mod calls;
mod cluster;
mod error;
mod node;
mod part;
mod stats;

use pyo3::prelude::*;

/// The compiled half of `pypdbp`.
#[pymodule(gil_used = true)]
mod _pypdbp {
    #[pymodule_export]
    use crate::calls::_forked;
    #[pymodule_export]
    use crate::cluster::{_close_all, _is_launched, Cluster, start};
    #[pymodule_export]
    use crate::node::Node;
    #[pymodule_export]
    use crate::part::{
        _recv_device, _send_device, Batch, Batches, Loan, Message, Part, RawReader, RawWriter, Ready, Target,
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
