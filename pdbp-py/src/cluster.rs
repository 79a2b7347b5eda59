//! Clusters: how they start, and how they end.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use pdbp::Builder;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};

use crate::calls::{self, Owner};
use crate::error::Failure;
use crate::node::{Node, NodeCell};

/// The clusters of this process, for the end of the interpreter. Locked with the GIL only, so never while somebody forks.
static CLUSTERS: Mutex<Vec<Weak<ClusterCell>>> = Mutex::new(Vec::new());

/// A cluster that Python objects hold.
struct ClusterCell {
    size: usize,
    /// Those of this process.
    nodes: Vec<Arc<NodeCell>>,
    settings: Vec<(&'static str, String)>,
    owner: Owner,
}

impl ClusterCell {
    fn new(cluster: pdbp::Cluster) -> Self {
        let settings = cluster.settings().entries().map(|entry| (entry.key, entry.value)).collect();
        Self {
            size: cluster.size(),
            settings,
            nodes: cluster.into_nodes().into_iter().map(NodeCell::new).map(Arc::new).collect(),
            owner: Owner::here(),
        }
    }

    /// Ends calls that wait, closes the parts and stops the nodes.
    fn close(&self, py: Python<'_>) {
        if self.owner.has_forked() {
            return;
        }
        let nodes: Vec<_> = self.nodes.iter().filter_map(|cell| cell.take()).collect();
        let parts: Vec<_> = self.nodes.iter().flat_map(|cell| cell.parts()).collect();
        parts.iter().for_each(|part| part.close(py));
        // A part of which a call is under way is dropped by who makes that call.
        calls::await_others(py, || {
            nodes.iter().for_each(|node| node.interrupt());
            parts.iter().for_each(|part| part.settle(py));
            parts.iter().all(|part| part.is_gone())
        });
        calls::without_gil(move || drop(nodes));
    }
}

/// Called at the end of the interpreter: a thread that would want the GIL after that is ended in the middle of a call.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) {
    let clusters = std::mem::take(&mut *CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner));
    clusters.iter().filter_map(Weak::upgrade).for_each(|cluster| cluster.close(py));
    calls::await_others(py, || !calls::somebody_waits());
}

/// Starts a cluster, as far as this process hosts it, and returns when all its nodes know each other. Settings are keywords, each with the
/// name that it has in a file (`pdbp config` prints all); others come from the environment (PDBP_NODES …) and the file PDBP_CONFIG. Without
/// any, all nodes are of this process; PDBP_LISTEN and PDBP_JOIN connect processes by sockets.
#[pyfunction]
#[pyo3(signature = (**settings))]
pub(crate) fn start(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Cluster> {
    let mut builder = Builder::from_env().map_err(Failure::from)?;
    for (key, value) in settings.into_iter().flatten() {
        builder = builder.set(&key.extract::<String>()?, &text_of(&value)?);
    }
    let cluster = calls::wait(py, || Ok(builder.start()?))?;
    let cell = Arc::new(ClusterCell::new(cluster));
    let mut clusters = CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner);
    clusters.retain(|cluster| cluster.strong_count() > 0);
    clusters.push(Arc::downgrade(&cell));
    Ok(Cluster { cell })
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

/// A running cluster, as far as this process hosts it. At the end of its `with`, or by close(), its parts are closed and its nodes stop; what
/// was sent and nobody has taken in is lost then, unless Node.quiesce or Node.barrier came before.
#[pyclass(frozen, module = "pypdbp")]
pub(crate) struct Cluster {
    cell: Arc<ClusterCell>,
}

#[pymethods]
impl Cluster {
    /// Nodes of the whole cluster.
    #[getter]
    fn size(&self) -> usize {
        self.cell.size
    }

    /// The first node that this process hosts: its only one, if the others are in other processes.
    #[getter]
    fn node(&self) -> PyResult<Node> {
        let first = self.cell.nodes.first().ok_or_else(|| Failure::closed("cluster"))?;
        Ok(Node { cell: Arc::clone(first) })
    }

    /// All nodes that this process hosts.
    #[getter]
    fn nodes(&self) -> Vec<Node> {
        self.cell.nodes.iter().map(|cell| Node { cell: Arc::clone(cell) }).collect()
    }

    /// The settings in effect, as text.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let settings = PyDict::new(py);
        for (key, value) in &self.cell.settings {
            settings.set_item(key, value)?;
        }
        Ok(settings)
    }

    /// Ends calls that wait on other threads, closes the parts, and stops the nodes of this process. Messages that were received can still be read.
    fn close(&self, py: Python<'_>) {
        self.cell.close(py);
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
        format!("<pypdbp.Cluster of {} nodes, {} of them here>", self.cell.size, self.cell.nodes.len())
    }
}
