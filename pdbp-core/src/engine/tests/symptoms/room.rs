//! Space for messages longer than a block: reserved before they leave, first come first served, and freed whatever happens.

use std::vec;

use super::super::harness::{Cluster, Host, Links, Operation, Setup, node, part};
use super::{BOTH, rounds, setup, ship};
use crate::OpenError;
use crate::cdu::{CduClass, Route};
use crate::engine::RoomError;
use crate::engine::link::LinkState;
use crate::id::PartId;
use crate::mesp::Control;

/// Two nodes, of which node 1 reassembles this many bytes.
fn limited(c: &mut Cluster, bytes: u64) {
    c.host(1).engine.limit_assembly(bytes);
}

fn ask(c: &mut Cluster, from: PartId, to: PartId, number: u32, bytes: u64) -> Result<bool, RoomError> {
    let mut answer = Ok(false);
    for _ in 0..20 {
        answer = c.host(from.node().index()).engine.request_room(from, to, number, bytes);
        if answer != Ok(false) {
            break;
        }
        rounds(c, 2);
    }
    answer
}

#[test]
fn who_asks_later_waits_until_the_message_before_was_dropped() {
    for links in BOTH {
        let mut c = setup(links).ready();
        limited(&mut c, 100);
        let (first, second, to) = (part(0, 0), part(0, 1), part(1, 0));
        assert_eq!(ask(&mut c, first, to, 1, 60), Ok(true));
        assert_eq!(ask(&mut c, second, to, 1, 60), Ok(false));
        // A shorter one waits behind it, so that long ones get their turn.
        assert_eq!(ask(&mut c, part(1, 1), to, 7, 10), Ok(false));
        let room = c.host(1).engine.take_room(to, first, 1, 60).expect("it was granted");
        assert!(c.host(1).engine.take_room(to, first, 1, 60).is_none(), "taken twice");
        assert!(c.host(1).engine.take_room(to, second, 1, 60).is_none(), "taken without a grant");
        c.host(0).engine.end_room(first, true);
        assert_eq!(c.host(1).engine.assembly_in_use(), 60);
        c.host(1).engine.release_room(room);
        assert_eq!(ask(&mut c, second, to, 1, 60), Ok(true));
        assert_eq!(ask(&mut c, part(1, 1), to, 7, 10), Ok(true));
        assert_eq!(c.host(1).engine.assembly_in_use(), 70);
        assert!(c.host(1).engine.take_room(to, second, 1, 61).is_none(), "more than was asked for");
        c.close();
    }
}

#[test]
fn a_message_longer_than_the_limit_of_its_receiver_is_refused_at_its_sender() {
    for links in BOTH {
        let mut c = setup(links).ready();
        limited(&mut c, 100);
        assert_eq!(ask(&mut c, part(0, 0), part(1, 0), 1, 101), Err(RoomError::TooLong { limit: 100 }));
        assert_eq!(ask(&mut c, part(0, 0), part(1, 0), 2, 100), Ok(true));
        c.close();
    }
}

/// An inbox cannot read it, so without a limit its sender would believe that it had arrived.
#[test]
fn a_message_of_more_bytes_than_can_be_counted_is_refused_where_there_is_no_limit() {
    for links in BOTH {
        let mut c = setup(links).ready();
        let limit = u64::from(u32::MAX);
        assert_eq!(ask(&mut c, part(0, 0), part(1, 0), 1, limit + 1), Err(RoomError::TooLong { limit }));
        assert_eq!(ask(&mut c, part(0, 0), part(1, 0), 2, limit), Ok(true));
        c.close();
    }
}

#[test]
fn what_a_sender_gives_up_before_its_first_segment_is_room_for_others() {
    for links in BOTH {
        let mut c = setup(links).ready();
        limited(&mut c, 100);
        let (first, second, to) = (part(0, 0), part(0, 1), part(1, 0));
        assert_eq!(ask(&mut c, first, to, 1, 60), Ok(true));
        assert_eq!(ask(&mut c, second, to, 1, 60), Ok(false));
        c.host(0).engine.end_room(first, false);
        rounds(&mut c, 10);
        // As the inbox does when it reads that the message was given up.
        let room = c.host(1).engine.take_room(to, first, 1, 0).expect("it was granted and not begun");
        c.host(1).engine.release_room(room);
        assert_eq!(ask(&mut c, second, to, 1, 60), Ok(true));
        assert_eq!(c.host(1).engine.assembly_in_use(), 60);
        // And it may ask for another one itself.
        assert_eq!(ask(&mut c, first, to, 2, 40), Ok(true));
        c.settle();
    }
}

#[test]
fn what_was_granted_to_a_node_that_fails_is_given_back() {
    for links in BOTH {
        let mut c = Setup { nodes: 3, ..setup(links) }.ready();
        limited(&mut c, 100);
        let to = part(1, 0);
        assert_eq!(ask(&mut c, part(0, 0), to, 1, 60), Ok(true));
        assert_eq!(ask(&mut c, part(0, 1), to, 1, 60), Ok(false));
        assert_eq!(ask(&mut c, part(2, 0), to, 1, 60), Ok(false));
        c.kill(0);
        rounds(&mut c, 20);
        // As the part's inbox does once it has read everything that had arrived.
        c.host(1).engine.lose_rooms(to, node(0));
        assert_eq!(ask(&mut c, part(2, 0), to, 1, 60), Ok(true), "who asked in between is gone too");
        assert_eq!(c.host(1).engine.assembly_in_use(), 60);
        c.close();
    }
}

#[test]
fn what_is_granted_to_a_node_that_is_back_stays_when_its_reader_comes_to_the_end_of_the_link() {
    let mut c = setup(Links::Posted).ready();
    limited(&mut c, 100);
    let (from, to) = (part(0, 0), part(1, 0));
    assert_eq!(ask(&mut c, from, to, 1, 60), Ok(true));
    c.cut(0, 1);
    rounds(&mut c, 20);
    c.mend(0, 1);
    rounds(&mut c, 20);
    assert_eq!(ask(&mut c, from, to, 1, 60), Err(RoomError::PeerFailed(node(1))));
    assert_eq!(ask(&mut c, from, to, 2, 40), Ok(true));
    // The part has not read anything until now.
    c.host(1).engine.lose_rooms(to, node(0));
    assert_eq!(c.host(1).engine.assembly_in_use(), 40);
    let room = c.host(1).engine.take_room(to, from, 2, 40).expect("it was granted");
    c.host(1).engine.release_room(room);
    c.host(0).engine.end_room(from, true);
    c.close();
}

/// A process that takes the place of another counts its messages from the start again. One of the same number, which the program had
/// not dropped or another part had not been able to read, was taken for the new one: the sender was told that there was room, and
/// what it sent was discarded.
#[test]
fn a_message_of_the_next_process_in_a_place_gets_room_though_an_earlier_one_had_its_number() {
    for (begins, reader) in [(true, 0), (true, 1), (false, 1)] {
        let mut c = setup(Links::Posted).ready();
        limited(&mut c, 100);
        let (from, to, next) = (part(0, 0), part(1, 0), part(1, reader));
        assert_eq!(ask(&mut c, from, to, 1, 50), Ok(true));
        let kept = begins.then(|| c.host(1).engine.take_room(to, from, 1, 50).expect("it was granted"));
        c.host(0).engine.end_room(from, true);
        c.cut(0, 1);
        rounds(&mut c, 20);
        c.mend(0, 1);
        rounds(&mut c, 20);
        assert_eq!(ask(&mut c, from, next, 1, 40), Ok(true));
        assert_eq!(c.host(1).engine.assembly_in_use(), 90);
        let room = c.host(1).engine.take_room(next, from, 1, 40).expect("it was granted");
        c.host(0).engine.end_room(from, true);
        c.host(1).engine.release_room(room);
        kept.into_iter().for_each(|room| c.host(1).engine.release_room(room));
        c.host(1).engine.lose_rooms(to, node(0));
        assert_eq!(c.host(1).engine.assembly_in_use(), 0);
        c.close();
    }
}

/// It would be granted space that nobody takes.
#[test]
fn a_request_that_is_repeated_and_heard_when_its_message_arrives_is_none_for_another() {
    let mut c = setup(Links::Posted).ready();
    limited(&mut c, 100);
    let (from, to) = (part(0, 0), part(1, 0));
    // The answer waits behind a control block that does not leave, and the second request does not leave before it has come.
    c.apply(Operation::Busy { from: 1, to: 0, times: u32::MAX });
    c.host(1).engine.request_quiescence();
    c.poll(1);
    assert_eq!(c.host(0).engine.request_room(from, to, 1, 40), Ok(false));
    rounds(&mut c, 20);
    assert_eq!(c.host(1).engine.assembly_in_use(), 40);
    c.apply(Operation::Busy { from: 0, to: 1, times: u32::MAX });
    c.apply(Operation::Wait { nanos: 10_000_000 });
    c.poll(0);
    assert_eq!(c.host(0).engine.request_room(from, to, 1, 40), Ok(false));
    c.apply(Operation::Busy { from: 1, to: 0, times: 0 });
    rounds(&mut c, 4);
    assert_eq!(c.host(0).engine.request_room(from, to, 1, 40), Ok(true));
    let room = c.host(1).engine.take_room(to, from, 1, 40).expect("it was granted");
    c.apply(Operation::Busy { from: 0, to: 1, times: 0 });
    rounds(&mut c, 20);
    assert_eq!(c.host(1).engine.assembly_in_use(), 40);
    c.host(0).engine.end_room(from, true);
    c.host(1).engine.release_room(room);
    assert_eq!(c.host(1).engine.assembly_in_use(), 0);
    c.close();
}

/// It was on the next link as well, and so another message of that number had its answer before there was room for it.
#[test]
fn an_answer_that_did_not_leave_before_its_link_failed_does_not_leave_later() {
    let mut c = setup(Links::Posted).ready();
    limited(&mut c, 100);
    let (from, to) = (part(0, 0), part(1, 0));
    // Node 1 has a control block for node 0 that does not leave, and so no other.
    c.apply(Operation::Busy { from: 1, to: 0, times: u32::MAX });
    c.host(1).engine.request_quiescence();
    c.poll(1);
    assert_eq!(c.host(0).engine.request_room(from, to, 1, 60), Ok(false));
    rounds(&mut c, 4);
    assert_eq!(c.host(1).engine.assembly_in_use(), 60);
    c.apply(Operation::Busy { from: 1, to: 0, times: 0 });
    c.cut(0, 1);
    rounds(&mut c, 20);
    c.mend(0, 1);
    rounds(&mut c, 20);
    // As the next process in the place of node 0: the first message of its part, and one that gets an answer.
    c.host(0).engine.end_room(from, true);
    assert_eq!(ask(&mut c, from, to, 1, 60), Ok(false), "the part has not read that the link failed");
    assert_eq!(ask(&mut c, part(0, 1), to, 1, 101), Err(RoomError::TooLong { limit: 100 }));
    assert_eq!(ask(&mut c, from, to, 1, 60), Ok(false));
    c.host(1).engine.lose_rooms(to, node(0));
    assert_eq!(ask(&mut c, from, to, 1, 60), Ok(true));
    c.close();
}

/// The first answer had arrived, and so had the message; the second one went to the next process.
#[test]
fn a_repeated_answer_that_did_not_leave_before_its_link_failed_does_not_leave_later() {
    let mut c = setup(Links::Posted).ready();
    limited(&mut c, 100);
    let (from, to) = (part(0, 0), part(1, 0));
    assert_eq!(c.host(0).engine.request_room(from, to, 1, 60), Ok(false));
    c.apply(Operation::Gate { from: 1, to: 0, closed: true });
    c.poll(0);
    c.poll(1);
    c.poll(1);
    assert_eq!(c.host(1).engine.assembly_in_use(), 60);
    // The answer is on its way; behind it, a control block does not leave.
    c.apply(Operation::Busy { from: 1, to: 0, times: u32::MAX });
    c.host(1).engine.request_quiescence();
    c.poll(1);
    c.apply(Operation::Wait { nanos: 10_000_000 });
    c.poll(0);
    assert_eq!(c.host(0).engine.request_room(from, to, 1, 60), Ok(false));
    c.poll(0);
    c.poll(1);
    c.apply(Operation::Gate { from: 1, to: 0, closed: false });
    c.poll(0);
    assert_eq!(c.host(0).engine.request_room(from, to, 1, 60), Ok(true), "the first answer has come");
    let kept = c.host(1).engine.take_room(to, from, 1, 60).expect("it was granted");
    c.host(0).engine.end_room(from, true);
    c.apply(Operation::Busy { from: 1, to: 0, times: 0 });
    c.cut(0, 1);
    rounds(&mut c, 20);
    c.mend(0, 1);
    rounds(&mut c, 20);
    assert_eq!(ask(&mut c, from, to, 1, 60), Ok(false), "the first message has not been dropped");
    assert_eq!(ask(&mut c, part(0, 1), to, 1, 101), Err(RoomError::TooLong { limit: 100 }));
    assert_eq!(ask(&mut c, from, to, 1, 60), Ok(false));
    c.host(1).engine.release_room(kept);
    assert_eq!(ask(&mut c, from, to, 1, 60), Ok(true));
    c.close();
}

#[test]
fn a_sender_whose_receiver_fails_is_told() {
    for links in BOTH {
        let mut c = setup(links).ready();
        limited(&mut c, 100);
        assert_eq!(ask(&mut c, part(0, 0), part(1, 0), 1, 60), Ok(true));
        c.kill(1);
        rounds(&mut c, 20);
        let lost = Err(RoomError::PeerFailed(node(1)));
        assert_eq!(ask(&mut c, part(0, 0), part(1, 0), 1, 60), lost);
        assert_eq!(ask(&mut c, part(0, 0), part(1, 0), 2, 60), lost);
        c.close();
    }
}

#[test]
fn a_part_that_gives_its_pipe_back_keeps_no_room() {
    for links in BOTH {
        let mut c = setup(links).ready();
        limited(&mut c, 100);
        let (to, other) = (part(1, 0), part(1, 1));
        assert_eq!(ask(&mut c, part(0, 0), to, 1, 60), Ok(true));
        assert_eq!(ask(&mut c, part(0, 1), to, 1, 60), Ok(false));
        c.host(1).engine.free(to).unwrap();
        // Arriving segments are discarded, and need no space.
        assert_eq!(ask(&mut c, part(0, 1), to, 1, 60), Ok(true));
        assert_eq!(c.host(1).engine.assembly_in_use(), 0);
        c.host(0).engine.end_room(part(0, 0), true);
        assert_eq!(ask(&mut c, part(0, 0), other, 2, 100), Ok(true));
        c.close();
    }
}

/// As when a relay passes the request on to the next life of a node, although the message was given up along with its first life.
#[test]
fn space_that_is_granted_for_a_message_given_up_before_is_given_back() {
    for links in BOTH {
        let mut c = setup(links).ready();
        limited(&mut c, 100);
        let (from, to) = (part(0, 0), part(1, 0));
        assert_eq!(ask(&mut c, from, to, 1, 10), Ok(true));
        c.host(0).engine.end_room(from, true);
        assert!(c.host(1).engine.take_room(to, from, 1, 10).is_some());
        let ends = |c: &mut Cluster| c.host(1).pipes.given_up.clone();
        for (number, ended) in [(1, vec![]), (2, vec![2]), (3, vec![2, 3])] {
            // A request that no part is waiting for.
            let request = [number, 0, 60, 0].map(u32::to_le_bytes).concat();
            let mut block = c.host(0).engine.open(node(1)).unwrap();
            block.push(Route::raw(CduClass::Command as u8, 0, from.local(), PartId::NODE), &request).unwrap();
            c.host(0).engine.submit(block);
            rounds(&mut c, 10);
            assert_eq!(ends(&mut c), ended, "message 1 was sent, the others were not");
            if let Some(room) = c.host(1).engine.take_room(to, from, number, 0) {
                c.host(1).engine.release_room(room);
            }
        }
        c.settle();
    }
}

/// A message was sent without space at its receiver, which discarded it, or was refused as too long.
#[test]
fn only_the_receiver_of_a_message_says_whether_there_is_room_for_it() {
    let mut c = Setup { nodes: 3, ..setup(Links::InPlace) }.ready();
    // It counts what is misdirected.
    c.oracle.borrow_mut().lossy = true;
    limited(&mut c, 100);
    let (from, second, to) = (part(0, 0), part(0, 1), part(1, 0));
    assert_eq!(ask(&mut c, second, to, 1, 60), Ok(true));
    assert_eq!(ask(&mut c, from, to, 7, 60), Ok(false));
    for limit in [0, 1] {
        let answer = Control::Room { to: from, number: 7, dest: to, limit };
        let Host { engine, pipes, .. } = c.host(0);
        engine.handle_control(engine.links.id(node(2)), answer, pipes);
        assert_eq!(engine.request_room(from, to, 7, 60), Ok(false), "node 2 is not asked");
    }
    assert_eq!(c.host(0).engine.counters().misdirected, 2);
    let room = c.host(1).engine.take_room(to, second, 1, 60).expect("it was granted");
    c.host(1).engine.release_room(room);
    c.host(0).engine.end_room(second, true);
    assert_eq!(ask(&mut c, from, to, 7, 60), Ok(true));
    let room = c.host(1).engine.take_room(to, from, 7, 60).expect("it was granted");
    c.host(1).engine.release_room(room);
    c.host(0).engine.end_room(from, true);
    c.close();
}

/// What the node itself receives may fill the table in which it remembers messages that it gave up.
#[test]
fn a_receiver_learns_of_a_message_given_up_that_its_sender_has_no_room_to_remember() {
    let mut c = Setup { parts: 4, ..setup(Links::InPlace) }.ready();
    let mut rooms = vec![];
    for number in 1..3 {
        for from in [part(1, 0), part(1, 1)] {
            assert_eq!(ask(&mut c, from, part(0, 0), number, 10), Ok(true));
            rooms.push(c.host(0).engine.take_room(part(0, 0), from, number, 10).expect("it was granted"));
            c.host(1).engine.end_room(from, true);
        }
    }
    limited(&mut c, 100);
    let (from, to) = (part(0, 1), part(1, 0));
    assert_eq!(ask(&mut c, from, to, 1, 100), Ok(true));
    c.host(0).engine.end_room(from, false);
    assert_eq!(c.host(0).engine.request_room(from, to, 2, 100), Ok(false), "its end has not left");
    rounds(&mut c, 10);
    assert_eq!(c.host(1).pipes.given_up, [1]);
    // As the inbox does when it reads that.
    let room = c.host(1).engine.take_room(to, from, 1, 0).expect("it was granted and not begun");
    c.host(1).engine.release_room(room);
    assert_eq!(ask(&mut c, from, to, 2, 100), Ok(true));
    c.host(0).engine.end_room(from, true);
    rooms.into_iter().for_each(|room| c.host(0).engine.release_room(room));
    c.close();
}

#[test]
fn a_request_that_waits_is_refused_once_the_limit_is_lower_than_that() {
    for links in BOTH {
        let mut c = setup(links).ready();
        limited(&mut c, 100);
        let (first, second, to) = (part(0, 0), part(0, 1), part(1, 0));
        assert_eq!(ask(&mut c, first, to, 1, 60), Ok(true));
        assert_eq!(ask(&mut c, second, to, 1, 60), Ok(false));
        assert_eq!(ask(&mut c, part(1, 1), to, 1, 40), Ok(false));
        limited(&mut c, 50);
        assert_eq!(ask(&mut c, second, to, 1, 60), Err(RoomError::TooLong { limit: 50 }));
        assert_eq!(ask(&mut c, part(1, 1), to, 1, 40), Ok(false));
        let room = c.host(1).engine.take_room(to, first, 1, 60).expect("it was granted");
        c.host(1).engine.release_room(room);
        c.host(0).engine.end_room(first, true);
        assert_eq!(ask(&mut c, part(1, 1), to, 1, 40), Ok(true));
        assert_eq!(c.host(1).engine.assembly_in_use(), 40);
        c.close();
    }
}

#[test]
fn a_receiver_to_which_there_is_no_room_is_told_later_of_a_message_given_up() {
    for links in BOTH {
        let mut c = setup(links).ready();
        limited(&mut c, 100);
        let (from, to) = (part(0, 0), part(1, 0));
        assert_eq!(ask(&mut c, from, to, 1, 60), Ok(true));
        for _ in 0..20 {
            ship(&mut c, 0, 1);
            rounds(&mut c, 2);
        }
        assert_eq!(c.host(0).engine.open(node(1)).unwrap_err(), OpenError::WouldBlock);
        c.host(0).engine.end_room(from, false);
        rounds(&mut c, 10);
        assert!(c.host(1).pipes.given_up.is_empty());
        c.read(1, 0, 20, false);
        rounds(&mut c, 10);
        assert_eq!(c.host(1).pipes.given_up, [1]);
        let room = c.host(1).engine.take_room(to, from, 1, 0).expect("it was granted and not begun");
        c.host(1).engine.release_room(room);
        assert_eq!(c.host(1).engine.assembly_in_use(), 0);
        c.settle();
    }
}

/// It waited for space although nobody was left to use it, and then kept that.
#[test]
fn a_request_over_a_link_that_fails_before_it_is_up_gets_no_space() {
    let mut c = setup(Links::Posted).ready();
    limited(&mut c, 100);
    let (first, to) = (part(1, 1), part(1, 0));
    assert_eq!(ask(&mut c, first, to, 1, 60), Ok(true));
    assert_eq!(ask(&mut c, part(0, 0), to, 1, 60), Ok(false));
    // As if it had come before the peer's welcome.
    let engine = &mut c.host(1).engine;
    let link = engine.links.to_mut(node(0)).expect("a link to each node");
    link.state = LinkState::Connecting { agreed: true, member: true, welcome: false };
    c.cut(0, 1);
    rounds(&mut c, 4);
    let engine = &mut c.host(1).engine;
    let room = engine.take_room(to, first, 1, 60).expect("it was granted");
    engine.release_room(room);
    rounds(&mut c, 4);
    assert_eq!(c.host(1).engine.assembly_in_use(), 0);
    c.close();
}
