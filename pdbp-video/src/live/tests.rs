use super::*;
use crate::account::RunClock;
use crate::clips::{BUNDLED, Clip, bundled};
use crate::direct;
use crate::frame::{FrameHeader, FrameId};
use crate::measure::Place;
use crate::outcome::PassTime;
use crate::plan::Mode;
use crate::streams::StreamNo;

fn live(streams: &Streams, plan: Plan) -> Live {
    Live::new("a < b".into(), streams.clone(), plan, Codec::default())
}

#[test]
fn the_view_shows_the_table_pictures_scores_and_rows() {
    let streams = Streams::new(bundled().clips, 20);
    let plan = Plan { mode: Mode::Sample, passes: 2, decoders: 2 };
    let live = live(&streams, plan);
    assert!(view::page(&live.0).contains("0 of 2"), "before anything has arrived");
    direct::run(&streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &live).unwrap();
    live.0.state().advance(1e3);
    let row = |density| Density { at_ns: 0, row: "send: node0 → node2".into(), density, utilisation: 0.5 };
    live.rows(&[row(0.25)]);
    live.rows(&[row(0.75)]);
    live.fault(&Fault { stream: StreamNo(7), pass: 2, captured_ns: u64::MAX, reason: "cut <here>".into() });
    let view = view::view(&live.0);
    for part in [
        "a &lt; b",
        "2 of 2",
        "<td>QCIF<td>4<td>",
        "cut &lt;here&gt;",
        "<b>Stream 7</b>",
        "send: node0 → node2",
    ] {
        assert!(view.contains(part), "{part}: {view}");
    }
    // Three measures, the throughput and the rows; a picture of each of the worst streams.
    assert_eq!((view.matches("<svg").count(), view.matches("data:image/bmp;base64,").count()), (5, 6));
    assert!(view.contains("1</b><span>streams broken now"), "{view}");
    // Pictures may have any letters.
    assert!(["NaN<", "NaN ", ",NaN"].into_iter().all(|part| !view.contains(part)), "{view}");
    let page = view::page(&live.0);
    assert!(!page.contains("src=\"http") && !page.contains("href") && page.contains("fetch('view')"));
}

#[test]
fn streams_that_are_black_or_frozen_now_come_first() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/freeze_black.264");
    let still = Clip::new("still", std::fs::read(file).unwrap()).unwrap();
    let streams = Streams::new(vec![Clip::new("good", BUNDLED[0].data).unwrap(), still], 6);
    for (passes, is_frozen, is_black) in [(8, false, false), (16, true, false), (31, true, true)] {
        let plan = Plan { mode: Mode::Continuous, passes, decoders: 1 };
        let live = live(&streams, plan);
        direct::run(&streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &live).unwrap();
        let view = view::view(&live.0);
        assert_eq!(view.contains("<b>frozen</b>"), is_frozen, "after {passes} passes: {view}");
        assert_eq!(view.contains("<b>black</b>"), is_black, "after {passes} passes: {view}");
        if is_frozen {
            let place = |stream: u32| view.find(&format!("<b>Stream {stream}</b>")).unwrap();
            // Stream 3 began at the second entry point, and is elsewhere.
            assert!([1, 5].into_iter().all(|still| place(still) < place(0)), "{view}");
            assert!(view.contains("2</b><span>streams frozen now"), "{view}");
        }
    }
}

#[test]
fn a_broken_stream_is_well_again_with_its_next_picture() {
    let streams = Streams::new(bundled().clips, 5);
    let plan = Plan { mode: Mode::Sample, passes: 1, decoders: 1 };
    let live = live(&streams, plan);
    live.fault(&Fault { stream: StreamNo(2), pass: 0, captured_ns: 0, reason: "lost".into() });
    assert!(live.0.state().known[2].broken().is_some());
    let outcome = direct::run(
        &streams,
        Plan { passes: 2, ..plan },
        Codec::default(),
        &Place::cpu(),
        RunClock::start(),
        &(),
    )
    .unwrap();
    live.scored(&outcome.arrivals);
    assert!(live.0.state().known.iter().all(|known| known.broken().is_none() && known.last.is_some()));
}

/// Over live sources a pass is a second, in which much happens.
#[test]
fn a_stream_that_breaks_in_the_pass_of_its_last_picture_is_broken() {
    let streams = Streams::new(bundled().clips, 5);
    let plan = Plan { mode: Mode::Sample, passes: 1, decoders: 1 };
    let outcome =
        direct::run(&streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &()).unwrap();
    let live = live(&streams, plan);
    let of_stream = |arrival: &&Arrival| arrival.record.id().stream.0 == 2;
    let known = outcome.arrivals.iter().find(of_stream).copied().unwrap();
    let picture = |pass, captured_ns| {
        let header =
            FrameHeader::new(FrameId { pass, captured_ns, ..known.record.id() }, streams.clips()[2].size());
        let record = ScoreRecord::new(&header, known.record.scores(), known.record.sight(), 0, captured_ns);
        live.scored(&[Arrival { record, ..known }]);
    };
    let fault = |pass, captured_ns| {
        live.fault(&Fault { stream: StreamNo(2), pass, captured_ns, reason: "the connection broke".into() });
    };
    let is_broken = || view::view(&live.0).contains("1</b><span>streams broken now");
    picture(3, 1_000);
    fault(3, 2_000);
    assert!(is_broken());
    picture(3, 3_000);
    assert!(!is_broken());
    // Faults overtake scores on their way.
    fault(4, 5_000);
    picture(4, 4_000);
    assert!(is_broken());
}

#[test]
fn a_long_run_keeps_as_many_points_as_a_short_one() {
    let streams = Streams::new(bundled().clips, 5);
    let live = live(&streams, Plan { mode: Mode::Sample, passes: 1, decoders: 1 });
    let mut state = live.0.state();
    for second in 0..100_000 {
        state.advance(f64::from(second));
        let row = Density { at_ns: 0, row: "row".into(), density: 0.5, utilisation: 0.5 };
        state.add_rows(f64::from(second), &[row]);
    }
    assert!((MOST_POINTS / 2..=MOST_POINTS).contains(&state.points.len()), "{}", state.points.len());
    assert!((MOST_POINTS / 2..=MOST_POINTS).contains(&state.rows["row"].len()));
    assert!(state.points.windows(2).all(|pair| pair[0].at < pair[1].at) && state.points[0].at < 4096.0);
    drop(state);
    let time = PassTime { start_ns: 0, end_ns: 1_000_000_000 };
    live.pass(&PassEnd { pass: 0, time, frames: 5, behind: 3 });
    let view = view::view(&live.0);
    assert!(view.contains("3</b><span>streams behind"), "{view}");
}

/// A picture that comes too late was never shown any more, and one that cannot be shown was decoded anew with every number.
#[test]
fn a_picture_that_cannot_be_shown_is_not_tried_again_and_one_that_is_not_there_yet_is() {
    let address = crate::sources::Address::parse("rtp://127.0.0.1:0").unwrap().unwrap();
    let clips =
        vec![Clip::live(crate::sources::Source::new(address)), Clip::new("file", BUNDLED[0].data).unwrap()];
    let streams = Streams::new(clips, 2);
    let live = live(&streams, Plan { mode: Mode::Live, passes: 1, decoders: 1 });
    let [source, file] = [0, 1].map(|clip| &streams.clips()[clip]);
    let known = || live.0.not_shown.lock().unwrap().values().map(|pictures| pictures.len()).sum::<usize>();
    let key = |bytes: &[u8]| {
        let standard = crate::annexb::Standard::H264;
        let unit = crate::sources::AccessUnit { standard, bytes: bytes.to_vec(), is_key: true };
        source.source().unwrap().decoded(unit);
    };
    assert!(live.0.picture(0, source, 7).is_none() && known() == 0);
    key(b"no picture");
    assert!([7, 8, 9].into_iter().all(|number| live.0.picture(0, source, number).is_none()) && known() == 1);
    key(BUNDLED[0].data);
    assert!(live.0.picture(0, source, 9).is_some());
    // In turn, as streams show them.
    assert!([1_000, 2_000, 1_000].into_iter().all(|number| live.0.picture(1, file, number).is_none()));
    assert_eq!(known(), 3);
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let streams = Streams::new(bundled().clips, 1);
    let error =
        live(&streams, Plan { mode: Mode::Sample, passes: 1, decoders: 1 }).serve(&address).err().unwrap();
    assert!(error.to_string().contains(&address) && error.to_string().contains("--serve"), "{error}");
}
