//! Streams and long messages as a gateway forwards them: many at a time by one part, without waiting for any.

use pdbp_core::cdu::{CduClass, SegmentHeader};
use pdbp_core::inbox::{Accepted, StreamKey};
use pdbp_core::outbox::{Hop, LongSend, Outgoing, StreamError, StreamOut};
use pdbp_core::pipe::PipeError;

use super::{Segment, StreamReader};
use crate::error::{RecvError, SendError};
use crate::node::NodeEngine;
use crate::part::inbox::Source;
use crate::part::sending::{Patience, failed};
use crate::part::{Part, Share, Target};

impl<S: Share> Part<S> {
    /// Begins a message longer than a block. The part forwards one such message at a time, and sends none by
    /// other calls.
    pub(crate) fn begin_passing(&self, to: Target, message: Vec<u8>) -> LongSend<Vec<u8>> {
        let number = self.next_message.get();
        self.next_message.set(number.wrapping_add(1));
        let most = self.shared().longest_to(to.node()) - size_of::<SegmentHeader>();
        LongSend::new((self.id(), to), number, message, most)
    }

    /// Sends as much of the message as there is room for.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if some is left.
    pub(crate) fn advance_passing(&self, long: &mut LongSend<Vec<u8>>) -> Result<(), SendError> {
        let (node, bytes) = (long.dest().node(), long.message().len());
        self.when_room((node, bytes), Patience::None, None, |engine, now| {
            self.lanes.send(now, |outbox| long.poll(outbox, engine, now, Hop::to_node(node)))
        })
    }

    /// Ends the message: all of it was sent, or it is given up.
    pub(crate) fn end_passing(&self, long: &LongSend<Vec<u8>>, sent: bool) {
        long.end(&mut self.shared().engine(), sent);
    }

    /// Sends a command that waits its turn, as messages do, and shares blocks with them: however many there are, others can overtake them.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if there is no room.
    pub(crate) fn pass_command(&self, to: Target, number: u16, data: &[u8]) -> Result<(), SendError> {
        self.await_target(to, Patience::None)?;
        let route = self.route(to, CduClass::Command, number);
        self.pack(to.node(), &Outgoing::message(route, data), Patience::None)
    }

    /// The next stream opened to this part, if its first segment has arrived.
    pub(crate) fn accept_passing(&self) -> Option<Accepted> {
        self.inbox().accept(&mut Source(self))
    }

    /// The next segment of a stream; `Some(None)` at its end.
    ///
    /// # Errors
    /// [`RecvError::StreamBroken`] if the stream was given up.
    pub(crate) fn passing_segment(&self, key: StreamKey) -> Result<Option<Option<Segment<S>>>, RecvError> {
        let mut reader = StreamReader::of(self, Accepted { key, source: self.id() });
        let taken = reader.take();
        // Only this temporary reader is over; otherwise dropping it would discard the stream.
        reader.over = true;
        Ok(taken?.map(|segment| segment.map(Segment::whole)))
    }

    /// Discards the rest of a stream, and whatever still arrives of it.
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

    /// Writes as much as there is room for now; returns the number of bytes.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if there is none at all.
    pub(crate) fn write_passing(&self, out: &mut StreamOut, data: &[u8]) -> Result<usize, SendError> {
        let whole = self.shared().longest_to(out.dest().node());
        self.on_passing(out, |out, engine| {
            let written = out.poll_write(engine, whole, data)?;
            Ok((written > 0).then_some(written))
        })
    }

    /// Sends what has been written.
    pub(crate) fn flush_passing(&self, out: &mut StreamOut) {
        let mut engine = self.shared().engine();
        out.flush(&mut engine);
        self.poll_with(&mut engine);
    }

    /// Sends what has been written as the last of the stream.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if there is no block for it, or the relay on its route has not answered.
    pub(crate) fn finish_passing(&self, out: &mut StreamOut) -> Result<(), SendError> {
        self.on_passing(out, |out, engine| Ok(out.poll_finish(engine)?.then_some(())))
    }

    /// Calls `f` on a stream, and again after a poll if there was no room.
    fn on_passing<R>(
        &self,
        out: &mut StreamOut,
        mut attempt: impl FnMut(&mut StreamOut, &mut NodeEngine) -> Result<Option<R>, StreamError>,
    ) -> Result<R, SendError> {
        let mut engine = self.shared().engine();
        for _ in 0..2 {
            let done = attempt(out, &mut engine).map_err(|_| failed(&engine, out.dest().node()))?;
            if done.is_none() {
                // Open blocks of this part may be what fills the row.
                self.flush_lanes(&mut engine);
            }
            self.poll_with(&mut engine);
            if let Some(done) = done {
                return Ok(done);
            }
        }
        Err(SendError::WouldBlock)
    }

    /// Closes the stream. If it has not ended, its reader is notified.
    pub(crate) fn close_passing(&self, mut out: StreamOut) {
        let mut engine = self.shared().engine();
        // Taken in `open_passing` and returned only here.
        let _ = out.close(&mut engine);
        self.poll_with(&mut engine);
    }
}
