//! A waker for loops that wait on file descriptors.

use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

/// A file descriptor that becomes readable when something that a part was polled for has arrived: for event loops over `poll`,
/// `epoll` or `kqueue`. It can serve any number of parts and streams. It is the reading end of a pipe that holds at most one byte.
/// Nobody else may read from it.
///
/// Clear it, poll with its [`context`](Self::context) until everything is pending, and then wait for it: whatever arrives after a
/// call has returned pending makes it readable, even before the wait has begun. See [`Part::poll_recv`](crate::Part::poll_recv) for
/// the calls, and for which thread must poll the node.
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
    bell: Arc<PipeBell>,
    waker: Waker,
}

struct PipeBell {
    reader: PipeReader,
    writer: PipeWriter,
    /// Whether a byte is in the pipe, or about to be.
    rung: AtomicBool,
}

impl WakeFd {
    /// A descriptor that is not readable yet.
    ///
    /// # Errors
    /// The process or the system has reached its limit of file descriptors.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let bell = Arc::new(PipeBell { reader, writer, rung: AtomicBool::new(false) });
        Ok(Self { waker: Waker::from(Arc::clone(&bell)), bell })
    }

    /// The context for polls that are to make the descriptor readable.
    pub fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }

    /// Whether anything has arrived since it was cleared: the descriptor is readable, or about to be.
    pub fn is_rung(&self) -> bool {
        self.bell.rung.load(Ordering::Acquire)
    }

    /// Makes the descriptor unreadable; call this before polling. Returns whether anything had arrived.
    pub fn clear(&self) -> bool {
        let rung = self.is_rung();
        // Reset only after the byte has been read, so there is never a second one.
        if rung {
            let mut byte = [0];
            // The waker that set `rung` writes the byte at once. With both ends of the pipe here, the only possible error is an
            // interrupt, after which this reads again.
            while let Err(error) = (&self.bell.reader).read(&mut byte)
                && error.kind() == io::ErrorKind::Interrupted
            {}
            self.bell.rung.store(false, Ordering::Release);
        }
        rung
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.reader.as_fd()
    }
}

impl fmt::Debug for WakeFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeFd").field("fd", &self.as_fd()).field("is_rung", &self.is_rung()).finish()
    }
}

impl Wake for PipeBell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Acquire: the previous byte has been read.
        if !self.rung.swap(true, Ordering::AcqRel) {
            // Retried after an interrupt, as in `clear`. An empty pipe has room.
            while let Err(error) = (&self.writer).write(&[1])
                && error.kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}
