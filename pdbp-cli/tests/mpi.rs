//! The program `pdbp` as the ranks of a job.

mod launcher;

use launcher::Ended;

const PDBP: &str = env!("CARGO_BIN_EXE_pdbp");

fn pdbp(ranks: usize, arguments: &[&str]) -> Option<Ended> {
    launcher::run(PDBP, &[(ranks, arguments)])
}

#[test]
fn the_first_rank_reports_for_all() {
    let Some(Ended { status, stdout, stderr }) = pdbp(3, &["ping", "--count", "20"]) else { return };
    assert!(status.success(), "{stdout}{stderr}");
    assert!(stdout.starts_with("3 nodes, processes over MPI, messages of 64 bytes\n"), "{stdout}");
    for once in ["round trip", "node1 ", "node2 ", "million/s"] {
        assert_eq!(stdout.matches(once).count(), 1, "{once}: {stdout}");
    }
}

#[test]
fn what_all_ranks_know_is_said_once() {
    for (arguments, word) in [
        (&["ping", "--count", "0"] as &[&str], "--count 0"),
        (&["ping", "--nodes", "7"], "3 processes"),
        (&["ping", "--set", "memory_bytes=70000"], "`memory_bytes` is 70000"),
    ] {
        let Some(Ended { status, stdout, stderr }) = pdbp(3, arguments) else { return };
        assert!(!status.success(), "{stdout}{stderr}");
        assert_eq!(stderr.matches(word).count(), 1, "{stderr}");
    }
    let Some(version) = pdbp(3, &["--version"]) else { return };
    assert_eq!((version.stdout.lines().count(), version.status.success()), (1, true), "{version:?}");
}

#[test]
fn ranks_can_have_a_cluster_each() {
    let Some(Ended { status, stdout, stderr }) = pdbp(2, &["ping", "--count", "5", "--transport", "local"])
    else {
        return;
    };
    assert!(status.success(), "{stdout}{stderr}");
    assert_eq!(stdout.matches("2 nodes in this process").count(), 2, "{stdout}");
}

#[test]
fn a_single_rank_has_nobody_to_ping_over_mpi() {
    let Some(Ended { status, stderr, .. }) = pdbp(1, &["ping", "--transport", "mpi"]) else { return };
    assert!(!status.success() && stderr.contains("mpirun -n 2"), "{stderr}");
}

#[test]
fn an_address_for_figures_that_is_taken_ends_the_job_with_a_reason() {
    // A rank that fails before it has come to MPI does not end a job of MPICH's launcher: the others wait for it.
    if launcher::is_mpich(PDBP) {
        println!("skipped: the launcher of MPICH does not end the other ranks");
        return;
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = format!("metrics={}", taken.local_addr().unwrap());
    let Some(Ended { status, stdout, stderr }) = pdbp(3, &["ping", "--set", &metrics]) else { return };
    assert!(!status.success(), "{stdout}{stderr}");
    assert!(stderr.contains("rank 0") && stderr.contains("another port"), "{stderr}");
}

#[test]
fn the_nodes_of_a_job_are_seen_and_traced() {
    let folder = tempfile::tempdir().unwrap();
    let trace = format!("trace={}", folder.path().join("t.json").display());
    let arguments = ["ping", "--count", "50", "--set", "metrics=127.0.0.1:0", "--set", &trace];
    let Some(Ended { status, stdout, stderr }) = pdbp(3, &arguments) else { return };
    assert!(status.success() && stdout.contains("million/s"), "{stdout}{stderr}");
    for node in 0..3 {
        let text = std::fs::read_to_string(folder.path().join(format!("t.node{node}.json"))).unwrap();
        let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert!(events.iter().any(|e| e["name"] == "part ping registered"), "node {node}");
    }
}
