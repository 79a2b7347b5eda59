//! The checks must notice faults: each rule of the protocol is broken in turn, and must be caught.

use super::faults::{heirs_plan, open_plan, plan, run_plan};
use super::plan::Plan;
use crate::agreement::Flaw;

/// Seeds among which one must show the flaw, starting where it was last found.
const SEEDS: u64 = 6_000;

fn is_caught(flaw: &str, found: u64, plan: impl Fn(u64) -> Plan) {
    let caught = (found..found + SEEDS).find_map(|seed| {
        // These rules are not about progress.
        let what = run_plan(seed, 4_000, plan(seed)).err().filter(|what| !what.contains("waited in vain"))?;
        Some((seed, what.lines().last().map(|line| line.chars().take(90).collect::<std::string::String>())))
    });
    let (seed, what) = caught.unwrap_or_else(|| panic!("{flaw} was not noticed in {SEEDS} seeds"));
    std::println!("{flaw}: caught by seed {seed}: {}", what.unwrap_or_default());
}

macro_rules! flaws {
    ($plan:ident: $($name:ident: $flaw:ident from $found:literal,)*) => {
        $(#[test]
        fn $name() {
            is_caught(stringify!($flaw), $found, |seed| $plan(seed, Some(Flaw::$flaw)));
        })*
    };
}

flaws! {
    plan:
    commits_by_a_minority_are_noticed: MinorityCommits from 4,
    two_votes_in_an_epoch_are_noticed: VotesTwice from 120,
    votes_for_a_stale_log_are_noticed: VotesForStaleLog from 156,
    primaries_of_old_epochs_that_are_heard_are_noticed: NoFencing from 9802,
    answers_before_all_have_applied_are_noticed: AnswersEarly from 0,
    lookups_without_a_lease_are_noticed: ReadsWithoutLease from 1,
    lookups_of_what_not_all_have_are_noticed: ReadsUnstable from 0,
    votes_after_a_loss_of_memory_are_noticed: AmnesiacVotes from 3,
    votes_before_a_vow_is_over_are_noticed: BreaksVows from 7525,
    a_change_of_another_that_is_taken_back_is_noticed: Withdraws from 4310,
    a_membership_change_by_the_new_members_alone_is_noticed: NoJointQuorum from 371,
}

flaws! {
    open_plan:
    votes_of_learners_are_noticed: LearnerVotes from 102,
    voters_that_are_forgotten_are_noticed: ForgetsVoter from 38,
    voters_that_have_ended_and_do_not_count_are_noticed: LeavesOutEnded from 701_123,
    entries_of_an_earlier_life_are_noticed: FormerLife from 700_328,
    leases_of_nodes_that_are_merely_out_of_reach_and_end_early_are_noticed: CutsLeases from 262,
}

flaws! {
    heirs_plan:
    votes_of_who_had_the_place_before_are_noticed: ForgetsLives from 27,
}

#[test]
fn a_founder_that_founds_again_is_noticed() {
    is_caught("a founder that founds again", 0, |seed| Plan { founds_again: true, ..open_plan(seed, None) });
}
