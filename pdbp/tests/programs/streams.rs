//! The streams of a part in a random program.

use std::collections::HashMap;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pdbp::{Part, Piece, RecvError, SendError, Share, StreamId, StreamReader, StreamWriter, Streams};

use super::ledger::Stream;
use super::{Random, World};

/// Byte `at` of a stream.
fn byte((from, to, number): Stream, at: u64) -> u8 {
    (from as u64 * 31 + to as u64 * 7 + u64::from(number) * 13 + at * 5 + (at >> 8)) as u8
}

fn bytes(stream: Stream, at: u64, length: usize) -> Vec<u8> {
    (at..at + length as u64).map(|at| byte(stream, at)).collect()
}

pub(super) struct Writer<'w, S: Share> {
    stream: Stream,
    writer: StreamWriter<&'w Part<S>>,
    written: u64,
    length: u64,
    /// Whether the end is being sent.
    ends: bool,
}

impl<'w, S: Share> Writer<'w, S> {
    pub(super) fn open(world: &World, own: usize, part: &'w Part<S>, random: &mut Random) -> Option<Self> {
        let to = random.below(world.targets.len());
        let mut writer = part.open_stream(world.targets[to]).ok()?;
        writer.set_timeout(Some(Duration::ZERO));
        let most = if random.one_in(4) { 200_000 } else { 2000 };
        let length = random.skewed(most) as u64;
        Some(Self { stream: (own, to, writer.number().0 as u16), writer, written: 0, length, ends: false })
    }

    /// Writes some. Returns whether the stream is over.
    pub(super) fn act(&mut self, world: &World, random: &mut Random) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        if self.ends || self.written == self.length {
            if !self.ends {
                // The reader may be told at once.
                world.ledger.books().finished.insert(self.stream, self.length);
                self.ends = true;
            }
            return match self.writer.poll_finish(&mut cx) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(error)) => self.fail(world, &error),
                Poll::Pending => false,
            };
        }
        if random.one_in(200) {
            // Dropped before its end.
            return true;
        }
        let left = (self.length - self.written) as usize;
        let data = bytes(self.stream, self.written, left.min(1 + random.skewed(5000)));
        let written = match random.below(6) {
            0 => match self.writer.poll_write(&data, &mut cx) {
                Poll::Ready(written) => written,
                Poll::Pending => Ok(0),
            },
            1 => self
                .writer
                .loan(data.len())
                .map(|loan| {
                    let length = loan.len().min(data.len());
                    loan[..length].copy_from_slice(&data[..length]);
                    length
                })
                .inspect(|length| self.writer.advance(*length)),
            2 => self.writer.flush_segment().map(|()| 0),
            3 => match self.writer.poll_flush(&mut cx) {
                Poll::Ready(flushed) => flushed.map(|()| 0),
                Poll::Pending => Ok(0),
            },
            _ => self.writer.write_some(&data),
        };
        match written {
            Ok(length) => self.written += length as u64,
            Err(error) => return self.fail(world, &error),
        }
        false
    }

    /// Returns whether the stream is over.
    fn fail(&self, world: &World, error: &SendError) -> bool {
        match error {
            SendError::WouldBlock | SendError::Timeout(_) => false,
            // With inline progress, `poll_…` fails rather than wait.
            SendError::NobodyPolls => false,
            // The relay forwards as many to that node as it may.
            SendError::StreamStopped { .. } if world.plan.is_grid => {
                world.ledger.books().finished.remove(&self.stream);
                true
            }
            error => panic!("{:?}: {error}", self.stream),
        }
    }
}

/// Reads the streams that are opened to a part: each by itself, or all together.
pub(super) struct Readers<'w, S: Share> {
    own: usize,
    part: &'w Part<S>,
    single: Vec<(Stream, StreamReader<&'w Part<S>>, u64)>,
    together: Option<Streams<&'w Part<S>>>,
    read: HashMap<StreamId, u64>,
}

impl<'w, S: Share> Readers<'w, S> {
    pub(super) fn new(own: usize, part: &'w Part<S>, random: &mut Random) -> Self {
        let together = random.one_in(2).then(|| part.streams());
        Self { own, part, single: Vec::new(), together, read: HashMap::new() }
    }

    pub(super) fn act(&mut self, world: &World, random: &mut Random) {
        if self.together.is_some() {
            self.read_together(world, random)
        } else {
            self.read_single(world, random)
        }
    }

    pub(super) fn open(&self) -> usize {
        self.single.len() + self.read.len()
    }

    /// Compares bytes of a stream.
    fn check(stream: Stream, at: &mut u64, read: &[u8]) {
        assert_eq!(read, bytes(stream, *at, read.len()), "{stream:?} from byte {at} on");
        *at += read.len() as u64;
    }

    fn end(world: &World, stream: Stream, at: u64) {
        let mut books = world.ledger.books();
        assert_eq!(books.finished.get(&stream), Some(&at), "{stream:?} ended after {at} bytes");
        assert!(books.read.insert(stream), "{stream:?} ended twice");
    }

    fn broke(world: &World, stream: Stream, at: u64) {
        assert_eq!(world.ledger.books().finished.get(&stream), None, "{stream:?} broke after {at} bytes");
    }

    fn give_up(world: &World, stream: Stream) {
        world.ledger.books().read.insert(stream);
    }

    fn read_single(&mut self, world: &World, random: &mut Random) {
        if let Some(reader) = self.part.try_accept_stream().unwrap() {
            let stream = (world.index(reader.source()), self.own, reader.number().0 as u16);
            self.single.push((stream, reader, 0));
        }
        if self.single.is_empty() {
            return;
        }
        let which = random.below(self.single.len());
        let (stream, reader, at) = &mut self.single[which];
        let mut cx = Context::from_waker(Waker::noop());
        let found = match random.below(3) {
            0 => match reader.poll_segment(&mut cx) {
                Poll::Ready(found) => found.map(|found| found.map(|segment| segment.to_vec())),
                Poll::Pending => return,
            },
            1 => reader.next_segment(Duration::ZERO).map(|found| found.map(|segment| segment.to_vec())),
            _ => {
                let mut bytes = vec![0; 1 + random.skewed(3000)];
                reader.read_some(&mut bytes, Duration::ZERO).map(|length| {
                    bytes.truncate(length);
                    (length > 0).then_some(bytes)
                })
            }
        };
        match found {
            Ok(Some(read)) => Self::check(*stream, at, &read),
            Ok(None) => {
                Self::end(world, *stream, *at);
                _ = self.single.swap_remove(which);
            }
            Err(RecvError::Timeout(_) | RecvError::NobodyPolls) => {}
            Err(RecvError::StreamBroken { .. }) => {
                Self::broke(world, *stream, *at);
                _ = self.single.swap_remove(which);
            }
            Err(error) => panic!("{stream:?}: {error}"),
        }
        if random.one_in(300) && which < self.single.len() {
            let (stream, reader, _) = self.single.swap_remove(which);
            drop(reader);
            Self::give_up(world, stream);
        }
    }

    fn read_together(&mut self, world: &World, random: &mut Random) {
        let Some(streams) = &mut self.together else { return };
        let Some((id, piece)) = streams.try_next().unwrap() else { return };
        let stream = (world.index(id.source()), self.own, id.number().0 as u16);
        let at = self.read.entry(id).or_default();
        match piece {
            Piece::Data(segment) => Self::check(stream, at, &segment),
            Piece::End => {
                Self::end(world, stream, *at);
                self.read.remove(&id);
            }
            Piece::Broken => {
                Self::broke(world, stream, *at);
                self.read.remove(&id);
            }
        }
        if random.one_in(300) && self.read.remove(&id).is_some() {
            streams.give_up(id);
            Self::give_up(world, stream);
        }
    }
}
