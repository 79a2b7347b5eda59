//! Streams: data of any length from one part to another, in order, in its own blocks.

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
mod staging;
mod together;

use std::fmt;
use std::io;
use std::time::Duration;

use pdbp_core::id::StreamNo;
use pdbp_core::inbox::Accepted;
use pdbp_core::outbox::{Ending, Missing, StreamError, StreamOut};
use pdbp_core::pipe::{PipeError, StreamState};

use super::inbox::Source;
use super::sending::{Patience, failed, route_nodes};
use super::{HoldsPart, Message, Part, Share, Target};
use crate::error::{RecvError, SendError};
use crate::node::NodeEngine;

pub use reader::StreamReader;
pub use segment::Segment;
use staging::SegmentStaging;
pub use together::{Piece, StreamId, Streams};

/// Command field of a data segment.
const SEGMENT: u16 = 0;

/// The writing end of a stream (the documents' SINFO). It holds a public stream pipe until it is finished or dropped.
///
/// [`io::Write`] fills blocks and sends each when it is full; [`loan`](Self::loan) lends space in a block to fill in place. A
/// segment in progress holds one of the `row_blocks` blocks of its destination node until it is full or
/// [flushed](Self::flush_segment), so no more streams than that can be in the middle of a segment. A part that waits for room does
/// not receive, and messages to it may take up that room; [`write_or`](Self::write_or) receives meanwhile.
///
/// Dropping the writer without [`finish`](Self::finish) gives up the stream: the reader gets an error after what was sent, and if
/// nothing was sent it never learns of the stream. If the reader gives up, or its part is dropped, the writer gets no error: the
/// rest is discarded.
///
/// To a node without a link the stream goes through a relay, which forwards at most `stream_pipes` streams to one node at a time.
/// If there are more, the relay has no room: the writer gets [`SendError::StreamStopped`] and, if it was dropped before that,
/// nothing arrives.
pub struct StreamWriter<P: HoldsPart> {
    pub(super) part: P,
    out: StreamOut,
    /// How long to wait for a block.
    patience: Patience,
    /// Set if the reader reads this node's memory, on another processor.
    staging: Option<Box<SegmentStaging>>,
    /// The reader's cluster, if it is another one.
    #[cfg(feature = "net")]
    cluster: Option<String>,
    /// Blocks that device flows hold.
    #[cfg(feature = "cuda")]
    lent: device::LentBlocks,
}

impl<S: Share> Part<S> {
    /// Opens a stream to a part. Its first block creates the mapping tuple in the receiver's MTA. In a task that may move to
    /// another thread, use [`StreamWriter::open(&mut part, to)`](StreamWriter::open).
    ///
    /// # Errors
    /// [`PipeError::NoneIdle`] if as many streams are open as the setting `stream_pipes` allows; a writer dropped before its end
    /// counts until its reader could be notified.
    pub fn open_stream(&self, to: Target) -> Result<StreamWriter<&Self>, PipeError> {
        StreamWriter::open(self, to)
    }

    /// Waits up to `timeout` for the next stream opened to this part, in the order in which their first segments arrive. A part that
    /// gets several streams at a time must read them all, each in its own task, or [together](Self::streams): an unread stream stops
    /// the others of its node ([`StreamReader`]). In a task, use [`accept_async`](Self::accept_async), whose reader may move to another
    /// thread.
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn accept_stream(&self, timeout: Duration) -> Result<StreamReader<&Self>, RecvError> {
        StreamReader::accept(self, timeout)
    }

    /// Returns the next stream opened to this part, if its first segment has arrived. The reader borrows the part, so a task that
    /// holds it cannot move to another thread; that of [`accept_async`](Self::accept_async) can.
    ///
    /// # Errors
    /// [`RecvError::NoPipe`].
    pub fn try_accept_stream(&self) -> Result<Option<StreamReader<&Self>>, RecvError> {
        StreamReader::try_accept(self)
    }

    fn next_stream(&self) -> Result<Option<Accepted>, RecvError> {
        self.pipe()?;
        let accept = || self.inbox().accept(&mut Source(self));
        Ok(accept().or_else(|| (self.poll_seldom() > 0).then(accept).flatten()))
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
        let staging = part.part().shared().is_read_remotely(to.node()).then(Box::default);
        #[cfg(feature = "net")]
        let cluster = {
            // With this the writer learns if the reader's cluster becomes unreachable.
            let node = part.part().node();
            if node.settings().grid.is_some() { node.cluster_of(to) } else { None }
        };
        Ok(Self {
            part,
            out,
            patience: Patience::Set,
            staging,
            #[cfg(feature = "net")]
            cluster,
            #[cfg(feature = "cuda")]
            lent: device::LentBlocks::default(),
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

    /// Sets how long calls wait each time they need a block. `None`, the default, means the setting `timeout_ms`, which
    /// [`finish`](Self::finish) always uses to wait for a relay. `finish` also needs a block, and may time out, unless a segment is in
    /// progress.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.patience = timeout.map_or(Patience::Set, Patience::For);
    }

    /// Writes as many bytes as the segment has room for, at least one unless `data` is empty, and returns their number:
    /// [`io::Write::write`] with this crate's own error.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn write_some(&mut self, data: &[u8]) -> Result<usize, SendError> {
        if data.is_empty() && !self.out.is_over() {
            return Ok(0);
        }
        let whole = self.make_room(data.len())?;
        let taken = match &mut self.staging {
            Some(staging) => staging.write(&mut self.out, whole, data),
            None => self.out.write(whole, data).unwrap_or(0),
        };
        Ok(taken)
    }

    /// Writes all of `data`, but while there is no room, passes messages that arrive for the part to `receive`, as
    /// [`Part::send_or`] does: for parts that are sent messages while they write. After it, [`finish`](Self::finish) needs no room,
    /// unless `data` was empty.
    ///
    /// # Errors
    /// See [`SendError`]. [`SendError::Timeout`] if there was no room and nothing arrived for the time of
    /// [`set_timeout`](Self::set_timeout).
    pub fn write_or(
        &mut self,
        mut data: &[u8],
        mut receive: impl FnMut(Message<P::Share>),
    ) -> Result<(), SendError> {
        while !data.is_empty() {
            let written = match self.without_waiting(|writer| writer.write_some(data)) {
                Err(SendError::WouldBlock) if self.serve(&mut receive)? => continue,
                // A part without a pipe receives nothing, and only waits for room.
                Err(SendError::WouldBlock) => self.write_some(data)?,
                written => written?,
            };
            data = data.get(written..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Receives, or waits for room. Returns `false` if the part has no pipe.
    fn serve(&self, receive: &mut dyn FnMut(Message<P::Share>)) -> Result<bool, SendError> {
        let (part, to) = (self.part.part(), self.out.dest());
        part.serve(to, self.patience.timeout(part).unwrap_or_default(), receive)
    }

    /// Lends space for the next bytes, to be filled in place: `length` bytes, or what is left of the segment if that is less; at
    /// least one unless `length` is 0. Then call [`advance`](Self::advance) with the number of bytes filled. Waits for room as
    /// [`Part::send`] does.
    ///
    /// Meant for data that is produced, received or gathered in this process; contiguous data goes faster through
    /// [`write_some`](Self::write_some). If the reader is on another processor of this host, the space is a buffer of the writer,
    /// of up to a segment, which is copied past the caches where that takes less time than writing in place: see
    /// [`Sender::loan`](super::Sender::loan).
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn loan(&mut self, length: usize) -> Result<&mut [u8], SendError> {
        let whole = self.make_room(length)?;
        match &mut self.staging {
            Some(staging) => Ok(staging.loan(&mut self.out, whole, length)),
            None => Ok(self.out.loan(whole, length).unwrap_or(&mut [])),
        }
    }

    /// Makes room for a loan of `length` bytes; returns the bytes of a full segment.
    fn make_room(&mut self, length: usize) -> Result<usize, SendError> {
        let whole = self.segment_len();
        // Only the error is used: the borrow checker would reject a loan that is returned from this loop.
        while let Err(missing) = self.out.loan(whole, length).map(|_| ()) {
            match missing {
                Missing::Room => self.send_segment(SEGMENT, Ending::Open)?,
                Missing::Block => self.take_block()?,
                Missing::Stream => return Err(SendError::StreamFinished(self.number())),
            }
        }
        Ok(whole)
    }

    /// Marks the first `bytes` bytes of the last loan as filled, at most its length.
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

    /// Sends the rest and ends the stream; the mapping tuple is removed and the pipe freed. If the stream goes through a relay, the
    /// relay has accepted all of it when this returns.
    ///
    /// # Errors
    /// See [`SendError`]; the stream is then given up, unless its last segment has left.
    pub fn finish(mut self) -> Result<(), SendError> {
        self.send_last()?;
        let shared = self.part.part().shared();
        if let Some(taken) = self.taken(&mut shared.engine()) {
            return taken;
        }
        let dest = self.out.dest().node();
        let missing = "accepted the whole stream (relay first, then destination)";
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

    /// Whether the receiving node or relay has accepted the stream, which was sent to its end.
    pub(super) fn taken(&self, engine: &mut NodeEngine) -> Option<Result<(), SendError>> {
        if self.out.state(engine) == StreamState::Established {
            return Some(Ok(()));
        }
        let taken = self.out.poll_established(engine)?;
        Some(taken.map_err(|error| self.failure(engine, error)))
    }

    /// Calls `f` with a zero wait for room.
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
            crate::grid::check_remote(engine, self.out.dest(), cluster)?;
        }
        self.out.check(engine).map_err(|error| self.failure(engine, error))
    }

    /// Waits while nothing may be sent to the reader's part.
    fn await_reader(&self) -> Result<(), SendError> {
        let part = self.part.part();
        let found = part.await_target(self.out.dest(), self.patience);
        if let Err(SendError::NoSuchPart(_)) = found {
            // Its cluster may have gone with it.
            self.check(&part.shared().engine())?;
        }
        found
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
            self.await_reader()?;
        }
        let block = self.part.part().open_block(self.out.dest().node(), self.patience)?.0;
        if let Some(staging) = &mut self.staging {
            staging.begin();
        }
        let before = self.out.give_block(block);
        debug_assert!(before.is_none(), "it was missing");
        before.into_iter().for_each(|block| self.part.part().shared().engine().submit(block));
        Ok(())
    }

    fn send_segment(&mut self, kind: u16, ending: Ending) -> Result<(), SendError> {
        if self.out.segments() == 0 {
            // Later segments take the same route as the first.
            self.await_reader()?;
        }
        self.submit_segment(kind, ending)
    }

    fn submit_segment(&mut self, kind: u16, ending: Ending) -> Result<(), SendError> {
        if !self.out.has_block() {
            self.take_block()?;
        }
        let whole = self.segment_len();
        if let Some(staging) = &mut self.staging {
            staging.end(&mut self.out, whole);
        }
        let sealed = self.out.seal(kind, ending);
        let part = self.part.part();
        let mut engine = part.shared().engine();
        // Submitted even on an error, so that the segment comes back.
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
        // Taken in `open_stream` and returned only here.
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
