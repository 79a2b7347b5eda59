//! The reading end of a stream.

use std::fmt;
use std::io;
use std::time::Duration;

use pdbp_core::id::StreamNo;
use pdbp_core::inbox::{Accepted, Segment as Next, StreamKey};

use super::Segment;
#[cfg(feature = "mpi")]
use super::announced;
use crate::error::RecvError;
use crate::node::Waiter;
use crate::part::inbox::{Pointer, Source};
use crate::part::{HoldsPart, Part, Share, Target};

/// The reading end of a stream. If it is dropped before the end, the rest is discarded. Segments that have already arrived go at once,
/// as many as the part can reach with its room for setting aside the messages between them; the node discards later ones as they
/// arrive, whether or not the part receives.
///
/// Unread segments hold their blocks, and with them the credit of the node they came from. So a part that gets several streams from one
/// node, or through one relay, must read them concurrently, along with its messages; [`Streams`](super::Streams) reads them all on one
/// thread.
pub struct StreamReader<P: HoldsPart> {
    pub(in crate::part) part: P,
    pub(in crate::part) key: StreamKey,
    source: Target,
    /// The segment being read, and how much of it has been read.
    pub(super) current: Option<Pointer<P::Share>>,
    pub(super) at: usize,
    pub(super) over: bool,
    /// The stream ended before its last segment.
    broken: bool,
    #[cfg(feature = "mpi")]
    pub(super) takes_announcements: bool,
    /// Number and length of an announced transfer that has not been taken.
    #[cfg(feature = "mpi")]
    pub(super) announced: Option<[u64; 2]>,
}

impl<P: HoldsPart> StreamReader<P> {
    /// As [`Part::accept_stream`], for a reader that holds its part by `Rc` or `&mut`.
    ///
    /// # Errors
    /// As there.
    pub fn accept(holder: P, timeout: Duration) -> Result<Self, RecvError> {
        let part = holder.part();
        let stream = match part.next_stream()? {
            Some(stream) => stream,
            None => part.receive_by(timeout, "opened a stream to this part", Part::next_stream)?,
        };
        Ok(Self::of(holder, stream))
    }

    /// As [`Part::try_accept_stream`], for a reader that holds its part.
    ///
    /// # Errors
    /// As there.
    pub fn try_accept(holder: P) -> Result<Option<Self>, RecvError> {
        let stream = holder.part().next_stream()?;
        Ok(stream.map(|stream| Self::of(holder, stream)))
    }

    pub(in crate::part) fn of(holder: P, stream: Accepted) -> Self {
        Self {
            key: stream.key,
            source: holder.part().shared().resolve(stream.source.address()),
            part: holder,
            current: None,
            at: 0,
            over: false,
            broken: false,
            #[cfg(feature = "mpi")]
            takes_announcements: false,
            #[cfg(feature = "mpi")]
            announced: None,
        }
    }

    /// The part that writes the stream.
    pub fn source(&self) -> Target {
        self.source
    }

    /// The stream's number at its source node (`Sno`).
    pub fn number(&self) -> StreamNo {
        self.key.number()
    }

    /// Waits up to `timeout` for the next segment, and returns it whole and in place; `None` at the end.
    ///
    /// # Errors
    /// [`RecvError::StreamBroken`] if the stream ended before its last segment, on this and every further call;
    /// [`RecvError::Timeout`], and [`RecvError::NoPipe`].
    pub fn next_segment(&mut self, timeout: Duration) -> Result<Option<Segment<P::Share>>, RecvError> {
        if let Some(rest) = self.rest() {
            return Ok(Some(rest));
        }
        let mut waiter: Option<Waiter> = None;
        loop {
            if let Some(found) = self.take()? {
                return Ok(found.map(Segment::whole));
            }
            let waiter = waiter.get_or_insert_with(|| {
                // This part may have packed the request that the stream answers.
                self.part.part().flush();
                Waiter::new(timeout, self.part.part().shared())
            });
            let worked = self.part.part().poll();
            // Even in a call that may not wait.
            if worked > 0
                && let Some(found) = self.take()?
            {
                return Ok(found.map(Segment::whole));
            }
            if waiter.is_over() {
                let peers = vec![self.key.source()];
                let missing = "sent the next segment of the stream";
                return Err(waiter.failure(peers, missing).into());
            }
            if worked > 0 {
                waiter.made_progress(&self.part.part().node)?;
            } else {
                waiter.pause(&self.part.part().node, &[self.part.part().pipe()?])?;
            }
        }
    }

    /// The unread rest of the last segment.
    pub(in crate::part) fn rest(&mut self) -> Option<Segment<P::Share>> {
        let run = self.current.take()?;
        Some(Segment { run, start: std::mem::take(&mut self.at) as u32 })
    }

    /// Reads bytes of a segment, at least one, and returns their number; 0 at the end of the stream, or if `to` is empty. Waits up
    /// to `timeout`: [`io::Read::read`] with a timeout and this crate's own error.
    ///
    /// # Errors
    /// As [`next_segment`](Self::next_segment).
    pub fn read_some(&mut self, to: &mut [u8], timeout: Duration) -> Result<usize, RecvError> {
        if to.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(segment) = self.next_segment(timeout)? else { return Ok(0) };
            let bytes: &[u8] = &segment;
            let taken = bytes.len().min(to.len());
            to.split_at_mut(taken).0.copy_from_slice(bytes.split_at(taken).0);
            if taken < bytes.len() {
                self.at = segment.start as usize + taken;
                self.current = Some(segment.run);
            }
            if taken > 0 {
                return Ok(taken);
            }
        }
    }

    /// `None`: nothing has arrived. `Some(None)`: the end.
    #[cfg_attr(
        not(feature = "mpi"),
        expect(clippy::never_loop, reason = "what MPI announces is passed over")
    )]
    pub(in crate::part) fn take(&mut self) -> Result<Option<Option<Pointer<P::Share>>>, RecvError> {
        if self.over {
            // A caller that asks again must not take a broken stream for a complete one.
            return if self.broken { Err(self.is_broken()) } else { Ok(Some(None)) };
        }
        #[cfg(feature = "mpi")]
        if self.announced.is_some() {
            // Data follows in blocks or not at all, depending on the answer.
            return Ok(None);
        }
        self.part.part().pipe()?;
        loop {
            let next = self.part.part().inbox().next_segment(self.key, &mut Source(self.part.part()));
            // Unknown: the pipe was released meanwhile.
            self.broken = matches!(next, Next::Broken | Next::Unknown);
            self.over = self.broken || matches!(next, Next::End);
            return match next {
                Next::Data(run) => {
                    #[cfg(feature = "mpi")]
                    if let Some(announced) = announced::announcement(&run) {
                        if self.takes_announcements {
                            self.announced = Some(announced);
                            return Ok(None);
                        }
                        announced::refuse(self.part.part().shared(), self.key.source(), announced);
                        continue;
                    }
                    Ok(Some(Some(run)))
                }
                Next::End => Ok(Some(None)),
                Next::Nothing => Ok(None),
                Next::Broken | Next::Unknown => Err(self.is_broken()),
            };
        }
    }

    pub(super) fn is_broken(&self) -> RecvError {
        RecvError::StreamBroken { source: self.source, number: self.key.number() }
    }
}

impl<P: HoldsPart> io::Read for StreamReader<P> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let timeout = self.part.part().shared().settings.timeout;
        self.read_some(to, timeout).map_err(io::Error::from)
    }
}

impl<P: HoldsPart> Drop for StreamReader<P> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        #[cfg(feature = "mpi")]
        if let Some(announced) = self.announced.take() {
            announced::refuse(self.part.part().shared(), self.key.source(), announced);
        }
        give_up(self.part.part(), self.key);
    }
}

/// Discards what has arrived of a stream, and the rest as it arrives, whether or not the part receives then.
pub(super) fn give_up<S: Share>(part: &Part<S>, key: StreamKey) {
    // No borrow is live here: every function that reads ends its own before it returns.
    let mut inbox = part.inbox();
    #[cfg(feature = "mpi")]
    if let Some(announced) = inbox.waiting_segment(key).and_then(|run| announced::announcement(run)) {
        announced::refuse(part.shared(), key.source(), announced);
    }
    if inbox.forget(key, &mut Source(part)) {
        // The inbox is borrowed.
        part.shared().engine_without_wakes().ignore_stream(key.source(), key.number());
        // What came before the engine knew.
        inbox.forget(key, &mut Source(part));
    }
}

impl<P: HoldsPart> fmt::Debug for StreamReader<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamReader({} from {})", self.key.number().0, self.source)
    }
}
