//! An exhaustive search of a small world: a pool with a journal, two processors, and two tasks with an edge and a sub-task. The pool is killed, a
//! processor is killed, a link is lost and reports arrive late, in every order and with every moment at which the disk may have synced. Each
//! message of the pool is checked against the disk after each step, and from every state in which nothing more goes wrong all tasks must end. The
//! short search tries all orders up to a fault at any moment, and one order after it; the long one tries all orders. (`src/tests/exhaustive.rs`
//! explains why it does not use `stateright`.)

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::world::{Happens, World};
use crate::pool::Flaw;
use crate::tests::Seen;
use crate::wire::Options;

/// The faults that may still happen.
#[derive(Clone, Copy, Debug, Hash)]
struct Faults {
    killed: u8,
    crashes: u8,
    unlinked: u8,
    late: u8,
}

const NONE: Faults = Faults { killed: 0, crashes: 0, unlinked: 0, late: 0 };

#[derive(Default)]
struct Search {
    seen: Seen,
    /// How the current world was reached.
    path: Vec<Happens>,
    ends: u64,
    /// Whether every order is also tried after the last fault.
    is_thorough: bool,
}

impl Faults {
    fn is_none(self) -> bool {
        self.killed == 0 && self.crashes == 0 && self.unlinked == 0 && self.late == 0
    }
}

impl Search {
    /// From here on events happen in one order, until all is over; reports from lost links arrive now and then.
    fn run_out(&mut self, mut world: Box<World>) {
        let before = self.path.len();
        while !world.is_over() {
            let (possible, step) = (world.possible(), self.path.len());
            let is_late = step % 5 == 3 && world.late() > 0;
            let happens =
                if is_late { Happens::Late(step % world.late()) } else { possible[step % possible.len()] };
            self.path.push(happens);
            assert!(self.path.len() < 500, "it does not end");
            world.apply(happens);
        }
        self.path.truncate(before);
        self.ends += 1;
    }

    fn visit(&mut self, world: &World, faults: Faults) {
        if !self.seen.is_new((world.digest(), faults)) {
            return;
        }
        if world.is_over() {
            self.ends += 1;
            return;
        }
        assert!(self.path.len() < 500, "it does not end");
        let mut next: Vec<_> = world.possible().into_iter().map(|happens| (happens, faults)).collect();
        if let Some(killed) = faults.killed.checked_sub(1) {
            next.push((Happens::KillPool, Faults { killed, ..faults }));
        }
        for place in 0..2 {
            if let Some(crashes) = faults.crashes.checked_sub(1) {
                next.push((Happens::Crash(place), Faults { crashes, ..faults }));
            }
            if let Some(unlinked) = faults.unlinked.checked_sub(1) {
                next.push((Happens::Unlink(place), Faults { unlinked, ..faults }));
            }
        }
        if let Some(late) = faults.late.checked_sub(1) {
            next.extend((0..world.late()).map(|at| (Happens::Late(at), Faults { late, ..faults })));
        }
        for (happens, left) in next {
            self.path.push(happens);
            let mut world = Box::new(world.clone());
            world.apply(happens);
            if !self.is_thorough && left.is_none() && !faults.is_none() {
                self.run_out(world);
            } else {
                self.visit(&world, left);
            }
            self.path.pop();
        }
    }
}

fn search(flaw: Option<Flaw>, options: Options, faults: Faults, is_thorough: bool) -> Result<Search, String> {
    let world = World::small(flaw, options);
    let mut search = Search { is_thorough, ..Search::default() };
    match catch_unwind(AssertUnwindSafe(|| search.visit(&world, faults))) {
        Ok(()) => Ok(search),
        Err(_) => Err(format!("{:?}", search.path)),
    }
}

const ONE: [Faults; 3] =
    [Faults { killed: 1, ..NONE }, Faults { crashes: 1, ..NONE }, Faults { unlinked: 1, ..NONE }];

fn search_all(is_thorough: bool) {
    for options in [Options::default(), Options { once: true, ..Options::default() }] {
        for faults in ONE {
            let found =
                search(None, options, faults, is_thorough).unwrap_or_else(|path| panic!("after {path}"));
            println!("{} states, {} ends: {faults:?}", found.seen.len(), found.ends);
            assert!(found.ends > 200 && found.seen.len() > 200, "{} states", found.seen.len());
        }
    }
}

#[test]
fn a_fault_at_any_moment_of_a_small_journal_breaks_no_rule() {
    search_all(false);
}

/// 152,057 states, no finding; four minutes without optimisation.
#[test]
#[ignore = "minutes: cargo test --release -p pdbp-tasks --features net --lib durable -- --ignored"]
fn nothing_that_can_happen_to_a_small_journal_with_one_fault_breaks_a_rule() {
    search_all(true);
}

#[test]
fn the_search_finds_flaws() {
    let once = Options { once: true, ..Options::default() };
    for (flaw, options) in [
        (Flaw::AcknowledgesEarly, Options::default()),
        (Flaw::HandsOutEarly, Options::default()),
        (Flaw::ForgetsTable, Options::default()),
        (Flaw::AppliesTwice, Options::default()),
        (Flaw::RestartsOnce, once),
    ] {
        let is_found = ONE.iter().any(|faults| search(Some(flaw), options, *faults, false).is_err());
        assert!(is_found, "{flaw:?}");
    }
}
