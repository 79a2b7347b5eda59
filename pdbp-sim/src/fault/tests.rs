use pdbp_core::umb::BlockPool;

use super::*;
use crate::local::Local;

fn node(i: u16) -> NodeId {
    NodeId::new(i).unwrap()
}

/// Two nodes, of which node 1 has faults, and a pool for each.
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
        // What node 0 sends from now on does not arrive, and comes back to it.
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
