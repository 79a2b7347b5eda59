//! A cluster founded by one node: it is complete with one member; others join, and what they may decide.

use super::plan::Plan;
use super::table::{added, entry, node, part};
use super::world::World;
use crate::agreement::{Agreement, Reach, Settings, SettingsError, Start, Storage};
use crate::id::Time;

fn founded(nodes: usize, voters: usize, lease: u64) -> World {
    World::new(7, Plan { nodes, voters, masters: 1, lease, open: true, parts: 2 * nodes, ..Plan::quiet() })
}

fn are_members(w: &World, nodes: usize) -> bool {
    (0..nodes).all(|i| w.is_current(i) && (0..nodes).all(|n| w.replica(i).is_member(node(n))))
}

#[test]
fn a_founder_decides_alone_and_who_joins_learns_it() {
    for lease in [0, 16_000] {
        let mut world = founded(6, 1, lease);
        world.ask(0, added(part(0, 1)));
        world.run_until("an answer", |w| !w.is_asking(0));
        world.run_until("all to have joined", |w| (0..6).all(|i| w.is_current(i)));
        assert!(are_members(&world, 6), "lease {lease}");
        assert!((0..6).all(|i| world.table(i).has(part(0, 1))), "lease {lease}");
        world.ask(5, added(part(5, 1)));
        world.run_until("an answer", |w| !w.is_asking(5));
        assert!((0..6).all(|i| world.table(i).has(part(5, 1))), "lease {lease}");
    }
}

#[test]
fn any_number_of_learners_may_vanish_at_once() {
    for lease in [0, 16_000] {
        let mut world = founded(8, 1, lease);
        world.run_until("all to have joined", |w| (0..8).all(|i| w.is_current(i)));
        (2..8).for_each(|i| world.crash(i));
        world.ask(1, added(part(1, 1)));
        world.run_until("an answer", |w| !w.is_asking(1));
        world.run_until("them to be out", |w| (2..8).all(|i| !w.replica(0).is_member(node(i))));
        (2..8).for_each(|i| world.restart(i));
        world.run_until("them to be back", |w| are_members(w, 8));
        assert!(world.table(7).has(part(1, 1)), "lease {lease}");
    }
}

#[test]
fn learners_decide_and_show_nothing_without_their_founder() {
    for lease in [0, 16_000] {
        let mut world = founded(5, 1, lease);
        world.run_until("all to have joined", |w| (0..5).all(|i| w.is_current(i)));
        world.crash(0);
        world.run_for(2_000_000);
        for i in 1..5 {
            assert_eq!(world.replica(i).primary(), None, "node {i}, lease {lease}");
            assert!(!world.is_current(i), "node {i}, lease {lease}");
        }
    }
}

/// It assumed that all places belonged to nodes with a lease from its predecessor, and showed nothing for the duration of a lease.
#[test]
fn a_founder_that_begins_alone_waits_for_nobodys_lease() {
    let lease = 8_000_000;
    let mut world = founded(3, 1, lease);
    world.ask(0, added(part(0, 1)));
    world.run_for(lease / 4);
    assert!(!world.is_asking(0) && are_members(&world, 3));
    // A node that has joined has a lease.
    world.crash(2);
    world.ask(0, added(part(0, 2)));
    world.run_for(lease / 4);
    assert!(world.is_asking(0));
}

#[test]
fn voters_that_have_joined_go_on_without_the_founder() {
    let mut world = World::new(9, Plan { nodes: 5, voters: 3, masters: 3, open: true, ..Plan::quiet() });
    world.run_until("all to have joined", |w| (0..5).all(|i| w.is_current(i)));
    world.crash(0);
    world.ask(4, added(part(4, 1)));
    world.run_until("an answer", |w| !w.is_asking(4));
    world.restart(0);
    world.run_until("the founder to be back", |w| are_members(w, 5));
    assert!(world.table(0).has(part(4, 1)));
}

#[test]
fn founders_and_voters_that_cannot_be_are_refused() {
    let with = |me: usize, masters: u16, voters: u16| {
        let settings = Settings {
            entry: entry(me),
            nodes: 4,
            masters,
            voters,
            lease: 0,
            patience: 6_000,
            reach: Reach::All,
            start: Start::Alone,
        };
        Agreement::new(Time(1), settings, Storage::allocate(4, 8)).err()
    };
    assert_eq!(with(0, 1, 1), None);
    assert_eq!(with(1, 2, 3), None);
    assert_eq!(with(1, 1, 1), Some(SettingsError::Founder(node(1))));
    assert_eq!(with(0, 2, 1), Some(SettingsError::Voters(1)));
    assert_eq!(with(0, 2, 5), Some(SettingsError::Voters(5)));
}

/// A founder and two voters that join it. Nobody is slow enough to be taken for dead.
fn three_voters(seed: u64, lease: u64) -> World {
    World::new(seed, Plan { voters: 3, masters: 3, open: true, lease, ..Plan::quiet() })
}

/// Whatever was in flight: once any node shows that the third voter is in, the others can go on without the founder.
#[test]
fn a_founder_may_end_as_soon_as_anybody_shows_the_third_voter() {
    for (seed, lease) in (0..200).flat_map(|seed| [(seed, 0), (seed, 16_000)]) {
        let mut world = three_voters(seed, lease);
        let shows = |w: &World, i: usize| w.is_current(i) && (1..3).all(|n| w.replica(i).is_member(node(n)));
        world.run_until("the third voter", |w| (0..3).any(|i| shows(w, i)));
        world.crash(0);
        world.ask(1, added(part(1, 1)));
        world.run_until("an answer", |w| !w.is_asking(1));
        assert_eq!(world.last_answer(1), Some(true), "seed {seed}, lease {lease}");
        world.run_until("the other to know it", |w| w.is_current(2) && w.table(2).has(part(1, 1)));
        world.restart(0);
        world.run_until("the founder to be back", |w| are_members(w, 3));
        assert!(world.table(0).has(part(1, 1)), "seed {seed}, lease {lease}");
    }
}

/// The third voter's admission was decided, and only the founder knows: for the two others it is as if it had not been decided.
#[test]
fn what_only_a_founder_knows_ends_with_it() {
    for (seed, lease) in (0..40).flat_map(|seed| [(seed, 0), (seed, 16_000)]) {
        let mut world = three_voters(seed, lease);
        world.run_until("the third voter", |w| w.replica(0).is_member(node(2)));
        world.crash(0);
        world.run_for(1_000_000);
        for i in 1..3 {
            assert_eq!(world.replica(i).primary(), None, "node {i}, seed {seed}, lease {lease}");
            assert!(!world.is_current(i), "node {i}, seed {seed}, lease {lease}");
        }
    }
}
