//! A link of a process to itself: what it sends arrives at its other end.

use pdbp_core::umb::{BlockPool, HeapMemory};

use super::*;
use crate::process::{Backing, Serial};
use crate::window::{Layout, MpiMemory};

const BODY: usize = 1000;
/// Blocks under way at most.
const MOST: usize = 3;

fn node() -> NodeId {
    NodeId::new(0).unwrap()
}

fn link() -> (SharedMemoryLink, BlockPool<MpiMemory>) {
    let layout = Layout { nodes: 1, neighbours: 1, slots: MOST, blocks: 16 << 10 };
    let memory = HeapMemory::new(layout.bytes()).unwrap();
    let region = Region::new(Backing::Heap(memory), layout, 0, Serial::NONE, Vec::new());
    let region = Arc::new(region.ok().unwrap());
    let memory = MpiMemory::new(Arc::clone(&region)).unwrap();
    (SharedMemoryLink::new(&region, 0, node(), (MOST, 2000)), BlockPool::new(memory, node(), BODY))
}

/// Sends a block of so many bytes, each of which is `byte`. Returns its index.
fn send(link: &mut SharedMemoryLink, pool: &mut BlockPool<MpiMemory>, length: usize, byte: u8) -> u32 {
    let mut block = pool.take().unwrap();
    block.bytes_mut()[..length].fill(byte);
    let block = pool.seal(block, length);
    let (index, offset) = (block.id().index, link.region.own().offset_of(block.bytes()).unwrap());
    link.send(block, offset);
    index
}

fn receive(link: &mut SharedMemoryLink) -> ArrivedBlock {
    match link.poll() {
        Some(Turn::Received(block)) => block,
        _ => panic!("nothing has arrived"),
    }
}

/// While the peer's blocks never end, and each look finds one.
#[test]
fn blocks_that_come_back_are_seen_while_others_keep_arriving() {
    let (mut link, mut pool) = link();
    send(&mut link, &mut pool, 100, 1);
    let first = receive(&mut link);
    link.give_back(first).unwrap();
    let mut seen = false;
    for _ in 0..2 {
        send(&mut link, &mut pool, 100, 2);
        match link.poll() {
            Some(Turn::Sent(block)) => {
                seen = true;
                pool.give_sealed(block).unwrap();
                break;
            }
            Some(Turn::Received(block)) => drop(block),
            _ => panic!("something is there"),
        }
    }
    assert!(seen);
}
