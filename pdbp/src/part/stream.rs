//! Streams: data of any length from one part to another, in order, in blocks of their own.

#[cfg(feature = "mpi")]
mod announced;
#[cfg(feature = "cuda")]
pub(super) mod device;
#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "net")]
mod passing;
mod reader;
mod segment;

use std::fmt;
use std::io;
use std::time::Duration;

use pdbp_core::id::StreamNo;
use pdbp_core::inbox::Accepted;
use pdbp_core::outbox::{Ending, Missing, StreamError, StreamOut};
use pdbp_core::pipe::{PipeError, StreamState};
use pdbp_local::Copier;

use super::inbox::Source;
use super::sending::{Patience, failed, route_nodes};
use super::{HoldsPart, Part, Share, Target};
use crate::error::{RecvError, SendError};
use crate::node::NodeEngine;

pub use reader::StreamReader;
pub use segment::Segment;

/// What the command field of a segment says that is data.
const SEGMENT: u16 = 0;

/// The writing end of a stream (SINFO of the documents). It holds a public stream pipe until it is finished or dropped.
///
/// [`io::Write`] fills blocks and sends each when it is full; [`loan`](Self::loan) lends room in a block to be filled in place.
/// A segment that has been begun holds one of the `row_blocks` blocks to its node until it is full or
/// [flushed](Self::flush_segment), so no more streams than that can be in the middle of a segment.
/// Dropping the writer without [`finish`](Self::finish) gives the stream up: the reader gets an error after what was sent, and if nothing was sent
/// it never learns of the stream. A reader that gives up, or whose part is dropped, is no error for the writer: the rest is discarded.
///
/// To a node without a link the stream goes by a relay, which passes on as many streams to one node at a time as the setting
/// `stream_pipes` says. For one more it has no room, and the writer gets [`SendError::StreamStopped`]; of one that was dropped before,
/// nothing arrives.
pub struct StreamWriter<P: HoldsPart> {
    pub(super) part: P,
    out: StreamOut,
    /// For a block.
    patience: Patience,
    /// Where the reader reads what is written out of this node's memory, on another processor.
    copier: Option<Box<Copier>>,
    /// The cluster of the part that reads it, if that is another.
    #[cfg(feature = "net")]
    cluster: Option<String>,
    /// Blocks that flows from devices have.
    #[cfg(feature = "cuda")]
    away: device::Away,
}

impl<S: Share> Part<S> {
    /// Opens a stream to a part. Its first block creates the mapping tuple in the receiver's MTA. For a task that may move to another thread the
    /// writer is [`StreamWriter::open(&mut part, to)`](StreamWriter::open).
    ///
    /// # Errors
    /// [`PipeError::NoneIdle`] when as many streams are open as the setting `stream_pipes` allows; a writer that was dropped before
    /// its end counts until its reader could be told.
    pub fn open_stream(&self, to: Target) -> Result<StreamWriter<&Self>, PipeError> {
        StreamWriter::open(self, to)
    }

    /// Waits for the next stream opened to this part, at most `timeout`.
    ///
    /// # Errors
    /// [`RecvError::Timeout`] and [`RecvError::NoPipe`].
    pub fn accept_stream(&self, timeout: Duration) -> Result<StreamReader<&Self>, RecvError> {
        StreamReader::accept(self, timeout)
    }

    /// Returns the next stream opened to this part, if its first segment has arrived.
    ///
    /// # Errors
    /// [`RecvError::NoPipe`].
    pub fn try_accept_stream(&self) -> Result<Option<StreamReader<&Self>>, RecvError> {
        StreamReader::try_accept(self)
    }

    fn next_stream(&self) -> Result<Option<Accepted>, RecvError> {
        self.pipe()?;
        let accept = || self.inbox().accept(&mut Source(self));
        Ok(accept().or_else(|| (self.poll() > 0).then(accept).flatten()))
    }
}

impl<P: HoldsPart> StreamWriter<P> {
    /// As [`Part::open_stream`], for a writer that holds its part by `Rc` or `&mut`.
    ///
    /// # Errors
    /// As there.
    pub fn open(part: P, to: Target) -> Result<Self, PipeError> {
        let out = {
            let part = part.part();
            StreamOut::open(&mut part.shared().engine(), part.id(), to)?
        };
        let copier = part.part().shared().is_read_elsewhere(to.node()).then(Box::default);
        #[cfg(feature = "net")]
        let cluster = {
            // Its writer is to be told when that is out of reach.
            let node = part.part().node();
            if node.settings().grid.is_some() { node.cluster_of(to) } else { None }
        };
        Ok(Self {
            part,
            out,
            patience: Patience::Set,
            copier,
            #[cfg(feature = "net")]
            cluster,
            #[cfg(feature = "cuda")]
            away: device::Away::default(),
        })
    }

    /// The stream's number (`Sno`).
    pub fn number(&self) -> StreamNo {
        self.out.number()
    }

    /// Bytes of a full segment: what a block of the best length for the destination holds.
    pub fn segment_len(&self) -> usize {
        self.part.part().shared().longest_to(self.out.dest().node())
    }

    /// Sets how long calls wait each time they need a block. `None`, the default, is the setting `timeout_ms`, which
    /// [`finish`](Self::finish) always uses to wait for a relay.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.patience = timeout.map_or(Patience::Set, Patience::For);
    }

    /// Writes as many of the bytes as the segment has room for, at least one, and returns how many: [`io::Write::write`] with the
    /// runtime's own error. To a reader on another processor of this host this is faster for long data than a [`loan`](Self::loan), since it
    /// stores past the processor's caches where that takes less time.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn write_some(&mut self, data: &[u8]) -> Result<usize, SendError> {
        let whole = self.make_room(data.len())?;
        let room = self.out.loan(whole, data.len()).unwrap_or(&mut []);
        let taken = room.len().min(data.len());
        let (into, (from, _)) = (room.split_at_mut(taken).0, data.split_at(taken));
        match &mut self.copier {
            Some(copier) => copier.copy(into, from),
            None => into.copy_from_slice(from),
        }
        self.advance(taken);
        Ok(taken)
    }

    /// Lends room for the next bytes, to be filled in place: as many as asked for, at most what is left of the segment, and at least
    /// one unless `length` is 0. Call [`advance`](Self::advance) with the number that was filled. Waits for room as [`Part::send`].
    ///
    /// Meant for readers on other hosts, and for bytes that would have to be gathered first. To a reader on another processor of this host,
    /// [`write_some`](Self::write_some) is 2.5 times as fast for long data that exists already, and 1.5 times for data made in a buffer
    /// first: see [`Sender::loan`](super::Sender::loan).
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn loan(&mut self, length: usize) -> Result<&mut [u8], SendError> {
        let whole = self.make_room(length)?;
        Ok(self.out.loan(whole, length).unwrap_or(&mut []))
    }

    /// Sees to it that a loan of so many bytes has room; returns the bytes of a full segment.
    fn make_room(&mut self, length: usize) -> Result<usize, SendError> {
        let whole = self.segment_len();
        // The borrow checker does not see that a loan is not alive behind an error; so what is missing is found out first.
        while let Err(missing) = self.out.loan(whole, length).map(|_| ()) {
            match missing {
                Missing::Room => self.send_segment(SEGMENT, Ending::Open)?,
                Missing::Block => self.take_block()?,
                Missing::Stream => return Err(SendError::StreamFinished(self.number())),
            }
        }
        Ok(whole)
    }

    /// Declares the first `bytes` bytes of the last loan filled, at most as many as it had.
    pub fn advance(&mut self, bytes: usize) {
        self.out.advance(bytes);
    }

    /// Sends what has been written so far.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn flush_segment(&mut self) -> Result<(), SendError> {
        if self.out.filled() > 0 { self.send_segment(SEGMENT, Ending::Open) } else { Ok(()) }
    }

    /// Sends what is left and ends the stream; the mapping tuple is removed and the pipe freed. If the stream goes by a relay, the relay has
    /// accepted it when this returns.
    ///
    /// # Errors
    /// See [`SendError`]; the stream is given up then, unless its last segment has left.
    pub fn finish(mut self) -> Result<(), SendError> {
        self.send_last()?;
        let shared = self.part.part().shared();
        if let Some(taken) = self.taken(&mut shared.engine()) {
            return taken;
        }
        let dest = self.out.dest().node();
        let missing = "taken the stream, which goes by the first of these to the second";
        let taken = |engine: &mut NodeEngine| self.taken(engine);
        let ended =
            self.part.part().node.wait_for(shared.settings.timeout, missing, taken, |e| route_nodes(e, dest));
        ended?
    }

    pub(super) fn is_over(&self) -> bool {
        self.out.is_over()
    }

    pub(super) fn send_last(&mut self) -> Result<(), SendError> {
        self.send_segment(SEGMENT, Ending::Last)
    }

    /// Whether the stream has been taken by whom it goes to, of one that was sent to its end.
    pub(super) fn taken(&self, engine: &mut NodeEngine) -> Option<Result<(), SendError>> {
        if self.out.state(engine) == StreamState::Taken {
            return Some(Ok(()));
        }
        let taken = self.out.poll_taken(engine)?;
        Some(taken.map_err(|error| self.failure(engine, error)))
    }

    /// Calls `f`, in which this does not wait for room.
    pub(super) fn without_waiting<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let patience = std::mem::replace(&mut self.patience, Patience::None);
        let result = f(self);
        self.patience = patience;
        result
    }

    /// Errors that prevent delivery of what was sent.
    fn check(&self, engine: &NodeEngine) -> Result<(), SendError> {
        #[cfg(feature = "net")]
        if let Some(cluster) = &self.cluster {
            crate::grid::check_far(engine, self.out.dest(), cluster)?;
        }
        self.out.check(engine).map_err(|error| self.failure(engine, error))
    }

    fn failure(&self, engine: &NodeEngine, error: StreamError) -> SendError {
        let dest = self.out.dest().node();
        match (error, engine.relay_to(dest)) {
            (StreamError::Stopped, Some(relay)) => {
                SendError::StreamStopped { number: self.number(), relay, dest }
            }
            _ => failed(engine, dest),
        }
    }

    fn take_block(&mut self) -> Result<(), SendError> {
        #[cfg(feature = "net")]
        if self.cluster.is_some() {
            self.part.part().await_target(self.out.dest(), self.patience)?;
        }
        let block = self.part.part().open_block(self.out.dest().node(), self.patience)?.0;
        let before = self.out.give_block(block);
        debug_assert!(before.is_none(), "it was missing");
        before.into_iter().for_each(|block| self.part.part().shared().engine().submit(block));
        Ok(())
    }

    fn send_segment(&mut self, kind: u16, ending: Ending) -> Result<(), SendError> {
        if self.out.segments() == 0 {
            // The others go where the first has gone.
            self.part.part().await_target(self.out.dest(), self.patience)?;
        }
        if !self.out.has_block() {
            self.take_block()?;
        }
        let sealed = self.out.seal(kind, ending);
        let part = self.part.part();
        let mut engine = part.shared().engine();
        // Submitted all the same, so that the segment comes back.
        let checked = self.check(&engine);
        sealed.into_iter().for_each(|block| engine.submit(block));
        part.poll_with(&mut engine);
        checked
    }
}

impl<P: HoldsPart> io::Write for StreamWriter<P> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_some(data).map_err(io::Error::from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_segment().map_err(io::Error::from)
    }
}

impl<P: HoldsPart> Drop for StreamWriter<P> {
    fn drop(&mut self) {
        let shared = self.part.part().shared();
        let mut engine = shared.engine();
        let given_up = !self.out.is_over();
        // Taken in `open_stream` and given back only here.
        let _ = self.out.close(&mut engine);
        if given_up {
            shared.poll_with(&mut engine);
        }
    }
}

impl<P: HoldsPart> fmt::Debug for StreamWriter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamWriter({} to {})", self.out.number().0, self.out.dest())
    }
}
