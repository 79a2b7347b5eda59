//! The steps of all members, viewed together.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use crate::collective::{Algorithm, Call, Element, Kind, Op, Place, Reception, Step, Steps, WINDOW, combine};

/// Calls of every kind, with several roots and lengths: none, less than a value per member, and lengths that divide by nothing.
pub(super) fn calls(members: usize) -> Vec<Call> {
    let mut calls = vec![Call::moving(Kind::Barrier, 0, 0)];
    let mut roots = vec![0, members / 2, members - 1];
    roots.dedup();
    for values in [0, 1, 5, 31, 250, 1031, 5000] {
        let bytes = 4 * values;
        for kind in [Kind::AllGather, Kind::AllToAll].into_iter().filter(|_| bytes < 5000) {
            calls.push(Call::moving(kind, 0, bytes));
        }
        for kind in [Kind::AllReduce, Kind::ReduceScatter] {
            calls.push(Call::reducing(kind, 0, Element::U32, Op::Sum, bytes));
        }
        for root in &roots {
            for kind in [Kind::Broadcast, Kind::Scatter, Kind::Gather] {
                calls.push(Call::moving(kind, *root, bytes));
            }
            calls.push(Call::reducing(Kind::Reduce, *root, Element::U32, Op::Sum, bytes));
        }
    }
    calls
}

fn steps_of_all(call: &Call, members: usize, piece: usize) -> Vec<VecDeque<Step>> {
    (0..members).map(|rank| Steps::new(call, members, rank, piece).collect()).collect()
}

/// Performs them with windows of this many messages; panics if nobody can go on, or lengths differ. Returns messages and bytes.
fn perform(call: &Call, members: usize, piece: usize, window: usize) -> (usize, usize) {
    perform_steps(call, steps_of_all(call, members, piece), window)
}

fn perform_steps(call: &Call, mut left: Vec<VecDeque<Step>>, window: usize) -> (usize, usize) {
    let members = left.len();
    let mut flows = vec![vec![VecDeque::new(); members]; members];
    let (mut messages, mut bytes) = (0, 0);
    loop {
        let mut worked = false;
        for rank in 0..members {
            while let Some(step) = left[rank].front() {
                match step {
                    Step::Copy { .. } => {}
                    Step::Send { to, range, .. } => {
                        assert_ne!(*to, rank);
                        let flow: &mut VecDeque<usize> = &mut flows[rank][*to];
                        if flow.len() == window {
                            break;
                        }
                        flow.push_back(range.len());
                        (messages, bytes) = (messages + 1, bytes + range.len());
                    }
                    Step::Recv { from, range, .. } => {
                        let Some(length) = flows[*from][rank].pop_front() else { break };
                        assert_eq!(length, range.len(), "{call}: from {from} to {rank} of {members}");
                    }
                }
                left[rank].pop_front();
                worked = true;
            }
        }
        if left.iter().all(VecDeque::is_empty) {
            break;
        }
        assert!(worked, "{call}: {members} members wait in a circle, in front of {left:?}");
    }
    assert!(flows.iter().flatten().all(VecDeque::is_empty), "{call}: somebody sends what nobody receives");
    (messages, bytes)
}

#[test]
fn every_message_is_received_in_order_and_nobody_waits_in_a_circle() {
    for members in 1..=33 {
        for call in calls(members) {
            for piece in [64, 1024].into_iter().filter(|piece| call.bytes <= 20 * piece) {
                let one = perform(&call, members, piece, 1);
                assert_eq!(perform(&call, members, piece, WINDOW), one);
            }
        }
    }
}

fn steps_by(call: &Call, algorithm: Algorithm, members: usize, piece: usize) -> Vec<VecDeque<Step>> {
    (0..members)
        .map(|rank| Steps::with_algorithm(call, algorithm, members, rank, piece).unwrap().collect())
        .collect()
}

/// Performs them on values, of which member r has 1000·r + i; returns the result of each.
fn values_after(call: &Call, mut left: Vec<VecDeque<Step>>) -> Vec<Vec<f32>> {
    let members = left.len();
    let values = |rank: usize| (0..call.bytes / 4).map(move |i| ((1000 * rank + i) as f32).sqrt());
    let mut outputs: Vec<Vec<u8>> =
        (0..members).map(|rank| values(rank).flat_map(f32::to_ne_bytes).collect()).collect();
    let mut flows = vec![vec![VecDeque::new(); members]; members];
    while left.iter().any(|steps| !steps.is_empty()) {
        for (rank, steps) in left.iter_mut().enumerate() {
            while let Some(step) = steps.front() {
                match step {
                    Step::Send { to, place: Place::Output, range } => {
                        flows[rank][*to].push_back(outputs[rank][range.clone()].to_vec());
                    }
                    Step::Recv { from, range, then } => {
                        let Some(data): Option<Vec<u8>> = flows[*from][rank].pop_front() else { break };
                        let into = &mut outputs[rank][range.clone()];
                        match then {
                            Reception::Store => into.copy_from_slice(&data),
                            Reception::Fold(left) => {
                                assert!(combine(Op::Sum, call.element, *left, into, &data))
                            }
                        }
                    }
                    other => panic!("{other:?}"),
                }
                steps.pop_front();
            }
        }
    }
    let floats =
        |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value)).collect();
    outputs.into_iter().map(floats).collect()
}

#[test]
fn algorithms_that_are_named_bring_the_same_and_nobody_waits_in_a_circle() {
    for members in (1..=20).chain([33]) {
        for bytes in [0, 4, 256, 1000] {
            for (kind, root) in
                [(Kind::Broadcast, members / 2), (Kind::Reduce, members / 3), (Kind::AllReduce, 0)]
            {
                let call = Call::reducing(kind, root, Element::F32, Op::Sum, bytes);
                for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.does(kind)) {
                    for piece in [64, 1 << 20] {
                        let steps = steps_by(&call, algorithm, members, piece);
                        let one = perform_steps(&call, steps.clone(), 1);
                        assert_eq!(perform_steps(&call, steps.clone(), 1000), one);
                        check_values(&call, algorithm, values_after(&call, steps));
                    }
                }
            }
        }
    }
    let call = Call::moving(Kind::Gather, 0, 8);
    assert!(Steps::with_algorithm(&call, Algorithm::Chain, 3, 0, 64).is_none());
    let moves = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.does(Kind::AllToAll));
    assert_eq!(moves.count(), 2);
}

fn check_values(call: &Call, algorithm: Algorithm, after: Vec<Vec<f32>>) {
    let members = after.len();
    let value = |rank: usize, i: usize| ((1000 * rank + i) as f32).sqrt();
    for (rank, values) in after.iter().enumerate() {
        for (i, got) in values.iter().enumerate() {
            let sum = || (0..members).map(|rank| value(rank, i)).sum::<f32>();
            let due = match call.kind {
                Kind::Broadcast => value(call.root, i),
                Kind::Reduce if rank != call.root => continue,
                _ => sum(),
            };
            assert!(
                (got - due).abs() <= due * 1e-5,
                "{call} by {algorithm:?}, {rank} of {members}: {got}, not {due}"
            );
            if call.kind != Kind::Reduce {
                assert_eq!(
                    got.to_bits(),
                    after[0][i].to_bits(),
                    "{call} by {algorithm:?}: the same bits at all"
                );
            }
        }
    }
}

/// The table in the module's documentation.
#[test]
fn calls_take_as_many_messages_and_bytes_as_they_should() {
    for n in 2..=33usize {
        // Whole shares, so that bytes divide evenly.
        let b = 64 * n;
        let log2 = n.next_power_of_two().ilog2() as usize;
        let moving = |kind| perform(&Call::moving(kind, 0, b), n, 1 << 30, WINDOW);
        let reducing =
            |kind, bytes| perform(&Call::reducing(kind, 0, Element::U64, Op::Sum, bytes), n, 1 << 30, WINDOW);
        assert_eq!(perform(&Call::moving(Kind::Barrier, 0, 0), n, 64, WINDOW), (n * log2, 0));
        for kind in [Kind::Broadcast, Kind::Scatter, Kind::Gather] {
            assert_eq!(moving(kind), (n - 1, (n - 1) * b), "{kind:?}");
        }
        assert_eq!(reducing(Kind::Reduce, b), (n - 1, (n - 1) * b));
        for kind in [Kind::AllGather, Kind::AllToAll] {
            assert_eq!(moving(kind), (n * (n - 1), n * (n - 1) * b), "{kind:?}");
        }
        assert_eq!(reducing(Kind::ReduceScatter, b), (n * (n - 1), (n - 1) * b));
        let long = 32768 * n;
        assert_eq!(reducing(Kind::AllReduce, long), (2 * n * (n - 1), 2 * (n - 1) * long));
        let power = 1 << n.ilog2();
        let short = power * n.ilog2() as usize + 2 * (n - power);
        assert_eq!(reducing(Kind::AllReduce, b), (short, short * b));
    }
}

/// Rounds: every message takes one, and a member does one thing at a time.
#[test]
fn trees_are_as_low_as_a_logarithm() {
    for (members, most) in [(2, 1), (4, 3), (5, 4), (16, 6), (17, 7), (64, 9), (256, 12), (1024, 15)] {
        for kind in [Kind::Broadcast, Kind::Reduce] {
            let call = Call { op: Some(Op::Sum), ..Call::moving(kind, 3 % members, 64) };
            let steps = steps_of_all(&call, members, 64);
            let mut at = vec![0; members];
            let mut left = steps.clone();
            let mut flows = vec![VecDeque::new(); members];
            while left.iter().any(|steps| !steps.is_empty()) {
                for rank in 0..members {
                    while let Some(step) = left[rank].front().cloned() {
                        match step {
                            Step::Copy { .. } => {}
                            Step::Send { to, .. } => {
                                at[rank] += 1;
                                flows[to].push_back((rank, at[rank]));
                            }
                            Step::Recv { from, .. } => {
                                let Some(i) = flows[rank].iter().position(|(sender, _)| *sender == from)
                                else {
                                    break;
                                };
                                let (_, when) = flows[rank].remove(i).unwrap();
                                // A member that receives several takes one round for each.
                                let one_more = if kind == Kind::Reduce { at[rank] + 1 } else { 0 };
                                at[rank] = one_more.max(when);
                            }
                        }
                        left[rank].pop_front();
                    }
                }
            }
            let rounds = at.into_iter().max().unwrap();
            assert!(rounds <= most, "{kind:?} of {members}: {rounds} rounds");
        }
    }
}

#[test]
fn long_data_goes_once_into_each_member_and_once_out_of_it() {
    let moved = |kind, members: usize, bytes: usize| {
        let call = Call { op: Some(Op::Sum), ..Call::moving(kind, members / 2, bytes) };
        let steps = steps_of_all(&call, members, 32 << 10).into_iter();
        let length = |step: &Step| match step {
            Step::Send { range, .. } => [range.len(), 0],
            Step::Recv { range, .. } => [0, range.len()],
            Step::Copy { .. } => [0, 0],
        };
        let of_one = |steps: VecDeque<Step>| {
            steps.iter().map(length).fold([0, 0], |[out, into], [o, i]| [out + o, into + i])
        };
        steps.flat_map(of_one).max().unwrap()
    };
    for kind in [Kind::Broadcast, Kind::Reduce] {
        for members in [2, 3, 4, 8, 17] {
            let long = members * (32 << 10);
            assert_eq!(moved(kind, members, long), long, "{kind:?} of {members}");
            let short = long - 64;
            assert_eq!(moved(kind, members, short) > short, members > 2, "{kind:?} of {members}");
        }
    }
}
