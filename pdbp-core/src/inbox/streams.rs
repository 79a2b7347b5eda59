//! Incoming streams: accepted in the order in which they began, and read segment by segment.

use managed::ManagedSlice;

use super::lists::{Item, List, Lists};
use super::{Arrivals, Inbox};
use crate::flaw::Flaw;
use crate::id::{NodeId, PartId, StreamNo};

/// Identifies an arriving stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    source: NodeId,
    number: StreamNo,
    /// Distinguishes streams of the inbox, because a restarted node numbers its streams from the beginning.
    id: u32,
}

impl StreamKey {
    /// The node that sends it.
    pub fn source(&self) -> NodeId {
        self.source
    }

    /// Its number there (`Sno`).
    pub fn number(&self) -> StreamNo {
        self.number
    }
}

/// An incoming stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    key: StreamKey,
    source: PartId,
    segments: List,
    /// Whether the stream has yet to be accepted.
    new: bool,
    /// Whether the stream is read by [`Inbox::next_of_streams`].
    together: bool,
    ended: bool,
    broken: bool,
    /// Its reader has abandoned it: arriving segments are released.
    ignored: bool,
}

impl Incoming {
    /// Whether its reader would get something: a segment, or the end.
    fn is_readable(&self) -> bool {
        !self.segments.is_empty() || self.ended
    }
}

/// An accepted stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The stream.
    pub key: StreamKey,
    /// The part that writes it.
    pub source: PartId,
}

/// The next piece of a stream.
#[derive(Debug)]
pub enum Segment<H> {
    /// A segment: one CDU in the delivery.
    Data(H),
    /// The stream has ended; the inbox has forgotten it.
    End,
    /// The stream ended before its last segment; the inbox has forgotten it.
    Broken,
    /// Nothing has arrived.
    Nothing,
    /// There is no such stream: it has ended, or the pipe was released.
    Unknown,
}

/// Which segment a delivery is.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) number: StreamNo,
    pub(super) segment: u32,
    pub(super) last: bool,
    pub(super) aborted: bool,
}

/// The streams of an inbox: the first `used` of the table.
pub(super) struct Streams<'a> {
    table: ManagedSlice<'a, Option<Incoming>>,
    used: usize,
    /// Number of streams that have begun so far.
    begun: u32,
    /// Number of streams that have yet to be accepted.
    new: u32,
    /// Where in the table [`take_turn`](Self::take_turn) continues.
    turn: usize,
}

impl<'a> Streams<'a> {
    pub(super) fn new(mut table: ManagedSlice<'a, Option<Incoming>>) -> Self {
        table.iter_mut().for_each(|slot| *slot = None);
        Self { table, used: 0, begun: 0, new: 0, turn: 0 }
    }

    fn has_new(&self) -> bool {
        self.new > 0
    }

    /// Whether a stream is to be accepted, or one of those that are read together has something.
    pub(super) fn is_readable(&self) -> bool {
        let mut used = self.table.iter().take(self.used).flatten();
        self.has_new() || used.any(|stream| stream.together && stream.is_readable())
    }

    /// Sorts a segment. Returns whether it can be read.
    ///
    /// # Errors
    /// Hands the delivery back if there is no room for it.
    pub(super) fn sort<A: Arrivals>(
        &mut self,
        hold: A::Hold,
        piece: Piece,
        lists: &mut Lists<'_, A::Hold>,
        arrivals: &mut A,
    ) -> Result<bool, Item<A::Hold>> {
        let Piece { number, segment, last, aborted } = piece;
        let Some(delivery) = arrivals.delivery(&hold) else { return Err(Item::Hold(hold)) };
        let source = delivery.source();
        let first = segment == 0;
        if first && aborted {
            // Aborted before anything was sent: there is nothing to accept.
            arrivals.release(hold);
            return Ok(true);
        }
        if first {
            let train = delivery.cdus().next().and_then(Result::ok);
            let Some(part) = train.and_then(|train| PartId::new(source, train.source_part())) else {
                arrivals.release(hold);
                return Ok(false);
            };
            if lists.is_full() || !self.begin(part, number) {
                return Err(Item::Hold(hold));
            }
        }
        let Some(stream) = self.arriving(source, number) else {
            arrivals.release(hold);
            return Ok(true);
        };
        let kept = !stream.ignored && !aborted;
        if kept {
            lists.push(&mut stream.segments, Item::Hold(hold))?;
        } else {
            arrivals.release(hold);
        }
        stream.ended |= last && !Flaw::MissesEnd.strikes();
        stream.broken |= aborted;
        let over = (stream.ignored && stream.ended).then_some(stream.key);
        over.into_iter().for_each(|key| self.remove(key));
        Ok(true)
    }

    /// Begins a stream. Returns `false` if the table is full.
    fn begin(&mut self, source: PartId, number: StreamNo) -> bool {
        let Some(slot) = self.table.get_mut(self.used) else { return false };
        let (segments, new) = (List::EMPTY, true);
        let key = StreamKey { source: source.node(), number, id: self.begun };
        let (together, ended, broken, ignored) = (false, false, false, false);
        *slot = Some(Incoming { key, source, segments, new, together, ended, broken, ignored });
        self.used += 1;
        self.new += 1;
        self.begun = self.begun.wrapping_add(1);
        true
    }

    /// Records that no more of a stream will arrive.
    pub(super) fn mark_broken(&mut self, source: NodeId, number: StreamNo) {
        let Some(stream) = self.arriving(source, number) else { return };
        (stream.ended, stream.broken) = (true, true);
        let over = stream.ignored.then_some(stream.key);
        over.into_iter().for_each(|key| self.remove(key));
    }

    pub(super) fn clear<A: Arrivals>(&mut self, lists: &mut Lists<'_, A::Hold>, arrivals: &mut A) {
        for slot in self.table.iter_mut().take(self.used) {
            let Some(mut stream) = slot.take() else { continue };
            while let Some(hold) = lists.pop_hold(&mut stream.segments) {
                arrivals.release(hold);
            }
        }
        (self.used, self.new) = (0, 0);
    }

    fn accept(&mut self) -> Option<Accepted> {
        let at = self.oldest_new()?;
        self.welcome(at)
    }

    /// Where in the table the first is that began of the streams still to be accepted.
    fn oldest_new(&self) -> Option<usize> {
        let begun = self.begun;
        let streams = self.table.iter().take(self.used).enumerate();
        let new = streams
            .filter_map(|(at, stream)| stream.as_ref().filter(|stream| stream.new).map(|s| (at, s.key.id)));
        // The count wraps around.
        new.max_by_key(|(_, id)| begun.wrapping_sub(*id)).map(|(at, _)| at)
    }

    /// The stream at this place of the table is accepted.
    fn welcome(&mut self, at: usize) -> Option<Accepted> {
        let stream = self.table.get_mut(at)?.as_mut()?;
        self.new -= u32::from(core::mem::take(&mut stream.new));
        Some(Accepted { key: stream.key, source: stream.source })
    }

    /// Returns the next stream with something to read, among those read together; new streams join them.
    fn take_turn(&mut self) -> Option<Accepted> {
        let (first, used) = (self.turn, self.used);
        let mut turns = (first..used).chain(0..first.min(used));
        let at = turns.find(|at| {
            let stream = self.table.get(*at).and_then(Option::as_ref);
            stream.is_some_and(|stream| (stream.new || stream.together) && stream.is_readable())
        })?;
        let is_new = self.table.get(at)?.is_some_and(|stream| stream.new);
        // New streams are met in the order in which they began, wherever they lie. Those that are met early keep the turn where it is.
        let oldest = if is_new { self.oldest_new()? } else { at };
        self.turn = if oldest == at { at + 1 } else { at };
        let stream = self.table.get_mut(oldest)?.as_mut()?;
        stream.together = true;
        self.welcome(oldest)
    }

    /// Returns the stream with this number that has not ended.
    fn arriving(&mut self, source: NodeId, number: StreamNo) -> Option<&mut Incoming> {
        let mut streams = self.table.iter_mut().take(self.used).flatten();
        streams.find(|s| !s.ended && (s.key.source, s.key.number) == (source, number))
    }

    fn find(&mut self, key: StreamKey) -> Option<&mut Incoming> {
        self.table.iter_mut().take(self.used).flatten().find(|stream| stream.key == key)
    }

    fn remove(&mut self, key: StreamKey) {
        let is_it = |slot: &Option<Incoming>| slot.is_some_and(|stream| stream.key == key);
        let Some(at) = self.table.iter().take(self.used).position(is_it) else { return };
        let last = self.used - 1;
        if let Some(stream) = self.table.get_mut(at).and_then(Option::take) {
            self.new -= u32::from(stream.new);
        }
        if at < last {
            self.table.swap(at, last);
        }
        self.used = last;
    }
}

impl<H, B> Inbox<'_, H, B> {
    /// Accepts the next stream opened to this part, if its first segment has arrived.
    pub fn accept<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> Option<Accepted> {
        while !self.streams.has_new() && self.pull(arrivals) {}
        self.streams.accept()
    }

    /// Returns the next piece of an accepted stream.
    pub fn next_segment<A: Arrivals<Hold = H, Buffer = B>>(
        &mut self,
        key: StreamKey,
        arrivals: &mut A,
    ) -> Segment<H> {
        loop {
            let Some(stream) = self.streams.find(key) else { return Segment::Unknown };
            if let Some(hold) = self.lists.pop_hold(&mut stream.segments) {
                return Segment::Data(hold);
            }
            if stream.ended {
                let broken = stream.broken && !Flaw::EndsGivenUp.strikes();
                self.streams.remove(key);
                return if broken { Segment::Broken } else { Segment::End };
            }
            if !self.pull(arrivals) {
                return Segment::Nothing;
            }
        }
    }

    /// Returns the next piece of any stream that was not [accepted](Self::accept): the caller reads all these streams together.
    /// Streams with something to read take turns, and new ones are met in the order in which they began. The piece is data, or the end of a stream.
    pub fn next_of_streams<A: Arrivals<Hold = H, Buffer = B>>(
        &mut self,
        arrivals: &mut A,
    ) -> Option<(Accepted, Segment<H>)> {
        while self.pull(arrivals) {}
        let stream = self.streams.take_turn()?;
        Some((stream, self.next_segment(stream.key, arrivals)))
    }

    /// Returns one of the streams being read together, if any.
    pub fn read_together(&self) -> Option<StreamKey> {
        self.streams.table.iter().take(self.streams.used).flatten().find(|s| s.together).map(|s| s.key)
    }

    /// Returns the next unread segment that has arrived, if any.
    pub fn waiting_segment(&mut self, key: StreamKey) -> Option<&H> {
        let segments = self.streams.find(key)?.segments;
        match self.lists.front(&segments)? {
            Item::Hold(hold) => Some(hold),
            Item::Failed(_) => None,
        }
    }

    /// Discards the stream: segments received, segments still in the pipe (as many as there is room to sort the arrivals between
    /// them), and all future ones. Returns whether the engine may [ignore](crate::Engine::ignore_stream) it from now on: as far
    /// as the pipe could be read, it is still arriving, so its number is not that of a later stream of a restarted node.
    pub fn forget<A: Arrivals<Hold = H, Buffer = B>>(&mut self, key: StreamKey, arrivals: &mut A) -> bool {
        let Some(stream) = self.streams.find(key) else { return false };
        while let Some(hold) = self.lists.pop_hold(&mut stream.segments) {
            arrivals.release(hold);
        }
        (stream.ignored, stream.together) = (true, false);
        if stream.ended {
            self.streams.remove(key);
            return false;
        }
        while self.pull(arrivals) {}
        self.streams.find(key).is_some()
    }
}
