//! Bad input and failures: everybody is told, by name, and nobody waits forever.

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use super::world::World;
use crate::collective::{
    Call, Cause, Element, Fault, HEADER, Kind, Member, MemberStorage, Op, Refused, Running, StartError,
    Tagged,
};

fn start_all(world: &mut World, call: impl Fn(usize) -> Call) {
    let members = world.members.len();
    for rank in 0..members {
        let call = call(rank);
        let (input, output) = call.lengths(members, rank).unwrap();
        world.start(rank, &call, vec![0; input], vec![0; output]).unwrap();
    }
    world.run();
}

/// Every pair of calls that differ in one respect.
#[test]
fn members_that_call_different_things_are_told_so_and_all_others_with_them() {
    let usual = Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 400);
    let others = [
        Call { op: Some(Op::Max), ..usual },
        Call { element: Element::I32, ..usual },
        Call { bytes: 404, ..usual },
        Call { kind: Kind::ReduceScatter, ..usual },
        Call::reducing(Kind::Reduce, 2, Element::U32, Op::Sum, 400),
        Call::moving(Kind::Broadcast, 1, 400),
        Call::moving(Kind::Barrier, 0, 0),
        Call::moving(Kind::AllToAll, 0, 400),
    ];
    for members in 2..=9 {
        for (i, other) in others.into_iter().enumerate().filter(|(_, other)| other.root < members) {
            let mut world = World::new(members, 64, i as u64);
            let odd = i % members;
            start_all(&mut world, |rank| if rank == odd { other } else { usual });
            world.announce_wait();
            world.run();
            // Members that had done their part before find out at their next call.
            let next = Call::moving(Kind::Barrier, 0, 0);
            for rank in (0..members).filter(|rank| world.members[*rank].running.is_none()).collect::<Vec<_>>()
            {
                if world.members[rank].ended == Some(Ok(())) {
                    world.start(rank, &next, Vec::new(), Vec::new()).unwrap();
                }
            }
            world.run();
            let mut met = 0;
            for (rank, fault) in world.faults().into_iter().enumerate() {
                match fault {
                    Some(Fault::Mismatch { rank: with, theirs, ours, .. }) => {
                        met += 1;
                        assert!(rank == odd || with == odd, "{with} and {rank}");
                        assert_ne!(theirs, ours);
                        let says = fault.unwrap().to_string();
                        let names = [theirs, ours].map(|call| call.to_string());
                        assert!(names.iter().all(|name| says.contains(name)), "{says}");
                    }
                    Some(Fault::Ended { cause: Cause::Mismatch, by }) => assert_ne!(by, rank),
                    fault => panic!("{other}, member {rank} of {members}: {fault:?}"),
                }
            }
            assert!(met > 0);
        }
    }
}

/// Each waits for the other, and no message would ever meet a different call.
#[test]
fn two_that_each_take_the_other_for_the_root_are_told_so() {
    let mut world = World::new(2, 64, 1);
    start_all(&mut world, |rank| Call::moving(Kind::Broadcast, 1 - rank, 8));
    assert_eq!(world.faults(), [None; 2], "nothing can be known yet");
    world.announce_wait();
    world.run();
    let faults = world.faults();
    assert!(faults.iter().any(|fault| matches!(fault, Some(Fault::Mismatch { .. }))), "{faults:?}");
    assert!(faults.iter().all(Option::is_some), "{faults:?}");
}

#[test]
fn who_called_something_else_with_nothing_to_send_is_found_at_the_next_call() {
    let mut world = World::new(2, 64, 1);
    start_all(&mut world, |rank| Call::moving(Kind::Broadcast, 0, 8 * rank));
    assert_eq!(world.members[0].ended, Some(Ok(())), "nothing to send: done");
    world.announce_wait();
    world.start(0, &Call::moving(Kind::Barrier, 0, 0), Vec::new(), Vec::new()).unwrap();
    world.run();
    let faults = world.faults();
    assert!(faults.iter().all(Option::is_some), "{faults:?}");
    assert!(faults.iter().flatten().any(|fault| matches!(fault, Fault::Mismatch { .. })), "{faults:?}");
}

/// It sends nothing in any of its calls, and waits in one that the other member has yet to make.
#[test]
fn who_waits_for_one_that_is_in_a_later_call_is_told_so() {
    let mut world = World::new(2, 64, 1);
    let nothing = Call::moving(Kind::Broadcast, 0, 0);
    for _ in 0..2 {
        world.start(0, &nothing, Vec::new(), Vec::new()).unwrap();
        world.run();
    }
    let reduce = Call::reducing(Kind::Reduce, 0, Element::U32, Op::Sum, 4);
    world.start(0, &reduce, Vec::new(), vec![0; 4]).unwrap();
    world.start(1, &Call { bytes: 8, ..nothing }, Vec::new(), vec![0; 8]).unwrap();
    world.run();
    world.announce_wait();
    world.run();
    let fault = world.faults()[1];
    let is_told = matches!(fault, Some(Fault::Mismatch { rank: 0, number: 3, theirs, own_number: 1, .. }) if theirs == reduce);
    assert!(is_told, "{fault:?}");
    assert_eq!(world.faults()[0], Some(Fault::Ended { by: 1, cause: Cause::Mismatch }));
}

/// A piece of a call that is over, which nobody will ever take: it arrived some calls later, or before this member made that call.
#[test]
fn who_called_something_else_some_calls_ago_is_told_so() {
    let nothing = Call::moving(Kind::Broadcast, 1, 0);
    let something = Call { bytes: 8, ..nothing };
    let barrier = Call::moving(Kind::Barrier, 0, 0);
    let is_told = |world: &World| {
        let fault = world.faults()[0];
        assert!(matches!(fault, Some(Fault::Mismatch { rank: 1, number: 1, .. })), "{fault:?}");
    };
    let mut world = World::new(3, 64, 1);
    for _ in 0..3 {
        world.start(0, &nothing, Vec::new(), Vec::new()).unwrap();
        world.run();
    }
    world.start(1, &something, Vec::new(), vec![0; 8]).unwrap();
    world.start(0, &barrier, Vec::new(), Vec::new()).unwrap();
    world.run();
    is_told(&world);

    let mut world = World::new(3, 64, 1);
    let tagged = |rank| Tagged { rank, tag: 0, bytes: 8 };
    // It waits for the third member meanwhile, and keeps what arrives from the second.
    world.start_tagged(0, None, Some(tagged(2))).unwrap();
    world.start(1, &something, Vec::new(), vec![0; 8]).unwrap();
    world.run();
    world.start_tagged(2, Some((tagged(0), vec![0; 8])), None).unwrap();
    world.run();
    assert_eq!(world.members[0].ended, Some(Ok(())));
    world.start(0, &nothing, Vec::new(), Vec::new()).unwrap();
    world.run();
    if world.members[0].ended == Some(Ok(())) {
        world.start(0, &barrier, Vec::new(), Vec::new()).unwrap();
        world.run();
    }
    is_told(&world);
}

#[test]
fn a_member_that_leaves_in_a_call_ends_it_everywhere_with_its_name() {
    for members in 2..=9 {
        for lost in [0, members - 1] {
            let mut world = World::new(members, 64, members as u64);
            let call = Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 4000);
            for rank in 0..members {
                world.start(rank, &call, Vec::new(), vec![0; 4000]).unwrap();
            }
            world.leave(lost);
            world.run();
            for (rank, fault) in world.faults().into_iter().enumerate().filter(|(rank, _)| *rank != lost) {
                assert_eq!(fault, Some(Fault::Lost { rank: lost }), "member {rank} of {members}");
            }
            let again = world.start(0, &call, Vec::new(), vec![0; 4000]);
            if lost != 0 {
                assert_eq!(again, Err(StartError::Ended(Fault::Lost { rank: lost })));
            }
        }
    }
}

#[test]
fn a_member_whose_process_is_gone_is_lost_for_all() {
    for members in 2..=9 {
        let mut world = World::new(members, 64, members as u64);
        world.kill(1);
        let call = Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 4000);
        for rank in (0..members).filter(|rank| *rank != 1) {
            world.start(rank, &call, Vec::new(), vec![0; 4000]).unwrap();
        }
        world.run();
        if world.faults()[0].is_none() {
            // Nobody had anything for this member: a host notices.
            world.notice(0, 1);
        }
        world.run();
        for (rank, fault) in world.faults().into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
            assert_eq!(fault, Some(Fault::Lost { rank: 1 }), "member {rank} of {members}");
        }
    }
}

/// A member that has done its part may leave; nobody needs it any more.
#[test]
fn a_member_that_leaves_after_its_last_call_does_no_harm() {
    let mut world = World::new(4, 64, 4);
    let call = Call::moving(Kind::Broadcast, 0, 1000);
    world.start(0, &call, Vec::new(), vec![7; 1000]).unwrap();
    for rank in 1..4 {
        world.start(rank, &call, Vec::new(), vec![0; 1000]).unwrap();
    }
    while world.members[0].running.is_some() {
        (0..4).for_each(|rank| world.poll(rank));
    }
    world.leave(0);
    world.run();
    for one in &world.members[1..] {
        assert_eq!((one.ended, &one.output), (Some(Ok(())), &vec![7; 1000]));
    }
}

#[test]
fn bytes_that_are_none_of_a_groups_end_it_with_the_name_of_the_sender() {
    let data = |kind: u8, bytes: usize, length: usize| {
        let mut message = vec![0; HEADER + length];
        // The number of the call, its root, kind and bytes, that it is data, and the sender.
        (message[0], message[4], message[6], message[17], message[18]) = (1, 1, kind, 1, 1);
        message[8..16].copy_from_slice(&(bytes as u64).to_le_bytes());
        message
    };
    let good = data(Kind::Broadcast as u8, 8, 8);
    let mut of_nobody = good.clone();
    of_nobody[18] = 3;
    let mut of_itself = good.clone();
    of_itself[18] = 0;
    let mut unknown = good.clone();
    unknown[17] = 77;
    for (what, message, by) in [
        ("nothing", Vec::new(), 0),
        ("less than a header", vec![1; HEADER - 1], 0),
        ("no member", of_nobody, 3),
        ("the member itself", of_itself, 0),
        ("no such message", unknown, 1),
        ("longer than a piece", data(Kind::Broadcast as u8, 8, 65), 1),
        ("no such call", data(77, 8, 8), 1),
        ("a piece of another length", data(Kind::Broadcast as u8, 8, 7), 1),
    ] {
        let mut world = World::new(2, 64, 1);
        let call = Call::moving(Kind::Broadcast, 1, 8);
        world.start(0, &call, Vec::new(), vec![0; 8]).unwrap();
        world.inject(1, 0, message);
        world.run();
        assert_eq!(world.faults()[0], Some(Fault::Garbled { rank: by }), "{what}");
    }
    let mut world = World::new(2, 64, 1);
    world.start(0, &Call::moving(Kind::Broadcast, 1, 8), Vec::new(), vec![0; 8]).unwrap();
    world.inject(1, 0, good);
    world.run();
    assert_eq!(world.faults()[0], None, "else this test would show nothing");
}

#[test]
fn more_than_the_window_allows_is_refused() {
    let mut world = World::new(3, 64, 1);
    world.start(0, &Call::moving(Kind::Broadcast, 2, 8), Vec::new(), vec![0; 8]).unwrap();
    let tagged = |tag| {
        let mut message = vec![0; HEADER];
        (message[0], message[6], message[17], message[18]) = (tag, Kind::Tagged as u8, 1, 1);
        message
    };
    (0..4).for_each(|tag| world.inject(1, 0, tagged(tag)));
    world.run();
    assert_eq!(world.faults()[0], None);
    world.inject(1, 0, tagged(9));
    world.run();
    assert_eq!(world.faults()[0], Some(Fault::Garbled { rank: 1 }));
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_sent() {
    let member = || Member::new(1, 3, 64, MemberStorage::allocate(3, 64)).unwrap();
    let refused = |call: Call, input, output| match Running::start(&call, &mut member(), input, output) {
        Err(StartError::Refused(refused)) => refused,
        other => panic!("{call}: {other:?}"),
    };
    let length = |what, bytes, needed| Refused::Length { what, bytes, needed };
    let sum = |kind, element, bytes| Call::reducing(kind, 0, element, Op::Sum, bytes);
    let moving = Call::moving;
    assert_eq!(refused(moving(Kind::Broadcast, 3, 8), 0, 8), Refused::Rank { rank: 3, members: 3 });
    assert_eq!(refused(moving(Kind::Gather, 1, 8), 8, 23), length("output", 23, 24));
    assert_eq!(refused(moving(Kind::Gather, 0, 8), 7, 0), length("input", 7, 8));
    assert_eq!(refused(moving(Kind::Scatter, 1, 8), 0, 8), length("input", 0, 24));
    assert_eq!(refused(moving(Kind::AllToAll, 0, 8), 24, 16), length("output", 16, 24));
    assert!(refused(moving(Kind::AllGather, 0, usize::MAX / 2), 1, 1).to_string().contains("block"));
    assert_eq!(refused(sum(Kind::Reduce, Element::U32, 6), 0, 6), length("data", 6, 4));
    let operation = Refused::Operation { op: Op::Sum, element: Element::Bytes };
    assert_eq!(refused(sum(Kind::AllReduce, Element::Bytes, 8), 0, 8), operation);
    let bits = Call::reducing(Kind::AllReduce, 0, Element::F64, Op::Xor, 8);
    assert!(refused(bits, 0, 8).to_string().contains("Xor is not defined for f64"));
    assert_eq!(refused(moving(Kind::Reduce, 0, 8), 0, 8), Refused::NoOperation { kind: Kind::Reduce });

    let end = |rank, bytes| Some(Tagged { rank, tag: 0, bytes });
    let tagged = |to, from| match Running::start_tagged(&mut member(), to, from) {
        Err(StartError::Refused(refused)) => refused,
        other => panic!("{other:?}"),
    };
    assert_eq!(tagged(end(3, 8), None), Refused::Rank { rank: 3, members: 3 });
    assert_eq!(tagged(end(1, 8), None), Refused::ToItself { rank: 1 });
    assert_eq!(tagged(end(0, 8), end(1, 8)), Refused::ToItself { rank: 1 });
    assert_eq!(tagged(end(1, 8), end(1, 4)), length("output", 4, 8));
}

#[test]
fn a_member_without_a_place_or_memory_is_refused() {
    let new = |rank, members, piece, storage| Member::new(rank, members, piece, storage).map(|_| ());
    assert_eq!(new(3, 3, 64, MemberStorage::allocate(3, 64)), Err(Refused::Rank { rank: 3, members: 3 }));
    assert!(new(0, 3, 65, MemberStorage::allocate(3, 64)).unwrap_err().to_string().contains("128"));
    assert!(new(0, 3, 0, MemberStorage::allocate(3, 64)).is_err());
    assert!(new(0, 3, 64, MemberStorage::allocate(2, 64)).is_err());
    assert!(new(0, 3, 128, MemberStorage::allocate(3, 64)).is_err());
}

/// A tagged message of a different length than the receiver expects.
#[test]
fn a_tagged_message_of_another_length_ends_the_group() {
    let mut world = World::new(2, 64, 1);
    world.start_tagged(0, Some((Tagged { rank: 1, tag: 4, bytes: 8 }, vec![0; 8])), None).unwrap();
    world.start_tagged(1, None, Some(Tagged { rank: 0, tag: 4, bytes: 12 })).unwrap();
    world.run();
    let fault = world.faults()[1];
    assert!(matches!(fault, Some(Fault::Mismatch { rank: 0, .. })), "{fault:?}");
    let says = fault.unwrap().to_string();
    assert!(says.contains("sent 8 bytes with tag 4") && says.contains("receives 12"), "{says}");
}
