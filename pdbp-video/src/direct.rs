//! The monitor without transport: every thread decodes, packs, unpacks and analyses its own frames.
//!
//! It is the yardstick for the pipeline over PDBP: same clips, same decoders, same frames in the same wire form, and nothing
//! between the parts.

use std::thread;

use crate::account::{RunClock, Stopwatch, Work, process_cpu_ns};
use crate::decode::{Codec, Reel, Yuv};
#[cfg(feature = "cuda")]
use crate::frame::FrameHeader;
use crate::frame::{FrameId, ScoreRecord, frame_len, write_frame};
use crate::measure::{Place, ScoreError, Scorer, Threads};
use crate::outcome::{Arrival, Fault, Outcome, PassTime};
use crate::pipeline::PipelineError;
use crate::plan::{Mode, Plan, Pool};
use crate::progress::Observer;
use crate::show::{Decode, Program, Shower};
use crate::streams::{StreamNo, Streams};

/// Runs all passes in this process, decoded by `codec` and analysed in `place`. `observer` learns of finished streams from any thread, and of their
/// scores at the end of each pass.
///
/// # Errors
///
/// [`PipelineError`] if a device failed.
pub fn run(
    streams: &Streams,
    plan: Plan,
    codec: Codec,
    place: &Place,
    clock: RunClock,
    observer: &dyn Observer,
) -> Result<Outcome, PipelineError> {
    let workers =
        (0..plan.decoders.max(1)).map(|number| Worker::new(number, plan.mode, place, clock)).collect();
    work(workers, streams, plan, codec, clock, observer)
}

/// Runs all passes, or ends with that in which a worker has failed.
fn work(
    mut workers: Vec<Worker>,
    streams: &Streams,
    plan: Plan,
    codec: Codec,
    clock: RunClock,
    observer: &dyn Observer,
) -> Result<Outcome, PipelineError> {
    let reel = if plan.mode == Mode::Replay { Reel::record(codec, streams.clips()) } else { Reel::default() };
    let pool = Pool::new(vec![streams.share(0, 1)]);
    let program = Program { streams, pool: &pool, reel: &reel };
    let threads = u32::try_from(workers.len()).unwrap_or(u32::MAX);
    let mut showers: Vec<_> =
        (0..threads).map(|number| Shower::new(plan.mode, codec, streams, number, threads)).collect();
    let mut outcome = Outcome { mode: plan.mode, streams: streams.count(), ..Outcome::default() };
    let cpu = process_cpu_ns();
    for pass in 0..plan.passes {
        let start_ns = clock.now_ns();
        thread::scope(|scope| {
            for (worker, shower) in workers.iter_mut().zip(&mut showers) {
                scope.spawn(move || worker.pass(program, shower, pass, observer));
            }
        });
        let before = (outcome.arrivals.len(), outcome.faults.len());
        for worker in &mut workers {
            outcome.arrivals.append(&mut worker.arrivals);
            outcome.faults.append(&mut worker.faults);
        }
        report(observer, &outcome, before);
        observer.pass(&outcome.end_pass(PassTime { start_ns, end_ns: clock.now_ns() }));
        for Worker { number, error, .. } in &workers {
            if let Some(error) = error {
                return Err(PipelineError { part: format!("worker{number}"), reason: error.to_string() });
            }
        }
    }
    outcome.work.total_ns = process_cpu_ns() - cpu;
    for mut worker in workers {
        outcome.work += worker.work;
        outcome.notes.extend(worker.handover.scorer.take_note());
        for (name, frames) in worker.handover.scorer.shares() {
            *outcome.analysed.entry(name.clone()).or_default() += frames;
        }
    }
    if outcome.work.decoded > 0 {
        outcome.decoded.insert(codec.to_string(), outcome.work.decoded);
    }
    outcome.arrivals.sort_by_key(|arrival| arrival.received_ns);
    Ok(outcome)
}

/// Reports what a pass has brought: the scores and faults beyond these numbers.
fn report(observer: &dyn Observer, outcome: &Outcome, (arrivals, faults): (usize, usize)) {
    observer.scored(outcome.arrivals.get(arrivals..).unwrap_or_default());
    outcome.faults.iter().skip(faults).for_each(|fault| observer.fault(fault));
}

struct Worker {
    number: usize,
    clock: RunClock,
    handover: Handover,
    work: Work,
    arrivals: Vec<Arrival>,
    faults: Vec<Fault>,
    /// Why it has stopped.
    error: Option<ScoreError>,
}

impl Worker {
    fn new(number: usize, mode: Mode, place: &Place, clock: RunClock) -> Self {
        let scorer = Scorer::new(place, number, Threads::Caller, mode.compare());
        Self {
            number,
            clock,
            handover: Handover { scorer, message: Vec::new(), pushed: None },
            work: Work::default(),
            arrivals: Vec::new(),
            faults: Vec::new(),
            error: None,
        }
    }

    /// Shows and analyses this worker's share of a pass, as long as nothing fails.
    fn pass(&mut self, program: Program<'_>, shower: &mut Shower, pass: u32, observer: &dyn Observer) {
        if self.error.is_some() {
            return;
        }
        // Live sources send any number of pictures in a pass; all other streams have one each.
        let (each, at_end) = if let Shower::Live(own) = &shower { (0, own.len()) } else { (1, 0) };
        let shown = shower.pass(program, pass, &mut |stream, decode| {
            observer.done(each);
            self.one(stream, pass, decode)
        });
        observer.done(at_end as u64);
        let mut watch = Stopwatch::start();
        self.error = shown.and_then(|()| self.handover.scorer.finish()).err();
        self.work.analyse_ns += watch.lap();
        self.collect();
    }

    /// Collects scores.
    fn collect(&mut self) {
        while let Some((header, scores, sight)) = self.handover.scorer.take() {
            self.work.analysed += 1;
            let received_ns = self.clock.now_ns();
            let record = ScoreRecord::new(&header, scores, sight, 0, received_ns);
            self.arrivals.push(Arrival { record, received_ns });
        }
    }

    /// Decodes one picture with `decode` and has it analysed.
    fn one(&mut self, stream: StreamNo, pass: u32, decode: &mut Decode<'_>) -> Result<(), ScoreError> {
        let captured_ns = self.clock.now_ns();
        let handover = &mut self.handover;
        let (mut is_shown, mut pack_ns) = (false, 0);
        let mut watch = Stopwatch::start();
        let decoded = decode(&mut |frame, picture| {
            let mut watch = Stopwatch::start();
            handover.put(FrameId { stream, frame, pass, captured_ns }, picture);
            (is_shown, pack_ns) = (true, watch.lap());
        });
        if handover.pushed.is_some() {
            self.work.analyse_ns += pack_ns;
        }
        self.work.decode_ns += watch.lap().saturating_sub(pack_ns);
        // Also if decoding failed after it.
        if is_shown {
            self.work.decoded += 1;
            self.handover.score(&mut self.work)?;
            self.collect();
        }
        if let Err(error) = decoded {
            self.faults.push(Fault { stream, pass, captured_ns, reason: error.to_string() });
        }
        Ok(())
    }
}

/// Holds a frame in its wire form between decoding and analysis.
struct Handover {
    scorer: Scorer,
    message: Vec<u8>,
    /// The result for a picture that needed no frame.
    pushed: Option<Result<(), ScoreError>>,
}

impl Handover {
    fn put(&mut self, id: FrameId, picture: &Yuv<'_>) {
        // From the memory of a device into that of its analysis, without a frame.
        #[cfg(feature = "cuda")]
        if picture.on_device().is_some() {
            let header = FrameHeader::new(id, picture.size());
            self.pushed = Some(self.scorer.push_picture(header, picture));
            return;
        }
        self.message.resize(frame_len(picture.size()), 0);
        // The length is the one asked for.
        let written = write_frame(id, picture, &mut self.message);
        debug_assert_eq!(written, Ok(()));
    }

    fn score(&mut self, work: &mut Work) -> Result<(), ScoreError> {
        let mut watch = Stopwatch::start();
        // Nobody else brings frames: a device starts at once, or when it has finished others.
        let pushed = self.pushed.take().unwrap_or_else(|| self.scorer.push(&self.message));
        let scored = pushed.and_then(|()| self.scorer.rest());
        work.analyse_ns += watch.lap();
        scored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clips::{BUNDLED, Clip, bundled};

    fn plan(mode: Mode, passes: u32) -> Plan {
        Plan { mode, passes, decoders: 2 }
    }

    fn pictures(outcome: &Outcome) -> Vec<(u32, u32, u32)> {
        let ids = outcome.arrivals.iter().map(|arrival| arrival.record.id());
        let mut pictures: Vec<_> = ids.map(|id| (id.pass, id.stream.0, id.frame)).collect();
        pictures.sort_unstable();
        pictures
    }

    #[test]
    fn every_stream_is_scored_once_in_every_pass() {
        let streams = Streams::new(bundled().clips, 23);
        let outcome =
            run(&streams, plan(Mode::Sample, 3), Codec::default(), &Place::cpu(), RunClock::start(), &())
                .unwrap();
        let expected: Vec<_> = (0..3)
            .flat_map(|pass| (0..23).map(move |stream| (pass, stream)))
            .map(|(pass, stream)| (pass, stream, streams.entry(StreamNo(stream), pass).unwrap().1.picture))
            .collect();
        assert_eq!(pictures(&outcome), expected);
        assert_eq!((outcome.passes.len(), outcome.faults.len(), outcome.work.decoded), (3, 0, 69));
    }

    #[test]
    fn a_broken_stream_is_reported_and_the_rest_goes_on() {
        let mut data = BUNDLED[0].data.to_vec();
        let index = crate::annexb::Index::new(&data).unwrap();
        data.drain(index.pictures[0].end - 3000..index.pictures[0].end);
        let clips = vec![Clip::new("cut", data).unwrap(), Clip::new("whole", BUNDLED[0].data).unwrap()];
        let outcome = run(
            &Streams::new(clips, 4),
            plan(Mode::Sample, 1),
            Codec::default(),
            &Place::cpu(),
            RunClock::start(),
            &(),
        )
        .unwrap();
        let faults: Vec<_> = outcome.faults.iter().map(|fault| fault.stream).collect();
        assert_eq!(faults, [StreamNo(0)]);
        assert_eq!(pictures(&outcome), [(0, 1, 0), (0, 2, 30), (0, 3, 30)]);
    }

    /// All passes went on, for days over live sources, whose results then were given up.
    #[test]
    fn a_run_ends_with_the_pass_in_which_a_worker_fails() {
        use core::sync::atomic::{AtomicU32, Ordering};

        #[derive(Default)]
        struct Passes(AtomicU32);
        impl Observer for Passes {
            fn pass(&self, _: &crate::outcome::PassEnd) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let streams = Streams::new(bundled().clips, 4);
        let (plan, codec, clock) = (plan(Mode::Sample, 5), Codec::default(), RunClock::start());
        let mut workers: Vec<_> =
            (0..2).map(|number| Worker::new(number, plan.mode, &Place::cpu(), clock)).collect();
        workers[1].error = Some(ScoreError::Device { device: "GPU 0".into(), reason: "it is lost".into() });
        let passes = Passes::default();
        let error = work(workers, &streams, plan, codec, clock, &passes).unwrap_err();
        assert!(error.to_string().starts_with("worker1: GPU 0: it is lost"), "{error}");
        assert_eq!(passes.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn continuous_passes_show_consecutive_pictures() {
        let streams = Streams::new(vec![Clip::new("qcif", BUNDLED[0].data).unwrap()], 3);
        let outcome = run(
            &streams,
            plan(Mode::Continuous, 12),
            Codec::default(),
            &Place::cpu(),
            RunClock::start(),
            &(),
        )
        .unwrap();
        let of_stream_1: Vec<_> =
            pictures(&outcome).into_iter().filter(|(_, stream, _)| *stream == 1).collect();
        assert!(of_stream_1.len() >= 9);
        let frames: Vec<_> = of_stream_1.iter().map(|(_, _, frame)| *frame).collect();
        assert_eq!(frames, (30..30 + frames.len() as u32).collect::<Vec<_>>());
    }
}
