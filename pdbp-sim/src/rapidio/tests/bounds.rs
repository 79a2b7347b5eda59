//! How far members may be ahead, groups without masks, and calls performed by messages.

use pdbp_core::collective::Op::Sum;
use pdbp_core::collective::{Algorithm, Call, Element, Kind};

use super::draw;
use crate::random::Random;
use crate::rapidio::mpirio::{self, Report};
use crate::rapidio::{BOARD, Error, MASKS, Timing, Topology};

const LATE: u64 = 10_000_000;
const TIMINGS: [Timing; 3] = [Timing::PAPER, Timing::SRIO, Timing { window: u32::MAX, ..Timing::SRIO }];

fn run<T>(topology: &Topology, timing: Timing, program: impl AsyncFn(mpirio::Comm) -> T) -> Report<T> {
    let report = mpirio::run(topology, timing, program).unwrap();
    assert_eq!((report.held, report.dropped), (0, 0));
    report
}

#[test]
fn a_root_waits_for_a_member_that_computes_once_it_is_64_packets_ahead() {
    for timing in TIMINGS {
        let report = run(&Topology::boards(4).tree(4), timing, async |mut world| {
            let (rank, members) = (world.rank(), world.size());
            if rank == 13 {
                world.compute(LATE).await;
            }
            for round in 0..10 {
                // Roots take turns, so no root learns from its own calls how far the late member is.
                let root = round % 3;
                let mut data = vec![if rank == root { round } else { 0 }; 1000];
                world.broadcast(root, &mut data).await.unwrap();
                assert_eq!(data, vec![round; 1000]);
                for block in [10, 600] {
                    let all = vec![round as u8; if rank == root { block * members } else { 0 }];
                    let mut own = vec![0; block];
                    world.scatter(root, &all, &mut own).await.unwrap();
                    assert_eq!(own, vec![round as u8; block]);
                }
            }
            world.time()
        });
        assert!((32..=64).contains(&report.most_early), "{}", report.most_early);
        assert!(report.results[0] > LATE, "there is far more than 64 packets");
    }
}

#[test]
fn what_members_give_fills_no_more_than_64_places_of_a_switch() {
    for timing in TIMINGS {
        // The blocks of two members fill a packet, and one of each two members is late.
        let report = run(&Topology::boards(40).tree(4), timing, async |mut world| {
            let (rank, members) = (world.rank(), world.size());
            if rank % 2 == 1 {
                world.compute(LATE).await;
            }
            let mut all = vec![0; if rank == 0 { 100 * members } else { 0 }];
            world.gather(0, &[rank as u8; 100], &mut all).await.unwrap();
            assert!(all.chunks(100).enumerate().all(|(rank, block)| block == [rank as u8; 100]));
        });
        assert!((10..=64).contains(&report.most_slots), "{}", report.most_slots);
        let report = run(&Topology::boards(4).tree(4), timing, async |mut world| {
            if world.rank() == 5 {
                world.compute(LATE).await;
            }
            let mut values = vec![1u32; 20_000];
            world.all_reduce(&mut values, Sum).await.unwrap();
            assert_eq!(values, vec![16; 20_000]);
            world.reduce(3, &mut values, Sum).await.unwrap();
        });
        assert!(report.most_slots <= 64, "{}", report.most_slots);
    }
}

#[test]
fn calls_that_are_begun_one_behind_the_other_take_turns() {
    for timing in TIMINGS {
        run(&Topology::boards(2).chain(), timing, async |mut world| {
            let mut same = world.of(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
            let mut again = same.of(&[7, 6, 5, 4, 3, 2, 1, 0]).unwrap();
            let data = vec![world.rank() as u8; 30_000];
            let call = Call::reducing(Kind::AllReduce, 0, Element::U8, Sum, data.len());
            let broadcast = Call::moving(Kind::Broadcast, 1, data.len());
            let first = same.start(call, Vec::new(), data.clone()).unwrap();
            let second = again.start(broadcast, Vec::new(), data.clone()).unwrap();
            world.barrier().await.unwrap();
            assert_eq!(second.wait().await.unwrap(), vec![1; 30_000]);
            assert_eq!(first.wait().await.unwrap(), vec![28; 30_000]);
        });
    }
}

#[test]
fn groups_for_which_switches_have_no_mask_left_call_by_messages() {
    let report = run(&Topology::boards(4).tree(4), Timing::SRIO, async |mut world| {
        let rank = world.rank();
        let mut by_messages = 0;
        // The same two members of each board, from board to board: each group needs the switch above.
        for number in 0..MASKS + 10 {
            let members = [0, 1 + number % 3, 4 + number / 3 % 4, 8 + number / 12 % 4, 12 + number / 48];
            if !members.contains(&rank) {
                continue;
            }
            let mut group = world.of(&members).unwrap();
            by_messages += usize::from(!group.in_switches());
            let mut sum = [rank as u64, 1];
            group.all_reduce(&mut sum, Sum).await.unwrap();
            assert_eq!(sum, [members.iter().sum::<usize>() as u64, 5]);
            let mut reduced = [rank as u64];
            group.reduce(2, &mut reduced, Sum).await.unwrap();
            let due = if group.rank() == 2 { sum[0] } else { rank as u64 };
            assert_eq!(reduced, [due], "those of others stay");
            let mut all = [0; 5];
            group.gather(1, &[rank], if group.rank() == 1 { &mut all } else { &mut [] }).await.unwrap();
            assert!(group.rank() != 1 || all == members);
            if !group.in_switches() {
                let refused = group.start(Call::moving(Kind::Barrier, 0, 0), Vec::new(), Vec::new());
                assert_eq!(refused.unwrap_err(), Error::NoMask);
            }
            group.barrier().await.unwrap();
        }
        world.barrier().await.unwrap();
        by_messages
    });
    // The top switch has one mask for the group of all; a switch of a board has one more, for the board's group.
    assert_eq!((report.without_masks, report.results[0]), (12, 12));
}

#[test]
fn groups_that_cannot_be_are_refused() {
    run(&Topology::boards(1), Timing::PAPER, async |world| {
        let own = world.rank();
        assert_eq!(world.of(&[(own + 1) % BOARD]).unwrap_err(), Error::NotOfGroup { rank: own });
        assert_eq!(world.of(&[own, 2, 2]).unwrap_err(), Error::NotOfGroup { rank: 2 });
        assert!(matches!(world.of(&[own, 4]), Err(Error::Refused(_))));
        assert_eq!(world.of(&[own]).unwrap().size(), 1);
    });
}

#[test]
fn calls_by_messages_bring_the_same_as_those_in_switches_by_any_algorithm() {
    for seed in 0..6 {
        let topology = draw(&mut Random::new(seed), 8);
        let members = topology.endpoints();
        let root = members / 2;
        for algorithm in Algorithm::ALL {
            run(&topology, TIMINGS[seed as usize % 3], async |mut world| {
                let rank = world.rank();
                for (bytes, piece) in [(4, 64), (1000, 256), (1000, 1 << 20)] {
                    let own = vec![rank as u8; bytes];
                    for kind in [Kind::Broadcast, Kind::Reduce, Kind::AllReduce]
                        .into_iter()
                        .filter(|kind| algorithm.does(*kind))
                    {
                        let call = match kind {
                            Kind::Broadcast => Call::moving(kind, root, bytes),
                            Kind::Reduce => Call::reducing(kind, root, Element::U8, Sum, bytes),
                            _ => Call::reducing(kind, 0, Element::U8, Sum, bytes),
                        };
                        let by_switches =
                            world.start(call, Vec::new(), own.clone()).unwrap().wait().await.unwrap();
                        let output =
                            world.by_messages(call, Some(algorithm), piece, Vec::new(), own.clone()).await;
                        assert!(
                            output == Ok(by_switches) || kind == Kind::Reduce && rank != root,
                            "seed {seed}, {call} by {algorithm:?}"
                        );
                    }
                    if algorithm.does(Kind::AllToAll) {
                        let call = Call::moving(Kind::AllToAll, 0, bytes);
                        let input = own.repeat(members);
                        let output = world
                            .by_messages(call, Some(algorithm), piece, input.clone(), input)
                            .await
                            .unwrap();
                        assert!(
                            output
                                .chunks(bytes)
                                .enumerate()
                                .all(|(from, block)| *block == vec![from as u8; bytes])
                        );
                    }
                }
                let refused = world
                    .by_messages(
                        Call::moving(Kind::Barrier, 0, 0),
                        Some(Algorithm::Ring),
                        64,
                        Vec::new(),
                        Vec::new(),
                    )
                    .await;
                assert_eq!(refused, Err(Error::NotInSwitches { kind: Kind::Barrier }));
            });
        }
    }
}
