//! The decoding part: takes pictures from streams and sends them on as frames.

use pdbp::{Part, StreamWriter, Target};

use super::wire::{Done, FaultHead, Order, Orders, command};
use super::{GIVEN_UP, Job, address, analyser_name, report};
use crate::account::{Stopwatch, Work};
use crate::decode::{DecodeError, Reel, Yuv};
use crate::frame::{FrameBytes, FrameId, frame_len, write_frame};
use crate::plan::{Pair, Side};
use crate::show::{Decode, Program, Shower};
use crate::streams::StreamNo;

/// Obeys the console until it says stop.
pub(super) fn serve(part: &Part, console: Target, pair: Pair, job: &Job<'_>) -> Result<(), String> {
    let text = |error: &dyn core::fmt::Display| error.to_string();
    let analyser = find_analyser(part, console, pair, job)?;
    let writer = part.open_stream(analyser).map_err(|error| text(&error))?;
    let mut decoder = DecoderPart { part, console, writer, pair, job, work: Work::default() };
    let mut shower = None;
    loop {
        let order = Order::read(&job.patiently(part, |timeout| part.recv_timeout(timeout))?);
        match order {
            Some(Orders::Start { pass, streams }) => {
                let shower = shower.get_or_insert_with(|| {
                    let (streams, pairs) = (job.streams.first(streams), job.layout.pairs.len());
                    let pairs = u32::try_from(pairs).unwrap_or(u32::MAX);
                    Shower::new(job.plan.mode, job.codec, &streams, pair.number, pairs)
                });
                let done = decoder.pass(pass, shower)?;
                part.sender(console)
                    .command(command::DONE)
                    .send(bytemuck::bytes_of(&done))
                    .map_err(|error| text(&error))?;
            }
            Some(Orders::Stop) => break,
            Some(Orders::GiveUp) => return Err(GIVEN_UP.into()),
            Some(Orders::Analyser { .. }) => {}
            None => return Err("an order of unknown kind: the nodes run different versions".into()),
        }
    }
    decoder.writer.finish().map_err(|error| text(&error))?;
    if decoder.work.decoded > 0 {
        let frames = decoder.work.decoded.to_le_bytes();
        report(part, console, command::DECODED, &frames, &job.codec.to_string())
            .map_err(|error| text(&error))?;
    }
    part.sender(console)
        .command(command::WORK)
        .send(bytemuck::bytes_of(&decoder.work))
        .map_err(|error| text(&error))
}

/// Finds the analyser of the pair. In another cluster, the console knows its node.
fn find_analyser(part: &Part, console: Target, pair: Pair, job: &Job<'_>) -> Result<Target, String> {
    let name = analyser_name(pair.number);
    let Side::Decodes(cluster) = &job.layout.side else {
        return job.find(part, &address(&name, pair.analyses));
    };
    let here = part.sender(console).command(command::HERE);
    here.send(&pair.number.to_le_bytes()).map_err(|error| error.to_string())?;
    match Order::read(&job.patiently(part, |timeout| part.recv_timeout(timeout))?) {
        Some(Orders::Analyser { node }) => job.find(part, &format!("{name}@node{node}.{cluster}")),
        Some(Orders::GiveUp) => Err(GIVEN_UP.into()),
        _ => Err("unexpected message from the console: the clusters run different versions".into()),
    }
}

/// The state of a decoder part.
struct DecoderPart<'a> {
    part: &'a Part,
    console: Target,
    writer: StreamWriter<&'a Part>,
    pair: Pair,
    job: &'a Job<'a>,
    work: Work,
}

impl DecoderPart<'_> {
    fn pass(&mut self, pass: u32, shower: &mut Shower) -> Result<Done, String> {
        let mut done = Done {
            pass,
            pair: self.pair.number,
            streams: 0,
            frames: 0,
            bytes: 0,
            node: self.pair.decodes.into(),
            zero: 0,
        };
        let Job { streams, pool, reel, .. } = self.job;
        let (recorded, nothing) = (reel.get(), Reel::default());
        let program = Program { streams, pool, reel: recorded.unwrap_or(&nothing) };
        shower.pass(program, pass, &mut |stream, decode| self.one(stream, &mut done, decode))?;
        Ok(done)
    }

    /// Decodes one picture with `decode`, sends it, and reports the stream if decoding fails.
    fn one(&mut self, stream: StreamNo, done: &mut Done, decode: &mut Decode<'_>) -> Result<(), String> {
        if self.job.error().is_some() {
            return Err(GIVEN_UP.into());
        }
        done.streams += 1;
        let (pass, captured_ns) = (done.pass, self.job.clock.now_ns());
        let mut watch = Stopwatch::start();
        let (mut sent, mut pack_ns) = (None, 0);
        let shown = decode(&mut |frame, picture| {
            let mut watch = Stopwatch::start();
            sent = Some(send(&mut self.writer, FrameId { stream, frame, pass, captured_ns }, picture));
            pack_ns = watch.lap();
        });
        self.work.decode_ns += watch.lap().saturating_sub(pack_ns);
        // Also if decoding failed after it: the analyser scores what was sent.
        if let Some(bytes) = sent {
            done.bytes += bytes?;
            self.work.decoded += 1;
            done.frames += 1;
        }
        shown.map_or_else(
            |error| self.report(FaultHead { pass, stream: stream.0, captured_ns }, &error),
            |_| Ok(()),
        )
    }

    fn report(&self, head: FaultHead, error: &DecodeError) -> Result<(), String> {
        let head = bytemuck::bytes_of(&head);
        report(self.part, self.console, command::FAULT, head, &error.to_string())
            .map_err(|error| error.to_string())
    }
}

/// Sends a frame: written once, straight into message blocks. One that fits into a block leaves as one segment. Returns its bytes.
fn send(writer: &mut StreamWriter<&Part>, id: FrameId, picture: &Yuv<'_>) -> Result<u64, String> {
    let length = frame_len(picture.size());
    if length <= writer.segment_len() {
        let room = writer.loan(length).map_err(|error| error.to_string())?;
        write_frame(id, picture, room).map_err(|error| error.to_string())?;
        writer.advance(length);
    } else {
        let mut bytes = FrameBytes::new(id, picture);
        let mut left = length;
        while left > 0 {
            let room = writer.loan(left).map_err(|error| error.to_string())?;
            let filled = bytes.fill(room);
            writer.advance(filled);
            left -= filled;
        }
    }
    writer.flush_segment().map_err(|error| error.to_string())?;
    Ok(length as u64)
}

#[cfg(test)]
mod tests {
    use pdbp::{Cluster, PartKind};

    use super::*;
    use crate::account::RunClock;
    use crate::clips::{BUNDLED, Clip};
    use crate::decode::{Codec, Sampler};
    use crate::measure::Place;
    use crate::plan::{Layout, Mode, Plan, Pool};
    use crate::streams::Streams;

    /// The console's count of scores was then ahead of its count of pictures: a pass ended before its last scores had come.
    #[test]
    fn a_picture_that_was_sent_counts_even_if_decoding_fails_after_it() {
        let cluster = Cluster::local(1).unwrap();
        let node = &cluster.nodes()[0];
        let [part, console, analyser] =
            ["decoder", "console", "analyser"].map(|name| node.register(name, PartKind::Cpu).unwrap());
        let target = |name: &str| part.find(&address(name, 0), super::super::MEETING).unwrap();
        let streams = Streams::new(vec![Clip::new("qcif", BUNDLED[0].data).unwrap()], 1);
        let plan = Plan { mode: Mode::Sample, passes: 1, decoders: 1 };
        let (layout, place) = (Layout::of(Side::Whole, 1, 1), Place::cpu());
        let job = Job {
            streams: &streams,
            plan,
            codec: Codec::default(),
            place: &place,
            clock: RunClock::start(),
            pool: Pool::new(vec![streams.share(0, 1)]),
            replays: false,
            reel: std::sync::OnceLock::new(),
            error: std::sync::Mutex::default(),
            layout,
        };
        let writer = part.open_stream(target("analyser")).unwrap();
        let (pair, work) = (job.layout.pairs[0], Work::default());
        let mut decoder =
            DecoderPart { part: &part, console: target("console"), writer, pair, job: &job, work };
        let mut done = Done { pass: 0, pair: 0, streams: 0, frames: 0, bytes: 0, node: 0, zero: 0 };
        let (clip, entry) = streams.entry(StreamNo(0), 0).unwrap();
        let mut sampler = Sampler::new(Codec::default());
        let mut decode = |take: &mut crate::show::Take<'_>| {
            sampler.sample(clip, entry, |picture| take(0, picture)).unwrap();
            Err(DecodeError::Incomplete { picture: 1 })
        };
        decoder.one(StreamNo(0), &mut done, &mut decode).unwrap();
        assert_eq!((done.frames, decoder.work.decoded), (1, 1));
        assert_eq!(done.bytes, frame_len(entry.size) as u64);
        let fault = console.recv_timeout(super::super::MEETING).unwrap();
        assert_eq!(fault.command(), command::FAULT);
        drop(analyser);
    }
}
