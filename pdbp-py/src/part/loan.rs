//! Room in an outgoing block, filled in place.
#![allow(unsafe_code, reason = "the buffer protocol is one of pointers")]

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::PartHandle;
use super::held::Note;
use crate::buffer::{Access, export};
use crate::error::Failure;

/// The bytes of a loan.
#[derive(Clone, Copy)]
struct Room {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: an address, whose bytes are used only by holders of a view, by the Python rules for views.
unsafe impl Send for Room {}
// SAFETY: as for `Send`.
unsafe impl Sync for Room {}

/// Room for a message, to be filled in place and sent at the end of its `with`. It is a writable buffer, whose initial contents are those that the
/// block held before. Until it is sent or given up the part sends nothing else to that node. While something refers to its bytes it cannot be sent,
/// since the reader would see later writes through that view: then BufferError is raised and the message is given up.
#[pyclass(module = "pypdbp")]
pub(crate) struct Loan {
    cell: PartHandle,
    room: Room,
    /// It has been neither sent nor given up.
    is_open: bool,
    views: usize,
}

impl Loan {
    pub(crate) fn take(cell: &PartHandle, py: Python<'_>, to: pdbp::Target, size: usize) -> PyResult<Self> {
        // Made within the call: if a signal handler raises as that ends, this is dropped, and gives the room back.
        cell.wait(py, |held| {
            let room = held.lend(to, size)?;
            let room = Room { start: NonNull::from(&mut *room).cast(), length: room.len() };
            Ok(Self { cell: cell.clone(), room, is_open: true, views: 0 })
        })
    }

    /// Gives up the message. The room stays as long as there are views.
    fn give_up(&mut self) {
        self.is_open = false;
        if self.views == 0 {
            self.cell.leave_note(Note::Loan);
        }
    }
}

#[pymethods]
impl Loan {
    /// Sends the message, as the end of `with` does. Raises Busy while another thread is in a call of the part; it can then be sent later.
    fn send(&mut self, py: Python<'_>) -> PyResult<()> {
        if !self.is_open {
            return Err(Failure::closed("loan").into());
        }
        if self.views > 0 {
            self.give_up();
            return Err(PyBufferError::new_err(
                "something still refers to the bytes of the loan (a numpy array, a memoryview), so it was given up instead of sent; delete \
                 it before the end of `with`",
            ));
        }
        Ok(self.cell.with(py, |held| {
            // Not before: where another thread has the part, the loan is as it was.
            self.is_open = false;
            held.loan.take().ok_or_else(|| Failure::closed("loan"))?.send();
            Ok(())
        })?)
    }

    /// Gives up the message.
    fn cancel(&mut self) {
        if self.is_open {
            self.give_up();
        }
    }

    fn __len__(&self) -> usize {
        self.room.length
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if !slf.borrow().is_open {
            return Err(Failure::closed("loan").into());
        }
        Ok(slf)
    }

    #[pyo3(signature = (kind, value, traceback, /))]
    fn __exit__(
        &mut self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (value, traceback);
        if kind.is_none() && self.is_open {
            return self.send(py);
        }
        self.cancel();
        Ok(())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (room, cell) = {
            // Another thread may be giving it up, without the GIL.
            let loan = slf.try_borrow()?;
            if !loan.is_open || loan.cell.is_closing() {
                return Err(Failure::closed("loan").into());
            }
            (loan.room, loan.cell.clone())
        };
        // SAFETY: the part's loan has exclusive use of these bytes until it is dropped, which does not happen while there are views.
        unsafe { export(slf.as_any(), view, flags, (room.start.as_ptr(), room.length), Access::ReadWrite) }?;
        slf.borrow_mut().views += 1;
        cell.loan_views.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn __releasebuffer__(&mut self, py: Python<'_>, _view: *mut ffi::Py_buffer) {
        self.views -= 1;
        // The GIL orders it before the check by whoever wants to close the part.
        self.cell.loan_views.fetch_sub(1, Ordering::Relaxed);
        if self.views > 0 {
            return;
        }
        if !self.is_open {
            self.cell.leave_note(Note::Loan);
        } else if self.cell.is_closing() {
            self.cell.close(py);
        }
    }

    fn __repr__(&self) -> String {
        let open = if self.is_open { "" } else { " (over)" };
        format!("<pypdbp.Loan of {} bytes{open}>", self.room.length)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.cancel();
    }
}
