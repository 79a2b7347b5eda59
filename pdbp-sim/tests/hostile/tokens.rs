//! Transports that complete what was not asked for, twice, never, or by another link.

use std::cell::RefCell;
use std::rc::Rc;

use pdbp_core::umb::{BlockPool, stride};
use pdbp_core::{Arrival, Completion, Op};

use super::rig::*;

fn host(nodes: u16, arrival: Arrival) -> (Host<Puppet>, Rc<RefCell<Strings>>) {
    if nodes == 2 {
        return acquainted(arrival);
    }
    let (puppet, strings) = Puppet::new(0, nodes, arrival);
    (Host::new(engine(0, nodes, puppet, memory())), strings)
}

fn posted(strings: &Rc<RefCell<Strings>>, peer: u16) -> usize {
    let is_it = |op: &&Op| matches!(op, Op::Recv { peer: p, .. } if *p == node(peer));
    strings.borrow().taken.iter().filter(is_it).count()
}

fn take_posted(strings: &Rc<RefCell<Strings>>, peer: u16) -> pdbp_core::VacantBlock {
    let mut strings = strings.borrow_mut();
    let is_it = |op: &Op| matches!(op, Op::Recv { peer: p, .. } if *p == node(peer));
    let at = strings.taken.iter().position(is_it).unwrap();
    let Op::Recv { block, .. } = strings.taken.swap_remove(at) else { unreachable!() };
    block
}

#[test]
fn a_block_of_another_engine_does_not_complete_the_one_of_that_number() {
    let ((mut a, strings_a), (mut b, strings_b)) = (host(2, Arrival::InPlace), host(2, Arrival::InPlace));
    assert!(a.send(1, 1, b"of a") && b.send(1, 1, b"of b"));
    let of_b = strings_b.borrow_mut().sends().pop().unwrap();
    let of_a = strings_a.borrow_mut().sends().pop().unwrap();
    assert_eq!(of_a.id(), of_b.id());
    strings_a.borrow_mut().ready.push_back(Completion::Sent { peer: node(1), block: of_b });
    a.poll();
    assert_eq!(a.foreign(), 1);
    assert_eq!(a.engine.send_row(node(1)).unwrap().space.used(), 1, "its own is still away");
    strings_a.borrow_mut().ready.push_back(Completion::Sent { peer: node(1), block: of_a });
    a.poll();
    assert_eq!(a.engine.send_row(node(1)).unwrap().space.used(), 0);
    // The other engine ends without its block: it was dropped, and does not keep the memory.
    b.poll();
    assert_eq!(b.engine.send_row(node(1)).unwrap().space.used(), 1);
}

#[test]
fn a_block_that_is_completed_twice_is_completed_once() {
    let (mut host, strings) = host(2, Arrival::InPlace);
    assert!(host.send(1, 1, b"once"));
    let block = strings.borrow_mut().sends().pop().unwrap();
    let mut pool = BlockPool::new(memory(), node(0), BODY);
    let twin = std::iter::from_fn(|| pool.take()).find(|b| b.id() == block.id()).unwrap();
    let twin = pool.seal(twin, block.bytes().len());
    let done = [block, twin].map(|block| Completion::Sent { peer: node(1), block });
    strings.borrow_mut().ready.extend(done);
    host.poll();
    assert_eq!((host.foreign(), host.engine.send_row(node(1)).unwrap().space.used()), (1, 0));
    assert!(host.send(1, 1, b"again"));
}

#[test]
fn a_block_posted_for_one_peer_that_arrives_from_another_is_counted_where_it_was_posted() {
    let (mut host, strings) = host(3, Arrival::Posted);
    host.poll();
    let before = (posted(&strings, 1), posted(&strings, 2));
    for _ in 0..20 {
        let block = take_posted(&strings, 1).into_arrived(64);
        strings.borrow_mut().ready.push_back(Completion::Received { peer: node(2), block });
        host.poll();
        host.poll();
    }
    assert_eq!((posted(&strings, 1), posted(&strings, 2)), before);
    let free = host.engine.free_blocks();
    assert_eq!(host.foreign(), 0);
    let block = take_posted(&strings, 2);
    strings.borrow_mut().ready.push_back(Completion::Unused { peer: node(1), block });
    host.poll();
    assert_eq!((host.engine.free_blocks(), host.foreign()), (free + 1, 0));
    assert_eq!((posted(&strings, 1), posted(&strings, 2) + 1), before);
}

#[test]
fn a_block_to_receive_into_that_is_reported_as_sent_is_replaced() {
    let (mut host, strings) = host(2, Arrival::Posted);
    host.poll();
    let before = (host.engine.free_blocks(), posted(&strings, 1));
    // Any pool can seal any block.
    let pool = BlockPool::new(memory(), node(0), BODY);
    let block = pool.seal(take_posted(&strings, 1), stride(BODY));
    strings.borrow_mut().ready.push_back(Completion::Sent { peer: node(1), block });
    host.poll();
    assert_eq!(host.foreign(), 1);
    // The block itself is free again, and its row has taken another, as it was one short.
    assert_eq!((host.engine.free_blocks(), posted(&strings, 1)), before);
    assert_eq!(host.engine.send_row(node(1)).unwrap().space.used(), 0);
}

#[test]
fn a_strangers_block_that_arrives_is_neither_posted_nor_kept() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let (mut host, strings) = host(2, arrival);
        host.poll();
        let (free, before) = (host.engine.free_blocks(), posted(&strings, 1));
        let mut pool = BlockPool::new(memory(), node(1), BODY);
        for _ in 0..5 {
            let mut block = pool.take().unwrap();
            block.bytes_mut().fill(0xA5);
            let block = block.into_arrived(100);
            strings.borrow_mut().ready.push_back(Completion::Received { peer: node(1), block });
            host.poll();
        }
        assert_eq!(host.engine.counters().malformed, 5);
        assert_eq!((host.engine.free_blocks(), posted(&strings, 1)), (free, before));
        let returned = std::mem::take(&mut strings.borrow_mut().taken).into_iter();
        let returned =
            returned.filter_map(|op| if let Op::Return { block, .. } = op { Some(block) } else { None });
        let returned: Vec<_> = returned.collect();
        match arrival {
            Arrival::Posted => assert_eq!((host.foreign(), returned.len()), (5, 0)),
            Arrival::InPlace => assert_eq!((host.foreign(), returned.len()), (0, 5)),
        }
        returned.into_iter().for_each(|block| pool.give_arrived(block).unwrap());
    }
}

#[test]
fn blocks_that_never_complete_do_not_hinder_the_end() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let (mut host, strings) = host(2, arrival);
        while host.send(1, 1, b"never") {}
        assert!(!host.engine.leaks());
        drop(host);
        let kept = strings.borrow_mut().sends();
        reuse_freed_memory();
        assert!(!kept.is_empty());
        assert!(kept.iter().all(|block| block.bytes().windows(5).any(|w| w == b"never")));
    }
}
