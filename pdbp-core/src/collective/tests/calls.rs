//! Results against simple oracles, with messages arriving in any order.

use std::vec;
use std::vec::Vec;

use super::steps::calls;
use super::world::{Function, Random, World};
use crate::collective::{Call, Element, Fault, Kind, Left, Op, Running, StartError, Tagged, WINDOW};

/// A member's data: the call's input, and otherwise its output.
fn given(call: &Call, members: usize, rank: usize) -> (Vec<u8>, Vec<u8>) {
    let (input, output) = call.lengths(members, rank).unwrap();
    let value = |i: usize| (rank * 7919 + i * 31 + i / 251) as u8;
    let output_has = call.kind != Kind::Broadcast || rank == call.root;
    let output = (0..output).map(|i| if output_has { value(i) } else { 0xEE }).collect();
    ((0..input).map(value).collect(), output)
}

/// The expected result, for the bytes that are defined.
fn expected(call: &Call, members: usize, rank: usize) -> Option<(usize, Vec<u8>)> {
    let (bytes, root) = (call.bytes, call.root);
    let input = |rank| given(call, members, rank).0;
    let sum = || {
        let mut total = vec![0u32; bytes / 4];
        for rank in 0..members {
            let own = given(call, members, rank).1;
            for (total, value) in total.iter_mut().zip(own.chunks(4)) {
                *total = total.wrapping_add(u32::from_ne_bytes(value.try_into().unwrap()));
            }
        }
        total.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>()
    };
    let block = |of: Vec<u8>, rank: usize| of[rank * bytes..(rank + 1) * bytes].to_vec();
    match call.kind {
        Kind::Barrier | Kind::Tagged => None,
        Kind::Broadcast => Some((0, given(call, members, root).1)),
        Kind::Scatter => Some((0, block(input(root), rank))),
        Kind::Gather if rank != root => None,
        Kind::Gather | Kind::AllGather => Some((0, (0..members).flat_map(input).collect())),
        Kind::AllToAll => Some((0, (0..members).flat_map(|from| block(input(from), rank)).collect())),
        Kind::Reduce if rank != root => None,
        Kind::Reduce | Kind::AllReduce => Some((0, sum())),
        Kind::ReduceScatter => {
            let values = bytes / 4;
            let (each, more) = (values / members, values % members);
            let start = 4 * (rank * each + rank.min(more));
            let length = 4 * (each + usize::from(rank < more));
            Some((start, sum()[start..start + length].to_vec()))
        }
    }
}

fn check(world: &World, call: &Call, seed: u64) {
    let members = world.members.len();
    for (rank, one) in world.members.iter().enumerate() {
        assert_eq!(one.ended, Some(Ok(())), "{call}: member {rank} of {members}, seed {seed}");
        if let Some((start, bytes)) = expected(call, members, rank) {
            assert!(
                one.output[start..start + bytes.len()] == bytes,
                "{call}: member {rank} of {members}, seed {seed}"
            );
        }
    }
}

/// More than a member remembers, including calls that differ only in root or length.
#[test]
fn calls_that_come_again_and_again_give_the_same_each_time() {
    for members in 1..=6 {
        let moving = |kind, root, bytes| Call::moving(kind, root % members, bytes);
        let calls = [
            Call::moving(Kind::Barrier, 0, 0),
            Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 8),
            Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 12),
            moving(Kind::Broadcast, 0, 8),
            moving(Kind::Broadcast, 1, 8),
            moving(Kind::Broadcast, 1, 200),
            moving(Kind::Gather, 1, 8),
        ];
        // A single call, some that are remembered, and so many that each is forgotten before it is repeated.
        for (seed, count) in [1, 3, calls.len()].into_iter().enumerate() {
            let mut world = World::new(members, 64, seed as u64);
            for call in (0..3 * count).map(|i| calls[i % count]) {
                for rank in 0..members {
                    let (input, output) = given(&call, members, rank);
                    world.start(rank, &call, input, output).unwrap();
                }
                world.run();
                check(&world, &call, seed as u64);
                let (input, output) = call.lengths(members, 0).unwrap();
                let refused = world.start(0, &call, vec![0; input], vec![0; output + 1]);
                assert!(matches!(refused, Err(StartError::Refused(_))), "{call}");
            }
        }
    }
}

#[test]
fn every_call_gives_what_an_oracle_says() {
    for members in 1..=17 {
        for (i, call) in calls(members).into_iter().enumerate() {
            let seed = (members * 1000 + i) as u64;
            let piece = if call.bytes > 2000 { 1024 } else { [64, 256][i % 2].max(call.bytes / 5 / 64 * 64) };
            let mut world = World::new(members, piece, seed);
            for rank in 0..members {
                let (input, output) = given(&call, members, rank);
                world.start(rank, &call, input, output).unwrap();
            }
            world.run();
            check(&world, &call, seed);
        }
    }
}

/// Members begin their next call when they have done the last one, so some are far ahead.
#[test]
fn calls_follow_each_other_without_waiting_for_all() {
    for seed in 0..30u64 {
        let mut random = Random(seed + 1);
        let members = 2 + random.below(7);
        let all = calls(members);
        let all: Vec<Call> = all.into_iter().filter(|call| call.bytes <= 1000).collect();
        let sequence: Vec<Call> = (0..25).map(|_| all[random.below(all.len())]).collect();
        let mut world = World::new(members, 64, seed);
        let mut next = vec![0; members];
        let mut idle = 0;
        while next.iter().any(|next| *next <= sequence.len()) {
            let rank = world.random().below(members);
            let moved = world.net.moved;
            if world.members[rank].running.is_none() {
                if let Some(call) = next[rank].checked_sub(1).and_then(|last| sequence.get(last)) {
                    let one = &world.members[rank];
                    assert_eq!(one.ended, Some(Ok(())), "{call}, seed {seed}");
                    if let Some((start, bytes)) = expected(call, members, rank) {
                        assert!(one.output[start..start + bytes.len()] == bytes, "{call}, seed {seed}");
                    }
                }
                if let Some(call) = sequence.get(next[rank]) {
                    let (input, output) = given(call, members, rank);
                    world.start(rank, call, input, output).unwrap();
                }
                next[rank] = (next[rank] + 1).min(sequence.len() + 1);
            }
            world.poll(rank);
            idle = if moved == world.net.moved { idle + 1 } else { 0 };
            assert!(idle < 100_000, "nobody goes on, seed {seed}: {next:?}");
        }
    }
}

/// Floats whose sum depends on the order.
fn floats(seed: u64, rank: usize, count: usize) -> Vec<u8> {
    let mut random = Random(seed * 100 + rank as u64 + 1);
    let value =
        |random: &mut Random| (random.below(1 << 20) as f32 - 5e5) * 10f32.powi(random.below(9) as i32 - 4);
    (0..count).flat_map(|_| value(&mut random).to_ne_bytes()).collect()
}

#[test]
fn all_members_have_the_same_bits_in_every_run() {
    for members in 2..=17 {
        for count in [1, 33, 6000] {
            let call = Call::reducing(Kind::AllReduce, 0, Element::F32, Op::Sum, 4 * count);
            let mut first = None;
            for seed in 0..4 {
                let mut world = World::new(members, 1024, seed);
                for rank in 0..members {
                    world.start(rank, &call, Vec::new(), floats(7, rank, count)).unwrap();
                }
                world.run();
                let bits = first.get_or_insert_with(|| world.members[0].output.clone());
                for one in &world.members {
                    assert_eq!(one.ended, Some(Ok(())));
                    assert!(one.output == *bits, "{members} members, {count} values, seed {seed}");
                }
            }
        }
    }
}

/// The first value of each pair: neither commutative nor independent of which is on the left, so it shows the order.
const FIRST: Function = |into, from, left| {
    if left == Left::Other {
        into.copy_from_slice(from);
    }
};

/// In trees and by doubling, operands stay in rank order, counted from the root.
#[test]
fn a_function_of_the_program_gets_its_operands_in_order() {
    for members in 1..=17 {
        for (kind, root) in [(Kind::AllReduce, 0), (Kind::Reduce, 0), (Kind::Reduce, members - 1)] {
            let call = Call::reducing(kind, root, Element::Bytes, Op::Function, 100);
            let mut world = World::new(members, 64, 3);
            for rank in 0..members {
                world.members[rank].fold = Some(FIRST);
                world.start(rank, &call, Vec::new(), vec![rank as u8; 100]).unwrap();
            }
            world.run();
            for (rank, one) in world.members.iter().enumerate() {
                assert_eq!(one.ended, Some(Ok(())));
                if kind == Kind::AllReduce || rank == root {
                    assert_eq!(one.output, [root as u8; 100], "{call}, member {rank} of {members}");
                }
            }
        }
    }
}

#[test]
fn a_ring_of_long_messages_does_not_wait_in_a_circle() {
    for members in 1..=5 {
        let bytes = 20_000;
        let mut world = World::new(members, 64, 1);
        for rank in 0..members {
            let end = |rank| Tagged { rank: rank % members, tag: 9, bytes };
            let to = (end(rank + 1), vec![rank as u8; bytes]);
            world.start_tagged(rank, Some(to), Some(end(rank + members - 1))).unwrap();
        }
        world.run();
        for (rank, one) in world.members.iter().enumerate() {
            assert_eq!(one.ended, Some(Ok(())));
            assert_eq!(one.output, vec![((rank + members - 1) % members) as u8; bytes]);
        }
    }
}

/// Tagged messages are found by their tags, and are never confused with calls.
#[test]
fn messages_are_received_by_tag_beside_a_call() {
    let mut world = World::new(2, 256, 5);
    // A member that has done its call acknowledges if there is room then, otherwise in its next call.
    world.is_calm = true;
    let end = |rank, tag| Tagged { rank, tag, bytes: 10 };
    // Repeatedly: acknowledgements may not have been sent.
    for count in 1..=3 {
        for _ in 0..3 {
            let tags = &[1, 2, 2][..count];
            for &tag in tags {
                world.start_tagged(0, Some((end(1, tag), vec![tag as u8; 10])), None).unwrap();
                world.run();
                assert_eq!(world.members[0].ended, Some(Ok(())));
            }
            let call = Call::moving(Kind::Broadcast, 0, 4);
            world.start(0, &call, Vec::new(), vec![8; 4]).unwrap();
            world.start(1, &call, Vec::new(), vec![0; 4]).unwrap();
            world.run();
            assert_eq!((world.members[1].ended, &world.members[1].output), (Some(Ok(())), &vec![8; 4]));
            for &tag in tags.iter().rev() {
                world.start_tagged(1, None, Some(end(0, tag))).unwrap();
                world.run();
                assert_eq!(
                    (world.members[1].ended, &world.members[1].output),
                    (Some(Ok(())), &vec![tag as u8; 10])
                );
            }
        }
    }
}

/// A root that runs ahead is held back before it fills the others' memory.
#[test]
fn a_root_that_runs_ahead_waits_for_the_slowest() {
    let mut world = World::new(3, 64, 2);
    let call = Call::moving(Kind::Broadcast, 0, 64);
    let mut done = 0;
    while done < 100 {
        world.start(0, &call, Vec::new(), vec![done; 64]).unwrap();
        for _ in 0..100 {
            world.poll(0);
            world.poll(1);
            if world.members[1].running.is_none() {
                // Member 1 keeps up; member 2 never arrives.
                let _ = world.start(1, &call, Vec::new(), vec![0; 64]);
            }
        }
        if world.members[0].running.is_some() {
            break;
        }
        done += 1;
    }
    assert_eq!(done, crate::collective::WINDOW as u8, "as many broadcasts as the window has pieces");
    for _ in 0..=done {
        world.start(2, &call, Vec::new(), vec![0; 64]).unwrap();
        world.run();
        assert_eq!(world.members[2].ended, Some(Ok(())));
    }
    assert_eq!(world.members[2].output, [done; 64]);
}

/// All members have then received everything sent to them in earlier calls, so nobody sends acknowledgements.
#[test]
fn a_barrier_by_something_else_than_messages_opens_all_windows() {
    let mut world = World::new(2, 64, 3);
    world.is_calm = true;
    let call = Call::moving(Kind::Broadcast, 0, 64);
    for _ in 0..3 * WINDOW {
        for rank in 0..2 {
            world.start(rank, &call, Vec::new(), vec![7; 64]).unwrap();
        }
        world.run();
        assert!(world.members.iter().all(|one| one.ended == Some(Ok(()))));
        let numbers = world.members.iter_mut().map(|one| one.member.enter_barrier());
        assert_eq!(numbers.collect::<Vec<_>>(), vec![Some(world.members[0].member.number()); 2]);
        world.members.iter_mut().for_each(|one| one.member.leave_barrier());
    }
    let stats = world.members.iter().map(|one| one.member.stats());
    assert_eq!(stats.map(|stats| stats.control).collect::<Vec<_>>(), [0, 0]);
}

/// A call that all have arrived at shows that all earlier calls are over: short ones need no acknowledgements.
#[test]
fn calls_of_all_open_windows_without_a_word() {
    for members in [2, 3, 5, 8] {
        let mut world = World::new(members, 64, members as u64);
        let calls = [
            Call::moving(Kind::Barrier, 0, 0),
            Call::moving(Kind::Broadcast, members - 1, 40),
            Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 16),
            Call::moving(Kind::Gather, 0, 40),
            Call::moving(Kind::AllToAll, 0, 8),
            Call::moving(Kind::Scatter, 1, 8),
        ];
        for (turn, call) in (0..20).flat_map(|_| calls).enumerate() {
            for rank in 0..members {
                let (input, output) = given(&call, members, rank);
                world.start(rank, &call, input, output).unwrap();
            }
            world.run();
            check(&world, &call, turn as u64);
        }
        let control: u64 = world.members.iter().map(|one| one.member.stats().control).sum();
        assert_eq!(control, 0, "{members} members");
    }
}

/// A member that is ahead hears late of a wait in a call that it has completed some calls ago.
#[test]
fn a_wait_that_is_long_over_does_not_keep_a_member_from_short_cuts() {
    let mut world = World::new(2, 64, 3);
    world.is_calm = true;
    let call = Call::moving(Kind::Broadcast, 0, 8);
    world.start(1, &call, Vec::new(), vec![0; 8]).unwrap();
    world.run();
    world.announce_wait();
    for _ in 0..3 {
        world.start(0, &call, Vec::new(), vec![7; 8]).unwrap();
        world.poll(0);
        assert_eq!(world.members[0].ended, Some(Ok(())));
    }
    for _ in 0..2 {
        world.run();
        world.start(1, &call, Vec::new(), vec![0; 8]).unwrap();
    }
    world.run();
    for rank in 0..2 {
        world.start(rank, &Call::moving(Kind::Barrier, 0, 0), Vec::new(), Vec::new()).unwrap();
    }
    world.run();
    let numbers = world.members.iter_mut().map(|one| one.member.enter_barrier());
    assert_eq!(numbers.collect::<Vec<_>>(), [Some(5); 2]);
}

#[test]
fn who_comes_to_another_barrier_has_called_something_else() {
    let member = &mut World::new(2, 64, 4).members[0].member;
    let number = member.enter_barrier().unwrap();
    let barrier = Call::moving(Kind::Barrier, 0, 0);
    assert_eq!(Running::from_last(member).map(|running| *running.call()), Ok(barrier));
    let (theirs, ours) = (barrier, barrier);
    let fault = Fault::Mismatch { rank: 1, number: number + 1, theirs, own_number: number, ours };
    assert_eq!(member.barrier_mismatch(1, number + 1), fault);
    assert_eq!(member.enter_barrier(), None, "the group has ended");
}
