//! Nodes that come and go: one founds the cluster alone, and the places of the others are vacant at first.

use super::super::harness::{Cluster, Links, Operation, Setup, node};
use super::{delivered, rounds, ship};
use crate::Event;

fn open(nodes: usize) -> Cluster {
    Setup { nodes, links: Links::Posted, open: true, ..Setup::default() }.start()
}

/// Time enough for a node to be admitted, or declared down.
fn run(c: &mut Cluster) {
    for _ in 0..60 {
        rounds(c, 2);
        c.now = c.now.after(500);
    }
}

fn meet(c: &mut Cluster, nodes: &[usize]) {
    for (i, a) in nodes.iter().enumerate() {
        nodes[i + 1..].iter().for_each(|b| c.mend(*a, *b));
    }
    run(c);
}

fn members(c: &mut Cluster, i: usize) -> std::vec::Vec<usize> {
    c.host(i).engine.members().map(|node| node.index()).collect()
}

fn has_seen(c: &mut Cluster, i: usize, is_it: impl Fn(&Event) -> bool) -> bool {
    c.host(i).pipes.events.iter().any(is_it)
}

#[test]
fn a_founder_is_ready_alone_and_vacant_places_hold_no_blocks() {
    let mut c = open(4);
    run(&mut c);
    assert!(c.host(0).engine.is_ready() && (1..4).all(|i| !c.host(i).engine.is_ready()));
    assert_eq!(members(&mut c, 0), [0]);
    let (own, control) = (c.setup.initial, c.setup.control_blocks(0));
    assert_eq!(c.host(0).engine.free_blocks(), c.setup.blocks(0) - own - control);
    meet(&mut c, &[0, 1]);
    for i in 0..2 {
        assert!(c.host(i).engine.is_ready(), "node {i}");
        assert_eq!(members(&mut c, i), [0, 1]);
        assert!(has_seen(&mut c, i, |e| matches!(e, Event::NodeUp { node: up } if *up == node(1))));
    }
    // What its link needs: as many blocks to send and to receive into as any row has at first, and two for control messages.
    let link = 2 * c.setup.initial + 2;
    assert_eq!(c.host(0).engine.free_blocks(), c.setup.blocks(0) - own - control - link);
    c.close();
}

#[test]
fn messages_reach_a_node_that_has_come() {
    let mut c = open(3);
    run(&mut c);
    meet(&mut c, &[0, 2]);
    let part = c.host(2).engine.register("late", crate::tables::PartKind::Cpu).unwrap();
    run(&mut c);
    assert_eq!(c.host(0).engine.lookup(node(2), "late").map(|found| found.id), Some(part));
    assert!(!c.host(0).engine.has_failed(node(2)) && c.host(0).engine.has_failed(node(1)));
    c.close();
}

#[test]
fn barriers_wait_for_members_and_one_that_comes_learns_which_is_next() {
    let mut c = open(3);
    run(&mut c);
    for number in 1..=3 {
        assert_eq!(c.host(0).engine.arrive(), number);
        assert!(c.host(0).engine.barrier_passed(number), "alone");
    }
    meet(&mut c, &[0, 1]);
    assert_eq!(c.host(0).engine.arrive(), 4);
    run(&mut c);
    assert!(!c.host(0).engine.barrier_passed(4));
    assert_eq!(c.host(0).engine.barrier_missing(4).collect::<std::vec::Vec<_>>(), [node(1)]);
    // Another node joins while one is waiting, and is waited for as well.
    meet(&mut c, &[0, 1, 2]);
    assert_eq!(c.host(1).engine.arrive(), 4);
    run(&mut c);
    assert!((0..2).all(|i| !c.host(i).engine.barrier_passed(4)));
    assert_eq!(c.host(2).engine.arrive(), 4);
    run(&mut c);
    assert!((0..3).all(|i| c.host(i).engine.barrier_passed(4)));
    // The remaining nodes do not wait for one that is gone.
    for i in 0..2 {
        assert_eq!(c.host(i).engine.arrive(), 5);
    }
    run(&mut c);
    assert!((0..2).all(|i| !c.host(i).engine.barrier_passed(5)));
    c.kill(2);
    run(&mut c);
    assert!((0..2).all(|i| c.host(i).engine.barrier_passed(5)));
    assert_eq!(members(&mut c, 0), [0, 1]);
    c.close();
}

/// A member that did not know would mistake the next process in the place for the one that it knows.
#[test]
fn a_place_is_given_up_when_all_members_know_that_its_node_is_down() {
    let mut c = open(3);
    run(&mut c);
    meet(&mut c, &[0, 1, 2]);
    // When it became primary, it gave up all places that nobody had.
    c.net.borrow_mut().vacated.clear();
    c.apply(Operation::Gate { from: 0, to: 2, closed: true });
    c.kill(1);
    run(&mut c);
    assert_eq!((members(&mut c, 0), members(&mut c, 2)), (std::vec![0, 2], std::vec![0, 1, 2]));
    assert!(c.net.borrow().vacated.is_empty());
    c.apply(Operation::Gate { from: 0, to: 2, closed: false });
    run(&mut c);
    assert_eq!(members(&mut c, 2), [0, 2]);
    assert!(c.net.borrow().vacated.contains(&(0, 1)));
    c.close();
}

#[test]
fn a_process_that_goes_before_it_is_let_in_leaves_its_place() {
    let mut c = open(2);
    run(&mut c);
    assert_eq!(std::mem::take(&mut c.net.borrow_mut().vacated), [(0, 1)], "by one that has become primary");
    c.mend(0, 1);
    c.poll(0);
    c.kill(1);
    run(&mut c);
    assert_eq!(members(&mut c, 0), [0]);
    assert!(!has_seen(&mut c, 0, |e| matches!(e, Event::NodeUp { node: up } if *up == node(1))));
    assert_eq!(c.net.borrow().vacated, [(0, 1)]);
    c.close();
}

/// The next primary gives up the places that nobody has, since it does not know to whom they were given.
#[test]
fn a_cluster_of_three_masters_goes_on_without_its_founder() {
    let mut c = Setup { nodes: 5, links: Links::Posted, open: true, voters: 3, ..Setup::default() }.start();
    run(&mut c);
    meet(&mut c, &[0, 1, 2, 3]);
    for i in 0..4 {
        assert_eq!(c.host(i).engine.arrive(), 1, "node {i}");
    }
    run(&mut c);
    c.net.borrow_mut().vacated.clear();
    c.kill(0);
    run(&mut c);
    let primary = c.host(3).engine.master().unwrap().index();
    assert!([1, 2].contains(&primary));
    for i in 1..4 {
        assert_eq!(members(&mut c, i), [1, 2, 3], "node {i}");
        assert_eq!(c.host(i).engine.arrive(), 2);
    }
    run(&mut c);
    assert!((1..4).all(|i| c.host(i).engine.barrier_passed(2)));
    for place in [0, 4] {
        assert!(c.net.borrow().vacated.contains(&(primary, place)), "place {place}");
    }
    meet(&mut c, &[1, 2, 3, 4]);
    let part = c.host(4).engine.register("late", crate::tables::PartKind::Cpu).unwrap();
    run(&mut c);
    assert_eq!((members(&mut c, 3), c.host(3).engine.is_ready()), (std::vec![1, 2, 3, 4], true));
    assert!(c.host(2).engine.parts().any(|entry| entry.id == part));
    c.close();
}

#[test]
fn quiet_comes_among_those_that_are_there() {
    let mut c = open(3);
    run(&mut c);
    let asked = c.host(0).engine.request_quiescence();
    run(&mut c);
    assert!(c.host(0).engine.is_quiescent(asked), "alone");
    meet(&mut c, &[0, 1]);
    for i in 0..2 {
        let part = c.host(i).engine.register("p0", crate::tables::PartKind::Cpu).unwrap();
        let pipe = c.host(i).engine.bind_pipe(part).unwrap();
        c.host(i).pipes.owner.insert(pipe.0, 0);
    }
    run(&mut c);
    ship(&mut c, 0, 1);
    ship(&mut c, 1, 0);
    let asked = [0, 1].map(|i| c.host(i).engine.request_quiescence());
    run(&mut c);
    assert!((0..2).all(|i| c.host(i).engine.is_quiescent(asked[i])));
    assert_eq!(delivered(&c), 2);
    c.close();
}

#[test]
fn only_a_transport_of_an_open_cluster_is_told_of_primaries_and_of_each_once() {
    let mut c = Setup { links: Links::Posted, ..Setup::default() }.ready();
    run(&mut c);
    assert!(c.net.borrow().led.is_empty() && c.net.borrow().vacated.is_empty());
    c.close();
    let mut c = open(3);
    run(&mut c);
    meet(&mut c, &[0, 1]);
    for i in 0..2 {
        let net = c.net.borrow();
        let led: std::vec::Vec<_> = net.led.iter().filter(|led| led.0 == i).collect();
        assert!(led.windows(2).all(|two| two[0] != two[1]), "{led:?}");
        assert_eq!(led.last().map(|led| led.1), Some(Some(0)));
    }
    c.close();
}
