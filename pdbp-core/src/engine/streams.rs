//! Streams sent by this node: opening, closing and aborting them, and their acceptance or refusal by relays.

use super::{Engine, Event, OpenError, PrivatePipes, StreamTag};
use crate::cdu::{CduClass, Route, Via};
use crate::id::{NodeId, PartId, StreamNo};
use crate::outbox::Ending;
use crate::pipe::{PipeError, PipeKind, StreamEnd, StreamMapping, StreamState};
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Takes a public stream pipe for a stream of `part` to a part of node `dest`, and numbers the stream. The pipe is busy until
    /// [`close_stream`](Self::close_stream) and, if that gives the stream up, until the reader has been notified. Some time after
    /// the first block, [`stream_state`](Self::stream_state) shows whether a relay has room for the stream.
    ///
    /// # Errors
    /// [`PipeError::NoneIdle`], [`PipeError::NoSuchPart`].
    pub fn open_stream(&mut self, part: PartId, dest: NodeId) -> Result<(u16, StreamNo), PipeError> {
        self.check_hosted(part)?;
        let pipe = self.pipes.take(PipeKind::Stream, part.local())?;
        let number = StreamNo(self.next_stream);
        self.next_stream = self.next_stream.wrapping_add(1).max(1);
        let state = if self.is_relayed(dest) { StreamState::Requested } else { StreamState::Established };
        self.pipes.begin_stream(pipe, (number, dest), state);
        Ok((pipe.0 - self.pipes.stream_base(), number))
    }

    /// Returns the route state of a stream, given its pipe and number. With a direct link, it is `Established` until the link
    /// fails. It is `Disconnected` once another stream has the pipe.
    pub fn stream_state(&self, (group, number): (u16, StreamNo)) -> StreamState {
        self.pipes.stream_state(self.pipes.stream_pipe(group), number)
    }

    /// Returns the public pipe of a stream, given its pipe and number. A stream whose last block has not been submitted is given
    /// up: behind everything submitted, its reader gets a last segment without data, marked as aborted, as soon as there is room
    /// for it. Until then the pipe stays busy. So a writer needs neither a block nor a reachable destination to abort. If the
    /// stream was given up before a relay answered, and the relay has no room for it, nothing of it arrives, and nobody is
    /// notified.
    ///
    /// # Errors
    /// [`PipeError::NotBound`] if it was returned before, also by [removing](Self::free) its part.
    pub fn close_stream(&mut self, stream: (u16, StreamNo)) -> Result<(), PipeError> {
        self.close_stream_as(stream, Ending::Aborted)
    }

    /// As [`close_stream`](Self::close_stream), but a stream whose last block has not been submitted ends like this.
    pub(crate) fn close_stream_as(
        &mut self,
        (group, number): (u16, StreamNo),
        ending: Ending,
    ) -> Result<(), PipeError> {
        self.pipes.close_stream(self.pipes.stream_pipe(group), number, ending)?;
        if !self.end_stream(group) {
            self.has_broken_streams = true;
        }
        Ok(())
    }

    /// Notifies the reader of a stream without a last segment, and frees its pipe. Returns `false` if there is no room now.
    fn end_stream(&mut self, group: u16) -> bool {
        let pipe = self.pipes.stream_pipe(group);
        let Some(StreamEnd { number, segment, source, dest, ending }) = self.pipes.ending(pipe) else {
            return true;
        };
        // The relay knows whether the destination is reachable; this node may not know it as a member.
        let relay = self.links.topology.relay_to(dest.node());
        let id = self.links.id(relay.unwrap_or(dest.node()));
        let via = relay.map(|_| Via { origin: self.config.node, dest: dest.node() });
        let tag = StreamTag { group, number, segment, dest, flags: ending.flags() };
        // Any other error means that the link is down, and the reader lost the stream with it.
        if let Err(OpenError::WouldBlock) = self.submit_end(id, via, source, tag) {
            return false;
        }
        let freed = self.pipes.give(pipe);
        debug_assert!(freed.is_ok(), "its holder has given it back, and nobody else frees it");
        true
    }

    /// Notifies readers of streams that were closed, as long as there is room. Sets `has_broken_streams` if any are left.
    pub(super) fn end_own_streams(&mut self) -> u32 {
        let mut worked = 0;
        for group in 0..self.config.stream_pipes {
            if self.pipes.is_ending(self.pipes.stream_pipe(group)) {
                let told = self.end_stream(group);
                worked += u32::from(told);
                self.has_broken_streams |= !told;
            }
        }
        worked
    }

    /// Submits a last segment without data.
    pub(super) fn submit_end(
        &mut self,
        id: LinkId,
        via: Option<Via>,
        source: u16,
        tag: StreamTag,
    ) -> Result<(), OpenError> {
        let mut block = self.open_row(id, tag.dest.node())?;
        block.packer.turn(via);
        // An empty block has room for an empty message.
        let _ = block.push(Route::raw(CduClass::Stream as u8, 0, source, tag.dest.local()), &[]);
        block.set_stream(tag);
        self.submit(block);
        Ok(())
    }

    /// Returns the streams arriving at this node: its part of MTA.
    pub fn stream_mappings(&self) -> impl Iterator<Item = &StreamMapping> {
        self.streams.iter()
    }

    /// Goes on with an arriving stream as if this segment were next.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, source: NodeId, number: StreamNo, segment: u32) {
        if let Some(mapping) = self.streams.find(source, number) {
            mapping.segment = segment;
        }
    }

    /// Numbers streams from the beginning, as after a restart.
    #[cfg(test)]
    pub(crate) fn renumber_streams(&mut self) {
        self.next_stream = 1;
    }

    /// Discards the rest of an arriving stream as it arrives, because its reader has gone. Only its end is delivered.
    pub fn ignore_stream(&mut self, source: NodeId, number: StreamNo) {
        if let Some(mapping) = self.streams.find(source, number) {
            mapping.ignored = true;
        }
    }

    /// Notes that a relay has accepted or refused a stream of this node.
    pub(super) fn stream_answered(
        &mut self,
        relay: NodeId,
        (group, number): (u16, StreamNo),
        taken: bool,
        pipes: &mut impl PrivatePipes,
    ) {
        let (me, topology, pipe) = (self.config.node, self.links.topology, self.pipes.stream_pipe(group));
        let stream =
            self.pipes.stream(pipe, number).filter(|(_, dest, _)| topology.relay_to(*dest) == Some(relay));
        // The stream may have ended.
        let Some((local, dest, state)) = stream.filter(|(.., state)| **state != StreamState::Disconnected)
        else {
            return;
        };
        if *state == StreamState::Stopped {
            // Already known.
            return;
        }
        *state = if taken { StreamState::Established } else { StreamState::Stopped };
        if let Some(part) = PartId::new(me, local).filter(|_| !taken) {
            pipes.event(Event::StreamStopped { part, number, relay, dest });
        }
    }
}
