//! Clusters over sockets as a user starts them: a command in each terminal.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; a test that waits so long has failed.
const SOON: Duration = Duration::from_secs(60);

/// The program without the settings of whoever runs the tests; a process that has no processor for some seconds is not taken for dead.
fn pdbp(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PDBP_") {
            command.env_remove(name);
        }
    }
    command.env("PDBP_LEASE_MS", "60000").env("PDBP_TIMEOUT_MS", "60000");
    command.args(arguments).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ends it if the test does not.
struct Running(Option<Child>);

impl Running {
    fn start(mut command: Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Ends it if it has not ended by itself, and returns what it has said.
    fn kill(&mut self) -> Output {
        let mut child = self.0.take().unwrap();
        let _ = child.kill();
        child.wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An address of this host for this process alone, and another one each time: a port of the usual one that was free a moment ago may go to another
/// program.
fn address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, 64 | high & 63, low, NEXT.fetch_add(1, Ordering::Relaxed));
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().to_string()
}

#[test]
fn two_commands_in_two_terminals_are_a_cluster() {
    let address = address();
    // In either order.
    let joined = Running::start(pdbp(&["ping", "--count", "20"], &[("PDBP_JOIN", &address)]));
    let founder = Running::start(pdbp(&["ping", "--count", "20"], &[("PDBP_LISTEN", &address)]));
    let (founder, joined) = (founder.output(), joined.output());
    assert!(founder.status.success() && joined.status.success(), "{founder:?} {joined:?}");
    let report = String::from_utf8(founder.stdout).unwrap();
    assert!(report.starts_with("2 nodes, processes over sockets") && report.contains("node1"), "{report}");
    assert!(joined.stdout.is_empty(), "the first node reports for all");
}

/// A founder, and as many processes that have joined it, once answers come back.
fn pinging(joined: usize) -> (Running, Vec<Running>) {
    let (address, figures) = (address(), self::address());
    let nodes = (joined + 1).to_string();
    // A line that is cut for a moment, on a busy machine, is no failure; who is killed on this host is missed before.
    let ping = &["ping", "--count", "10000000", "--set", "outage_ms=5000", "--nodes", &nodes];
    let mut founder = Running::start(pdbp(ping, &[("PDBP_LISTEN", &address), ("PDBP_METRICS", &figures)]));
    let mut joined: Vec<_> =
        (0..joined).map(|_| Running::start(pdbp(ping, &[("PDBP_JOIN", &address)]))).collect();
    let began = Instant::now();
    let (mut shown, mut said) = (String::new(), String::new());
    // Until answers come back: the row's messages per second, the fourth figure from its end.
    let rate = |row: &str| {
        row.split_whitespace()
            .rev()
            .nth(3)
            .is_some_and(|rate| rate.contains(|c: char| c.is_ascii_digit() && c != '0'))
    };
    while !shown.lines().any(|row| row.starts_with("node0 ← node1") && rate(row)) {
        let mut all: Vec<_> = [&mut founder].into_iter().chain(&mut joined).collect();
        if began.elapsed() >= SOON || all.iter_mut().any(|process| process.has_ended()) {
            let ends: Vec<_> = all.into_iter().map(Running::kill).collect();
            panic!("{shown}{said}{ends:#?}");
        }
        let top = &["top", "--once", "--interval", "100ms", "--connect", &figures];
        let output = pdbp(top, &[]).output().unwrap();
        shown = String::from_utf8(output.stdout).unwrap();
        said = String::from_utf8(output.stderr).unwrap();
    }
    (founder, joined)
}

/// It says no goodbye, and others wait for its answers.
#[test]
fn a_process_that_is_killed_ends_the_others() {
    let (founder, mut joined) = pinging(2);
    drop(joined.pop());
    for (output, is_first) in [(founder.output(), true), (joined.remove(0).output(), false)] {
        let said = String::from_utf8(output.stderr).unwrap();
        // The other one may hear first that the founder has ended already.
        let is_told = said.contains(" has failed") || !is_first && said.contains("node0 has ended before");
        assert!(!output.status.success() && is_told, "{said}");
    }
}

/// Nobody listens any more.
#[test]
fn a_process_that_is_killed_is_missed() {
    let (founder, joined) = pinging(1);
    drop(joined);
    let founder = founder.output();
    let said = String::from_utf8(founder.stderr).unwrap();
    // It names node1 if its wait for an answer was over in the moment that the other had failed.
    let is_told = ["every other node has failed", "node1 has failed"].iter().any(|why| said.contains(why));
    assert!(!founder.status.success() && is_told, "{said}");
}

#[test]
fn addresses_that_cannot_be_used_are_named() {
    let output = pdbp(&["ping"], &[("PDBP_LISTEN", "0.0.0.0:0")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("0.0.0.0") && said.contains("token_file"), "{said}");
    let output = pdbp(&["ping"], &[("PDBP_JOIN", "nowhere")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("join") && said.contains("nowhere"), "{said}");
}

/// It looked for node 1 before anybody could join.
#[test]
fn ping_does_not_found_an_open_cluster() {
    let variables = [("PDBP_LISTEN", &*address()), ("PDBP_FOUND", "1")];
    let output = pdbp(&["ping"], &variables).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("`found`"), "{said}");
}

/// Tries that come to nothing are no secret until the time is over.
#[test]
fn who_waits_for_a_founder_is_told_so_meanwhile() {
    let address = address();
    let wait = |time| {
        let joined = Running::start(pdbp(&["ping", "--set", time], &[("PDBP_JOIN", &address)])).output();
        assert!(!joined.status.success(), "{joined:?}");
        String::from_utf8(joined.stderr).unwrap()
    };
    // On a busy machine a short time may be over before there is anything to tell.
    let is_told = |said: &String| said.contains("still trying");
    let said = ["timeout_ms=4000", "timeout_ms=40000"].into_iter().map(wait).find(is_told);
    let said = said.expect("it is told nothing");
    let lines: Vec<_> = said.lines().filter(|line| line.contains(&address)).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].starts_with("pdbp: ") && lines[0].contains("still trying"), "{said}");
    assert!(lines.iter().all(|line| line.contains("refused")), "{said}");
}

/// As with `2>&1 | head -1`.
#[test]
fn who_waits_for_a_founder_ends_as_ever_if_nobody_reads_what_is_said() {
    let mut waiting = pdbp(&["ping", "--set", "timeout_ms=4000"], &[("PDBP_JOIN", &address())]);
    let unread = std::io::pipe().unwrap().1;
    let ended = waiting.stderr(unread).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
}
