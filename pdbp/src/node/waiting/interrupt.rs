//! Interrupts waiting calls: from another thread or a signal handler, through a counter of the node, or through a check that the
//! thread itself makes.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Waiter;
use crate::error::Timeout;
use crate::node::{Node, NodeEngine, Shared};

/// Why a wait has ended.
#[derive(Debug)]
pub(crate) enum WaitFailure {
    Timeout(Timeout),
    Interrupted,
}

impl WaitFailure {
    /// The failure of a call of several waits, which has waited this long in all if its time is up.
    pub(crate) fn after(self, waited: Duration) -> Self {
        match self {
            Self::Timeout(timeout) => Self::Timeout(Timeout { waited, ..timeout }),
            Self::Interrupted => Self::Interrupted,
        }
    }
}

/// How many interrupts of its node a part, or a handle of the node, has seen; `None` if interrupts are not meant for it. It guards
/// nothing else, so relaxed ordering is enough.
pub(crate) struct SeenInterrupts(Option<AtomicU64>);

impl SeenInterrupts {
    /// Counts all interrupts so far as seen.
    pub(crate) fn all(shared: &Shared) -> Self {
        Self(Some(AtomicU64::new(shared.interrupts.load(Ordering::Relaxed))))
    }

    /// For a clone of the handle.
    pub(crate) fn renewed(&self, shared: &Shared) -> Self {
        if self.0.is_some() { Self::all(shared) } else { Self(None) }
    }

    /// Whether an unseen interrupt exists; marks one as seen.
    fn take_one(&self, shared: &Shared) -> bool {
        let Some(own) = &self.0 else { return false };
        let (count, seen) = (shared.interrupts.load(Ordering::Relaxed), own.load(Ordering::Relaxed));
        if count == seen {
            return false;
        }
        own.compare_exchange(seen, seen.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Node {
    /// Ends one waiting call of each part of this node, and of each clone of this handle, with the error `Interrupted`; if none is waiting,
    /// the next call that would wait. Does not end tasks (`recv_async` and the like): drop them instead. For shutting down threads, and for
    /// signal handlers: it only increments a counter.
    ///
    /// ```
    /// use pdbp::{Cluster, PartKind, RecvError};
    ///
    /// let cluster = Cluster::local(1)?;
    /// let node = cluster.node(0).unwrap();
    /// let part = node.register_shared("server", PartKind::Cpu).unwrap();
    /// let server = std::thread::spawn(move || {
    ///     let end = loop {
    ///         match part.recv() {
    ///             Ok(message) => part.send(message.source(), &message).unwrap(),
    ///             Err(error) => break error,
    ///         }
    ///     };
    ///     assert_eq!(end, RecvError::Interrupted);
    /// });
    /// node.interrupt();
    /// server.join().unwrap();
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    pub fn interrupt(&self) {
        self.shared.interrupts.fetch_add(1, Ordering::Relaxed);
    }

    /// A handle for the runtime's own threads: [`interrupt`](Self::interrupt) does not end waits of it, of its clones and of parts
    /// registered with it.
    #[cfg(any(feature = "net", feature = "desk"))]
    pub(crate) fn uninterrupted(&self) -> Self {
        Self { seen: SeenInterrupts(None), ..self.clone() }
    }

    /// As [`wait_for`](Self::wait_for), for a wait that no interrupt is meant for. Returns `None` if the time is up.
    pub(crate) fn wait_uninterrupted<R>(
        &self,
        timeout: Duration,
        mut done: impl FnMut(&mut NodeEngine) -> Option<R>,
    ) -> Option<R> {
        let began = Instant::now();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            match self.wait_for(left, "", &mut done, |_| Vec::new()) {
                Ok(result) => return Some(result),
                Err(WaitFailure::Interrupted) => {}
                Err(WaitFailure::Timeout(_)) => return None,
            }
        }
    }
}

/// Minimum time between two checks of a thread.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// What a thread checks while it waits.
struct Check {
    should_stop: Box<dyn FnMut() -> bool>,
    last_check: Instant,
}

thread_local! {
    static CHECK: RefCell<Option<Check>> = const { RefCell::new(None) };
}

/// Calls `f`. While a call of this crate waits inside `f`, on this thread, `check` is called from time to time: at most every 50
/// ms, and never on a message's hot path. When `check` returns `true`, the waiting call ends with the error `Interrupted`. For
/// language runtimes whose own signal handler must run on Ctrl-C. `check` may use the cluster, but waiting calls inside it are not
/// checked.
///
/// ```
/// use pdbp::{Cluster, PartKind, RecvError};
/// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
///
/// let cluster = Cluster::local(1)?;
/// let part = cluster.node(0).unwrap().register("part", PartKind::Cpu).unwrap();
/// let stop = Arc::new(AtomicBool::new(true)); // by a signal handler, say
/// let check = Arc::clone(&stop);
/// let nothing = pdbp::interruptible(move || check.load(Ordering::Relaxed), || part.recv());
/// assert!(matches!(nothing, Err(RecvError::Interrupted)));
/// # Ok::<(), pdbp::StartError>(())
/// ```
pub fn interruptible<R>(check: impl FnMut() -> bool + 'static, f: impl FnOnce() -> R) -> R {
    /// Restores the previous check, also after a panic.
    struct Before(Option<Check>);
    impl Drop for Before {
        fn drop(&mut self) {
            let ours = CHECK.replace(self.0.take());
            // Dropped after the borrow has ended: the check may have a destructor that waits.
            drop(ours);
        }
    }
    let now = Instant::now();
    let last_check = now.checked_sub(CHECK_EVERY).unwrap_or(now);
    let _before = Before(CHECK.replace(Some(Check { should_stop: Box::new(check), last_check })));
    f()
}

/// Makes a call that waits without checking for interrupts. If this thread has a check, the call runs on its own thread. Returns
/// `None` if the check has ended the wait; the call then runs to its end, and its result is dropped.
///
/// # Errors
/// The thread cannot be started.
#[cfg(feature = "net")]
pub(crate) fn with_interrupts<R: Send + 'static>(
    call: impl FnOnce() -> R + Send + 'static,
) -> std::io::Result<Option<R>> {
    if CHECK.with_borrow(Option::is_none) {
        return Ok(Some(call()));
    }
    let (done, result) = std::sync::mpsc::channel();
    // By the time it sends, nobody may be waiting for the result.
    let thread =
        std::thread::Builder::new().name("pdbp-start".to_owned()).spawn(move || drop(done.send(call())));
    let thread = thread?;
    loop {
        match result.recv_timeout(CHECK_EVERY) {
            Ok(result) => return Ok(Some(result)),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
                return Ok(None);
            }
        }
        if should_stop(Instant::now()) {
            return Ok(None);
        }
    }
}

/// Whether this thread's check asks to stop. No lock or borrow is held while it runs.
fn should_stop(now: Instant) -> bool {
    let due = CHECK.with_borrow(|check| {
        check.as_ref().is_some_and(|check| now.duration_since(check.last_check) >= CHECK_EVERY)
    });
    if !due {
        return false;
    }
    let Some(mut check) = CHECK.take() else { return false };
    let over = (check.should_stop)();
    check.last_check = Instant::now();
    CHECK.set(Some(check));
    over
}

impl Waiter {
    /// Checks whether the wait was interrupted.
    pub(crate) fn check_node_interrupts(
        &self,
        shared: &Shared,
        seen: &SeenInterrupts,
    ) -> Result<(), WaitFailure> {
        if seen.take_one(shared) { Err(WaitFailure::Interrupted) } else { Ok(()) }
    }

    /// As [`check_node_interrupts`](Self::check_node_interrupts), and calls the thread's own check. Used occasionally, after a pause
    /// that took some time.
    pub(crate) fn check_interrupts(
        &mut self,
        shared: &Shared,
        seen: &SeenInterrupts,
    ) -> Result<(), WaitFailure> {
        self.check_node_interrupts(shared, seen)?;
        if should_stop(self.now()) { Err(WaitFailure::Interrupted) } else { Ok(()) }
    }
}
