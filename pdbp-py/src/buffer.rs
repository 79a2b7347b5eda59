//! Bytes of Python objects, by the buffer protocol: read in place, never by an unrequested copy or pickle.
#![allow(unsafe_code, reason = "the buffer protocol is one of pointers")]

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

use pdbp::collective::Element;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};

/// A view of an object's memory, released when it is dropped. It stays where it is made, since `shape` may point into it.
struct View(ffi::Py_buffer);

impl View {
    /// Fills `slot` with a view of C-contiguous memory.
    fn open<'v>(
        slot: &'v mut MaybeUninit<View>,
        object: &Bound<'_, PyAny>,
        flags: c_int,
    ) -> PyResult<&'v mut View> {
        Self::fill(slot, object, flags).map_err(|cause| refused(object, flags, cause))
    }

    /// As `open`, with the error of whoever has the memory.
    fn fill<'v>(
        slot: &'v mut MaybeUninit<View>,
        object: &Bound<'_, PyAny>,
        flags: c_int,
    ) -> Result<&'v mut View, Option<PyErr>> {
        let view = slot.as_mut_ptr().cast::<ffi::Py_buffer>();
        // SAFETY: `View` is a `Py_buffer`, `view` is room for one, and `object` is alive.
        let failed =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view, flags | ffi::PyBUF_FORMAT) } != 0;
        if failed {
            return Err(PyErr::take(object.py()));
        }
        // SAFETY: it was filled.
        Ok(unsafe { slot.assume_init_mut() })
    }

    /// Whether `open` would succeed.
    fn would_open(object: &Bound<'_, PyAny>, flags: c_int) -> bool {
        Self::fill(&mut MaybeUninit::uninit(), object, flags).map(Opened).is_ok()
    }

    fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    /// Whether the memory holds references to Python objects, which mean nothing elsewhere.
    fn has_objects(&self) -> bool {
        if self.0.format.is_null() {
            return false;
        }
        // SAFETY: the exporter's format is a C string that lives as long as the view.
        let format = unsafe { CStr::from_ptr(self.0.format) };
        // `O` stands for an object, but not in the name of a field: `T{<f:Offset:<i:n:}`. Names of ctypes may contain a colon, too; what then
        // looks like a name contains the byte order of the next field.
        let is_name = |n: usize, piece: &[u8]| n % 2 == 1 && !piece.iter().any(|b| b"<>".contains(b));
        let mut pieces = format.to_bytes().split(|b| *b == b':').enumerate();
        pieces.any(|(n, piece)| piece.contains(&b'O') && !is_name(n, piece))
    }

    /// The type of its elements, if they are numbers that can be combined.
    fn element(&self) -> PyResult<Element> {
        let format = if self.0.format.is_null() {
            c"B"
        } else {
            // SAFETY: as in `has_objects`.
            unsafe { CStr::from_ptr(self.0.format) }
        };
        let text = format.to_bytes();
        let native = if cfg!(target_endian = "little") { b'<' } else { b'>' };
        let kind = match text {
            [order, kind] if [b'@', b'=', native].contains(order) => *kind,
            [kind] => *kind,
            _ => 0,
        };
        let of_size = |elements: [Element; 4]| {
            elements.into_iter().find(|e| Ok(e.size()) == self.0.itemsize.try_into())
        };
        let found = match kind {
            b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => {
                of_size([Element::I8, Element::I16, Element::I32, Element::I64])
            }
            b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => {
                of_size([Element::U8, Element::U16, Element::U32, Element::U64])
            }
            b'f' => Some(Element::F32),
            b'd' => Some(Element::F64),
            _ => None,
        };
        found.ok_or_else(|| {
            PyTypeError::new_err(format!(
                "values of the format '{}' cannot be combined; integers of 8 to 64 bits and floats of 32 and 64 can, in the byte order of this machine",
                format.to_string_lossy()
            ))
        })
    }

    /// Elements of the first dimension.
    fn rows(&self) -> Option<usize> {
        if self.0.ndim < 1 || self.0.shape.is_null() {
            return None;
        }
        // SAFETY: `shape` has `ndim` numbers.
        usize::try_from(unsafe { *self.0.shape }).ok()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: it was filled by `PyObject_GetBuffer`, and is released once, by a thread that holds the GIL, like all that create one.
        unsafe { ffi::PyBuffer_Release(&mut self.0) }
    }
}

/// Drops the view in a slot, in which `View::open` has made one.
struct Opened<'v>(&'v mut View);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // SAFETY: the slot does not drop it, and it is not used afterwards.
        unsafe { std::ptr::drop_in_place(self.0) }
    }
}

/// Calls `f` with the bytes of an object.
///
/// # Errors
/// `TypeError` for an object without bytes, `BufferError` where they are not C-contiguous, or refer to Python objects; and errors of `f`.
#[inline]
pub(crate) fn with_bytes<R>(object: &Bound<'_, PyAny>, f: impl FnOnce(&[u8]) -> PyResult<R>) -> PyResult<R> {
    match object.cast_exact::<PyBytes>() {
        Ok(bytes) => f(bytes.as_bytes()),
        Err(_) => with_rows(object, |bytes, _| f(bytes)),
    }
}

/// The slice from `start` to before `stop`. `PySlice::new` never frees the numbers that it makes for it (pyo3 0.30).
pub(crate) fn slice(py: Python<'_>, start: usize, stop: usize) -> PyResult<Bound<'_, PySlice>> {
    Ok(py.get_type::<PySlice>().call1((start, stop, 1))?.cast_into()?)
}

/// Raises what receiving into this memory would.
pub(crate) fn check_room(room: &Bound<'_, PyAny>) -> PyResult<()> {
    with_room(room, |_| Ok(()))
}

/// Raises what sending these bytes would.
#[pyfunction]
pub(crate) fn _check_bytes(data: &Bound<'_, PyAny>) -> PyResult<()> {
    with_bytes(data, |_| Ok(()))
}

/// As [`with_bytes`]; also how many elements there are in the first dimension, 1 if there is none.
#[inline(never)]
pub(crate) fn with_rows<R>(
    object: &Bound<'_, PyAny>,
    f: impl FnOnce(&[u8], usize) -> PyResult<R>,
) -> PyResult<R> {
    let mut slot = MaybeUninit::uninit();
    let view = Opened(View::open(&mut slot, object, ffi::PyBUF_C_CONTIGUOUS)?);
    if view.0.has_objects() {
        return Err(PyBufferError::new_err(
            "the array holds Python objects; send their bytes, by `pickle.dumps` for instance",
        ));
    }
    let (start, length) = (view.0.0.buf.cast::<u8>(), view.0.len());
    let bytes = if length == 0 || start.is_null() {
        &[]
    } else {
        // SAFETY: the exporter has `len` bytes there as long as the view lives. Code that runs without the GIL may write them meanwhile (numpy
        // on another thread); they are only copied from here, and nothing depends on what they are: such bytes arrive as either.
        unsafe { std::slice::from_raw_parts(start, length) }
    };
    f(bytes, view.0.rows().unwrap_or(1))
}

/// Calls `f` with the memory of an object to be filled.
///
/// # Errors
/// As [`with_bytes`], and `BufferError` for memory that is read-only.
pub(crate) fn with_room<R>(
    object: &Bound<'_, PyAny>,
    f: impl FnOnce(&mut [u8]) -> PyResult<R>,
) -> PyResult<R> {
    let mut slot = MaybeUninit::uninit();
    let view = Opened(View::open(&mut slot, object, ffi::PyBUF_C_CONTIGUOUS | ffi::PyBUF_WRITABLE)?);
    if view.0.has_objects() {
        return Err(PyBufferError::new_err(
            "the array holds Python objects, which received bytes cannot replace",
        ));
    }
    let (start, length) = (view.0.0.buf.cast::<u8>(), view.0.len());
    let room = if length == 0 || start.is_null() {
        &mut []
    } else {
        // SAFETY: the exporter has `len` bytes there, which may be written, as long as the view lives. They are only copied to from here, so a
        // concurrent reader or writer finds one or the other.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    };
    f(room)
}

/// Calls `f` with the memory of an array of numbers to be changed, their type, and their count.
///
/// # Errors
/// As [`with_room`], and `TypeError` for values other than integers of 8 to 64 bits and floats of 32 and 64 in this machine's byte order.
pub(crate) fn with_numbers<R>(
    object: &Bound<'_, PyAny>,
    f: impl FnOnce(&mut [u8], Element, usize) -> PyResult<R>,
) -> PyResult<R> {
    let element = {
        let mut slot = MaybeUninit::uninit();
        let view = Opened(View::open(&mut slot, object, ffi::PyBUF_C_CONTIGUOUS)?);
        view.0.element()?
    };
    with_room(object, |room| {
        let count = room.len() / element.size();
        f(room, element, count)
    })
}

/// Why there is no view, in uniform words, and what to do: exporters raise different errors.
#[cold]
fn refused(object: &Bound<'_, PyAny>, flags: c_int, cause: Option<PyErr>) -> PyErr {
    let py = object.py();
    let is = |e: &PyErr, class: &Bound<'_, PyAny>| e.matches(py, class).unwrap_or(false);
    match cause {
        Some(e) if is(&e, py.get_type::<PyTypeError>().as_any()) => {
            let name = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
            let error = PyTypeError::new_err(format!("a bytes-like object is required, not '{name}'"));
            error.set_cause(py, Some(e));
            error
        }
        Some(e)
            if is(&e, py.get_type::<PyValueError>().as_any())
                || is(&e, py.get_type::<PyBufferError>().as_any()) =>
        {
            let is_for_writing = flags & ffi::PyBUF_WRITABLE != 0;
            let remedy = if is_for_writing && View::would_open(object, flags & !ffi::PyBUF_WRITABLE) {
                "data is received into the memory itself: pass a bytearray, or a copy of the array"
            } else if View::would_open(object, ffi::PyBUF_STRIDES) {
                "data is sent from, and received into, the array itself: make a C-contiguous array, by `numpy.ascontiguousarray` for instance"
            } else {
                "pass a view of it as plain values, of times of numpy by `times.view(\"i8\")`"
            };
            let text = e.value(py).to_string();
            let error = PyBufferError::new_err(format!("{}; {remedy}", text.trim_end_matches('.')));
            error.set_cause(py, Some(e));
            error
        }
        Some(e) => e,
        None => PyBufferError::new_err("the object does not expose its bytes"),
    }
}

/// Fills the view requested of `owner` with bytes that live as long as `owner` has views.
///
/// # Safety
/// `view` is what `__getbuffer__` was called with. The bytes stay where they are until `owner.__releasebuffer__` is called for it; where it
/// is writable, nobody else uses them.
pub(crate) unsafe fn export(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    (start, length): (*const u8, usize),
    access: Access,
) -> PyResult<()> {
    let length = ffi::Py_ssize_t::try_from(length).unwrap_or(0);
    // SAFETY: the caller's promise. `PyBuffer_FillInfo` refuses a writable view of read-only memory, and takes a reference to `owner`.
    let filled = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start.cast_mut().cast(), length, access as c_int, flags)
    };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// What a view of exported bytes is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite = 0,
    ReadOnly = 1,
}
