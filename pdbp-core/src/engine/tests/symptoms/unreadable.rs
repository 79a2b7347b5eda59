//! Control blocks that were changed in flight: their messages are repeated.

use std::vec::Vec;

use super::super::harness::{Cluster, Links, Operation, Setup, node, part};
use super::{ALL, BOTH, delivered, rounds, setup};
use crate::Routing;
use crate::cdu::{CduClass, Route, flag};
use crate::engine::{Event, LocalPart, StreamTag};
use crate::pipe::StreamState;
use crate::tables::PartKind;

/// How many control blocks of each link are readable before the unreadable ones, and how many are unreadable.
const PLACES: [(u32, u32); 14] = [
    (0, 1),
    (0, 2),
    (1, 1),
    (1, 3),
    (2, 1),
    (2, 2),
    (3, 1),
    (4, 1),
    (5, 1),
    (6, 2),
    (7, 1),
    (8, 1),
    (10, 1),
    (12, 1),
];

fn three(links: Links, lease: u64) -> Setup {
    Setup { nodes: 3, lease, ..setup(links) }
}

fn grid(links: Links) -> Setup {
    Setup { nodes: 6, routing: Routing::Grid, streams: 8, ..setup(links) }
}

/// The links whose control blocks are to be unreadable: each on its own, both directions of a pair, and all.
fn pairs(nodes: usize) -> Vec<Vec<(usize, usize)>> {
    let ordered = |a: usize| (0..nodes).filter(move |b| *b != a).map(move |b| (a, b));
    let all: Vec<_> = (0..nodes).flat_map(ordered).collect();
    let single = all.iter().map(|pair| std::vec![*pair]);
    let both = all.iter().filter(|(a, b)| a < b).map(|&(a, b)| std::vec![(a, b), (b, a)]);
    single.chain(both).chain([all.clone()]).collect()
}

fn garble(c: &mut Cluster, links: &[(usize, usize)], (spared, times): (u32, u32)) {
    for &(from, to) in links {
        c.apply(Operation::Garble { from, to, times });
        c.net.borrow_mut().links[from][to].spared = spared;
    }
}

/// Repeats it with blocks unreadable at each position of each link.
fn everywhere(nodes: usize, start: impl Fn() -> Cluster, act: impl Fn(Cluster) -> Cluster) {
    for links in pairs(nodes) {
        for place in PLACES {
            let mut c = start();
            garble(&mut c, &links, place);
            c = act(c);
            c.settle();
            c.close();
        }
    }
}

#[test]
fn parts_are_registered_and_found_though_control_blocks_are_unreadable() {
    for links in ALL {
        for lease in [0, 40_000] {
            // From the first block on.
            everywhere(3, || three(links, lease).start(), Cluster::ready);
        }
    }
}

#[test]
fn a_part_registered_later_is_found_though_control_blocks_are_unreadable() {
    for links in ALL {
        everywhere(
            3,
            || three(links, 0).ready(),
            |mut c| {
                for i in 0..3 {
                    c.host(i).engine.register("late", PartKind::Cpu).unwrap();
                }
                c.run(400, |c| {
                    c.hosts.iter().flatten().all(|h| {
                        h.engine.local_part(2) == LocalPart::Registered
                            && (0..3).all(|n| h.engine.lookup(node(n), "late").is_some())
                    })
                });
                c
            },
        );
    }
}

#[test]
fn barriers_are_passed_though_control_blocks_are_unreadable() {
    for links in ALL {
        everywhere(
            3,
            || three(links, 0).ready(),
            |mut c| {
                for _ in 0..4 {
                    for node in 0..3 {
                        c.apply(Operation::Barrier { node });
                    }
                    c.run(200, |c| c.hosts.iter().flatten().all(|host| host.barrier.is_none()));
                }
                c
            },
        );
    }
}

#[test]
fn quiescence_comes_though_control_blocks_are_unreadable() {
    for links in ALL {
        everywhere(
            3,
            || three(links, 0).ready(),
            |mut c| {
                for _ in 0..3 {
                    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                        c.apply(Operation::Send { node: from, source: 0, to, dest: 0, length: 3 });
                    }
                    (0..3).for_each(|node| c.apply(Operation::Quiet { node }));
                    c.run(400, |c| c.hosts.iter().flatten().all(|host| host.quiet.is_none()));
                    (0..3).for_each(|i| c.read(i, 0, usize::MAX, false));
                }
                let sent = c.oracle.borrow().serial;
                assert_eq!((delivered(&c), sent), (9, 9));
                c
            },
        );
    }
}

/// A snapshot with missing rows must not pass for a complete one.
#[test]
fn a_node_is_let_in_though_control_blocks_are_unreadable() {
    for links in ALL {
        everywhere(
            3,
            || Setup { joining: Some(2), ..three(links, 0) }.start(),
            |c| {
                let mut c = c.ready();
                for i in 0..3 {
                    assert_eq!(c.host(i).engine.parts().count(), 6);
                    assert_eq!(c.host(i).engine.nodes().count(), 3);
                }
                c
            },
        );
    }
}

/// The relay's answer was lost, and the pipe of the stream was never freed.
#[test]
fn streams_by_relays_end_though_control_blocks_are_unreadable() {
    for links in ALL {
        for place in PLACES {
            for (from, to) in [(4, 3), (3, 4), (4, 1), (1, 4)] {
                let mut c = grid(links).ready();
                garble(&mut c, &[(from, to)], place);
                for round in 0..6 {
                    c.apply(Operation::Segment {
                        node: 3,
                        source: 0,
                        to: 1,
                        dest: 0,
                        length: 40,
                        last: round % 2 == 1,
                    });
                    rounds(&mut c, 6);
                }
                c.settle();
                assert!(c.host(3).closing.is_empty(), "{links:?} {place:?} from {from} to {to}");
                c.close();
            }
        }
    }
}

/// A relay without a circuit for a stream reports it, repeatedly if need be, even when the stream is over.
#[test]
fn a_stream_that_is_stopped_is_known_to_be_though_control_blocks_are_unreadable() {
    for links in ALL {
        for times in 0..4 {
            let mut c = Setup { streams: 1, ..grid(links) }.ready();
            for from in [3, 5] {
                c.apply(Operation::Send { node: from, source: 0, to: 1, dest: 0, length: 3 });
            }
            c.settle();
            // It has the only circuit.
            c.apply(Operation::Segment { node: 5, source: 0, to: 1, dest: 0, length: 40, last: false });
            rounds(&mut c, 6);
            garble(&mut c, &[(4, 3)], (0, times));
            let (group, number) = c.host(3).engine.open_stream(part(3, 0), node(1)).unwrap();
            let flags = flag::FIRST | flag::LAST;
            let mut block = c.host(3).engine.open(node(1)).unwrap();
            block.set_stream(StreamTag { group, number, segment: 0, dest: part(1, 0), flags });
            block.push(Route::new(CduClass::Stream, 0, part(3, 0), part(1, 0)), b"x").unwrap();
            c.oracle.borrow_mut().lossy = true;
            c.host(3).engine.submit(block);
            rounds(&mut c, 30);
            assert_eq!(c.net.borrow().links[4][3].garbled, 0);
            assert_eq!(
                c.host(3).engine.stream_state((group, number)),
                StreamState::Stopped,
                "{links:?} {times}"
            );
            let stopped = |event: &&Event| matches!(event, Event::StreamStopped { .. });
            assert_eq!(c.host(3).pipes.events.iter().filter(stopped).count(), 1);
            c.host(3).engine.close_stream((group, number)).unwrap();
            c.settle();
            c.close();
        }
    }
}

/// Whatever arrives, each block causes at most one in answer, and readable blocks of nodes that agree cause none.
#[test]
fn unreadable_blocks_that_nobody_answers_for_cause_no_endless_exchange() {
    for links in BOTH {
        let mut c = setup(links).ready();
        c.oracle.borrow_mut().lossy = true;
        rounds(&mut c, 20);
        let before = c.net.borrow().on_send_complete(1, 0);
        for _ in 0..40 {
            c.net.borrow_mut().inject(0, 1, b"garbage".to_vec());
            rounds(&mut c, 2);
        }
        let answers = c.net.borrow().on_send_complete(1, 0) - before;
        assert!((1..=60).contains(&answers), "{answers} blocks for 40");
        rounds(&mut c, 20);
        let (ones, others) = (c.net.borrow().on_send_complete(0, 1), c.net.borrow().on_send_complete(1, 0));
        rounds(&mut c, 100);
        assert_eq!(
            (c.net.borrow().on_send_complete(0, 1), c.net.borrow().on_send_complete(1, 0)),
            (ones, others)
        );
        c.settle();
    }
}
