//! Streams: data of any length from one part to another, in order, in blocks of their own.

#[cfg(feature = "mpi")]
mod announced;
#[cfg(feature = "cuda")]
pub(super) mod device;
#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "net")]
mod passing;
mod segment;

use std::fmt;
use std::io;
use std::time::Duration;

use pdbp_core::id::StreamNo;
use pdbp_core::inbox::{Accepted, Segment as Next, StreamKey};
use pdbp_core::outbox::{Ending, Missing, StreamError, StreamOut};
use pdbp_core::pipe::{PipeError, StreamState};

use super::inbox::Pointer;
use super::inbox::Source;
use super::sending::{Patience, failed, route_nodes};
use super::{HoldsPart, Part, Share, Target};
use crate::error::{RecvError, SendError};
use crate::node::{NodeEngine, Waiter};

pub use segment::Segment;

/// What the command field of a segment says that is data.
const SEGMENT: u16 = 0;

/// The writing end of a stream (SINFO of the documents). It holds a public stream pipe until it is finished or dropped.
///
/// [`io::Write`] fills blocks and sends each when it is full; [`loan`](Self::loan) gives room in a block to be filled in place.
/// A segment that is begun holds a block of the row to its node, so that at most as many streams to one node can be in the
/// middle of a segment as the setting `row_blocks` says; [`flush_segment`](Self::flush_segment) lets go of it.
/// Dropping the writer without [`finish`](Self::finish) gives the stream up: its reader gets an error after what was sent.
///
/// To a node without a link the stream goes by a relay, which passes on as many streams to one node at a time as the setting
/// `stream_pipes` says. For one more it has no room, and the writer gets [`SendError::StreamStopped`]; of one that was dropped before,
/// nothing arrives.
pub struct StreamWriter<P: HoldsPart> {
    pub(super) part: P,
    out: StreamOut,
    /// For a block.
    patience: Patience,
    /// The cluster of the part that reads it, if that is another.
    #[cfg(feature = "net")]
    cluster: Option<String>,
    /// Blocks that flows from devices have.
    #[cfg(feature = "cuda")]
    away: device::Away,
}

impl<S: Share> Part<S> {
    /// Opens a stream to a part. Its first block creates the mapping tuple in the receiver's MTA.
    ///
    /// # Errors
    /// [`PipeError::NoneIdle`] when as many streams are open as the setting `stream_pipes` allows; a writer that was dropped before
    /// its end counts until its reader could be told.
    pub fn open_stream(&self, to: Target) -> Result<StreamWriter<&Self>, PipeError> {
        StreamWriter::open(self, to)
    }

    /// The next stream that somebody opened to this part; waits at most `timeout` for it.
    ///
    /// # Errors
    /// [`RecvError::Timeout`] and [`RecvError::NoPipe`].
    pub fn accept_stream(&self, timeout: Duration) -> Result<StreamReader<&Self>, RecvError> {
        StreamReader::accept(self, timeout)
    }

    /// The next stream that somebody opened to this part, if its first segment has arrived.
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
    /// As [`Part::open_stream`], for a writer that keeps its part: with an `Rc` of it.
    ///
    /// # Errors
    /// As there.
    pub fn open(part: P, to: Target) -> Result<Self, PipeError> {
        let out = {
            let part = part.part();
            StreamOut::open(&mut part.shared().engine(), part.id(), to)?
        };
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

    /// From now on calls wait so long for room, each time that they need a block; `None`: as long as the setting `timeout_ms` says, as
    /// they do at first. [`finish`](Self::finish) does so for the relay of its stream in any case.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.patience = timeout.map_or(Patience::Set, Patience::For);
    }

    /// Writes as many of the bytes as a segment has room for, at least one, and returns how many: [`io::Write::write`] with the
    /// runtime's own error.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn write_some(&mut self, data: &[u8]) -> Result<usize, SendError> {
        let room = self.loan(data.len())?;
        let taken = room.len().min(data.len());
        let (from, _) = data.split_at(taken);
        room.split_at_mut(taken).0.copy_from_slice(from);
        self.advance(taken);
        Ok(taken)
    }

    /// Room for the next bytes, to be filled in place: as many as asked for, at most what is left of a segment and at least
    /// one (0 only for a length of 0). [`advance`](Self::advance) says how many were filled. Waits for room as [`Part::send`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn loan(&mut self, length: usize) -> Result<&mut [u8], SendError> {
        let whole = self.segment_len();
        // The borrow checker does not see that a loan is not alive behind an error; so what is missing is found out first.
        while let Err(missing) = self.out.loan(whole, length).map(|_| ()) {
            match missing {
                Missing::Room => self.send_segment(SEGMENT, Ending::Open)?,
                Missing::Block => self.take_block()?,
                Missing::Stream => return Err(SendError::StreamFinished(self.number())),
            }
        }
        Ok(self.out.loan(whole, length).unwrap_or(&mut []))
    }

    /// Takes the first `bytes` bytes of the last loan as filled; no more than it had, since what lies behind is of other
    /// messages.
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

    /// Sends what is left and ends the stream: the mapping tuple is removed and the pipe freed. A stream that goes by a relay
    /// has been taken by it when this returns.
    ///
    /// # Errors
    /// See [`SendError`]; the stream is given up then, if its last segment has not left.
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

/// The reading end of a stream. Dropping it before the end discards the rest as it comes.
///
/// Segments that nobody reads hold their blocks, and with them the credit of the node by which they came: a part to which one
/// node writes several streams at a time, or several nodes that reach it by the same relay, has to read them side by side, as it
/// has to read its messages.
pub struct StreamReader<P: HoldsPart> {
    pub(super) part: P,
    pub(super) key: StreamKey,
    source: Target,
    current: Option<Pointer<P::Share>>,
    at: usize,
    over: bool,
    /// It was over before its last segment.
    broken: bool,
    #[cfg(feature = "mpi")]
    takes_announcements: bool,
    /// Number and bytes of a transfer that nobody has taken.
    #[cfg(feature = "mpi")]
    announced: Option<[u64; 2]>,
}

impl<P: HoldsPart> StreamReader<P> {
    /// As [`Part::accept_stream`], for a reader that keeps its part: with an `Rc` of it.
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

    /// As [`Part::try_accept_stream`], for a reader that keeps its part.
    ///
    /// # Errors
    /// As there.
    pub fn try_accept(holder: P) -> Result<Option<Self>, RecvError> {
        let stream = holder.part().next_stream()?;
        Ok(stream.map(|stream| Self::of(holder, stream)))
    }

    pub(super) fn of(holder: P, stream: Accepted) -> Self {
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

    /// The next segment, whole and in place; `None` at the end. Waits at most `timeout`.
    ///
    /// # Errors
    /// [`RecvError::StreamBroken`] when the stream ended before its last segment, from then on each time; [`RecvError::Timeout`], and
    /// [`RecvError::NoPipe`].
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
                // The request for the stream may be among what this part has packed.
                self.part.part().flush();
                Waiter::new(timeout, self.part.part().shared())
            });
            let worked = self.part.part().poll();
            // Also for a call that may not wait.
            if worked > 0
                && let Some(found) = self.take()?
            {
                return Ok(found.map(Segment::whole));
            }
            if waiter.is_over() {
                let peers = vec![self.key.source()];
                let missing = "sent the next segment of the stream";
                return Err(waiter.late(peers, missing).into());
            }
            if worked > 0 {
                waiter.worked(&self.part.part().node);
            } else {
                waiter.pause(&self.part.part().node, &[self.part.part().pipe()?]);
            }
        }
    }

    /// What was not read of the last segment.
    pub(super) fn rest(&mut self) -> Option<Segment<P::Share>> {
        let run = self.current.take()?;
        Some(Segment { run, start: std::mem::take(&mut self.at) as u32 })
    }

    /// Reads what there is of a segment, at least a byte, and returns how much; 0 at the end of the stream, and for no room. Waits at
    /// most `timeout`. [`io::Read::read`] with a timeout and the runtime's own error.
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

    /// `None`: nothing has come. `Some(None)`: the end.
    #[cfg_attr(
        not(feature = "mpi"),
        expect(clippy::never_loop, reason = "what MPI announces is passed over")
    )]
    pub(super) fn take(&mut self) -> Result<Option<Option<Pointer<P::Share>>>, RecvError> {
        if self.over {
            // Whoever asks again must not take it for whole.
            return if self.broken { Err(self.is_broken()) } else { Ok(Some(None)) };
        }
        #[cfg(feature = "mpi")]
        if self.announced.is_some() {
            // What follows depends on the answer.
            return Ok(None);
        }
        self.part.part().pipe()?;
        loop {
            let next = self.part.part().inbox().next_segment(self.key, &mut Source(self.part.part()));
            // Unknown: the pipe was released in between.
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

    fn is_broken(&self) -> RecvError {
        RecvError::StreamBroken(self.key.number())
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
        // No borrow is alive here: `take` ends its own before it returns.
        let mut inbox = self.part.part().inbox();
        #[cfg(feature = "mpi")]
        {
            let waiting = || announced::announcement(inbox.waiting_segment(self.key)?);
            if let Some(announced) = self.announced.take().or_else(waiting) {
                announced::refuse(self.part.part().shared(), self.key.source(), announced);
            }
        }
        inbox.forget(self.key, &mut Source(self.part.part()));
    }
}

impl<P: HoldsPart> fmt::Debug for StreamReader<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamReader({} from {})", self.key.number().0, self.source)
    }
}

impl<P: HoldsPart> fmt::Debug for StreamWriter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamWriter({} to {})", self.out.number().0, self.out.dest())
    }
}
