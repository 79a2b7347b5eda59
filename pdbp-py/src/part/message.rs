//! Received messages: bytes that are read where they arrived.
#![allow(unsafe_code, reason = "the buffer protocol is one of pointers")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pdbp::{RecvError, Shared};
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{PartCell, PartHandle, Target};
use crate::buffer::{Access, export, slice};
use crate::calls::{self, Owner, Patience};
use crate::error::Failure;

/// Something received, which keeps its bytes until it is released and no views remain.
pub(super) struct Kept<T: Send> {
    /// `None`: released.
    content: Option<Content<T>>,
    views: usize,
}

/// What has been received, and returns its block when it is dropped: not while its object is borrowed, since others may have the GIL meanwhile.
pub(super) struct Content<T: Send> {
    /// `None`: it is being dropped.
    value: Option<T>,
    /// Whether its part is closing. It counts this among those of the part.
    closing: Arc<AtomicBool>,
    owner: Owner,
}

impl<T: Send> Drop for Content<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.owner.has_forked() {
            // The block belongs to the parent.
            std::mem::forget(value);
        } else if self.closing.load(Ordering::Relaxed) {
            // The last message of a node that has no other handle is its end, which waits until its last news has left.
            calls::without_gil(move || drop(value));
        }
    }
}

impl<T: Send> Kept<T> {
    #[inline]
    pub(super) fn new(cell: &PartCell, value: T) -> Self {
        Self::counted(&cell.closing, value)
    }

    /// Wraps something that holds no block.
    pub(super) fn uncounted(value: T) -> Self {
        Self::counted(&Arc::default(), value)
    }

    #[inline]
    fn counted(closing: &Arc<AtomicBool>, value: T) -> Self {
        let closing = Arc::clone(closing);
        Self { content: Some(Content { value: Some(value), closing, owner: Owner::here() }), views: 0 }
    }

    pub(super) fn is_released(&self) -> bool {
        self.content.is_none()
    }

    /// Counts a view of the bytes.
    pub(super) fn add_view(&mut self) {
        self.views += 1;
    }

    pub(super) fn end_view(&mut self) {
        self.views -= 1;
    }

    #[inline]
    pub(super) fn get(&self) -> Result<&T, Failure> {
        let value = self.content.as_ref().and_then(|content| content.value.as_ref());
        value.ok_or_else(|| Failure::closed("message"))
    }

    /// Takes out what the caller drops.
    pub(super) fn release(&mut self) -> PyResult<Option<Content<T>>> {
        if self.content.is_some() && self.views > 0 {
            return Err(PyBufferError::new_err(format!(
                "the message still has {} (numpy arrays, memoryviews); delete them first, and copy what you need",
                if self.views == 1 { "a view".to_owned() } else { format!("{} views", self.views) }
            )));
        }
        Ok(self.content.take())
    }

    /// The end of a `with`: an exception in flight is not replaced by one about views, which its traceback may hold. In that case the block goes
    /// back when the object and all views are gone.
    pub(super) fn exit(&mut self, raised: bool) -> PyResult<Option<Content<T>>> {
        if raised && self.views > 0 {
            return Ok(None);
        }
        self.release()
    }
}

/// A message. It is a read-only buffer, in place: `memoryview(m)`, `np.frombuffer(m, "f4")`, `bytes(m)`. Its block goes back to the sender when
/// it is released, or when it and all views of it are gone.
#[pyclass(module = "pypdbp")]
pub(crate) struct Message(Kept<pdbp::Message<Shared>>);

impl Message {
    #[inline]
    pub(crate) fn new(cell: &PartCell, message: pdbp::Message<Shared>) -> Self {
        Self(Kept::new(cell, message))
    }
}

#[pymethods]
impl Message {
    /// The part that sent it.
    #[getter]
    fn source(&self) -> PyResult<Target> {
        Ok(Target(self.0.get()?.source()))
    }

    /// The number of a command; 0 for other messages.
    #[getter]
    fn command(&self) -> PyResult<u16> {
        Ok(self.0.get()?.command())
    }

    /// Whether it was sent as a command, ahead of messages.
    #[getter]
    fn is_command(&self) -> PyResult<bool> {
        Ok(self.0.get()?.is_command())
    }

    #[getter]
    fn released(&self) -> bool {
        self.0.is_released()
    }

    /// Returns a copy of the bytes, which holds no block.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.0.get()?))
    }

    /// Returns the block. Raises BufferError while there are views.
    fn release(slf: &Bound<'_, Self>) -> PyResult<()> {
        let content = slf.borrow_mut().0.release()?;
        drop(content);
        Ok(())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.0.get()?.len())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.borrow().0.get()?;
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
        let content = slf.borrow_mut().0.exit(!kind.is_none())?;
        drop(content);
        Ok(())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // One borrow for all of this: each takes two atomic operations. No Python code runs meanwhile.
        let mut message = slf.borrow_mut();
        let bytes: &[u8] = message.0.get()?;
        let bytes = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes of a message stay where they are, and nobody writes them, until it is dropped, which does not happen while there are
        // views.
        unsafe { export(slf.as_any(), view, flags, bytes, Access::ReadOnly) }?;
        message.0.add_view();
        Ok(())
    }

    unsafe fn __releasebuffer__(&mut self, _view: *mut ffi::Py_buffer) {
        self.0.end_view();
    }

    fn __repr__(&self) -> String {
        match self.0.get() {
            Ok(message) => format!("<pypdbp.Message of {} bytes from {}>", message.len(), message.source()),
            Err(_) => "<pypdbp.Message (released)>".to_owned(),
        }
    }
}

/// Messages of one length from one part that arrived together. It is a read-only buffer of all of them, back to back: `np.frombuffer(batch,
/// "f4").reshape(len(batch), -1)`; `batch[i]` is a view of one.
#[pyclass(sequence, module = "pypdbp")]
pub(crate) struct Batch(Kept<pdbp::Batch<Shared>>);

impl Batch {
    pub(crate) fn new(cell: &PartCell, batch: pdbp::Batch<Shared>) -> Self {
        Self(Kept::new(cell, batch))
    }
}

#[pymethods]
impl Batch {
    /// The part that sent them.
    #[getter]
    fn source(&self) -> PyResult<Target> {
        Ok(Target(self.0.get()?.source()))
    }

    /// Bytes of each message.
    #[getter]
    fn message_len(&self) -> PyResult<usize> {
        Ok(self.0.get()?.message_len())
    }

    /// The number that they were sent with as commands; 0 for other messages.
    #[getter]
    fn command(&self) -> PyResult<u16> {
        Ok(self.0.get()?.command())
    }

    #[getter]
    fn is_command(&self) -> PyResult<bool> {
        Ok(self.0.get()?.is_command())
    }

    #[getter]
    fn released(&self) -> bool {
        self.0.is_released()
    }

    /// Returns a copy of all bytes, which holds no block.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.0.get()?.bytes()))
    }

    /// Returns the block. Raises BufferError while there are views.
    fn release(slf: &Bound<'_, Self>) -> PyResult<()> {
        let content = slf.borrow_mut().0.release()?;
        drop(content);
        Ok(())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.0.get()?.len())
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let (count, length) = {
            let batch = slf.borrow();
            let batch = batch.0.get()?;
            (batch.len(), batch.message_len())
        };
        let from_end = || count.checked_sub(index.unsigned_abs());
        let index = if index < 0 { from_end() } else { usize::try_from(index).ok() };
        let Some(index) = index.filter(|index| *index < count) else {
            return Err(PyIndexError::new_err(format!("index out of range: the batch has {count} messages")));
        };
        let all = pyo3::types::PyMemoryView::from(slf.as_any())?;
        all.get_item(slice(slf.py(), index * length, (index + 1) * length)?)
    }

    /// What Python does without this, too; type checkers want to see it.
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: an object that is alive.
        let iterator = unsafe { ffi::PySeqIter_New(slf.as_ptr()) };
        // SAFETY: a new reference, or null with an exception.
        unsafe { Bound::from_owned_ptr_or_err(slf.py(), iterator) }
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.borrow().0.get()?;
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
        let content = slf.borrow_mut().0.exit(!kind.is_none())?;
        drop(content);
        Ok(())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mut batch = slf.borrow_mut();
        let bytes = batch.0.get()?.bytes();
        let bytes = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes of a batch stay where they are, and nobody writes them, until it is dropped, which does not happen while there are
        // views.
        unsafe { export(slf.as_any(), view, flags, bytes, Access::ReadOnly) }?;
        batch.0.add_view();
        Ok(())
    }

    unsafe fn __releasebuffer__(&mut self, _view: *mut ffi::Py_buffer) {
        self.0.end_view();
    }

    fn __repr__(&self) -> String {
        match self.0.get() {
            Ok(batch) => format!(
                "<pypdbp.Batch of {} messages of {} bytes from {}>",
                batch.len(),
                batch.message_len(),
                batch.source()
            ),
            Err(_) => "<pypdbp.Batch (released)>".to_owned(),
        }
    }
}

/// The batches of a part, as they come.
#[pyclass(frozen, module = "pypdbp")]
pub(crate) struct Batches {
    cell: PartHandle,
    patience: Patience,
}

impl Batches {
    pub(crate) fn new(cell: PartHandle, patience: Patience) -> Self {
        Self { cell, patience }
    }
}

#[pymethods]
impl Batches {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let mut batch = self.cell.with(py, |held| Ok(held.part().try_recv_batch()))?;
        if batch.is_none() && self.patience != Patience::None {
            let timeout = self.patience.or(Duration::MAX);
            batch = self.cell.wait(py, |held| match held.part().recv_batch(timeout) {
                Err(RecvError::Timeout(_) | RecvError::NobodyLeft) => Ok(None),
                received => Ok(Some(received?)),
            })?;
        }
        Ok(batch.map(|batch| Batch::new(&self.cell, batch)))
    }
}
