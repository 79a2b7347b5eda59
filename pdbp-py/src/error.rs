//! Errors of the runtime as exceptions of `pypdbp._errors`.

use std::any::Any;
use std::io;

use pdbp::{
    LookupError, NoSuchNode, NodeId, PipeError, RecvError, RegisterError, SendError, StartError, WaitError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyType};

/// An exception not yet created, so that a thread without the GIL can have it.
#[derive(Debug)]
pub(crate) struct Failure {
    class: &'static str,
    text: String,
    /// Indices of the nodes it concerns.
    nodes: Vec<usize>,
}

impl Failure {
    pub(crate) fn new(class: &'static str, text: impl ToString) -> Self {
        Self { class, text: text.to_string(), nodes: Vec::new() }
    }

    fn about(self, nodes: &[NodeId]) -> Self {
        Self { nodes: nodes.iter().map(|node| node.index()).collect(), ..self }
    }

    pub(crate) fn busy(what: &str) -> Self {
        let text = format!("{what}; use a part and its streams from one thread at a time");
        Self::new("Busy", text)
    }

    pub(crate) fn closed(what: &str) -> Self {
        Self::new("Closed", format!("this {what} is closed"))
    }

    pub(crate) fn forked() -> Self {
        Self::new(
            "Forked",
            "this belongs to the parent process; start a cluster here, or use the start method \"spawn\"",
        )
    }

    pub(crate) fn panicked(text: &str) -> Self {
        Self::new("Panic", format!("the runtime panicked: {text}; close this, and report the bug"))
    }

    pub(crate) fn interrupted() -> Self {
        SendError::Interrupted.into()
    }

    pub(crate) fn no_message() -> Self {
        Self::new("Timeout", "no message has arrived yet, and this call does not wait")
    }

    pub(crate) fn loan_viewed() -> Self {
        Self::new(
            "Busy",
            "something still refers to the bytes of a loan of this part (a numpy array, a memoryview); delete it, then close the part",
        )
    }
}

/// What the errors of the runtime recommend by its names in Rust, and what there is in Python instead.
const NAMES: &[(&str, &str)] = &[
    ("send or drop it first", "send or cancel it first"),
    ("`send_or`, `write_or`", "`wait`, `write_or`"),
    ("`Event::ClusterUp`", "the event \"cluster_up\""),
    (" (`Cuda::of` opens that of a context)", ""),
];

/// The message of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
        let names = NAMES.iter();
        let text =
            names.fold(
                failure.text,
                |text, (rust, python)| if text.contains(rust) { text.replace(rust, python) } else { text },
            );
        let make = |py: Python<'_>| -> PyResult<PyErr> {
            let errors = ERRORS.get_or_try_init(py, || py.import("pypdbp._errors").map(Bound::unbind))?;
            let class = errors.bind(py).getattr(failure.class)?.cast_into::<PyType>()?;
            if failure.nodes.is_empty() {
                // Created when the caller has nothing borrowed any more: the class is Python code, during which other threads run.
                return Ok(Self::from_type(class, text));
            }
            let exception = class.call1((text,))?;
            exception.setattr("nodes", failure.nodes)?;
            Ok(PyErr::from_value(exception))
        };
        Python::attach(|py| make(py).unwrap_or_else(|e| e))
    }
}

impl From<pdbp::Timeout> for Failure {
    fn from(e: pdbp::Timeout) -> Self {
        Self::new("Timeout", &e).about(&e.peers)
    }
}

impl From<SendError> for Failure {
    fn from(e: SendError) -> Self {
        let class = match &e {
            SendError::WouldBlock => "NoRoom",
            SendError::Timeout(timeout) => return timeout.clone().into(),
            SendError::Interrupted => "Interrupted",
            SendError::PeerFailed(node) => return Self::new("PeerFailed", &e).about(&[*node]),
            SendError::RelayFailed { relay, dest } | SendError::StreamStopped { relay, dest, .. } => {
                return Self::new("PeerFailed", &e).about(&[*relay, *dest]);
            }
            SendError::ClusterGone { .. } => "PeerFailed",
            SendError::NoSuchPart(_) | SendError::NoSuchNode(_) => "NotFound",
            SendError::TooLong { .. }
            | SendError::NeedsWaiting { .. }
            | SendError::LongerThanBlock { .. }
            | SendError::LoanTooLong { .. }
            | SendError::TooManyDestinations { .. } => "TooLong",
            SendError::Loaned(_) => "Busy",
            SendError::StreamFinished(_) => "Closed",
            _ => "PdbpError",
        };
        Self::new(class, e)
    }
}

impl From<RecvError> for Failure {
    fn from(e: RecvError) -> Self {
        let class = match &e {
            RecvError::Timeout(timeout) => return timeout.clone().into(),
            RecvError::Interrupted => "Interrupted",
            RecvError::NobodyLeft => "PeerFailed",
            RecvError::PeerFailed(node) => return Self::new("PeerFailed", &e).about(&[*node]),
            RecvError::SuperstepTaken => "Busy",
            RecvError::StreamBroken { source, .. } => {
                return Self::new("StreamBroken", &e).about(&[source.node()]);
            }
            _ => "PdbpError",
        };
        Self::new(class, e)
    }
}

impl From<WaitError> for Failure {
    fn from(e: WaitError) -> Self {
        match e {
            WaitError::Timeout(timeout) => timeout.into(),
            WaitError::PeerFailed(node) => Self::new("PeerFailed", &e).about(&[node]),
            WaitError::Interrupted => Self::new("Interrupted", e),
            other => Self::new("PdbpError", other),
        }
    }
}

impl From<RegisterError> for Failure {
    fn from(e: RegisterError) -> Self {
        match e {
            RegisterError::Timeout(timeout) => timeout.into(),
            RegisterError::Interrupted => Self::interrupted(),
            other => Self::new("RegisterError", other),
        }
    }
}

impl From<LookupError> for Failure {
    fn from(e: LookupError) -> Self {
        match e {
            LookupError::Interrupted => Self::interrupted(),
            other => Self::new("NotFound", other),
        }
    }
}

impl From<StartError> for Failure {
    fn from(e: StartError) -> Self {
        match e {
            StartError::Interrupted => Self::interrupted(),
            StartError::Timeout(timeout) => timeout.into(),
            StartError::Config(e) => Self::new("ConfigError", e),
            other => Self::new("StartError", other),
        }
    }
}

impl From<pdbp::ConfigError> for Failure {
    fn from(e: pdbp::ConfigError) -> Self {
        Self::new("ConfigError", e)
    }
}

impl From<NoSuchNode> for Failure {
    fn from(e: NoSuchNode) -> Self {
        Self::new("NotFound", e)
    }
}

impl From<PipeError> for Failure {
    fn from(e: PipeError) -> Self {
        match e {
            PipeError::NoneIdle(..) => Self::new("NoRoom", e),
            other => Self::new("PdbpError", other),
        }
    }
}

/// For streams, whose calls as `Read` and `Write` wrap the errors above.
impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        match e.get_ref() {
            Some(inner) => match (inner.downcast_ref::<SendError>(), inner.downcast_ref::<RecvError>()) {
                (Some(send), _) => send.clone().into(),
                (_, Some(recv)) => recv.clone().into(),
                _ => Self::new("PdbpError", e),
            },
            None => Self::new("PdbpError", e),
        }
    }
}
