use pdbp_core::umb::BlockPool;
use pdbp_local::Local;

use super::*;
use crate::network::{Network, Physics, ms};

fn node(i: u16) -> NodeId {
    NodeId::new(i).unwrap()
}

/// Two nodes, the second with faults, and a pool for each.
fn pair(arrival: Arrival, faults: Faults) -> (Local, FaultInjector<Local>, [BlockPool<HeapMemory>; 2]) {
    let memories: Vec<_> = (0..2).map(|_| HeapMemory::new(16 << 10).unwrap()).collect();
    let mut ends = Local::network(&memories, arrival, 164, 8).into_iter();
    let mut memories = memories.into_iter();
    let pools = [0, 1].map(|i| BlockPool::new(memories.next().unwrap(), node(i), 100));
    (ends.next().unwrap(), FaultInjector::new(ends.next().unwrap(), faults), pools)
}

fn send(end: &mut impl Transport, pool: &mut BlockPool<HeapMemory>, peer: u16) {
    let mut block = pool.take().unwrap();
    block.bytes_mut().fill(7);
    end.submit(Op::Send { peer: node(peer), block: pool.seal(block, 100) }).unwrap();
}

#[test]
fn corruption_does_not_reach_the_senders_memory() {
    let corrupt = Some(Chance::in_thousand(1000).unwrap());
    let (mut zero, mut one, [mut pool, _]) = pair(Arrival::InPlace, Faults { corrupt, ..Faults::default() });
    send(&mut zero, &mut pool, 1);
    let Some(Completion::Received { block, .. }) = one.poll_completion() else { panic!("no block") };
    assert!(block.bytes().iter().any(|b| *b != 7));
    one.submit(Op::Return { peer: node(0), block }).unwrap();
    let Some(Completion::Sent { block, .. }) = zero.poll_completion() else { panic!("not complete") };
    assert_eq!(block.bytes(), [7; 100]);
    assert_eq!(one.injected().corrupted, 1);
    assert!(!one.capabilities().trusted);
}

#[test]
fn corrupted_posted_blocks_are_the_users_own() {
    let corrupt = Some(Chance::in_thousand(1000).unwrap());
    let (mut zero, mut one, [mut pool, mut room]) =
        pair(Arrival::Posted, Faults { corrupt, ..Faults::default() });
    one.submit(Op::Recv { peer: node(0), block: room.take().unwrap() }).unwrap();
    send(&mut zero, &mut pool, 1);
    let Some(Completion::Received { block, .. }) = one.poll_completion() else { panic!("no block") };
    assert!(block.bytes().iter().any(|b| *b != 7));
    room.give_arrived(block).unwrap();
    assert_eq!(room.free(), room.blocks());
}

#[test]
fn a_failed_link_gives_back_everything_and_is_reported_once() {
    for arrival in [Arrival::InPlace, Arrival::Posted] {
        let fail = Some(LinkFailure { peer: node(0), after: 4 });
        let (mut zero, mut one, [mut pool, mut own]) = pair(arrival, Faults { fail, ..Faults::default() });
        if arrival == Arrival::Posted {
            zero.submit(Op::Recv { peer: node(1), block: pool.take().unwrap() }).unwrap();
            one.submit(Op::Recv { peer: node(0), block: own.take().unwrap() }).unwrap();
        }
        let before = if arrival == Arrival::Posted { 2 } else { 3 };
        (0..before).for_each(|_| send(&mut one, &mut own, 0));
        let block = own.take().unwrap();
        let refused = one.submit(Op::Send { peer: node(0), block: own.seal(block, 100) }).unwrap_err();
        assert!(matches!(refused.reason, Reason::PeerFailed), "{:?}", refused.reason);
        let Op::Send { block, .. } = refused.op else { panic!("another operation") };
        own.give_sealed(block).unwrap();
        // Blocks that node 0 sends from now on do not arrive, and return to it.
        send(&mut zero, &mut pool, 1);

        let (mut failed, mut unused, mut reports, mut returned) = (0, 0, 0, 0);
        for _ in 0..50 {
            match zero.poll_completion() {
                Some(Completion::Received { peer, block }) if arrival == Arrival::InPlace => {
                    zero.submit(Op::Return { peer, block }).unwrap();
                }
                Some(Completion::Received { peer, block }) => {
                    pool.give_arrived(block).unwrap();
                    zero.submit(Op::Recv { peer, block: pool.take().unwrap() }).unwrap();
                }
                Some(Completion::Sent { block, .. }) => {
                    pool.give_sealed(block).unwrap();
                    returned += 1;
                }
                _ => {}
            }
            match one.poll_completion() {
                Some(Completion::Failed { block, .. }) => {
                    own.give_sealed(block).unwrap();
                    failed += 1;
                }
                Some(Completion::Unused { block, .. }) => {
                    own.give_vacant(block).unwrap();
                    unused += 1;
                }
                Some(Completion::PeerFailed { .. }) => reports += 1,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        assert_eq!((failed, reports, returned), (before, 1, 1), "{arrival:?}");
        assert_eq!(unused, i32::from(arrival == Arrival::Posted));
        assert_eq!(own.free(), own.blocks());
    }
}

/// Regression: such a peer could send only into the blocks that were posted when the link went down.
#[test]
fn a_peer_that_does_not_notice_the_failed_link_gets_all_its_blocks_back() {
    for arrival in [Arrival::InPlace, Arrival::Posted] {
        let fail = Some(LinkFailure { peer: node(0), after: 2 });
        let (mut zero, mut one, [mut pool, mut own]) = pair(arrival, Faults { fail, ..Faults::default() });
        if arrival == Arrival::Posted {
            one.submit(Op::Recv { peer: node(0), block: own.take().unwrap() }).unwrap();
        } else {
            send(&mut one, &mut own, 0);
        }
        let block = own.take().unwrap();
        let refused = one.submit(Op::Send { peer: node(0), block: own.seal(block, 100) }).unwrap_err();
        assert!(matches!(refused.reason, Reason::PeerFailed));
        for _ in 0..20 {
            send(&mut zero, &mut pool, 1);
            let returned = (0..5).find_map(|_| {
                let told = one.poll_completion();
                assert!(!matches!(told, Some(Completion::Received { .. })), "{told:?}");
                match zero.poll_completion() {
                    Some(Completion::Sent { block, .. }) => Some(block),
                    _ => None,
                }
            });
            pool.give_sealed(returned.expect("the block comes back")).unwrap();
        }
    }
}

/// Node 0 of three, with faults: node 1 is on its host, node 2 is not.
fn mixed(faults: Faults) -> (FaultInjector<Local>, Vec<Local>, Vec<BlockPool<HeapMemory>>) {
    let memories: Vec<_> = (0..3).map(|_| HeapMemory::new(16 << 10).unwrap()).collect();
    let mut ends = Local::network_of_hosts(&memories, &[0, 0, 1], 164, 8);
    let pools = memories.into_iter().enumerate().map(|(i, m)| BlockPool::new(m, node(i as u16), 100));
    let pools = pools.collect();
    (FaultInjector::new(ends.remove(0), faults), ends, pools)
}

#[test]
fn in_a_mixed_network_corrupted_blocks_are_copies_in_place_and_the_users_own_when_posted() {
    let corrupt = Some(Chance::in_thousand(1000).unwrap());
    let (mut zero, mut others, mut pools) = mixed(Faults { corrupt, ..Faults::default() });
    for round in 1..=20 {
        zero.submit(Op::Recv { peer: node(2), block: pools[0].take().unwrap() }).unwrap();
        send(&mut others[0], &mut pools[1], 0);
        send(&mut others[1], &mut pools[2], 0);
        for _ in 0..2 {
            let Some(Completion::Received { peer, block }) = zero.poll_completion() else {
                panic!("no block")
            };
            assert!(block.bytes().iter().any(|b| *b != 7), "{peer}");
            if peer == node(1) {
                assert_eq!(block.id().segment, peer);
                zero.submit(Op::Return { peer, block }).unwrap();
            } else {
                pools[0].give_arrived(block).unwrap();
            }
        }
        for (other, pool) in others.iter_mut().zip(&mut pools[1..]) {
            let Some(Completion::Sent { block, .. }) = other.poll_completion() else {
                panic!("not complete")
            };
            assert_eq!(block.bytes(), [7; 100]);
            pool.give_sealed(block).unwrap();
        }
        assert_eq!(zero.injected().corrupted, 2 * round);
    }
    for pool in &pools {
        assert_eq!(pool.free(), pool.blocks());
    }
}

/// Checks that the operation with which the link fails is handed back, and so is room posted for a peer that is read in place.
fn refused(end: &mut impl Transport, pool: &mut BlockPool<HeapMemory>, failing: u16) {
    let block = pool.take().unwrap();
    let block = pool.seal(block, 100);
    let refused = end.submit(Op::Send { peer: node(failing), block }).unwrap_err();
    assert!(matches!(refused.reason, Reason::PeerFailed), "{:?}", refused.reason);
    let Op::Send { block, .. } = refused.op else { panic!("another operation") };
    pool.give_sealed(block).unwrap();
    let refused = end.submit(Op::Recv { peer: node(1), block: pool.take().unwrap() }).unwrap_err();
    let expected = if failing == 1 { "PeerFailed" } else { "Unsupported" };
    assert_eq!(format!("{:?}", refused.reason), expected);
    let Op::Recv { block, .. } = refused.op else { panic!("another operation") };
    pool.give_vacant(block).unwrap();
}

/// Polls a node, returns the blocks that it reads in place, and takes back those that it has sent.
fn return_all(end: &mut Local, pool: &mut BlockPool<HeapMemory>) {
    match end.poll_completion() {
        Some(Completion::Sent { block, .. }) => pool.give_sealed(block).unwrap(),
        Some(Completion::Received { peer, block }) => end.submit(Op::Return { peer, block }).unwrap(),
        Some(told) => panic!("{told:?}"),
        None => {}
    }
}

#[test]
fn in_a_mixed_network_a_link_of_either_kind_fails_and_the_other_goes_on() {
    for (failing, other) in [(1u16, 2u16), (2, 1)] {
        let fail = Some(LinkFailure { peer: node(failing), after: 3 });
        let (mut zero, mut others, mut pools) = mixed(Faults { fail, ..Faults::default() });
        for _ in 0..2 {
            zero.submit(Op::Recv { peer: node(2), block: pools[0].take().unwrap() }).unwrap();
        }
        if failing == 1 {
            (0..2).for_each(|_| send(&mut zero, &mut pools[0], 1));
        }
        refused(&mut zero, &mut pools[0], failing);

        // Both peers send; only one is heard, but both get their blocks back.
        for i in [0, 1] {
            send(&mut others[i], &mut pools[i + 1], 0);
        }
        let (mut heard, mut unused, mut failed, mut reports) = (0, 0, 0, 0);
        for _ in 0..50 {
            match zero.poll_completion() {
                Some(Completion::Received { peer, block }) => {
                    assert_eq!((peer, block.bytes()), (node(other), &[7; 100][..]));
                    heard += 1;
                    if other == 1 {
                        zero.submit(Op::Return { peer, block }).unwrap();
                    } else {
                        pools[0].give_arrived(block).unwrap();
                    }
                }
                Some(Completion::Unused { peer, block }) => {
                    assert_eq!(peer, node(failing));
                    unused += 1;
                    pools[0].give_vacant(block).unwrap();
                }
                Some(Completion::Failed { peer, block }) => {
                    assert_eq!(peer, node(failing));
                    failed += 1;
                    pools[0].give_sealed(block).unwrap();
                }
                Some(Completion::PeerFailed { peer, .. }) => {
                    assert_eq!(peer, node(failing));
                    reports += 1;
                }
                Some(told) => panic!("{told:?}"),
                None => {}
            }
            others.iter_mut().zip(&mut pools[1..]).for_each(|(end, pool)| return_all(end, pool));
        }
        let in_place = failing == 1;
        assert_eq!((heard, reports), (1, 1));
        assert_eq!((unused, failed), if in_place { (0, 2) } else { (2, 0) });
        // On the surviving link, one of the two posted blocks was filled.
        let posted = usize::from(in_place);
        assert_eq!(pools[0].free() + posted as u32, pools[0].blocks());
        for pool in &pools[1..] {
            assert_eq!(pool.free(), pool.blocks());
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let run = |seed| {
        let faults = Faults { seed, busy: Chance::in_thousand(500).unwrap(), ..Faults::default() };
        let (_zero, mut one, [_, mut own]) = pair(Arrival::InPlace, faults);
        let tries = (0..40).map(|_| {
            let block = own.take().unwrap();
            one.submit(Op::Send { peer: node(0), block: own.seal(block, 64) }).is_ok()
        });
        tries.collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

/// A node that waits for room sends nothing, but must still notice that the link went down.
#[test]
fn a_tripped_breaker_takes_the_link_down_at_the_next_poll_and_no_other_does() {
    let fail = Some(LinkFailure::when_tripped(node(0)));
    let (_zero, mut one, [_pool, mut own]) = pair(Arrival::InPlace, Faults { fail, ..Faults::default() });
    let breaker = one.breaker();
    send(&mut one, &mut own, 0);
    assert!(one.poll_completion().is_none());
    breaker.trip();
    assert!(matches!(one.poll_completion(), Some(Completion::PeerFailed { peer, .. }) if peer == node(0)));
    assert!(one.poll_completion().is_none(), "it is said once");
    assert_eq!(one.injected().failures, 1);
}

#[test]
fn a_block_does_not_get_into_a_session_of_which_its_sender_has_yet_to_be_told() {
    let physics = Physics { give_up: ms(1), largest_block: 164, ..Physics::default() };
    let (network, ports) = Network::new(2, physics, 1).unwrap();
    let mut ports = ports.into_iter();
    let mut zero =
        FaultInjector::new(ports.next().unwrap(), Faults { delay: 1_000_000, ..Faults::default() });
    let mut pool = BlockPool::new(HeapMemory::new(16 << 10).unwrap(), node(0), 100);
    send(&mut zero, &mut pool, 1);
    let run = |until| while network.step(until).is_some() {};
    network.cut(0, 1);
    run(ms(5));
    network.heal();
    run(ms(10));
    assert_eq!(network.counts().restored, 1);
    assert!((0..10).all(|_| zero.poll_completion().is_none()));
    let block = pool.take().unwrap();
    let sent = zero.submit(Op::Send { peer: node(1), block: pool.seal(block, 100) });
    assert!(matches!(sent, Err(Refused { reason: Reason::PeerFailed, .. })), "{sent:?}");
}
