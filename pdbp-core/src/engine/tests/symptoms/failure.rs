//! Peers that fail.

use std::vec::Vec;

use super::super::harness::{Cluster, Host, Links, Operation, Policy, Setup, node, part};
use super::{ALL, BOTH, delivered, push, rounds, setup, ship};
use crate::pipe::StreamState;
use crate::{Event, OpenError};

/// The counts of failed links must not be waited for.
#[test]
fn quiet_comes_also_after_a_node_has_failed_with_messages_on_the_way() {
    for links in ALL {
        let mut c = Setup { nodes: 3, ..setup(links) }.ready();
        ship(&mut c, 0, 2);
        ship(&mut c, 2, 1);
        c.poll(0);
        c.poll(2);
        c.kill(2);
        let asked = [0, 1].map(|i| c.host(i).engine.request_quiescence());
        rounds(&mut c, 20);
        assert!((0..2).all(|i| c.host(i).engine.is_quiescent(asked[i])));
        c.settle();
    }
}

/// A barrier at which it had arrived completes; at the next one, all nodes know which one they are waiting for in vain, and that it has ended.
#[test]
fn who_waits_at_a_barrier_knows_which_node_has_failed_before_it() {
    for links in ALL {
        for is_late in [false, true] {
            let mut c = Setup { nodes: 4, ..setup(links) }.ready();
            assert!((0..4).all(|i| c.host(i).engine.arrive() == 1));
            rounds(&mut c, 20);
            let arrive = |c: &mut Cluster| assert!((0..3).all(|i| c.host(i).engine.arrive() == 2));
            if !is_late {
                arrive(&mut c);
                rounds(&mut c, 20);
                assert_eq!(c.host(0).engine.barrier_lost(2), None);
            }
            c.kill(3);
            rounds(&mut c, 20);
            if is_late {
                arrive(&mut c);
                rounds(&mut c, 20);
            }
            for i in 0..3 {
                let engine = &c.host(i).engine;
                assert!(engine.barrier_passed(1) && !engine.barrier_passed(2));
                assert_eq!(engine.barrier_missing(2).collect::<Vec<_>>(), [node(3)], "at node {i}");
                assert_eq!([1, 2].map(|number| engine.barrier_lost(number)), [None, Some(node(3))]);
            }
            c.settle();
        }
    }
}

#[test]
fn a_failed_peer_is_reported_with_what_it_did_not_get() {
    for links in BOTH {
        let mut c = setup(links).ready();
        c.apply(Operation::Gate { from: 0, to: 1, closed: true });
        ship(&mut c, 0, 1);
        c.poll(0);
        ship(&mut c, 0, 1);
        let open = c.host(0).engine.open(node(1));
        assert_eq!(open.unwrap_err(), OpenError::WouldBlock);
        c.kill(1);
        rounds(&mut c, 3);
        let failed = |e: &Event| match e {
            Event::PeerFailed { peer, undelivered } => Some((*peer, *undelivered)),
            _ => None,
        };
        let events: Vec<_> = c.host(0).pipes.events.iter().filter_map(failed).collect();
        // The fate of a posted send is unknown.
        let lost = if links == Links::Posted { 1..=2 } else { 2..=2 };
        assert_eq!(events.len(), 1);
        assert!(events[0].0 == node(1) && lost.contains(&events[0].1), "{events:?}");
        assert_eq!(c.host(0).engine.open(node(1)).unwrap_err(), OpenError::PeerFailed(node(1)));
        assert!(c.host(0).engine.nodes().any(|n| n.id == node(1) && n.failed));
        // The returned messages belong to this part; its blocks are free once they have been read.
        assert_eq!(c.host(0).pipes.returned.len() as u64, events[0].1);
        assert!(c.host(0).pipes.returned.iter().all(|(to, data)| *to == 1 && data.len() == 9));
        let doubtful = c.host(0).engine.send_row(node(1)).unwrap().in_doubt;
        assert_eq!(doubtful + events[0].1, 2);
        c.read(0, 0, 2, false);
        let engine = &c.host(0).engine;
        let own = engine.send_row(node(0)).unwrap().space.real();
        assert_eq!(
            engine.free_blocks() + own + c.setup.control,
            c.setup.blocks(0),
            "all its blocks are free"
        );
        c.settle();
    }
}

/// Each event also counted those of all failures before it.
#[test]
fn a_peer_that_fails_again_is_reported_with_what_it_did_not_get_this_time() {
    let mut c = setup(Links::Posted).ready();
    c.oracle.borrow_mut().lossy = true;
    for sent in [2, 0, 1] {
        c.host(0).pipes.events.clear();
        c.apply(Operation::Gate { from: 0, to: 1, closed: true });
        (0..sent).for_each(|_| ship(&mut c, 0, 1));
        c.cut(0, 1);
        c.apply(Operation::Gate { from: 0, to: 1, closed: false });
        rounds(&mut c, 3);
        let failed = |e: &Event| match e {
            Event::PeerFailed { undelivered, .. } => Some(*undelivered),
            _ => None,
        };
        let reported: Vec<_> = c.host(0).pipes.events.iter().filter_map(failed).collect();
        assert_eq!(reported, [sent]);
        c.mend(0, 1);
        c.run(200, |c| {
            let reaches = |i: usize, peer: usize| !c.hosts[i].as_ref().unwrap().engine.has_failed(node(peer));
            reaches(0, 1) && reaches(1, 0)
        });
        c.read(0, 0, usize::MAX, false);
    }
    c.settle();
}

/// A host that ends takes back messages that have not left. Those that have left arrive, and so do those sent afterwards.
#[test]
fn what_waits_in_a_row_is_taken_back_and_nothing_else() {
    for links in BOTH {
        let mut c = Setup { capacity: 3, row: 8, initial: 8, extra: 8, ..setup(links) }.ready();
        c.apply(Operation::Gate { from: 0, to: 1, closed: true });
        (0..6).for_each(|_| ship(&mut c, 0, 1));
        c.poll(0);
        let waiting = c.host(0).engine.send_row(node(1)).unwrap().waiting;
        assert!((1..6).contains(&waiting), "{waiting}");
        c.oracle.borrow_mut().doubt(0, 1);
        c.host(0).engine.withdraw();
        assert_eq!(c.host(0).engine.send_row(node(1)).unwrap().waiting, 0);
        c.poll(0);
        assert_eq!(c.host(0).pipes.returned.len(), waiting as usize);
        assert!(c.host(0).pipes.returned.iter().all(|(to, data)| *to == 1 && data.len() == 9));
        assert!(!c.host(0).engine.has_failed(node(1)));
        c.read(0, 0, 8, false);
        c.apply(Operation::Gate { from: 0, to: 1, closed: false });
        rounds(&mut c, 3);
        assert_eq!(delivered(&c), 6 - u64::from(waiting));
    }
}

/// Segments that had arrived and were waiting for a private pipe recreated the mapping tuple after it had been removed.
#[test]
fn a_stream_of_a_failed_node_ends_after_its_segments_that_had_arrived() {
    for links in BOTH {
        let mut c = Setup { pipe: 1, ..setup(links) }.ready();
        ship(&mut c, 0, 0);
        c.poll(0);
        for _ in 0..2 {
            c.apply(Operation::Segment { node: 1, source: 0, to: 0, dest: 0, length: 5, last: false });
        }
        rounds(&mut c, 3);
        c.kill(1);
        let broken = |c: &Cluster| {
            let events = &c.hosts[0].as_ref().unwrap().pipes.events;
            events.iter().filter(|e| matches!(e, Event::StreamBroken { .. })).count()
        };
        for _ in 0..3 {
            rounds(&mut c, 3);
            assert_eq!((delivered(&c), broken(&c)), (delivered(&c), usize::from(delivered(&c) == 3)));
            c.read(0, 0, 1, false);
        }
        assert_eq!((delivered(&c), broken(&c)), (3, 1));
        c.settle();
    }
}

/// Its beginning arrived after the link had failed, and nobody ended it.
#[test]
fn a_stream_that_begins_on_a_link_that_has_failed_ends() {
    for links in BOTH {
        let mut c = setup(links).ready();
        c.oracle.borrow_mut().lossy = true;
        let id = c.host(1).engine.links.id(node(0));
        c.host(1).engine.schedule_link_failure(id);
        c.poll(1);
        assert!(c.host(1).engine.has_failed(node(0)));
        c.apply(Operation::Segment { node: 0, source: 0, to: 1, dest: 0, length: 5, last: false });
        c.poll(0);
        c.poll(1);
        let broken = |e: &&Event| matches!(e, Event::StreamBroken { .. });
        assert_eq!((delivered(&c), c.host(1).engine.stream_mappings().count()), (1, 0));
        assert_eq!(c.host(1).pipes.events.iter().filter(broken).count(), 1);
        c.close();
    }
}

/// Nobody ended it, since the link was up again when the last of its segments found room.
#[test]
fn a_stream_ends_though_its_link_is_up_again_before_its_segments_are_read() {
    let mut c = Setup { pipe: 1, ..setup(Links::Posted) }.ready();
    c.oracle.borrow_mut().lossy = true;
    let begin = |c: &mut Cluster, source, segments| {
        for _ in 0..segments {
            c.apply(Operation::Segment { node: 1, source, to: 0, dest: 0, length: 5, last: false });
        }
        rounds(c, 3);
    };
    begin(&mut c, 0, 2);
    c.net.borrow_mut().cut(0, 1);
    rounds(&mut c, 3);
    c.net.borrow_mut().mend(0, 1);
    c.run(200, |c| {
        let reaches = |i: usize, peer: usize| !c.hosts[i].as_ref().unwrap().engine.has_failed(node(peer));
        reaches(0, 1) && reaches(1, 0)
    });
    // From the new link, behind those of the old one.
    begin(&mut c, 1, 1);
    for _ in 0..4 {
        c.read(0, 0, 1, false);
        rounds(&mut c, 3);
    }
    let broken = |e: &Event| match e {
        Event::StreamBroken { mapping } => Some(mapping.number.0),
        _ => None,
    };
    let ended: Vec<_> = c.host(0).pipes.events.iter().filter_map(broken).collect();
    assert_eq!((delivered(&c), &ended[..]), (3, &[1][..]));
    assert_eq!(c.host(0).engine.stream_mappings().count(), 1);
    c.settle();
}

/// A newly admitted node accepts data from a peer before it has heard that it may send there itself.
#[test]
fn a_stream_ends_when_its_link_fails_before_its_reader_may_send_by_it() {
    let mut c = Setup { nodes: 3, joining: Some(2), ..setup(Links::Posted) }.start();
    // Node 1's messages to node 2 wait, except for one block: that of the stream.
    c.apply(Operation::Busy { from: 1, to: 2, times: u32::MAX });
    let mut c = c.ready();
    c.oracle.borrow_mut().lossy = true;
    assert!(c.host(2).engine.has_failed(node(1)) && !c.host(1).engine.has_failed(node(2)));
    c.apply(Operation::Busy { from: 1, to: 2, times: 0 });
    // They find that their settings agree, and node 1 gets credit, but they cannot report yet that node 2 is a member.
    for (node, capacity) in [(1, 1), (2, 64), (2, 64)] {
        c.net.borrow_mut().capacity = capacity;
        c.poll(node);
    }
    c.apply(Operation::Busy { from: 1, to: 2, times: u32::MAX });
    c.poll(1);
    c.apply(Operation::Busy { from: 1, to: 2, times: 0 });
    c.apply(Operation::Segment { node: 1, source: 0, to: 2, dest: 0, length: 5, last: false });
    c.apply(Operation::Busy { from: 1, to: 2, times: u32::MAX });
    c.poll(1);
    c.poll(2);
    assert!(c.host(2).engine.has_failed(node(1)));
    assert_eq!((delivered(&c), c.host(2).engine.stream_mappings().count()), (1, 1));
    c.net.borrow_mut().cut(1, 2);
    c.poll(2);
    let broken = |e: &&Event| matches!(e, Event::StreamBroken { mapping } if mapping.source == node(1));
    assert_eq!(c.host(2).pipes.events.iter().filter(broken).count(), 1);
    assert_eq!(c.host(2).engine.stream_mappings().count(), 0);
    c.settle();
}

/// A node that had lost its links to them earlier did not hear of it, and waited for a quorum forever.
#[test]
fn a_node_decides_alone_though_the_others_ended_while_their_links_were_down() {
    let mut c = Setup { nodes: 3, ..setup(Links::Posted) }.ready();
    for peer in [1, 2] {
        c.cut(0, peer);
    }
    c.poll(0);
    for peer in [1, 2] {
        c.kill(peer);
    }
    c.run(400, |c| c.hosts[0].as_ref().is_some_and(|host| host.engine.master() == Some(node(0))));
    c.settle();
}

#[test]
fn a_writer_that_fills_a_block_for_a_failed_peer_can_submit_it() {
    let mut c = setup(Links::InPlace).ready();
    push(&mut c, 0, 1, false);
    c.apply(Operation::Send { node: 0, source: 0, to: 1, dest: 0, length: 3 });
    c.kill(1);
    rounds(&mut c, 3);
    c.submit(0, 1, false);
    assert_eq!(c.host(0).engine.counters().undelivered, 2);
    c.settle();
}

/// Blocks with returned messages are counted until they are read.
#[test]
fn what_came_back_and_is_not_read_is_counted() {
    let mut c = setup(Links::InPlace).ready();
    for _ in 0..2 {
        push(&mut c, 0, 1, false);
        c.submit(0, 1, false);
    }
    assert_eq!(c.host(0).engine.unread_returns(node(1)), 0);
    c.kill(1);
    rounds(&mut c, 3);
    let unread = c.host(0).engine.unread_returns(node(1));
    assert!(unread > 0 && unread <= 2, "{unread}");
    c.read(0, 0, usize::MAX, false);
    assert_eq!(c.host(0).engine.unread_returns(node(1)), 0);
    c.settle();
}

/// Messages that were on the link when it failed come back; those sent after it is up again arrive, however often that happens,
/// even if readers and writers keep earlier blocks.
#[test]
fn a_link_that_is_up_again_carries_messages_and_has_all_its_credit() {
    let mut c = setup(Links::Posted).ready();
    c.oracle.borrow_mut().lossy = true;
    for round in 0..5 {
        // More than the window, in both directions; one block stays with its reader.
        for _ in 0..c.setup.initial + 1 {
            for (from, to) in [(0, 1), (1, 0)] {
                if c.host(from).engine.open(node(to)).map(|block| c.host(from).engine.submit(block)).is_ok() {
                    ship(&mut c, from, to);
                }
            }
        }
        rounds(&mut c, 2);
        c.read(1, 0, 1, true);
        c.net.borrow_mut().cut(0, 1);
        rounds(&mut c, 2);
        assert_eq!(c.host(0).engine.open(node(1)).unwrap_err(), OpenError::PeerFailed(node(1)));
        let returned = c.host(0).pipes.returned.len() as u64;
        assert_eq!(returned, c.host(0).engine.counters().undelivered, "round {round}");
        c.net.borrow_mut().mend(0, 1);
        // The master has declared node 1 down, and readmits it.
        c.run(200, |c| {
            let members = |h: &Host| (0..2).all(|i| h.engine.agreement().is_member(node(i)));
            c.hosts
                .iter()
                .flatten()
                .all(|h| members(h) && !h.engine.has_failed(node(0)) && !h.engine.has_failed(node(1)))
        });
        rounds(&mut c, 4);
        let restored = |e: &&Event| matches!(e, Event::PeerRestored { peer } if *peer == node(1));
        assert_eq!(c.host(0).pipes.events.iter().filter(restored).count(), round + 1);
        for i in [0, 1] {
            c.read(i, 0, usize::MAX, false);
        }
        // As many as fit the window, repeatedly, while the earlier ones are kept.
        for _ in 0..3 * c.setup.initial {
            let before = delivered(&c);
            ship(&mut c, 0, 1);
            ship(&mut c, 1, 0);
            rounds(&mut c, 4);
            assert_eq!(delivered(&c), before + 2, "round {round}");
            for i in [0, 1] {
                c.read(i, 0, usize::MAX, false);
            }
            rounds(&mut c, 2);
        }
        if round == 2 {
            c.release(1);
        }
    }
    c.release(1);
    for (i, peer) in [(0, 1), (1, 0)] {
        let row = c.host(i).engine.recv_row(node(peer)).unwrap();
        assert_eq!(row.space.real(), c.setup.initial, "what readers kept of old links has gone");
    }
    let asked = [0, 1].map(|i| c.host(i).engine.request_quiescence());
    rounds(&mut c, 20);
    assert!((0..2).all(|i| c.host(i).engine.is_quiescent(asked[i])));
    c.settle();
}

/// Its reader has lost the stream, although segments sent now do arrive.
#[test]
fn a_writer_learns_that_its_link_failed_between_two_segments() {
    let mut c = setup(Links::Posted).ready();
    let part = part(0, 0);
    let (group, number) = c.host(0).engine.open_stream(part, node(1)).unwrap();
    let other = c.host(0).engine.open_stream(part, node(0)).unwrap();
    assert_eq!(c.host(0).engine.stream_state((group, number)), StreamState::Established);
    c.cut(0, 1);
    rounds(&mut c, 3);
    c.mend(0, 1);
    rounds(&mut c, 9);
    let engine = &mut c.host(0).engine;
    assert!(!engine.has_failed(node(1)));
    assert_eq!(engine.stream_state((group, number)), StreamState::Disconnected, "stream {number:?}");
    assert_eq!(engine.stream_state(other), StreamState::Established, "a stream to another node");
    engine.close_stream((group, number)).unwrap();
    engine.close_stream(other).unwrap();
    let next = engine.open_stream(part, node(1)).unwrap();
    assert_eq!(next.0, group, "the pipe is free");
    assert_eq!(engine.stream_state(next), StreamState::Established);
    engine.close_stream(next).unwrap();
    c.settle();
}

/// Its own row grew by the blocks that the links had posted, so they could not post any when they were up again.
#[test]
fn a_node_whose_links_fail_before_it_is_let_in_keeps_room_for_them() {
    let setup = Setup { nodes: 3, joining: Some(2), extra: 0, row: 32, ..setup(Links::Posted) };
    let mut c = Setup { policy: Policy::Glutton, ..setup }.start();
    for peer in [0, 1] {
        c.net.borrow_mut().cut(peer, 2);
    }
    c.poll(2);
    let engine = &mut c.host(2).engine;
    let blocks: Vec<_> = core::iter::from_fn(|| engine.open(node(2)).ok()).collect();
    for peer in [0, 1] {
        c.poll(peer);
        c.mend(peer, 2);
    }
    let mut c = c.ready();
    for block in blocks {
        c.host(2).engine.submit(block);
    }
    c.settle();
}
