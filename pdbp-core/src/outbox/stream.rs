//! The writing end of a stream.

use crate::cdu::{CduClass, Packer, Route, flag};
use crate::engine::{Engine, OpenError};
use crate::flaw::Flaw;
use crate::id::{PartId, StreamNo};
use crate::pipe::{PipeError, StreamState};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::{BlockMemory, OpenBlock, StreamTag};

/// What follows a segment of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// More segments.
    Open,
    /// Nothing: it was the last one.
    Last,
    /// Nothing, though the data has not ended: the stream is given up.
    Aborted,
}

impl Ending {
    const fn flags(self) -> u16 {
        match self {
            Self::Open => 0,
            Self::Last => flag::LAST,
            Self::Aborted => flag::LAST | flag::ABORTED,
        }
    }
}

/// What a writer needs before it can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A block of its own ([`StreamOut::give_block`]).
    Block,
    /// The segment is full and has to [leave](StreamOut::seal).
    Room,
    /// The stream has ended.
    Stream,
}

/// Why what was sent does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// Its destination cannot be reached, or the link has failed since the stream began.
    PeerFailed,
    /// The relay by which it goes has no room for it, or has lost its link to the destination.
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

/// The writing end of a stream (SINFO of the documents): its pipe, its segments and their numbers. It does not wait. Its holder writes by
/// `poll_write`, `flush` and `poll_finish`, or gives it blocks itself and submits those that it has sealed.
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
    /// Number of the segment that is being filled.
    segment: u32,
    block: Option<OpenBlock>,
    filled: usize,
    /// Bytes of the last loan that have not been taken as filled.
    lent: usize,
    over: bool,
    /// The data has left by other means, so that the stream is not given up any more.
    delivered: bool,
}

impl StreamOut {
    /// Opens a stream from a part of this node. Its first segment creates the mapping tuple at the receiver.
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

    /// Segments that were sealed.
    pub fn segments(&self) -> u32 {
        self.segment
    }

    /// Bytes in the segment that is being filled.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Whether its last segment was sealed.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether it has a block.
    pub fn has_block(&self) -> bool {
        self.block.is_some()
    }

    /// What its segments are routed by; `kind` is the command number, 0 for data.
    pub fn route(&self, kind: u16) -> Route {
        Route::new(CduClass::Stream, kind, self.from, self.to)
    }

    /// Gives it a vacant block for its next segment; returns the one that it had.
    #[must_use = "a block that is not submitted is lost to the pool"]
    pub fn give_block(&mut self, block: OpenBlock) -> Option<OpenBlock> {
        self.block.replace(block)
    }

    /// Gives it a block whose first `filled` bytes of data are the next segment; returns the one that it had.
    #[must_use = "a block that is not submitted is lost to the pool"]
    pub fn give_filled(&mut self, block: OpenBlock, filled: usize) -> Option<OpenBlock> {
        (self.filled, self.lent) = (filled, 0);
        self.block.replace(block)
    }

    /// Takes its block, with what was written into it.
    pub fn take_block(&mut self) -> Option<OpenBlock> {
        self.block.take()
    }

    /// Room for the next bytes, to be filled in place: as many as asked for, at most what is left of a segment of `whole` bytes.
    /// [`advance`](Self::advance) says how many were filled.
    ///
    /// # Errors
    /// What it needs first.
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

    /// All the room of a segment of `whole` bytes, which begins with those that are filled; none without a block.
    pub fn room(&mut self, whole: usize) -> &mut [u8] {
        let route = self.route(0);
        self.block.as_mut().map_or(&mut [], |block| room(block, route, whole))
    }

    /// Takes the first `bytes` bytes of the last loan as filled; no more than it had, since what lies behind is of other
    /// messages.
    pub fn advance(&mut self, bytes: usize) {
        let taken = bytes.min(self.lent);
        self.lent -= taken;
        self.filled += taken;
    }

    /// Copies as many of the bytes as there is room for in a segment of `whole` bytes; returns how many.
    ///
    /// # Errors
    /// What it needs first.
    pub fn write(&mut self, whole: usize, data: &[u8]) -> Result<usize, Missing> {
        let room = self.loan(whole, data.len())?;
        let taken = room.len();
        room.copy_from_slice(data.get(..taken).unwrap_or(&[]));
        self.advance(taken);
        Ok(taken - usize::from(taken > 0 && Flaw::CountsWriteShort.strikes()))
    }

    /// Writes as many of the bytes as there is room for, into segments of `whole` bytes that leave when they are full; how many.
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

    /// Sends what was written.
    pub fn flush<T: Transport, M: BlockMemory, P: SpacePolicy>(&mut self, engine: &mut Engine<'_, T, M, P>) {
        if self.filled > 0 && !Flaw::KeepsWritten.strikes() {
            self.submit(engine, Ending::Open);
        }
    }

    /// Sends what was written as the last of the stream. Whether it is over, as it is by a relay when that has taken it; else there is no
    /// block for it, or no answer: call again after a poll.
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
        self.poll_taken(engine).map_or(Ok(false), |taken| taken.map(|()| true))
    }

    /// Takes a block of the engine, if it has none. `false`: there is none now.
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

    /// The segment as it leaves, to be submitted; `None` when there is no block.
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
        self.segment = self.segment.wrapping_add(1);
        (self.filled, self.lent) = (0, 0);
        self.over = ending != Ending::Open;
        Some(block)
    }

    /// Fills a segment with these bytes, whatever it held: one that is no data, and says so by its `kind`. `false` when they do not fit,
    /// or there is no block.
    pub fn fill(&mut self, kind: u16, bytes: &[u8]) -> bool {
        let route = self.route(kind);
        let Some(block) = &mut self.block else { return false };
        block.rewind(Packer::new());
        let Ok(room) = block.reserve(route, bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        (self.filled, self.lent) = (bytes.len(), 0);
        true
    }

    /// The data is on its way by other means: a stream that is abandoned from now on ends normally.
    pub fn deliver(&mut self) {
        self.delivered = true;
    }

    /// State of the stream's route.
    pub fn state<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &self,
        engine: &Engine<'_, T, M, P>,
    ) -> StreamState {
        engine.stream_state(self.group)
    }

    /// Errors that prevent delivery of what was submitted.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn check<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &self,
        engine: &Engine<'_, T, M, P>,
    ) -> Result<(), StreamError> {
        match self.state(engine) {
            _ if engine.has_failed(self.to.node()) => Err(StreamError::PeerFailed),
            // It is up again, but the reader has lost the stream.
            StreamState::Cut => Err(StreamError::PeerFailed),
            StreamState::Stopped => Err(StreamError::Stopped),
            StreamState::Taken | StreamState::Asked => Ok(()),
        }
    }

    /// Of a stream whose last segment was submitted: whether its relay, if it goes by one, has taken it; `None` as long as that has not
    /// answered.
    pub fn poll_taken<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &self,
        engine: &Engine<'_, T, M, P>,
    ) -> Option<Result<(), StreamError>> {
        let asked = self.state(engine) == StreamState::Asked && !engine.has_failed(self.to.node());
        (!asked).then(|| self.check(engine))
    }

    /// Tells the reader that nothing more comes, though the data has not ended; or that it has, if it was [delivered](Self::deliver).
    pub fn give_up<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        engine: &mut Engine<'_, T, M, P>,
    ) {
        // A reader that has lost the stream would not know what of.
        let is_known = self.state(engine) != StreamState::Cut;
        if is_known && (self.segment > 0 || self.filled > 0) {
            self.filled = 0;
            // One try: if there is no block for it, the engine tells the receiver when it has the pipe and a block.
            self.block = self.block.take().or_else(|| engine.open(self.to.node()).ok());
            let ending = if self.delivered { Ending::Last } else { Ending::Aborted };
            if let Some(block) = self.seal(0, ending) {
                engine.submit(block);
            }
        } else if let Some(mut block) = self.block.take() {
            // Emptied, so that it just becomes vacant.
            block.rewind(Packer::new());
            engine.submit(block);
        }
        self.over = true;
    }

    /// Gives the pipe back. A stream that is not [over](Self::is_over) is given up; its pipe stays busy until its reader is told. Called
    /// once.
    ///
    /// # Errors
    /// As [`Engine::close_stream`].
    pub fn close<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        engine: &mut Engine<'_, T, M, P>,
    ) -> Result<(), PipeError> {
        if !self.over {
            self.give_up(engine);
        }
        if let Some(mut block) = self.block.take() {
            block.rewind(Packer::new());
            engine.submit(block);
        }
        engine.close_stream(self.group)
    }
}

/// The room of a segment, reserved anew at the same place each time, whole: its true length is set when it leaves.
fn room(block: &mut OpenBlock, route: Route, whole: usize) -> &mut [u8] {
    block.rewind(Packer::new());
    block.reserve(route, whole).unwrap_or(&mut [])
}
