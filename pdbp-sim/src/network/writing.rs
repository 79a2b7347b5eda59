//! What a host sends: the messages that its traffic makes due, and the records of the streams that it has begun.

use std::collections::BTreeMap;

use pdbp_core::Transport;
use pdbp_core::endpoint::{LongSend, SendError, SetSend};
use pdbp_core::id::{NodeId, PartId};
use pdbp_core::outbox::{StreamError, StreamOut};
use pdbp_core::pipe::{PipeError, StreamState};

use super::check::{Breach, Invariant};
use super::host::{Host, Work, part, parts};
use super::mix::{self, Deed, Mix};
use super::payload::{Channel, PAYLOAD, Payload};
#[cfg(test)]
use super::sabotage::Slip;
use super::streams::{self, Outgoing, Written};
use super::trace_file::TraceEntry;
use crate::random::Random;

/// Maximum number of messages sent in one run of a host.
const SENDS: u32 = 64;
/// Maximum number of nodes in a set of destinations.
const NODES: u64 = 4;
/// Maximum nanoseconds between two records of a stream.
const PAUSE: u64 = 200_000;
/// Nanoseconds after which a host checks again whether a relay has answered.
const ANSWER: u64 = 10_000;
/// Nanoseconds after which a host checks again whether a long message has its room.
const ROOM: u64 = 100_000;

/// What is done in place of a message that is due. A job that finds no room continues later where it stopped.
#[derive(Debug)]
enum Job {
    Short,
    Command,
    /// A long message of this many bytes.
    Long(usize),
    LongBegun(LongSend<Vec<u8>>),
    /// A message to all parts of these nodes.
    Set(Vec<u16>),
    SetBegun(SetSend<Vec<PartId>, Vec<u8>>),
    Stream,
    /// This many more messages.
    Train(u32),
}

/// A stream being written by the host.
#[derive(Debug)]
struct Stream {
    out: StreamOut,
    /// Number of records still to be written.
    left: u32,
    /// Whether it is aborted in place of its last record.
    gives_up: bool,
    next_at: u64,
    /// The record being written, and how much of it has been written.
    record: Vec<u8>,
    written: usize,
    /// Number of records written but not flushed.
    unflushed: u64,
}

/// The state of a host's sending.
#[derive(Debug)]
pub(super) struct Writer {
    mix: Mix,
    random: Random,
    job: Option<Job>,
    streams: Vec<Stream>,
    message: Vec<u8>,
    /// Number of stream records that have been numbered, by destination.
    records: BTreeMap<u16, u64>,
}

impl Writer {
    pub(super) fn new(mix: Mix, seed: u64) -> Self {
        let random = Random::new(seed ^ 0x7772_6974);
        let (streams, message, records) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { mix, random, job: None, streams, message, records }
    }

    /// Whether something, other than a stream, was begun and is still to be sent.
    pub(super) fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    /// Takes the open streams.
    pub(super) fn take_streams(&mut self) -> impl Iterator<Item = StreamOut> {
        std::mem::take(&mut self.streams).into_iter().map(|stream| stream.out)
    }
}

/// The outcome of sending a message.
enum Put {
    Taken,
    /// No room now.
    Blocked,
    /// The peer cannot be reached.
    Refused,
}

impl<T: Transport + 'static> Host<T> {
    pub(super) fn send_due(&mut self, now: u64, until: u64, work: &mut Work) -> Result<(), Breach> {
        self.write_streams(now, work)?;
        if let Some(until) = self.supersteps.silent_until().filter(|until| now < *until) {
            // Treated as if there were no room: checked again then, or when the superstep is over.
            work.blocked = true;
            work.wants(until);
            return Ok(());
        }
        for _ in 0..SENDS {
            let Some(entry) = self.sender.next().filter(|entry| entry.at <= until) else { return Ok(()) };
            let mut job = match self.writer.job.take() {
                Some(job) => job,
                None => self.draw(entry),
            };
            if let Put::Blocked = self.go_on(&mut job, entry, now, work)? {
                self.writer.job = Some(job);
                work.blocked = true;
                return Ok(());
            }
            self.sender.advance();
        }
        Ok(())
    }

    fn draw(&mut self, entry: TraceEntry) -> Job {
        let (body, nodes) = (self.engine().config().body, self.engine().config().nodes);
        let Writer { mix, random, .. } = &mut self.writer;
        match mix.draw(random) {
            Deed::Short => Job::Short,
            Deed::Command => Job::Command,
            Deed::Stream => Job::Stream,
            Deed::Long => Job::Long(mix::segment_bytes(body, random) * mix::segments(random) as usize),
            Deed::Train => Job::Train(mix::messages(random)),
            Deed::Set => {
                let others = (0..random.below(NODES)).map(|_| random.below(nodes.into()) as u16);
                let mut nodes: Vec<_> = others.chain([entry.dest]).collect();
                nodes.sort_unstable();
                nodes.dedup();
                Job::Set(nodes)
            }
        }
    }

    /// Does as much as there is room for; `Blocked` if more remains to be done.
    fn go_on(&mut self, job: &mut Job, entry: TraceEntry, now: u64, work: &mut Work) -> Result<Put, Breach> {
        let TraceEntry { at, dest, bytes, .. } = entry;
        let (Some(source), Some(to)) = (self.parts.first().copied(), part(dest)) else {
            return Ok(Put::Refused);
        };
        match job {
            Job::Short => self.send_short(entry, (source, to), work),
            Job::Train(left) => self.send_train(entry, (source, to), left, work),
            Job::Command => {
                self.payload(dest, Channel::Urgent, at).write(bytes, &mut self.writer.message);
                let sent = self.endpoint.send_command(source, to, 0, &self.writer.message);
                self.put(dest, Channel::Urgent, sent, work)
            }
            Job::Long(bytes) => {
                let mut message = Vec::new();
                self.payload(dest, Channel::Packed, at).write(*bytes, &mut message);
                let begun = self.endpoint.begin_long(source, to, message);
                *job = Job::LongBegun(begun.map_err(|error| refusal(dest, &error))?);
                self.go_on(job, entry, now, work)
            }
            Job::LongBegun(sending) => match self.endpoint.poll_long(sending) {
                Ok(false) => {
                    work.wants(now + ROOM);
                    Ok(Put::Blocked)
                }
                Err(SendError::PeerFailed(_)) => {
                    // Its link may be up again, but the room that it had granted is gone.
                    self.totals.refused += 1;
                    Ok(Put::Refused)
                }
                sent => self.put(dest, Channel::Packed, sent.map(|_| ()), work),
            },
            Job::Set(nodes) => {
                let message = self.set_message(nodes, entry);
                let set: Vec<_> = nodes.iter().flat_map(|node| parts(*node)).collect();
                let begun = self.endpoint.begin_set(source, set, message);
                *job = Job::SetBegun(begun.map_err(|error| refusal(dest, &error))?);
                self.go_on(job, entry, now, work)
            }
            Job::SetBegun(sending) => self.send_set(sending, work),
            Job::Stream => {
                if self.begin_stream(dest, source, now)? {
                    work.wants(now);
                    return Ok(Put::Taken);
                }
                *job = Job::Short;
                self.send_short(entry, (source, to), work)
            }
        }
    }

    fn payload(&self, dest: u16, channel: Channel, sent_at: u64) -> Payload {
        let number = self.sent.get(&(dest, channel)).copied().unwrap_or(0);
        Payload { source: self.node(), dest, life: self.life, channel, number, sent_at, nodes: 0 }
    }

    fn taken(&mut self, dest: u16, channel: Channel, work: &mut Work) {
        *self.sent.entry((dest, channel)).or_default() += 1;
        self.totals.sent += 1;
        work.messages += 1;
    }

    fn send_short(
        &mut self,
        TraceEntry { at, dest, bytes, .. }: TraceEntry,
        (source, to): (PartId, PartId),
        work: &mut Work,
    ) -> Result<Put, Breach> {
        self.payload(dest, Channel::Packed, at).write(bytes, &mut self.writer.message);
        #[cfg(test)]
        if self.slips(Slip::PackTwice) {
            let _ = self.endpoint.send(source, to, &self.writer.message);
        }
        let sent = self.endpoint.send(source, to, &self.writer.message);
        self.put(dest, Channel::Packed, sent, work)
    }

    /// Sends as many messages of a train as there is room for; some of them are written in place.
    fn send_train(
        &mut self,
        entry: TraceEntry,
        (source, to): (PartId, PartId),
        left: &mut u32,
        work: &mut Work,
    ) -> Result<Put, Breach> {
        let TraceEntry { at, dest, bytes, .. } = entry;
        while *left > 0 {
            let (mut data, first) = (Vec::new(), self.payload(dest, Channel::Packed, at));
            for i in 0..u64::from(*left) {
                Payload { number: first.number + i, ..first }.append(bytes, &mut data);
            }
            let sent = if left.is_multiple_of(2) {
                let fill = |room: &mut [u8]| room.copy_from_slice(data.get(..bytes).unwrap_or(&[]));
                self.endpoint.send_with(source, to, bytes, fill).map(|()| 1)
            } else {
                self.endpoint.send_train(source, to, &data, bytes)
            };
            match sent {
                Ok(0) => return Ok(Put::Blocked),
                Ok(sent) => {
                    (0..sent).for_each(|_| self.taken(dest, Channel::Packed, work));
                    *left -= sent as u32;
                }
                Err(error) => return self.put(dest, Channel::Packed, Err(error), work),
            }
        }
        Ok(Put::Taken)
    }

    /// Builds a message to all parts of some nodes: the portions for the nodes, back to back.
    fn set_message(&self, nodes: &[u16], TraceEntry { at, bytes, .. }: TraceEntry) -> Vec<u8> {
        let each = (bytes / nodes.len().max(1)).max(PAYLOAD);
        let mut message = Vec::new();
        for dest in nodes {
            let payload = self.payload(*dest, Channel::Packed, at);
            Payload { nodes: nodes.len() as u8, ..payload }.append(each, &mut message);
        }
        message
    }

    /// Sends a message to a set, to those nodes for which there is room.
    fn send_set(
        &mut self,
        sending: &mut SetSend<Vec<PartId>, Vec<u8>>,
        work: &mut Work,
    ) -> Result<Put, Breach> {
        loop {
            let mut before: Vec<_> = sending.remaining().iter().map(|part| part.node().raw()).collect();
            let sent = self.endpoint.poll_set(sending);
            before.truncate(before.len() - sending.remaining().len());
            before.dedup();
            let failed = sent.is_err().then(|| before.pop()).flatten();
            before.into_iter().for_each(|node| self.taken(node, Channel::Packed, work));
            match sent {
                Ok(true) => return Ok(Put::Taken),
                Ok(false) => return Ok(Put::Blocked),
                // The other nodes have it, or are still to get it.
                Err(error) => {
                    self.put(failed.unwrap_or(u16::MAX), Channel::Packed, Err(error), work)?;
                }
            }
        }
    }

    /// Enters the outcome of sending a message into the books.
    fn put(
        &mut self,
        dest: u16,
        channel: Channel,
        sent: Result<(), SendError>,
        work: &mut Work,
    ) -> Result<Put, Breach> {
        match sent {
            Ok(()) => {
                self.taken(dest, channel, work);
                Ok(Put::Taken)
            }
            Err(SendError::WouldBlock) => Ok(Put::Blocked),
            Err(SendError::PeerFailed(peer)) if self.engine().has_failed(peer) => {
                self.totals.refused += 1;
                Ok(Put::Refused)
            }
            Err(error) => Err(refusal(dest, &error)),
        }
    }

    /// Begins a stream. Returns `false` if none is available now, or to that node.
    fn begin_stream(&mut self, dest: u16, source: PartId, now: u64) -> Result<bool, Breach> {
        let (Some(node), Some(to)) = (NodeId::new(dest), part(dest)) else { return Ok(false) };
        let out = match self.endpoint.open_stream(source, to) {
            Ok(out) => out,
            Err(PipeError::NoneIdle(..)) => return Ok(false),
            Err(error) => return Err(Breach::new(Invariant::Streams, error.to_string())),
        };
        let random = &mut self.writer.random;
        let (left, gives_up) = (mix::segments(random), random.below(8) == 0);
        let number = out.number();
        let (record, written, unflushed) = (Vec::new(), 0, 0);
        self.writer.streams.push(Stream { out, left, gives_up, next_at: now, record, written, unflushed });
        let relay = self.engine().relay_to(node).map(NodeId::raw);
        let begun = Outgoing { dest, relay, records: 0, state: Written::Open, may_be_lost: false };
        self.streams.written.insert(number.0, begun);
        Ok(true)
    }

    /// Writes the records that are due, at most one for each stream, and ends the streams that are complete or broken; a stream
    /// through a relay only once the relay has answered whether it takes the stream.
    fn write_streams(&mut self, now: u64, work: &mut Work) -> Result<(), Breach> {
        let mut at = 0;
        while let Some(mut stream) = (at < self.writer.streams.len()).then(|| self.writer.streams.remove(at))
        {
            let state = self.write_stream(&mut stream, now, work)?;
            if let Some(sent) = self.streams.written.get_mut(&stream.out.number().0) {
                sent.state = state;
                sent.may_be_lost |= state == Written::Broken;
            }
            match state {
                Written::Open => {
                    self.writer.streams.insert(at, stream);
                    at += 1;
                }
                Written::Finished => {}
                Written::GivenUp | Written::Broken => self.endpoint.abort_stream(stream.out),
            }
        }
        Ok(())
    }

    fn write_stream(&mut self, stream: &mut Stream, now: u64, work: &mut Work) -> Result<Written, Breach> {
        self.check_state(stream)?;
        if stream.left == 0 {
            return Ok(self.finish(stream, now, work));
        }
        if self.streams.may_be_lost(stream.out.number()) {
            return Ok(Written::Broken);
        }
        if stream.next_at > now {
            work.wants(stream.next_at);
            return Ok(Written::Open);
        }
        if stream.left == 1 && stream.gives_up {
            self.flush_stream(stream, work);
            return Ok(Written::GivenUp);
        }
        if stream.record.is_empty() {
            self.draw_record(stream, now);
        }
        let rest = stream.record.get(stream.written..).unwrap_or(&[]);
        match self.endpoint.write(&mut stream.out, rest) {
            Ok(taken) => stream.written += taken,
            Err(error) => return self.stream_failed(stream, error),
        }
        if stream.written < stream.record.len() {
            // As with a message that finds no room: the peer will return something.
            return Ok(Written::Open);
        }
        self.end_record(stream, work);
        stream.next_at = now + self.writer.random.below(PAUSE);
        work.wants(stream.next_at);
        Ok(Written::Open)
    }

    fn draw_record(&mut self, stream: &mut Stream, now: u64) {
        let dest = stream.out.dest().node().raw();
        let bytes = mix::segment_bytes(self.engine().config().body, &mut self.writer.random);
        let next = self.writer.records.entry(dest).or_default();
        let number = *next;
        *next += 1;
        let place = self.streams.written.get(&stream.out.number().0).map_or(0, |sent| sent.records);
        streams::begin_record(place, bytes, &mut stream.record);
        let payload = Payload { number, ..self.payload(dest, Channel::Stream, now) };
        payload.append(bytes, &mut stream.record);
    }

    /// Ends a record. Some records are flushed at once; others leave when the segment is full, or with later records.
    fn end_record(&mut self, stream: &mut Stream, work: &mut Work) {
        stream.record.clear();
        (stream.written, stream.left) = (0, stream.left - 1);
        stream.unflushed += 1;
        if let Some(sent) = self.streams.written.get_mut(&stream.out.number().0) {
            sent.records += 1;
        }
        if self.writer.random.below(2) == 0 {
            self.flush_stream(stream, work);
        }
    }

    fn flush_stream(&mut self, stream: &mut Stream, work: &mut Work) {
        self.endpoint.flush_stream(&mut stream.out);
        let dest = stream.out.dest().node().raw();
        (0..std::mem::take(&mut stream.unflushed)).for_each(|_| self.taken(dest, Channel::Stream, work));
    }

    /// Handles an error that reports that a stream does not reach its reader.
    fn stream_failed(&self, stream: &Stream, error: StreamError) -> Result<Written, Breach> {
        let dest = stream.out.dest().node();
        if self.streams.may_be_lost(stream.out.number()) || self.engine().has_failed(dest) {
            return Ok(Written::Broken);
        }
        let what = format!("stream {} to {dest}: {error}, of which nothing was said", stream.out.number().0);
        Err(Breach::new(Invariant::Streams, what))
    }

    /// Checks that the engine's state of an open stream agrees with what its host was told.
    fn check_state(&self, stream: &Stream) -> Result<(), Breach> {
        let (number, dest) = (stream.out.number(), stream.out.dest().node());
        let (state, told) = (stream.out.state(self.engine()), self.streams.may_be_lost(number));
        let ended = matches!(state, StreamState::Disconnected | StreamState::Stopped);
        // The host is told of a destination that is not a member before the relay has stopped the streams to it.
        let relayed = self.engine().is_relayed(dest);
        if ended == told || (told && relayed) {
            return Ok(());
        }
        let what = format!("stream {} to {dest} is {state:?}; told: {told}", number.0);
        Err(Breach::new(Invariant::Streams, what))
    }

    /// Ends a stream whose records have all been written.
    fn finish(&mut self, stream: &mut Stream, now: u64, work: &mut Work) -> Written {
        match self.endpoint.poll_finish(&mut stream.out) {
            Ok(over) => {
                if stream.out.is_over() {
                    self.flush_stream(stream, work);
                }
                if over {
                    return Written::Finished;
                }
                work.wants(now + ANSWER);
                Written::Open
            }
            Err(_) => {
                // Part of it may not have arrived.
                self.streams.stop(stream.out.number());
                Written::Finished
            }
        }
    }
}

fn refusal(dest: u16, error: &dyn std::fmt::Debug) -> Breach {
    Breach::new(Invariant::Accounted, format!("a message to node{dest} was refused: {error:?}"))
}
