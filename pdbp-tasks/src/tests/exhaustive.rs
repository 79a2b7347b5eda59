//! An exhaustive search of small worlds of the real pool and two real processors: three tasks with an edge and a sub-task, a crash, a processor
//! that is given up but lives on, and a repeated submission, in every order. The oracle checks each step, and from every state in which nothing
//! more goes wrong all tasks must end.
//!
//! This is a depth-first search over unseen states rather than a use of `stateright` 0.31, the obvious checker. That would need the same worlds,
//! operations and digests, which are nearly all of the code, in place of the 40 lines of `Search`, and 56 more packages. It would not report the
//! path to a panic, which is how the oracle and the state machines themselves report errors. And its property that something eventually happens,
//! which is what matters here, is not checked along paths that reach a state seen before, as its source says.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Seen;
use super::oracle::Label;
use super::world::{Behaviour, Operation, World};
use crate::pool::Flaw;
use crate::wire::Options;

const PROCESSORS: usize = 2;

/// The faults that may still happen.
#[derive(Clone, Copy, Debug, Hash)]
struct Faults {
    crashes: u8,
    given_up: u8,
    repeated: u8,
}

struct Search {
    seen: Seen,
    /// How each world of the path was reached.
    path: Vec<Operation>,
    ends: u64,
}

impl Search {
    fn new() -> Self {
        Self { seen: Seen::default(), path: Vec::new(), ends: 0 }
    }

    fn visit(&mut self, world: &World, faults: Faults) {
        if !self.seen.is_new((world.digest(), faults)) {
            return;
        }
        if world.is_over() {
            self.ends += 1;
            return;
        }
        let mut next: Vec<_> = world.possible().into_iter().map(|operation| (operation, faults)).collect();
        // Nothing is in flight: processors that have waited long enough ask again.
        if next.is_empty() {
            next.push((Operation::Advance(5000), faults));
        }
        for place in 0..PROCESSORS {
            if let Some(crashes) = faults.crashes.checked_sub(1) {
                next.push((Operation::LoseNode(place as u16), Faults { crashes, ..faults }));
                next.push((Operation::Crash(place), Faults { crashes, ..faults }));
            }
            if let Some(given_up) = faults.given_up.checked_sub(1) {
                next.push((Operation::GiveUp(place), Faults { given_up, ..faults }));
            }
            if let Some(repeated) = faults.repeated.checked_sub(1) {
                for (which, as_from) in (0..world.submitted(place)).flat_map(|w| [(w, 0), (w, 1)]) {
                    let again = Operation::Again { from: place, which, as_from };
                    next.push((again, Faults { repeated, ..faults }));
                }
            }
        }
        assert!(self.path.len() < 500, "it does not end");
        for (operation, faults) in next {
            self.path.push(operation.clone());
            let mut world = world.clone();
            world.apply(operation);
            self.visit(&world, faults);
            self.path.pop();
        }
    }
}

fn add(needs: &[usize], options: Options) -> Operation {
    Operation::Add { job: 0, needs: needs.to_vec(), join: !needs.is_empty(), keep: true, options, what: 9 }
}

/// Task 1 receives the result of task 0; task 2 adds another, whose result becomes its own.
fn script(label: Label) -> Behaviour {
    if label == 2 { Behaviour::Adds } else { Behaviour::Value }
}

/// Task 2 fails whenever it runs.
fn failing(label: Label) -> Behaviour {
    if label == 2 { Behaviour::Fails } else { Behaviour::Value }
}

fn search(
    flaw: Option<Flaw>,
    script: fn(Label) -> Behaviour,
    options: Options,
    faults: Faults,
) -> Result<Search, String> {
    let tasks = [add(&[], Options::default()), add(&[0], Options::default()), add(&[], options)];
    let mut world = World::small(PROCESSORS, script, &tasks);
    world.plant(flaw);
    let mut search = Search::new();
    match catch_unwind(AssertUnwindSafe(|| search.visit(&world, faults))) {
        Ok(()) => Ok(search),
        Err(_) => Err(format!("{:?}", search.path)),
    }
}

const ONE_OF_EACH: Faults = Faults { crashes: 1, given_up: 1, repeated: 1 };

fn search_all(all: &[Faults]) {
    let again = Options { retries: 1, ..Options::default() };
    let once = Options { once: true, ..Options::default() };
    for (script, options) in [(script as fn(_) -> _, Options::default()), (failing, again), (script, once)] {
        for faults in all {
            let found = search(None, script, options, *faults).unwrap_or_else(|path| panic!("after {path}"));
            println!("{} states, {} of them ends: {faults:?}", found.seen.len(), found.ends);
            assert!(found.ends > 0 && found.seen.len() > 200, "{} states", found.seen.len());
        }
    }
}

#[test]
fn nothing_that_can_happen_in_a_small_world_with_one_fault_breaks_a_rule() {
    let none = Faults { crashes: 0, given_up: 0, repeated: 0 };
    search_all(&[
        Faults { crashes: 1, ..none },
        Faults { given_up: 1, ..none },
        Faults { repeated: 1, ..none },
    ]);
}

/// 513,912, 408,172 and 337,672 states, no finding; two minutes.
#[test]
#[ignore = "minutes: cargo test --release -p pdbp-tasks --lib exhaustive -- --ignored"]
fn nothing_that_can_happen_in_a_small_world_with_one_fault_of_each_kind_breaks_a_rule() {
    search_all(&[ONE_OF_EACH]);
}

#[test]
fn the_search_finds_flaws() {
    let again = Options { retries: 1, ..Options::default() };
    let once = Options { once: true, ..Options::default() };
    for (flaw, script, options) in [
        (Flaw::ForgetsTable, script as fn(_) -> _, Options::default()),
        (Flaw::StopsEarly, script, Options::default()),
        (Flaw::RestartsOnce, script, once),
        (Flaw::CountsFailureTwice, failing, again),
        (Flaw::ReusesId, script, Options::default()),
    ] {
        assert!(search(Some(flaw), script, options, ONE_OF_EACH).is_err(), "{flaw:?}");
    }
}
