//! Long calls of members that read each other's memory, where the system permits it.

use std::sync::atomic::AtomicUsize;

use pdbp::Progress;
use pdbp::collective::{Cause, Group, GroupError, Request};

use super::{meet, suite};
use crate::{SOON, small_builder};

/// Values of 4 bytes in the shortest block that is always read.
const LONG: usize = 32 << 10;

#[test]
fn long_blocks_are_read_where_they_are_or_go_through_the_slate_and_arrive() {
    for (nodes, is_on) in [2, 3, 5, 8].into_iter().flat_map(|nodes| [(nodes, true), (nodes, false)]) {
        let cluster = small_builder(nodes, Progress::Inline).group_reads(is_on).start().unwrap();
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "look", SOON).unwrap();
            let (size, rank) = (all.size(), all.rank());
            // A container may forbid it.
            assert!(is_on || !all.reads_memory());
            let give = vec![rank as u32; LONG * size];
            let mut get = vec![0; LONG];
            let mut call = all.start(Request::scatter(1, Some(&give), &mut get)).unwrap();
            while !call.poll().unwrap() {
                std::thread::yield_now();
            }
            drop(call);
            assert_eq!(get, vec![1; LONG]);
            assert_eq!(all.stats().by_reads, u64::from(all.reads_memory()));
            drop(all);
            suite::all(&node, &[LONG / 4, LONG + 1]);
        });
    }
}

/// A member that comes late to a root that has given up gets no data that may have changed since.
#[test]
fn what_a_root_has_given_up_is_not_read() {
    let (given_up, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    small_builder(3, Progress::Inline).start().unwrap().run(|node| {
        let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
        let mut get = vec![0u8; 4 * LONG];
        if all.rank() == 0 {
            let mut give = vec![1u8; 12 * LONG];
            let mut call = all.start(Request::scatter(0, Some(&give), &mut get)).unwrap();
            assert_eq!(call.poll(), Ok(false));
            drop(call);
            give.fill(2);
            meet(&given_up, 3);
        } else {
            meet(&given_up, 3);
            let error = all.scatter(0, None, &mut get).unwrap_err();
            let address = "all#0@node0".to_owned();
            assert_eq!(error, GroupError::Ended { by: 0, address, cause: Cause::GivenUp });
            assert!(get.iter().all(|byte| *byte == 0), "nothing was read");
        }
        meet(&ended, 3);
    });
}

#[test]
fn members_that_call_long_blocks_of_other_lengths_are_told_so() {
    for wrong in [0, 4] {
        let ended = AtomicUsize::new(0);
        small_builder(5, Progress::Inline).start().unwrap().run(|node| {
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            let bytes = if all.rank() == wrong { 4 * LONG + 4 } else { 4 * LONG };
            let (give, mut get) = (vec![0u8; bytes], vec![0u8; 5 * bytes]);
            let error = all.all_gather(&give, &mut get).unwrap_err();
            let told = matches!(
                error,
                GroupError::Mismatch { .. } | GroupError::Ended { cause: Cause::Mismatch, .. }
            );
            assert!(told, "{error}");
            meet(&ended, 5);
        });
    }
}

/// All rounds of many calls, with others between, and members that come late.
#[test]
fn long_and_short_calls_follow_each_other() {
    small_builder(5, Progress::Inline).start().unwrap().run(|node| {
        let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
        let (rank, size) = (all.rank(), all.size());
        for round in 0..40usize {
            if round % 5 == rank {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            let give: Vec<u16> =
                (0..size).flat_map(|to| vec![(round + 10 * rank + to) as u16; LONG / 2]).collect();
            let mut get = vec![0; give.len()];
            all.all_to_all(&give, &mut get).unwrap();
            let due = |from: usize| vec![(round + 10 * from + rank) as u16; LONG / 2];
            assert!(get.chunks(LONG / 2).enumerate().all(|(from, block)| block == due(from)));
            let mut short = [round * usize::from(rank == round % size)];
            all.broadcast(round % size, &mut short).unwrap();
            assert_eq!(short, [round]);
            all.barrier().unwrap();
        }
        node.barrier(SOON).unwrap();
    });
}
