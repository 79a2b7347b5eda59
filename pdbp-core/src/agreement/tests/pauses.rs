//! Nodes that are suspended for a while, while their clocks keep running: a stopped process, a machine that sleeps.

use super::plan::Plan;
use super::table::{added, node, part};
use super::world::World;

const LEASE: u64 = 16_000;

fn started(nodes: usize) -> World {
    let mut world = World::new(3, Plan { nodes, lease: LEASE, ..Plan::quiet() });
    world.run_until("all to be current", |w| (0..nodes).all(|i| w.is_current(i)));
    world
}

fn goes_on(mut world: World, nodes: usize) {
    world.run_until("all to be members and current", |w| {
        (0..nodes).all(|i| w.is_current(i) && (0..nodes).all(|n| w.replica(i).is_member(node(n))))
    });
    world.ask(nodes - 1, added(part(nodes - 1, 9)));
    world.run_until("an answer", |w| !w.is_requesting(nodes - 1));
    for i in 0..nodes {
        assert!(world.table(i).has(part(nodes - 1, 9)));
    }
}

/// The primary took the time of its own suspension for silence of the others.
#[test]
fn a_cluster_that_stood_still_as_a_whole_declares_nobody_down() {
    for nodes in [2, 3, 5] {
        for leases in [1, 2, 3, 100] {
            // The first to resume is the primary, the last, or all resume at once.
            for lag in [0, 1_000, 3_000] {
                for backwards in [false, true] {
                    let mut world = started(nodes);
                    for i in 0..nodes {
                        let place = if backwards { nodes - 1 - i } else { i } as u64;
                        world.stop(i, leases * LEASE + place * lag);
                    }
                    world.run_for(leases * LEASE - 1_000);
                    assert!((0..nodes).all(|i| !world.is_current(i) || leases == 1));
                    world.run_for(1_000 + 6 * LEASE);
                    assert_eq!(
                        world.declared_down(),
                        0,
                        "{nodes} nodes, {leases} leases, {lag}, {backwards}"
                    );
                    goes_on(world, nodes);
                }
            }
        }
    }
}

#[test]
fn a_primary_that_stood_still_is_replaced_and_shows_nothing_old() {
    for nodes in [3, 5] {
        let mut world = started(nodes);
        world.stop(0, 20 * LEASE);
        world.run_until("another primary", |w| {
            (1..nodes).any(|i| w.replica(i).primary() == Some(node(i)) && w.is_current(i))
        });
        assert!(!world.is_current(0), "its lease has run out while it stood still");
        world.ask(nodes - 1, added(part(nodes - 1, 3)));
        world.run_until("an answer", |w| !w.is_requesting(nodes - 1));
        world.run_until("the first to go on", |w| !w.is_stopped(0));
        assert!(!world.is_current(0), "it has heard nothing yet");
        goes_on(world, nodes);
    }
}

#[test]
fn a_node_that_stood_still_is_declared_down_and_let_in_again() {
    let mut world = started(3);
    world.stop(2, 20 * LEASE);
    world.run_until("node 2 to be out", |w| !w.replica(0).is_member(node(2)));
    assert!(!world.is_current(2) && world.replica(2).is_member(node(2)), "it does not know yet");
    goes_on(world, 3);
}

/// What it asks the masters shows that it lives, and they had nothing to tell it.
#[test]
fn a_node_that_takes_the_primary_for_missing_follows_it_again() {
    for nodes in [2, 3, 5] {
        let mut world = started(nodes);
        world.replica_mut(nodes - 1).step_down();
        world.run_until("it to be current", |w| w.is_current(nodes - 1));
        world.run_for(2 * LEASE);
        assert_eq!(world.declared_down(), 0, "{nodes} nodes");
        goes_on(world, nodes);
    }
}
