//! Calls by notes give the same results as by messages, to the bit.

use std::vec;
use std::vec::Vec;

use super::world::{Random, World};
use crate::collective::message::Stamp;
use crate::collective::{Call, Data, Element, Kind, Left, Op, Writers};

const LONGEST: usize = 1 << 10;

/// Values whose sums depend on the order in which they are added.
fn values(random: &mut Random, bytes: usize) -> Vec<u8> {
    let value = |_| (random.below(1 << 20) as f32).sqrt() * 10f32.powi(random.below(9) as i32 - 4) - 1e3;
    (0..bytes / 4).map(value).flat_map(f32::to_ne_bytes).collect()
}

fn add(into: &mut [u8], from: &[u8], left: Left) {
    for (own, other) in into.chunks_exact_mut(4).zip(from.chunks_exact(4)) {
        let [a, b] = [&*own, other].map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()));
        let sum = if left == Left::Own { a - b / 2.0 } else { b - a / 2.0 };
        own.copy_from_slice(&sum.to_ne_bytes());
    }
}

fn calls(members: usize, root: usize) -> Vec<Call> {
    let reducing = |kind, op, bytes| Call::reducing(kind, root, Element::F32, op, bytes);
    let mut calls = Vec::new();
    for bytes in [4, 12, 40] {
        calls.extend(
            [Kind::Broadcast, Kind::Scatter, Kind::Gather].map(|kind| Call::moving(kind, root, bytes)),
        );
        calls.extend([Kind::AllGather, Kind::AllToAll].map(|kind| Call::moving(kind, 0, bytes)));
        for op in [Op::Sum, Op::Max, Op::Function] {
            calls.push(reducing(Kind::Reduce, op, bytes));
            calls.push(Call { root: 0, ..reducing(Kind::AllReduce, op, bytes) });
        }
    }
    calls.retain(|call| call.writers(members, LONGEST).is_some());
    assert!(calls.len() > 20);
    calls
}

#[test]
fn notes_give_the_same_bits_as_messages() {
    for members in 1..=33 {
        for (seed, call) in calls(members, members * 2 / 3).into_iter().enumerate() {
            let mut world = World::new(members, 64, seed as u64);
            let mut random = Random(seed as u64 * 77 + members as u64);
            for rank in 0..members {
                let (input, output) = call.lengths(members, rank).unwrap();
                let (input, output) = (values(&mut random, input), values(&mut random, output));
                world.start(rank, &call, input, output).unwrap();
                world.members[rank].fold = (call.op == Some(Op::Function)).then_some(add);
            }
            let given: Vec<_> =
                world.members.iter().map(|one| (one.input.clone(), one.output.clone())).collect();
            world.run();
            check(&world, &call, given);
        }
    }
}

fn check(world: &World, call: &Call, given: Vec<(Vec<u8>, Vec<u8>)>) {
    let members = given.len();
    let writers = call.writers(members, LONGEST).unwrap();
    let notes: Vec<Vec<u8>> = given
        .iter()
        .map(|(input, output)| {
            call.written(&Data { input, output: &mut output.clone(), fold: None }).to_vec()
        })
        .collect();
    for (rank, (input, mut output)) in given.into_iter().enumerate() {
        let mut function: fn(&mut [u8], &[u8], Left) = add;
        let mut scratch = vec![0; Call::scratch(members, call.bytes)];
        let mut data = Data { input: &input, output: &mut output, fold: Some(&mut function) };
        let is_read = call.read_notes((members, rank), &mut data, &mut scratch, |from, at, into| {
            assert!(from != rank && writers.contains(from) && writers.has_reader(rank));
            into.copy_from_slice(&notes[from][at..at + into.len()]);
        });
        assert!(is_read, "{call}: member {rank} of {members}");
        // In a reduce, all but the root have undefined data.
        if call.kind != Kind::Reduce || rank == call.root {
            assert!(output == world.members[rank].output, "{call}: member {rank} of {members}");
        }
    }
}

#[test]
fn what_is_too_long_or_of_another_kind_is_not_done_by_notes() {
    let writers = |call: Call| call.writers(4, LONGEST);
    assert_eq!(writers(Call::moving(Kind::Broadcast, 2, 1024)), Some(Writers::One(2)));
    assert_eq!(writers(Call::moving(Kind::Broadcast, 2, 1025)), None);
    assert_eq!(writers(Call::moving(Kind::Broadcast, 2, 0)), None, "it is over at once");
    assert_eq!(writers(Call::moving(Kind::Scatter, 1, 256)), Some(Writers::One(1)));
    assert_eq!(writers(Call::moving(Kind::Scatter, 1, 257)), None, "all blocks are in one note");
    assert_eq!(writers(Call::moving(Kind::AllToAll, 0, usize::MAX)), None);
    assert_eq!(writers(Call::moving(Kind::Gather, 3, 8)), Some(Writers::AllBut(3)));
    assert_eq!(writers(Call::moving(Kind::Barrier, 0, 0)), None);
    let sum = |kind, bytes| Call::reducing(kind, 0, Element::U64, Op::Sum, bytes);
    assert_eq!(writers(sum(Kind::ReduceScatter, 8)), None);
    assert_eq!(sum(Kind::AllReduce, 1024).writers(16, LONGEST), Some(Writers::All));
    assert_eq!(sum(Kind::AllReduce, 1024).writers(17, LONGEST), None, "each would combine all of it");
}

#[test]
fn without_enough_memory_nothing_is_combined() {
    let call = Call::reducing(Kind::AllReduce, 0, Element::U8, Op::Sum, 8);
    let mut output = [1; 8];
    let mut data = Data { input: &[], output: &mut output, fold: None };
    assert!(!call.read_notes((2, 0), &mut data, &mut [0; 15], |_, _, _| {}));
    assert!(call.read_notes((2, 0), &mut data, &mut [0; 16], |_, _, into| into.fill(2)));
    assert_eq!(output, [3; 8]);
}

#[test]
fn a_call_is_told_in_two_words() {
    let call = Call::reducing(Kind::Reduce, 65_535, Element::F64, Op::Xor, (1 << 56) - 8);
    let stamp = Stamp::new(u32::MAX, &call);
    assert!(Stamp::from_words(stamp.to_words()) == stamp);
    assert_eq!(Stamp::from_words(stamp.to_words()).call(), Some(call));
}
