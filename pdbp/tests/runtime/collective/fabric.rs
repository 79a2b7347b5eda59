//! Groups and programs on a fabric of switches.

use std::sync::atomic::AtomicUsize;

use pdbp::collective::{Group, GroupError, Max, Sum, With};
use pdbp::{Builder, Cluster, PartKind, Progress, TransportKind};

use super::{meet, suite};
use crate::{BRIEFLY, SOON, part};

fn on(fabric: &str, progress: Progress) -> Builder {
    let builder = Cluster::builder().transport(TransportKind::Rapidio).fabric(fabric.to_owned());
    builder.progress(progress).block_bytes(1024).set("pack_bytes", "512").timeout(SOON)
}

#[test]
fn groups_do_all_that_they_have_to_on_a_fabric_with_switches_and_without() {
    for is_on in [true, false] {
        for (fabric, nodes) in
            [("boards=1", 2), ("boards=2,chain", 5), ("boards=3,ring", 7), ("boards=2,tree=2", 8)]
        {
            let cluster = on(fabric, Progress::Inline).nodes(nodes).group_switches(is_on).start().unwrap();
            cluster.run(|node| {
                let mut all = Group::of_nodes(&node, "look", SOON).unwrap();
                assert_eq!((all.has_switches(), all.shares_memory()), (is_on, false));
                all.barrier().unwrap();
                assert_eq!(all.stats().in_switches, u64::from(is_on));
                drop(all);
                // Endpoints are numbered along the tree, board by board.
                if nodes == 5 {
                    suite::divided(&node, |one, other| one / 4 == other / 4);
                }
                suite::all(&node, &[0, 1, 7, 600]);
            });
        }
    }
}

#[test]
fn sixteen_endpoints_are_a_cluster_by_themselves() {
    for progress in [Progress::Thread, Progress::Inline] {
        let cluster = on("boards=4,ring", progress).start().unwrap();
        assert_eq!((cluster.size(), cluster.settings().nodes), (16, 16));
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            let mut sum = vec![all.rank() as u32; 1000];
            all.all_reduce(&mut sum, Sum).unwrap();
            assert_eq!(sum, [120; 1000]);
            node.barrier(SOON).unwrap();
        });
    }
}

/// Member 0 has nothing to send, and has completed a call that the other member waits for in vain.
#[test]
fn a_call_that_does_not_end_though_all_have_begun_it_names_another_member() {
    let done = AtomicUsize::new(0);
    on("boards=1", Progress::Inline).nodes(2).start().unwrap().run(|node| {
        let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
        if all.rank() == 0 {
            all.broadcast::<u8>(0, &mut []).unwrap();
        }
        meet(&done, 2);
        if all.rank() == 1 {
            all.set_patience(BRIEFLY);
            let error = all.broadcast(0, &mut [0u8; 8]).unwrap_err();
            assert!(matches!(error, GroupError::TimedOut { rank: 0, .. }), "{error:?}");
        }
        meet(&done, 4);
    });
}

/// Calls that switches do not carry out are done by messages, and the figures show it.
#[test]
fn figures_say_which_calls_switches_have_carried_out() {
    on("boards=2,chain", Progress::Inline).nodes(5).start().unwrap().run(|node| {
        let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
        let (me, size) = (all.rank(), all.size());
        let own = [me as u8; 125];
        let mut got = vec![0; size * 125];
        all.gather(1, &own, (me == 1).then_some(&mut got[..])).unwrap();
        let in_switches = |all: &Group| all.stats().in_switches;
        assert_eq!(in_switches(&all), 1);
        all.gather(1, &[own, own].concat(), (me == 1).then_some(&mut vec![0; size * 250][..])).unwrap();
        all.all_gather(&own, &mut got).unwrap();
        all.all_reduce(&mut [1i64], With(|a: i64, b: i64| a + b)).unwrap();
        assert_eq!((in_switches(&all), all.stats().calls), (1, 4));
        all.broadcast(3, &mut [0u8; 5000]).unwrap();
        all.reduce(2, &mut [0f64; 500], Max).unwrap();
        all.scatter(0, (me == 0).then_some(&got), &mut [0u8; 125]).unwrap();
        assert_eq!((in_switches(&all), all.stats().calls), (4, 7));
        node.barrier(SOON).unwrap();
    });
}

/// Members are numbered in the order of the list, switches along their tree.
#[test]
fn a_list_in_another_order_than_the_tree_is_kept() {
    on("boards=2,chain", Progress::Inline).start().unwrap().run(|node| {
        let own = part(&node, "p");
        let order = [5, 0, 7, 2, 1];
        let Some(me) = order.iter().position(|other| *other == node.id().index()) else { return };
        let names: Vec<String> = order.iter().map(|node| format!("p@node{node}")).collect();
        let list: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut all = Group::of(&own, "some", &list, SOON).unwrap();
        assert!(all.has_switches() && all.rank() == me);
        for root in 0..order.len() {
            let mut got = vec![0u16; 3 * order.len()];
            all.gather(root, &[me as u16; 3], (me == root).then_some(&mut got[..])).unwrap();
            let expected: Vec<u16> = (0..order.len() as u16).flat_map(|rank| [rank; 3]).collect();
            assert!(me != root || got == expected, "{got:?}");
            let mut block = [0u16; 3];
            all.scatter(root, (me == root).then_some(&expected[..]), &mut block).unwrap();
            assert_eq!(block, [me as u16; 3]);
            let mut data = [if me == root { root as u64 + 1 } else { 0 }];
            all.broadcast(root, &mut data).unwrap();
            assert_eq!(data, [root as u64 + 1]);
            let mut sum = [1u32 << me];
            all.reduce(root, &mut sum, Sum).unwrap();
            assert!(me != root || sum == [31]);
        }
        all.barrier().unwrap();
        assert_eq!(all.stats().in_switches, u64::from(all.stats().calls));
    });
}

/// A switch has masks for 40 groups, one of them the group of all. Dropping a group makes room.
#[test]
fn a_group_for_which_switches_have_no_mask_does_without() {
    on("boards=1", Progress::Inline).nodes(2).start().unwrap().run(|node| {
        for _ in 0..2 {
            let mut groups: Vec<_> =
                (0..45).map(|i| Group::of_nodes(&node, &format!("g{i}"), SOON).unwrap()).collect();
            let with = groups.iter().filter(|group| group.has_switches()).count();
            assert_eq!(with, 39);
            for group in &mut groups {
                let mut sum = [1u8];
                group.all_reduce(&mut sum, Sum).unwrap();
                assert_eq!((sum[0], group.stats().in_switches), (2, u64::from(group.has_switches())));
            }
            node.barrier(SOON).unwrap();
            drop(groups);
            node.barrier(SOON).unwrap();
        }
    });
}

/// Two members on one node are not separate endpoints.
#[test]
fn a_group_with_two_members_on_a_node_does_without_switches() {
    let cluster = on("boards=1", Progress::Thread).nodes(2).start().unwrap();
    let names = ["a@node0", "b@node1", "c@node0"];
    std::thread::scope(|scope| {
        for (i, name) in names.into_iter().enumerate() {
            let node = cluster.node(i % 2).unwrap();
            scope.spawn(move || {
                let own = node.register(&name[..1], PartKind::Cpu).unwrap();
                let mut all = Group::of(&own, "three", &names, SOON).unwrap();
                assert!(!all.has_switches());
                let mut sum = [1u64 << i];
                all.all_reduce(&mut sum, Sum).unwrap();
                assert_eq!(sum, [7]);
                all.barrier().unwrap();
            });
        }
    });
}

#[test]
fn a_fabric_that_cannot_be_is_refused_with_the_word() {
    let says = |builder: Builder, part: &str| {
        let error = builder.start().err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    };
    says(
        on("boards=4,rink", Progress::Inline),
        "`fabric` = \"boards=4,rink\": step 2: \"rink\" is not a step of a topology; there are",
    );
    says(on("boards=4", Progress::Inline), "switch 1 is not connected; link it");
    says(on("boards=two", Progress::Inline), "\"boards=two\" is not a step");
    says(on("boards=1", Progress::Inline).nodes(5), "5 nodes on a fabric of 4 endpoints; add boards");
    says(Cluster::builder().transport(TransportKind::Rapidio), "set `fabric`, to boards=4,ring for example");
    says(Cluster::builder().set("fabric", ""), "`fabric` is \"\"");
}
