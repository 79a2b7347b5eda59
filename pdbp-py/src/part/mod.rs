//! Parts: what sends and receives.

mod device;
mod held;
mod loan;
mod message;
mod stream;
mod tasks;
mod together;
mod values;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pdbp::{Interest, RecvError, SendError};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::buffer::{check_room, with_bytes, with_rows};
use crate::calls::Patience;
use crate::error::Failure;
use crate::group::Group;
use crate::node::Node;
pub(crate) use device::{_recv_device, _send_device};
pub(crate) use held::{PartCell, PartHandle};
pub(crate) use loan::Loan;
pub(crate) use message::{Batch, Batches, Message};
pub(crate) use stream::{RawReader, RawWriter};
pub(crate) use tasks::{_poll_batch, _poll_piece, _poll_recv, _poll_send};
pub(crate) use together::{Piece, StreamId, Streams};
pub(crate) use values::{Ready, Returned, Target};

/// Up to this many bytes a copy takes less time than releasing the GIL.
const COPIED_AT_ONCE: usize = 64 << 10;

/// A part of the program: it sends to parts of any node and receives what is sent to it. Any thread may use it, one at a time.
#[pyclass(frozen, module = "pypdbp")]
pub(crate) struct Part {
    cell: PartHandle,
}

impl Part {
    pub(crate) fn new(cell: Arc<PartCell>) -> Self {
        Self { cell: PartHandle::new(cell) }
    }

    /// Receives: an available message at once, with the GIL; otherwise waits for as long as the call may, unless nobody is left.
    fn receive<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        at_once: impl Fn(&pdbp::Part<pdbp::Shared>) -> Option<R>,
        later: impl FnOnce(&pdbp::Part<pdbp::Shared>, Patience) -> Result<R, Failure> + Send,
    ) -> PyResult<R> {
        let patience = Patience::of(timeout)?;
        let found = self.cell.with(py, |held| match at_once(held.part()) {
            // Looks last: by then, all that others sent before they left has arrived.
            None if patience == Patience::None && held.part().is_alone() => {
                Ok(Some(at_once(held.part()).ok_or(RecvError::NobodyLeft)?))
            }
            found => Ok(found),
        })?;
        if let Some(found) = found {
            return Ok(found);
        }
        if patience == Patience::None {
            return Err(Failure::no_message().into());
        }
        self.cell.wait(py, |held| later(held.part(), patience))
    }
}

#[pymethods]
impl Part {
    /// Its target, by which others reach it.
    #[getter]
    fn id(&self) -> Target {
        Target(self.cell.id)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.cell.name
    }

    /// The node that hosts it.
    #[getter]
    fn node(&self) -> Node {
        Node { cell: Arc::clone(&self.cell.node) }
    }

    /// Bytes of the longest message that travels in one block; commands, loans and messages sent without waiting can be no longer.
    #[getter]
    fn longest(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.cell.with(py, |held| Ok(held.part().longest()))?)
    }

    /// Messages that were received and not released: they hold their senders' credit.
    #[getter]
    fn messages_held(&self) -> usize {
        self.cell.messages_held()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.cell.is_closing()
    }

    /// As Node.find.
    #[pyo3(signature = (address, timeout = None))]
    fn find(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<Target> {
        self.cell.node.find(py, address, timeout)
    }

    /// Sends a message: the bytes of anything that has a C-contiguous buffer. Waits for room for the time in the setting timeout_ms, or `timeout`
    /// seconds; with 0 not at all, and NoRoom is raised where there is none.
    #[pyo3(signature = (to, data, timeout = None))]
    fn send(
        &self,
        py: Python<'_>,
        to: Target,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let patience = Patience::of(timeout)?;
        let to = to.0;
        with_bytes(data, |bytes| {
            if bytes.len() <= COPIED_AT_ONCE || patience == Patience::None {
                let sent = self.cell.with(py, |held| match held.part().try_send(held.check(to)?, bytes) {
                    Ok(()) => Ok(true),
                    Err(SendError::WouldBlock | SendError::NeedsWaiting { .. })
                        if patience != Patience::None =>
                    {
                        Ok(false)
                    }
                    Err(e) => Err(e.into()),
                })?;
                if sent {
                    return Ok(());
                }
            }
            self.cell.wait(py, |held| {
                let sender = held.part().sender(held.check(to)?);
                match patience {
                    Patience::For(timeout) => sender.timeout(timeout).send(bytes)?,
                    _ => sender.send(bytes)?,
                }
                Ok(())
            })
        })
    }

    /// Sends a command with a number from 0 to 65535. It overtakes messages, leaves at once, and must fit into a block.
    #[pyo3(signature = (to, number, data = None, timeout = None))]
    fn send_command(
        &self,
        py: Python<'_>,
        to: Target,
        number: u16,
        data: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let patience = Patience::of(timeout)?;
        let to = to.0;
        let send = |bytes: &[u8]| {
            self.cell.wait(py, |held| {
                let sender = held.part().sender(held.check(to)?).command(number);
                match patience {
                    Patience::Default => sender.send(bytes)?,
                    Patience::None => sender.no_wait().send(bytes)?,
                    Patience::For(timeout) => sender.timeout(timeout).send(bytes)?,
                }
                Ok(())
            })
        };
        data.map_or_else(|| send(&[]), |data| with_bytes(data, send))
    }

    /// Sends a message to several parts: one copy per node, shared by its parts.
    fn send_all(&self, py: Python<'_>, to: Vec<Target>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let to: Vec<_> = to.iter().map(|target| target.0).collect();
        with_bytes(data, |bytes| {
            self.cell.wait(py, |held| {
                to.iter().try_for_each(|to| held.check(*to).map(drop))?;
                Ok(held.part().send_all(&to, bytes)?)
            })
        })
    }

    /// Sends each row of an array as a separate message, many at a time: the cheapest way to send small messages. A row is what the first index
    /// selects: in an array of one dimension, one element. Returns how many were sent: all, unless `timeout` is 0.
    #[pyo3(signature = (to, table, timeout = None))]
    fn send_rows(
        &self,
        py: Python<'_>,
        to: Target,
        table: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let patience = Patience::of(timeout)?;
        let to = to.0;
        with_rows(table, |bytes, rows| {
            let Some(length) = bytes.len().checked_div(rows).filter(|length| *length > 0) else {
                // No rows, or rows without bytes, of which no train can be made.
                return if rows == 0 {
                    Ok(0)
                } else {
                    Err(PyBufferError::new_err("the rows are empty; each needs at least one byte"))
                };
            };
            let mut sent = 0;
            if bytes.len() <= COPIED_AT_ONCE || patience == Patience::None {
                sent = self.cell.with(py, |held| {
                    match held.part().sender(held.check(to)?).no_wait().send_train(bytes, length) {
                        Err(SendError::NeedsWaiting { .. }) if patience != Patience::None => Ok(0),
                        sent => Ok(sent?),
                    }
                })?;
            }
            if sent == rows || patience == Patience::None {
                return Ok(sent);
            }
            let rest = bytes.get(sent * length..).unwrap_or(&[]);
            let more = self.cell.wait(py, |held| {
                let sender = held.part().sender(held.check(to)?);
                let sender = match patience {
                    Patience::For(timeout) => sender.timeout(timeout),
                    _ => sender,
                };
                Ok(sender.send_train(rest, length)?)
            })?;
            Ok(sent + more)
        })
    }

    /// Lends room for a message of `size` bytes in an outgoing block, to be filled in place: `with part.loan(to, 4096) as room`. It is sent at the
    /// end of the `with`; an exception gives it up.
    fn loan(&self, py: Python<'_>, to: Target, size: usize) -> PyResult<Loan> {
        Loan::take(&self.cell, py, to.0, size)
    }

    /// Creates a group of parts, ranked by their places in the list: the owner of each calls this, with the same list of addresses and name. The
    /// group's traffic does not reach the part itself. `timeout` is how many seconds this, and later the calls of the group, wait while nothing
    /// moves.
    #[pyo3(signature = (name, members, timeout = None))]
    fn group(
        &self,
        py: Python<'_>,
        name: &str,
        members: Vec<String>,
        timeout: Option<f64>,
    ) -> PyResult<Group> {
        let patience = Patience::of(timeout)?;
        let group = self.cell.wait(py, |held| {
            let part = held.part();
            let members: Vec<&str> = members.iter().map(String::as_str).collect();
            let patience = patience.or(part.node().settings().timeout);
            Ok(pdbp::collective::Group::of(part, name, &members, patience)?)
        })?;
        Ok(Group::new(&self.cell.node, group))
    }

    /// Sends what was packed, without waiting for its block to fill. Waiting calls do so, too. With `progress="inline"` nothing else does: flush
    /// before leaving the part alone after a send.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.cell.wait(py, |held| {
            held.part().flush();
            Ok(())
        })
    }

    /// Returns the next message, commands first. Waits as long as it takes, or `timeout` seconds, and then raises Timeout; raises PeerFailed once
    /// nobody is left to send one.
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        let message = self.receive(
            py,
            timeout,
            |part| part.try_recv(),
            |part, patience| match patience {
                Patience::Default => Ok(part.recv()?),
                Patience::None => Err(Failure::no_message()),
                Patience::For(timeout) => Ok(part.recv_timeout(timeout)?),
            },
        )?;
        Ok(Message::new(&self.cell, message))
    }

    /// Returns the next message if one has come, else None. Does not wait.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let message = self.cell.with(py, |held| Ok(held.part().try_recv()))?;
        Ok(message.map(|message| Message::new(&self.cell, message)))
    }

    /// Returns the next message that was not delivered because its target's node has failed, or None. A program that goes on once others have
    /// replaced failed nodes should call this now and then until it returns None: returned messages occupy the room for later ones to the same
    /// place.
    fn try_returned(&self, py: Python<'_>) -> PyResult<Option<Returned>> {
        let returned = self.cell.with(py, |held| Ok(held.part().try_returned()?))?;
        Ok(returned.map(|returned| Returned::new(py, &returned)))
    }

    /// Returns messages of one length that arrived together: the cheapest way to receive small ones. Waits as recv does.
    #[pyo3(signature = (timeout = None))]
    fn recv_batch(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Batch> {
        let batch = self.receive(
            py,
            timeout,
            |part| part.try_recv_batch(),
            |part, patience| Ok(part.recv_batch(patience.or(Duration::MAX))?),
        )?;
        Ok(Batch::new(&self.cell, batch))
    }

    /// Iterates over the batches that have come: as long as there are any, or, with a timeout, until none comes for that time or nobody is left.
    #[pyo3(signature = (timeout = Some(0.0)), text_signature = "($self, timeout=0.0)")]
    fn batches(&self, timeout: Option<f64>) -> PyResult<Batches> {
        Ok(Batches::new(self.cell.clone(), Patience::of(timeout)?))
    }

    /// Waits until there is something to receive (`recv`), or room for a short message to a part (`to`), whichever comes first: for parts that send
    /// and receive at the same time.
    #[pyo3(signature = (to = None, recv = true, timeout = None))]
    fn wait(&self, py: Python<'_>, to: Option<Target>, recv: bool, timeout: Option<f64>) -> PyResult<Ready> {
        let patience = Patience::of(timeout)?;
        let interest = interest(to, recv)?;
        let found = self.cell.wait(py, |held| {
            let part = held.part();
            Ok(part.wait(interest, patience.or(part.node().settings().timeout))?)
        })?;
        Ok(found.into())
    }

    /// The number of a descriptor that becomes readable when something has come since arm() found nothing: for selectors and event loops. It must
    /// not be read, and stays the same for the life of the part object.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.cell.wakes()?.as_fd().as_raw_fd())
    }

    /// Checks for what wait() waits for. If nothing is ready, the descriptor is armed: it becomes readable when it is time to check again, which for
    /// the first 50 to 400 µs of a wait is at once, since waking a thread takes longer than most answers. For one loop at a time; tasks of asyncio
    /// have arecv() and others, which share it.
    #[pyo3(signature = (to = None, recv = true))]
    fn arm(&self, py: Python<'_>, to: Option<Target>, recv: bool) -> PyResult<Ready> {
        let interest = interest(to, recv)?;
        let wakes = self.cell.wakes()?;
        Ok(self.cell.with(py, |held| {
            wakes.clear();
            match held.part().poll_ready(interest, &mut wakes.context()) {
                Poll::Ready(found) => Ok(found?.into()),
                Poll::Pending => Ok(pdbp::Ready::default().into()),
            }
        })?)
    }

    /// As recv, for asyncio: `message = await part.arecv()`. Cancelling the task loses nothing.
    fn arecv<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pypdbp._asyncio")?.call_method1("recv", (&slf,))
    }

    /// As recv_batch, for asyncio.
    fn arecv_batch<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pypdbp._asyncio")?.call_method1("recv_batch", (&slf,))
    }

    /// As send, for asyncio, for messages that fit into a block (`longest`): `await part.asend(to, data)`.
    fn asend<'py>(
        slf: Bound<'py, Self>,
        to: Bound<'py, PyAny>,
        data: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pypdbp._asyncio")?.call_method1("send", (&slf, to, data))
    }

    /// Takes one turn of a loop in which a part of each node sends and receives: `while part.advance(done): …`. `done` means that this part will
    /// send nothing more on its own initiative. The loop ends everywhere when all are done, and everything they sent has been received.
    fn advance(&self, py: Python<'_>, done: bool) -> PyResult<bool> {
        self.cell.wait(py, |held| Ok(held.part().advance(done)?))
    }

    /// Opens a stream to a part, as a file to write: pypdbp.Writer.
    fn open<'py>(&self, py: Python<'py>, to: Target) -> PyResult<Bound<'py, PyAny>> {
        static WRITER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let writer = RawWriter::open(&self.cell, py, to.0)?;
        WRITER.import(py, "pypdbp._streams", "Writer")?.call1((writer,))
    }

    /// Accepts the next stream opened to this part, as a file to read: pypdbp.Reader. Waits for the time in the setting timeout_ms, or `timeout`
    /// seconds.
    #[pyo3(signature = (timeout = None))]
    fn accept<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        static READER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let reader = RawReader::accept(&self.cell, py, Patience::of(timeout)?)?;
        READER.import(py, "pypdbp._streams", "Reader")?.call1((reader,))
    }

    /// Reads all streams opened to this part, except those that accept() takes, on one thread, piece by piece: `for piece in part.streams()`,
    /// `async for`, or next(). Streams with data take turns. The iteration goes on until nobody is left to write, or, with a timeout, until nothing
    /// comes for that time. At the end of a `with`, or by close(), streams that have been partly read are given up; otherwise the next call of this
    /// method continues with them.
    #[pyo3(signature = (timeout = None))]
    fn streams(&self, timeout: Option<f64>) -> PyResult<Streams> {
        Ok(Streams::new(self.cell.clone(), Patience::of(timeout)?))
    }

    /// Sends an array of any length, with its shape and the format of its elements, as a stream.
    fn send_array(slf: &Bound<'_, Self>, to: Target, array: &Bound<'_, PyAny>) -> PyResult<()> {
        static SEND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        SEND.import(slf.py(), "pypdbp._arrays", "send")?.call1((slf, to, array)).map(drop)
    }

    /// Receives an array sent by send_array: into `out`, which must have its shape and format (ValueError, and the array is lost), or into a new one
    /// (of numpy; without numpy, a memoryview). Waits as accept does.
    #[pyo3(signature = (out = None, timeout = None))]
    fn recv_array<'py>(
        &self,
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static RECV: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        // Before it is accepted: an array that cannot be put there would be lost.
        out.map_or(Ok(()), check_room)?;
        RECV.import(py, "pypdbp._arrays", "recv")?.call1((self.accept(py, timeout)?, out))
    }

    /// Sends an array of a CUDA device (with `__cuda_array_interface__`: CuPy, Numba, PyTorch) as one message, once its stream has finished with
    /// it.
    #[pyo3(signature = (to, array, timeout = None))]
    fn send_device<'py>(
        slf: Bound<'py, Self>,
        to: Bound<'py, PyAny>,
        array: Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pypdbp._devices")?.call_method1("send", (&slf, to, array, timeout))
    }

    /// Receives a message of send_device, or a stream, into an array of a CUDA device. Returns the source and the number of bytes.
    #[pyo3(signature = (out, timeout = None))]
    fn recv_device<'py>(
        slf: Bound<'py, Self>,
        out: Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pypdbp._devices")?.call_method1("recv", (&slf, out, timeout))
    }

    /// Frees the part and its name; open streams are given up. Received messages can still be read.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.cell.close_idle(py)?)
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
    ) -> PyResult<()> {
        let _ = (kind, value, traceback);
        self.close(py)
    }

    /// For the tests: a panic in the middle of a call.
    #[cfg(debug_assertions)]
    fn _panic(&self, py: Python<'_>) -> PyResult<()> {
        self.cell.wait(py, |_| panic!("on purpose"))
    }

    fn __repr__(&self) -> String {
        let closed = if self.cell.is_closing() { " (closed)" } else { "" };
        format!("<pypdbp.Part {}@{}{closed}>", self.cell.name, self.cell.node.name)
    }
}

fn interest(to: Option<Target>, recv: bool) -> PyResult<Interest> {
    match (to, recv) {
        (Some(to), true) => Ok(Interest::Either(to.0)),
        (Some(to), false) => Ok(Interest::Send(to.0)),
        (None, true) => Ok(Interest::Recv),
        (None, false) => Err(PyValueError::new_err("nothing to wait for: pass `to`, or recv=True")),
    }
}
