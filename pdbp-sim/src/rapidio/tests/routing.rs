//! Messages and their routes.

use std::collections::BTreeSet;

use pdbp_core::collective::Op::Max;

use super::draw;
use crate::random::Random;
use crate::rapidio::mpirio;
use crate::rapidio::spanning::Neighbor;
use crate::rapidio::{Timing, Topology, Tree};

/// Returns the links, as (switch, port), that a packet takes by the given tables.
fn links(tree: &Tree, port: fn(&Tree, usize, u16) -> Option<u8>, from: u16, to: u16) -> Vec<(usize, u8)> {
    let mut links = vec![];
    let mut at = tree.home(from).0;
    while let Some(out) = port(tree, at, to) {
        assert!(links.len() < tree.ports().len(), "{links:?}");
        links.push((at, out));
        match tree.neighbor(at, out) {
            Neighbor::Switch(next, _) => at = next,
            Neighbor::Endpoint(_) => break,
        }
    }
    links
}

/// Returns, for each link, the next links of packets that came over it: those of messages, and those of collectives, which take the
/// tree.
fn waits(tree: &Tree) -> BTreeSet<((usize, u8), (usize, u8))> {
    let mut waits = BTreeSet::new();
    for from in 0..tree.endpoints() as u16 {
        for to in 0..tree.endpoints() as u16 {
            for port in [Tree::port, Tree::port_on_tree] {
                let links = links(tree, port, from, to);
                waits.extend(links.windows(2).map(|pair| (pair[0], pair[1])));
            }
        }
    }
    waits
}

/// A drawn topology, with tables of either kind.
fn draw_with_tables(seed: u64, most: u64) -> Topology {
    let topology = draw(&mut Random::new(seed), most);
    if seed % 2 == 1 { topology.up_down() } else { topology }
}

#[test]
fn every_endpoint_reaches_every_other_and_no_links_wait_for_each_other_in_a_circle() {
    for seed in 0..120 {
        let topology = draw_with_tables(seed, 40);
        let tree = Tree::new(&topology).unwrap();
        assert_eq!(tree.check(), Ok(()), "seed {seed}");
        assert_eq!(tree.edges(), topology.endpoints() + topology.switches() - 1);
        assert_eq!(tree.reads(), topology.endpoints() + 2 * topology.links().len());
        for (from, to) in (0..tree.endpoints() as u16).flat_map(|id| [(0, id), (id, 0)]) {
            let last = *tree.route(from, to).last().unwrap();
            assert_eq!(
                tree.neighbor(last, tree.port(last, to).unwrap()),
                Neighbor::Endpoint(to),
                "seed {seed}"
            );
        }
        // Removes links that nothing waits for any more, until none are left.
        let mut waits = waits(&tree);
        while !waits.is_empty() {
            let before = waits.len();
            let waiting: BTreeSet<_> = waits.iter().map(|(link, _)| *link).collect();
            waits.retain(|(_, next)| waiting.contains(next));
            assert!(waits.len() < before, "seed {seed}: a circle among {waits:?}");
        }
    }
}

#[test]
fn the_tree_is_of_least_weight_and_its_root_in_the_middle() {
    let ring = Tree::new(&Topology::boards(5).ring()).unwrap();
    assert_eq!((ring.route(0, 8), ring.route(0, 16)), (vec![0, 1, 2], vec![0, 4, 3]), "least depth");
    let heavy = Topology::boards(3).link_of_weight(0, 1, 5).link(1, 2).link(2, 0);
    let tree = Tree::new(&heavy).unwrap();
    assert_eq!(tree.route(0, tree.endpoints() as u16 - 1), [0, 2, 1]);
    assert_eq!(tree.root(), 2);
    assert_eq!(Tree::new(&Topology::boards(16).tree(4)).unwrap().root(), 20);
    assert_eq!(Tree::new(&Topology::boards(7).chain()).unwrap().root(), 3);
}

#[test]
fn what_lies_behind_a_port_is_one_range_of_ranks() {
    for seed in 0..60 {
        let tree = Tree::new(&draw(&mut Random::new(seed), 40)).unwrap();
        for switch in 0..tree.ports().len() {
            let ports: Vec<_> = (0..tree.endpoints() as u16).map(|id| tree.port(switch, id)).collect();
            let changes = (0..ports.len()).filter(|i| ports[*i] != ports[(i + 1) % ports.len()]).count();
            let different: BTreeSet<_> = ports.iter().collect();
            assert!(changes <= different.len(), "seed {seed}, switch {switch}: {ports:?}");
        }
    }
}

#[test]
fn with_up_down_tables_messages_never_go_up_after_down_and_take_links_that_the_tree_leaves_out() {
    let mut shorter = 0;
    for seed in 0..60 {
        let topology = draw(&mut Random::new(seed), 40);
        let (one, all) = (Tree::new(&topology).unwrap(), Tree::new(&topology.up_down()).unwrap());
        for (from, to) in (0..all.endpoints() as u16).flat_map(|id| [(0, id), (id, 0), (id, id / 2)]) {
            let way = all.route(from, to);
            let ups =
                way.windows(2).map(|pair| (all.depth(pair[1]), pair[1]) < (all.depth(pair[0]), pair[0]));
            assert!(ups.is_sorted_by(|before, after| before >= after), "seed {seed}: {way:?}");
            shorter += usize::from(way.len() < one.route(from, to).len());
            assert_eq!(links(&all, Tree::port_on_tree, from, to), links(&one, Tree::port, from, to));
        }
    }
    assert!(shorter > 100, "{shorter}");
}

/// Each process sends messages of drawn lengths and priorities to drawn others, all at once, while all make calls in the switches.
#[test]
fn messages_arrive_once_and_in_order_and_the_fewest_buffers_suffice() {
    for seed in 0..25 {
        let topology = draw_with_tables(seed, 20);
        let endpoints = topology.endpoints();
        for (buffers, window) in [(4, 1), (4, 64), (8, 5)] {
            let timing = Timing { buffers, window, ..Timing::SRIO };
            let report = mpirio::run(&topology, timing, async |mut world| {
                let mut sent = Vec::new();
                let drawn = |from: usize, to: usize| {
                    let mut random = Random::new(seed << 32 | (from * endpoints + to) as u64);
                    (0..random.below(4)).map(move |_| random.below(700) as usize).collect::<Vec<_>>()
                };
                let own = world.rank();
                for to in (0..endpoints).filter(|to| *to != own) {
                    world.set_priority(((own + to) % 3) as u8);
                    for (n, bytes) in drawn(own, to).into_iter().enumerate() {
                        sent.push(world.start_send(to, 5, &vec![(own * 31 + to + n) as u8; bytes]).unwrap());
                    }
                }
                let mut data = vec![own as u32; 300];
                world.all_reduce(&mut data, Max).await.unwrap();
                world.broadcast(seed as usize % endpoints, &mut data).await.unwrap();
                assert!(data.iter().all(|value| *value as usize == endpoints - 1), "seed {seed}");
                for from in (0..endpoints).filter(|from| *from != own) {
                    for (n, bytes) in drawn(from, own).into_iter().enumerate() {
                        let mut data = vec![0; bytes];
                        world.recv(from, 5, &mut data).await.unwrap();
                        assert!(data.iter().all(|byte| *byte == (from * 31 + own + n) as u8), "seed {seed}");
                    }
                }
                for one in sent {
                    one.wait().await.unwrap();
                }
            });
            let report = report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let (sent, received) =
                report.packets.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            // Each of the 5 packets of the broadcast reaches all but one endpoint.
            let copies = 5 * (endpoints as u64 - 2);
            assert_eq!((sent + copies, report.dropped, report.held), (received, 0, 0), "seed {seed}");
        }
    }
}

#[test]
fn what_has_no_way_is_dropped_counted_and_told() {
    use crate::rapidio::Error;
    use crate::rapidio::fabric::Fabric;
    let mut fabric = Fabric::new(&Topology::boards(3).chain(), Timing::PAPER).unwrap();
    let lost = fabric.start_send(0, 99, 0, 0, vec![1; 600]);
    let fine = fabric.start_send(1, 11, 0, 0, vec![1; 600]);
    fabric.tree.set(2, 10, 77);
    let half_way = fabric.start_send(2, 10, 0, 0, vec![1; 600]);
    while fabric.step() {}
    assert_eq!(fabric.poll_op(0, lost), Some(Err(Error::NoRoute { dest: 99 })));
    assert_eq!(fabric.poll_op(2, half_way), Some(Err(Error::NoRoute { dest: 10 })));
    assert_eq!(fabric.poll_op(1, fine), Some(Ok(Vec::new())));
    let dropped: u64 = fabric.switches.iter().map(|switch| switch.dropped).sum();
    let sent: u64 = fabric.endpoints.iter().map(|endpoint| endpoint.sent).sum();
    let received: u64 = fabric.endpoints.iter().map(|endpoint| endpoint.received).sum();
    assert_eq!((sent, received, dropped), (5, 3, 2));
    assert_eq!(fabric.held(), 0);
}

/// Regression: the second one waited forever behind the first, which had ended before all of it was sent.
#[test]
fn each_of_several_messages_to_where_no_route_leads_is_told_so() {
    use crate::rapidio::Error;
    use crate::rapidio::fabric::Fabric;
    for timing in [Timing::PAPER, Timing::SRIO] {
        let mut fabric = Fabric::new(&Topology::boards(3).chain(), timing).unwrap();
        let lost: Vec<_> = (0..3).map(|tag| fabric.start_send(0, 99, tag, 0, vec![1; 50_000])).collect();
        while fabric.step() {}
        for key in lost {
            assert_eq!(fabric.poll_op(0, key), Some(Err(Error::NoRoute { dest: 99 })));
        }
        assert_eq!(fabric.held(), 0);
    }
}

#[test]
fn the_middle_board_of_a_chain_takes_a_flow_of_high_priority_first() {
    // Ranks 0 to 3 send to 8 to 11 over the same two links; 3 with a higher priority.
    let report = mpirio::run(
        &Topology::boards(3).chain(),
        Timing { window: 64, ..Timing::PAPER },
        async |mut world| {
            let rank = world.rank();
            let mut data = vec![rank as u8; 20_000];
            if rank < 4 {
                world.set_priority(if rank == 3 { 2 } else { 0 });
                world.send(rank + 8, 0, &data).await.unwrap();
            } else if rank >= 8 {
                world.recv(rank - 8, 0, &mut data).await.unwrap();
            }
            world.time()
        },
    );
    let times = report.unwrap().results;
    // 80 packets each, one per cycle: alone, the last one arrives after a little over 80 cycles; that of the others after 320.
    assert!(times[11] < 120 && times[8..11].iter().all(|time| *time > 240), "{times:?}");
}

#[test]
fn what_tables_send_round_in_a_circle_is_dropped_and_told() {
    use crate::rapidio::Error;
    use crate::rapidio::fabric::Fabric;
    let mut fabric = Fabric::new(&Topology::boards(3).chain(), Timing::PAPER).unwrap();
    // Switch 1 sends packets for endpoint 11 back to switch 0.
    fabric.tree.set(1, 11, 4);
    assert_eq!(fabric.tree.route(0, 11), [0, 1, 0, 1]);
    let lost = fabric.start_send(0, 11, 0, 0, vec![1; 100]);
    let fine = fabric.start_send(1, 10, 0, 0, vec![1; 100]);
    while fabric.step() {}
    assert_eq!(fabric.poll_op(0, lost), Some(Err(Error::NoRoute { dest: 11 })));
    assert_eq!(fabric.poll_op(1, fine), Some(Ok(Vec::new())));
    assert_eq!((fabric.held(), fabric.switches.iter().map(|switch| switch.dropped).sum::<u64>()), (0, 1));
}
