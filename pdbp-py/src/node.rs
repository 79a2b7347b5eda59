//! Nodes of this process.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pdbp::PartKind;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::calls::{self, Owner, Patience};
use crate::error::Failure;
use crate::events::{Descriptor, Watch};
use crate::group::{Group, GroupCell};
use crate::part::{Part, PartCell, PartHandle, Target};
use crate::stats;

/// A node that Python objects hold: the node itself, and its parts.
pub(crate) struct NodeCell {
    pub(crate) index: usize,
    pub(crate) name: String,
    owner: Owner,
    /// `None`: the cluster has been closed.
    node: Mutex<Option<Arc<pdbp::Node>>>,
    parts: Mutex<Vec<Weak<PartCell>>>,
    groups: Mutex<Vec<Weak<GroupCell>>>,
    watches: Mutex<Vec<Weak<Descriptor>>>,
}

/// Adds an object to a list, and forgets those that are gone, whose memory the list would keep.
fn note<T>(list: &Mutex<Vec<Weak<T>>>, object: &Arc<T>) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    list.retain(|other| other.strong_count() > 0);
    list.push(Arc::downgrade(object));
}

impl NodeCell {
    pub(crate) fn new(node: pdbp::Node) -> Self {
        Self {
            index: node.id().index(),
            name: node.name(),
            owner: Owner::here(),
            node: Mutex::new(Some(Arc::new(node))),
            parts: Mutex::default(),
            groups: Mutex::default(),
            watches: Mutex::default(),
        }
    }

    /// Whether it belongs to a parent of this process.
    pub(crate) fn has_forked(&self) -> bool {
        self.owner.has_forked()
    }

    /// The node, for a call.
    pub(crate) fn node(&self) -> Result<Arc<pdbp::Node>, Failure> {
        if self.owner.has_forked() {
            return Err(Failure::forked());
        }
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        node.clone().ok_or_else(|| Failure::closed("cluster"))
    }

    /// Whether the cluster has been closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.node.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Takes the node out; calls in progress may keep it for a moment. Later calls find the cluster closed, and so do tasks that wait for events.
    pub(crate) fn take(&self) -> Option<Arc<pdbp::Node>> {
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().filter_map(Weak::upgrade).for_each(|watch| watch.ring());
        node
    }

    /// The parts that are in use.
    pub(crate) fn parts(&self) -> Vec<PartHandle> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|part| part.strong_count() > 0);
        parts.iter().filter_map(Weak::upgrade).map(PartHandle::new).collect()
    }

    /// The groups that are in use.
    pub(crate) fn groups(&self) -> Vec<Arc<GroupCell>> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|group| group.strong_count() > 0);
        groups.iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes a group, which ends with the cluster.
    pub(crate) fn add_group(&self, group: &Arc<GroupCell>) {
        note(&self.groups, group);
    }

    /// Notes a watch, whose waiting tasks learn of the end of the cluster.
    pub(crate) fn add_watch(&self, watch: &Arc<Descriptor>) {
        note(&self.watches, watch);
    }

    /// Makes a call that may wait. A call that ends because the cluster was closed reports that.
    pub(crate) fn wait<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&pdbp::Node) -> Result<R, Failure> + Send,
    ) -> PyResult<R> {
        let node = self.node()?;
        let is_closed = || self.node().is_err();
        let closed = || Failure::closed("cluster");
        let result = calls::wait(py, || call(&node).map_err(|e| if is_closed() { closed() } else { e }));
        if !is_closed() {
            return result;
        }
        // This call may be the last user of the node, or of a part of it.
        match result {
            Ok(done) => {
                calls::without_gil(move || drop((done, node)));
                Err(closed().into())
            }
            Err(e) => {
                calls::without_gil(move || drop(node));
                Err(e)
            }
        }
    }

    pub(crate) fn find(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<Target> {
        let patience = Patience::of(timeout)?;
        let found = self.wait(py, |node| Ok(node.find(address, patience.or(node.settings().timeout))?))?;
        Ok(Target(found))
    }
}

impl Drop for NodeCell {
    fn drop(&mut self) {
        if self.owner.has_forked() {
            let node = self.node.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(node);
        } else if let Some(node) = self.take() {
            calls::without_gil(move || drop(node));
        }
    }
}

/// A node that this process hosts. Any thread may use it. Objects of the same node are equal.
#[pyclass(frozen, eq, hash, module = "pypdbp")]
pub(crate) struct Node {
    pub(crate) cell: Arc<NodeCell>,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell)
    }
}

impl Eq for Node {}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.cell).hash(state);
    }
}

#[pymethods]
impl Node {
    /// Its number in the cluster, from 0 on.
    #[getter]
    fn index(&self) -> usize {
        self.cell.index
    }

    /// Its name, the part of an address after the @: "node0", "node1", …
    #[getter]
    fn name(&self) -> &str {
        &self.cell.name
    }

    /// Registers a part, which frees its name when it is closed or dropped. Returns when every node knows the name.
    #[pyo3(signature = (name, kind = "cpu"))]
    fn register(&self, py: Python<'_>, name: &str, kind: &str) -> PyResult<Part> {
        let kind = match kind {
            "cpu" => PartKind::Cpu,
            "gpu" => PartKind::Gpu,
            other => {
                let text = format!("kind is \"cpu\" or \"gpu\", not \"{other}\"");
                return Err(PyValueError::new_err(text));
            }
        };
        let part = self.cell.wait(py, |node| Ok(node.register_shared(name, kind)?))?;
        let cell = Arc::new(PartCell::new(Arc::clone(&self.cell), part));
        note(&self.cell.parts, &cell);
        Ok(Part::new(cell))
    }

    /// Finds the part with an address such as "worker@node1", or with a name that only one node has. Waits until it is registered, for the time in
    /// the setting timeout_ms, or `timeout` seconds; then raises NotFound.
    #[pyo3(signature = (address, timeout = None))]
    fn find(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<Target> {
        self.cell.find(py, address, timeout)
    }

    /// Creates a group of one member on each node of the cluster, ranked by the node's index: each node calls this, with the same name. `timeout`
    /// is how many seconds this, and later the calls of the group, wait while nothing moves.
    #[pyo3(signature = (name, timeout = None))]
    fn group(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<Group> {
        let patience = Patience::of(timeout)?;
        let group = self.cell.wait(py, |node| {
            Ok(pdbp::collective::Group::of_nodes(node, name, patience.or(node.settings().timeout))?)
        })?;
        Ok(Group::new(&self.cell, group))
    }

    /// Waits until every node of the cluster has called this as often as this one. A call that fails, or that Ctrl-C ends, counts, too: the next one
    /// is for the next barrier. PeerFailed if it is known that a node has ended before.
    #[pyo3(signature = (timeout = None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let patience = Patience::of(timeout)?;
        self.cell.wait(py, |node| Ok(node.barrier(patience.or(node.settings().timeout))?))
    }

    /// Waits until everything sent before, by any part of any node, can be received without waiting.
    #[pyo3(signature = (timeout = None))]
    fn quiesce(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let patience = Patience::of(timeout)?;
        self.cell.wait(py, |node| Ok(node.quiesce(patience.or(node.settings().timeout))?))
    }

    /// Makes progress. With progress="host" nothing else does except calls that wait: a loop of the program calls this, for asyncio in a task of its
    /// own. Returns after how many seconds at the latest to call it again: 0 is at once, None means when something happens.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        self.cell.wait(py, |node| {
            let polled = node.poll();
            Ok(if polled.worked { Some(0.0) } else { polled.next.map(|time| time.as_secs_f64()) })
        })
    }

    /// Ends waiting calls with the exception Interrupted: one of each part of this node, and one of the node; where none is waiting, the next call
    /// that would wait. From any thread.
    fn interrupt(&self) -> PyResult<()> {
        self.cell.node()?.interrupt();
        Ok(())
    }

    /// The indices of the members of the cluster known to this node, itself included. In a cluster whose processes come and go (the setting found),
    /// watch() reports changes.
    fn members(&self) -> PyResult<Vec<usize>> {
        Ok(self.cell.node()?.members().iter().map(|node| node.index()).collect())
    }

    /// The events of this node from now on: nodes that come and go, links that fail. Each watch gets all events.
    fn watch(&self) -> PyResult<Watch> {
        Ok(Watch::new(&self.cell, self.cell.node()?.watch()))
    }

    /// The addresses of all parts that this node knows.
    fn parts(&self) -> PyResult<Vec<String>> {
        Ok(self.cell.node()?.parts())
    }

    /// The node's counters, as a dictionary; "messages_held" counts messages that programs here have received and not released.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let held = self.cell.parts().iter().map(|part| part.messages_held()).sum();
        stats::to_dict(py, &self.cell.node()?.stats(), held)
    }

    fn __repr__(&self) -> String {
        format!("<pypdbp.Node {}>", self.cell.name)
    }
}
