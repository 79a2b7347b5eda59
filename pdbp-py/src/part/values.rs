//! Plain values that calls of a part take and return: targets, the outcome of a wait, returned messages.

use pdbp::Shared;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A destination: a part of any node.
#[pyclass(frozen, eq, ord, hash, module = "pypdbp")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Target(pub(crate) pdbp::Target);

/// As an argument. The error for a name, or a part, says where targets come from.
impl<'a, 'py> FromPyObject<'a, 'py> for Target {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(target) = object.cast::<Self>() {
            return Ok(*target.get());
        }
        let (what, kind) = (object.repr()?, object.get_type().name()?);
        Err(PyTypeError::new_err(format!(
            "{what} must be a pypdbp.Target, not {kind}; part.find(\"worker@node1\", timeout=5) returns one, and part.id is that of a part"
        )))
    }
}

#[pymethods]
impl Target {
    /// Returns the target whose `int(target)` this is, to be sent in messages. If there is no such part, sending to it raises NotFound.
    #[staticmethod]
    fn from_bits(bits: u64) -> PyResult<Self> {
        let target = pdbp::Target::from_bits(bits).map(Self);
        target.ok_or_else(|| {
            PyValueError::new_err(format!("{bits} is not a target; use a number from `int(target)`"))
        })
    }

    /// The index of its node.
    #[getter]
    fn node(&self) -> usize {
        self.0.node().index()
    }

    fn __int__(&self) -> u64 {
        self.0.to_bits()
    }

    /// For `pickle` and `copy`: a target means the same part in every process of its cluster.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (u64,))> {
        Ok((py.get_type::<Self>().getattr("from_bits")?, (self.0.to_bits(),)))
    }

    fn __repr__(&self) -> String {
        format!("<pypdbp.Target {}>", self.0)
    }
}

/// The outcome of Part.wait.
#[pyclass(frozen, get_all, module = "pypdbp")]
pub(crate) struct Ready {
    /// A receive returns a message.
    recv: bool,
    /// A stream can be accepted, or streams() has a piece.
    stream: bool,
    /// A short message can be sent without waiting.
    send: bool,
}

impl From<pdbp::Ready> for Ready {
    fn from(found: pdbp::Ready) -> Self {
        Self { recv: found.recv, stream: found.stream, send: found.send }
    }
}

/// A message that was not delivered, or a segment of a long one or of a stream.
#[pyclass(frozen, get_all, module = "pypdbp")]
pub(crate) struct Returned {
    /// A copy of its bytes.
    data: Py<PyBytes>,
    /// The parts that it was sent to.
    targets: Vec<Target>,
    /// The number of a command; 0 for other messages.
    command: u16,
    is_command: bool,
    /// Whether it was written to a stream.
    of_stream: bool,
    /// The number of a segment, from 0; None for a message that is whole.
    segment: Option<u32>,
}

impl Returned {
    pub(crate) fn new(py: Python<'_>, returned: &pdbp::Returned<Shared>) -> Self {
        Self {
            data: PyBytes::new(py, returned).unbind(),
            targets: returned.targets().iter().copied().map(Target).collect(),
            command: returned.command(),
            is_command: returned.is_command(),
            of_stream: returned.stream().is_some(),
            segment: returned.segment(),
        }
    }
}

#[pymethods]
impl Returned {
    fn __repr__(&self, py: Python<'_>) -> String {
        let targets: Vec<_> = self.targets.iter().map(|target| target.0.to_string()).collect();
        format!(
            "<pypdbp.Returned of {} bytes to {}>",
            self.data.bind(py).as_bytes().len(),
            targets.join(", ")
        )
    }
}

#[pymethods]
impl Ready {
    fn __bool__(&self) -> bool {
        self.recv || self.stream || self.send
    }

    fn __repr__(&self) -> String {
        let word = |is: bool| if is { "True" } else { "False" };
        format!("Ready(recv={}, stream={}, send={})", word(self.recv), word(self.stream), word(self.send))
    }
}
