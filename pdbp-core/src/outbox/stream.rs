//! The writing end of a stream.

use crate::cdu::{CduClass, Packer, Route, flag};
use crate::engine::{Engine, OpenError};
use crate::flaw::Flaw;
use crate::id::{PartId, StreamNo};
use crate::pipe::{PipeError, StreamState};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::{BlockMemory, OpenBlock, StreamTag};

/// Whether more segments follow a segment of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// More segments follow.
    Open,
    /// It is the last one.
    Last,
    /// It is the last one although the data has not ended: the stream is given up.
    Aborted,
}

impl Ending {
    pub(crate) const fn flags(self) -> u16 {
        match self {
            Self::Open => 0,
            Self::Last => flag::LAST,
            Self::Aborted => flag::LAST | flag::ABORTED,
        }
    }
}

/// What a writer needs before it can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A block to fill ([`StreamOut::give_block`]).
    Block,
    /// Room: the segment is full and has to [leave](StreamOut::seal).
    Room,
    /// Another stream: this one has ended.
    Stream,
}

/// Errors that prevent the delivery of submitted data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// The destination cannot be reached, or the link has failed since the stream began.
    PeerFailed,
    /// The stream's relay has no room for it, or has lost its link to the destination.
    Stopped,
}

impl core::fmt::Display for StreamError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::PeerFailed => "the stream's destination has failed, or the link to it",
            Self::Stopped => "the stream's relay has no room for it, or has lost its link to the destination",
        })
    }
}

impl core::error::Error for StreamError {}

/// The writing end of a stream (SINFO in the documents): its pipe, its segments and their numbers. It never blocks. The owner
/// either writes with `poll_write`, `flush` and `poll_finish`, or gives it blocks and submits them once they are sealed. It chooses
/// the size of a whole segment: 1 byte to [`Config::longest_unsegmented`](crate::Config::longest_unsegmented).
///
/// ```text
///  open ─▶ [ poll_write … ─▶ flush ] … ─▶ poll_finish ─▶ close
///  open ─▶ [ give_block ─▶ loan, advance … ─▶ seal ─▶ submit ] … ─▶ seal(Last) ─▶ submit ─▶ close
/// ```
#[derive(Debug)]
#[must_use = "a stream that is not closed keeps its pipe"]
pub struct StreamOut {
    from: PartId,
    to: PartId,
    group: u16,
    number: StreamNo,
    /// Number of the segment being filled.
    segment: u32,
    block: Option<OpenBlock>,
    filled: usize,
    /// Bytes of the last loan not yet marked as filled.
    lent: usize,
    over: bool,
    /// The data has left by other means, so closing the stream no longer aborts it.
    delivered: bool,
}

impl StreamOut {
    /// Opens a stream from a part of this node. The first segment creates the mapping tuple at the receiver.
    ///
    /// # Errors
    /// As [`Engine::open_stream`].
    pub fn open<T: Transport, M: BlockMemory, P: SpacePolicy>(
        engine: &mut Engine<'_, T, M, P>,
        from: PartId,
        to: PartId,
    ) -> Result<Self, PipeError> {
        let (group, number) = engine.open_stream(from, to.node())?;
        Ok(Self {
            from,
            to,
            group,
            number,
            segment: 0,
            block: None,
            filled: 0,
            lent: 0,
            over: false,
            delivered: false,
        })
    }

    /// The stream's number (`Sno`).
    pub fn number(&self) -> StreamNo {
        self.number
    }

    /// The part that reads it.
    pub fn dest(&self) -> PartId {
        self.to
    }

    /// Number of segments sealed.
    pub fn segments(&self) -> u32 {
        self.segment
    }

    /// Goes on as if this segment were next.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, segment: u32) {
        self.segment = segment;
    }

    /// Bytes in the segment being filled.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Whether its last segment has been sealed.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether it has a block.
    pub fn has_block(&self) -> bool {
        self.block.is_some()
    }

    /// The route of its segments; `kind` is the command number, or 0 for data.
    pub fn route(&self, kind: u16) -> Route {
        Route::new(CduClass::Stream, kind, self.from, self.to)
    }

    /// Gives it a vacant block for its next segment. Returns the block that it had.
    #[must_use = "a block that is not submitted is lost to the pool"]
    pub fn give_block(&mut self, block: OpenBlock) -> Option<OpenBlock> {
        self.block.replace(block)
    }

    /// Gives it a block that already holds the first `filled` bytes of the next segment. Returns the block that it had.
    #[must_use = "a block that is not submitted is lost to the pool"]
    pub fn give_filled(&mut self, block: OpenBlock, filled: usize) -> Option<OpenBlock> {
        (self.filled, self.lent) = (filled, 0);
        self.block.replace(block)
    }

    /// Takes its block, including anything written into it.
    pub fn take_block(&mut self) -> Option<OpenBlock> {
        self.block.take()
    }

    /// Lends room for the next `length` bytes, or for the rest of a segment of `whole` bytes if that is less, to be filled in
    /// place. Afterwards call [`advance`](Self::advance) with the number of bytes filled.
    ///
    /// # Errors
    /// What is missing.
    pub fn loan(&mut self, whole: usize, length: usize) -> Result<&mut [u8], Missing> {
        if self.over {
            return Err(Missing::Stream);
        }
        if self.filled >= whole {
            return Err(Missing::Room);
        }
        let (route, filled) = (self.route(0), self.filled);
        let bytes = room(self.block.as_mut().ok_or(Missing::Block)?, route, whole);
        let end = filled.saturating_add(length).min(bytes.len());
        self.lent = end.saturating_sub(filled);
        Ok(bytes.get_mut(filled..end).unwrap_or(&mut []))
    }

    /// The room of a whole segment of `whole` bytes, including the bytes already filled. Empty if there is no block.
    pub fn room(&mut self, whole: usize) -> &mut [u8] {
        let route = self.route(0);
        self.block.as_mut().map_or(&mut [], |block| room(block, route, whole))
    }

    /// Marks the first `bytes` bytes of the last loan as filled, or all of it if it was shorter. Bytes beyond it are stale data
    /// of other messages.
    pub fn advance(&mut self, bytes: usize) {
        let taken = bytes.min(self.lent);
        self.lent -= taken;
        self.filled += taken;
    }

    /// Copies as much of the data as fits a segment of `whole` bytes. Returns the number of bytes copied.
    ///
    /// # Errors
    /// What is missing.
    pub fn write(&mut self, whole: usize, data: &[u8]) -> Result<usize, Missing> {
        let room = self.loan(whole, data.len())?;
        let taken = room.len();
        room.copy_from_slice(data.get(..taken).unwrap_or(&[]));
        self.advance(taken);
        Ok(taken - usize::from(taken > 0 && Flaw::CountsWriteShort.strikes()))
    }

    /// Writes as much of the data as there is room for, in segments of `whole` bytes that leave when full. Returns the number of
    /// bytes written.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn poll_write<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        engine: &mut Engine<'_, T, M, P>,
        whole: usize,
        data: &[u8],
    ) -> Result<usize, StreamError> {
        self.check(engine)?;
        let mut written = 0;
        while let Some(rest) = data.get(written..).filter(|rest| !rest.is_empty()) {
            match self.write(whole, rest) {
                Ok(taken) => written += taken,
                Err(Missing::Block) if self.open_block(engine)? => {}
                Err(Missing::Room) => self.submit(engine, Ending::Open),
                Err(Missing::Block | Missing::Stream) => break,
            }
        }
        Ok(written)
    }

    /// Sends everything written so far.
    pub fn flush<T: Transport, M: BlockMemory, P: SpacePolicy>(&mut self, engine: &mut Engine<'_, T, M, P>) {
        // Once another stream has the pipe, a first segment would end that stream.
        let is_known = self.state(engine) != StreamState::Disconnected;
        if self.filled > 0 && is_known && !Flaw::KeepsWritten.strikes() {
            self.submit(engine, Ending::Open);
        }
    }

    /// Sends everything written and not yet sent as the last segment. Returns whether the stream is over: once that segment has
    /// been submitted or, through a relay, once the relay has accepted the stream. `false` if there is no block or no answer yet:
    /// call again after a poll.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn poll_finish<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        engine: &mut Engine<'_, T, M, P>,
    ) -> Result<bool, StreamError> {
        if !self.over {
            self.check(engine)?;
            if !self.open_block(engine)? {
                return Ok(false);
            }
            self.submit(engine, Ending::Last);
        }
        self.poll_established(engine).map_or(Ok(false), |taken| taken.map(|()| true))
    }

    /// Gets a block from the engine unless the stream has one. Returns `false` if none is available now.
    fn open_block<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        engine: &mut Engine<'_, T, M, P>,
    ) -> Result<bool, StreamError> {
        if self.block.is_some() {
            return Ok(true);
        }
        match engine.open(self.to.node()) {
            Ok(block) => self.block = Some(block),
            Err(OpenError::WouldBlock) => return Ok(false),
            Err(OpenError::PeerFailed(_) | OpenError::NoSuchNode(_)) => return Err(StreamError::PeerFailed),
        }
        Ok(true)
    }

    fn submit<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        engine: &mut Engine<'_, T, M, P>,
        ending: Ending,
    ) {
        self.seal(0, ending).into_iter().for_each(|block| engine.submit(block));
    }

    /// Completes the segment and returns its block for submission; `None` if there is no block.
    pub fn seal(&mut self, kind: u16, ending: Ending) -> Option<OpenBlock> {
        let mut block = self.block.take()?;
        block.rewind(Packer::new());
        let reserved = block.reserve(self.route(kind), self.filled).is_ok();
        debug_assert!(reserved, "a segment fits its block");
        let first = if self.segment == 0 { flag::FIRST } else { 0 };
        block.set_stream(StreamTag {
            group: self.group,
            number: self.number,
            segment: self.segment,
            dest: self.to,
            flags: first | ending.flags(),
        });
        self.segment = StreamTag::after(self.segment);
        (self.filled, self.lent) = (0, 0);
        self.over = ending != Ending::Open;
        Some(block)
    }

    /// Replaces the contents of the segment with these bytes, which are not data but of the given `kind`. Returns `false` if they
    /// do not fit or there is no block.
    pub fn fill(&mut self, kind: u16, bytes: &[u8]) -> bool {
        let route = self.route(kind);
        let Some(block) = &mut self.block else { return false };
        block.rewind(Packer::new());
        let Ok(room) = block.reserve(route, bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        (self.filled, self.lent) = (bytes.len(), 0);
        true
    }

    /// Notes that the data is on its way by other means: if the stream is abandoned after this, it ends normally.
    pub fn deliver(&mut self) {
        self.delivered = true;
    }

    /// Returns the state of the stream's route.
    pub fn state<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &self,
        engine: &Engine<'_, T, M, P>,
    ) -> StreamState {
        engine.stream_state((self.group, self.number))
    }

    /// Checks that nothing prevents delivery of submitted data.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn check<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &self,
        engine: &Engine<'_, T, M, P>,
    ) -> Result<(), StreamError> {
        match self.state(engine) {
            _ if engine.has_failed(self.to.node()) => Err(StreamError::PeerFailed),
            // The link may be up again, but the reader has lost the stream.
            StreamState::Disconnected => Err(StreamError::PeerFailed),
            StreamState::Stopped => Err(StreamError::Stopped),
            StreamState::Established | StreamState::Requested => Ok(()),
        }
    }

    /// Returns whether the stream's relay, if any, has accepted the stream; `None` until the relay has answered. Call this once
    /// the last segment has been submitted.
    pub fn poll_established<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &self,
        engine: &Engine<'_, T, M, P>,
    ) -> Option<Result<(), StreamError>> {
        let asked = self.state(engine) == StreamState::Requested && !engine.has_failed(self.to.node());
        (!asked).then(|| self.check(engine))
    }

    /// Notifies the reader that the stream is aborted or, if it was [delivered](Self::deliver), that it has ended.
    pub fn abort<T: Transport, M: BlockMemory, P: SpacePolicy>(&mut self, engine: &mut Engine<'_, T, M, P>) {
        // A reader that has lost the stream could not tell which stream is meant.
        let is_known = self.state(engine) != StreamState::Disconnected;
        if is_known && (self.segment > 0 || self.filled > 0) {
            self.filled = 0;
            // Tried once. If there is no block, the engine notifies the receiver when it has the pipe and a block.
            self.block = self.block.take().or_else(|| engine.open(self.to.node()).ok());
            if let Some(block) = self.seal(0, self.given_up()) {
                engine.submit(block);
            }
        } else if let Some(mut block) = self.block.take() {
            // Emptied, so that it just becomes vacant.
            block.rewind(Packer::new());
            engine.submit(block);
        }
        self.over = true;
    }

    /// Returns the pipe. A stream that is not [over](Self::is_over) is given up, and its pipe stays busy until the reader has
    /// been notified. Call this once.
    ///
    /// # Errors
    /// As [`Engine::close_stream`].
    pub fn close<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        engine: &mut Engine<'_, T, M, P>,
    ) -> Result<(), PipeError> {
        if !self.over {
            self.abort(engine);
        }
        if let Some(mut block) = self.block.take() {
            block.rewind(Packer::new());
            engine.submit(block);
        }
        engine.close_stream_as((self.group, self.number), self.given_up())
    }

    /// How the stream ends if it is given up.
    const fn given_up(&self) -> Ending {
        if self.delivered { Ending::Last } else { Ending::Aborted }
    }
}

/// The room of a segment at its full size, reserved again at the same place each time. Its actual length is set when it is sealed.
fn room(block: &mut OpenBlock, route: Route, whole: usize) -> &mut [u8] {
    block.rewind(Packer::new());
    block.reserve(route, whole).unwrap_or(&mut [])
}
