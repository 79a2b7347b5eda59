//! How a host reads, and the books on every message.

use std::collections::BTreeSet;

use pdbp_core::Transport;
use pdbp_core::endpoint::{StreamIn, StreamPiece};
use pdbp_core::id::{NodeId, PartId};

use super::beside::HostEndpoint;
use super::check::{Breach, Invariant};
use super::host::{Clerk, Host};
use super::payload::{Channel, Payload};
#[cfg(test)]
use super::sabotage::Slip;
use super::streams::{self, Read};

/// One message in this many is held until the next run.
const HELD: u32 = 16;

/// Messages received from one peer by one channel.
#[derive(Clone, Debug, Default)]
pub(super) struct Received {
    /// The life of the peer that the other fields refer to.
    pub(super) life: u32,
    pub(super) next: u64,
    pub(super) delivered: u64,
    /// How many of these were messages to a set of parts.
    pub(super) sets: u64,
    /// Records of streams, which are read stream by stream.
    seen: BTreeSet<u64>,
}

/// A stream being read.
#[derive(Debug)]
pub(super) struct Reading {
    stream: StreamIn,
    /// The part of an incomplete record that has arrived.
    bytes: Vec<u8>,
}

fn contents<T>(what: String) -> Result<T, Breach> {
    Err(Breach::new(Invariant::Contents, what))
}

/// What was found to read; its bytes were copied.
enum Found {
    /// Messages of `each` bytes.
    Messages {
        source: u16,
        is_command: bool,
        each: usize,
    },
    /// Bytes of a stream, by its index among the open ones.
    Data(usize),
    End(u16, u32, Read),
    /// A message from this node that `node` did not receive.
    Returned {
        node: Option<u16>,
        is_segment: bool,
    },
}

impl<T: Transport + 'static> Host<T> {
    /// Reads the next item. Returns the number of messages read, or `None` if there is nothing to read. The kind that is tried
    /// first changes from call to call.
    pub(super) fn read_next(&mut self, clerk: &mut Clerk<'_>) -> Result<Option<u64>, Breach> {
        // Twice: reassembling messages may make room for items that had to stay in the pipe before.
        for local in (0..self.parts.len()).chain(0..self.parts.len()) {
            let Some(part) = self.parts.get(local).copied() else { continue };
            self.turn = self.turn.wrapping_add(1);
            for kind in 0..3 {
                let found = match (kind + self.turn) % 3 {
                    0 => self.poll_messages(part),
                    1 => self.poll_data(local, part),
                    _ => self.poll_returned(part),
                };
                if let Some(found) = found {
                    self.has_read_all = false;
                    return self.enter(local, found, clerk).map(Some);
                }
            }
        }
        self.has_read_all = true;
        Ok(None)
    }

    fn poll_messages(&mut self, part: PartId) -> Option<Found> {
        let found = match self.turn & 4 {
            0 => self.poll_batch(part),
            _ => self.poll_message(part),
        };
        #[cfg(test)]
        if found.is_some() && self.slips(Slip::SkipTrain) {
            return None;
        }
        found
    }

    fn poll_batch(&mut self, part: PartId) -> Option<Found> {
        let batch = self.endpoint.poll_recv_batch(part)?;
        copy(batch.bytes(), &mut self.read);
        let (source, is_command) = (batch.source().node().raw(), batch.command().is_some());
        let each = batch.message_len();
        self.endpoint.release_batch(batch);
        Some(Found::Messages { source, is_command, each })
    }

    fn poll_message(&mut self, part: PartId) -> Option<Found> {
        let message = self.endpoint.poll_recv(part)?;
        copy(message.bytes(), &mut self.read);
        let (source, is_command) = (message.source().node().raw(), message.command().is_some());
        let each = message.bytes().len();
        if self.turn.is_multiple_of(HELD) {
            self.held_messages.push((message, self.read.clone()));
        } else {
            self.endpoint.release(message);
        }
        Some(Found::Messages { source, is_command, each })
    }

    /// Releases the held messages, and checks that they are unchanged.
    pub(super) fn release_held(&mut self) -> Result<(), Breach> {
        for (message, bytes) in std::mem::take(&mut self.held_messages) {
            let changed = message.bytes() != bytes;
            let source = message.source();
            self.endpoint.release(message);
            if changed {
                return contents(format!("a message of {source} has changed while it was held"));
            }
        }
        Ok(())
    }

    fn poll_data(&mut self, local: usize, part: PartId) -> Option<Found> {
        let Self { endpoint, open, .. } = self;
        while let Some(stream) = endpoint.accept(part) {
            open.push((local, Reading { stream, bytes: Vec::new() }));
        }
        for i in 0..open.len() {
            let Some((_, reading)) = open.get_mut(i).filter(|(of, _)| *of == local) else { continue };
            let (source, number) = (reading.stream.source().node().raw(), reading.stream.number().0);
            let Some(end) = next_piece(endpoint, reading) else { continue };
            let state = match end {
                Read::Open => {
                    // Another stream goes first next time.
                    open.rotate_left(1);
                    return Some(Found::Data((i + open.len() - 1) % open.len()));
                }
                Read::Whole if !reading.bytes.is_empty() => Read::Broken,
                state => state,
            };
            open.remove(i);
            return Some(Found::End(source, number, state));
        }
        None
    }

    fn poll_returned(&mut self, part: PartId) -> Option<Found> {
        #[cfg(test)]
        while self.slip.is_some_and(|(slip, _)| slip == Slip::SkipReturned) {
            let returned = self.endpoint.poll_returned(part)?;
            self.endpoint.release_returned(returned);
        }
        let returned = self.endpoint.poll_returned(part)?;
        copy(returned.bytes(), &mut self.read);
        let is_segment = returned.segment().is_some();
        let node = returned.node().map(NodeId::raw);
        self.endpoint.release_returned(returned);
        Some(Found::Returned { node, is_segment })
    }

    /// Enters the item read into the books; returns the number of messages.
    fn enter(&mut self, local: usize, found: Found, clerk: &mut Clerk<'_>) -> Result<u64, Breach> {
        let bytes = std::mem::take(&mut self.read);
        let entered = match found {
            Found::Messages { source, is_command, each } => {
                self.enter_messages(local, (source, is_command), each, &bytes, clerk)
            }
            Found::Data(at) => self.enter_records(at, clerk),
            Found::End(source, number, state) => self.streams.end(source, number, state).map(|()| 0),
            Found::Returned { is_segment: true, .. } => self.enter_returned_segment(),
            Found::Returned { node, .. } => self.enter_returned(node, &bytes),
        };
        self.read = bytes;
        entered
    }

    fn enter_messages(
        &mut self,
        local: usize,
        (source, is_command): (u16, bool),
        each: usize,
        bytes: &[u8],
        clerk: &mut Clerk<'_>,
    ) -> Result<u64, Breach> {
        let longest = self.engine().config().longest_unsegmented();
        let mut messages = 0;
        for bytes in bytes.chunks(each.max(1)) {
            let payload = self.payload_of(source, bytes)?;
            let channel = if is_command { Channel::Urgent } else { Channel::Packed };
            if channel != payload.channel {
                return contents(format!("{payload:?} came as if it were {channel:?}"));
            }
            messages += 1;
            if local > 0 {
                #[cfg(test)]
                if self.slips(Slip::ReadSecondAgain) {
                    self.take_second(payload)?;
                }
                self.take_second(payload)?;
                continue;
            }
            self.take(payload, bytes.len(), clerk)?;
            self.totals.assembled += u64::from(bytes.len() > longest);
        }
        Ok(messages)
    }

    /// Enters the records that have arrived completely.
    fn enter_records(&mut self, at: usize, clerk: &mut Clerk<'_>) -> Result<u64, Breach> {
        let Some((_, reading)) = self.open.get_mut(at) else { return Ok(0) };
        let mut bytes = std::mem::take(&mut reading.bytes);
        let (source, number) = (reading.stream.source().node().raw(), reading.stream.number().0);
        let (mut done, mut records) = (0, 0);
        while let Some((place, record)) = bytes.get(done..).and_then(streams::first_record) {
            let payload = self.payload_of(source, record)?;
            if payload.channel != Channel::Stream {
                return contents(format!("{payload:?} came in a stream"));
            }
            self.take(payload, record.len(), clerk)?;
            self.streams.take((source, payload.life), number, place)?;
            done += streams::record_bytes(record.len());
            records += 1;
        }
        bytes.drain(..done);
        if let Some((_, reading)) = self.open.get_mut(at) {
            reading.bytes = bytes;
        }
        Ok(records)
    }

    /// Counts a returned piece of a message or stream, which does not identify the whole.
    fn enter_returned_segment(&mut self) -> Result<u64, Breach> {
        self.totals.returned += 1;
        Ok(1)
    }

    fn enter_returned(&mut self, node: Option<u16>, bytes: &[u8]) -> Result<u64, Breach> {
        self.totals.returned += 1;
        let me = self.node();
        let mut sent = chunks(bytes).filter_map(Payload::fields);
        let found = sent.find(|payload| payload.source == me && Some(payload.dest) == node);
        let Some(Payload { dest, channel, number, .. }) = found else {
            let payload = Payload::fields(bytes);
            return contents(format!("node{node:?} did not get {payload:?}"));
        };
        if !self.returned.entry((dest, channel)).or_default().insert(number) {
            let what = format!("message {number} to node{dest} ({channel:?}) came back twice");
            return Err(Breach::new(Invariant::Once, what));
        }
        Ok(1)
    }

    /// Parses a message to this node; in a message to a set of parts, the portion for this node.
    fn payload_of(&self, from: u16, bytes: &[u8]) -> Result<Payload, Breach> {
        let mut found = None;
        for bytes in chunks(bytes) {
            let payload = Payload::read(bytes);
            let payload =
                payload.map_err(|e| Breach::new(Invariant::Contents, format!("node{from}: {e}")))?;
            found = found.or(Some(payload).filter(|p| (p.source, p.dest) == (from, self.node())));
        }
        found.map_or_else(|| contents(format!("from node{from} came what it has not sent here")), Ok)
    }

    /// Whether messages of a peer may be missing between two that arrived.
    fn may_lose(&self, source: u16) -> bool {
        self.gaps || self.failures.failed.contains(&source)
    }

    /// Enters a message into the books of its channel.
    fn take(&mut self, payload: Payload, bytes: usize, clerk: &mut Clerk<'_>) -> Result<(), Breach> {
        let Payload { source, life, channel, number, .. } = payload;
        let failed = self.may_lose(source);
        // Messages to this node's previous life do not count for this one. Nor do messages that arrived before it was let in: only
        // their sender is told of the end of that session, and its books are checked once everything has come to rest.
        let is_later = self.life > 1 || self.engine().config().is_open();
        let next = if is_later { number } else { 0 };
        let received = self.received.entry((source, channel)).or_insert_with(|| Received {
            life,
            next,
            ..Received::default()
        });
        if life > received.life {
            *received = Received { life, ..Received::default() };
        }
        let again =
            if channel == Channel::Stream { !received.seen.insert(number) } else { number < received.next };
        if life < received.life || again {
            let what = format!(
                "message {number} of life {life} of node{source} came when message {} of life {} was next",
                received.next, received.life
            );
            return Err(Breach::new(Invariant::Once, what));
        }
        if channel != Channel::Stream && number > received.next && !failed {
            let what =
                format!("message {number} of node{source} came when message {} was next", received.next);
            return Err(Breach::new(Invariant::Order, what));
        }
        received.next = received.next.max(number + 1);
        received.delivered += 1;
        received.sets += u64::from(payload.nodes > 0);
        self.totals.delivered += 1;
        self.totals.bytes += bytes as u64;
        if payload.sent_at >= clerk.warm {
            clerk.latencies.record(clerk.now.saturating_sub(payload.sent_at));
        }
        Ok(())
    }

    /// Enters a message to a set of parts at the second part, which gets no others.
    fn take_second(&mut self, payload: Payload) -> Result<(), Breach> {
        let Payload { source, life, number, .. } = payload;
        if payload.nodes == 0 {
            return contents(format!("{payload:?} came to the second part"));
        }
        let (of, sets, next) = self.seconds.entry(source).or_insert((life, 0, 0));
        if life > *of {
            (*of, *sets, *next) = (life, 0, 0);
        }
        if life < *of || number < *next {
            let what =
                format!("{payload:?} came to the second part after message {next} of life {of} was next");
            return Err(Breach::new(Invariant::Once, what));
        }
        *sets += 1;
        *next = number + 1;
        Ok(())
    }

    /// Fails if messages to both parts have not reached both.
    pub(super) fn check_parts(&self) -> Result<(), Breach> {
        let first = |source: u16| {
            self.received
                .get(&(source, Channel::Packed))
                .map_or((0, 0), |received| (received.life, received.sets))
        };
        let second = |source: u16| self.seconds.get(&source).map_or((0, 0), |(life, sets, _)| (*life, *sets));
        let sources = self.received.keys().map(|(source, _)| *source).chain(self.seconds.keys().copied());
        let differ = |source: &u16| {
            let ((life, sets), (of, seconds)) = (first(*source), second(*source));
            // If no message to a set has arrived from a life, the second part knows nothing of that life.
            if of == life { sets != seconds } else { of > life || sets > 0 }
        };
        match sources.into_iter().find(differ) {
            Some(source) => {
                let (first, second) = (first(source), second(source));
                let what = format!(
                    "messages of node{source} to both parts did not reach both: {first:?}, {second:?}"
                );
                Err(Breach::new(Invariant::Accounted, what))
            }
            None => Ok(()),
        }
    }
}

/// Takes the next piece of a stream; `None` if there is none now.
fn next_piece<T: Transport>(endpoint: &mut HostEndpoint<T>, reading: &mut Reading) -> Option<Read> {
    match endpoint.poll_stream(&reading.stream) {
        StreamPiece::Data(segment) => {
            reading.bytes.extend_from_slice(segment.bytes());
            endpoint.release_segment(segment);
            Some(Read::Open)
        }
        StreamPiece::Nothing => None,
        StreamPiece::End => Some(Read::Whole),
        StreamPiece::Broken => Some(Read::Broken),
    }
}

/// Splits a message into the portions for each of its nodes.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let nodes = Payload::fields(bytes).map_or(1, |payload| usize::from(payload.nodes.max(1)));
    bytes.chunks((bytes.len() / nodes).max(1))
}

fn copy(from: &[u8], to: &mut Vec<u8>) {
    to.clear();
    to.extend_from_slice(from);
}
