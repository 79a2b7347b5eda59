use super::*;
use crate::account::RunClock;
use crate::clips::bundled;
use crate::decode::Codec;
use crate::direct;
use crate::measure::Place;
use crate::outcome::{Density, Fault, PassTime, Traffic};
use crate::plan::{Mode, Plan};
use crate::streams::StreamNo;

fn run() -> (Streams, Outcome) {
    let streams = Streams::new(bundled().clips, 20);
    let plan = Plan { mode: Mode::Sample, passes: 2, decoders: 2 };
    let mut outcome =
        direct::run(&streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &()).unwrap();
    outcome.faults.push(Fault {
        stream: StreamNo(7),
        pass: 1,
        captured_ns: 0,
        reason: "cut, \"here\" <b>".into(),
    });
    let at_ns = outcome.passes[0].start_ns;
    outcome.densities.push(Density { at_ns, row: "node0 → node1".into(), density: 0.25, utilisation: 0.5 });
    for (pass, pair) in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 0)] {
        outcome.carried(Traffic { pass, from: pair, to: pair + 2, frames: 5, bytes: 1_000_000 });
    }
    (streams, outcome)
}

#[test]
fn the_table_has_a_line_per_class_and_one_for_all() {
    let (streams, outcome) = run();
    let table = table::table(&streams, &outcome);
    let names: Vec<_> = table.lines().filter_map(|line| line.split('│').next()).map(str::trim).collect();
    assert_eq!(names.iter().filter(|name| ["QCIF", "CIF", "D1", "all"].contains(name)).count(), 4, "{table}");
    assert!(table.contains("processor time outside both"));
    let qcif = table.lines().find(|line| line.contains("QCIF")).unwrap();
    let cells: Vec<_> = qcif.split('│').map(str::trim).collect();
    assert_eq!(cells[1..3], ["4", "8"], "{table}");
}

#[test]
fn pairs_of_nodes_are_listed_with_what_they_carried_in_the_time_of_the_passes() {
    let (streams, mut outcome) = run();
    let pass = |start_ns| PassTime { start_ns, end_ns: start_ns + 500_000_000 };
    outcome.passes = vec![pass(0), pass(700_000_000)];
    let table = table::table(&streams, &outcome);
    let cells = |name: &str| -> Vec<String> {
        let line = table.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{table}"));
        line.split('│').skip(1).map(|cell| cell.trim().to_owned()).collect()
    };
    assert_eq!(cells("node0 → node2"), ["15", "3", "24.0"]);
    assert_eq!(cells("node1 → node3"), ["10", "2", "16.0"]);
    assert_eq!(cells("mean of a pair"), ["12", "3", "20.0"]);
    let csv = &csv::files(&streams, &outcome)[3].1;
    assert!(csv.ends_with("1,0,2,10,2000000,0.500000,32.000\n1,1,3,5,1000000,0.500000,16.000\n"), "{csv}");
    outcome.mode = Mode::Replay;
    assert!(table::table(&streams, &outcome).contains("frames replayed"));
}

#[test]
fn csv_files_have_a_line_per_item_and_quote_text() {
    let (streams, outcome) = run();
    let files = csv::files(&streams, &outcome);
    let lines: Vec<_> = files.iter().map(|(name, text)| (*name, text.lines().count() - 1)).collect();
    let expected = [
        ("frames.csv", 40),
        ("streams.csv", 20),
        ("passes.csv", 2),
        ("pairs.csv", 4),
        ("faults.csv", 1),
        ("density.csv", 1),
    ];
    assert_eq!(lines, expected);
    assert!(files[4].1.ends_with("1,7,bbb_cif_blurred,\"cut, \"\"here\"\" <b>\"\n"), "{}", files[4].1);
}

/// It was `other`, the class of a picture of 0×0.
#[test]
fn the_class_of_a_live_source_is_that_of_its_latest_picture() {
    let (_, mut outcome) = run();
    outcome.mode = Mode::Live;
    let clips = crate::clips::load(&["rtp://127.0.0.1:0", "rtp://127.0.0.1:0"]).clips;
    let streams = Streams::new(clips, 2);
    outcome.arrivals.retain(|arrival| arrival.record.id().stream == StreamNo(0)); // QCIF
    let [_, (_, csv), ..] = csv::files(&streams, &outcome);
    let classes: Vec<_> = csv.lines().skip(1).map(|line| line.split(',').nth(2).unwrap()).collect();
    assert_eq!(classes, ["QCIF", ""], "{csv}");
}

/// Readers take a carriage return for the end of a line, too.
#[test]
fn names_with_line_breaks_are_one_field_of_a_line() {
    for name in ["a\rb", "a\nb", "a,b"] {
        assert_eq!(csv::text(name), format!("\"{name}\""));
    }
    assert_eq!(csv::text("a b"), "a b");
}

#[test]
fn the_page_is_written_with_all_plots_and_nothing_unescaped() {
    let (streams, outcome) = run();
    let folder = tempfile::tempdir().unwrap();
    let facts = Facts { title: "a < b".into(), settings: vec![("streams".into(), "20".into())] };
    let page = write(&folder.path().join("deep/er"), &facts, &streams, &outcome).unwrap();
    let text = fs::read_to_string(&page).unwrap();
    assert_eq!(text.matches("<svg").count(), 8);
    assert!(text.contains("Big Buck Bunny"), "the bundled clips are credited");
    assert!(text.contains("a &lt; b") && text.contains("&lt;b&gt;") && !text.contains("NaN"));
    for file in ["frames.csv", "streams.csv", "passes.csv", "pairs.csv", "faults.csv", "density.csv"] {
        assert!(page.with_file_name(file).exists(), "{file}");
    }
}

#[test]
fn the_page_of_live_sources_has_their_states_and_calls_faults_by_their_name() {
    let (streams, mut outcome) = run();
    outcome.mode = Mode::Live;
    let page = html::page(&Facts::default(), &streams, &outcome);
    assert!(page.contains("<h2>Sources</h2>") && page.contains("<h2>Faults of sources</h2>"));
    assert!(page.contains("<td>live<td>") && !page.contains("pictures missing"));
    outcome.mode = Mode::Sample;
    let page = html::page(&Facts::default(), &streams, &outcome);
    assert!(!page.contains("<h2>Sources</h2>") && page.contains("pictures missing"));
}

/// The plot showed that nothing had arrived before, and a stream had more black pictures than pictures.
#[test]
fn what_is_no_longer_kept_is_counted_and_leaves_no_zeros() {
    let (streams, mut outcome) = run();
    outcome.mode = Mode::Live;
    let all = outcome.arrivals.len();
    let end = outcome.arrivals.iter().map(|arrival| arrival.received_ns).max().unwrap();
    for (place, arrival) in outcome.arrivals.iter_mut().enumerate() {
        arrival.received_ns = end + 1_000_000_000 * place as u64;
    }
    let points = |outcome: &Outcome| series::throughput(outcome).points;
    assert_eq!(points(&outcome).len(), 120);
    outcome.forget(all / 2);
    let kept = points(&outcome);
    assert!(kept.len() < 60 && kept[0].0 > 0.0, "{kept:?}");
    let file = csv::files(&streams, &outcome)[1].1.clone();
    let frames = file.lines().skip(1).map(|line| line.split(',').nth(3).unwrap().parse::<usize>().unwrap());
    assert_eq!(frames.sum::<usize>(), all, "{file}");
}

#[test]
fn an_empty_run_still_gives_a_page() {
    let streams = Streams::new(Vec::new(), 0);
    let text = html::page(&Facts::default(), &streams, &Outcome::default());
    assert!(!text.contains("Big Buck Bunny"), "none was used");
    assert!(text.contains("no transport") && !text.contains("NaN") && !text.contains("inf"));
    assert!(table::table(&streams, &Outcome::default()).contains("all"));
}

#[test]
fn an_unwritable_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error =
        write(&file, &Facts::default(), &Streams::new(Vec::new(), 0), &Outcome::default()).unwrap_err();
    assert!(error.to_string().contains("file") && error.to_string().contains("--report"), "{error}");
}

#[test]
fn numbers_are_short_and_legible() {
    assert_eq!([0, 999, 1000, 1_234_567].map(pdbp_plots::count), ["0", "999", "1,000", "1,234,567"]);
    let durations = [5, 1_500, 29_960, 123_456_789, 4_000_000_000].map(table::duration);
    assert_eq!(durations, ["5.00 ns", "1.50 µs", "30.0 µs", "123 ms", "4.00 s"]);
}

/// The time that a page takes grew with the square of the number of scores: this one was not done within minutes.
#[test]
fn a_page_of_many_scores_is_written() {
    let (streams, mut outcome) = run();
    outcome.arrivals = outcome.arrivals.iter().copied().cycle().take(100_000).collect();
    let folder = tempfile::tempdir().unwrap();
    let facts = Facts { title: "many".into(), settings: Vec::new() };
    let page = std::fs::read_to_string(write(folder.path(), &facts, &streams, &outcome).unwrap()).unwrap();
    assert!(page.contains("100,000"), "the number of frames");
}
