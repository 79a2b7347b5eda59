//! Writes and reads streams, piece by piece.

use super::{Endpoint, Hold};
use crate::id::{PartId, StreamNo};
use crate::inbox::{Segment, StreamKey};
use crate::outbox::{Staging, StreamError, StreamOut};
use crate::pipe::PipeError;
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// The reading end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamIn {
    part: PartId,
    source: PartId,
    key: StreamKey,
}

impl StreamIn {
    /// The part that writes the stream.
    pub fn source(&self) -> PartId {
        self.source
    }

    /// The stream's number at its source node; the same as [`StreamOut::number`] there.
    pub fn number(&self) -> StreamNo {
        self.key.number()
    }
}

/// The next piece of a stream.
#[derive(Debug)]
pub enum StreamPiece<'a> {
    /// Data.
    Data(StreamSegment<'a>),
    /// Nothing has arrived yet.
    Nothing,
    /// The end.
    End,
    /// The stream ended before its last segment: its writer gave it up, or failed.
    Broken,
}

impl<'a> StreamPiece<'a> {
    fn of(segment: Segment<Hold<'a>>) -> Self {
        match segment {
            Segment::Data(hold) => Self::Data(StreamSegment(hold)),
            Segment::Nothing => Self::Nothing,
            Segment::End => Self::End,
            Segment::Broken | Segment::Unknown => Self::Broken,
        }
    }
}

/// A segment of a stream. It holds its block until it is [released](Endpoint::release_segment).
#[derive(Debug)]
#[must_use = "a segment that is not released keeps its block from being used again"]
pub struct StreamSegment<'a>(Hold<'a>);

impl StreamSegment<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let Hold::Piece(delivery) = &self.0 else { return &[] };
        // A block of a stream holds one CDU.
        let train = delivery.cdus().next().and_then(Result::ok);
        train.map_or(&[], |train| train.data())
    }
}

impl<'a, T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging> Endpoint<'a, T, M, P, W> {
    /// Opens a stream from a part of this node.
    ///
    /// # Errors
    /// [`PipeError::NoneIdle`]: this node has as many streams open as it can have.
    pub fn open_stream(&mut self, from: PartId, to: PartId) -> Result<StreamOut, PipeError> {
        // If the stream goes through a relay, the next poll must ask the relay.
        self.pipes.dirty = true;
        StreamOut::open(&mut self.engine, from, to)
    }

    /// Writes as many of the bytes as there is room for and returns how many; write the rest after a poll. Full segments leave at
    /// once.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn write(&mut self, stream: &mut StreamOut, data: &[u8]) -> Result<usize, StreamError> {
        let (whole, before) = (self.engine.config().longest_unsegmented(), stream.segments());
        let written = stream.poll_write(&mut self.engine, whole, data);
        self.pipes.dirty |= stream.segments() != before;
        written
    }

    /// Sends everything written so far. Readers get it as one or more segments.
    pub fn flush_stream(&mut self, stream: &mut StreamOut) {
        self.pipes.dirty |= stream.filled() > 0;
        stream.flush(&mut self.engine);
    }

    /// Ends a stream. Returns whether it is over; if not, call again after a poll.
    ///
    /// # Errors
    /// See [`StreamError`]; the stream is then over.
    pub fn poll_finish(&mut self, stream: &mut StreamOut) -> Result<bool, StreamError> {
        let before = stream.segments();
        let ended = stream.poll_finish(&mut self.engine);
        self.pipes.dirty |= stream.segments() != before;
        if !matches!(ended, Ok(false)) {
            self.pipes.dirty = true;
            // Its part may have left, and its pipe with it.
            let _ = stream.close(&mut self.engine);
        }
        ended
    }

    /// Gives up a stream; its reader sees it as broken.
    pub fn abort_stream(&mut self, mut stream: StreamOut) {
        self.pipes.dirty = true;
        // As in `poll_finish`.
        let _ = stream.close(&mut self.engine);
    }

    /// Accepts the next stream opened to a part of this node.
    pub fn accept(&mut self, part: PartId) -> Option<StreamIn> {
        let (inbox, mut source) = self.inbox_of(part)?;
        let accepted = inbox.accept(&mut source)?;
        self.pipes.dirty = true;
        Some(StreamIn { part, source: accepted.source, key: accepted.key })
    }

    /// Takes the next piece of a stream. After the end it is [`StreamPiece::Broken`].
    pub fn poll_stream(&mut self, stream: &StreamIn) -> StreamPiece<'a> {
        let Some((inbox, mut source)) = self.inbox_of(stream.part) else { return StreamPiece::Broken };
        let segment = inbox.next_segment(stream.key, &mut source);
        // Even if nothing was released yet, there is now room to sort what lies behind it.
        self.pipes.dirty |= !matches!(segment, Segment::Nothing | Segment::Unknown);
        StreamPiece::of(segment)
    }

    /// Takes the next piece, data or the end, of any stream to a part of this node that was not [accepted](Self::accept)
    /// individually. The caller thereby reads all these streams together; those with something to read take turns.
    pub fn poll_streams(&mut self, part: PartId) -> Option<(StreamIn, StreamPiece<'a>)> {
        let (inbox, mut source) = self.inbox_of(part)?;
        let (accepted, segment) = inbox.next_of_streams(&mut source)?;
        self.pipes.dirty = true;
        Some((StreamIn { part, source: accepted.source, key: accepted.key }, StreamPiece::of(segment)))
    }

    /// Releases a segment.
    pub fn release_segment(&mut self, segment: StreamSegment<'a>) {
        self.release_hold(segment.0);
    }

    /// Stops reading a stream. The rest of it is discarded as it arrives.
    pub fn forget_stream(&mut self, stream: StreamIn) {
        let Some((inbox, mut source)) = self.inbox_of(stream.part) else { return };
        if inbox.forget(stream.key, &mut source) {
            self.engine.ignore_stream(stream.key.source(), stream.key.number());
        }
        // As after reading it.
        self.pipes.dirty = true;
    }
}
