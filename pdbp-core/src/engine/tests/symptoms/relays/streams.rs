//! Streams through a relay.

use std::vec::Vec;

use super::super::super::harness::{Cluster, Host, Links, Operation, Setup, node, part};
use super::super::{ALL, delivered, rounds, ship};
use super::{grid, segment};
use crate::OpenError;
use crate::cdu::{CduClass, Route, flag};
use crate::engine::{DeliveryKind, Event, StreamTag};
use crate::id::StreamNo;
use crate::mesp::Control;
use crate::pipe::{PipeKind, StreamState};

/// No node has anything left of a stream.
fn assert_no_stream_is_left(c: &mut Cluster) {
    for i in c.live() {
        let engine = &mut c.host(i).engine;
        assert_eq!(engine.pipes(PipeKind::Stream).busy, 0, "stream pipes of node {i}");
        assert_eq!((engine.stream_mappings().count(), engine.streams.lent()), (0, 0), "node {i}");
        assert_eq!(engine.streams.all_relayed().count(), 0, "streams that node {i} passes on");
    }
}

/// The streams of a node's first part: segments, and whether each is given up.
fn segments(c: &mut Cluster, i: usize) -> Vec<(u32, bool)> {
    let queue = c.host(i).pipes.queues[0].iter();
    let kinds = queue.filter_map(|(delivery, _)| match delivery.kind() {
        DeliveryKind::Stream { segment, aborted, .. } => Some((segment, aborted)),
        _ => None,
    });
    kinds.collect()
}

fn is_broken(c: &mut Cluster, at: usize, source: usize) -> bool {
    let broken = |e: &Event| matches!(e, Event::StreamBroken { mapping } if mapping.source == node(source));
    c.host(at).pipes.events.iter().any(broken)
}

fn is_stopped(c: &mut Cluster, at: usize, by: usize) -> bool {
    let stopped = |e: &Event| matches!(e, Event::StreamStopped { relay, .. } if *relay == node(by));
    c.host(at).pipes.events.iter().any(stopped)
}

#[test]
fn a_stream_by_a_relay_arrives_whole_and_in_order_and_leaves_nothing_behind() {
    for links in ALL {
        let mut c = grid(links).ready();
        for n in 0..20 {
            segment(&mut c, 3, 0, 1, n == 19);
            segment(&mut c, 1, 1, 3, n == 19);
            rounds(&mut c, 4);
            assert_eq!(c.host(1).engine.stream_mappings().count(), usize::from(n < 19));
            for i in [1, 3] {
                c.read(i, 0, 1, false);
            }
        }
        // A single segment is a stream as well.
        segment(&mut c, 5, 0, 1, true);
        c.settle();
        assert_eq!((delivered(&c), c.oracle.borrow().serial), (41, 41));
        assert_eq!(c.host(4).engine.counters().relayed, 21);
        assert_no_stream_is_left(&mut c);
    }
}

#[test]
fn a_stream_knows_when_its_relay_has_taken_it() {
    let mut c = grid(Links::InPlace).ready();
    segment(&mut c, 3, 0, 1, false);
    let (group, number) = c.host(3).streams.values().next().map(|s| (s.tag.group, s.tag.number)).unwrap();
    // It ignores an answer from any other node.
    let Host { engine, pipes, .. } = c.host(3);
    let relay = engine.links.id(node(5));
    engine.handle_control(relay, Control::StreamAnswer { group, number: number.0, taken: false }, pipes);
    assert_eq!(engine.stream_state((group, number)), StreamState::Requested);
    rounds(&mut c, 4);
    assert_eq!(c.host(3).engine.stream_state((group, number)), StreamState::Established);
    // With a link, there is no relay to ask.
    segment(&mut c, 3, 1, 4, false);
    let Host { engine, streams, .. } = c.host(3);
    assert!(
        streams
            .values()
            .all(|s| engine.stream_state((s.tag.group, s.tag.number)) == StreamState::Established)
    );
    c.settle();
    assert_no_stream_is_left(&mut c);
}

#[test]
fn a_stream_behind_a_relay_whose_reader_does_not_read_stops_its_sender_and_no_other() {
    for links in ALL {
        let mut c = Setup { pipe: 1, ..grid(links) }.ready();
        for _ in 0..200 {
            segment(&mut c, 3, 0, 1, false);
            rounds(&mut c, 3);
        }
        let sent = c.oracle.borrow().serial;
        assert!(sent < 40, "{sent} segments of 200 were taken, and one was read");
        assert!(c.host(4).engine.recv_row(node(3)).unwrap().waiting > 0, "they wait at the relay");
        let before = delivered(&c);
        segment(&mut c, 3, 1, 2, true);
        ship(&mut c, 3, 5);
        rounds(&mut c, 12);
        assert_eq!(delivered(&c), before + 2);
        c.settle();
        assert_no_stream_is_left(&mut c);
    }
}

#[test]
fn a_stream_for_which_its_relay_has_no_circuit_is_stopped_aloud_and_the_next_finds_one() {
    for links in ALL {
        let mut c = Setup { streams: 1, ..grid(links) }.ready();
        c.oracle.borrow_mut().lossy = true;
        segment(&mut c, 3, 0, 1, false);
        rounds(&mut c, 4);
        segment(&mut c, 5, 0, 1, false);
        rounds(&mut c, 4);
        assert!(is_stopped(&mut c, 5, 4) && !is_stopped(&mut c, 3, 4));
        assert_eq!((segments(&mut c, 1).len(), c.oracle.borrow().stopped), (1, 1));
        assert_eq!(c.host(4).engine.counters().relay_lost, 1);
        segment(&mut c, 3, 0, 1, true);
        rounds(&mut c, 4);
        segment(&mut c, 5, 0, 1, true);
        c.settle();
        assert_eq!((delivered(&c), c.oracle.borrow().stopped), (3, 1));
        assert_no_stream_is_left(&mut c);
    }
}

#[test]
fn both_ends_of_a_stream_learn_that_its_relay_has_failed() {
    for links in ALL {
        let mut c = grid(links).ready();
        segment(&mut c, 3, 0, 1, false);
        rounds(&mut c, 4);
        c.kill(4);
        c.oracle.borrow_mut().lossy = true;
        rounds(&mut c, 4);
        assert!(is_broken(&mut c, 1, 3) && c.host(3).engine.has_failed(node(1)));
        segment(&mut c, 3, 0, 1, false);
        c.settle();
        assert_no_stream_is_left(&mut c);
    }
}

#[test]
fn both_ends_of_a_stream_learn_that_its_relay_is_no_member() {
    let mut c = grid(Links::Posted).ready();
    segment(&mut c, 3, 0, 1, false);
    rounds(&mut c, 4);
    c.oracle.borrow_mut().lossy = true;
    for i in [1, 3] {
        let Host { engine, pipes, .. } = c.host(i);
        let relay = engine.links.id(node(4));
        engine.set_member(relay, false, pipes);
    }
    assert!(is_broken(&mut c, 1, 3) && c.host(3).engine.has_failed(node(1)));
}

#[test]
fn the_reader_of_a_stream_learns_that_its_source_cannot_reach_the_relay_any_more() {
    let read_messages = |c: &mut Cluster| {
        for _ in 0..8 {
            c.read(1, 1, usize::MAX, false);
            rounds(c, 2);
        }
    };
    for dies in [false, true] {
        for stuck in [false, true] {
            let mut c = grid(Links::Posted).ready();
            segment(&mut c, 3, 0, 1, false);
            rounds(&mut c, 4);
            c.oracle.borrow_mut().lossy = true;
            c.net.borrow_mut().links[4][1].closed = stuck;
            for _ in 0..6 {
                // With these, the relay has no room to report it at once if the link is stuck.
                let (node, source, to, dest) = (4, 0, 1, 1);
                c.apply(Operation::Push { node, source, to, dest, length: 9, urgent: false, segment: false });
                c.submit(4, 1, false);
            }
            if dies {
                c.kill(3);
            } else {
                c.net.borrow_mut().cut(3, 4);
            }
            read_messages(&mut c);
            assert_eq!(segments(&mut c, 1).len(), if stuck { 1 } else { 2 });
            c.net.borrow_mut().links[4][1].closed = false;
            read_messages(&mut c);
            assert_eq!(segments(&mut c, 1), [(0, false), (1, true)]);
            assert!(dies || c.host(3).engine.has_failed(node(1)));
            c.settle();
            assert_no_stream_is_left(&mut c);
        }
    }
}

#[test]
fn the_writer_of_a_stream_learns_that_its_relay_has_lost_the_link_to_the_reader() {
    let mut c = grid(Links::Posted).ready();
    segment(&mut c, 3, 0, 1, false);
    rounds(&mut c, 4);
    c.oracle.borrow_mut().lossy = true;
    c.net.borrow_mut().cut(4, 1);
    rounds(&mut c, 6);
    assert!(is_stopped(&mut c, 3, 4) && is_broken(&mut c, 1, 3));
    // Once the link is back, another stream has a route.
    c.net.borrow_mut().mend(4, 1);
    rounds(&mut c, 8);
    let before = delivered(&c);
    segment(&mut c, 3, 0, 1, true);
    c.settle();
    assert_eq!(delivered(&c), before + 1);
    assert_no_stream_is_left(&mut c);
}

/// Sends the first segment of a stream.
fn begin(c: &mut Cluster, from: usize, to: usize, (group, number): (u16, StreamNo)) {
    let engine = &mut c.host(from).engine;
    let mut block = engine.open(node(to)).unwrap();
    block.set_stream(StreamTag { group, number, segment: 0, dest: part(to, 0), flags: flag::FIRST });
    block.push(Route::new(CduClass::Stream, 0, part(from, 0), part(to, 0)), b"segment").unwrap();
    engine.submit(block);
}

#[test]
fn a_stream_pipe_used_again_before_the_last_segment_breaks_the_first_stream_aloud_behind_relays_too() {
    // To the same node, to another through the same relay, and to the relay itself; then in the other direction.
    for (nodes, first, second) in [(6, 1, 1), (9, 1, 7), (6, 1, 4), (6, 4, 1)] {
        let mut c = Setup { nodes, ..grid(Links::InPlace) }.ready();
        c.host(1).pipes.checked = false;
        c.host(4).pipes.checked = false;
        if nodes > 7 {
            c.host(7).pipes.checked = false;
        }
        let (group, number) = c.host(3).engine.open_stream(part(3, 0), node(first)).unwrap();
        // No engine gives a pipe to another stream before that; this writer ignores the rule.
        for (to, number) in [(first, number), (second, StreamNo(number.0 + 1))] {
            begin(&mut c, 3, to, (group, number));
            rounds(&mut c, 6);
        }
        let given_up = segments(&mut c, first).iter().any(|(_, aborted)| *aborted);
        assert!(given_up || is_broken(&mut c, first, 3), "{first}, then {second}");
        let lent: usize = (0..nodes).map(|i| c.host(i).engine.streams.lent()).sum();
        assert_eq!(lent, usize::from(second != 4));
        c.settle_unchecked();
    }
}

/// The writer learnt that its reader's node was not a member when its relay had the link to it again, and nobody notified the
/// reader.
#[test]
fn the_reader_of_a_stream_learns_that_its_writer_took_its_node_for_no_member() {
    let mut c = grid(Links::Posted).ready();
    c.host(1).pipes.checked = false;
    c.apply(Operation::Gate { from: 3, to: 4, closed: true });
    let (group, number) = c.host(3).engine.open_stream(part(3, 0), node(1)).unwrap();
    begin(&mut c, 3, 1, (group, number));
    c.net.borrow_mut().cut(0, 1);
    c.run(1000, |c| c.hosts[3].as_ref().is_some_and(|host| host.engine.has_failed(node(1))));
    assert_eq!(c.host(3).engine.open(node(1)).unwrap_err(), OpenError::PeerFailed(node(1)));
    c.host(3).engine.close_stream((group, number)).unwrap();
    c.mend(0, 1);
    c.run(1000, |c| {
        let reaches = |i: usize| c.hosts[i].as_ref().is_some_and(|host| !host.engine.has_failed(node(1)));
        reaches(3) && reaches(4)
    });
    c.apply(Operation::Gate { from: 3, to: 4, closed: false });
    rounds(&mut c, 12);
    assert_eq!(segments(&mut c, 1), [(0, false), (1, true)]);
    c.settle_unchecked();
    assert_no_stream_is_left(&mut c);
}

#[test]
fn what_is_left_of_a_stream_that_was_given_up_is_no_message_that_a_relay_loses_or_gives_back() {
    for at_relay in [false, true] {
        let mut c = grid(Links::Posted).ready();
        c.host(1).pipes.checked = false;
        let (group, number) = c.host(3).engine.open_stream(part(3, 0), node(1)).unwrap();
        begin(&mut c, 3, 1, (group, number));
        rounds(&mut c, 6);
        let (from, to) = if at_relay { (4, 1) } else { (3, 4) };
        c.apply(Operation::Gate { from, to, closed: true });
        c.host(3).engine.close_stream((group, number)).unwrap();
        rounds(&mut c, 6);
        c.net.borrow_mut().cut(from, to);
        rounds(&mut c, 6);
        for i in [3, 4] {
            let host = c.host(i);
            assert_eq!((host.engine.counters().undelivered, host.engine.counters().relay_lost), (0, 0));
            assert!(host.pipes.queues[0].is_empty(), "node {i}");
        }
        c.settle_unchecked();
        assert_no_stream_is_left(&mut c);
    }
}
