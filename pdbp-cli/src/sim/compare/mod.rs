//! `pdbp sim --compare`: policies against each other in the same scenarios, and who loses.
//!
//! The [`scenarios`] have the names; each runs with each [`Policy`], and the [`judge`] says which static allocations beat the default
//! with no more than twice its memory. Memory is counted alike for all: blocks in rows or posted, over time.

mod judge;
mod scenarios;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pdbp_core::policy::{Choice, Fixed, Threshold, ThresholdAllocation};
use pdbp_sim::network::Report;

use super::{SimError, wrong};
use scenarios::{Named, UNIT};

pub(super) use judge::{csv, text};

/// A policy and the space that it begins with.
#[derive(Clone, Copy)]
struct Policy {
    name: &'static str,
    /// Of a static allocation: blocks of each row.
    blocks: Option<u32>,
    choice: Choice,
}

/// Algorithm 1, the default, and static allocations of 1, 2, 4 and 8 times [`UNIT`].
const POLICIES: [Policy; 6] = [
    Policy {
        name: "threshold",
        blocks: None,
        choice: Choice::Threshold(ThresholdAllocation { threshold: Threshold::DEFAULT }),
    },
    Policy { name: DEFAULT, blocks: None, choice: Choice::DEFAULT },
    Policy { name: "fixed-1x", blocks: Some(UNIT), choice: Choice::Fixed(Fixed) },
    Policy { name: "fixed-2x", blocks: Some(2 * UNIT), choice: Choice::Fixed(Fixed) },
    Policy { name: "fixed-4x", blocks: Some(4 * UNIT), choice: Choice::Fixed(Fixed) },
    Policy { name: "fixed-8x", blocks: Some(8 * UNIT), choice: Choice::Fixed(Fixed) },
];
const DEFAULT: &str = "adaptive";

/// What came of one scenario, by policy.
pub(super) struct Outcome {
    pub(super) scenario: &'static str,
    what: &'static str,
    pub(super) arrival: &'static str,
    runs: Vec<(Policy, Report)>,
}

impl Outcome {
    /// The policies by name, with their reports.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&'static str, &Report)> {
        self.runs.iter().map(|(policy, report)| (policy.name, report))
    }
}

/// Runs the scenarios of these names, divided by commas, or `all`, for so many nanoseconds of traffic if that is said.
///
/// # Errors
/// A name that is none; what cannot be run or does not hold.
pub(super) fn run(names: &str, seed: u64, time: Option<u64>) -> Result<Vec<Outcome>, SimError> {
    let chosen = choose(names).map_err(SimError::Options)?;
    let jobs: Vec<_> = chosen.iter().flat_map(|named| POLICIES.map(|policy| (named, policy))).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((named, policy)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let came = named.run(seed, time, policy.blocks, policy.choice);
            let place = (named.name, named.arrival(), policy.name);
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((place, came));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut take = |named: &Named, policy: Policy| {
        let place = (named.name, named.arrival(), policy.name);
        let at = done.iter().position(|(p, _)| *p == place)?;
        let report = done.swap_remove(at).1;
        Some(
            report
                .map(|r| (policy, r))
                .map_err(|e| wrong(&format!("{} with {}", named.name, policy.name), e)),
        )
    };
    let outcomes = chosen.iter().map(|named| {
        let runs = POLICIES.into_iter().filter_map(|policy| take(named, policy)).collect::<Result<_, _>>()?;
        Ok(Outcome { scenario: named.name, what: named.what, arrival: named.arrival(), runs })
    });
    outcomes.collect()
}

fn choose(names: &str) -> Result<Vec<Named>, String> {
    let all = scenarios::all();
    let known = |name: &str| all.iter().any(|named| named.name == name);
    if let Some(name) = names.split(',').find(|name| *name != "all" && !known(name)) {
        let mut there: Vec<_> = all.iter().map(|named| named.name).collect();
        there.dedup();
        return Err(format!("--compare {name}: use all, or some of {}", there.join(",")));
    }
    let wanted = |named: &Named| names.split(',').any(|name| name == "all" || name == named.name);
    Ok(all.into_iter().filter(wanted).collect())
}
