//! A node that is declared down and let in again over links that never failed, since their transport does not end links.

use super::super::harness::{Cluster, Links, Operation, Setup, node};
use super::{delivered, push, rounds, setup, ship};
use crate::Event;

/// Nodes 0 to 2, with leases, and private pipes that take this many deliveries.
fn leased(pipe: usize) -> Cluster {
    let c = Setup { nodes: 3, lease: 40_000, initial: 4, pipe, ..setup(Links::InPlace) }.ready();
    c.oracle.borrow_mut().lossy = true;
    c
}

fn reaches(c: &Cluster, from: usize, to: usize) -> bool {
    !c.hosts[from].as_ref().unwrap().engine.has_failed(node(to))
}

/// Stops node 2 until the others have declared it down.
fn suspend(c: &mut Cluster) {
    for _ in 0..2_000 {
        c.poll(0);
        c.poll(1);
        c.now = c.now.after(100);
        if !reaches(c, 0, 2) && !reaches(c, 1, 2) {
            return;
        }
    }
    panic!("node 2 is still a member");
}

fn is_back(c: &Cluster) -> bool {
    (0..2).all(|i| reaches(c, i, 2) && reaches(c, 2, i))
}

/// It ended with those from before, as long as anything of that time waited for a reader.
#[test]
fn a_stream_from_a_node_that_is_back_goes_on_when_what_came_before_has_been_read() {
    let mut c = leased(1);
    ship(&mut c, 2, 1);
    c.apply(Operation::Segment { node: 2, source: 1, to: 1, dest: 0, length: 5, last: false });
    rounds(&mut c, 4);
    assert_eq!(c.host(1).engine.recv_row(node(2)).unwrap().waiting, 1);
    suspend(&mut c);
    c.run(20_000, is_back);
    c.apply(Operation::Segment { node: 2, source: 0, to: 1, dest: 0, length: 5, last: false });
    for _ in 0..3 {
        c.read(1, 0, 1, false);
        rounds(&mut c, 4);
    }
    assert_eq!(delivered(&c), 3);
    let broken = |e: &&Event| matches!(e, Event::StreamBroken { .. });
    assert_eq!(c.host(1).pipes.events.iter().filter(broken).count(), 1, "the one from before");
    assert_eq!(c.host(1).engine.stream_mappings().count(), 1);
    c.settle();
}

#[test]
fn a_block_opened_before_a_node_was_declared_down_comes_back_though_the_node_is_back() {
    let mut c = leased(1 << 20);
    push(&mut c, 1, 2, false);
    suspend(&mut c);
    c.run(20_000, is_back);
    c.submit(1, 2, false);
    rounds(&mut c, 4);
    assert_eq!((c.host(1).engine.counters().undelivered, delivered(&c)), (1, 0));
    c.settle();
}
