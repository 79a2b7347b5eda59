//! The behaviour of a few nodes when nothing, or one thing, goes wrong.

use super::plan::Plan;
use super::table::{added, node, part};
use super::world::World;
use crate::agreement::{Change, RequestError};

fn quiet(nodes: usize, lease: u64) -> World {
    World::new(1, Plan { nodes, lease, ..Plan::quiet() })
}

#[test]
fn the_first_node_becomes_primary() {
    for lease in [0, 16_000] {
        let mut world = quiet(3, lease);
        world.run_until("a primary", |w| (0..3).all(|i| w.replica(i).primary() == Some(node(0))));
    }
}

#[test]
fn a_part_is_known_everywhere_when_its_request_is_answered() {
    for (nodes, lease) in [(1, 0), (1, 16_000), (2, 0), (3, 16_000), (5, 0)] {
        let mut world = quiet(nodes, lease);
        let asker = nodes - 1;
        world.ask(asker, added(part(asker, 7)));
        world.run_until("an answer", |w| !w.is_requesting(asker));
        for i in 0..nodes {
            assert!(world.table(i).has(part(asker, 7)), "node {i} of {nodes}, lease {lease}");
        }
        world.run_until("all to be current", |w| (0..nodes).all(|i| w.is_current(i)));
        world.ask(asker, Change::PartRemoved(part(asker, 7)));
        world.run_until("an answer", |w| !w.is_requesting(asker));
        for i in 0..nodes {
            assert!(!world.table(i).has(part(asker, 7)), "node {i} of {nodes}, lease {lease}");
        }
    }
}

#[test]
fn a_full_table_refuses_and_takes_more_after_a_part_is_freed() {
    let mut world = World::new(2, Plan { nodes: 2, parts: 2, ..Plan::quiet() });
    for local in 0..3 {
        world.ask(1, added(part(1, local)));
        world.run_until("an answer", |w| !w.is_requesting(1));
        assert_eq!(world.last_answer(1), Some(local < 2));
    }
    world.ask(1, Change::PartRemoved(part(1, 0)));
    world.run_until("an answer", |w| !w.is_requesting(1));
    world.ask(1, added(part(1, 2)));
    world.run_until("an answer", |w| !w.is_requesting(1));
    assert_eq!(world.last_answer(1), Some(true));
}

#[test]
fn two_nodes_go_on_without_the_second_and_wait_without_the_first() {
    for lease in [0, 16_000] {
        let mut world = quiet(2, lease);
        world.run_until("all to be current", |w| (0..2).all(|i| w.is_current(i)));
        world.crash(1);
        world.run_until("node 1 to be out", |w| !w.replica(0).is_member(node(1)));
        world.ask(0, added(part(0, 1)));
        world.run_until("an answer", |w| !w.is_requesting(0));

        let mut world = quiet(2, lease);
        world.run_until("all to be current", |w| (0..2).all(|i| w.is_current(i)));
        world.crash(0);
        world.run_for(400_000);
        assert_eq!(world.replica(1).primary().filter(|p| *p == node(1)), None);
        assert!(!world.is_current(1));
    }
}

#[test]
fn the_standby_takes_over_and_the_old_primary_comes_back() {
    for lease in [0, 16_000] {
        let mut world = quiet(4, lease);
        world.ask(3, added(part(3, 1)));
        world.run_until("an answer", |w| !w.is_requesting(3));
        world.crash(0);
        world.ask(3, added(part(3, 2)));
        world.run_until("an answer", |w| !w.is_requesting(3));
        assert_eq!(world.replica(3).primary(), Some(node(1)));
        world.restart(0);
        world.run_until("node 0 to be back", |w| w.replica(3).is_member(node(0)) && w.is_current(0));
        assert!(world.table(0).has(part(3, 1)) && world.table(0).has(part(3, 2)));
    }
}

#[test]
fn a_node_that_comes_back_after_more_changes_than_the_log_holds_gets_a_snapshot() {
    let mut world = World::new(4, Plan { nodes: 3, parts: 30, ..Plan::quiet() });
    world.crash(2);
    for local in 0..25 {
        world.ask(1, added(part(1, local)));
        world.run_until("an answer", |w| !w.is_requesting(1));
    }
    world.restart(2);
    world.run_until("node 2 to be back", |w| w.replica(0).is_member(node(2)) && w.is_current(2));
    assert_eq!(world.table(2).listing(), world.table(0).listing());
}

#[test]
fn a_node_cut_off_is_expelled_and_comes_back() {
    let mut world = quiet(3, 16_000);
    world.run_until("all to be current", |w| (0..3).all(|i| w.is_current(i)));
    let epoch = world.replica(0).epoch();
    for other in 0..2 {
        world.block(2, other, 200_000);
        world.block(other, 2, 200_000);
    }
    world.run_until("node 2 to be out", |w| !w.replica(0).is_member(node(2)));
    assert!(!world.is_current(2));
    world.run_until("node 2 to be back", |w| w.replica(0).is_member(node(2)) && w.is_current(2));
    assert_eq!(world.replica(0).epoch(), epoch, "the epoch is the same");
}

#[test]
fn what_only_the_primary_may_change_cannot_be_asked_for() {
    let mut world = quiet(2, 0);
    for change in [Change::NodeDown(node(1)), Change::Nothing, added(part(1, 0))] {
        let refused = world.replica_mut(0).request(change);
        assert!(matches!(refused, Err(RequestError::NotARequest(_))), "{refused:?}");
    }
}

#[test]
fn a_poll_without_anything_to_do_is_idle() {
    let mut world = quiet(3, 0);
    world.run_until("all to be current", |w| (0..3).all(|i| w.is_current(i)));
    world.run_for(50_000);
    for i in 0..3 {
        assert_eq!(world.replica_mut(i).next_receiver(|_| true), None, "node {i}");
        assert_eq!(world.tick(i), None, "node {i} waits for messages only");
    }
}
