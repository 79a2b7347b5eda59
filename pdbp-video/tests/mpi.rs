//! The program `pdbp-video` as the ranks of a job.

#[path = "../../pdbp-cli/tests/launcher/mod.rs"]
mod launcher;

use launcher::Ended;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pdbp-video");

fn video(ranks: usize, arguments: &[&str]) -> Option<Ended> {
    launcher::run(PROGRAM, &[(ranks, arguments)])
}

/// Stream, frame and scores of every line, in a fixed order.
fn scores(csv: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(csv).unwrap();
    let line = |line: &str| {
        let fields: Vec<_> = line.split(',').collect();
        [&fields[..5], &fields[9..]].concat().join(",")
    };
    let mut lines: Vec<_> = text.lines().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn one_process_speaks_and_the_scores_are_those_of_a_single_process() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let arguments = ["--streams", "12", "--passes", "2", "--report", report.to_str().unwrap()];
    let Some(Ended { status, stdout, stderr }) = video(3, &arguments) else { return };
    assert!(status.success(), "{stdout}{stderr}");
    for once in ["12 streams", "node0 → node1", "node0 → node2", "processor time outside both", "report: "]
    {
        assert_eq!(stdout.matches(once).count(), 1, "{once}: {stdout}");
    }
    let page = std::fs::read_to_string(report.join("index.html")).unwrap();
    assert!(page.contains("3 nodes, processes over MPI"));
    let alone = folder.path().join("alone.csv");
    let arguments = ["--streams", "12", "--passes", "2", "--quiet", "--csv", alone.to_str().unwrap()];
    assert!(Command::new(PROGRAM).args(arguments).args(["--nodes", "0"]).status().unwrap().success());
    assert_eq!(scores(&report.join("frames.csv")), scores(&alone));
}

#[test]
fn replayed_and_continuous_streams_pass_between_processes() {
    for arguments in
        [&["--replay", "--passes", "3"] as &[&str], &["--continuous", "--passes", "5", "--class", "qcif"]]
    {
        let Some(Ended { status, stdout, stderr }) = video(4, &[arguments, &["--streams", "20"]].concat())
        else {
            return;
        };
        assert!(status.success(), "{stdout}{stderr}");
        assert_eq!(stdout.matches("mean of a pair").count(), 1, "{stdout}");
    }
}

#[test]
fn what_all_ranks_know_is_said_once() {
    for (arguments, word) in [
        (&["--nodes", "0"] as &[&str], "without transport"),
        (&["--nodes", "7"], "3 processes"),
        (&["--streams", "0"], "invalid value '0'"),
    ] {
        let Some(Ended { status, stdout, stderr }) = video(3, arguments) else { return };
        assert!(!status.success() && stdout.is_empty(), "{stdout}{stderr}");
        assert_eq!(stderr.matches(word).count(), 1, "{stderr}");
    }
}

#[test]
fn ranks_that_were_given_different_things_are_found_out() {
    let groups = [(2, &["--streams", "20"] as &[&str]), (1, &["--streams", "21"])];
    let Some(Ended { status, stdout, stderr }) = launcher::run(PROGRAM, &groups) else { return };
    assert!(!status.success(), "{stdout}{stderr}");
    assert!(stderr.contains("node2 has other clips, streams or decoders than node0"), "{stderr}");
}
