//! What a host sends: what its traffic makes due, and the segments of the streams that it has begun.

use pdbp_core::cdu::{CduClass, Full, Route, SegmentHeader, flag};
use pdbp_core::engine::{SendError, StreamTag};
use pdbp_core::id::{NodeId, PartId, StreamNo, Time};
use pdbp_core::pipe::{PipeError, StreamState};
use pdbp_core::{OpenBlock, OpenError, Transport};

use super::check::{Breach, Invariant};
use super::host::{Host, Work, part, parts};
use super::mix::{self, Deed, Mix};
use super::payload::{Payload, Way};
use super::streams::{Outgoing, Written};
use super::trace_file::TraceEntry;
use crate::random::Random;

/// Messages sent in one run of a host at most.
const SENDS: u32 = 64;
/// Nodes of a set of destinations at most.
const SET: u64 = 4;
/// Nanoseconds between two segments of a stream at most.
const PAUSE: u64 = 200_000;
/// Nanoseconds after which a host looks again whether a relay has answered.
const ANSWER: u64 = 10_000;

/// What is done in place of a message that is due. What finds no room goes on later where it was.
#[derive(Debug)]
enum Job {
    Short,
    Command,
    Long { message: u32, bytes: usize, segment: u32, segments: u32 },
    Set { nodes: Vec<u16>, set: Vec<PartId>, done: usize },
    Stream,
}

/// A stream that the host writes.
#[derive(Debug)]
struct Stream {
    dest: u16,
    group: u16,
    number: StreamNo,
    segment: u32,
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
                Job::Long { message: *messages, bytes, segment: 0, segments }
            }
            Deed::Set => {
                let others = (0..random.below(SET)).map(|_| random.below(nodes.into()) as u16);
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
            Job::Short => self.send_short(entry, local, work),
            Job::Command => {
                let route = Route::new(CduClass::Command, 0, source, dest);
                self.put(entry.dest, Way::Urgent, (entry.at, entry.bytes), work, |block, data| {
                    block.push(route, data)
                })
            }
            Job::Long { message, bytes, segment, segments } => {
                let route = Route::new(CduClass::ShortMessage, 0, source, dest);
                let total = *bytes as u64 * u64::from(*segments);
                while segment < segments {
                    let header = SegmentHeader::new(*message, *segment, total);
                    let put = self.put(entry.dest, Way::Own, (entry.at, *bytes), work, |block, data| {
                        block.reserve_segment(route, header, data.len())?.copy_from_slice(data);
                        Ok(())
                    })?;
                    match put {
                        Put::Taken => *segment += 1,
                        other => return Ok(other),
                    }
                }
                Ok(Put::Taken)
            }
            Job::Set { nodes, set, done } => {
                let route = Route::new(CduClass::ShortMessage, 0, source, source);
                while let Some(node) = nodes.get(*done) {
                    let put = self.put(*node, Way::Own, (entry.at, entry.bytes), work, |block, data| {
                        block.reserve_set(route, set, None, data.len())?.copy_from_slice(data);
                        Ok(())
                    })?;
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
                self.send_short(entry, local, work)
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

    fn send_short(&mut self, entry: TraceEntry, local: Time, work: &mut Work) -> Result<Put, Breach> {
        let TraceEntry { at, dest, bytes, .. } = entry;
        let (Some(source), Some(to)) = (part(self.node()), part(dest)) else { return Ok(Put::Refused) };
        self.payload(dest, Way::Packed, at).write(bytes, &mut self.writer.message);
        let route = Route::new(CduClass::ShortMessage, 0, source, to);
        match self.engine.send(local, route, to, &self.writer.message) {
            Ok(()) => {
                self.taken(dest, Way::Packed, work);
                Ok(Put::Taken)
            }
            Err(SendError::Open(error)) => self.refused(dest, error),
            Err(error) => Err(refusal(dest, &error)),
        }
    }

    /// Sends one message in a block of its own.
    fn put(
        &mut self,
        dest: u16,
        way: Way,
        (at, bytes): (u64, usize),
        work: &mut Work,
        pack: impl FnOnce(&mut OpenBlock, &[u8]) -> Result<(), Full>,
    ) -> Result<Put, Breach> {
        let Some(node) = NodeId::new(dest) else { return Ok(Put::Refused) };
        let mut block = match self.engine.open(node) {
            Ok(block) => block,
            Err(error) => return self.refused(dest, error),
        };
        self.payload(dest, way, at).write(bytes, &mut self.writer.message);
        let packed = pack(&mut block, &self.writer.message);
        self.engine.submit(if way == Way::Urgent { block.into_urgent() } else { block });
        packed.map_err(|full| refusal(dest, &full))?;
        self.taken(dest, way, work);
        Ok(Put::Taken)
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
        // In the generation of this life.
        let source = self.engine.resolve(source.address()).unwrap_or(source);
        let (group, number) = match self.engine.open_stream(source, node) {
            Ok(stream) => stream,
            Err(PipeError::NoneIdle(..)) => return Ok(false),
            Err(error) => return Err(Breach::new(Invariant::Streams, error.to_string())),
        };
        let random = &mut self.writer.random;
        let (segments, gives_up) = (mix::segments(random), random.below(8) == 0);
        let stream = Stream { dest, group, number, segment: 0, segments, gives_up, next_at: now };
        self.writer.streams.push(stream);
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
            if let Some(sent) = self.streams.written.get_mut(&stream.number.0) {
                (sent.segments, sent.state) = (stream.segment, state);
                sent.told |= state == Written::Broken;
            }
            if state == Written::Open {
                self.writer.streams.insert(at, stream);
                at += 1;
            } else {
                let closed = self.engine.close_stream(stream.group);
                closed.map_err(|error| Breach::new(Invariant::Streams, error.to_string()))?;
            }
        }
        Ok(())
    }

    fn send_segment(&mut self, stream: &mut Stream, now: u64, work: &mut Work) -> Result<Written, Breach> {
        let Stream { dest, group, number, segment, .. } = *stream;
        self.check_state(stream)?;
        if segment == stream.segments {
            return Ok(self.ended(stream, now, work));
        }
        if self.streams.was_told(number) {
            return Ok(Written::Broken);
        }
        let (Some(source), Some(to)) = (part(self.node()), part(dest)) else { return Ok(Written::Broken) };
        if stream.next_at > now {
            work.wants(stream.next_at);
            return Ok(Written::Open);
        }
        let last = segment + 1 == stream.segments;
        let first = if segment == 0 { flag::FIRST } else { 0 };
        let end = if stream.gives_up { flag::LAST | flag::ABORTED } else { flag::LAST };
        let tag = StreamTag { group, number, segment, dest: to, flags: first | if last { end } else { 0 } };
        let bytes = mix::segment_bytes(self.engine.config().body, &mut self.writer.random);
        let route = Route::new(CduClass::Stream, 0, source, to);
        let way = if self.engine.is_relayed(to.node()) { Way::Relayed } else { Way::Own };
        let put = self.put(dest, way, (now, bytes), work, |block, data| {
            block.set_stream(tag);
            block.push(route, data)
        })?;
        match put {
            // As a message that finds no room: something will come back of the peer.
            Put::Blocked => return Ok(Written::Open),
            Put::Refused => return Ok(Written::Broken),
            Put::Taken => stream.segment += 1,
        }
        if last {
            return Ok(self.ended(stream, now, work));
        }
        stream.next_at = now + self.writer.random.below(PAUSE);
        work.wants(stream.next_at);
        Ok(Written::Open)
    }

    /// What the engine says of a stream that is not over is what its host was told.
    fn check_state(&self, stream: &Stream) -> Result<(), Breach> {
        let (state, told) = (self.engine.stream_state(stream.group), self.streams.was_told(stream.number));
        let ended = matches!(state, StreamState::Cut | StreamState::Stopped);
        // A destination that is no member is told of before its relay has stopped what goes there.
        let relayed = NodeId::new(stream.dest).is_some_and(|node| self.engine.is_relayed(node));
        if ended == told || (told && relayed) {
            return Ok(());
        }
        let what = format!("stream {} to node{} is {state:?}; told: {told}", stream.number.0, stream.dest);
        Err(Breach::new(Invariant::Streams, what))
    }

    /// Of a stream whose last segment was submitted.
    fn ended(&self, stream: &Stream, now: u64, work: &mut Work) -> Written {
        let asked = self.engine.stream_state(stream.group) == StreamState::Asked;
        if asked && !self.streams.was_told(stream.number) {
            work.wants(now + ANSWER);
            return Written::Open;
        }
        if stream.gives_up { Written::GivenUp } else { Written::Finished }
    }
}

fn refusal(dest: u16, error: &dyn std::fmt::Debug) -> Breach {
    Breach::new(Invariant::Accounted, format!("a message to node{dest} was refused: {error:?}"))
}
