//! `pdbp top`, run as a user runs it.

use std::net::TcpListener;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use pdbp::monitor::NodeState;
use pdbp::{Cluster, PartKind};

/// Long enough for a loaded machine; a test that waits so long has failed.
const SOON: Duration = Duration::from_secs(60);

fn top(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pdbp")).arg("top").args(arguments).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_frame_shows_nodes_and_rows_and_who_has_failed() {
    let builder = Cluster::builder().nodes(3).timeout(SOON).set("metrics", "127.0.0.1:0");
    let cluster = builder.start().unwrap();
    let address = cluster.node(0).unwrap().endpoint().expect("node 0 serves").address().to_string();
    let frame = || printed(&top(&["--once", "--interval", "200ms", "--connect", &address]));
    cluster.run(|node| {
        let part = node.register("part", PartKind::Cpu).unwrap();
        if let Some(peer) = ["part@node1", "part@node0"].get(node.id().index()) {
            part.send(part.find(peer, SOON).unwrap(), b"hello").unwrap();
            part.recv().unwrap();
        }
        node.barrier(SOON).unwrap();
    });
    let shown = frame();
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    for start in ["pdbp top", "node0 ", "node1 ", "node0 → node1", "node0 ← node1", "node1 → node0"] {
        assert!(shown.lines().any(|line| line.starts_with(start)), "{start}: {shown}");
    }
    let mut nodes = cluster.into_nodes();
    drop(nodes.remove(1));
    let began = Instant::now();
    while nodes[0].observe(Duration::from_millis(500)).nodes[1].state != NodeState::Failed {
        assert!(began.elapsed() < SOON, "node 1 does not fail");
    }
    let shown = frame();
    assert!(shown.lines().any(|l| l.starts_with("node1") && l.contains("failed")), "{shown}");
}

#[test]
fn figures_that_are_only_for_those_who_know_the_secret_are_shown_with_it() {
    let secret = std::env::temp_dir().join(format!("pdbp-top-secret-{}", std::process::id()));
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let builder = Cluster::builder().nodes(1).timeout(SOON).set("metrics", "127.0.0.1:0");
    let cluster = builder.client_token_file(secret.clone()).start().unwrap();
    let address = cluster.node(0).unwrap().endpoint().expect("node 0 serves").address().to_string();
    let mut with = Command::new(env!("CARGO_BIN_EXE_pdbp"));
    with.args(["top", "--once", "--interval", "200ms", "--connect", &address]);
    with.env("PDBP_CLIENT_TOKEN_FILE", &secret);
    assert!(printed(&with.output().unwrap()).contains("node0 "));
    let without = top(&["--once", "--connect", &address]);
    let said = String::from_utf8(without.stderr).unwrap();
    assert!(
        !without.status.success() && said.contains("401") && said.contains("client_token_file"),
        "{said}"
    );
    std::fs::remove_file(secret).unwrap();
}

#[test]
fn it_says_what_to_do_when_there_is_no_cluster() {
    // An address that was free a moment ago, of a host of this test's own: ports of the usual one may go to other programs.
    let place = TcpListener::bind(("127.83.0.2", 0)).unwrap().local_addr().unwrap().to_string();
    let output = top(&["--once", "--connect", &place]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains(&place) && said.contains("PDBP_METRICS") && said.contains("--connect"), "{said}");
    for arguments in [&["--interval", "never"] as &[&str], &["--nodes", "2"], &["--set", "nodes=2"]] {
        let output = top(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}
