//! Streams and long messages as a gateway passes them on: many at a time by one part, none of which waits.

use pdbp_core::cdu::SegmentHeader;
use pdbp_core::inbox::{Accepted, StreamKey};
use pdbp_core::outbox::{Ending, Hop, LongSend, Missing, StreamOut};
use pdbp_core::pipe::PipeError;

use super::{SEGMENT, Segment, StreamReader};
use crate::error::{RecvError, SendError};
use crate::part::inbox::Source;
use crate::part::sending::{Patience, failed};
use crate::part::{Part, Share, Target};

impl<S: Share> Part<S> {
    /// A message longer than a block. The part has one at a time, and sends none by other calls.
    pub(crate) fn begin_passing(&self, to: Target, message: Vec<u8>) -> LongSend<Vec<u8>> {
        let number = self.next_message.get();
        self.next_message.set(number.wrapping_add(1));
        let most = self.shared().longest_to(to.node()) - size_of::<SegmentHeader>();
        LongSend::new((self.id(), to), number, message, most)
    }

    /// Sends as much of it as there is room for.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] when some is left.
    pub(crate) fn advance_passing(&self, long: &mut LongSend<Vec<u8>>) -> Result<(), SendError> {
        let (node, bytes) = (long.dest().node(), long.message().len());
        self.when_room((node, bytes), Patience::None, None, |engine, now| {
            self.lanes.send(now, |outbox| long.poll(outbox, engine, now, Hop::to_node(node)))
        })
    }

    /// It was sent, or is given up.
    pub(crate) fn end_passing(&self, long: &LongSend<Vec<u8>>, sent: bool) {
        long.end(&mut self.shared().engine(), sent);
    }

    /// The next stream that somebody has opened to this part, if its first segment has come.
    pub(crate) fn accept_passing(&self) -> Option<Accepted> {
        self.inbox().accept(&mut Source(self))
    }

    /// The next segment of a stream; `Some(None)` at its end.
    ///
    /// # Errors
    /// [`RecvError::StreamBroken`] when it was given up.
    pub(crate) fn passing_segment(&self, key: StreamKey) -> Result<Option<Option<Segment<S>>>, RecvError> {
        let mut reader = StreamReader::of(self, Accepted { key, source: self.id() });
        let taken = reader.take();
        // Only this look is: so that the stream is not discarded.
        reader.over = true;
        Ok(taken?.map(|segment| segment.map(Segment::whole)))
    }

    /// Discards what is left of a stream, and what still comes.
    pub(crate) fn forget_passing(&self, key: StreamKey) {
        drop(StreamReader::of(self, Accepted { key, source: self.id() }));
    }

    /// Opens a stream to a part.
    ///
    /// # Errors
    /// See [`Part::open_stream`].
    pub(crate) fn open_passing(&self, to: Target) -> Result<StreamOut, PipeError> {
        StreamOut::open(&mut self.shared().engine(), self.id(), to)
    }

    /// Writes as much as there is room for now, and returns how much.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if there is none at all.
    pub(crate) fn write_passing(&self, out: &mut StreamOut, data: &[u8]) -> Result<usize, SendError> {
        let whole = self.shared().longest_to(out.dest().node());
        loop {
            match out.write(whole, data) {
                Ok(written) => return Ok(written),
                Err(Missing::Room) => self.send_passing(out, Ending::Open)?,
                Err(Missing::Block) => self.room_for_passing(out)?,
                Err(Missing::Stream) => return Err(SendError::StreamFinished(out.number())),
            }
        }
    }

    fn room_for_passing(&self, out: &mut StreamOut) -> Result<(), SendError> {
        let (block, _) = self.open_block(out.dest().node(), Patience::None)?;
        let before = out.give_block(block);
        debug_assert!(before.is_none(), "it was missing");
        before.into_iter().for_each(|block| self.shared().engine().submit(block));
        Ok(())
    }

    /// Sends what has been written, and what follows it.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`]: there is no block.
    pub(crate) fn send_passing(&self, out: &mut StreamOut, ending: Ending) -> Result<(), SendError> {
        if !out.has_block() {
            if out.filled() == 0 && ending == Ending::Open {
                return Ok(());
            }
            self.room_for_passing(out)?;
        }
        let sealed = out.seal(SEGMENT, ending);
        let mut engine = self.shared().engine();
        let checked = out.check(&engine).map_err(|_| failed(&engine, out.dest().node()));
        sealed.into_iter().for_each(|block| engine.submit(block));
        self.poll_with(&mut engine);
        checked
    }

    /// Whether a stream that was sent to its end has been taken, by its relay if it goes by one.
    ///
    /// # Errors
    /// The relay has not got room for it.
    pub(crate) fn has_taken_passing(&self, out: &StreamOut) -> Result<bool, SendError> {
        let engine = self.shared().engine();
        match out.poll_taken(&engine) {
            None => Ok(false),
            Some(taken) => taken.map(|()| true).map_err(|_| failed(&engine, out.dest().node())),
        }
    }

    /// Gives the stream back; its reader is told if it has not ended.
    pub(crate) fn close_passing(&self, mut out: StreamOut) {
        let mut engine = self.shared().engine();
        // Taken in `open_passing` and given back only here.
        let _ = out.close(&mut engine);
        self.poll_with(&mut engine);
    }
}
