//! `pdbp top`, run as a user runs it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use pdbp::monitor::NodeState;
use pdbp::{Cluster, Codec, PartKind, TransportKind};

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
    cluster.run(|node| {
        let part = node.register("part", PartKind::Cpu).unwrap();
        if let Some(peer) = ["part@node1", "part@node0"].get(node.id().index()) {
            part.send(part.find(peer, SOON).unwrap(), b"hello").unwrap();
            part.recv().unwrap();
        }
        node.barrier(SOON).unwrap();
    });
    let starts = ["pdbp top", "node0 ", "node1 ", "node0 → node1", "node0 ← node1", "node1 → node0"];
    let begins = |shown: &str, start: &&str| shown.lines().any(|line| line.starts_with(start));
    let shown = frame_with(&address, |shown| starts.iter().all(|start| begins(shown, start)));
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let mut nodes = cluster.into_nodes();
    drop(nodes.remove(1));
    let began = Instant::now();
    while nodes[0].observe(Duration::from_millis(500)).nodes[1].state != NodeState::Failed {
        assert!(began.elapsed() < SOON, "node 1 does not fail");
    }
    frame_with(&address, |shown| {
        shown.lines().any(|line| line.starts_with("node1") && line.contains("failed"))
    });
}

/// It said that a resource was temporarily unavailable.
#[test]
fn who_does_not_answer_is_said_not_to() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let output = top(&["--once", "--connect", &address]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("does not answer"), "{said}");
}

/// It told to start a cluster.
#[test]
fn a_secret_that_cannot_be_read_is_what_is_wrong() {
    let output = Command::new(env!("CARGO_BIN_EXE_pdbp"))
        .args(["top", "--once", "--connect", "127.0.0.1:1"])
        .env("PDBP_CLIENT_TOKEN_FILE", "/nonexistent/secret")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("/nonexistent/secret"), "{said}");
    assert!(!said.contains("PDBP_METRICS"), "{said}");
}

/// The first frame that is as it should be: a node or a server that has no processor for a while is missing in those before.
fn frame_with(address: &str, is_it: impl Fn(&str) -> bool) -> String {
    let began = Instant::now();
    loop {
        let output = top(&["--once", "--interval", "200ms", "--connect", address]);
        if output.status.success() && is_it(&String::from_utf8_lossy(&output.stdout)) {
            return printed(&output);
        }
        assert!(began.elapsed() < SOON, "{output:?}");
    }
}

/// A cluster over sockets that packs, with a trunk to another one and a trunk to nowhere; a stranger has called.
#[test]
fn links_and_trunks_are_shown_with_what_they_carry_and_who_was_refused() {
    let alone = |name: &str| Cluster::builder().nodes(1).timeout(SOON).grid(name.to_owned());
    let east = alone("east").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let nowhere = TcpListener::bind(("127.83.0.3", 0)).unwrap().local_addr().unwrap();
    // As below, ports of hosts that no other program uses.
    let listens = TcpListener::bind(("127.83.0.4", 0)).unwrap().local_addr().unwrap();
    let builder =
        alone("west").transport(TransportKind::Net).lease(Duration::ZERO).outage(SOON).codec(Codec::Lz4);
    let first = builder.clone().nodes(2).listen(listens.to_string()).set("metrics", "127.0.0.1:0");
    let first = first.trunk("east", east.address().unwrap()).trunk("north", nowhere);
    let second = builder.join(listens.to_string()).set("monitor", "on");
    let joins = std::thread::spawn(|| second.start().unwrap());
    let clusters = [first.start().unwrap(), joins.join().unwrap()];
    let [first, second] = [&clusters[0], &clusters[1]].map(|cluster| cluster.nodes()[0].clone());
    let reader = second.register_shared("reader", PartKind::Cpu).unwrap();
    let writer = first.register_shared("writer", PartKind::Cpu).unwrap();
    let to = writer.find("reader@node1", SOON).unwrap();
    writer.send(to, &vec![b'a'; 100_000]).unwrap();
    writer.flush();
    assert_eq!(reader.recv_timeout(SOON).unwrap().len(), 100_000);
    let mut stranger = TcpStream::connect(listens).unwrap();
    stranger.write_all(&[0xFF; 64]).unwrap();
    // Until it is shown out, with bytes unread or without.
    let _ = stranger.read(&mut [0]);
    let address = first.endpoint().expect("node 0 serves").address().to_string();
    let shown = frame_with(&address, |shown| {
        let has = |start: &str, what: &str| shown.lines().any(|l| l.starts_with(start) && l.contains(what));
        let links = has("node0 ⇄ node1", "up") && has("node1 ⇄ node0", "up");
        links && has("node0 ⇒ east", "up") && has("node0 ⇒ north", "down") && has("node0: ", "strangers")
    });
    let words = |start: &str| -> Vec<_> {
        let line = shown.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("{start}: {shown}")).split_whitespace().skip(3).collect()
    };
    // A connection (or a second one, over which some is sent again, if a process had no processor for a while), no failure; what was sent has
    // shrunk by more than half.
    let link = words("node0 ⇄ node1");
    assert_eq!((link[0], link[4], link[7]), ("up", "lz4", "0"), "{shown}");
    assert!(link[6].parse::<u32>().unwrap() > 0, "{shown}");
    assert!(link[5].trim_end_matches('%').parse::<u32>().unwrap() > 50, "{shown}");
    assert_eq!(words("node1 ⇄ node0")[0], "up");
    assert!(shown.contains("strangers: foreign 1"), "{shown}");
    // Blocks are counted as they were before they were packed.
    let seen = first.observe(SOON);
    let links: Vec<_> =
        seen.nodes.iter().map(|node| node.figures.as_ref().unwrap().links[0].clone()).collect();
    assert!(links[0].sent_bytes > 100_000 && links[1].received_bytes > 100_000, "{links:?}");
    assert!(links[0].packed_bytes < links[0].plain_bytes && links[0].saved() > 0.5, "{links:?}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
}

#[test]
fn figures_that_are_only_for_those_who_know_the_secret_are_shown_with_it() {
    let secret = std::env::temp_dir().join(format!("pdbp-top-secret-{}", std::process::id()));
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let builder = Cluster::builder().nodes(1).timeout(SOON).set("metrics", "127.0.0.1:0");
    let cluster = builder.client_token_file(secret.clone()).start().unwrap();
    let address = cluster.node(0).unwrap().endpoint().expect("node 0 serves").address().to_string();
    let began = Instant::now();
    let mut with = Command::new(env!("CARGO_BIN_EXE_pdbp"));
    with.args(["top", "--once", "--interval", "200ms", "--connect", &address]);
    with.env("PDBP_CLIENT_TOKEN_FILE", &secret);
    let until = |mut command: Command, is_so: &dyn Fn(&Output) -> bool| loop {
        let output = command.output().unwrap();
        if is_so(&output) {
            break;
        }
        // The server may have had no processor for as long as the program waits for it.
        assert!(began.elapsed() < SOON, "{output:?}");
    };
    until(with, &|output| {
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("node0 ")
    });
    let mut without = Command::new(env!("CARGO_BIN_EXE_pdbp"));
    without.args(["top", "--once", "--connect", &address]);
    until(without, &|output| {
        let said = String::from_utf8_lossy(&output.stderr);
        !output.status.success() && said.contains("401") && said.contains("client_token_file")
    });
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
    let output = top(&["--once", "--connect", "nonsense"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("nonsense: ") && said.contains("127.0.0.1:9100") && !said.contains("METRICS"),
        "{said}"
    );
    for arguments in [&["--interval", "never"] as &[&str], &["--nodes", "2"], &["--set", "nodes=2"]] {
        let output = top(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

/// Otherwise nobody sees what is typed afterwards.
#[test]
fn a_terminal_is_restored_when_a_signal_ends_the_program() {
    let builder = Cluster::builder().nodes(1).set("metrics", "127.0.0.1:0");
    let cluster = builder.start().unwrap();
    let address = cluster.node(0).unwrap().endpoint().expect("node 0 serves").address().to_string();
    // On a busy machine it may not have come to paint in the first of these.
    for seconds in [1, 10, 60] {
        let pdbp = env!("CARGO_BIN_EXE_pdbp");
        let line = format!("timeout --foreground {seconds} '{pdbp}' top --connect {address}");
        let mut on_terminal = Command::new("script");
        on_terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        let output = match on_terminal.stdin(Stdio::null()).output() {
            Ok(output) => output,
            Err(error) => return println!("skipped: there is no script of util-linux ({error})"),
        };
        let shown = String::from_utf8_lossy(&output.stdout);
        let count = |sequence: &str| shown.matches(sequence).count();
        let [alternate, normal, visible] = ["\u{1b}[?1049h", "\u{1b}[?1049l", "\u{1b}[?25h"].map(count);
        // Nor the server to answer.
        assert!(
            alternate == 0 || output.status.code() == Some(124),
            "timeout says that it was ended: {output:?}"
        );
        assert_eq!((alternate, normal), (normal, visible), "{shown:?}");
        if alternate == 1 {
            return;
        }
    }
    panic!("it never painted");
}
