//! Several clusters that dial one, of which none can or need reach another.

use std::time::Duration;

use pdbp::{Cluster, LookupError, PartKind};

use super::SOON;
use super::grid::{builder, until};
use super::proxy::Proxy;

fn hub() -> Cluster {
    builder("hub").listen("127.0.0.1:0".to_owned()).start().unwrap()
}

/// Asks a part of the hub something, and has the answer.
fn talk(hub: &Cluster, spoke: &Cluster, name: &str) {
    let worker = hub.node(1).unwrap().register_shared(name, PartKind::Cpu).unwrap();
    let part = spoke.node(1).unwrap().register("asker", PartKind::Cpu).unwrap();
    let to = part.find(&format!("{name}@node1.hub"), SOON).unwrap();
    part.send(to, b"question").unwrap();
    part.flush();
    let question = worker.recv_timeout(SOON).unwrap();
    assert_eq!(*question, *b"question");
    worker.send(question.source(), b"answer").unwrap();
    worker.flush();
    assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"answer");
}

/// As behind firewalls: only the hub has an address at which it can be reached.
#[cfg(target_os = "linux")]
#[test]
fn clusters_that_cannot_reach_each_other_dial_the_same_gateway() {
    let hub = hub();
    let dial = |name, last| {
        let line = Proxy::hiding(hub.address().unwrap(), [127, 0, 0, last].into());
        builder(name).trunk("hub", line.address()).start().unwrap()
    };
    let spokes = ["east", "north", "south"].into_iter().zip(2..).map(|(name, last)| dial(name, last));
    let spokes: Vec<_> = spokes.collect();
    for (spoke, name) in spokes.iter().zip(["a", "b", "c"]) {
        talk(&hub, spoke, name);
    }
    assert_eq!(hub.node(0).unwrap().clusters(), ["east", "north", "south"]);
}

#[test]
fn clusters_that_dial_the_same_gateway_have_no_trunk_to_each_other() {
    let hub = hub();
    let dial = |name| builder(name).trunk("hub", hub.address().unwrap()).start().unwrap();
    let [east, north] = ["east", "north"].map(dial);
    let _part = north.node(1).unwrap().register("part", PartKind::Cpu).unwrap();
    for (spoke, name) in [(&east, "a"), (&north, "b"), (&east, "c")] {
        talk(&hub, spoke, name);
    }
    until(|| (hub.node(0).unwrap().clusters() == ["east", "north"]).then_some(()));
    // Would there be one, it would be there by now, or a moment later.
    let found = east.node(1).unwrap().find("part@node1.north", Duration::from_millis(300));
    assert!(matches!(found, Err(LookupError::NoTrunk { .. })), "{found:?}");
    for spoke in [&east, &north] {
        assert_eq!(spoke.node(0).unwrap().clusters(), ["hub"]);
    }
}

/// A message and its answer take half a second, and many are needed until there is a trunk.
#[test]
fn a_trunk_over_a_slow_line_comes_up() {
    let hub = hub();
    let line = Proxy::slow(hub.address().unwrap().to_string(), Duration::from_millis(250));
    let east = builder("east").trunk("hub", line.address()).start().unwrap();
    talk(&hub, &east, "worker");
}

/// A gateway takes places for parts of its own.
#[test]
fn a_gateway_that_has_no_place_for_its_parts_says_so() {
    let crowded = |name| builder(name).local_parts(1);
    let refused = crowded("west").listen("127.0.0.1:0".to_owned()).start().err().unwrap().to_string();
    assert!(refused.contains("local_parts"), "{refused}");
    let hub = hub();
    let east = crowded("east").trunk("hub", hub.address().unwrap()).start().unwrap();
    let said = until(|| match east.node(0).unwrap().lookup("worker@node1.hub") {
        Err(LookupError::NoTrunk { reason, .. }) => reason,
        other => panic!("{other:?}"),
    });
    assert!(said.contains("local_parts"), "{said}");
}
