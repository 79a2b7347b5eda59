//! What a host sends: what its traffic makes due, and the segments of the streams that it has begun.

use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::engine::RoomError;
use pdbp_core::id::{NodeId, PartId, Time};
use pdbp_core::outbox::{Ending, LongMessage, Missing, Outbox, Outcome, SendError, StreamOut};
use pdbp_core::pipe::{PipeError, StreamState};
use pdbp_core::{OpenError, Transport, outbox};

use super::check::{Breach, Invariant};
use super::host::{Host, Work, part, parts};
use super::mix::{self, Deed, Mix};
use super::payload::{Payload, Way};
use super::reading::SET;
#[cfg(test)]
use super::sabotage::Slip;
use super::streams::{Outgoing, Written};
use super::trace_file::TraceEntry;
use crate::random::Random;

/// Messages sent in one run of a host at most.
const SENDS: u32 = 64;
/// Nodes of a set of destinations at most.
const NODES: u64 = 4;
/// Nanoseconds between two segments of a stream at most.
const PAUSE: u64 = 200_000;
/// Nanoseconds after which a host looks again whether a relay has answered.
const ANSWER: u64 = 10_000;
/// Nanoseconds after which a host looks again whether a long message has its room.
const ROOM: u64 = 100_000;

/// What is done in place of a message that is due. What finds no room goes on later where it was.
#[derive(Debug)]
enum Job {
    Short,
    Command,
    Long { long: LongMessage, number: u32, bytes: usize, segments: u32 },
    Set { nodes: Vec<u16>, set: Vec<PartId>, done: usize },
    Stream,
    Train { left: u32 },
}

/// A stream that the host writes.
#[derive(Debug)]
struct Stream {
    out: StreamOut,
    segments: u32,
    /// Its last segment says that it is given up.
    gives_up: bool,
    next_at: u64,
}

/// What a host is about to send.
#[derive(Debug)]
pub(super) struct Writer {
    mix: Mix,
    random: Random,
    job: Option<Job>,
    streams: Vec<Stream>,
    messages: u32,
    message: Vec<u8>,
}

impl Writer {
    pub(super) fn new(mix: Mix, seed: u64) -> Self {
        let random = Random::new(seed ^ 0x7772_6974);
        Self { mix, random, job: None, streams: Vec::new(), messages: 0, message: Vec::new() }
    }
}

/// What became of a message.
enum Put {
    Taken,
    /// No room now.
    Blocked,
    /// The peer cannot be reached.
    Refused,
}

impl<T: Transport> Host<T> {
    pub(super) fn send_due(
        &mut self,
        now: u64,
        until: u64,
        local: Time,
        work: &mut Work,
    ) -> Result<(), Breach> {
        self.send_segments(now, work)?;
        for _ in 0..SENDS {
            let Some(entry) = self.sender.next().filter(|entry| entry.at <= until) else { return Ok(()) };
            let mut job = match self.writer.job.take() {
                Some(job) => job,
                None => self.draw(entry),
            };
            if let Put::Blocked = self.go_on(&mut job, entry, (now, local), work)? {
                self.writer.job = Some(job);
                work.blocked = true;
                return Ok(());
            }
            self.sender.advance();
        }
        Ok(())
    }

    fn draw(&mut self, entry: TraceEntry) -> Job {
        let (body, nodes) = (self.engine.config().body, self.engine.config().nodes);
        let Writer { mix, random, messages, .. } = &mut self.writer;
        match mix.draw(random) {
            Deed::Short => Job::Short,
            Deed::Command => Job::Command,
            Deed::Stream => Job::Stream,
            Deed::Long => {
                *messages += 1;
                let (bytes, segments) = (mix::segment_bytes(body, random), mix::segments(random));
                let long = LongMessage::new(*messages, bytes * segments as usize, bytes);
                Job::Long { long, number: *messages, bytes, segments }
            }
            Deed::Train => Job::Train { left: mix::messages(random) },
            Deed::Set => {
                let others = (0..random.below(NODES)).map(|_| random.below(nodes.into()) as u16);
                let mut nodes: Vec<_> = others.chain([entry.dest]).collect();
                nodes.sort_unstable();
                nodes.dedup();
                let set = nodes.iter().flat_map(|node| parts(*node)).collect();
                Job::Set { nodes, set, done: 0 }
            }
        }
    }

    /// Does what there is room for; `Blocked` when there is more to do.
    fn go_on(
        &mut self,
        job: &mut Job,
        entry: TraceEntry,
        (now, local): (u64, Time),
        work: &mut Work,
    ) -> Result<Put, Breach> {
        let (Some(source), Some(dest)) = (part(self.node()), part(entry.dest)) else {
            return Ok(Put::Refused);
        };
        match job {
            Job::Short => self.send_short(entry, (source, dest), local, work),
            Job::Train { left } => self.send_train(entry, (source, dest), left, local, work),
            Job::Command => self.send_command(entry, Route::new(CduClass::Command, 0, source, dest), work),
            Job::Long { long, number, bytes, segments } => {
                // The reader is told by the command number how long each segment is.
                let route = Route::new(CduClass::ShortMessage, *bytes as u16, source, dest);
                let total = *bytes as u64 * u64::from(*segments);
                while let Some(piece) = long.piece() {
                    match self.engine.ask_room(source, dest, *number, total) {
                        Ok(true) => {}
                        Ok(false) => {
                            work.wants(now + ROOM);
                            return Ok(Put::Blocked);
                        }
                        Err(RoomError::PeerFailed(_)) => {
                            self.totals.refused += 1;
                            return Ok(Put::Refused);
                        }
                        Err(error) => return Err(refusal(entry.dest, &error)),
                    }
                    #[cfg(test)]
                    let piece = match self.slips(Slip::WrongSegment) {
                        true => Slip::next_segment(piece),
                        false => piece,
                    };
                    let outgoing = outbox::Outgoing::message(route, &[]).segment(piece.header);
                    let length = (entry.at, piece.range.len());
                    match self.send(entry.dest, length, local, work, outgoing)? {
                        Put::Taken => long.advance(),
                        Put::Blocked => return Ok(Put::Blocked),
                        Put::Refused => {
                            self.engine.end_room(source, false);
                            return Ok(Put::Refused);
                        }
                    }
                }
                self.engine.end_room(source, true);
                Ok(Put::Taken)
            }
            Job::Set { nodes, set, done } => {
                let route = Route::new(CduClass::ShortMessage, SET, source, source);
                while let Some(node) = nodes.get(*done) {
                    let outgoing = outbox::Outgoing::to_set(route, set, &[]);
                    let put = self.send(*node, (entry.at, entry.bytes), local, work, outgoing)?;
                    if let Put::Blocked = put {
                        return Ok(put);
                    }
                    *done += 1;
                }
                Ok(Put::Taken)
            }
            Job::Stream => {
                if self.begin_stream(entry.dest, source, now)? {
                    work.wants(now);
                    return Ok(Put::Taken);
                }
                *job = Job::Short;
                self.send_short(entry, (source, dest), local, work)
            }
        }
    }

    fn payload(&self, dest: u16, way: Way, sent_at: u64) -> Payload {
        let number = self.sent.get(&(dest, way)).copied().unwrap_or(0);
        Payload { source: self.node(), dest, life: self.life, way, number, sent_at }
    }

    fn taken(&mut self, dest: u16, way: Way, work: &mut Work) {
        *self.sent.entry((dest, way)).or_default() += 1;
        self.totals.sent += 1;
        work.messages += 1;
    }

    fn send_short(
        &mut self,
        TraceEntry { at, dest, bytes, .. }: TraceEntry,
        (source, to): (PartId, PartId),
        local: Time,
        work: &mut Work,
    ) -> Result<Put, Breach> {
        let route = Route::new(CduClass::ShortMessage, 0, source, to);
        self.send(dest, (at, bytes), local, work, outbox::Outgoing::message(route, &[]))
    }

    /// Sends as many messages of a train as there is room for; one of them is written in place.
    fn send_train(
        &mut self,
        entry: TraceEntry,
        (source, to): (PartId, PartId),
        left: &mut u32,
        local: Time,
        work: &mut Work,
    ) -> Result<Put, Breach> {
        let TraceEntry { at, dest, bytes, .. } = entry;
        let route = Route::new(CduClass::ShortMessage, 0, source, to);
        while *left > 0 {
            let hop = match self.engine.hop(to.node()) {
                Ok(hop) => hop,
                Err(error) => return self.refused(dest, error),
            };
            let (mut data, first) = (Vec::new(), self.payload(dest, Way::Packed, at));
            for i in 0..u64::from(*left) {
                Payload { number: first.number + i, ..first }.write(bytes, &mut self.writer.message);
                data.extend_from_slice(&self.writer.message);
            }
            let taken = match self.outbox.lend(hop, route, bytes) {
                Some(mut loan) if left.is_multiple_of(2) => {
                    loan.bytes_mut().copy_from_slice(data.get(..bytes).unwrap_or(&[]));
                    let before = self.outbox.end_loan(loan, Outcome::Committed);
                    debug_assert!(before.is_none(), "the lane's block was lent");
                    1
                }
                loan => {
                    let before = loan.and_then(|loan| self.outbox.end_loan(loan, Outcome::Undone));
                    debug_assert!(before.is_none(), "the lane's block was lent");
                    self.outbox.push_train(hop, route, &data, bytes, *left)
                }
            };
            (0..taken).for_each(|_| self.taken(dest, Way::Packed, work));
            *left -= taken;
            if taken == 0 {
                match self.send_short(entry, (source, to), local, work)? {
                    Put::Taken => *left -= 1,
                    other => return Ok(other),
                }
            }
        }
        Ok(Put::Taken)
    }

    /// Sends one message, or a piece of one, by the outbox: as `outgoing` says, with bytes that are written here.
    fn send(
        &mut self,
        dest: u16,
        (at, bytes): (u64, usize),
        local: Time,
        work: &mut Work,
        outgoing: outbox::Outgoing<'_>,
    ) -> Result<Put, Breach> {
        let Some(node) = NodeId::new(dest) else { return Ok(Put::Refused) };
        let hop = match self.engine.hop(node) {
            Ok(hop) => hop,
            Err(error) => return self.refused(dest, error),
        };
        self.payload(dest, Way::Packed, at).write(bytes, &mut self.writer.message);
        #[cfg(test)]
        let twice = self.slips(Slip::PackTwice);
        let outgoing = outgoing.with_bytes(&self.writer.message);
        let sent = self.outbox.send(&mut self.engine, local, hop, &outgoing);
        #[cfg(test)]
        if twice {
            let _ = self.outbox.send(&mut self.engine, local, hop, &outgoing);
        }
        self.put(dest, Way::Packed, sent, work)
    }

    fn send_command(&mut self, entry: TraceEntry, route: Route, work: &mut Work) -> Result<Put, Breach> {
        let TraceEntry { at, dest, bytes, .. } = entry;
        let Some(node) = NodeId::new(dest) else { return Ok(Put::Refused) };
        self.payload(dest, Way::Urgent, at).write(bytes, &mut self.writer.message);
        let sent = Outbox::send_urgent(&mut self.engine, node, route, &self.writer.message);
        self.put(dest, Way::Urgent, sent, work)
    }

    /// What became of a message, for the books.
    fn put(
        &mut self,
        dest: u16,
        way: Way,
        sent: Result<(), SendError>,
        work: &mut Work,
    ) -> Result<Put, Breach> {
        match sent {
            Ok(()) => {
                self.taken(dest, way, work);
                Ok(Put::Taken)
            }
            Err(SendError::Open(error)) => self.refused(dest, error),
            Err(error) => Err(refusal(dest, &error)),
        }
    }

    fn refused(&mut self, dest: u16, error: OpenError) -> Result<Put, Breach> {
        match error {
            OpenError::WouldBlock => Ok(Put::Blocked),
            OpenError::PeerFailed(peer) if self.engine.has_failed(peer) => {
                self.totals.refused += 1;
                Ok(Put::Refused)
            }
            error => Err(refusal(dest, &error)),
        }
    }

    /// `false`: there is no stream to be had, now or to that node.
    fn begin_stream(&mut self, dest: u16, source: PartId, now: u64) -> Result<bool, Breach> {
        let Some(node) = NodeId::new(dest) else { return Ok(false) };
        let Some(to) = part(dest) else { return Ok(false) };
        // In the generation of this life.
        let source = self.engine.resolve(source.address()).unwrap_or(source);
        let out = match StreamOut::open(&mut self.engine, source, to) {
            Ok(out) => out,
            Err(PipeError::NoneIdle(..)) => return Ok(false),
            Err(error) => return Err(Breach::new(Invariant::Streams, error.to_string())),
        };
        let random = &mut self.writer.random;
        let (segments, gives_up) = (mix::segments(random), random.below(8) == 0);
        let number = out.number();
        self.writer.streams.push(Stream { out, segments, gives_up, next_at: now });
        let relay = self.engine.relay_to(node).map(NodeId::raw);
        let begun = Outgoing { dest, relay, segments: 0, state: Written::Open, told: false };
        self.streams.written.insert(number.0, begun);
        Ok(true)
    }

    /// Sends the segments that are due, one of each stream, and ends the streams that are complete or broken: by a relay when that
    /// has said whether it has taken them.
    fn send_segments(&mut self, now: u64, work: &mut Work) -> Result<(), Breach> {
        let mut at = 0;
        while let Some(mut stream) = (at < self.writer.streams.len()).then(|| self.writer.streams.remove(at))
        {
            let state = self.send_segment(&mut stream, now, work)?;
            if let Some(sent) = self.streams.written.get_mut(&stream.out.number().0) {
                (sent.segments, sent.state) = (stream.out.segments(), state);
                sent.told |= state == Written::Broken;
            }
            if state == Written::Open {
                self.writer.streams.insert(at, stream);
                at += 1;
            } else {
                let closed = stream.out.close(&mut self.engine);
                closed.map_err(|error| Breach::new(Invariant::Streams, error.to_string()))?;
            }
        }
        Ok(())
    }

    fn send_segment(&mut self, stream: &mut Stream, now: u64, work: &mut Work) -> Result<Written, Breach> {
        self.check_state(stream)?;
        if stream.out.is_over() {
            return Ok(self.ended(stream, now, work));
        }
        if self.streams.was_told(stream.out.number()) {
            return Ok(Written::Broken);
        }
        if stream.next_at > now {
            work.wants(stream.next_at);
            return Ok(Written::Open);
        }
        let bytes = mix::segment_bytes(self.engine.config().body, &mut self.writer.random);
        match self.put_segment(stream, (now, bytes), work)? {
            // As a message that finds no room: something will come back of the peer.
            Put::Blocked => return Ok(Written::Open),
            Put::Refused => return Ok(Written::Broken),
            Put::Taken if stream.out.is_over() => return Ok(self.ended(stream, now, work)),
            Put::Taken => {}
        }
        stream.next_at = now + self.writer.random.below(PAUSE);
        work.wants(stream.next_at);
        Ok(Written::Open)
    }

    /// Writes the next segment of a stream, and submits it.
    fn put_segment(
        &mut self,
        stream: &mut Stream,
        (now, bytes): (u64, usize),
        work: &mut Work,
    ) -> Result<Put, Breach> {
        let Stream { out, segments, gives_up, .. } = stream;
        let node = out.dest().node();
        let block = match self.engine.open(node) {
            Ok(block) => block,
            Err(error) => return self.refused(node.raw(), error),
        };
        let before = out.give_block(block);
        debug_assert!(before.is_none(), "a segment leaves in the step in which it is begun");
        self.payload(node.raw(), Way::Stream, now).write(bytes, &mut self.writer.message);
        // A segment that gives the stream up has no data.
        let (ending, bytes) = match out.segments() + 1 == *segments {
            false => (Ending::Open, bytes),
            true if *gives_up => (Ending::Aborted, 0),
            true => (Ending::Last, bytes),
        };
        let written = match bytes {
            0 => Ok(0),
            _ => out.write(bytes, &self.writer.message),
        };
        if let Some(sealed) = out.seal(0, ending) {
            self.engine.submit(sealed);
        }
        if written != Ok(bytes) {
            return Err(refusal(node.raw(), &written.err().unwrap_or(Missing::Room)));
        }
        if bytes > 0 {
            self.taken(node.raw(), Way::Stream, work);
        }
        Ok(Put::Taken)
    }

    /// What the engine says of a stream that is not over is what its host was told.
    fn check_state(&self, stream: &Stream) -> Result<(), Breach> {
        let (number, dest) = (stream.out.number(), stream.out.dest().node());
        let (state, told) = (stream.out.state(&self.engine), self.streams.was_told(number));
        let ended = matches!(state, StreamState::Cut | StreamState::Stopped);
        // A destination that is no member is told of before its relay has stopped what goes there.
        let relayed = self.engine.is_relayed(dest);
        if ended == told || (told && relayed) {
            return Ok(());
        }
        let what = format!("stream {} to {dest} is {state:?}; told: {told}", number.0);
        Err(Breach::new(Invariant::Streams, what))
    }

    /// Of a stream whose last segment was submitted.
    fn ended(&self, stream: &Stream, now: u64, work: &mut Work) -> Written {
        let asked = stream.out.state(&self.engine) == StreamState::Asked;
        if asked && !self.streams.was_told(stream.out.number()) {
            work.wants(now + ANSWER);
            return Written::Open;
        }
        if stream.gives_up { Written::GivenUp } else { Written::Finished }
    }
}

fn refusal(dest: u16, error: &dyn std::fmt::Debug) -> Breach {
    Breach::new(Invariant::Accounted, format!("a message to node{dest} was refused: {error:?}"))
}
