//! Events at a node.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use pdbp::{NodeId, WaitError, WakeFd};
use pyo3::prelude::*;

use crate::calls::Patience;
use crate::error::Failure;
use crate::node::NodeCell;
use crate::part::Target;

/// An event at a node. Fields that its kind does not have are None.
#[pyclass(frozen, get_all, module = "pypdbp")]
#[derive(Default)]
pub(crate) struct Event {
    /// "node_up" and "node_down": a node is now a member of the cluster, or no longer. "peer_failed" and "peer_restored": the link to it, for this
    /// node alone. "expelled": this node is no longer a member, until "node_up" names it. "new_master", "settings_differ", "malformed",
    /// "unroutable", "not_passed_on", "stream_stopped", "stream_broken", "link_ended"; "changed" for a part; "cluster_up" and "cluster_down" for a
    /// trunk; "other".
    kind: &'static str,
    /// The index of the node it concerns.
    node: Option<usize>,
    /// The index of the destination, for "not_passed_on" and "stream_stopped".
    dest: Option<usize>,
    part: Option<Target>,
    /// The number of a part at this node or of a stream, or the term of a master.
    number: Option<u32>,
    /// Messages that are lost, or in doubt.
    messages: Option<u64>,
    /// The name of another cluster.
    cluster: Option<String>,
}

impl Event {
    fn of(kind: &'static str) -> Self {
        Self { kind, ..Self::default() }
    }

    fn at(kind: &'static str, node: NodeId) -> Self {
        Self { node: Some(node.index()), ..Self::of(kind) }
    }
}

impl From<pdbp::Event> for Event {
    fn from(event: pdbp::Event) -> Self {
        use pdbp::Event as E;
        match event {
            E::Changed { part, .. } => Self { part: Some(Target(part)), ..Self::at("changed", part.node()) },
            E::Malformed { peer, .. } => Self::at("malformed", peer),
            E::Unroutable { peer, part, messages } => Self {
                number: Some(part.into()),
                messages: Some(messages.into()),
                ..Self::at("unroutable", peer)
            },
            E::PeerFailed { peer, undelivered } => {
                Self { messages: Some(undelivered), ..Self::at("peer_failed", peer) }
            }
            E::PeerRestored { peer } => Self::at("peer_restored", peer),
            E::SettingsDiffer(found) => Self::at("settings_differ", found.peer),
            E::NewMaster { node, epoch } => Self { number: Some(epoch.0), ..Self::at("new_master", node) },
            E::Expelled => Self::of("expelled"),
            E::NodeUp { node } => Self::at("node_up", node),
            E::NodeDown { node } => Self::at("node_down", node),
            E::NotForwarded { source, dest, messages } => Self {
                dest: Some(dest.index()),
                messages: Some(messages.into()),
                ..Self::at("not_passed_on", source)
            },
            E::StreamStopped { part, number, relay, dest } => Self {
                part: Some(Target(part)),
                number: Some(number.0),
                dest: Some(dest.index()),
                ..Self::at("stream_stopped", relay)
            },
            E::LinkEnded { peer } => Self::at("link_ended", peer),
            E::StreamBroken { mapping } => {
                Self { number: Some(mapping.number.0), ..Self::at("stream_broken", mapping.source) }
            }
            E::ClusterUp { name } => Self { cluster: Some(name.to_string()), ..Self::of("cluster_up") },
            E::ClusterDown { name, in_doubt } => {
                Self { cluster: Some(name.to_string()), messages: Some(in_doubt), ..Self::of("cluster_down") }
            }
            _ => Self::of("other"),
        }
    }
}

#[pymethods]
impl Event {
    fn __repr__(&self) -> String {
        let field = |name: &str, value: Option<String>| value.map(|value| format!(" {name}={value}"));
        let fields = [
            field("node", self.node.map(|node| node.to_string())),
            field("dest", self.dest.map(|dest| dest.to_string())),
            field("part", self.part.map(|part| part.0.to_string())),
            field("number", self.number.map(|number| number.to_string())),
            field("messages", self.messages.map(|messages| messages.to_string())),
            field("cluster", self.cluster.clone()),
        ];
        let fields: String = fields.into_iter().flatten().collect();
        format!("<pypdbp.Event {}{fields}>", self.kind)
    }
}

/// The descriptor of a watch, from the first call that asks for it.
#[derive(Default)]
pub(crate) struct Descriptor(OnceLock<WakeFd>);

impl Descriptor {
    /// Makes the descriptor readable, if there is one: those who wait for it look again.
    pub(crate) fn ring(&self) {
        if let Some(wakes) = self.0.get() {
            wakes.context().waker().wake_by_ref();
        }
    }
}

/// A descriptor that a call has cleared before it polls. It becomes readable again if the call fails: its caller then gets an exception instead
/// of the news that it was readable, which other tasks may wait for.
pub(crate) struct Cleared<'w> {
    wakes: &'w WakeFd,
    rung: bool,
}

impl<'w> Cleared<'w> {
    pub(crate) fn new(wakes: &'w WakeFd) -> Self {
        Self { wakes, rung: wakes.clear() }
    }

    /// Whether it was readable, for the caller to pass on.
    pub(crate) fn was_rung(mut self) -> bool {
        std::mem::take(&mut self.rung)
    }
}

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        if self.rung {
            self.wakes.context().waker().wake_by_ref();
        }
    }
}

/// The events of a node since Node.watch() was called, the oldest first; up to 256 are kept until taken. Any thread may use it. `for event in
/// watch` takes those that have come so far, and in asyncio `async for` waits for more, as the next event wakes it. (With `progress="inline"` only
/// calls that wait can do that.)
#[pyclass(frozen, module = "pypdbp")]
pub(crate) struct Watch {
    cell: Arc<NodeCell>,
    watch: Arc<pdbp::Watch>,
    /// Rung when the cluster is closed, too.
    descriptor: Arc<Descriptor>,
}

impl Watch {
    pub(crate) fn new(cell: &Arc<NodeCell>, watch: pdbp::Watch) -> Self {
        let descriptor = Arc::default();
        cell.add_watch(&descriptor);
        Self { cell: Arc::clone(cell), watch: Arc::new(watch), descriptor }
    }

    fn wakes(&self) -> Result<&WakeFd, Failure> {
        if self.cell.has_forked() {
            return Err(Failure::forked());
        }
        let Descriptor(wakes) = &*self.descriptor;
        if let Some(wakes) = wakes.get() {
            return Ok(wakes);
        }
        let new = WakeFd::new()
            .map_err(|error| Failure::new("PdbpError", format!("cannot create a descriptor: {error}")))?;
        // If another thread has been faster, this one's descriptor is dropped.
        Ok(wakes.get_or_init(|| new))
    }

    /// Takes the next event; if there is none, the descriptor becomes readable when there is. Also returns whether it was readable until now.
    fn poll(&self, py: Python<'_>) -> PyResult<(bool, Option<Event>)> {
        let wakes = self.wakes()?;
        let (rung, event) = self.cell.wait(py, |node| {
            let cleared = Cleared::new(wakes);
            let event = match self.watch.poll_event(node, &mut wakes.context()) {
                Poll::Ready(event) => Some(event?),
                Poll::Pending => None,
            };
            Ok((cleared.was_rung(), event))
        })?;
        Ok((rung, event.map(Event::from)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.cell.has_forked() {
            // Not even to be freed: other threads may have held their locks at the fork.
            std::mem::forget((Arc::clone(&self.watch), Arc::clone(&self.descriptor)));
        }
    }
}

/// The next event, for tasks of asyncio; see `pypdbp/_asyncio.py`.
#[pyfunction]
pub(crate) fn _poll_event(py: Python<'_>, watch: PyRef<'_, Watch>) -> PyResult<(bool, Option<Event>)> {
    watch.poll(py)
}

#[pymethods]
impl Watch {
    /// Returns the next event. Waits for the time in the setting timeout_ms, or `timeout` seconds; then raises Timeout.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Event> {
        let patience = Patience::of(timeout)?;
        let event = self.cell.wait(py, |node| {
            let timeout = patience.or(node.settings().timeout);
            Ok(self.watch.wait_event(node, timeout)?)
        })?;
        Ok(event.into())
    }

    /// Events that this watch has lost, because 256 had not been taken when another came.
    #[getter]
    fn lost(&self) -> u64 {
        self.watch.lost()
    }

    /// The number of a descriptor that becomes readable when an event has come since `for event in watch`, or next(watch, None), has found none:
    /// for selectors and event loops. It must not be read.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.wakes()?.as_fd().as_raw_fd())
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Event>> {
        if self.descriptor.0.get().is_some() {
            let (rung, event) = self.poll(py)?;
            // Another loop may wait for it, and there may be more.
            if rung && event.is_some() {
                self.descriptor.ring();
            }
            return Ok(event);
        }
        let event = self.cell.wait(py, |node| match self.watch.wait_event(node, Duration::ZERO) {
            Err(WaitError::Timeout(_)) => Ok(None),
            event => Ok(Some(event?)),
        })?;
        Ok(event.map(Event::from))
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pypdbp._asyncio")?.call_method1("event", (slf,))
    }

    fn __repr__(&self) -> String {
        format!("<pypdbp.Watch of {}>", self.cell.name)
    }
}
