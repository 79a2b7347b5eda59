//! Groups over sockets: the suite that every transport passes, and what happens when a line is cut.

#[path = "../runtime/collective/suite.rs"]
mod suite;

use std::sync::Barrier;
use std::time::Duration;

use pdbp::Progress;
use pdbp::collective::{Group, GroupError, Sum};

use super::{SOON, builder, pair, run};

/// Nothing, less than a value per member, lengths that few numbers of members divide, and more than a block.
const LENGTHS: &[usize] = &[0, 1, 2, 33, 3001];

#[test]
fn groups_do_all_that_they_have_to() {
    for progress in [Progress::Inline, Progress::Thread] {
        run(
            || builder().progress(progress),
            |node| {
                suite::all(&node, LENGTHS);
                suite::divided(&node, |one, other| one == other);
            },
        );
    }
}

/// The line is cut while data of a call is in flight, and is back before it is given up.
#[test]
fn a_call_goes_on_after_a_cut() {
    let (one, two, proxy) = pair(builder);
    let member = |node: pdbp::Node| {
        let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
        assert!(!all.shares_memory());
        for round in 0..20u32 {
            let mut sum: Vec<u32> = (0..20_000).map(|i| i + round).collect();
            if round % 4 == 1 && all.rank() == 0 {
                proxy.cut();
            }
            all.all_reduce(&mut sum, Sum).unwrap();
            assert!((0..20_000).zip(&sum).all(|(i, sum)| *sum == 2 * (i + round)), "round {round}");
        }
        node.barrier(SOON).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| two.run(member));
        one.run(member);
    });
    assert!(proxy.lines() > 5, "{} connections", proxy.lines());
}

#[test]
fn a_line_that_is_given_up_ends_the_call_with_the_name_of_the_other() {
    let (one, two, proxy) = pair(|| builder().outage(Duration::from_millis(200)));
    let joined = Barrier::new(2);
    let member = |node: pdbp::Node| {
        let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
        all.barrier().unwrap();
        joined.wait();
        if all.rank() == 0 {
            proxy.close();
        }
        joined.wait();
        let other = 1 - all.rank();
        let error = all.all_reduce(&mut vec![1f32; 50_000], Sum).unwrap_err();
        assert_eq!(error, GroupError::Lost { rank: other, address: format!("all#{other}@node{other}") });
        assert_eq!(all.barrier(), Err(error));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| two.run(member));
        one.run(member);
    });
}
