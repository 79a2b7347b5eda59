//! Calls performed by the switches.

use std::collections::BTreeMap;

use pdbp_core::collective::Op::{self, Max, Product, Sum};
use pdbp_core::collective::{Element, Left, combine};

use super::draw;
use crate::random::Random;
use crate::rapidio::mpirio::{self, Report};
use crate::rapidio::spanning::Neighbor;
use crate::rapidio::{PortTime, Timing, Topology, Tree};

/// Different timings, so that packets arrive in different orders.
const TIMINGS: [Timing; 4] = [
    Timing::PAPER,
    Timing::SRIO,
    Timing { window: 64, buffers: u8::MAX, ..Timing::PAPER },
    Timing {
        port: PortTime::Bytes(40),
        operate: 31,
        combine: 7,
        switch: 3,
        window: 3,
        buffers: 4,
        ..Timing::SRIO
    },
];

/// Folds the values of all endpoints that a switch does not reach through `out`, in the order of ports.
fn fold(tree: &Tree, switch: usize, out: Option<u8>, op: Op, values: &[Vec<f32>]) -> Vec<f32> {
    let mut all: Option<Vec<u8>> = None;
    for (neighbor, port) in tree.ports()[switch].iter().zip(0u8..) {
        let reaches = (0..tree.endpoints() as u16).any(|id| tree.port(switch, id) == Some(port));
        if Some(port) == out || !tree.uses(switch, port) || !reaches {
            continue;
        }
        let part = match neighbor {
            Neighbor::Endpoint(id) => values[usize::from(*id)].clone(),
            Neighbor::Switch(other, back) => fold(tree, *other, Some(*back), op, values),
        };
        let part: Vec<u8> = part.iter().flat_map(|value| value.to_ne_bytes()).collect();
        match &mut all {
            None => all = Some(part),
            Some(all) => assert!(combine(op, Element::F32, Left::Own, all, &part)),
        }
    }
    all.unwrap().chunks(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Values whose sum depends on the order.
fn values(seed: u64, rank: usize, length: usize) -> Vec<f32> {
    let mut random = Random::new(seed * 1000 + rank as u64);
    (0..length).map(|_| (random.below(1 << 20) as f32 - 5e5) / 10f32.powi(random.below(8) as i32)).collect()
}

#[test]
fn reductions_have_the_bits_of_a_fold_by_the_tree_with_any_timing() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let topology = draw(&mut random, 20);
        let tree = Tree::new(&topology).unwrap();
        let members = topology.endpoints();
        let (length, root) = (1 + random.below(300) as usize, random.below(members as u64) as usize);
        let op = [Sum, Product, Max][random.below(3) as usize];
        let all: Vec<_> = (0..members).map(|rank| values(seed, rank, length)).collect();
        let (home, port) = tree.home(root as u16);
        // The root's own values come first, then those of its switch.
        let rest = fold(&tree, home, Some(port), op, &all);
        let mut at_root: Vec<u8> = all[root].iter().flat_map(|value| value.to_ne_bytes()).collect();
        let rest: Vec<u8> = rest.iter().flat_map(|value| value.to_ne_bytes()).collect();
        combine(op, Element::F32, Left::Own, &mut at_root, &rest);
        let top = {
            let fabric = crate::rapidio::fabric::Fabric::new(&topology, Timing::PAPER).unwrap();
            let has_all = |switch: &usize| fabric.groups[0].out(&tree, *switch, None).is_none();
            let joins = |switch: &usize| !fabric.groups[0].mask(*switch).is_empty();
            (0..topology.switches()).filter(joins).find(has_all).unwrap()
        };
        let at_all = bits(&fold(&tree, top, None, op, &all));
        for timing in TIMINGS {
            let report = mpirio::run(&topology, timing, async |mut world| {
                let mut reduced = all[world.rank()].clone();
                world.reduce(root, &mut reduced, op).await.unwrap();
                let mut same = all[world.rank()].clone();
                world.all_reduce(&mut same, op).await.unwrap();
                (reduced, bits(&same))
            });
            let report = report.unwrap();
            assert_eq!((report.held, report.dropped), (0, 0), "seed {seed}");
            for (rank, (reduced, same)) in report.results.iter().enumerate() {
                assert_eq!(*same, at_all, "seed {seed}, rank {rank}");
                if rank == root {
                    let bytes: Vec<u8> = reduced.iter().flat_map(|value| value.to_ne_bytes()).collect();
                    assert_eq!(bytes, at_root, "seed {seed}");
                } else {
                    assert_eq!(bits(reduced), bits(&all[rank]), "seed {seed}: {rank} is not the root");
                }
            }
        }
    }
}

/// Runs broadcast, scatter, gather and barrier with drawn lengths, some on boards only.
fn moves(seed: u64, timing: Timing) -> Report<u64> {
    let topology = draw(&mut Random::new(seed), 20);
    let report = mpirio::run(&topology, timing, async |mut world| {
        let mut random = Random::new(seed ^ 0xC0FFEE);
        let (rank, members) = (world.rank(), world.size());
        for round in 0..4 {
            let root = random.below(members as u64) as usize;
            let bytes = [0, 1, 4, 100, 125, 126, 250, 251, 700][random.below(9) as usize];
            let block = |of: usize| vec![(of * 7 + round) as u8; bytes];
            let mut data = if rank == root { block(root) } else { vec![0; bytes] };
            world.broadcast(root, &mut data).await.unwrap();
            assert_eq!(data, block(root), "seed {seed}: broadcast of {bytes}");
            let all: Vec<u8> = (0..members).flat_map(block).collect();
            let mut own = vec![0; bytes];
            world.scatter(root, if rank == root { &all } else { &[] }, &mut own).await.unwrap();
            assert_eq!(own, block(rank), "seed {seed}: scatter of {bytes}");
            let mut gathered = vec![0; if rank == root { all.len() } else { 0 }];
            world.gather(root, &own, &mut gathered).await.unwrap();
            assert!(rank != root || gathered == all, "seed {seed}: gather of {bytes}");
            let mut board = world.local();
            let mut sum = [1u32];
            board.all_reduce(&mut sum, Sum).await.unwrap();
            assert_eq!(sum[0] as usize, board.size(), "seed {seed}");
        }
        world.compute(rank as u64 * 10).await;
        world.barrier().await.unwrap();
        world.time()
    });
    report.unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

#[test]
fn calls_bring_what_they_should_and_a_seed_repeats_them() {
    for seed in 0..40 {
        let timing = TIMINGS[seed as usize % TIMINGS.len()];
        let report = moves(seed, timing);
        assert_eq!((report.held, report.dropped), (0, 0), "seed {seed}");
        let last = (report.results.len() as u64 - 1) * 10;
        assert!(
            report.results.iter().all(|time| *time >= last),
            "seed {seed}: nobody passes a barrier early"
        );
        if seed < 10 {
            let again = moves(seed, timing);
            assert_eq!((report.digest, report.times), (again.digest, again.times), "seed {seed}");
        }
    }
    assert_ne!(moves(1, Timing::PAPER).digest, moves(1, Timing::SRIO).digest);
}

#[test]
fn a_broadcast_crosses_each_edge_of_the_tree_once_and_no_other_link() {
    for seed in 0..40 {
        let topology = draw(&mut Random::new(seed), 40);
        let root = topology.endpoints() / 2;
        let report = mpirio::run(&topology, TIMINGS[seed as usize % 4], async |mut world| {
            let mut data = [world.rank(); 20];
            world.broadcast(root, &mut data).await.unwrap();
            assert_eq!(data, [root; 20]);
        });
        let report = report.unwrap();
        // Switches without endpoints behind them are not in the group.
        let mut crossed = BTreeMap::new();
        report
            .links
            .iter()
            .for_each(|link| *crossed.entry(link.requests.iter().sum::<u64>()).or_insert(0) += 1);
        assert!(crossed.keys().all(|times| *times <= 1), "seed {seed}: {crossed:?}");
        assert!(report.links.iter().all(|link| link.in_tree || link.requests == [0, 0]), "seed {seed}");
        assert_eq!(
            report.packets.iter().map(|(_, received)| received).sum::<u64>(),
            topology.endpoints() as u64 - 1
        );
    }
}

#[test]
fn computing_and_communicating_overlap() {
    let time = |overlap: bool| {
        let report = mpirio::run(&Topology::boards(2).chain(), Timing::PAPER, async |mut world| {
            let data = vec![1; 5000];
            if world.rank() != 0 {
                let waits = world.rank() == 7;
                return if waits {
                    world.recv(0, 0, &mut [0; 5000]).await.unwrap()
                };
            }
            if overlap {
                let mut out = world.start_send(7, 0, &data).unwrap();
                assert!(!out.poll());
                world.compute(500).await;
                assert!(out.poll());
                out.wait().await.unwrap();
            } else {
                world.send(7, 0, &data).await.unwrap();
                world.compute(500).await;
            }
        });
        report.unwrap().time()
    };
    assert_eq!((time(true), time(false)), (520, 520 + 401));
}
