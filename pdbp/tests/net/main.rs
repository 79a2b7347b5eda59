//! Clusters over sockets, each node as if in its own process.

mod address;
mod closed;
mod elastic;
mod ends;
mod far_flow;
mod far_streams;
mod grid;
mod groups;
mod hub;
mod leases;
mod masters;
mod open;
mod proxy;
mod soap;

use std::time::{Duration, Instant};

use address::address;
use proxy::Proxy;

use pdbp::{
    Builder, Cluster, Codec, Event, Node, PartKind, Progress, StartError, TransportKind, interruptible,
};

/// Long enough for a loaded machine.
const SOON: Duration = Duration::from_secs(60);

/// Limits a loop that waits for others, which may have failed.
struct Patience(Instant);

impl Patience {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn check(&self) {
        assert!(self.0.elapsed() < 5 * SOON, "it has not happened");
    }
}

fn builder() -> Builder {
    // Leases would be lost when the machine is too busy to poll.
    Cluster::builder().timeout(SOON).block_bytes(4096).lease(Duration::ZERO).outage(SOON)
}

/// Runs a program on each node of a cluster of three.
fn run<R: Send>(builder: impl Fn() -> Builder + Sync, program: impl Fn(Node) -> R + Sync) -> Vec<R> {
    let address = address();
    let start = |index: usize| {
        let builder = builder().nodes(3);
        let builder =
            if index == 0 { builder.listen(address.clone()) } else { builder.join(address.clone()) };
        let cluster = builder.start().unwrap();
        assert_eq!((cluster.size(), cluster.nodes().len()), (3, 1));
        assert_eq!(cluster.settings().transport, TransportKind::Net);
        cluster.run(&program).pop().unwrap()
    };
    std::thread::scope(|scope| {
        let threads = [0, 1, 2].map(|index| scope.spawn(move || start(index)));
        threads.map(|thread| thread.join().unwrap()).into()
    })
}

/// Every part sends messages to all, some longer than a block; all arrive, once and in order.
fn everybody_to_everybody(node: &Node) -> u64 {
    let part = node.register("all", PartKind::Cpu).unwrap();
    let others = (0..3).filter(|index| *index != node.id().index());
    let targets: Vec<_> = others.map(|index| part.find(&format!("all@node{index}"), SOON).unwrap()).collect();
    let (mut next, mut sum) = ([0; 3], 0);
    for number in 0..300u64 {
        for target in &targets {
            let length = if number % 50 == 7 { 20_000 } else { 8 };
            let mut message = vec![number as u8; length];
            message[..8].copy_from_slice(&number.to_le_bytes());
            part.send(*target, &message).unwrap();
        }
        // A part that only sends would wait for others that only send.
        for _ in if number % 10 == 9 { 0..20 } else { 0..0 } {
            let message = part.recv_timeout(SOON).unwrap();
            let from = &mut next[message.source().node().index()];
            assert_eq!(message[..8], u64::to_le_bytes(*from));
            assert!(message[8..].iter().all(|byte| *byte == *from as u8));
            (*from, sum) = (*from + 1, sum + *from);
        }
    }
    part.quiesce(SOON, |_| panic!("all were received")).unwrap();
    node.barrier(SOON).unwrap();
    sum
}

#[test]
fn messages_cross_between_processes() {
    assert_eq!(run(builder, |node| everybody_to_everybody(&node)), [2 * 299 * 150; 3]);
}

#[cfg(feature = "tls")]
#[test]
fn messages_cross_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    // The founder writes the file; processes that start earlier must find one.
    let token = folder.path().join("token");
    std::fs::write(&token, "secret".repeat(6)).unwrap();
    let encrypted = || builder().token_file(token.clone()).tls(pdbp::Tls::Token);
    assert_eq!(run(encrypted, |node| everybody_to_everybody(&node)), [2 * 299 * 150; 3]);
}

#[test]
fn messages_cross_when_the_parts_make_progress() {
    let sums = run(|| builder().progress(Progress::Inline), |node| everybody_to_everybody(&node));
    assert_eq!(sums, [2 * 299 * 150; 3]);
}

#[test]
fn messages_cross_packed() {
    for codec in [Codec::Lz4, Codec::Zstd, Codec::Auto] {
        let sums = run(|| builder().codec(codec), |node| everybody_to_everybody(&node));
        assert_eq!(sums, [2 * 299 * 150; 3]);
    }
}

/// The first process writes the secret; a process with another one is refused.
#[test]
fn a_token_keeps_strangers_out() {
    let folder = tempfile::tempdir().unwrap();
    let (token, other) = (folder.path().join("token"), folder.path().join("other"));
    std::fs::write(&other, "another secret, which nobody knows").unwrap();
    let address = address();
    std::thread::scope(|scope| {
        let founder =
            scope.spawn(|| builder().listen(address.clone()).token_file(token.clone()).start().unwrap());
        let patience = Patience::new();
        while !token.exists() {
            patience.check();
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = builder().join(address.clone()).token_file(other).start().err().unwrap();
        assert!(refused.to_string().contains("token"), "{refused}");
        let joined = builder().join(address.clone()).token_file(token.clone()).start().unwrap();
        assert_eq!((founder.join().unwrap().size(), joined.size()), (2, 2));
    });
}

#[test]
fn settings_that_cannot_work_say_what_to_do() {
    let nowhere = builder().transport(TransportKind::Net).start().err().unwrap();
    assert!(matches!(nowhere, StartError::NoAddress) && nowhere.to_string().contains("join"), "{nowhere}");
    let open = builder().listen("0.0.0.0:0".to_owned()).start().err().unwrap();
    assert!(open.to_string().contains("token_file"), "{open}");
    let alone = builder().timeout(Duration::from_millis(20)).listen("127.0.0.1:0".to_owned()).start();
    assert!(alone.err().unwrap().to_string().contains("1 of 2"));
    let early = builder().timeout(Duration::from_millis(20)).join(address()).start().err().unwrap();
    assert!(early.to_string().contains("listen"), "{early}");
}

/// A process that founds, or joins, alone.
#[test]
fn a_start_that_waits_for_others_is_ended_by_the_check_of_its_thread() {
    const EVER: Duration = Duration::from_secs(86_400);
    let address = address();
    for builder in [builder().listen(address.clone()), builder().join(address)] {
        let started = interruptible(|| true, || builder.nodes(2).timeout(EVER).start().map(|_| ()));
        assert!(matches!(started, Err(StartError::Interrupted)), "{started:?}");
    }
}

/// Two nodes; the second reaches the first by a line that can be cut.
fn pair(builder: impl Fn() -> Builder + Sync) -> (Cluster, Cluster, Proxy) {
    let address = address();
    let proxy = Proxy::to(address.clone());
    std::thread::scope(|scope| {
        let founder = scope.spawn(|| builder().listen(address).start().unwrap());
        let joined = builder().join(proxy.address()).start().unwrap();
        (founder.join().unwrap(), joined, proxy)
    })
}

/// The line is cut again and again while both ends send: every message arrives, once and in order.
#[test]
fn cuts_lose_and_double_nothing() {
    let (one, two, proxy) = pair(builder);
    let talk = |node: Node, to: &str| {
        let part = node.register("part", PartKind::Cpu).unwrap();
        let target = part.find(to, SOON).unwrap();
        for round in 0..60u64 {
            for number in 20 * round..20 * (round + 1) {
                part.send(target, &number.to_le_bytes().repeat(100)).unwrap();
            }
            part.flush();
            for number in 20 * round..20 * (round + 1) {
                assert_eq!(*part.recv_timeout(SOON).unwrap(), *number.to_le_bytes().repeat(100));
            }
            // While messages of the next round are in flight.
            if round % 3 == 1 && node.id().index() == 0 {
                part.send(target, b"then").unwrap();
                proxy.cut();
                part.flush();
            } else if round % 3 == 1 {
                assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"then");
            }
        }
        part.quiesce(SOON, |_| panic!("all were received")).unwrap();
        node.barrier(SOON).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| two.run(|node| talk(node, "part@node0")));
        one.run(|node| talk(node, "part@node1"));
    });
    assert!(proxy.lines() > 20, "{} connections", proxy.lines());
}

fn until(node: &Node, what: &str, mut is_it: impl FnMut(&Event) -> bool) {
    let began = Instant::now();
    while !node.take_events().iter().any(&mut is_it) {
        assert!(began.elapsed() < SOON, "{what}");
        node.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The line stays cut for longer than the allowed outage: both ends are notified, and again when there is a new line.
#[test]
fn a_line_that_was_given_up_comes_back() {
    let (one, two, proxy) = pair(|| builder().outage(Duration::from_millis(200)));
    let (first, second) = (one.node(0).unwrap(), two.node(1).unwrap());
    proxy.close();
    for node in [&first, &second] {
        until(node, "the link fails", |event| matches!(event, Event::PeerFailed { .. }));
    }
    proxy.open();
    for node in [&first, &second] {
        until(node, "the link is restored", |event| matches!(event, Event::PeerRestored { .. }));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let part = second.register("echo", PartKind::Cpu).unwrap();
            let message = part.recv_timeout(SOON).unwrap();
            part.send(message.source(), &message).unwrap();
            part.quiesce(SOON, |_| {}).unwrap();
        });
        let part = first.register("asker", PartKind::Cpu).unwrap();
        let target = part.find("echo@node1", SOON).unwrap();
        part.send(target, b"are you there").unwrap();
        assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"are you there");
        part.quiesce(SOON, |_| {}).unwrap();
    });
}

/// A line that was given up takes the second node out of the cluster; the node is readmitted when the line is back.
#[test]
fn a_node_out_of_reach_is_no_member_until_it_is_back() {
    let (one, two, proxy) = pair(|| builder().outage(Duration::from_millis(200)));
    let (first, second) = (one.node(0).unwrap(), two.node(1).unwrap());
    let (mut seen, mut own) = (Vec::new(), Vec::new());
    let mut until = |what: &str, done: &dyn Fn(&[Event], &[Event]) -> bool| {
        let began = Instant::now();
        while !done(&seen, &own) {
            assert!(began.elapsed() < SOON, "{what}: {seen:?}, {own:?}");
            seen.extend(first.take_events());
            own.extend(second.take_events());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let is_down = |event: &Event| matches!(event, Event::NodeDown { node } if node.index() == 1);
    let is_up = |event: &Event| matches!(event, Event::NodeUp { node } if node.index() == 1);
    proxy.close();
    until("it is declared down", &|seen, _| seen.iter().any(is_down));
    assert_eq!(first.members(), [first.id()]);
    proxy.open();
    until("it is let in again", &|seen, own| seen.iter().any(is_up) && own.iter().any(is_up));
    for node in [&first, &second] {
        assert_eq!(node.members(), [first.id(), second.id()]);
    }
}
