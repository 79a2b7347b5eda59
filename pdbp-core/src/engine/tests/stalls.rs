//! A search for stalls: random operations on clusters with minimal resources, after which everything must come to rest.
//!
//! A case follows from its seed. If it does not come to rest, or any other check fails, it is printed as a test to paste, with as
//! few operations as still show the failure. (`PDBP_STALL_CASES`, `PDBP_STALL_SEED`: see [`overnight`].)

use std::boxed::Box;
use std::fmt::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::string::String;
use std::vec::Vec;
use std::{format, println};

use super::harness::{Links, Operation, Policy, Setup};
use crate::Routing;
use crate::engine::Checksum;

/// The first byte of an operation that makes a transport busy.
const BUSY: u8 = 222;

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn within(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        range.start() + (self.next() % (range.end() - range.start() + 1) as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.within(0..=all.len() - 1)]
    }
}

/// The minimum, or a little more.
fn tight(random: &mut Random, routing: Routing) -> Setup {
    let (initial, more) = (random.within(1..=2) as u32, random.within(0..=3) as u32);
    let nodes = if routing == Routing::Grid { random.within(4..=9) } else { random.within(2..=5) };
    let policies = [Policy::Fixed, Policy::Published, Policy::Adaptive, Policy::Miser, Policy::Glutton];
    Setup {
        nodes,
        routing,
        links: random.one_of(&[Links::InPlace, Links::Posted, Links::Mixed, Links::Mixed]),
        trusted: random.one_of(&[false, true]),
        policy: random.one_of(&policies),
        initial,
        row: initial + more,
        extra: random.within(0..=3) as u32,
        control: random.one_of(&[1, 1, nodes as u32, 2 * nodes as u32]),
        capacity: random.within(3..=(initial + more + 1).max(3) as usize),
        pipe: random.within(1..=2),
        // With relays, at least one for each part of three nodes, so that none is stopped.
        streams: if routing == Routing::Grid { 8 } else { 2 },
        ..Setup::default()
    }
}

/// The case for a seed. Transports are busy more or less often, and nodes are slowed to various degrees by work that fills no
/// link.
fn case(seed: u64, routing: Routing) -> (Setup, Vec<Operation>) {
    let random = &mut Random(seed);
    let setup = tight(random, routing);
    let (count, busy, slow) =
        (random.within(0..=160), random.one_of(&[0, 8, 64]), random.one_of(&[0, 128, 224]));
    let operation = |random: &mut Random| {
        let [a, b, c, d, chance, patience, ..] = random.next().to_le_bytes();
        let operation = Operation::decode([if chance < busy { BUSY } else { a }, b, c, d], setup.nodes);
        let empties = matches!(
            operation,
            Operation::Poll { .. }
                | Operation::PollArrivals { .. }
                | Operation::Read { .. }
                | Operation::Release { .. }
        );
        let harmless = !operation.is_hostile() || matches!(operation, Operation::Garble { .. });
        Some(operation).filter(|_| harmless && (!empties || patience >= slow))
    };
    let operations = (0..count).filter_map(|_| operation(random)).collect();
    (setup, operations)
}

fn run(setup: &Setup, operations: &[Operation]) {
    let mut cluster = setup.ready();
    for operation in operations {
        cluster.apply(*operation);
    }
    cluster.settle();
    cluster.close();
}

fn fails(setup: &Setup, operations: &[Operation]) -> bool {
    panic::catch_unwind(AssertUnwindSafe(|| run(setup, operations))).is_err()
}

/// Runs this many cases, starting from a seed.
fn search(routing: Routing, first: u64, cases: u64) {
    for seed in first..first + cases {
        let (setup, operations) = case(seed, routing);
        if fails(&setup, &operations) {
            let report = panic::take_hook();
            panic::set_hook(Box::new(|_| {}));
            let fewest = shrink(&setup, operations);
            panic::set_hook(report);
            panic!("the case of seed {seed} fails; at its shortest:\n{}", as_test(seed, &setup, &fewest));
        }
    }
}

/// Leaves out operations, many at a time and finally one by one, as long as the rest still fails.
fn shrink(setup: &Setup, mut operations: Vec<Operation>) -> Vec<Operation> {
    let mut step = operations.len().max(1);
    loop {
        let (before, mut at) = (operations.len(), 0);
        while at < operations.len() {
            let mut rest = operations.clone();
            rest.drain(at..(at + step).min(rest.len()));
            if fails(setup, &rest) { operations = rest } else { at += step }
        }
        match step {
            1 if operations.len() == before => return operations,
            1 => {}
            _ => step /= 2,
        }
    }
}

fn as_test(seed: u64, setup: &Setup, operations: &[Operation]) -> String {
    let mut text = format!("#[test]\nfn stall_{seed}() {{\n    use crate::engine::Checksum::*;\n");
    text += "    use crate::Routing::*;\n    use {Links::*, Operation::*, Policy::*};\n";
    let _ = writeln!(text, "    let mut cluster = {setup:?}.ready();");
    for operation in operations {
        let _ = writeln!(text, "    cluster.apply({operation:?});");
    }
    text + "    cluster.settle();\n}\n"
}

#[test]
fn nodes_with_as_little_as_is_allowed_come_to_rest() {
    search(Routing::Direct, 0, 2000);
}

#[test]
fn relays_with_as_little_as_is_allowed_come_to_rest() {
    search(Routing::Grid, 0, 1000);
}

/// `PDBP_STALL_CASES=100000 cargo test --release -p pdbp-core --lib stalls -- --nocapture`; `PDBP_STALL_SEED` is the first seed.
#[test]
fn overnight() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let Some(cases) = number("PDBP_STALL_CASES") else {
        println!("skipped: set PDBP_STALL_CASES to the number of cases that shall be run");
        return;
    };
    let (first, began) = (number("PDBP_STALL_SEED").unwrap_or(1 << 32), std::time::Instant::now());
    search(Routing::Direct, first, cases / 3);
    search(Routing::Grid, first, cases - cases / 3);
    println!(
        "{cases} cases from seed {first} on came to rest, a third of them without relays, in {} s",
        began.elapsed().as_secs()
    );
}

#[test]
fn a_case_is_the_same_each_time() {
    let (one, two) = (case(7, Routing::Grid), case(7, Routing::Grid));
    assert_eq!((format!("{:?}", one.0), one.1), (format!("{:?}", two.0), two.1));
    assert_eq!(one.0.checksum, Checksum::Off);
}
