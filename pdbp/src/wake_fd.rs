//! A waker for loops that wait on file descriptors.

use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, RawWakerVTable, Wake, Waker};

/// A file descriptor that becomes readable when something that a part was polled for has arrived: for event loops over `poll`,
/// `epoll` or `kqueue`. It can serve any number of parts and streams. It is the reading end of a pipe that holds at most one byte.
/// Nobody else may read from it. Dropping this closes it, even while a part or a node keeps a waker of it.
///
/// Clear it, poll with its [`context`](Self::context) until everything is pending, and then wait for it: whatever arrives after a
/// call has returned pending makes it readable, even before the wait has begun. In the first 50 to 400 µs of a part's wait it may also be
/// readable because it is time to poll again: waking a thread takes longer than most answers. See
/// [`Part::poll_recv`](crate::Part::poll_recv) for the calls, and for which thread must poll the node.
///
/// ```
/// use pdbp::{Cluster, PartKind, WakeFd};
/// use std::task::Poll;
///
/// let cluster = Cluster::local(2)?;
/// let [part, peer] = [0, 1].map(|n| cluster.node(n).unwrap().register("part", PartKind::Cpu).unwrap());
/// let waker = WakeFd::new()?;
/// let mut messages = 0;
/// while messages < 2 {
///     waker.clear();
///     while let Poll::Ready(message) = part.poll_recv(&mut waker.context()) {
///         assert_eq!(*message?, *b"something");
///         messages += 1;
///     }
///     peer.send(part.id(), b"something")?;
///     peer.flush();
///     # #[cfg(target_os = "linux")] {
///     use rustix::event::{PollFd, PollFlags, poll};
///     poll(&mut [PollFd::new(&waker, PollFlags::IN)], None)?; // and for other descriptors
///     # }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WakeFd {
    reader: PipeReader,
    bell: Arc<PipeBell>,
    waker: Waker,
}

/// Distinguishes wakers of descriptors from others.
static VTABLE: OnceLock<&'static RawWakerVTable> = OnceLock::new();

/// Whether a waker is that of a [`WakeFd`], and not, say, one that an executor has wrapped around it.
pub(crate) fn is_descriptor(waker: &Waker) -> bool {
    VTABLE.get().is_some_and(|vtable| *vtable == waker.vtable())
}

struct PipeBell {
    /// `None`: the descriptor is closed. Wakers may outlive it, and a write to a pipe without a reader ends a program that does not ignore `SIGPIPE`.
    writer: Mutex<Option<PipeWriter>>,
    /// One of the three below.
    state: AtomicU8,
}

/// The pipe is empty.
const QUIET: u8 = 0;
/// A byte is in the pipe, or about to be.
const RUNG: u8 = 1;
/// A thread takes the byte out.
const CLEARING: u8 = 2;

impl WakeFd {
    /// A descriptor that is not readable yet.
    ///
    /// # Errors
    /// The process or the system has reached its limit of file descriptors.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let bell = Arc::new(PipeBell { writer: Mutex::new(Some(writer)), state: AtomicU8::new(QUIET) });
        let waker = Waker::from(Arc::clone(&bell));
        VTABLE.get_or_init(|| waker.vtable());
        Ok(Self { reader, bell, waker })
    }

    /// The context for polls that are to make the descriptor readable.
    pub fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }

    /// Whether anything has arrived since it was cleared: the descriptor is readable, or about to be.
    pub fn is_rung(&self) -> bool {
        self.bell.state.load(Ordering::Acquire) == RUNG
    }

    /// Makes the descriptor unreadable; call this before polling. Returns whether anything had arrived.
    pub fn clear(&self) -> bool {
        let state = &self.bell.state;
        // One of several threads takes the byte. Quiet only after that, so there is never a second one.
        let rung = state.compare_exchange(RUNG, CLEARING, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if rung {
            let mut byte = [0];
            // The waker that set `RUNG` writes the byte at once. With both ends of the pipe here, the only possible error is an
            // interrupt, after which this reads again.
            while let Err(error) = (&self.reader).read(&mut byte)
                && error.kind() == io::ErrorKind::Interrupted
            {}
            state.store(QUIET, Ordering::Release);
        }
        rung
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

impl fmt::Debug for WakeFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeFd").field("fd", &self.as_fd()).field("is_rung", &self.is_rung()).finish()
    }
}

impl Drop for WakeFd {
    fn drop(&mut self) {
        // The reading end is closed after this one.
        drop(self.bell.writer().take());
    }
}

impl PipeBell {
    fn writer(&self) -> MutexGuard<'_, Option<PipeWriter>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for PipeBell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Acquire: the previous byte has been read. Where that is under way, whoever clears polls afterwards.
        if self.state.compare_exchange(QUIET, RUNG, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let writer = self.writer();
            let Some(mut writer) = writer.as_ref() else { return };
            // Retried after an interrupt, as in `clear`. An empty pipe has room.
            while let Err(error) = writer.write(&[1])
                && error.kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use super::*;

    #[test]
    fn wakers_of_descriptors_are_recognised() {
        let [first, second] = [0, 1].map(|_| WakeFd::new().unwrap());
        assert!([&first, &second].iter().all(|waker| is_descriptor(waker.context().waker())));
        assert!(!is_descriptor(Waker::noop()));
    }

    #[test]
    fn a_waker_that_outlives_its_descriptor_keeps_no_end_of_the_pipe_open() {
        let fd = WakeFd::new().unwrap();
        let mut reader = std::fs::File::from(fd.as_fd().try_clone_to_owned().unwrap());
        let waker = fd.context().waker().clone();
        drop(fd);
        waker.wake();
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "a byte, though nobody is to write one");
    }

    #[test]
    fn threads_that_clear_at_the_same_time_take_one_byte() {
        const RINGS: usize = 10_000;
        let waker = WakeFd::new().unwrap();
        let (taken, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        taken.fetch_add(waker.clear().into(), Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..RINGS {
                waker.context().waker().wake_by_ref();
            }
            while waker.is_rung() {
                std::hint::spin_loop();
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!((1..=RINGS).contains(&taken.into_inner()));
        assert!(!waker.clear());
    }
}
