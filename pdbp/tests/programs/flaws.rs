//! These programs find faults: each fault that is planted here makes one of them fail.

use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use pdbp::Progress;
use pdbp_core::flaw::Flaw;

use super::{PATIENCE, Plan, Random, run};

/// How long a program may take with a fault, which may keep it from coming to its end.
const BRIEFLY: Duration = Duration::from_secs(4);

/// Faults, each with a seed that finds it. The other ones of [`Flaw`] are beyond these programs: they leak memory, show only if a node fails or
/// a message is late, or are in what [`pdbp_core::Endpoint`] does for its host.
const FLAWS: [(Flaw, u64); 17] = [
    (Flaw::EmptiesFull, 6),
    (Flaw::CountsTrainShort, 4),
    (Flaw::CountsEndedShort, 6),
    (Flaw::KeepsRoute, 6),
    (Flaw::ForgetsStaged, 69),
    (Flaw::EmptiesDue, 4),
    (Flaw::RepeatsSegment, 36),
    (Flaw::CutsSegment, 36),
    (Flaw::SkipsSegment, 36),
    (Flaw::CountsWriteShort, 16),
    (Flaw::MissesEnd, 16),
    (Flaw::EndsGivenUp, 16),
    (Flaw::SkipsMessage, 4),
    (Flaw::ReadsLastAgain, 4),
    (Flaw::ReadsNext, 4),
    (Flaw::CutsCopy, 6),
    (Flaw::FreesCopy, 6),
];

/// The programs that run on this thread alone, on which the fault is planted.
fn seeds_from(first: u64) -> impl Iterator<Item = u64> {
    (first..).filter(|seed| {
        let plan = Plan::new(&mut Random::new(*seed), *seed);
        !plan.has_threads && plan.progress != Progress::Thread
    })
}

/// How often a fault strikes: every time that it has been possible so often.
const EVERY: u32 = 7;

/// Whether the program of a seed, which passes without the fault, fails with it, and not before it has struck.
fn finds(flaw: Flaw, seed: u64) -> bool {
    run(seed, PATIENCE);
    let planted = flaw.plant(EVERY);
    let failed = panic::catch_unwind(AssertUnwindSafe(|| run(seed, BRIEFLY))).is_err();
    failed && planted.times() >= EVERY
}

#[test]
fn random_programs_find_planted_faults() {
    // The clock has a say in when blocks leave, so perhaps a later one finds it.
    let is_missed = |(flaw, first): &(Flaw, u64)| !seeds_from(*first).take(40).any(|seed| finds(*flaw, seed));
    assert_eq!(FLAWS.into_iter().filter(is_missed).collect::<Vec<_>>(), []);
}
