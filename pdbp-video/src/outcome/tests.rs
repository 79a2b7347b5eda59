//! Sums over a run, and what is left of a long one.

use super::*;
use crate::frame::{FrameHeader, FrameId};
use crate::measure::{Scores, Sight};

#[test]
fn streams_that_give_no_picture_in_a_pass_are_behind_until_they_give_one() {
    let size = crate::annexb::PictureSize { width: 16, height: 16 };
    let arrival = |stream: u32, pass: u32| {
        let id = FrameId { stream: StreamNo(stream), frame: pass, pass, captured_ns: 0 };
        let record = ScoreRecord::new(
            &FrameHeader::new(id, size),
            Scores::default(),
            Sight { black: 0.0, change: None },
            0,
            0,
        );
        Arrival { record, received_ns: 0 }
    };
    let mut outcome = Outcome { streams: 4, ..Outcome::default() };
    let time = PassTime { start_ns: 0, end_ns: 500_000_000 };
    // Stream 1 begins late, which decoders do, 2 is broken from the start, 3 for a while.
    for (pass, streams) in (0..).zip([&[0, 3][..], &[0, 1], &[0, 1, 3], &[0, 1, 2, 3]]) {
        outcome.arrivals.extend(streams.iter().map(|stream| arrival(*stream, pass)));
        if pass == 0 {
            outcome.faults.push(Fault { stream: StreamNo(2), pass, captured_ns: 0, reason: "cut".into() });
        }
        let end = outcome.end_pass(time);
        assert_eq!((end.pass, end.frames), (pass, streams.len()));
        assert_eq!(end.frames_per_second(), streams.len() as f64 * 2.0);
    }
    assert_eq!((outcome.behind, outcome.passes.len()), (vec![1, 2, 1, 0], 4));
}

fn arrival(stream: u32, pass: u32) -> Arrival {
    arrival_of(crate::annexb::PictureSize { width: 176, height: 144 }, stream, pass)
}

fn arrival_of(size: crate::annexb::PictureSize, stream: u32, pass: u32) -> Arrival {
    let header =
        FrameHeader::new(FrameId { stream: StreamNo(stream), frame: pass, pass, captured_ns: 0 }, size);
    let record = ScoreRecord::new(&header, Scores::default(), Sight { black: 1.0, change: None }, 0, 0);
    Arrival { record, received_ns: 0 }
}

#[test]
fn what_is_dropped_of_a_long_run_is_counted_all_the_same() {
    let mut outcome = Outcome { streams: 2, mode: Mode::Live, ..Outcome::default() };
    for pass in 0..50 {
        outcome.arrivals.push(arrival(0, pass));
        if pass < 10 {
            outcome.arrivals.push(arrival(1, pass));
        }
        outcome.faults.push(Fault {
            stream: StreamNo(1),
            pass,
            captured_ns: 0,
            reason: format!("fault {pass}"),
        });
        outcome.end_pass(PassTime { start_ns: 0, end_ns: 1 });
        outcome.forget(8);
    }
    assert!(outcome.arrivals.len() <= 8 && outcome.faults.len() <= 8 && outcome.notes.len() == 1);
    let sources = outcome.sources();
    let counts: Vec<_> = sources.iter().map(|of| (of.pictures, of.faults, of.silent, of.is_live())).collect();
    assert_eq!(counts, [(50, 0, 0, true), (10, 50, 40, false)]);
    assert_eq!(outcome.totals(), (60, 50));
    assert_eq!(sources[1].last_fault.as_deref(), Some("fault 49"));
    assert_eq!(outcome.tallies().iter().map(|tally| tally.black).collect::<Vec<_>>(), [50, 10]);
    // Stream 1 has no scores left, and gave its last picture as QCIF all the same.
    assert!(outcome.arrivals.iter().all(|arrival| arrival.record.id().stream == StreamNo(0)));
    assert_eq!(outcome.classes().get(&StreamNo(1)), Some(&StreamClass::Qcif));
    assert_eq!((outcome.dropped(StreamNo(1)), outcome.has_dropped()), (10, true));
    for _ in 0..9 {
        outcome.faults.push(Fault { stream: StreamNo(0), pass: 50, captured_ns: 0, reason: "cut".into() });
    }
    outcome.forget(8);
    outcome.faults.clear();
    assert_eq!(
        outcome.sources()[1].last_fault.as_deref(),
        Some("fault 49"),
        "it is not kept with the others"
    );
}

#[test]
fn pictures_of_a_stream_that_changes_its_size_are_in_the_row_of_their_class() {
    let clips = crate::clips::bundled().clips; // the first is QCIF
    let streams = Streams::new(clips.into_iter().take(1).collect(), 1);
    let cif = crate::annexb::PictureSize { width: 352, height: 288 };
    for mode in [Mode::Continuous, Mode::Live] {
        let mut outcome = Outcome { streams: 1, mode, ..Outcome::default() };
        outcome.arrivals = vec![arrival_of(cif, 0, 0), arrival(0, 1), arrival_of(cif, 0, 2), arrival(0, 3)];
        let rows = |outcome: &Outcome| -> Vec<_> {
            outcome.summaries(&streams).iter().map(|row| (row.class, row.frames)).collect()
        };
        let expected = [(Some(StreamClass::Qcif), 2), (Some(StreamClass::Cif), 2), (None, 4)];
        assert_eq!(rows(&outcome), expected);
        outcome.forget(2);
        assert_eq!(rows(&outcome), expected, "also when the scores are no longer kept");
    }
}

/// The time from the capture of a picture to its arrival was taken for the pass of its class.
#[test]
fn classes_of_live_sources_have_the_rate_of_their_pictures_in_the_seconds_of_the_passes() {
    let streams = Streams::new(crate::clips::bundled().clips, 1);
    let mut outcome = Outcome { streams: 1, mode: Mode::Live, ..Outcome::default() };
    for pass in 0..4u32 {
        let received_ns = 5_000_000; // after its capture at 0
        outcome.arrivals.push(Arrival { received_ns, ..arrival(0, pass) });
        outcome.end_pass(PassTime { start_ns: 0, end_ns: 1_000_000_000 });
    }
    let summaries = outcome.summaries(&streams);
    let qcif = summaries.iter().find(|row| row.class == Some(StreamClass::Qcif)).unwrap();
    assert_eq!((qcif.pass_seconds, qcif.frames_per_second(4)), (1.0, 1.0));
    outcome.mode = Mode::Continuous;
    let summaries = outcome.summaries(&streams);
    let qcif = summaries.iter().find(|row| row.class == Some(StreamClass::Qcif)).unwrap();
    assert!((qcif.pass_seconds - 0.005).abs() < 1e-9, "{qcif:?}");
}

/// They come from other processes, which may send any.
#[test]
fn numbers_of_other_processes_are_added_up_to_what_a_number_holds() {
    let mut outcome = Outcome { streams: 1, mode: Mode::Live, ..Outcome::default() };
    let most = Work { decode_ns: u64::MAX, decoded: 1, analyse_ns: 2, analysed: u64::MAX, total_ns: 3 };
    outcome.work += most;
    outcome.work += most;
    assert_eq!(
        (outcome.work.decode_ns, outcome.work.decoded, outcome.work.analysed),
        (u64::MAX, 2, u64::MAX)
    );
    for pass in [0, 0, 1] {
        outcome.carried(Traffic { pass, from: 0, to: 1, frames: 1, bytes: u64::MAX });
    }
    let pairs = outcome.pairs();
    assert_eq!((pairs.len(), pairs[0].frames, pairs[0].bytes), (1, 3, u64::MAX));
    outcome.arrivals = vec![arrival(0, u32::MAX), arrival(0, 0), arrival(0, u32::MAX)];
    outcome.forget(2);
    assert_eq!((outcome.sources()[0].pictures, outcome.sources()[0].silent), (3, 0));
}

#[test]
fn percentiles_follow_the_nearest_rank() {
    let values: Vec<u64> = (1..=100).collect();
    assert_eq!([0.5, 0.9, 0.99, 1.0].map(|rank| percentile(&values, rank)), [50, 90, 99, 100]);
    assert_eq!(percentile(&[7], 0.5), 7);
    assert_eq!(percentile(&[], 0.5), 0);
}
