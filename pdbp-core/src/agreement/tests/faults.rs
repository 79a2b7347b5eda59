//! Random schedules with faults. A failure prints its seed; `PDBP_AGREEMENT_SEED=<seed>` repeats it, and
//! `PDBP_AGREEMENT_SECONDS=<seconds>` makes the run long.

use std::format;
use std::string::String;

use super::checker::is_linearizable;
use super::table::{node, part};
use super::world::{Plan, Random, World};
use crate::agreement::Flaw;

/// A plan that depends on the seed alone.
pub(super) fn plan(seed: u64, flaw: Option<Flaw>) -> Plan {
    let mut random = Random::new(seed ^ 0xA5A5);
    random.below(2);
    let nodes = [2, 3, 3, 4, 5, 5, 7][random.below(7) as usize];
    Plan {
        nodes,
        masters: if random.one_in(2) { 2 } else { nodes },
        lease: if random.one_in(4) { 0 } else { 16_000 },
        parts: if random.one_in(3) { nodes } else { 2 * nodes + 1 },
        log: 8 + random.below(24) as usize,
        faults: [2, 6, 15][random.below(3) as usize],
        clients: [100, 300, 600][random.below(3) as usize],
        slow: [50, 50, 3][random.below(3) as usize],
        flaw,
    }
}

/// Runs one schedule.
///
/// # Errors
/// What was wrong, with the last events.
pub(super) fn run(seed: u64, steps: u64, flaw: Option<Flaw>) -> Result<World, String> {
    let mut world = World::new(seed, plan(seed, flaw));
    while world.steps < steps && world.broken.is_none() {
        world.step();
    }
    let nodes = world.plan.nodes;
    if world.broken.is_none() {
        world.heal();
        world.plan.clients = 0;
        let whole = move |w: &World| {
            (0..nodes).all(|i| w.is_current(i) && (0..nodes).all(|n| w.replica(i).is_member(node(n))))
        };
        world.run_until("a cluster of all nodes", whole);
        for i in 0..nodes {
            world.run_until("the answer to an old request", |w| !w.is_asking(i));
            if world.broken.is_none() {
                world.ask(i, crate::agreement::Change::PartRemoved(part(i, 0)));
                world.run_until("an answer", |w| !w.is_asking(i));
            }
        }
        world.run_until("a cluster of all nodes", whole);
        for i in 1..nodes {
            if world.broken.is_none() && world.table(i).listing() != world.table(0).listing() {
                world.broken = Some(format!("nodes 0 and {i} have different tables"));
            }
        }
    }
    for (id, records) in world.history.by_part() {
        if world.broken.is_none() && !is_linearizable(&records) {
            world.broken = Some(format!("the history of {id} is not linearizable: {records:?}"));
        }
    }
    match &world.broken {
        None => Ok(world),
        Some(what) => Err(format!("{}\nseed {seed} {:?}\n{what}", world.report(), world.plan)),
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn schedules_with_faults_keep_the_rules() {
    if let Some(seed) = variable("PDBP_AGREEMENT_SEED") {
        run(seed, 4_000, None).unwrap_or_else(|what| panic!("{what}"));
        return;
    }
    let seconds = variable("PDBP_AGREEMENT_SECONDS");
    let start = std::time::Instant::now();
    let (mut steps, mut records, mut seed) = (0, 0, seconds.map_or(0, |_| 1_000));
    while seconds.map_or(seed < 30, |s| start.elapsed().as_secs() < s) {
        let world = run(seed, 4_000, None).unwrap_or_else(|what| panic!("{what}"));
        steps += world.steps;
        records += world.history.len();
        seed += 1;
    }
    std::println!("{seed} seeds, {steps} steps, {records} operations, {:?}", start.elapsed());
    assert!(steps >= 100_000 && records > 1_000, "{steps} steps, {records} operations");
}
