//! Clusters: how they start, and how they end.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use pdbp::Builder;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};

use crate::calls;
use crate::error::Failure;
use crate::node::{Node, NodeCell};

/// The nodes of this process, for the end of the interpreter. Locked only with the GIL held, so never during a fork.
static NODES: Mutex<Vec<Weak<NodeCell>>> = Mutex::new(Vec::new());

/// Ends waiting calls, closes the parts and stops the nodes.
fn close(py: Python<'_>, cells: &[Arc<NodeCell>]) {
    let nodes: Vec<_> = cells.iter().filter_map(|cell| cell.take()).collect();
    let parts: Vec<_> = cells.iter().flat_map(|cell| cell.parts()).collect();
    parts.iter().for_each(|part| part.close(py));
    let groups: Vec<_> = cells.iter().flat_map(|cell| cell.groups()).collect();
    groups.iter().for_each(|group| group.close());
    // A part in use is dropped by the thread that uses it.
    calls::await_others(py, || {
        nodes.iter().for_each(|node| node.interrupt());
        parts.iter().for_each(|part| part.settle(py));
        parts.iter().all(|part| part.is_over()) && groups.iter().all(|group| group.is_over())
    });
    calls::without_gil(move || drop(nodes));
}

/// Called at the end of the interpreter: a thread that requests the GIL after that is ended in the middle of a call.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) {
    let nodes = std::mem::take(&mut *NODES.lock().unwrap_or_else(PoisonError::into_inner));
    let nodes: Vec<_> = nodes.iter().filter_map(Weak::upgrade).filter(|node| !node.has_forked()).collect();
    close(py, &nodes);
    calls::await_others(py, || !calls::somebody_waits());
}

/// Starts this process's nodes of a cluster, and returns when all nodes of the cluster know each other. Settings are keywords, each with the name
/// that it has in a file (`pdbp config` prints all); others come from the environment (PDBP_NODES …) and the file PDBP_CONFIG. Without any, all
/// nodes are in this process; PDBP_LISTEN and PDBP_JOIN connect processes by sockets. With a communicator of mpi4py as comm, the cluster consists
/// of its processes, all of which must call this; it works on a duplicate.
#[pyfunction]
#[pyo3(signature = (*, comm=None, **settings))]
pub(crate) fn start(
    py: Python<'_>,
    comm: Option<&Bound<'_, PyAny>>,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Cluster> {
    let mut builder = Builder::from_env().map_err(Failure::from)?;
    for (key, value) in settings.into_iter().flatten() {
        builder = builder.set(&key.extract::<String>()?, &text_of(&value)?);
    }
    let cluster = match comm {
        None => calls::wait(py, || Ok(builder.start()?))?,
        Some(comm) => {
            let handle = handle_of(comm)?;
            // The communicator is borrowed until the call is over.
            calls::wait(py, || start_on(builder, handle))?
        }
    };
    let settings = cluster.settings().entries().map(|entry| (entry.key, entry.value)).collect();
    let size = cluster.size();
    let nodes: Vec<_> = cluster.into_nodes().into_iter().map(NodeCell::new).map(Arc::new).collect();
    let mut all = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|node| node.strong_count() > 0);
    all.extend(nodes.iter().map(Arc::downgrade));
    Ok(Cluster { size, nodes, settings })
}

/// The handle of a communicator of mpi4py, as a number.
fn handle_of(comm: &Bound<'_, PyAny>) -> PyResult<usize> {
    let modules = comm.py().import("sys")?.getattr("modules")?;
    let mpi = modules.call_method1("get", ("mpi4py.MPI",))?;
    if mpi.is_none() || !comm.is_instance(&mpi.getattr("Comm")?)? {
        let text =
            format!("comm must be a communicator of mpi4py (mpi4py.MPI.COMM_WORLD), not {}", comm.repr()?);
        return Err(PyTypeError::new_err(text));
    }
    // An address, or a number that may have a sign.
    mpi.call_method1("_handleof", (comm,))?.call_method1("__and__", (usize::MAX,))?.extract()
}

#[cfg(feature = "mpi")]
#[expect(unsafe_code, reason = "the handle of a communicator")]
fn start_on(builder: Builder, comm: usize) -> Result<pdbp::Cluster, Failure> {
    // SAFETY: it belongs to a communicator of mpi4py, and so to an MPI that this process has; one of another MPI is refused.
    Ok(unsafe { builder.start_on_raw_communicator(comm) }?)
}

#[cfg(not(feature = "mpi"))]
fn start_on(_: Builder, _: usize) -> Result<pdbp::Cluster, Failure> {
    Err(pdbp::StartError::NoMpi { ranks: None }.into())
}

/// A setting as text, as in the environment.
fn text_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_none() {
        return Ok("off".to_owned());
    }
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(if value.is_true() { "on" } else { "off" }.to_owned());
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let texts = value.try_iter()?.map(|item| text_of(&item?)).collect::<PyResult<Vec<_>>>()?;
        return Ok(texts.join(","));
    }
    Ok(value.str()?.to_string())
}

/// A running cluster, as seen by this process. At the end of its `with`, or by close(), its parts are closed and its nodes stop; sent messages not
/// yet received are then lost, unless Node.quiesce or Node.barrier came before.
#[pyclass(frozen, module = "pypdbp")]
pub(crate) struct Cluster {
    size: usize,
    /// The nodes of this process.
    nodes: Vec<Arc<NodeCell>>,
    settings: Vec<(&'static str, String)>,
}

#[pymethods]
impl Cluster {
    /// Number of nodes of the whole cluster.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// The first node that this process hosts: its only one, if the others are in other processes.
    #[getter]
    fn node(&self) -> PyResult<Node> {
        let first = self.nodes.first().ok_or_else(|| Failure::closed("cluster"))?;
        Ok(Node { cell: Arc::clone(first) })
    }

    /// All nodes that this process hosts.
    #[getter]
    fn nodes(&self) -> Vec<Node> {
        self.nodes.iter().map(|cell| Node { cell: Arc::clone(cell) }).collect()
    }

    /// The settings in effect, as text.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let settings = PyDict::new(py);
        for (key, value) in &self.settings {
            settings.set_item(key, value)?;
        }
        Ok(settings)
    }

    /// Ends waiting calls on other threads, closes the parts, and stops the nodes of this process. Received messages can still be read; a node stops
    /// when the last of its messages is released.
    fn close(&self, py: Python<'_>) {
        if self.nodes.iter().all(|node| !node.has_forked()) {
            close(py, &self.nodes);
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, value, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) {
        let _ = (kind, value, traceback);
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let closed = if self.nodes.iter().all(|node| node.is_closed()) { " (closed)" } else { "" };
        format!("<pypdbp.Cluster of {} nodes, {} of them here{closed}>", self.size, self.nodes.len())
    }
}
