//! Checks whether a history is linearizable: the search of Wing and Gong (Testing and Verifying Concurrent Objects, 1993), which
//! remembers the states it has visited (Lowe, Testing for Linearizability, 2017). Knows nothing of the protocol.

use std::collections::HashSet;
use std::vec::Vec;

use super::history::{Op, Record};
use super::plan::Random;

/// The state of a part after an operation; `None` if the operation cannot have seen what it saw.
fn after(known: bool, op: Op) -> Option<bool> {
    match op {
        Op::Add => Some(true),
        Op::Remove => Some(false),
        Op::Find(found) => (found == known).then_some(known),
    }
}

/// Whether there is an order, in which every operation lies within its span, that explains what all of them saw.
pub(super) fn is_linearizable(records: &[Record]) -> bool {
    let mut records = records.to_vec();
    records.sort_by_key(|r| r.start);
    let mut done = std::vec![0u64; records.len().div_ceil(64)];
    // Operations taken, in order, with the state before each; and where the search resumes at each position.
    let mut taken: Vec<(usize, bool)> = Vec::new();
    let (mut known, mut next) = (false, 0);
    let mut seen = HashSet::new();
    let is_done = |done: &[u64], i: usize| done[i / 64] >> (i % 64) & 1 == 1;
    loop {
        // All before `first` are done.
        let first = (0..records.len()).find(|i| !is_done(&done, *i)).unwrap_or(records.len());
        let open = || (first..records.len()).filter(|i| !is_done(&done, *i));
        if open().all(|i| records[i].end.is_none()) {
            return true;
        }
        let limit = open().filter_map(|i| records[i].end).min().unwrap_or(u64::MAX);
        let mut step = None;
        for i in open().skip_while(|i| *i < next).take_while(|i| records[*i].start < limit) {
            let Some(state) = after(known, records[i].op) else { continue };
            let mut then = done.clone();
            then[i / 64] |= 1 << (i % 64);
            if seen.insert((then.clone(), state)) {
                step = Some((i, then, state));
                break;
            }
        }
        match step {
            Some((i, then, state)) => {
                taken.push((i, known));
                (done, known, next) = (then, state, 0);
            }
            None => {
                let Some((i, before)) = taken.pop() else { return false };
                done[i / 64] &= !(1 << (i % 64));
                (known, next) = (before, i + 1);
            }
        }
    }
}

/// The same by brute force: tries all orders of all subsets of what may not have happened.
fn is_linearizable_by_force(records: &[Record], taken: &mut Vec<usize>, known: bool) -> bool {
    let open: Vec<usize> = (0..records.len()).filter(|i| !taken.contains(i)).collect();
    if open.iter().all(|i| records[*i].end.is_none()) {
        return true;
    }
    for i in open.iter().copied() {
        let too_late = open.iter().any(|j| records[*j].end.is_some_and(|end| end < records[i].start));
        let Some(state) = after(known, records[i].op).filter(|_| !too_late) else { continue };
        taken.push(i);
        if is_linearizable_by_force(records, taken, state) {
            return true;
        }
        taken.pop();
    }
    false
}

#[test]
fn the_checker_agrees_with_trying_all_orders() {
    let mut random = Random::new(7);
    let mut verdicts = [0; 2];
    for _ in 0..4_000 {
        let records: Vec<Record> = (0..1 + random.below(6))
            .map(|_| {
                let start = 2 * random.below(12);
                let end = Some(start + 1 + 2 * random.below(8)).filter(|_| !random.one_in(6));
                let op = match random.below(4) {
                    0 => Op::Add,
                    1 => Op::Remove,
                    n => Op::Find(n == 2),
                };
                Record { op, start, end }
            })
            .collect();
        let verdict = is_linearizable(&records);
        assert_eq!(verdict, is_linearizable_by_force(&records, &mut Vec::new(), false), "{records:?}");
        verdicts[usize::from(verdict)] += 1;
    }
    assert!(verdicts.iter().all(|n| *n > 500), "both verdicts were met: {verdicts:?}");
}

#[test]
fn a_lookup_that_misses_what_was_answered_is_found() {
    let at = |op, start, end| Record { op, start, end: Some(end) };
    let stale = [at(Op::Add, 1, 2), at(Op::Find(false), 3, 4)];
    assert!(!is_linearizable(&stale));
    let back = [at(Op::Add, 1, 8), at(Op::Find(true), 2, 3), at(Op::Find(false), 4, 5)];
    assert!(!is_linearizable(&back));
    let fine = [at(Op::Add, 1, 8), at(Op::Find(false), 2, 3), at(Op::Find(true), 4, 5)];
    assert!(is_linearizable(&fine));
}
