//! Checks the figures in the text of the paper.

use pdbp_core::collective::Op::Sum;

use crate::rapidio::mpirio::{self, Report};
use crate::rapidio::{Timing, Topology};

/// Process 0 sends 10,000 bytes to the others in turn, each its share.
fn in_turn(boards: usize, timing: Timing) -> Report<u64> {
    let report = mpirio::run(&Topology::boards(boards).chain(), timing, async |mut world| {
        let share = vec![7u8; 10_000 / (world.size() - 1)];
        if world.rank() > 0 {
            let mut data = vec![0; share.len()];
            world.recv(0, 1, &mut data).await.unwrap();
            assert_eq!(data, share);
            return world.time();
        }
        for to in 1..world.size() {
            world.send(to, 1, &share).await.unwrap();
        }
        world.time()
    });
    report.unwrap()
}

#[test]
fn messages_take_what_the_paper_says_within_one_percent() {
    // 42 and 45 packets; 11/7 and 2.6 switches on average.
    let bare = Timing { message: 0, start: 0, ..Timing::PAPER };
    for (boards, modelled, fitted, stated) in [(2, 174, 201, 202.0), (4, 279, 314, 313.0)] {
        assert_eq!(in_turn(boards, bare).results[0], modelled);
        let time = in_turn(boards, Timing::PAPER).results[0];
        assert_eq!(time, fitted);
        assert!((time as f64 / stated - 1.0).abs() < 0.01, "{time} cycles, where {stated} are stated");
    }
}

#[test]
fn calls_that_fit_a_packet_cross_each_edge_of_the_tree_once() {
    for (boards, members) in [(1, 4), (4, 16), (16, 64), (64, 256), (256, 1024)] {
        let topology = Topology::boards(boards).tree(4);
        let edges = (members - 1) * 4 / 3;
        let broadcast = mpirio::run(&topology, Timing::PAPER, async |mut world| {
            let mut data = [world.rank() as u32];
            world.broadcast(3, &mut data).await.unwrap();
            assert_eq!(data, [3]);
        });
        let reduce = mpirio::run(&topology, Timing::PAPER, async |mut world| {
            let mut data = [world.rank() as u64];
            world.reduce(1, &mut data, Sum).await.unwrap();
            if world.rank() == 1 {
                assert_eq!(data, [(members * (members - 1) / 2) as u64]);
            }
        });
        for report in [broadcast, reduce] {
            let report = report.unwrap();
            assert!(report.links.iter().all(|link| link.requests.iter().sum::<u64>() == 1));
            assert_eq!((report.crossings(), report.held), (edges as u64, 0));
        }
        // Few enough blocks that all fit one packet: with 4 bytes each, up to 62.
        if members <= 64 {
            let gather = mpirio::run(&topology, Timing::PAPER, async |mut world| {
                let mut all = vec![0; if world.rank() == 0 { members } else { 0 }];
                world.gather(0, &[world.rank() as u8], &mut all).await.unwrap();
                assert!(all.iter().enumerate().all(|(rank, block)| *block == rank as u8));
            });
            assert_eq!(gather.unwrap().crossings(), edges as u64);
        }
    }
}

#[test]
fn what_is_gathered_fills_packets_on_each_edge() {
    let report = mpirio::run(&Topology::boards(64).tree(4), Timing::PAPER, async |mut world| {
        let mut all = vec![0; if world.rank() == 0 { world.size() } else { 0 }];
        world.gather(0, &[world.rank() as u32], &mut all).await.unwrap();
        assert!(all.iter().zip(0..).all(|(block, rank)| *block == rank));
    });
    // By levels: 255 endpoints send, and one gets the blocks of 255 others in ⌈1020 / 248⌉ packets; 63 boards of 16 bytes, 15 of
    // 64, 3 of 256 that need two; and the blocks of 240 and 252 other endpoints arrive on the way to the root.
    let report = report.unwrap();
    let into_root = [252u64.div_ceil(62), 240u64.div_ceil(62), 192u64.div_ceil(62)].iter().sum::<u64>();
    assert_eq!(report.crossings(), 255 + 255u64.div_ceil(62) + 63 + 15 + 3 * 2 + into_root);
}
