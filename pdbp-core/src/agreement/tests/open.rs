//! A cluster founded by one node: it is complete with one member; others join, and the tests check what they may decide.

use std::format;
use std::string::String;
use std::vec::Vec;

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
        world.run_until("an answer", |w| !w.is_requesting(0));
        world.run_until("all to have joined", |w| (0..6).all(|i| w.is_current(i)));
        assert!(are_members(&world, 6), "lease {lease}");
        assert!((0..6).all(|i| world.table(i).has(part(0, 1))), "lease {lease}");
        world.ask(5, added(part(5, 1)));
        world.run_until("an answer", |w| !w.is_requesting(5));
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
        world.run_until("an answer", |w| !w.is_requesting(1));
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

/// Regression: the founder assumed that all places belonged to nodes with a lease from its predecessor, and showed nothing for the
/// duration of a lease.
#[test]
fn a_founder_that_begins_alone_waits_for_nobodys_lease() {
    let lease = 8_000_000;
    let mut world = founded(3, 1, lease);
    world.ask(0, added(part(0, 1)));
    world.run_for(lease / 4);
    assert!(!world.is_requesting(0) && are_members(&world, 3));
    // A node that has joined has a lease.
    world.crash(2);
    world.ask(0, added(part(0, 2)));
    world.run_for(lease / 4);
    assert!(world.is_requesting(0));
}

#[test]
fn voters_that_have_joined_go_on_without_the_founder() {
    let mut world = World::new(9, Plan { nodes: 5, voters: 3, masters: 3, open: true, ..Plan::quiet() });
    world.run_until("all to have joined", |w| (0..5).all(|i| w.is_current(i)));
    world.crash(0);
    world.ask(4, added(part(4, 1)));
    world.run_until("an answer", |w| !w.is_requesting(4));
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

/// Whatever was in flight: once any node shows that the third voter is in, the others can continue without the founder.
#[test]
fn a_founder_may_end_as_soon_as_anybody_shows_the_third_voter() {
    for (seed, lease) in (0..200).flat_map(|seed| [(seed, 0), (seed, 16_000)]) {
        let mut world = three_voters(seed, lease);
        let shows = |w: &World, i: usize| w.is_current(i) && (1..3).all(|n| w.replica(i).is_member(node(n)));
        world.run_until("the third voter", |w| (0..3).any(|i| shows(w, i)));
        world.crash(0);
        world.ask(1, added(part(1, 1)));
        world.run_until("an answer", |w| !w.is_requesting(1));
        assert_eq!(world.last_answer(1), Some(true), "seed {seed}, lease {lease}");
        world.run_until("the other to know it", |w| w.is_current(2) && w.table(2).has(part(1, 1)));
        world.restart(0);
        world.run_until("the founder to be back", |w| are_members(w, 3));
        assert!(world.table(0).has(part(1, 1)), "seed {seed}, lease {lease}");
    }
}

/// The third voter's admission was decided, and only the founder knows: for the other two it is as if it had not been decided.
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

/// Whether a node knows that all three voters are members.
fn knows(w: &World, i: usize) -> bool {
    w.runs(i) && (0..3).all(|n| w.replica(i).is_member(node(n)))
}

/// For each event from when the second voter is in until all know the third: a world in which that has just happened, with a part that the
/// founder has added before.
fn events_of_the_third_join(seed: u64, lease: u64) -> Vec<World> {
    let begin = || {
        let mut world = three_voters(seed, lease);
        world.ask(0, added(part(0, 1)));
        world
    };
    let (mut reference, mut steps, mut events) = (begin(), Vec::new(), 0);
    reference.run_until("the founder's answer", |w| !w.is_requesting(0));
    reference.run_until("the second voter", |w| (1..3).any(|n| w.replica(0).is_member(node(n))));
    let last = |w: &World| (0..3).all(|i| knows(w, i) && w.is_current(i));
    while !last(&reference) {
        if reference.events > events {
            steps.push(reference.steps);
            events = reference.events;
        }
        reference.step();
    }
    let at = |steps: u64| {
        let mut world = begin();
        while world.steps < steps {
            world.step();
        }
        world
    };
    steps.into_iter().map(at).collect()
}

fn runs_of_the_third_join() -> impl Iterator<Item = (String, World)> {
    let runs = (0..20).flat_map(|seed| [(seed, 0), (seed, 16_000)]);
    runs.flat_map(|(seed, lease)| {
        let worlds = events_of_the_third_join(seed, lease).into_iter().enumerate();
        worlds.map(move |(event, world)| (format!("seed {seed}, lease {lease}, event {event}"), world))
    })
}

/// At each moment of the third voter's admission: either one of the other nodes knows that it is decided, and they continue with
/// everything that the founder has answered, or none does, and they decide and show nothing.
#[test]
fn a_founder_that_ends_at_any_moment_of_an_admission_leaves_all_or_nothing() {
    let (mut went_on, mut stopped) = (0, 0);
    for (run, mut world) in runs_of_the_third_join() {
        world.crash(0);
        if (1..3).any(|i| knows(&world, i)) {
            went_on += 1;
            world.ask(1, added(part(1, 1)));
            world.run_until("an answer", |w| !w.is_requesting(1));
            assert_eq!(world.last_answer(1), Some(true), "{run}");
            world.restart(0);
            world.run_until("the founder to be back", |w| are_members(w, 3));
            assert!([(0, 1), (1, 1)].iter().all(|(n, l)| world.table(0).has(part(*n, *l))), "{run}");
        } else {
            stopped += 1;
            world.run_for(300_000);
            let running = || (1..3).filter(|i| world.runs(*i));
            assert!(running().all(|i| world.replica(i).primary().is_none()), "{run}");
            assert!(running().all(|i| !world.is_current(i)), "{run}");
        }
        assert_eq!(world.broken, None, "{run}");
    }
    assert!(went_on > 0 && stopped > 0, "{went_on} went on, {stopped} stopped");
}

/// Suspended or cut off for longer than any lease, and back: nobody has decided anything else meanwhile, and all continue.
#[test]
fn a_founder_that_is_away_at_any_moment_of_an_admission_finds_its_cluster() {
    const AWAY: u64 = 200_000;
    for cut_off in [false, true] {
        for (run, mut world) in runs_of_the_third_join() {
            if cut_off {
                for other in 1..3 {
                    world.block(0, other, AWAY);
                    world.block(other, 0, AWAY);
                }
            } else {
                world.stop(0, AWAY);
            }
            world.run_for(AWAY);
            world.run_until("all three", |w| are_members(w, 3));
            world.ask(2, added(part(2, 1)));
            world.run_until("an answer", |w| !w.is_requesting(2));
            assert_eq!(world.last_answer(2), Some(true), "{run}, cut off: {cut_off}");
            assert!(world.table(2).has(part(0, 1)), "{run}, cut off: {cut_off}");
        }
    }
}

/// Either of the others may end and return; then the founder may end.
#[test]
fn a_voter_that_ends_at_any_moment_of_an_admission_returns() {
    for ends in [1, 2] {
        for (run, mut world) in runs_of_the_third_join() {
            if world.runs(ends) {
                world.crash(ends);
                world.run_for(20_000);
                world.restart(ends);
            }
            world.run_until("all three", |w| are_members(w, 3));
            assert!((0..3).all(|i| world.table(i).has(part(0, 1))), "{run}: {ends}");
            world.crash(0);
            world.ask(1, added(part(1, 1)));
            world.run_until("an answer", |w| !w.is_requesting(1));
        }
    }
}
