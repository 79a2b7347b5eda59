//! Clusters joined by trunks.

use std::time::Duration;

use pdbp::{Builder, Cluster, Event, LookupError, Node, PartKind};

use super::proxy::Proxy;
use super::{Patience, SOON};

pub(crate) fn builder(name: &str) -> Builder {
    Cluster::builder().nodes(2).timeout(SOON).grid(name.to_owned())
}

/// Two clusters of two nodes each, with a trunk that `east` dials.
pub(crate) fn two(change: impl Fn(Builder) -> Builder) -> (Cluster, Cluster) {
    let west = change(builder("west").listen("127.0.0.1:0".to_owned())).start().unwrap();
    let east = change(builder("east").trunk("west", west.address().unwrap())).start().unwrap();
    (west, east)
}

/// Runs a program on node 1 of each.
pub(crate) fn run<R: Send>(
    (west, east): &(Cluster, Cluster),
    in_west: impl FnOnce(Node) -> R + Send,
    in_east: impl FnOnce(Node) -> R + Send,
) -> (R, R) {
    let (west, east) = (west.node(1).unwrap(), east.node(1).unwrap());
    std::thread::scope(|scope| {
        let west = scope.spawn(|| in_west(west));
        let east = scope.spawn(|| in_east(east));
        (west.join().unwrap(), east.join().unwrap())
    })
}

#[test]
fn a_part_of_another_cluster_is_found_and_answers_messages_and_commands() {
    let clusters = two(|builder| builder);
    let in_west = |node: Node| {
        let part = node.register("worker", PartKind::Cpu).unwrap();
        for _ in 0..200 {
            let message = part.recv_timeout(SOON).unwrap();
            assert_eq!(node.cluster_of(message.source()).as_deref(), Some("east"));
            let to = part.sender(message.source());
            let answer = message.iter().rev().copied().collect::<Vec<_>>();
            if message.is_command() {
                to.command(message.command() + 1).send(&answer)
            } else {
                to.send(&answer)
            }
            .unwrap();
        }
        part.flush();
    };
    let in_east = |node: Node| {
        let part = node.register("asker", PartKind::Cpu).unwrap();
        let worker = part.find("worker@node1.west", SOON).unwrap();
        assert_eq!(part.find("worker@node1.west", SOON).unwrap(), worker, "the same part, the same target");
        assert_eq!(
            part.find("asker@node1.east", SOON).unwrap(),
            part.id(),
            "the own cluster's name changes nothing"
        );
        assert_eq!((node.clusters(), node.cluster_of(part.id())), (vec!["west".to_owned()], None));
        assert_eq!(node.parts(), ["asker@node1"], "what the runtime has registered is not shown");
        for length in 0..100usize {
            let question: Vec<u8> = (0..length as u8).collect();
            part.send(worker, &question).unwrap();
            let answer = part.recv_timeout(SOON).unwrap();
            assert_eq!((answer.source(), answer.is_command()), (worker, false));
            assert!(answer.iter().eq(question.iter().rev()), "{answer:?}");
            part.sender(worker).command(length as u16).send(&question).unwrap();
            let answer = part.recv_timeout(SOON).unwrap();
            assert_eq!((answer.is_command(), usize::from(answer.command())), (true, length + 1));
            assert!(answer.iter().eq(question.iter().rev()), "{answer:?}");
        }
    };
    run(&clusters, in_west, in_east);
}

#[test]
fn trains_come_once_and_in_order_both_ways_between_blocks_of_other_sizes() {
    let west = builder("west").listen("127.0.0.1:0".to_owned()).block_bytes(4096).start().unwrap();
    let east = builder("east").trunk("west", west.address().unwrap()).start().unwrap();
    const COUNT: u32 = 50_000;
    let talk = |node: Node, own: &str, other: &str| {
        let part = node.register(own, PartKind::Cpu).unwrap();
        let to = part.find(other, SOON).unwrap();
        let (mut sent, mut next) = (0, 0u32);
        let patience = Patience::new();
        while next < COUNT || sent < COUNT {
            patience.check();
            if sent < COUNT {
                let numbers: Vec<u32> = (sent..COUNT.min(sent + 1000)).collect();
                sent += part.sender(to).no_wait().send_each(&numbers).unwrap() as u32;
                if sent == COUNT {
                    part.flush();
                }
            }
            while let Some(batch) = part.try_recv_batch() {
                assert_eq!(batch.source(), to);
                for message in batch.iter() {
                    assert_eq!(message, next.to_le_bytes());
                    next += 1;
                }
            }
        }
        assert!(part.try_recv().is_none());
    };
    let clusters = (west, east);
    run(&clusters, |node| talk(node, "a", "b@node1.east"), |node| talk(node, "b", "a@node1.west"));
}

#[test]
fn parts_of_another_cluster_are_listed() {
    let (west, east) = two(|builder| builder);
    let asker = east.node(1).unwrap();
    until(|| asker.clusters().contains(&"west".to_owned()).then_some(()));
    assert_eq!(asker.parts_of("west").unwrap(), [""; 0], "what the runtime has registered is not shown");
    // More than fit one answer.
    let name = |number: usize| format!("worker-with-a-long-name-{number:03}");
    let parts: Vec<_> = (0..40)
        .map(|number| west.node(number % 2).unwrap().register(&name(number), PartKind::Cpu).unwrap())
        .collect();
    // The gateway may learn of them a moment later.
    let listed = until(|| {
        let mut listed = asker.parts_of("west").unwrap();
        listed.sort_unstable();
        (listed.len() == parts.len()).then_some(listed)
    });
    let mut expected: Vec<_> =
        (0..40).map(|number| format!("{}@node{}.west", name(number), number % 2)).collect();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    for address in &listed {
        asker.lookup(address).unwrap();
    }
    assert_eq!(west.node(0).unwrap().parts_of("east").unwrap(), [""; 0]);
    let _own = asker.register("own", PartKind::Cpu).unwrap();
    assert_eq!(asker.parts_of("east").unwrap(), ["own@node1.east"]);
    let error = asker.parts_of("north").unwrap_err();
    assert!(matches!(&error, LookupError::NoTrunk { cluster, .. } if cluster == "north"), "{error:?}");
}

#[test]
fn what_is_not_there_is_named() {
    let (west, east) = two(|builder| builder);
    let node = east.node(1).unwrap();
    let short = Duration::from_millis(300);
    let error = node.find("worker@node1.north", short).unwrap_err();
    assert!(matches!(&error, LookupError::NoTrunk { cluster, .. } if cluster == "north"), "{error:?}");
    assert!(error.to_string().contains("north") && error.to_string().contains("trunks"), "{error}");
    node.find("nobody@node7.west", SOON.min(short)).unwrap_err();
    let _worker = west.node(0).unwrap().register("worker", PartKind::Cpu).unwrap();
    node.find("worker@node0.west", SOON).unwrap();
    let error = node.lookup("nobody@node1.west").unwrap_err();
    assert!(matches!(&error, LookupError::Remote { cluster, .. } if cluster == "west"), "{error:?}");
    let says = error.to_string();
    assert!(
        says.contains("west") && says.contains("nobody@node1") && says.contains("worker@node0"),
        "{says}"
    );
    let error = node.lookup("worker@node7.west").unwrap_err().to_string();
    assert!(error.contains("node7"), "{error}");
}

#[test]
fn settings_of_a_grid_that_cannot_work_are_refused() {
    let start = |key, value| {
        Cluster::builder().grid("east".to_owned()).set(key, value).start().err().unwrap().to_string()
    };
    for value in [
        "west",
        "west=",
        "west=ftp://host:1",
        "west=http://host:1/path",
        "we st=host:1",
        "=host:1",
        "west=host",
    ] {
        let says = start("trunks", value);
        assert!(says.contains("trunks") && says.contains(value), "{value}: {says}");
    }
    assert!(start("grid", "a.b").contains("grid"));
    let unnamed = Cluster::builder().trunk("west", "127.0.0.1:1").start().err().unwrap().to_string();
    assert!(unnamed.contains("trunks") && unnamed.contains("grid"), "{unnamed}");
    let listens = Cluster::builder().nodes(1).grid("west".to_owned()).listen("203.0.113.7:1".to_owned());
    assert!(listens.start().err().unwrap().to_string().contains("203.0.113.7"));
    let gateway = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let joins =
        Cluster::builder().join(gateway.address().unwrap().to_string()).start().err().unwrap().to_string();
    assert!(joins.contains("`grid`") && joins.contains("transport"), "{joins}");
}

/// The row to the gateway is full of messages that nobody reads: the question waits only as long as the look-up may.
#[test]
fn a_question_that_cannot_leave_is_not_answered_in_time() {
    let (_west, east) = two(|builder| builder.timeout(Duration::from_secs(30)));
    let asker = east.node(1).unwrap();
    until(|| asker.clusters().contains(&"west".to_owned()).then_some(()));
    let idle = east.node(0).unwrap().register_shared("idle", PartKind::Cpu).unwrap();
    let part = asker.register("part", PartKind::Cpu).unwrap();
    let to = part.find("idle@node0", SOON).unwrap();
    let waited = Duration::from_millis(100);
    let fill = part.sender(to).timeout(waited);
    // Where the processors are busy, a send may fail before the row is full.
    until(|| {
        while fill.send(&[0; 100_000]).is_ok() {}
        match part.find("p@node0.west", waited).unwrap_err() {
            LookupError::NoAnswer { waited: reported, .. } if reported == waited => Some(()),
            LookupError::Remote { .. } => None,
            error => panic!("{error}"),
        }
    });
    drop(idle);
}

/// Each sender gets a stand-in in the other cluster, which the gateway there registers.
#[test]
fn interrupts_of_a_gateways_node_send_no_message_back() {
    let (west, east) = two(|builder| builder);
    let gateway = east.node(0).unwrap();
    let worker = east.node(1).unwrap().register("worker", PartKind::Cpu).unwrap();
    let node = west.node(1).unwrap();
    // Ends when the other end is dropped, also by a panic.
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let interrupts = std::thread::spawn(move || {
        while is_over.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            gateway.interrupt();
            std::thread::yield_now();
        }
    });
    let senders: Vec<_> = (0..50)
        .map(|number| {
            let part = node.register(&format!("part{number}"), PartKind::Cpu).unwrap();
            part.send(part.find("worker@node1.east", SOON).unwrap(), b"new").unwrap();
            part.flush();
            part
        })
        .collect();
    let mut left = senders.len();
    until(|| {
        assert!(senders.iter().all(|part| part.try_recv().is_none()), "it has come back");
        left -= std::iter::from_fn(|| worker.try_recv()).count();
        (left == 0).then_some(())
    });
    drop(over);
    interrupts.join().unwrap();
}

/// The stand-in of the part takes the gateway's last place, so none is left for the answer.
#[test]
fn a_gateway_without_room_for_an_answer_says_so() {
    let (west, east) = two(|builder| builder.set("local_parts", "8"));
    let asker = east.node(1).unwrap();
    until(|| asker.clusters().contains(&"west".to_owned()).then_some(()));
    let _part = west.node(1).unwrap().register("part", PartKind::Cpu).unwrap();
    let gateway = east.node(0).unwrap();
    let register = |number: usize| gateway.register(&format!("part{number}"), PartKind::Cpu);
    let mut parts: Vec<_> = (0..).map_while(|number| register(number).ok()).collect();
    assert!(parts.pop().is_some(), "more is in use than this test assumes");
    until(|| match asker.find("part@node1.west", Duration::from_secs(1)) {
        Err(LookupError::NoRoom { reason, .. }) => reason.contains("left for the answer").then_some(()),
        // The processors may be busy.
        found => {
            assert!(matches!(found, Err(LookupError::NoAnswer { .. })), "{found:?}");
            None
        }
    });
}

/// Each of the two connects to the other at about the same moment; they must agree which connection stays.
#[test]
fn two_clusters_that_dial_each_other_have_one_trunk() {
    for _ in 0..20 {
        let addresses = [super::address(), super::address()];
        let names = ["west", "east"];
        let clusters = std::thread::scope(|scope| {
            let start = |own: usize, other: usize| {
                let builder = builder(names[own]).nodes(1).listen(addresses[own].clone());
                builder.trunk(names[other], addresses[other].clone()).start().unwrap()
            };
            let threads = [(0, 1), (1, 0)].map(|(own, other)| scope.spawn(move || start(own, other)));
            threads.map(|thread| thread.join().unwrap())
        });
        let nodes = clusters.each_ref().map(|cluster| cluster.node(0).unwrap());
        let parts = nodes.each_ref().map(|node| node.register_shared("part", PartKind::Cpu).unwrap());
        for (from, to, name) in [(0, 1, "part@node0.east"), (1, 0, "part@node0.west")] {
            let found = parts[from].find(name, SOON).unwrap();
            parts[from].send(found, b"here").unwrap();
            parts[from].flush();
            assert_eq!(*parts[to].recv_timeout(SOON).unwrap(), *b"here");
        }
        // Another trunk would be up about now.
        std::thread::sleep(Duration::from_millis(200));
        for node in &nodes {
            let events = node.take_events();
            let is_of_trunk =
                |event: &&Event| matches!(event, Event::ClusterUp { .. } | Event::ClusterDown { .. });
            assert_eq!(events.iter().filter(is_of_trunk).count(), 1, "{events:?}");
        }
    }
}

/// Numbered messages both ways while the line is cut again and again: all arrive, once and in order.
#[test]
fn cuts_of_a_trunk_lose_and_double_nothing() {
    cuts_lose_and_double_nothing("tcp");
}

/// Over a trunk whose address has this scheme.
pub(crate) fn cuts_lose_and_double_nothing(scheme: &str) {
    const COUNT: u64 = 100_000;
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let line = Proxy::to(west.address().unwrap().to_string());
    let east = builder("east").trunk("west", format!("{scheme}://{}", line.address())).start().unwrap();
    let clusters = (west, east);
    let talk = |node: Node, own: &str, other: &str, cut: Option<&Proxy>| {
        let part = node.register(own, PartKind::Cpu).unwrap();
        let to = part.find(other, SOON).unwrap();
        let (mut sent, mut next) = (0, 0u64);
        let patience = Patience::new();
        while next < COUNT || sent < COUNT {
            patience.check();
            if sent < COUNT {
                let numbers: Vec<u64> = (sent..COUNT.min(sent + 500)).collect();
                sent += part.sender(to).no_wait().send_each(&numbers).unwrap() as u64;
                if sent == COUNT {
                    part.flush();
                }
            }
            while let Some(message) = part.try_recv() {
                assert_eq!(message.value::<u64>(), Some(next));
                next += 1;
                if let Some(line) = cut.filter(|_| next % 10_000 == 0) {
                    line.cut();
                }
            }
        }
    };
    run(
        &clusters,
        |node| talk(node, "a", "b@node1.east", None),
        |node| talk(node, "b", "a@node1.west", Some(&line)),
    );
    assert!(line.lines() > 2, "{} connections", line.lines());
}

#[test]
fn long_messages_cross_and_a_part_that_does_not_read_holds_nobody_up() {
    let clusters = two(|builder| builder.set("trunk_bytes", "4194304"));
    let pattern = |length: usize| (0..length).map(|i| (i * 7 + length) as u8).collect::<Vec<_>>();
    const LENGTHS: [usize; 5] = [3_000_000, 1, 200_000, 0, 1_000_000];
    let west = clusters.0.node(0).unwrap();
    let in_west = |node: Node| {
        let idle = node.register("idle", PartKind::Cpu).unwrap();
        // As inside a cluster, a part that does not read blocks others of its node.
        let part = west.register("worker", PartKind::Cpu).unwrap();
        for _ in LENGTHS {
            let message = part.recv_timeout(SOON).unwrap();
            part.send(message.source(), &message).unwrap();
        }
        part.flush();
        // It has waited all the time.
        let mut next = 0u64;
        while let Ok(message) = idle.recv_timeout(SOON)
            && !message.is_empty()
        {
            assert_eq!(message.get(..8), Some(&next.to_le_bytes()[..]));
            next += 1;
        }
        next
    };
    let in_east = |node: Node| {
        let part = node.register("asker", PartKind::Cpu).unwrap();
        let [idle, worker] =
            ["idle@node1.west", "worker@node0.west"].map(|name| part.find(name, SOON).unwrap());
        // Less than a pipe holds, and more than is in flight to a part at a time.
        let mut filled = [0; 20_000];
        for number in 0..40u64 {
            filled[..8].copy_from_slice(&number.to_le_bytes());
            part.send(idle, &filled).unwrap();
        }
        for length in LENGTHS {
            part.send(worker, &pattern(length)).unwrap();
            let answer = part.recv_timeout(SOON).unwrap();
            assert_eq!((answer.source(), &*answer), (worker, &pattern(length)[..]));
        }
        part.send(idle, &[]).unwrap();
        part.flush();
        40
    };
    assert_eq!(run(&clusters, in_west, in_east), (40, 40));
}

/// The line to the other cluster is cut; meanwhile the cluster ends, and starts again.
#[test]
fn what_a_cluster_has_not_got_comes_back_when_it_has_gone() {
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let address = west.address().unwrap().to_string();
    let line = Proxy::to(address.clone());
    let east = builder("east").trunk("west", line.address()).outage(Duration::from_secs(5));
    let east = east.set("trunk_bytes", "4194304").start().unwrap();
    let gateway = east.node(0).unwrap();
    let part = east.node(1).unwrap().register("asker", PartKind::Cpu).unwrap();
    let worker = west.node(1).unwrap().register("worker", PartKind::Cpu).unwrap();
    let to = part.find("worker@node1.west", SOON).unwrap();
    // What exceeds the window stays with the gateway, and with the sender.
    line.close();
    let mut sent = 0u32;
    let mut message = vec![0; 10_000];
    while sent < 400 {
        message[..4].copy_from_slice(&sent.to_le_bytes());
        match part.sender(to).timeout(Duration::from_millis(500)).send(&message) {
            Ok(()) => sent += 1,
            Err(_) => break,
        }
    }
    part.flush();
    drop((worker, west));
    let is_down = |event: &Event| matches!(event, Event::ClusterDown { name, .. } if name.as_str() == "west");
    let mut events = Vec::new();
    until(|| {
        events.extend(gateway.take_events());
        events.iter().any(is_down).then_some(())
    });
    let is_up = |event: &Event| matches!(event, Event::ClusterUp { name } if name.as_str() == "west");
    assert!(events.iter().position(is_up) < events.iter().position(is_down), "{events:?}");
    for number in 0..sent {
        let returned = part.recv_timeout(SOON).unwrap_or_else(|error| panic!("{error}: {number} of {sent}"));
        assert_eq!((returned.command(), returned.len()), (pdbp::RETURNED, 10_000));
        assert_eq!(returned[..4], number.to_le_bytes());
    }
    let find = || part.find("worker@node1.west", Duration::from_millis(100)).err();
    until(|| find().filter(|gone| matches!(gone, LookupError::NoTrunk { .. })));

    let west = builder("west").listen(address).start().unwrap();
    line.open();
    let worker = west.node(1).unwrap().register("worker", PartKind::Cpu).unwrap();
    let again = part.find("worker@node1.west", SOON).unwrap();
    assert_ne!(again, to, "the part of a cluster that has gone is not another's");
    part.send(again, b"again").unwrap();
    part.flush();
    assert_eq!(*worker.recv_timeout(SOON).unwrap(), *b"again");
}

pub(crate) fn until<R>(mut look: impl FnMut() -> Option<R>) -> R {
    let end = std::time::Instant::now() + SOON;
    loop {
        match look() {
            Some(found) => return found,
            None => assert!(std::time::Instant::now() < end, "it has not happened"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(feature = "tls")]
#[test]
fn a_trunk_is_encrypted_and_a_wrong_token_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [token, wrong] = ["token", "wrong"].map(|name| folder.path().join(name));
    std::fs::write(&wrong, "another secret that nobody else has").unwrap();
    let west =
        builder("west").listen("127.0.0.1:0".to_owned()).token_file(token.clone()).tls(pdbp::Tls::Token);
    let west = west.start().unwrap();
    let dial = |token| {
        let east = builder("east").trunk("west", west.address().unwrap()).token_file(token);
        east.tls(pdbp::Tls::Token).start().unwrap()
    };
    let part = west.node(1).unwrap().register("worker", PartKind::Cpu).unwrap();
    let stranger = dial(wrong);
    let said = until(|| match stranger.node(0).unwrap().lookup("worker@node1.west") {
        Err(LookupError::NoTrunk { reason, .. }) => reason,
        other => panic!("{other:?}"),
    });
    assert!(said.contains("token"), "{said}");
    let east = dial(token);
    let asker = east.node(1).unwrap().register("asker", PartKind::Cpu).unwrap();
    let to = asker.find("worker@node1.west", SOON).unwrap();
    asker.send(to, b"in secret").unwrap();
    asker.flush();
    let message = part.recv_timeout(SOON).unwrap();
    assert_eq!(*message, *b"in secret");
    part.send(message.source(), b"answer").unwrap();
    part.flush();
    assert_eq!(*asker.recv_timeout(SOON).unwrap(), *b"answer");
}
