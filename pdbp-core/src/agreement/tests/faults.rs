//! Random schedules with faults. A failure prints its seed; `PDBP_AGREEMENT_SEED=<seed>` repeats it.
//! `PDBP_AGREEMENT_SECONDS=<seconds>` makes the run long, `PDBP_AGREEMENT_FIRST=<seed>` sets the first seed.

use std::format;
use std::string::String;

use super::checker::is_linearizable;
use super::plan::{Plan, Random};
use super::table::{node, part};
use super::world::World;
use crate::agreement::{Flaw, Reach};

/// A plan that depends only on the seed.
pub(super) fn plan(seed: u64, flaw: Option<Flaw>) -> Plan {
    let mut random = Random::new(seed ^ 0xA5A5);
    random.below(2);
    let nodes = [2, 3, 3, 4, 5, 5, 7][random.below(7) as usize];
    Plan {
        nodes,
        masters: if random.one_in(2) { 2 } else { nodes },
        voters: nodes,
        open: false,
        heirs: false,
        founds_again: false,
        lease: if random.one_in(4) { 0 } else { 16_000 },
        parts: if random.one_in(3) { nodes } else { 2 * nodes + 1 },
        log: 8 + random.below(24) as usize,
        faults: [2, 6, 15][random.below(3) as usize],
        losses: 0,
        clients: [100, 300, 600][random.below(3) as usize],
        slow: [50, 50, 3][random.below(3) as usize],
        ends: random.one_in(2),
        reach: Reach::All,
        flaw,
    }
}

/// The same for a cluster founded by node 0, with learners that come and go.
pub(super) fn open_plan(seed: u64, flaw: Option<Flaw>) -> Plan {
    let drawn = plan(seed, flaw);
    let mut random = Random::new(seed ^ 0x0FE4);
    random.below(2);
    let (nodes, voters) = ([4, 5, 6, 8][random.below(4) as usize], [1, 3, 3][random.below(3) as usize]);
    let masters = 1 + random.below(voters) as usize;
    Plan { nodes, masters, voters: voters as usize, open: true, parts: 2 * nodes + 1, ..drawn }
}

/// The same, where places, including those of voters, pass to other processes while the former ones run on unaware.
pub(super) fn heirs_plan(seed: u64, flaw: Option<Flaw>) -> Plan {
    let drawn = open_plan(seed, flaw);
    Plan { nodes: 5, voters: 3, masters: 3, parts: 11, lease: 16_000, faults: 15, heirs: true, ..drawn }
}

/// Runs one schedule.
///
/// # Errors
/// What was wrong, with the last events.
pub(super) fn run(seed: u64, steps: u64, flaw: Option<Flaw>) -> Result<World, String> {
    run_plan(seed, steps, plan(seed, flaw))
}

pub(super) fn run_plan(seed: u64, steps: u64, plan: Plan) -> Result<World, String> {
    let mut world = World::new(seed, plan);
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
            world.run_until("the answer to an old request", |w| !w.is_requesting(i));
            if world.broken.is_none() {
                world.ask(i, crate::agreement::Change::PartRemoved(part(i, 0)));
                world.run_until("an answer", |w| !w.is_requesting(i));
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

/// Each for a different reason: a log that had moved past what a member of the only quorum lacked; a request lost in an election
/// with two candidates; a single member that needs the vote of one it admits; members without the entry that made them members; a
/// request ahead of the entry that admits the asker; an entry that admits a node, and is void.
#[test]
fn schedules_that_once_stalled_go_on() {
    for seed in [1_324, 1_313, 201_171, 100_046, 201_270, 302_554] {
        let plan = Plan { ends: false, ..plan(seed, None) };
        run_plan(seed, 4_000, plan).unwrap_or_else(|what| panic!("{what}"));
    }
    // A node falls silent, another crashes, and the first is back before it is declared down without the other (three of them);
    // entries that a primary had begun its term without, which made their holder's log look newer; one whose successors had nothing
    // to add; a match with the log of one primary, reported to the next (two); a deposed primary's word that a node was not a
    // member, delayed until it was one; a request for admission, delayed until the entry that admits its sender was there; a node
    // that restarted while it was admitted, from a snapshot of what a member lacked.
    for seed in [1_498, 8_618, 18_379, 12_950, 13_038, 20_020, 23_248, 115_423, 704_097, 708_868] {
        run(seed, 4_000, None).unwrap_or_else(|what| panic!("{what}"));
    }
}

/// A primary admitted a node with its vote alone, half of the members, and terminated; the other half had not heard of it, and
/// decided alone.
#[test]
fn a_member_that_is_left_knows_who_was_let_in() {
    run(900_581, 4_000, None).unwrap_or_else(|what| panic!("{what}"));
}

/// Nodes that are not masters have links to masters only. (This does not require that everything comes to rest: when all masters
/// have lost their state, nobody can lead.)
#[test]
fn schedules_of_nodes_that_reach_masters_only_keep_the_rules() {
    let mut records = 0;
    for seed in 5_000..5_030 {
        let drawn = plan(seed, None);
        let nodes = drawn.nodes.max(4);
        let plan = Plan { nodes, masters: 2, reach: Reach::Masters, parts: 2 * nodes, ..drawn };
        let mut world = World::new(seed, plan);
        while world.steps < 3_000 && world.broken.is_none() {
            world.step();
        }
        assert_eq!(world.broken, None, "seed {seed}: {}", world.report());
        for (id, history) in world.history.by_part() {
            assert!(is_linearizable(&history), "seed {seed}, {id}: {history:?}");
        }
        records += world.history.len();
    }
    assert!(records > 500, "{records}");
}

/// Messages are lost on links that stay up; without leases, neither node may take the other to have failed.
#[test]
fn schedules_in_which_messages_are_lost_keep_the_rules() {
    let seconds = variable("PDBP_AGREEMENT_LOSS_SECONDS");
    let start = std::time::Instant::now();
    let (first, mut records) = (40_000, 0);
    let mut seed = first;
    while seconds.map_or(seed < first + 24, |s| start.elapsed().as_secs() < s) {
        let (drawn, losses) = (plan(seed, None), [5, 30, 100][seed as usize % 3]);
        // Every other one without leases, and a third of them without any other fault.
        let lease = if seed.is_multiple_of(2) { 0 } else { drawn.lease };
        let faults = if seed.is_multiple_of(3) { 0 } else { drawn.faults };
        let world = run_plan(seed, 3_000, Plan { losses, lease, faults, ..drawn });
        records += world.unwrap_or_else(|what| panic!("{what}")).history.len();
        seed += 1;
    }
    std::println!("seeds {first} to {seed}, {records} operations, {:?}", start.elapsed());
    assert!(records > 1_000, "{records}");
}

#[test]
fn nodes_that_reach_masters_only_agree_as_others_do() {
    let plan = Plan { nodes: 7, masters: 2, reach: Reach::Masters, parts: 14, ..Plan::quiet() };
    run_plan(1, 2_000, Plan { clients: 100, ..plan }).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn schedules_of_clusters_that_grow_that_once_broke_a_rule_keep_it() {
    // A voter that had missed the entries which admitted the others decided alone when the founder had terminated (learners had
    // those entries).
    run_plan(701_123, 4_000, open_plan(701_123, None)).unwrap_or_else(|what| panic!("{what}"));
    // A learner's report about its log was lost when it gave the founder up and heard from it again: nobody was admitted any more.
    run_plan(701_349, 4_000, open_plan(701_349, None)).unwrap_or_else(|what| panic!("{what}"));
    // The entry of a former life, in a snapshot from an earlier base, was taken for the one that admitted the node.
    run_plan(700_328, 4_000, open_plan(700_328, None)).unwrap_or_else(|what| panic!("{what}"));
    // A master gave the primary up before it had confirmed an entry, and did not repeat the confirmation when it heard from the
    // same primary again: the primary, which had sent the entry, waited forever.
    run_plan(850_904, 4_000, open_plan(850_904, None)).unwrap_or_else(|what| panic!("{what}"));
}

/// One node founds the cluster, and the others join. Nodes that do not vote crash at any time, any number at once, and join again.
/// `PDBP_AGREEMENT_OPEN_SECONDS=<seconds>` makes the run long.
#[test]
fn schedules_of_clusters_that_grow_and_shrink_keep_the_rules() {
    let seconds = variable("PDBP_AGREEMENT_OPEN_SECONDS");
    let start = std::time::Instant::now();
    let first = variable("PDBP_AGREEMENT_FIRST").unwrap_or(600_000);
    let (mut records, mut downs, mut seed) = (0, 0, first);
    while seconds.map_or(seed < first + 30, |s| start.elapsed().as_secs() < s) {
        let world = run_plan(seed, 4_000, open_plan(seed, None)).unwrap_or_else(|what| panic!("{what}"));
        records += world.history.len();
        downs += world.declared_down();
        seed += 1;
    }
    std::println!("seeds {first} to {seed}, {records} operations, {downs} downs, {:?}", start.elapsed());
    assert!(records > 1_000 && downs > 100, "{records} operations, {downs} downs");
}

/// `PDBP_AGREEMENT_HEIRS_SECONDS=<seconds>` makes the run long.
#[test]
fn schedules_in_which_places_go_to_others_while_the_former_run_on_keep_the_rules() {
    let seconds = variable("PDBP_AGREEMENT_HEIRS_SECONDS");
    let start = std::time::Instant::now();
    let first = variable("PDBP_AGREEMENT_FIRST").unwrap_or(0);
    let (mut records, mut heirs, mut seed) = (0, 0, first);
    while seconds.map_or(seed < first + 30, |s| start.elapsed().as_secs() < s) {
        let world = run_plan(seed, 4_000, heirs_plan(seed, None)).unwrap_or_else(|what| panic!("{what}"));
        records += world.history.len();
        heirs += world.heirs;
        seed += 1;
    }
    std::println!("seeds {first} to {seed}, {records} operations, {heirs} heirs, {:?}", start.elapsed());
    assert!(records > 1_000 && heirs > 30, "{records} operations, {heirs} heirs");
}

#[test]
fn schedules_with_faults_keep_the_rules() {
    if let Some(seed) = variable("PDBP_AGREEMENT_SEED") {
        run(seed, 4_000, None).unwrap_or_else(|what| panic!("{what}"));
        return;
    }
    let seconds = variable("PDBP_AGREEMENT_SECONDS");
    let start = std::time::Instant::now();
    let first = variable("PDBP_AGREEMENT_FIRST").unwrap_or(seconds.map_or(0, |_| 1_000));
    let (mut steps, mut records, mut seed) = (0, 0, first);
    while seconds.map_or(seed < first + 30, |s| start.elapsed().as_secs() < s) {
        let world = run(seed, 4_000, None).unwrap_or_else(|what| panic!("{what}"));
        steps += world.steps;
        records += world.history.len();
        seed += 1;
    }
    std::println!("seeds {first} to {seed}, {steps} steps, {records} operations, {:?}", start.elapsed());
    assert!(steps >= 100_000 && records > 1_000, "{steps} steps, {records} operations");
}
