//! Streams of a host.

use core::ops::Deref;

use super::Host;
use crate::endpoint::{StreamIn, StreamPiece, StreamSegment};
use crate::id::PartId;
use crate::outbox::{StreamError, StreamOut};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// The writing end of a stream. Dropping it before it is [finished](Self::poll_finish) aborts the stream and notifies its reader.
pub struct StreamWriter<'h, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    /// `None` once it is over.
    stream: Option<StreamOut>,
}

impl<'h, T: Transport, M: BlockMemory, P: SpacePolicy> StreamWriter<'h, T, M, P> {
    pub(super) fn new(host: &'h Host<T, M, P>, stream: StreamOut) -> Self {
        Self { host, stream: Some(stream) }
    }

    /// Writes as many of the bytes as fit and returns their number; write the rest after [`Host::poll`]. Once the stream has ended,
    /// returns 0.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn write(&mut self, data: &[u8]) -> Result<usize, StreamError> {
        let Some(stream) = &mut self.stream else { return Ok(0) };
        self.host.with(|endpoint| endpoint.write(stream, data))
    }

    /// Sends what was written, even if its block is not full.
    pub fn flush(&mut self) {
        if let Some(stream) = &mut self.stream {
            self.host.with(|endpoint| endpoint.flush_stream(stream));
        }
    }

    /// Finishes the stream. Returns whether this is complete; if not, call again after [`Host::poll`].
    ///
    /// # Errors
    /// See [`StreamError`]; the stream has then ended.
    pub fn poll_finish(&mut self) -> Result<bool, StreamError> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        let finished = self.host.with(|endpoint| endpoint.poll_finish(stream));
        if !matches!(finished, Ok(false)) {
            self.stream = None;
        }
        finished
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for StreamWriter<'_, T, M, P> {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.host.on_drop(|endpoint| endpoint.abort_stream(stream));
        }
    }
}

/// The reading end of a stream. Once it is dropped, the rest of the stream is discarded on arrival.
pub struct StreamReader<'h, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    stream: StreamIn,
}

/// The next piece of a stream.
pub enum Piece<'h, T: Transport, M: BlockMemory, P: SpacePolicy> {
    /// Data.
    Data(Segment<'h, T, M, P>),
    /// Nothing has arrived yet.
    Nothing,
    /// The end of the stream.
    End,
    /// The stream ended early: its writer aborted it or failed.
    Broken,
}

impl<'h, T: Transport, M: BlockMemory, P: SpacePolicy> StreamReader<'h, T, M, P> {
    pub(super) fn new(host: &'h Host<T, M, P>, stream: StreamIn) -> Self {
        Self { host, stream }
    }

    /// The part that writes it.
    pub fn source(&self) -> PartId {
        self.stream.source()
    }

    /// Returns the next piece. After the end, returns [`Piece::Broken`].
    pub fn poll_next(&mut self) -> Piece<'h, T, M, P> {
        match self.host.with(|endpoint| endpoint.poll_stream(&self.stream)) {
            StreamPiece::Data(segment) => Piece::Data(Segment { host: self.host, segment: Some(segment) }),
            StreamPiece::Nothing => Piece::Nothing,
            StreamPiece::End => Piece::End,
            StreamPiece::Broken => Piece::Broken,
        }
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for StreamReader<'_, T, M, P> {
    fn drop(&mut self) {
        self.host.on_drop(|endpoint| endpoint.forget_stream(self.stream));
    }
}

/// A segment of a stream, read in place. It holds its block until it is dropped.
pub struct Segment<'h, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    /// `None` once dropped.
    segment: Option<StreamSegment<'static>>,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Deref for Segment<'_, T, M, P> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.segment.as_ref().map_or(&[], StreamSegment::bytes)
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for Segment<'_, T, M, P> {
    fn drop(&mut self) {
        if let Some(segment) = self.segment.take() {
            self.host.on_drop(|endpoint| endpoint.release_segment(segment));
        }
    }
}
