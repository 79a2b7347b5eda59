//! Groups: collective calls of several parts.
//!
//! A group is behind a lock that is only tried: a call while another thread is in one of the same group gets `Busy`. No Python code except signal
//! handlers runs under it. Closing a group, or its cluster, during a call leaves it to that call to drop the group.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use pdbp::collective::{self, Element, GroupError, JoinError, Op, Request};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PySlice;

use crate::buffer::{slice, with_bytes, with_numbers, with_room};
use crate::calls::{self, Owner, Patience};
use crate::error::{Failure, text_of};
use crate::node::NodeCell;

/// A group that Python objects hold.
pub(crate) struct GroupCell {
    node: Arc<NodeCell>,
    owner: Owner,
    /// `None`: it is closed.
    group: Mutex<Option<collective::Group>>,
    /// Tells the owner of the lock to drop the group. Stored before the lock is tried, and read after it was released, both in one order with it
    /// (`SeqCst`): one of the two sees the other.
    closing: AtomicBool,
    panicked: AtomicBool,
}

impl GroupCell {
    fn enter(&self) -> Result<MutexGuard<'_, Option<collective::Group>>, Failure> {
        if self.owner.has_forked() {
            return Err(Failure::forked());
        }
        if self.panicked.load(Ordering::Relaxed) {
            return Err(Failure::panicked("in an earlier call"));
        }
        if self.closing.load(Ordering::Relaxed) {
            return Err(self.closed());
        }
        self.group.try_lock().map_err(|_| {
            Failure::new("Busy", "another call of this group is in progress; join a group for each thread")
        })
    }

    fn closed(&self) -> Failure {
        Failure::closed(if self.node.is_closed() { "cluster" } else { "group" })
    }

    /// Makes a call without the GIL.
    fn wait<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut collective::Group) -> Result<R, Failure> + Send,
    ) -> PyResult<R> {
        let mut guard = self.enter()?;
        let Some(group) = guard.as_mut() else { return Err(self.closed().into()) };
        let guarded = || {
            // After a panic the group is only dropped.
            let panicked = |panic: Box<dyn std::any::Any + Send>| {
                self.panicked.store(true, Ordering::Relaxed);
                Err(Failure::panicked(text_of(&*panic)))
            };
            let result = catch_unwind(AssertUnwindSafe(|| call(group))).unwrap_or_else(panicked);
            result.map_err(|e| if self.closing.load(Ordering::Relaxed) { self.closed() } else { e })
        };
        let result = calls::wait(py, guarded);
        drop(guard);
        self.settle();
        result
    }

    /// Leaves the group, now or when the current call ends.
    pub(crate) fn close(&self) {
        if !self.owner.has_forked() {
            self.closing.store(true, Ordering::SeqCst);
            self.settle();
        }
    }

    fn settle(&self) {
        while self.closing.load(Ordering::SeqCst) {
            let mut guard = match self.group.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let Some(group) = guard.take() else { return };
            drop(guard);
            // Dropping notifies the others, and may wait for room to do so.
            calls::without_gil(move || drop(group));
        }
    }

    /// Whether the group, and its resources in the cluster, are gone.
    pub(crate) fn is_over(&self) -> bool {
        self.group.try_lock().is_ok_and(|group| group.is_none())
    }
}

impl Drop for GroupCell {
    fn drop(&mut self) {
        let group = self.group.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if self.owner.has_forked() {
            std::mem::forget(group);
        } else if group.is_some() {
            calls::without_gil(move || drop(group));
        }
    }
}

impl From<GroupError> for Failure {
    fn from(e: GroupError) -> Self {
        let class = match &e {
            GroupError::Refused(_) => "GroupArgumentError",
            GroupError::Lost { .. } | GroupError::CutOff { .. } => "PeerFailed",
            GroupError::TimedOut { .. } => "Timeout",
            GroupError::Interrupted => return Self::interrupted(),
            _ => "GroupError",
        };
        Self::new(class, e)
    }
}

impl From<JoinError> for Failure {
    fn from(e: JoinError) -> Self {
        let class = match e {
            JoinError::Lookup(e) => return e.into(),
            JoinError::Register(e) => return e.into(),
            JoinError::Call(e) => return e.into(),
            JoinError::Interrupted => return Self::interrupted(),
            JoinError::TimedOut { .. } => "Timeout",
            JoinError::Lost { .. } => "PeerFailed",
            JoinError::Differs { .. } => "GroupError",
            JoinError::Blocks { .. } => "ConfigError",
            _ => "GroupArgumentError",
        };
        Self::new(class, e)
    }
}

/// The operation of that name.
fn operation(name: &str) -> PyResult<Op> {
    Ok(match name {
        "sum" => Op::Sum,
        "product" => Op::Product,
        "min" => Op::Min,
        "max" => Op::Max,
        "and" => Op::And,
        "or" => Op::Or,
        "xor" => Op::Xor,
        other => {
            let text = format!(
                "op is \"sum\", \"product\", \"min\", \"max\", \"and\", \"or\" or \"xor\", not \"{other}\""
            );
            return Err(PyValueError::new_err(text));
        }
    })
}

/// Calls `f` with the bytes of one object and the memory of another, which must not overlap.
fn with_both<R>(
    from: &Bound<'_, PyAny>,
    into: &Bound<'_, PyAny>,
    f: impl FnOnce(&[u8], &mut [u8]) -> PyResult<R>,
) -> PyResult<R> {
    with_bytes(from, |from| {
        let given = from.as_ptr_range();
        with_room(into, |into| {
            let room = into.as_ptr_range();
            if given.start < room.end && room.start < given.end {
                return Err(PyValueError::new_err(
                    "the input and the array for the result share memory; pass separate arrays, a copy for instance",
                ));
            }
            f(from, into)
        })
    })
}

/// Several parts that make collective calls, each with a rank: barrier, broadcast, reduce and the like, over any transport. Node.group and
/// Part.group create one. All members must make the same calls in the same order, with arrays of the same length and type. Arrays are anything with
/// a C-contiguous buffer; results are written into the arrays passed. A call in which nothing moves for the group's patience raises Timeout; if a
/// member dies, all others get PeerFailed. After that, and after GroupError, create a new group. For one thread at a time.
#[pyclass(frozen, module = "pypdbp")]
pub(crate) struct Group {
    cell: Arc<GroupCell>,
    rank: usize,
    size: usize,
}

impl Group {
    /// Wraps a new group, and registers it with its node.
    pub(crate) fn new(node: &Arc<NodeCell>, group: collective::Group) -> Self {
        let (rank, size) = (group.rank(), group.size());
        let cell = Arc::new(GroupCell {
            node: Arc::clone(node),
            owner: Owner::here(),
            group: Mutex::new(Some(group)),
            closing: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        node.add_group(&cell);
        Self { cell, rank, size }
    }

    /// Makes a call. The request is built without the GIL, since it may hold a function of the program.
    fn call<'d>(&self, py: Python<'_>, request: impl FnOnce() -> Request<'d> + Send) -> PyResult<()> {
        self.cell.wait(py, |group| Ok(group.call(request())?))
    }
}

#[pymethods]
impl Group {
    /// This member's rank, from 0 on.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// Number of members.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// Sets how many seconds calls wait while nothing moves. Members may differ in this.
    fn set_patience(&self, seconds: f64) -> PyResult<()> {
        let Patience::For(patience) = Patience::of(Some(seconds))? else {
            return Err(PyValueError::new_err(
                "a group's patience must be above 0 seconds; calls always wait for other members",
            ));
        };
        let mut guard = self.cell.enter()?;
        // With the GIL, so that no other thread finds the group in use.
        guard.as_mut().ok_or_else(|| self.cell.closed())?.set_patience(patience);
        Ok(())
    }

    /// Waits until all members have called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.cell.wait(py, |group| Ok(group.barrier()?))
    }

    /// Copies the root's array to all members.
    #[pyo3(signature = (array, root = 0))]
    fn broadcast(&self, py: Python<'_>, array: &Bound<'_, PyAny>, root: usize) -> PyResult<()> {
        with_room(array, |room| self.call(py, || Request::broadcast(root, room)))
    }

    /// Distributes the root's array `all`, one block for each member, by rank. At other members `all` is None.
    #[pyo3(signature = (all, own, root = 0))]
    fn scatter(
        &self,
        py: Python<'_>,
        all: Option<&Bound<'_, PyAny>>,
        own: &Bound<'_, PyAny>,
        root: usize,
    ) -> PyResult<()> {
        match all.filter(|_| root == self.rank) {
            Some(all) => {
                with_both(all, own, |all, own| self.call(py, || Request::scatter(root, Some(all), own)))
            }
            None => with_room(own, |own| self.call(py, || Request::scatter(root, None, own))),
        }
    }

    /// Collects the array of each member in the root's array `all`, by rank. At other members `all` is None.
    #[pyo3(signature = (own, all = None, root = 0))]
    fn gather(
        &self,
        py: Python<'_>,
        own: &Bound<'_, PyAny>,
        all: Option<&Bound<'_, PyAny>>,
        root: usize,
    ) -> PyResult<()> {
        match all.filter(|_| root == self.rank) {
            Some(all) => {
                with_both(own, all, |own, all| self.call(py, || Request::gather(root, own, Some(all))))
            }
            None => with_bytes(own, |own| self.call(py, || Request::gather(root, own, None))),
        }
    }

    /// Collects the array of each member in everyone's array `all`, by rank.
    fn all_gather(&self, py: Python<'_>, own: &Bound<'_, PyAny>, all: &Bound<'_, PyAny>) -> PyResult<()> {
        with_both(own, all, |own, all| self.call(py, || Request::all_gather(own, all)))
    }

    /// Exchanges a block between every two members: block i of `give` goes to member i, and block i of `get` comes from it.
    fn all_to_all(&self, py: Python<'_>, give: &Bound<'_, PyAny>, get: &Bound<'_, PyAny>) -> PyResult<()> {
        with_both(give, get, |give, get| self.call(py, || Request::all_to_all(give, get)))
    }

    /// Combines the arrays of all members value by value, by "sum", "product", "min", "max", "and", "or" or "xor": the root's array has the result;
    /// the others' arrays are then undefined. Values are integers of 8 to 64 bits, or floats of 32 and 64.
    #[pyo3(signature = (array, op = "sum", root = 0))]
    fn reduce(&self, py: Python<'_>, array: &Bound<'_, PyAny>, op: &str, root: usize) -> PyResult<()> {
        let op = operation(op)?;
        with_numbers(array, |data, element, _| self.call(py, || Request::reduce_of(root, element, data, op)))
    }

    /// Combines the arrays of all members value by value, as reduce; each has the result, bit-identical everywhere.
    #[pyo3(signature = (array, op = "sum"))]
    fn all_reduce(&self, py: Python<'_>, array: &Bound<'_, PyAny>, op: &str) -> PyResult<()> {
        let op = operation(op)?;
        with_numbers(array, |data, element, _| self.call(py, || Request::all_reduce_of(element, data, op)))
    }

    /// Combines the arrays of all members value by value, as reduce, and leaves each its share of the result: the returned slice of the flat array.
    /// The rest of the array is then undefined. If shares cannot be equal, the first members have one value more.
    #[pyo3(signature = (array, op = "sum"))]
    fn reduce_scatter<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        op: &str,
    ) -> PyResult<Bound<'py, PySlice>> {
        let op = operation(op)?;
        let share = with_numbers(array, |data, element: Element, count| {
            self.cell.wait(py, |group| {
                group.call(Request::reduce_scatter_of(element, data, op))?;
                Ok(group.share_of(count))
            })
        })?;
        slice(py, share.start, share.end)
    }

    /// Sends an array to a member, which receives it by its tag. Long ones wait for their receiver, so a ring in which all send first waits until
    /// the group's patience is over: use send_recv there.
    #[pyo3(signature = (to, data, tag = 0))]
    fn send(&self, py: Python<'_>, to: usize, data: &Bound<'_, PyAny>, tag: u32) -> PyResult<()> {
        with_bytes(data, |data| self.call(py, || Request::send(to, tag, data)))
    }

    /// Receives the first array of a member with this tag, of exactly this many bytes.
    #[pyo3(signature = (source, into, tag = 0))]
    fn recv(&self, py: Python<'_>, source: usize, into: &Bound<'_, PyAny>, tag: u32) -> PyResult<()> {
        with_room(into, |into| self.call(py, || Request::recv(source, tag, into)))
    }

    /// Sends to one member and receives from another at the same time, with the same tag.
    #[pyo3(signature = (to, data, source, into, tag = 0))]
    fn send_recv(
        &self,
        py: Python<'_>,
        to: usize,
        data: &Bound<'_, PyAny>,
        source: usize,
        into: &Bound<'_, PyAny>,
        tag: u32,
    ) -> PyResult<()> {
        with_both(data, into, |data, into| {
            self.call(py, || Request::send_recv((to, data), (source, into), tag))
        })
    }

    /// Creates the group of the members that share memory with this one, or are on its board of a fabric: all of these call this.
    fn local(&self, py: Python<'_>) -> PyResult<Self> {
        let group = self.cell.wait(py, |group| Ok(group.local()?))?;
        Ok(Self::new(&self.cell.node, group))
    }

    /// Creates the group of the members that pass the same number: all members call this.
    fn split(&self, py: Python<'_>, colour: u64) -> PyResult<Self> {
        let group = self.cell.wait(py, move |group| Ok(group.split(colour)?))?;
        Ok(Self::new(&self.cell.node, group))
    }

    /// Leaves the group, and notifies the others.
    fn close(&self) {
        self.cell.close();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, value, traceback, /))]
    fn __exit__(&self, kind: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, traceback: &Bound<'_, PyAny>) {
        let _ = (kind, value, traceback);
        self.cell.close();
    }

    /// For the tests: a panic in the middle of a call.
    #[cfg(debug_assertions)]
    fn _panic(&self, py: Python<'_>) -> PyResult<()> {
        self.cell.wait(py, |_| panic!("on purpose"))
    }

    fn __repr__(&self) -> String {
        let closed = if self.cell.is_over() { " (closed)" } else { "" };
        format!("<pypdbp.Group: member {} of {}{closed}>", self.rank, self.size)
    }
}
