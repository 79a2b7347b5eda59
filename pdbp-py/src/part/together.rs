//! All streams to a part, read together, in pieces.
#![allow(unsafe_code, reason = "the buffer protocol is one of pointers")]

use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use pdbp::{RecvError, Segment, Shared};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::held::{Found, Note};
use super::message::Kept;
use super::{Part, PartCell, PartHandle, Target};
use crate::buffer::{Access, export};
use crate::calls::Patience;
use crate::error::Failure;

/// A stream that is read together with others: a key for per-stream state. No other stream has the same one, even after its end.
#[pyclass(frozen, eq, module = "pypdbp")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamId(pdbp::StreamId);

#[pymethods]
impl StreamId {
    /// The part that writes it.
    #[getter]
    fn source(&self) -> Target {
        Target(self.0.source())
    }

    /// Its number at the node that writes it.
    #[getter]
    fn number(&self) -> u32 {
        self.0.number().0
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!("<pypdbp.StreamId {} from {}>", self.0.number().0, self.0.source())
    }
}

/// What a piece carries besides bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data,
    End,
    Broken,
}

/// A piece of a stream: some of its bytes, or its end. It is a read-only buffer, in place, like a Message: its block goes back to the writer when
/// it is released, or when it and all views of it are gone.
#[pyclass(module = "pypdbp")]
pub(crate) struct Piece {
    stream: StreamId,
    kind: Kind,
    /// `None`: an end, without bytes.
    bytes: Kept<Option<Segment<Shared>>>,
}

impl Piece {
    pub(super) fn new(cell: &PartCell, (id, piece): Found) -> Self {
        let stream = StreamId(id);
        let end = |kind| Self { stream, kind, bytes: Kept::uncounted(None) };
        match piece {
            pdbp::Piece::Data(segment) => {
                Self { stream, kind: Kind::Data, bytes: Kept::new(cell, Some(segment)) }
            }
            pdbp::Piece::End => end(Kind::End),
            pdbp::Piece::Broken => end(Kind::Broken),
        }
    }

    fn get(&self) -> Result<&[u8], Failure> {
        Ok(self.bytes.get()?.as_deref().unwrap_or(&[]))
    }
}

#[pymethods]
impl Piece {
    /// Its stream.
    #[getter]
    fn stream(&self) -> StreamId {
        self.stream
    }

    /// The part that writes the stream.
    #[getter]
    fn source(&self) -> Target {
        self.stream.source()
    }

    /// Whether it is the end of a complete stream. It has no bytes.
    #[getter]
    fn is_end(&self) -> bool {
        self.kind == Kind::End
    }

    /// Whether the stream ended early: its writer gave it up, or failed. It has no bytes, and nothing more comes from the stream.
    #[getter]
    fn is_broken(&self) -> bool {
        self.kind == Kind::Broken
    }

    #[getter]
    fn released(&self) -> bool {
        self.bytes.is_released()
    }

    /// Returns a copy of the bytes, which holds no block.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.get()?))
    }

    /// Returns the block. Raises BufferError while there are views.
    fn release(slf: &Bound<'_, Self>) -> PyResult<()> {
        let content = slf.borrow_mut().bytes.release()?;
        drop(content);
        Ok(())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.get()?.len())
    }

    /// True even without bytes: the last piece of a stream may have none.
    fn __bool__(&self) -> bool {
        true
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.borrow().get()?;
        Ok(slf)
    }

    #[pyo3(signature = (kind, value, traceback, /))]
    fn __exit__(
        slf: &Bound<'_, Self>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (value, traceback);
        let content = slf.borrow_mut().bytes.exit(!kind.is_none())?;
        drop(content);
        Ok(())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mut piece = slf.borrow_mut();
        let bytes = piece.get()?;
        let bytes = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes of a segment stay where they are, and nobody writes them, until it is dropped, which does not happen while there are
        // views.
        unsafe { export(slf.as_any(), view, flags, bytes, Access::ReadOnly) }?;
        piece.bytes.add_view();
        Ok(())
    }

    unsafe fn __releasebuffer__(&mut self, _view: *mut ffi::Py_buffer) {
        self.bytes.end_view();
    }

    fn __repr__(&self) -> String {
        let source = self.stream.0.source();
        match (self.kind, self.get()) {
            (Kind::End, _) => format!("<pypdbp.Piece: the end of a stream from {source}>"),
            (Kind::Broken, _) => format!("<pypdbp.Piece: a stream from {source} is broken>"),
            (_, Ok(bytes)) => format!("<pypdbp.Piece of {} bytes of a stream from {source}>", bytes.len()),
            (_, Err(_)) => "<pypdbp.Piece (released)>".to_owned(),
        }
    }
}

/// All streams to a part except those that accept() has returned, piece by piece: streams with data take turns.
#[pyclass(frozen, module = "pypdbp")]
pub(crate) struct Streams {
    cell: PartHandle,
    patience: Patience,
}

impl Streams {
    pub(crate) fn new(cell: PartHandle, patience: Patience) -> Self {
        Self { cell, patience }
    }

    fn part(&self) -> Part {
        Part { cell: self.cell.clone() }
    }

    /// The next piece; `None` if none comes within that time.
    fn within(&self, py: Python<'_>, patience: Patience) -> PyResult<Option<Piece>> {
        let mut found = self.cell.with(py, |held| Ok(held.together().try_next()?))?;
        if found.is_none() && patience != Patience::None {
            let timeout = patience.or(Duration::MAX);
            found = Some(self.cell.wait(py, |held| Ok(held.together().next(timeout)?))?);
        }
        Ok(found.map(|found| Piece::new(&self.cell, found)))
    }
}

#[pymethods]
impl Streams {
    /// Returns the next piece of any stream. Raises Timeout after `timeout` seconds without one, and PeerFailed once nobody is left to write it.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Piece> {
        let piece = self.within(py, Patience::of(timeout)?)?;
        piece.ok_or_else(|| {
            Failure::new("Timeout", "no piece of a stream has arrived yet, and this call does not wait")
                .into()
        })
    }

    /// Returns the next piece if one has come, else None. Does not wait.
    fn try_next(&self, py: Python<'_>) -> PyResult<Option<Piece>> {
        self.within(py, Patience::None)
    }

    /// As next, for asyncio: `piece = await streams.anext()`. Cancelling the task loses nothing.
    fn anext<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pypdbp._asyncio")?.call_method1("piece", (slf.get().part(),))
    }

    /// Gives up a stream: its data so far is discarded, and the rest as it arrives.
    fn give_up(&self, py: Python<'_>, stream: PyRef<'_, StreamId>) -> PyResult<()> {
        let id = stream.0;
        Ok(self.cell.with(py, |held| {
            held.together().give_up(id);
            Ok(())
        })?)
    }

    /// Gives up all streams that have been partly read.
    fn close(&self) {
        self.cell.leave_note(Note::Together);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, value, traceback, /))]
    fn __exit__(&self, kind: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, traceback: &Bound<'_, PyAny>) {
        let _ = (kind, value, traceback);
        self.close();
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Piece>> {
        let mut found = self.cell.with(py, |held| Ok(held.together().try_next()?))?;
        if found.is_none() && self.patience != Patience::None {
            let timeout = self.patience.or(Duration::MAX);
            found = self.cell.wait(py, |held| match held.together().next(timeout) {
                Err(RecvError::Timeout(_) | RecvError::NobodyLeft) => Ok(None),
                found => Ok(Some(found?)),
            })?;
        }
        Ok(found.map(|found| Piece::new(&self.cell, found)))
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let timeout = match slf.get().patience {
            Patience::Default => None,
            Patience::None => Some(0.0),
            Patience::For(timeout) => Some(timeout.as_secs_f64()),
        };
        slf.py().import("pypdbp._asyncio")?.call_method1("next_piece", (slf.get().part(), timeout))
    }

    fn __repr__(&self) -> String {
        format!("<pypdbp.Streams to {}@{}>", self.cell.name, self.cell.node.name)
    }
}
