//! Waiting calls: without the GIL, until Ctrl-C, `Node.interrupt` or the end of the interpreter; and their fate in a forked child.
//!
//! * No thread waits for another node, or drops anything that may (a part, a stream), while it holds the GIL.
//! * On the main thread signals are checked while a call waits, by the hook of the runtime ([`pdbp::interruptible`]): a handler that raises ends
//!   the call with its exception. No handler is installed here.
//! * A forked process has no threads of the runtime. What it has inherited is never touched, not even to be freed, since that would tell the peers,
//!   through shared memory, that the parent has left.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::Failure;

/// How many forks separate this process from the original. Written by the forking thread, before any other thread exists.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Waiting calls, on all threads. Nothing else depends on it.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// How long the end of the interpreter, or of a cluster, waits for calls to return, which they do as soon as they notice.
const PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    /// Waiting calls on this thread: more than one if a signal handler makes one.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Whether this is the main thread, as determined after this many forks.
    static MAIN: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// The process that something belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether that was a parent of this process.
    #[inline]
    pub(crate) fn has_forked(self) -> bool {
        self != Self::here()
    }
}

/// Called in a child after a fork.
#[pyfunction]
pub(crate) fn _forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    WAITING.store(0, Ordering::Relaxed);
    DEPTH.set(0);
}

/// Counts a call that waits for as long as it lives.
struct Waiting;

impl Waiting {
    fn begin() -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        let _ = WAITING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// Makes a call that may wait, without the GIL. On the main thread Python's signal handlers run meanwhile; if one raises, the call ends with its
/// exception.
pub(crate) fn wait<R: Send>(py: Python<'_>, call: impl FnOnce() -> Result<R, Failure> + Send) -> PyResult<R> {
    let is_main = is_main_thread(py);
    let waiting = Waiting::begin();
    let (result, raised) = py.detach(move || {
        if !is_main {
            return (call(), None);
        }
        let raised = Rc::new(RefCell::new(None));
        let to_raise = Rc::clone(&raised);
        let check = move || match Python::attach(|py| py.check_signals()) {
            Ok(()) => false,
            Err(e) => {
                to_raise.replace(Some(e));
                true
            }
        };
        let result = pdbp::interruptible(check, call);
        (result, raised.take())
    });
    // With the GIL again: the end of the interpreter waits until no thread will ask for it.
    drop(waiting);
    match (result, raised) {
        (Err(failure), raised) => Err(raised.unwrap_or_else(|| failure.into())),
        (Ok(done), None) => Ok(done),
        (Ok(done), Some(raised)) => {
            // A call that no interrupt ends, or the last step of one of several; Python has no call that does both.
            without_gil(move || drop(done));
            Err(raised)
        }
    }
}

/// Runs something that may take a while and that nothing interrupts, such as dropping a part, without the GIL if this thread has it.
pub(crate) fn without_gil(f: impl FnOnce() + Send) {
    let mut f = Some(f);
    let done = Python::try_attach(|py| {
        if let Some(f) = f.take() {
            py.detach(f);
        }
    });
    // At the end of the interpreter nobody else wants the GIL.
    if let (None, Some(f)) = (done, f) {
        f();
    }
}

/// Waits until no other thread waits in the runtime, for a limited time; calls `again` now and then.
pub(crate) fn await_others(py: Python<'_>, mut again: impl FnMut() -> bool) {
    let began = Instant::now();
    let here = DEPTH.get();
    while !again() && here == 0 && began.elapsed() < PATIENCE {
        py.detach(|| std::thread::sleep(Duration::from_millis(1)));
    }
}

/// Whether a call is waiting, on any thread.
pub(crate) fn somebody_waits() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

fn is_main_thread(py: Python<'_>) -> bool {
    let forks = FORKS.load(Ordering::Relaxed);
    if let Some((then, is_main)) = MAIN.get()
        && then == forks
    {
        return is_main;
    }
    let ask = || -> PyResult<bool> {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        threading.call_method0("get_ident")?.eq(main)
    };
    // Where this is unknown, Ctrl-C takes effect only after the call.
    let is_main = ask().unwrap_or(false);
    MAIN.set(Some((forks, is_main)));
    is_main
}

/// How long a call may wait, from the argument `timeout` in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Patience {
    /// `None`: for the call's default time.
    Default,
    /// 0.
    None,
    For(Duration),
}

impl Patience {
    /// # Errors
    /// A negative number, or NaN.
    #[inline]
    pub(crate) fn of(timeout: Option<f64>) -> PyResult<Self> {
        match timeout {
            None => Ok(Self::Default),
            Some(seconds) => Self::of_seconds(seconds),
        }
    }

    fn of_seconds(seconds: f64) -> PyResult<Self> {
        match seconds {
            0.0 => Ok(Self::None),
            s if s > 0.0 => Ok(Self::For(Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX))),
            _ => Err(PyValueError::new_err(
                "timeout must be a number of seconds, 0 or more, or None for the default of the call",
            )),
        }
    }

    /// The time; `default` is that of the call.
    pub(crate) fn or(self, default: Duration) -> Duration {
        match self {
            Self::Default => default,
            Self::None => Duration::ZERO,
            Self::For(time) => time,
        }
    }
}
