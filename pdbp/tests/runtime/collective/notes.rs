//! Short calls of members that share memory, which write notes there instead of sending messages.

use std::time::Duration;

use pdbp::Progress;
use pdbp::collective::{Group, GroupError, Request, Sum};

use super::suite;
use crate::{SOON, small_builder};

/// Data just below and above the longest that fits a note.
#[test]
fn calls_about_as_long_as_a_note_do_what_they_have_to() {
    for nodes in [2, 3] {
        let cluster = small_builder(nodes, Progress::Inline).start().unwrap();
        cluster.run(|node| suite::all(&node, &[2, 45, 46, 68, 128, 136, 137]));
    }
}

/// The root is as far ahead as allowed, others come late and sleep, and calls are both waited for and polled.
#[test]
fn short_calls_one_behind_the_other_send_no_messages() {
    for nodes in [2, 3, 8] {
        let cluster = small_builder(nodes, Progress::Inline).start().unwrap();
        cluster.run(|node| {
            let mut group = Group::of_nodes(&node, "short", SOON).unwrap();
            let (rank, size) = (group.rank(), group.size());
            for round in 0..300usize {
                if round % 60 == 7 * rank {
                    std::thread::sleep(Duration::from_millis(3));
                }
                let root = round / 50 % size;
                let mut value = [if rank == root { round } else { 0 }; 5];
                group.broadcast(root, &mut value).unwrap();
                assert_eq!(value, [round; 5]);
                let mut sum = [(rank + round) as u64];
                let mut call = group.start(Request::reduce(root, &mut sum, Sum)).unwrap();
                while !call.poll().unwrap() {
                    std::thread::yield_now();
                }
                drop(call);
                assert!(rank != root || sum == [(size * (size - 1) / 2 + size * round) as u64]);
                if round % 16 == 0 {
                    let mut all = vec![0; size];
                    group.all_gather(&[rank * round], &mut all).unwrap();
                    assert!(all.into_iter().eq((0..size).map(|rank| rank * round)));
                }
            }
            assert_eq!(group.stats().messages, 0);
            node.barrier(SOON).unwrap();
        });
    }
}

/// Neither of the two waits, or reads what the other has written.
#[test]
fn two_that_take_themselves_for_the_root_are_told_by_the_next_call() {
    for next in 0..3 {
        let cluster = small_builder(3, Progress::Inline).start().unwrap();
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "roots", SOON).unwrap();
            let root = all.rank().min(1);
            let first = all.broadcast(root, &mut [0u32; 2]);
            let error = first.and_then(|()| match next {
                0 => all.barrier(),
                1 => all.all_reduce(&mut [1u32], Sum),
                _ => all.broadcast(2, &mut [0u8]).and_then(|()| all.barrier()),
            });
            suite::is_mismatch(&error.unwrap_err(), all.rank());
            node.barrier(SOON).unwrap();
        });
    }
}

/// One has data for a note; the other has data for messages, or none.
#[test]
fn a_short_and_a_long_call_are_told_apart() {
    for (short, long) in [(8, 5000), (5000, 8), (0, 8), (8, 0)] {
        let cluster = small_builder(2, Progress::Inline).start().unwrap();
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "lengths", SOON).unwrap();
            let mut data = vec![1u8; if all.rank() == 0 { short } else { long }];
            let first = all.broadcast(0, &mut data);
            // One of these barriers reads what is on the slate.
            let error = first.and_then(|()| (0..6).try_for_each(|_| all.barrier())).unwrap_err();
            suite::is_mismatch(&error, all.rank());
            node.barrier(SOON).unwrap();
        });
    }
}

/// What the root has written before it left is read; a remaining member that writes for it gets an error.
#[test]
fn a_root_that_has_left_has_written_and_reads_nothing_more() {
    let cluster = small_builder(3, Progress::Inline).start().unwrap();
    cluster.run(|node| {
        let mut all = Group::of_nodes(&node, "leaves", SOON).unwrap();
        let me = all.rank();
        let mut value = [if me == 0 { 77 } else { 0 }];
        if me > 0 {
            // The root leaves meanwhile, if it likes.
            std::thread::sleep(Duration::from_millis(2));
        }
        all.broadcast(0, &mut value).unwrap();
        assert_eq!(value, [77]);
        if me == 0 {
            drop(all);
            node.barrier(SOON).unwrap();
        } else {
            node.barrier(SOON).unwrap();
            let error = all.gather(0, &[me], None).unwrap_err();
            assert!(matches!(error, GroupError::Lost { rank: 0, .. }), "{error:?}");
        }
        node.barrier(SOON).unwrap();
    });
}
