//! Clusters joined by trunks.

use std::time::Duration;

use pdbp::{Builder, Cluster, LookupError, Node, PartKind};

use super::SOON;

fn builder(name: &str) -> Builder {
    Cluster::builder().nodes(2).timeout(SOON).grid(name.to_owned())
}

/// Two clusters of two nodes each, with a trunk that `east` dials.
fn two(change: impl Fn(Builder) -> Builder) -> (Cluster, Cluster) {
    let west = change(builder("west").listen("127.0.0.1:0".to_owned())).start().unwrap();
    let east = change(builder("east").trunk("west", west.address().unwrap())).start().unwrap();
    (west, east)
}

/// Runs a program on node 1 of each.
fn run<R: Send>(
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
        while next < COUNT || sent < COUNT {
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
    for value in ["west", "west=", "west=http://host:1", "we st=host:1", "=host:1", "west=host"] {
        let says = start("trunks", value);
        assert!(says.contains("trunks") && says.contains(value), "{value}: {says}");
    }
    assert!(start("grid", "a.b").contains("grid"));
    let unnamed = Cluster::builder().trunk("west", "127.0.0.1:1").start().err().unwrap().to_string();
    assert!(unnamed.contains("trunks") && unnamed.contains("grid"), "{unnamed}");
    let listens = Cluster::builder().nodes(1).grid("west".to_owned()).listen("203.0.113.7:1".to_owned());
    assert!(listens.start().err().unwrap().to_string().contains("203.0.113.7"));
}
