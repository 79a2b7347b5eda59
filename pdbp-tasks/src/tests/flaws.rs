//! Each flaw planted into the pool is found by a random world of a fixed seed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::world::{World, operations};
use crate::pool::Flaw;

/// The most worlds tried for each flaw.
const WORLDS: u64 = 3000;

/// How many worlds it took to find a flaw.
fn search(flaw: Option<Flaw>, worlds: u64) -> Option<u64> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let all = operations();
    (1..=worlds).find(|seed| {
        let operations = all.new_tree(&mut runner).expect("there is always one").current();
        let run = || {
            let mut world = World::new(*seed);
            world.plant(flaw);
            operations.into_iter().for_each(|operation| world.apply(operation));
            world.finish();
        };
        catch_unwind(AssertUnwindSafe(run)).is_err()
    })
}

#[test]
fn each_planted_flaw_is_found() {
    assert_eq!(search(None, 200), None, "without a flaw nothing is found");
    let all = [
        Flaw::ForgetsTable,
        Flaw::AppliesTwice,
        Flaw::AddsOfIgnored,
        Flaw::StopsEarly,
        Flaw::BlamesAll,
        Flaw::CopiesOnce,
        Flaw::RestartsOnce,
        Flaw::CountsFailureTwice,
        Flaw::ReusesId,
        Flaw::Overcommits,
        Flaw::QueuesBehindSuspect,
        Flaw::RunsTooEarly,
        Flaw::ForgetsUnread,
        Flaw::HoldsBackForEver,
    ];
    let found = all.map(|flaw| (flaw, search(Some(flaw), WORLDS)));
    let missed: Vec<_> = found.iter().filter(|(_, at)| at.is_none()).collect();
    assert!(missed.is_empty(), "not found in {WORLDS} worlds: {missed:?}; the others: {found:?}");
    println!("found by world: {found:?}");
}
