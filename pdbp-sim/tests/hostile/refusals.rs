//! Transports that refuse one block and hand back another.

use std::collections::BTreeSet;

use pdbp_core::engine::Event;
use pdbp_core::umb::{BlockPool, stride};
use pdbp_core::{Arrival, Completion, Op, Reason, Refused};

use super::rig::*;

fn poll(host: &mut Host<Puppet>) {
    (0..10).for_each(|_| host.poll());
}

fn address(op: &Op) -> Option<usize> {
    match op {
        Op::Send { block, .. } => Some(block.bytes().as_ptr().addr()),
        _ => None,
    }
}

fn failed(host: &Host<Puppet>) -> usize {
    host.pipes.events.iter().filter(|e| matches!(e, Event::PeerFailed { .. })).count()
}

/// The block of the first data send is handed back for the second one.
#[test]
fn a_block_handed_back_for_another_does_not_get_two_owners() {
    for arrival in [Arrival::InPlace, Arrival::Posted] {
        let (mut host, strings) = acquainted(arrival);
        let mut sent = 0;
        strings.borrow_mut().answer = Some(Box::new(move |taken, op| {
            sent += u32::from(is_data(&op));
            let before = taken.iter().position(is_data);
            let before = before.filter(|_| is_data(&op) && sent == 2).map(|at| taken.swap_remove(at));
            taken.push(op);
            before.map_or(Ok(()), |op| Err(Refused { op, reason: Reason::Busy }))
        }));
        assert!(host.send(1, 1, b"first") && host.send(1, 1, b"second"));
        let second = strings.borrow().taken.iter().find(|op| is_data(op)).and_then(address).unwrap();
        poll(&mut host);
        assert_eq!(host.foreign(), 1);
        assert_eq!(failed(&host), 1, "the link is given up");
        assert_eq!(host.engine.counters().undelivered, 1, "the one that came back");
        let owned: Vec<_> = strings.borrow().taken.iter().filter_map(address).collect();
        assert_eq!(owned.len(), owned.iter().collect::<BTreeSet<_>>().len(), "a block has two owners");
        // Other blocks go in and out; that of the transport stays what it is.
        let kept = strings.borrow_mut().sends();
        let bytes: Vec<_> = kept.iter().map(|block| block.bytes().to_vec()).collect();
        while host.send(0, 3, &[0x77; 100]) {}
        poll(&mut host);
        assert_eq!(kept.iter().map(|block| block.bytes().to_vec()).collect::<Vec<_>>(), bytes);
        assert!(kept.iter().any(|block| block.bytes().as_ptr().addr() == second));
        for block in kept {
            strings.borrow_mut().ready.push_back(Completion::Failed { peer: node(1), block });
        }
        poll(&mut host);
        assert_eq!((host.engine.counters().undelivered, host.foreign()), (2, 1));
        assert_eq!(host.engine.send_row(node(1)).unwrap().space.used(), 0);
        assert!(!host.engine.leaks());
    }
}

/// What is handed back is of nobody here, though it has the same name.
#[test]
fn a_strangers_block_handed_back_is_not_taken_for_the_own() {
    let (mut host, strings) = acquainted(Arrival::InPlace);
    let mut pool = BlockPool::new(memory(), node(0), BODY);
    let mut strange: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    strings.borrow_mut().answer = Some(Box::new(move |taken, op| {
        let Op::Send { peer, block } = op else {
            taken.push(op);
            return Ok(());
        };
        let at = strange.iter().position(|b| b.id() == block.id()).unwrap();
        let other = pool.seal(strange.swap_remove(at), block.bytes().len());
        taken.push(Op::Send { peer, block });
        Err(Refused { op: Op::Send { peer, block: other }, reason: Reason::Busy })
    }));
    assert!(host.send(1, 1, b"the own one"));
    poll(&mut host);
    assert!(host.foreign() > 0);
    assert_eq!(failed(&host), 1);
    strings.borrow_mut().answer = None;
    // Still with the transport, whatever it said.
    let own = strings.borrow_mut().sends().pop().unwrap();
    assert_eq!(host.engine.send_row(node(1)).unwrap().space.used(), 1);
    strings.borrow_mut().ready.push_back(Completion::Failed { peer: node(1), block: own });
    poll(&mut host);
    assert_eq!(host.engine.send_row(node(1)).unwrap().space.used(), 0);
    assert_eq!(host.engine.counters().undelivered, 1);
}

/// Blocks to receive into are refused by handing back others: one that was posted before, one of a stranger, one to be sent.
#[test]
fn a_posted_block_handed_back_for_another_does_not_get_two_owners() {
    for way in 0..3 {
        let (puppet, strings) = Puppet::new(0, 2, Arrival::Posted);
        let mut pool = BlockPool::new(memory(), node(0), BODY);
        let mut recvs = 0;
        strings.borrow_mut().answer = Some(Box::new(move |taken, op| {
            let Op::Recv { peer, .. } = &op else {
                taken.push(op);
                return Ok(());
            };
            let peer = *peer;
            recvs += 1;
            let vacant = |op: &Op| matches!(op, Op::Recv { .. });
            let other = match way {
                _ if recvs != 2 => None,
                0 => taken.iter().position(vacant).map(|at| taken.swap_remove(at)),
                1 => pool.take().map(|block| Op::Recv { peer, block }),
                _ => pool.take().map(|block| Op::Send { peer, block: pool.seal(block, stride(BODY)) }),
            };
            taken.push(op);
            other.map_or(Ok(()), |op| Err(Refused { op, reason: Reason::Busy }))
        }));
        let mut host = Host::new(engine(0, 2, puppet, memory()));
        poll(&mut host);
        assert_eq!((host.foreign(), failed(&host)), (1, 1), "way {way}");
        strings.borrow_mut().answer = None;
        let mut addresses = BTreeSet::new();
        let taken = std::mem::take(&mut strings.borrow_mut().taken);
        for op in taken {
            let Op::Recv { peer, mut block } = op else { continue };
            assert!(addresses.insert(block.bytes_mut().as_ptr().addr()), "way {way}: a block has two owners");
            strings.borrow_mut().ready.push_back(Completion::Unused { peer, block });
        }
        poll(&mut host);
        assert_eq!(host.foreign(), 1, "way {way}");
        // All blocks but those of the row of the node itself and for control are free.
        let used = 3 + 4 + host.engine.send_row(node(1)).unwrap().space.real();
        assert_eq!(host.engine.free_blocks(), BLOCKS as u32 - used, "way {way}");
    }
}
