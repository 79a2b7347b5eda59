//! Several clusters that dial one, and many requests there.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pdbp::{Event, LookupError, PartKind};

use super::SOON;
use super::grid::{builder, two, until};
use super::proxy::Proxy;

/// As with clusters behind firewalls that admit no connections: others that dial the same gateway cannot reach them, and
/// need not.
#[test]
fn clusters_that_dial_the_same_one_need_not_reach_each_other() {
    let hub = builder("hub").nodes(1).listen("127.0.0.1:0".to_owned()).start().unwrap();
    let address = hub.address().unwrap();
    let node = hub.node(0).unwrap();
    let part = node.register_shared("part", PartKind::Cpu).unwrap();
    let line = Proxy::from_elsewhere(address);
    let east = builder("east").nodes(1).trunk("hub", line.address()).start().unwrap();
    until(|| node.clusters().contains(&"east".to_owned()).then_some(()));
    let north = builder("north").nodes(1).trunk("hub", address).start().unwrap();
    for cluster in [&east, &north] {
        let node = cluster.node(0).unwrap();
        let own = node.register_shared("own", PartKind::Cpu).unwrap();
        let to = own.find("part@node0.hub", SOON).unwrap();
        own.send(to, b"here I am").unwrap();
        own.flush();
        let message = part.recv_timeout(SOON).unwrap();
        assert_eq!(*message, *b"here I am");
        assert_eq!(node.clusters(), ["hub"], "nobody has joined it with the other");
    }
}

/// A message and its answer take half a second, and many are needed until the trunk is up.
#[test]
fn a_trunk_over_a_slow_line_comes_up() {
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let line = Proxy::slow(west.address().unwrap().to_string(), Duration::from_millis(250));
    let east = builder("east").trunk("west", line.address()).start().unwrap();
    let part = west.node(1).unwrap().register_shared("part", PartKind::Cpu).unwrap();
    let own = east.node(1).unwrap().register("own", PartKind::Cpu).unwrap();
    own.send(own.find("part@node1.west", SOON).unwrap(), b"here I am").unwrap();
    own.flush();
    assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"here I am");
}

/// A gateway needs places for its own parts.
#[test]
fn a_gateway_that_has_no_place_for_its_parts_says_so() {
    let crowded = |name| builder(name).local_parts(1);
    let refused = crowded("west").listen("127.0.0.1:0".to_owned()).start().err().unwrap().to_string();
    assert!(refused.contains("local_parts"), "{refused}");
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let east = crowded("east").trunk("west", west.address().unwrap()).start().unwrap();
    let said = until(|| match east.node(0).unwrap().lookup("part@node1.west") {
        Err(LookupError::NoTrunk { reason, .. }) => reason,
        other => panic!("{other:?}"),
    });
    assert!(said.contains("local_parts"), "{said}");
}

#[test]
fn a_gateway_of_another_cluster_than_was_meant_is_named() {
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let east = builder("east").trunk("north", west.address().unwrap()).start().unwrap();
    let node = east.node(0).unwrap();
    let said = until(|| match node.lookup("part@node1.north") {
        Err(LookupError::NoTrunk { reason, .. }) => reason,
        other => panic!("{other:?}"),
    });
    assert!(said.contains("\"west\"") && said.contains("\"north\""), "{said}");
    assert_eq!([node, west.node(0).unwrap()].map(|node| node.clusters()), [[""; 0]; 2]);
}

/// One has a trunk before the other reaches it.
#[test]
fn of_clusters_that_dial_each_other_one_has_dialled() {
    let to_east = Arc::new(OnceLock::new());
    let line = Proxy::later(Arc::clone(&to_east));
    let west = builder("west").listen("127.0.0.1:0".to_owned()).trunk("east", line.address());
    let west = west.start().unwrap();
    let east = builder("east").listen("127.0.0.1:0".to_owned()).trunk("west", west.address().unwrap());
    let east = east.start().unwrap();
    let nodes = [&west, &east].map(|cluster| cluster.node(0).unwrap());
    let others = ["east", "west"];
    for (node, other) in nodes.iter().zip(others) {
        until(|| (node.clusters() == [other]).then_some(()));
    }
    to_east.set(east.address().unwrap()).unwrap();
    // By now it would have dialled.
    std::thread::sleep(Duration::from_millis(500));
    for node in nodes {
        let ups = node.take_events().into_iter().filter(|event| matches!(event, Event::ClusterUp { .. }));
        assert_eq!(ups.count(), 1, "one trunk");
    }
}

/// The trunk goes down while a question is in flight to the other cluster, and another comes up.
#[test]
fn who_asks_while_a_trunk_goes_asks_the_next() {
    let west = builder("west").listen("127.0.0.1:0".to_owned()).outage(Duration::from_millis(300));
    let west = west.start().unwrap();
    let line = Proxy::to(west.address().unwrap().to_string());
    let east = builder("east").trunk("west", line.address()).outage(Duration::from_millis(300));
    let east = east.start().unwrap();
    let _part = west.node(1).unwrap().register_shared("part", PartKind::Cpu).unwrap();
    let node = east.node(1).unwrap();
    node.find("part@node1.west", SOON).unwrap();
    line.close();
    std::thread::scope(|scope| {
        let finds = scope.spawn(|| node.clone().find("part@node1.west", SOON));
        let error = node.lookup("part@node1.west").unwrap_err();
        assert!(matches!(error, LookupError::NoTrunk { .. }), "{error}");
        line.open();
        finds.join().unwrap().unwrap();
    });
}

#[test]
fn who_has_no_room_for_an_answer_keeps_no_other_waiting() {
    let dials = |address| builder("east").nodes(3).trunk("west", address).set("trunk_bytes", "4194304");
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let east = dials(west.address().unwrap()).start().unwrap();
    let full = east.node(1).unwrap().register_shared("full", PartKind::Cpu).unwrap();
    let source = west.node(1).unwrap().register_shared("source", PartKind::Cpu).unwrap();
    let to = source.find("full@node1.east", SOON).unwrap();
    // More than the pipe and the row of its node hold.
    (0..1_000).for_each(|_| source.send(to, &[7; 2_000]).unwrap());
    source.flush();
    // The answer that no such part exists finds no room.
    let asker = full.node().clone();
    until(|| {
        let found = asker.find("nobody@node0.west", Duration::from_millis(300));
        matches!(found, Err(LookupError::NoAnswer { .. })).then_some(())
    });
    assert_eq!(east.node(2).unwrap().parts_of("west").unwrap(), ["source@node1.west"]);
    (0..1_000).for_each(|_| drop(full.recv_timeout(SOON).unwrap()));
}

/// More than there is room for at a time.
#[test]
fn many_look_ups_need_little_room() {
    let (west, east) = two(|builder| builder.local_parts(16));
    let _part = west.node(1).unwrap().register_shared("part", PartKind::Cpu).unwrap();
    let node = east.node(1).unwrap();
    let found = node.find("part@node1.west", SOON).unwrap();
    for _ in 0..64 {
        assert_eq!(node.lookup("part@node1.west").unwrap(), found);
    }
    // A name that no part can have, and a wait without a time limit.
    let long = format!("{}@node1.west", "x".repeat(100_000));
    let error = node.lookup(&long).unwrap_err();
    assert!(matches!(&error, LookupError::BadAddress { .. }), "{error}");
    assert_eq!(node.find("part@node1.west", Duration::MAX).unwrap(), found);
}

/// Neither messages of a part that has gone, nor the news that it has gone, wait behind others that go on sending.
#[test]
fn a_part_that_has_gone_is_known_to_have_while_others_send() {
    let (west, east) = two(|builder| builder);
    let sink = west.node(1).unwrap().register_shared("sink", PartKind::Cpu).unwrap();
    let node = east.node(1).unwrap();
    let stream = node.register_shared("stream", PartKind::Cpu).unwrap();
    let short = node.register_shared("short", PartKind::Cpu).unwrap();
    let to = stream.find("sink@node1.west", SOON).unwrap();
    short.send(to, b"short").unwrap();
    short.flush();
    let source = loop {
        let message = sink.recv_timeout(SOON).unwrap();
        if *message == *b"short" {
            break message.source();
        }
    };
    drop(short);
    until(|| {
        for _ in 0..1_000 {
            let _ = stream.try_send(to, b"more");
        }
        while sink.try_recv().is_some() {}
        west.node(1).unwrap().cluster_of(source).is_none().then_some(())
    });
}
