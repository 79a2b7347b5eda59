//! Random operations on a cluster against the oracle.

use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use super::harness::{Cluster, Links, Operation, Policy, Setup, node};
use crate::Arrival;
use crate::Routing;
use crate::engine::Checksum;

fn setups() -> impl Strategy<Value = Setup> {
    let policy = prop_oneof![Just(Policy::Fixed), Just(Policy::Published), Just(Policy::Adaptive)];
    let links = prop_oneof![Just(Links::InPlace), Just(Links::Posted), Just(Links::Mixed)];
    let sizes = (1usize..=4, 1u32..=4, 0u32..=8, 1u32..=4);
    (sizes, links, policy, any::<(bool, bool, bool)>(), 1usize..=3).prop_map(
        |((nodes, initial, extra, control), links, policy, (trusted, checksum, tight), pipe)| Setup {
            nodes,
            links,
            trusted,
            policy,
            checksum: if checksum { Checksum::On } else { Checksum::Off },
            initial,
            row: initial + extra,
            extra,
            control,
            capacity: if tight { 3 } else { 64 },
            pipe: if tight { pipe } else { 1 << 20 },
            ..Setup::default()
        },
    )
}

fn runs() -> impl Strategy<Value = (Setup, Vec<Operation>)> {
    (setups(), vec(any::<[u8; 4]>(), 0..600)).prop_map(|(setup, bytes)| {
        let operations = bytes.into_iter().map(|b| Operation::decode(b, setup.nodes)).collect();
        (setup, operations)
    })
}

/// Every eighth operation makes a link fail or come back.
fn cuts() -> impl Strategy<Value = (Setup, Vec<Operation>)> {
    let bytes = prop_oneof![7 => any::<[u8; 4]>(), 1 => (248u8..250, any::<[u8; 3]>()).prop_map(|(k, [a, b, c])| [k, a, b, c])];
    (setups(), vec(bytes, 0..600)).prop_map(|(setup, bytes)| {
        let operations = bytes.into_iter().map(|b| Operation::decode(b, setup.nodes)).collect();
        (Setup { links: Links::Posted, ..setup }, operations)
    })
}

/// Every eighth operation makes control blocks unreadable, direct and with relays.
fn garbles() -> impl Strategy<Value = (Setup, Vec<Operation>)> {
    let bytes = prop_oneof![7 => any::<[u8; 4]>(), 1 => (Just(228u8), any::<[u8; 3]>()).prop_map(|(k, [a, b, c])| [k, a, b, c])];
    (setups(), any::<bool>(), 4usize..=11, vec(bytes, 0..600)).prop_map(|(setup, grid, many, bytes)| {
        let setup =
            if grid { Setup { nodes: many, routing: Routing::Grid, streams: 8, ..setup } } else { setup };
        let operations = bytes.into_iter().map(|b| Operation::decode(b, setup.nodes)).collect();
        (setup, operations)
    })
}

/// A grid of any shape; the last row may be short. A link has circuits for at least one stream of each part of three nodes.
fn grids() -> impl Strategy<Value = (Setup, Vec<Operation>)> {
    (setups(), 4usize..=11, vec(any::<[u8; 4]>(), 0..600)).prop_map(|(setup, nodes, bytes)| {
        let operations = bytes.into_iter().map(|b| Operation::decode(b, nodes)).collect();
        (Setup { nodes, routing: Routing::Grid, streams: 8, ..setup }, operations)
    })
}

/// Credit for blocks read in place is either held by the rows or left over; in total it equals the number of the node's blocks.
fn assert_all_credit_is_there(cluster: &mut Cluster) {
    for i in cluster.live() {
        let setup = cluster.setup.clone();
        let engine = &cluster.host(i).engine;
        let near = (0..setup.nodes).filter(|p| *p != i && setup.links.between(i, *p) == Arrival::InPlace);
        let granted: u32 = near.filter_map(|p| engine.recv_row(node(p))).map(|row| row.space.real()).sum();
        assert_eq!(engine.space.credit + granted, setup.blocks(i), "credit of node {i}");
    }
}

/// All barriers at which all nodes have arrived have completed, and every node that asked for quiescence has its answer.
fn assert_nobody_waits(cluster: &Cluster) {
    let least = cluster.hosts.iter().flatten().map(|host| host.barriers).min().unwrap_or(0);
    for host in cluster.hosts.iter().flatten() {
        assert!(host.barrier.is_none_or(|number| number > least), "barrier {:?} of {least}", host.barrier);
        assert!(host.quiet.is_none() && host.closing.is_empty());
    }
}

/// Streams that are over, or broken, have returned their circuits at the relays.
fn assert_no_circuit_is_lent(cluster: &mut Cluster) {
    for i in cluster.live() {
        assert_eq!(cluster.host(i).engine.streams.lent(), 0, "circuits of node {i}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Every message arrives once, in its lane's order, unchanged; every block comes back; barriers and quiescence are correct,
    /// whatever the network holds back or refuses.
    #[test]
    fn nothing_is_lost_doubled_or_leaked((setup, operations) in runs()) {
        let mut cluster = setup.ready();
        for operation in operations {
            if !operation.is_hostile() {
                cluster.apply(operation);
            }
        }
        cluster.settle();
        assert_all_credit_is_there(&mut cluster);
        cluster.close();
    }

    /// Blocks whose bytes change in flight are refused whole; their credit and their place in the quiescence count come back.
    #[test]
    fn changed_bytes_cost_nothing_but_themselves((setup, operations) in runs()) {
        let setup = Setup { checksum: Checksum::On, ..setup };
        let mut cluster = setup.ready();
        cluster.oracle.borrow_mut().lossy = true;
        for operation in operations {
            if !operation.is_hostile() || matches!(operation, Operation::Flip { .. } | Operation::Garble { .. }) {
                cluster.apply(operation);
            }
        }
        for i in 0..setup.nodes {
            cluster.apply(Operation::Quiet { node: i });
        }
        cluster.settle();
        for i in 0..setup.nodes {
            let refused: u32 = (0..setup.nodes).map(|p| cluster.net.borrow().links[p][i].flipped).sum();
            let counters = cluster.host(i).engine.counters();
            prop_assert_eq!(counters.malformed, u64::from(refused));
            prop_assert_eq!(counters.out_of_sequence, 0);
        }
    }

    /// Unreadable control blocks cost nothing at all: their messages are repeated.
    #[test]
    fn unreadable_control_blocks_cost_nothing((setup, operations) in garbles()) {
        let mut cluster = setup.ready();
        for operation in operations {
            if !operation.is_hostile() || matches!(operation, Operation::Garble { .. }) {
                cluster.apply(operation);
            }
        }
        cluster.settle();
        assert_all_credit_is_there(&mut cluster);
        assert_no_circuit_is_lent(&mut cluster);
        assert_nobody_waits(&cluster);
        cluster.close();
    }

    /// Links fail and come back. No node loses more than what it had for the other end, and none loses a block; streams end, and
    /// quiescence is reached.
    #[test]
    fn links_that_fail_take_along_only_what_was_on_them((setup, operations) in cuts()) {
        let mut cluster = setup.ready();
        for operation in operations {
            if !operation.is_hostile() || matches!(operation, Operation::Cut { .. } | Operation::Garble { .. }) {
                cluster.apply(operation);
            }
        }
        for i in 0..setup.nodes {
            cluster.apply(Operation::Quiet { node: i });
        }
        cluster.settle();
        assert_all_credit_is_there(&mut cluster);
        cluster.close();
    }

    /// Nodes die: blocks of others that they held come back, and the rest carries on.
    #[test]
    fn the_dead_keep_no_blocks((setup, operations) in runs()) {
        let mut cluster = setup.ready();
        for operation in operations {
            if !matches!(operation, Operation::Flip { .. } | Operation::Inject { .. }) {
                cluster.apply(operation);
            }
        }
        for i in cluster.live() {
            cluster.apply(Operation::Quiet { node: i });
        }
        cluster.settle();
        assert_all_credit_is_there(&mut cluster);
        let dead = cluster.dead.clone();
        for i in cluster.live() {
            for d in &dead {
                let engine = &cluster.host(i).engine;
                prop_assert!(engine.has_failed(node(*d)));
                prop_assert_eq!(engine.send_row(node(*d)).unwrap().space.real(), 0);
                prop_assert_eq!(engine.recv_row(node(*d)).unwrap().space.real(), 0);
            }
        }
    }

    /// Blocks that nobody sent: no panic, and none of the nodes' own blocks is lost. (Messages that they displace or break are
    /// not checked.)
    #[test]
    fn forged_blocks_break_nothing((setup, operations) in runs()) {
        let setup = Setup { trusted: false, ..setup };
        let mut cluster = setup.ready();
        cluster.oracle.borrow_mut().lossy = true;
        for host in cluster.hosts.iter_mut().flatten() {
            host.pipes.checked = false;
        }
        for operation in operations {
            cluster.apply(operation);
        }
        for _ in 0..50 {
            for i in cluster.live() {
                cluster.poll(i);
                for local in 0..3 {
                    cluster.read(i, local, usize::MAX, false);
                }
                cluster.release(i);
            }
        }
        cluster.close();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Through relays, too, every message arrives once, in its lane's order, unchanged, with pipes of any size.
    #[test]
    fn relays_lose_double_and_leak_nothing((setup, operations) in grids()) {
        let mut cluster = setup.ready();
        for operation in operations {
            if !operation.is_hostile() {
                cluster.apply(operation);
            }
        }
        cluster.settle();
        assert_all_credit_is_there(&mut cluster);
        assert_no_circuit_is_lent(&mut cluster);
        cluster.close();
    }

    /// Messages that go through a relay that dies, or over a link that fails, may be lost; those that arrive do so once and in
    /// order, and no block is kept.
    #[test]
    fn dead_relays_keep_no_blocks((setup, operations) in grids()) {
        let mut cluster = setup.ready();
        cluster.oracle.borrow_mut().lossy = true;
        for operation in operations {
            if !operation.is_hostile() || matches!(operation, Operation::Kill { .. } | Operation::Cut { .. } | Operation::Garble { .. }) {
                cluster.apply(operation);
            }
        }
        for i in cluster.live() {
            cluster.apply(Operation::Quiet { node: i });
        }
        cluster.settle();
        assert_all_credit_is_there(&mut cluster);
        assert_no_circuit_is_lent(&mut cluster);
        cluster.close();
    }

    /// Blocks that nobody sent, some with relay extensions: no panic, no loop, and none of the nodes' own blocks is lost.
    #[test]
    fn forged_blocks_break_no_relay((setup, operations) in grids()) {
        let setup = Setup { trusted: false, ..setup };
        let mut cluster = setup.ready();
        cluster.oracle.borrow_mut().lossy = true;
        for host in cluster.hosts.iter_mut().flatten() {
            host.pipes.checked = false;
        }
        for operation in operations {
            if !matches!(operation, Operation::Cut { .. }) {
                cluster.apply(operation);
            }
        }
        for _ in 0..50 {
            for i in cluster.live() {
                cluster.poll(i);
                for local in 0..3 {
                    cluster.read(i, local, usize::MAX, false);
                }
                cluster.release(i);
            }
        }
        cluster.close();
    }
}
