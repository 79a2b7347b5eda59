//! Streams across a trunk, three in a row: from a part to the proxy of the destination, over the trunk in frames, and from the
//! proxy of the writer to the destination.
//!
//! Frames of a stream are ordered, and take as much of the window as messages do: a slow reader makes its writer wait. Segments end
//! where the writer ended them, unless blocks at the destination are shorter.

use std::collections::BTreeMap;

use pdbp_core::inbox::StreamKey;
use pdbp_core::outbox::StreamOut;
use pdbp_core::pipe::PipeError;

use super::announced::AnnouncedParts;
use super::line::Line;
use super::proxy::{Delivery, Forwarded, Proxy};
use super::wire::{BROKEN, FIRST, Head, Kind, LAST};
use crate::error::SendError;
use crate::part::{Part, Segment, Shared, Target};

/// Segments read from one stream before the next one's turn.
const TURN: usize = 16;

/// The streams of a part of the other cluster.
#[derive(Default)]
pub(super) struct Streams {
    /// Streams that parts of this cluster write to it.
    read: Vec<Reading>,
    /// Streams that it writes, by their numbers on the trunk.
    written: BTreeMap<u32, StreamOut>,
}

struct Reading {
    /// The number on the trunk.
    number: u32,
    key: StreamKey,
    origin: u64,
    is_first: bool,
}

impl Streams {
    /// Whether this part of this cluster writes any of the streams.
    pub(super) fn has_from(&self, origin: u64) -> bool {
        self.read.iter().any(|reading| reading.origin == origin)
    }

    /// Whether this part of this cluster writes or reads any of the streams.
    pub(super) fn has_with(&self, part: u64) -> bool {
        self.has_from(part) || self.written.values().any(|out| out.dest().to_bits() == part)
    }

    /// Whether any stream that the part of the other cluster writes has not ended, and its reader has not gone.
    pub(super) fn is_writing(&self, announced: &AnnouncedParts) -> bool {
        self.written.values().any(|out| announced.contains(out.dest().to_bits()))
    }

    /// Ends the streams to a part of this cluster that has gone: the other gateway sends no end of them.
    pub(super) fn end_to(&mut self, part: &Part<Shared>, reader: u64) {
        let written = std::mem::take(&mut self.written).into_iter();
        let (to_it, others) = written.partition(|(_, out)| out.dest().to_bits() == reader);
        self.written = others;
        let to_it: BTreeMap<u32, StreamOut> = to_it;
        to_it.into_values().for_each(|out| part.close_passing(out));
    }

    /// Ends all streams when the part or the trunk has gone: readers of its streams are told, and what is written to it is
    /// discarded.
    pub(super) fn end(&mut self, part: &Part<Shared>) {
        for (_, out) in std::mem::take(&mut self.written) {
            part.close_passing(out);
        }
        self.read.drain(..).for_each(|reading| part.forget_passing(reading.key));
    }

    /// Ends a stream that is no longer read in the other cluster.
    pub(super) fn stop(&mut self, part: &Part<Shared>, number: u32) {
        let is_it = |reading: &mut Reading| reading.number == number;
        self.read.extract_if(.., is_it).for_each(|reading| part.forget_passing(reading.key));
    }

    /// The next frame of a stream of this cluster; `None` if it has not arrived yet.
    fn next(&mut self, at: usize, part: &Part<Shared>, dest: u64) -> Option<(Head, Option<Segment<Shared>>)> {
        let reading = self.read.get_mut(at)?;
        let (segment, end) = loop {
            break match part.passing_segment(reading.key) {
                Ok(None) => return None,
                // The end has a frame of its own.
                Ok(Some(Some(segment))) if segment.is_empty() => continue,
                Ok(Some(Some(segment))) => (Some(segment), 0),
                Ok(Some(None)) => (None, LAST),
                Err(_) => (None, BROKEN),
            };
        };
        let first = if std::mem::take(&mut reading.is_first) { FIRST } else { 0 };
        let head = Head {
            flags: first | end,
            // No block is longer.
            length: segment.as_ref().map_or(0, |segment| u32::try_from(segment.len()).unwrap_or(u32::MAX)),
            count: reading.number,
            origin: reading.origin,
            dest,
            ..Head::new(Kind::Stream)
        };
        if segment.is_none() {
            self.read.remove(at);
        }
        Some((head, segment))
    }
}

impl Proxy {
    /// Sends what parts of this cluster write to the part, and holds what exceeds the window.
    pub(super) fn read_streams(
        &mut self,
        remote: u64,
        line: &mut Line,
        out: &Part<Shared>,
        announced: &mut AnnouncedParts,
    ) -> bool {
        let mut worked = false;
        while self.may_read(line)
            && let Some(accepted) = self.part.accept_passing()
        {
            line.streams = line.streams.wrapping_add(1);
            let origin = self.part.shared().resolve(accepted.source.address()).to_bits();
            announced.insert(origin);
            let (number, key) = (line.streams, accepted.key);
            self.streams.read.push(Reading { number, key, origin, is_first: true });
            worked = true;
        }
        let mut at = 0;
        while let Some(number) = self.streams.read.get(at).map(|reading| reading.number) {
            for _ in 0..TURN {
                if !self.may_read(line) {
                    break;
                }
                let Some((head, segment)) = self.streams.next(at, &self.part, remote) else { break };
                worked = true;
                self.pass(line, out, head, segment.as_deref().unwrap_or(&[]));
                if segment.is_none() {
                    break;
                }
            }
            // A stream that has ended has been removed.
            at += usize::from(self.streams.read.get(at).is_some_and(|reading| reading.number == number));
        }
        worked
    }

    /// Writes received data of a stream, as much as there is room for.
    pub(super) fn forward_stream(&mut self, dest: Target, delivery: &mut Delivery) -> Forwarded {
        let part = &self.part;
        let number = delivery.head.count;
        let written = &mut self.streams.written;
        if delivery.head.flags & FIRST != 0 && !written.contains_key(&number) {
            if !part.shared().engine().has_part(dest) {
                return Forwarded::Refused;
            }
            match part.open_passing(dest) {
                Ok(out) => written.insert(number, out),
                Err(PipeError::NoneIdle(..)) => return Forwarded::Later,
                Err(_) => return Forwarded::Refused,
            };
        }
        // The rest of a stream that was refused earlier.
        let Some(mut out) = written.remove(&number) else { return Forwarded::Refused };
        match write(part, &mut out, delivery) {
            Ok(false) => {
                written.insert(number, out);
                Forwarded::All
            }
            Ok(true) => {
                part.close_passing(out);
                Forwarded::All
            }
            Err(SendError::WouldBlock) => {
                written.insert(number, out);
                Forwarded::Later
            }
            Err(_) => {
                part.close_passing(out);
                Forwarded::Refused
            }
        }
    }
}

/// Writes a delivery. Returns whether the stream has ended.
fn write(part: &Part<Shared>, out: &mut StreamOut, delivery: &mut Delivery) -> Result<bool, SendError> {
    while let Some(left) = delivery.bytes().get(delivery.written..)
        && !left.is_empty()
    {
        delivery.written += part.write_passing(out, left)?;
    }
    if delivery.head.flags & BROKEN != 0 {
        // The caller gives the stream up.
        return Ok(true);
    }
    if delivery.head.flags & LAST == 0 {
        part.flush_passing(out);
        return Ok(false);
    }
    part.finish_passing(out).map(|()| true)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use pdbp_core::tables::PartKind;

    use super::super::fuzzing::Stage;
    use super::super::proxy::Bytes;
    use super::super::session::Session;
    use super::*;

    fn check(began: Instant) {
        assert!(began.elapsed() < Duration::from_secs(60), "it has not happened");
        std::thread::yield_now();
    }

    /// A piece of a stream that part 7 of the other cluster writes.
    fn piece(flags: u8, dest: Target) -> Head {
        let dest = dest.to_bits();
        Head { flags, length: 3, count: 5, origin: 7, dest, ..Head::new(Kind::Stream) }
    }

    /// The other gateway says that part 7 has gone, so that its proxy goes.
    fn frees(stage: &Stage, session: &mut Session) {
        assert!(stage.say(session, &Head { origin: 7, ..Head::new(Kind::Gone) }.to_bytes()));
        let began = Instant::now();
        while !session.proxies.is_empty() {
            check(began);
            stage.turn(session);
            stage.listen();
        }
    }

    /// The reader goes in the middle of the stream, and later the writer. When the reader has gone, the other gateway forgets the
    /// stream, so that its end never comes.
    #[test]
    fn a_stream_whose_reader_has_gone_ends_and_its_writer_can_go() {
        let stage = Stage::new().unwrap();
        let mut session = stage.session();
        let say = |session: &mut Session, head: Head| {
            assert!(stage.say(session, &[&head.to_bytes()[..], b"new"].concat()));
        };
        let reader = stage.node.register_shared("reader", PartKind::Cpu).unwrap();
        let dest = reader.id();
        session.announced.insert(dest.to_bits());
        say(&mut session, piece(FIRST, dest));
        assert!(session.proxies[&7].streams.is_writing(&session.announced));
        drop(reader);
        let began = Instant::now();
        let is_gone = |frame: &[u8]| {
            Head::read(frame)
                .is_some_and(|(head, _)| (head.kind, head.origin) == (Kind::Gone, dest.to_bits()))
        };
        while !stage.frames().any(|frame| is_gone(&frame)) {
            check(began);
            session.update(&stage.node);
            stage.turn(&mut session);
        }
        assert!(session.proxies[&7].streams.written.is_empty(), "its writer stays");
        // What the other gateway had sent before it knew.
        say(&mut session, piece(0, dest));
        frees(&stage, &mut session);
    }

    /// Its beginning waited for room while the other gateway was told that the reader had gone.
    #[test]
    fn a_stream_that_begins_after_its_reader_has_gone_keeps_no_proxy() {
        let stage = Stage::new().unwrap();
        let mut session = stage.session();
        let dest = stage.full.id();
        let delivery = Delivery::new(piece(FIRST, dest), Bytes::Kept(b"new".to_vec()));
        session.proxy(&stage.node, 7, false).unwrap().wait(delivery.key(dest), delivery);
        let began = Instant::now();
        while session.proxies[&7].streams.written.is_empty() {
            check(began);
            stage.turn(&mut session);
        }
        frees(&stage, &mut session);
    }
}
