//! The table of bad input in the design, tested over MPIRIO, and values whose combination is specified.

use pdbp_core::collective::Op::{self, Max, Min, Product, Sum};
use pdbp_core::collective::{Call, Element, Kind};

use crate::rapidio::mpirio::{self, RunError};
use crate::rapidio::{DATA, Error, Timing, Topology};

const TIMINGS: [Timing; 2] = [Timing::PAPER, Timing::SRIO];

/// Whichever endpoint has the NaN, and whichever is the root: NaN wins, and −0 is below +0.
#[test]
fn nan_wins_and_minus_zero_is_below_zero_in_switches() {
    for timing in TIMINGS {
        for odd in [0, 3, 5, 11] {
            for op in [Min, Max, Sum, Product] {
                let report = mpirio::run(&Topology::boards(3).chain(), timing, async |mut world| {
                    let is_odd = world.rank() == odd;
                    let own =
                        [if is_odd { f64::NAN } else { f64::INFINITY }, if is_odd { -0.0 } else { 0.0 }];
                    let mut all = own;
                    world.all_reduce(&mut all, op).await.unwrap();
                    let mut at_root = own.map(|value| value as f32);
                    world.reduce(4, &mut at_root, op).await.unwrap();
                    (all.map(f64::to_bits), at_root.map(f32::to_bits))
                });
                let results = report.unwrap().results;
                let at_root = results[4].1.map(f32::from_bits);
                assert!(f64::from_bits(results[0].0[0]).is_nan() && at_root[0].is_nan(), "{op:?} {odd}");
                let is_negative = [Min, Product].contains(&op);
                assert_eq!(at_root[1].to_bits(), if is_negative { (-0.0f32).to_bits() } else { 0 }, "{op:?}");
                for (all, _) in &results {
                    assert_eq!(*all, results[0].0, "{op:?}: the same bits at all");
                    assert_eq!(all[1], if is_negative { (-0.0f64).to_bits() } else { 0 }, "{op:?}");
                }
            }
        }
    }
}

/// Every pair of calls that differ in one respect: the members that hit the difference are told, and so are all members at the next
/// call.
#[test]
fn each_thing_in_which_calls_may_differ_is_found() {
    let usual = Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 400);
    let others = [
        Call { op: Some(Op::Max), ..usual },
        Call { element: Element::I32, ..usual },
        Call { bytes: 404, ..usual },
        Call::reducing(Kind::Reduce, 2, Element::U32, Op::Sum, 400),
        Call::moving(Kind::Broadcast, 1, 400),
        Call::moving(Kind::Broadcast, 5, 400),
        Call::moving(Kind::Gather, 0, 40),
        Call::moving(Kind::Scatter, 5, 40),
        Call::moving(Kind::Barrier, 0, 0),
    ];
    for (i, other) in others.into_iter().enumerate() {
        for (odd, timing) in [(5, TIMINGS[i % 2]), (0, TIMINGS[1]), (2, TIMINGS[0])] {
            let report = mpirio::run(&Topology::boards(2).chain(), timing, async |mut world| {
                let (rank, members) = (world.rank(), world.size());
                let call = if rank == odd { other } else { usual };
                let (input, output) = call.lengths(members, rank).unwrap();
                let first = world.start(call, vec![0; input], vec![0; output]).unwrap().wait().await;
                first.map(drop).and(world.barrier().await)
            });
            match report {
                Ok(report) => {
                    for end in report.results {
                        let Err(Error::Mismatch(mismatch)) = end else { panic!("{other}, {odd}: {end:?}") };
                        assert_ne!(mismatch.one.1, mismatch.other.1);
                    }
                }
                // It sends nothing in its call, and the others wait for it: all are listed.
                Err(RunError::Stuck { waiting, .. }) => {
                    let sends_nothing = match other.kind {
                        Kind::Broadcast | Kind::Scatter => other.root != odd,
                        _ => other.root == odd && other.kind != Kind::Barrier,
                    };
                    assert!(sends_nothing, "{other}, {odd}");
                    assert!(waiting.len() == 8 && waiting[odd].1[0].contains(&other.to_string()));
                }
                Err(error) => panic!("{other}, {odd}: {error}"),
            }
        }
    }
}

/// Each waits for the other as the root: in virtual time nothing moves, and both are listed with the call that they wait in.
#[test]
fn two_that_wait_for_each_other_as_the_root_are_named() {
    let report =
        mpirio::run(&Topology::boards(0).bare(1).endpoint(0).endpoint(0), Timing::SRIO, async |mut world| {
            let root = 1 - world.rank();
            world.broadcast(root, &mut [0u8; 8]).await
        });
    let Err(RunError::Stuck { waiting, .. }) = report else { panic!() };
    let words: Vec<_> = waiting.iter().map(|(rank, words)| (*rank, words.concat())).collect();
    assert!(words[0].1.contains("root 1") && words[1].1.contains("root 0"), "{words:?}");
}

#[test]
fn two_groups_in_another_order_than_the_rest_are_named() {
    let report = mpirio::run(&Topology::boards(1), Timing::SRIO, async |mut world| {
        if world.rank() == 2 {
            world.of(&[0, 1, 2]).unwrap().barrier().await.unwrap();
        }
        world.barrier().await.unwrap();
    });
    let report = report.map(|report| report.results.len());
    let Err(RunError::Stuck { waiting, .. }) = report else { panic!("{report:?}") };
    assert_eq!(waiting.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(waiting[2].1[0].contains("group"), "{waiting:?}");
}

/// A call without data completes at once but counts: a member that called something different there is detected at the next call.
#[test]
fn a_call_with_nothing_counts() {
    for timing in TIMINGS {
        let report = mpirio::run(&Topology::boards(2).chain(), timing, async |mut world| {
            let nothing = usize::from(world.rank() != 6) * 8;
            let first = world.broadcast(0, &mut vec![0u8; nothing]).await;
            first.and(world.barrier().await)
        });
        let results = report.unwrap().results;
        assert!(results.iter().all(|end| matches!(end, Err(Error::Mismatch(_)))), "{results:?}");
    }
}

/// More than 65,536 packets of one message, and of one call.
#[test]
fn a_message_of_more_packets_than_16_bits_can_count_arrives() {
    const BYTES: usize = 66_000 * DATA + 1;
    let report =
        mpirio::run(&Topology::boards(0).bare(1).endpoint(0).endpoint(0), Timing::SRIO, async |mut world| {
            let value = |i: usize| (i / DATA * 31 + i) as u8;
            let own: Vec<u8> = (0..BYTES).map(value).collect();
            let mut got = vec![0; BYTES];
            if world.rank() == 0 {
                world.send(1, 0, &own).await.unwrap();
                got.copy_from_slice(&own);
            } else {
                world.recv(0, 0, &mut got).await.unwrap();
                assert!(got == own);
                got.fill(0);
            }
            world.broadcast(0, &mut got).await.unwrap();
            assert!(got == own);
        });
    assert_eq!((report.as_ref().unwrap().dropped, report.unwrap().held), (0, 0));
}
