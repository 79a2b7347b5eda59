//! Groups of parts in one process.

#[cfg(feature = "rapidio")]
mod fabric;
mod killed;
mod notes;
mod reads;
mod shapes;
mod suite;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pdbp::collective::{Cause, Group, GroupError, JoinError, Request, Sum};
use pdbp::{Backend, Cluster, Doorbell, HeapMemory, Memory, Progress, RecvError};
use pdbp_core::Arrival;
use pdbp_core::umb::stride;
use pdbp_local::Local;
use pdbp_sim::fault::{Chance, FaultInjector, Faults};

use crate::{BRIEFLY, SOON, clusters, part, small, small_builder};

/// Nothing, less than a value per member, lengths that few numbers of members divide, and more than a block.
const LENGTHS: &[usize] = &[0, 1, 2, 33, 250, 3001];

/// A barrier of threads, which also opens when one of them has failed.
fn meet(count: &AtomicUsize, least: usize) {
    let began = Instant::now();
    count.fetch_add(1, Ordering::SeqCst);
    while count.load(Ordering::SeqCst) < least && began.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn groups_of_parts_do_all_that_they_have_to() {
    for cluster in [2, 3].into_iter().flat_map(clusters) {
        cluster.run(|node| suite::all(&node, LENGTHS));
    }
}

#[test]
fn groups_of_one_and_of_many_do_all_that_they_have_to() {
    for nodes in [1, 5, 8] {
        small(nodes, Progress::Inline).run(|node| suite::all(&node, &[0, 1, 7, 600]));
    }
}

#[test]
fn groups_do_all_that_they_have_to_with_a_slate_and_without() {
    for (nodes, is_on) in (1..=9).flat_map(|nodes| [(nodes, true), (nodes, false)]) {
        let builder = small_builder(nodes, Progress::Inline).group_shared_memory(is_on);
        builder.start().unwrap().run(|node| {
            let all = Group::of_nodes(&node, "look", SOON).unwrap();
            assert_eq!(all.shares_memory(), is_on && nodes > 1);
            drop(all);
            if nodes == 5 {
                suite::divided(&node, |_, _| true);
            }
            suite::all(&node, &[0, 1, 7, 600]);
        });
    }
}

/// More members than processors sleep, and some come late.
#[test]
fn barriers_in_shared_memory_wait_for_all_and_send_no_messages() {
    for nodes in [2, 3, 8] {
        let come = AtomicUsize::new(0);
        let cluster = small_builder(nodes, Progress::Inline).start().unwrap();
        cluster.run(|node| {
            let mut group = Group::of_nodes(&node, "barriers", SOON).unwrap();
            assert!(group.shares_memory());
            let (rank, size) = (group.rank(), group.size());
            for round in 0..200 {
                if round % 40 == rank {
                    std::thread::sleep(Duration::from_millis(3));
                }
                come.fetch_add(1, Ordering::Relaxed);
                if round % 2 == 0 {
                    group.barrier().unwrap();
                } else {
                    let mut call = group.start(Request::barrier()).unwrap();
                    assert!(!call.poll().unwrap() || come.load(Ordering::Relaxed) >= (round + 1) * size);
                    call.wait(SOON).unwrap();
                    assert!(call.poll().unwrap(), "done it stays");
                }
                assert!(come.load(Ordering::Relaxed) >= (round + 1) * size, "somebody had not come");
            }
            let stats = group.stats();
            assert_eq!((stats.calls, stats.messages), (200, 0));
            node.barrier(SOON).unwrap();
        });
    }
}

/// Floats show the order in which they were added. Data of one slot and of many, below and above the length at which it starts to
/// go round a ring.
#[test]
fn results_have_the_same_bits_with_a_slate_and_without() {
    const LONG: [usize; 4] = [1, 100, 3001, 9000];
    let results = |nodes: u16, is_on: bool| {
        let cluster = small_builder(nodes, Progress::Inline).group_shared_memory(is_on).start().unwrap();
        let all = std::sync::Mutex::new(vec![Vec::new(); nodes.into()]);
        cluster.run(|node| {
            let mut group = Group::of_nodes(&node, "floats", SOON).unwrap();
            assert_eq!(group.shares_memory(), is_on);
            let rank = group.rank();
            let (mut bits, mut at_root) = (Vec::new(), Vec::new());
            for length in LONG {
                let value = |i: usize| 1.0 / (1 + i * 7 + rank * 13) as f32;
                let own: Vec<f32> = (0..length).map(value).collect();
                let mut sum = own.clone();
                group.all_reduce(&mut sum, Sum).unwrap();
                bits.extend(sum.iter().map(|value| value.to_bits()));
                let mut sum = own;
                group.reduce(usize::from(nodes) - 1, &mut sum, Sum).unwrap();
                if rank + 1 == usize::from(nodes) {
                    at_root.extend(sum.iter().map(|value| value.to_bits()));
                }
            }
            group.barrier().unwrap();
            bits.append(&mut at_root);
            all.lock().unwrap()[rank] = bits;
        });
        all.into_inner().unwrap()
    };
    for nodes in 2..=9 {
        let with = results(nodes, true);
        let sums = LONG.iter().sum();
        assert!(with.iter().all(|bits| bits[..sums] == with[0][..sums]), "{nodes} members");
        assert_eq!(with.last().map(Vec::len), Some(2 * sums));
        assert!(with == results(nodes, false), "{nodes} members");
    }
}

/// A member that cannot share memory, or will not, keeps the group from having a slate; nothing else is affected.
#[test]
fn a_group_does_without_a_slate_where_one_member_shares_no_memory() {
    let memories: Vec<_> = (0..3).map(|_| HeapMemory::new(256 << 10).unwrap()).collect();
    let ends = Local::network_of_hosts(&memories, &[0, 0, 1], stride(2048), 24);
    let ends = ends
        .into_iter()
        .zip(memories)
        .map(|(end, memory)| (Backend::new(end, Arc::new(Doorbell::default())), Box::new(memory) as Memory));
    let cluster = Cluster::builder().block_bytes(2048).timeout(SOON).start_on(ends.collect()).unwrap();
    cluster.run(|node| {
        let own = part(&node, "p");
        let all = Group::of_nodes(&node, "all", SOON).unwrap();
        assert!(!all.shares_memory());
        if node.id().index() < 2 {
            let mut near = Group::of(&own, "near", &["p@node1", "p@node0"], SOON).unwrap();
            assert!(near.shares_memory());
            let mut sum = [near.rank() as u64 + 1];
            near.all_reduce(&mut sum, Sum).unwrap();
            assert_eq!(sum, [3]);
        }
        drop(all);
        suite::divided(&node, |one, other| (one < 2) == (other < 2));
        suite::all(&node, &[0, 5, 2000]);
    });
}

/// Two members on each node; nodes share no memory.
#[test]
fn members_on_one_node_are_of_one_local_group() {
    let memories: Vec<_> = (0..2).map(|_| HeapMemory::new(256 << 10).unwrap()).collect();
    let ends = Local::network(&memories, Arrival::Posted, stride(2048), 24).into_iter().zip(memories);
    let ends = ends
        .map(|(end, memory)| (Backend::new(end, Arc::new(Doorbell::default())), Box::new(memory) as Memory));
    let cluster = Cluster::builder().block_bytes(2048).timeout(SOON).start_on(ends.collect()).unwrap();
    cluster.run(|node| {
        const NAMES: [&str; 4] = ["p@node0", "p@node1", "q@node1", "q@node0"];
        let me = node.id().index();
        let member = |name| {
            let own = part(&node, name);
            let mut all = Group::of(&own, "all", &NAMES, SOON).unwrap();
            let mut here = all.local().unwrap();
            let mut ranks = [0; 2];
            here.all_gather(&[all.rank()], &mut ranks).unwrap();
            assert_eq!(ranks, [[0, 3], [1, 2]][me]);
            // As often as they like on each host, independently of the other.
            for _ in 0..me {
                assert_eq!(all.local().unwrap().size(), 2);
            }
            let mut half = all.split(all.rank() as u64 % 2).unwrap();
            half.all_gather(&[all.rank()], &mut ranks).unwrap();
            assert_eq!(ranks, [all.rank() % 2, all.rank() % 2 + 2]);
            all.barrier().unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| member("p"));
            scope.spawn(|| member("q"));
        });
        node.barrier(SOON).unwrap();
    });
}

/// With the settings of a first program: long blocks.
#[test]
fn groups_do_all_that_they_have_to_in_long_blocks() {
    let builder = Cluster::builder().nodes(3).set("transport", "local").timeout(SOON);
    builder.start().unwrap().run(|node| suite::all(&node, &[1, 40_000]));
}

/// Blocks copied into posted ones and blocks read in place, over a transport that is often busy and late.
#[test]
fn groups_do_all_that_they_have_to_over_a_transport_with_faults() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let nodes = 3;
        let memories: Vec<_> = (0..nodes).map(|_| HeapMemory::new(256 << 10).unwrap()).collect();
        let ends = Local::network(&memories, arrival, stride(2048), 24);
        let faults = Faults { busy: Chance::in_thousand(200).unwrap(), delay: 3, ..Faults::default() };
        let ends = ends.into_iter().zip(memories).map(|(end, memory)| {
            let end = FaultInjector::new(end, faults);
            (Backend::new(end, Arc::new(Doorbell::default())), Box::new(memory) as Memory)
        });
        let builder = Cluster::builder().block_bytes(2048).timeout(SOON).group_shared_memory(false);
        let cluster = builder.start_on(ends.collect()).unwrap();
        cluster.run(|node| suite::all(&node, &[0, 5, 2000]));
    }
}

/// Several members on one node, each on its own thread.
#[test]
fn parts_of_one_node_may_be_members_of_one_group() {
    for cluster in clusters(2) {
        let addresses: Vec<String> = (0..5).map(|i| format!("worker{i}@node{}", i % 2)).collect();
        std::thread::scope(|scope| {
            for i in 0..5 {
                let (node, addresses) = (cluster.node(i % 2).unwrap(), &addresses);
                scope.spawn(move || {
                    let own = part(&node, &format!("worker{i}"));
                    let list: Vec<&str> = addresses.iter().map(String::as_str).collect();
                    let mut all = Group::of(&own, "workers", &list, SOON).unwrap();
                    assert_eq!(all.rank(), i);
                    let mut data = vec![1u64 << i; 1000];
                    all.all_reduce(&mut data, Sum).unwrap();
                    assert_eq!(data, [31; 1000]);
                    all.barrier().unwrap();
                });
            }
        });
    }
}

/// After a member has gone the others go on without it.
#[test]
fn those_that_are_left_make_a_new_group() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            let own = part(&node, "p");
            let me = node.id().index();
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            if me == 1 {
                drop(all);
            } else {
                assert!(matches!(all.barrier(), Err(GroupError::Lost { rank: 1, .. })));
                let mut rest = Group::of(&own, "rest", &["p@node0", "p@node2"], SOON).unwrap();
                let mut sum = [me as u32];
                rest.all_reduce(&mut sum, Sum).unwrap();
                assert_eq!(sum, [2]);
            }
            node.barrier(SOON).unwrap();
        });
    }
}

#[test]
fn groups_with_one_name_follow_each_other() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            for i in 0..10u32 {
                let mut all = Group::of_nodes(&node, "again", SOON).unwrap();
                let mut sum = [i];
                all.all_reduce(&mut sum, Sum).unwrap();
                assert_eq!(sum, [3 * i]);
            }
            node.barrier(SOON).unwrap();
        });
    }
}

/// No member waits in these groups: one that is ahead joins the next group before others have joined this one.
#[test]
fn groups_in_which_members_only_send_follow_each_other() {
    for is_on in [false, true] {
        for progress in [Progress::Inline, Progress::Thread] {
            let builder = small_builder(3, progress).group_shared_memory(is_on);
            builder.start().unwrap().run(|node| {
                for i in 0..40u32 {
                    drop(Group::of_nodes(&node, "idle", SOON).unwrap());
                    let mut all = Group::of_nodes(&node, "again", SOON).unwrap();
                    let mut value = [i * u32::from(all.rank() == 1)];
                    all.broadcast(1, &mut value).unwrap();
                    assert_eq!(value, [i]);
                }
                node.barrier(SOON).unwrap();
            });
        }
    }
}

#[test]
fn a_group_may_wait_for_ever() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let own = part(&node, "p");
            let mut all = Group::of(&own, "all", &["p@node1", "p@node0"], Duration::MAX).unwrap();
            all.barrier().unwrap();
            assert_eq!(all.patience(), Duration::MAX);
            node.barrier(SOON).unwrap();
        });
    }
}

#[test]
fn who_does_not_join_is_named() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            if node.id().index() == 0 {
                let error = Group::of_nodes(&node, "few", BRIEFLY).unwrap_err();
                let missing = vec!["few#1@node1".to_owned(), "few#2@node2".to_owned()];
                assert_eq!(error, JoinError::TimedOut { waited: BRIEFLY, missing });
                assert!(error.to_string().contains("few#1@node1, few#2@node2"), "{error}");
            }
            node.barrier(SOON).unwrap();
        });
    }
}

/// Any part that knows the name of a member's part may send to it; such messages are never taken for the group's.
#[test]
fn messages_of_strangers_change_nothing() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            let stranger = part(&node, "stranger");
            for to in ["all#0@node0", "all#1@node1"] {
                let to = stranger.find(to, SOON).unwrap();
                for message in [&b""[..], b"short", &[0; 24], &[1; 100]] {
                    stranger.send(to, message).unwrap();
                }
            }
            stranger.flush();
            node.barrier(SOON).unwrap();
            let mut sum = [1u8];
            all.all_reduce(&mut sum, Sum).unwrap();
            assert_eq!(sum, [2]);
            node.barrier(SOON).unwrap();
        });
    }
}

/// A stream that a stranger opens to a member's part is refused. Neither such streams nor a constant flow of messages keep a
/// member from finding out why nothing moves.
#[test]
fn streams_of_strangers_do_not_hide_that_members_differ() {
    for is_on in [false, true] {
        let cluster = small_builder(2, Progress::Inline).group_shared_memory(is_on).start().unwrap();
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            let stranger = part(&node, "stranger");
            let to = stranger.find(&format!("all#{}@node{}", 1 - all.rank(), 1 - all.rank()), SOON).unwrap();
            let mut stream = stranger.open_stream(to).unwrap();
            stream.write_all(&[1; 100]).unwrap();
            stream.flush_segment().unwrap();
            node.barrier(SOON).unwrap();
            let error = all.broadcast(1 - all.rank(), &mut [0u8; 8]).unwrap_err();
            let is_mismatch = matches!(error, GroupError::Mismatch { .. })
                || matches!(error, GroupError::Ended { cause: Cause::Mismatch, .. });
            assert!(is_mismatch, "{error:?}");
            node.barrier(SOON).unwrap();
        });
    }
}

/// A call that has started goes on after a wait for it was interrupted; one that has not is given up.
#[test]
fn a_wait_for_a_call_can_be_ended() {
    for cluster in clusters(2) {
        let come = AtomicUsize::new(0);
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            if node.id().index() == 0 {
                let mut sum = [1u8];
                let mut call = all.start(Request::all_reduce(&mut sum, Sum)).unwrap();
                node.interrupt();
                assert_eq!(call.wait(SOON), Err(GroupError::Interrupted));
                meet(&come, 2);
                call.wait(SOON).unwrap();
                drop(call);
                assert_eq!(sum, [2]);
                node.interrupt();
                assert_eq!(all.barrier(), Err(GroupError::Interrupted));
                assert!(matches!(all.barrier(), Err(GroupError::Broken(_))));
                meet(&come, 4);
            } else {
                meet(&come, 2);
                all.all_reduce(&mut [1u8], Sum).unwrap();
                meet(&come, 4);
                // Node 0 may have done its part of the first one.
                let error = all.barrier().and_then(|()| all.barrier());
                assert!(matches!(error, Err(GroupError::Ended { by: 0, .. })), "{error:?}");
            }
            // The interrupt would end a barrier of the node as well.
            meet(&come, 6);
        });
    }
}

/// Another member has no room to receive the news that a call was given up, and gets room later.
#[test]
fn who_had_no_room_to_hear_what_has_ended_a_group_is_told_by_a_later_call() {
    let cluster = small_builder(2, Progress::Inline).group_shared_memory(false).start().unwrap();
    let (come, is_told) = (AtomicUsize::new(0), AtomicBool::new(false));
    cluster.run(|node| {
        let sink = part(&node, "sink");
        let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
        if node.id().index() == 0 {
            let to = sink.find("sink@node1", SOON).unwrap();
            // That node is not polled before this is full.
            while sink.try_send(to, &[0; 1000]).is_ok() {}
            drop(all.start(Request::barrier()).unwrap());
            meet(&come, 2);
            while !is_told.load(Ordering::SeqCst) {
                assert!(matches!(all.barrier(), Err(GroupError::Broken(_))));
                std::thread::yield_now();
            }
        } else {
            meet(&come, 2);
            while !matches!(sink.recv_timeout(BRIEFLY), Err(RecvError::Timeout(_))) {}
            let told = all.barrier();
            // Set even on failure: the other member waits for it.
            is_told.store(true, Ordering::SeqCst);
            assert!(matches!(told, Err(GroupError::Ended { by: 0, cause: Cause::GivenUp, .. })), "{told:?}");
        }
    });
}

/// Small rows, and a group that is not polled next to one that is used: neither takes the other's room.
#[test]
fn a_group_that_is_not_polled_does_not_hold_up_another() {
    let cluster = small_builder(2, Progress::Inline).start().unwrap();
    cluster.run(|node| {
        let (mut still, mut used) =
            (Group::of_nodes(&node, "still", SOON).unwrap(), Group::of_nodes(&node, "used", SOON).unwrap());
        let mut data = vec![node.id().index() as u8; 20_000];
        let mut waits = still.start(Request::broadcast(0, &mut data)).unwrap();
        // The root sends as much as it may; the other one polls later.
        if node.id().index() == 0 {
            assert!(!waits.poll().unwrap());
        }
        for _ in 0..20 {
            let mut sum = vec![1u32; 2000];
            used.all_reduce(&mut sum, Sum).unwrap();
            assert_eq!(sum, [2; 2000]);
        }
        waits.wait(SOON).unwrap();
        drop(waits);
        assert_eq!(data, [0; 20_000]);
        node.barrier(SOON).unwrap();
    });
}
