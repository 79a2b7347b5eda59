//! Two hops. Six nodes form two rows of three; node 0 is the master. The relay from 3 to 1 is node 4, and so is that from 5 to 1.

mod streams;

use std::vec;
use std::vec::Vec;

use super::super::harness::{Cluster, Links, Operation, Policy, Setup, node, part};
use super::{ALL, delivered, push, rounds, setup, ship};
use crate::cdu::{CduClass, Malformed, Route, Via, flag};
use crate::engine::{Event, StreamTag};
use crate::id::StreamNo;
use crate::{OpenError, Routing};

fn grid(links: Links) -> Setup {
    Setup { nodes: 6, routing: Routing::Grid, ..setup(links) }
}

fn segment(c: &mut Cluster, from: usize, source: u16, to: usize, last: bool) {
    c.apply(Operation::Segment { node: from, source, to, dest: 0, length: 40, last });
}

fn send(c: &mut Cluster, from: usize, to: usize) {
    c.apply(Operation::Send { node: from, source: 0, to, dest: 0, length: 9 });
}

#[test]
fn rows_are_those_of_row_column_and_masters() {
    let mut c = grid(Links::InPlace).ready();
    let linked: Vec<Vec<usize>> =
        (0..6).map(|i| (0..6).filter(|p| c.host(i).engine.send_row(node(*p)).is_some()).collect()).collect();
    let all = vec![0, 1, 2, 3, 4, 5];
    assert_eq!(linked[0], all);
    assert_eq!(linked[1], [0, 1, 2, 4]);
    assert_eq!(linked[5], [0, 2, 3, 4, 5]);
    assert!(c.host(1).engine.is_relayed(node(3)) && !c.host(1).engine.is_relayed(node(4)));
    c.settle();
}

/// A cluster in which all links have been used.
fn acquainted(links: Links) -> Cluster {
    let mut c = grid(links).ready();
    for (from, to) in (0..6).flat_map(|from| (0..6).map(move |to| (from, to))) {
        send(&mut c, from, to);
    }
    c.settle();
    c
}

#[test]
fn messages_of_many_sources_share_a_block_on_their_second_hop() {
    for links in ALL {
        let mut c = acquainted(links);
        let (relayed, took) = (c.host(4).engine.counters().relayed, delivered(&c));
        let before = c.host(4).engine.send_row(node(1)).unwrap().blocks;
        for from in [3, 5] {
            for _ in 0..3 {
                send(&mut c, from, 1);
            }
            c.apply(Operation::Flush { node: from });
        }
        // In one poll, the relay takes everything that has arrived from both, and everything that its own parts send.
        send(&mut c, 4, 1);
        rounds(&mut c, 4);
        let row = c.host(4).engine.send_row(node(1)).unwrap();
        assert_eq!(row.blocks - before, 1);
        assert_eq!(c.host(4).engine.counters().relayed - relayed, 6);
        c.settle();
        assert_eq!(delivered(&c) - took, 7);
    }
}

#[test]
fn deliveries_tell_the_node_that_sent_them_not_the_relay() {
    let mut c = acquainted(Links::Posted);
    for from in [3, 4, 5] {
        send(&mut c, from, 1);
        c.apply(Operation::Flush { node: from });
    }
    rounds(&mut c, 4);
    let sources: Vec<_> = c.host(1).pipes.queues[0].iter().map(|(d, _)| d.source().index()).collect();
    let mut sorted = sources.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [3, 4, 5]);
    c.settle();
}

#[test]
fn a_reader_behind_a_relay_that_does_not_read_stops_its_sender_and_no_control() {
    for links in ALL {
        let mut c = Setup { pipe: 1, ..grid(links) }.ready();
        let mut sent = 0;
        for _ in 0..200 {
            let before = c.oracle.borrow().serial;
            let engine = &mut c.host(3).engine;
            let (may, block) = (engine.may_open(node(1)), engine.open(node(1)));
            assert_eq!(may, block.is_ok(), "it may be known without asking");
            block.into_iter().for_each(|block| engine.submit(block));
            ship(&mut c, 3, 1);
            rounds(&mut c, 3);
            sent += c.oracle.borrow().serial - before;
        }
        assert!(sent < 120, "{sent} messages of 200 were taken, and one was read");
        assert!(c.host(4).engine.recv_row(node(3)).unwrap().waiting > 0, "they wait at the relay");
        // From 3 to 2 the relay is node 5, where nothing is in the way. Barriers go through the master.
        let before = delivered(&c);
        for to in [2, 5] {
            ship(&mut c, 3, to);
        }
        for i in 0..6 {
            c.apply(Operation::Barrier { node: i });
        }
        rounds(&mut c, 12);
        assert_eq!(delivered(&c), before + 2);
        assert!((0..6).all(|i| c.host(i).barrier.is_none()), "the barrier is passed");
        c.settle();
        assert_eq!(delivered(&c), sent + 2);
    }
}

#[test]
fn commands_are_still_commands_behind_a_relay() {
    for initial in [2, 4] {
        let mut c = Setup { initial, ..grid(Links::Posted) }.ready();
        c.net.borrow_mut().links[4][1].closed = true;
        for _ in 0..3 {
            ship(&mut c, 3, 1);
            rounds(&mut c, 2);
        }
        push(&mut c, 3, 1, true);
        c.submit(3, 1, true);
        c.net.borrow_mut().links[4][1].closed = false;
        rounds(&mut c, 8);
        assert_eq!(delivered(&c), 4);
        let first = c.host(1).pipes.queues[0]
            .iter()
            .position(|(d, _)| matches!(d.kind(), crate::engine::DeliveryKind::Messages { urgent: true }));
        assert!(first.is_some(), "a command arrives as one");
        c.settle();
    }
}

#[test]
fn sets_long_messages_and_full_blocks_go_by_relays() {
    for links in ALL {
        let mut c = grid(links).ready();
        for length in [0, 1, 100, 472] {
            let source = 1;
            c.apply(Operation::Push {
                node: 3,
                source,
                to: 1,
                dest: 1,
                length,
                urgent: false,
                segment: true,
            });
            c.apply(Operation::Push {
                node: 3,
                source,
                to: 1,
                dest: 1,
                length,
                urgent: false,
                segment: false,
            });
            c.apply(Operation::PushSet { node: 3, source, length: length.min(200), mask: 0xFF });
            c.apply(Operation::Send { node: 3, source, to: 2, dest: 1, length: 512 });
        }
        c.settle();
        assert!(delivered(&c) > 40 && delivered(&c) == c.oracle.borrow().serial);
        let longest = c.host(3).engine.config().longest_unsegmented();
        assert_eq!(longest, 512 - 16 - 8, "the extension takes room");
    }
}

#[test]
fn with_its_relay_dead_a_node_is_out_of_reach_and_what_was_on_its_way_to_the_relay_comes_back() {
    for links in ALL {
        let mut c = grid(links).ready();
        c.net.borrow_mut().links[3][4].closed = true;
        ship(&mut c, 3, 1);
        c.kill(4);
        c.oracle.borrow_mut().lossy = true;
        rounds(&mut c, 8);
        assert!(c.host(3).engine.has_failed(node(1)) && c.host(3).engine.has_failed(node(4)));
        assert_eq!(c.host(3).engine.open(node(1)).unwrap_err(), OpenError::PeerFailed(node(1)));
        assert!(!c.host(3).engine.has_failed(node(2)), "by node 5");
        assert!(!c.host(1).engine.has_failed(node(5)), "by node 2");
        c.settle();
    }
}

#[test]
fn what_a_relay_cannot_pass_on_is_counted_and_told() {
    for links in ALL {
        let mut c = grid(links).ready();
        c.net.borrow_mut().links[4][1].closed = true;
        ship(&mut c, 3, 1);
        rounds(&mut c, 4);
        c.kill(1);
        rounds(&mut c, 6);
        assert_eq!(c.host(4).engine.counters().relay_lost, 1);
        let told = |e: &Event| matches!(e, Event::NotForwarded { source, dest, messages: 1 } if (*source, *dest) == (node(3), node(1)));
        assert!(c.host(4).pipes.events.iter().any(told));
        assert_eq!(c.host(3).engine.open(node(1)).unwrap_err(), OpenError::PeerFailed(node(1)));
        c.settle();
    }
}

#[test]
fn what_is_not_on_its_way_is_refused() {
    let ways = [
        // From a different node than the one it came from.
        (3, 4, Via { origin: node(5), dest: node(1) }),
        // The node is not the relay between these two.
        (3, 5, Via { origin: node(3), dest: node(1) }),
        // There is a link.
        (3, 4, Via { origin: node(3), dest: node(4) }),
        // It came through a node other than the relay.
        (2, 1, Via { origin: node(3), dest: node(1) }),
        // No such node.
        (3, 4, Via { origin: node(3), dest: node(900) }),
        // Back to where it came from.
        (3, 4, Via { origin: node(3), dest: node(3) }),
    ];
    // A stream that its relay forwards has a circuit, not a pipe.
    let pipe = (4, 1, Via { origin: node(3), dest: node(1) });
    let streams = ways.into_iter().chain([pipe]).map(|way| (way, true));
    let cases: Vec<_> = ways.into_iter().map(|way| (way, false)).chain(streams).collect();
    for trusted in [false, true] {
        for &((from, to, via), stream) in &cases {
            let mut c = Setup { trusted, policy: Policy::Fixed, ..grid(Links::Posted) }.ready();
            c.oracle.borrow_mut().lossy = true;
            let mut block = c.host(from).engine.open(node(to)).unwrap();
            block.packer.turn(Some(via));
            let dest = part(via.dest.index().min(5), 0);
            block.push(Route::new(CduClass::ShortMessage, 0, part(from, 0), dest), b"astray").unwrap();
            if stream {
                let (group, number) = (0, StreamNo(7));
                block.set_stream(StreamTag { group, number, segment: 0, dest, flags: flag::FIRST });
            }
            c.host(from).engine.submit(block);
            rounds(&mut c, 6);
            let refused = |e: &Event| matches!(e, Event::Malformed { reason: Malformed::Relay, .. });
            assert!(c.host(to).pipes.events.iter().any(refused), "{from} to {to}: {via:?}");
            assert_eq!(c.host(to).engine.counters().malformed, 1);
            assert_eq!((delivered(&c), c.host(to).engine.counters().relayed), (0, 0));
            c.settle();
        }
    }
}

#[test]
fn a_single_element_everywhere_is_enough() {
    for links in ALL {
        for nodes in [6, 7, 8, 11] {
            let tight =
                Setup { nodes, streams: 8, initial: 1, row: 1, extra: 0, control: 1, pipe: 1, ..grid(links) };
            let mut c = tight.ready();
            for _ in 0..4 {
                for from in 0..nodes {
                    for to in 0..nodes {
                        segment(&mut c, from, 0, to, to % 3 == 0);
                        send(&mut c, from, to);
                        push(&mut c, from, to, to % 2 == 0);
                        c.submit(from, to, to % 2 == 0);
                    }
                    c.poll(from);
                }
            }
            c.settle();
        }
    }
}
