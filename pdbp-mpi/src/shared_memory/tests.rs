//! A link from a process to itself: what it sends arrives at its own end.

use pdbp_core::umb::{BlockPool, HeapMemory};

use super::*;
use crate::process::{Backing, Serial};
use crate::window::{Layout, MpiMemory};

const BODY: usize = 1000;
/// The most blocks in flight.
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

/// Sends a block of `length` bytes, all of them `byte`. Returns its index.
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
        Some(Event::Received(block)) => block,
        _ => panic!("nothing has arrived"),
    }
}

/// Takes the one block that has come back.
fn take_back(link: &mut SharedMemoryLink, pool: &mut BlockPool<MpiMemory>) -> u32 {
    let Some(Event::Sent(block)) = link.poll().or_else(|| link.poll()) else {
        panic!("nothing has come back")
    };
    let index = block.id().index;
    pool.give_sealed(block).unwrap();
    index
}

/// Whether a block that arrived lies in the ring.
fn is_copy(link: &SharedMemoryLink, block: &ArrivedBlock) -> bool {
    let part = link.part();
    assert!(part.place_of(0, block.bytes()).is_some());
    part.offset_of(block.bytes()).is_none()
}

#[test]
fn short_blocks_come_with_their_entries_and_longer_ones_lie_where_they_are() {
    let (mut link, mut pool) = link();
    // Uses every slot more than once.
    for round in 0..3 {
        for length in [0, 1, 64, 71, SLOT_ROOM - 1, SLOT_ROOM, SLOT_ROOM + 1, 1000] {
            let index = send(&mut link, &mut pool, length, 10 + round);
            let block = receive(&mut link);
            assert_eq!((block.id().index, block.bytes().len()), (index, length));
            assert!(block.bytes().iter().all(|byte| *byte == 10 + round), "{length}");
            assert_eq!(is_copy(&link, &block), length <= SLOT_ROOM, "{length}");
            link.return_block(block).unwrap();
            assert_eq!(take_back(&mut link, &mut pool), index);
        }
    }
}

/// The reader keeps one block while the ring wraps round.
#[test]
fn a_slot_whose_block_is_still_read_is_not_written() {
    let (mut link, mut pool) = link();
    let kept_index = send(&mut link, &mut pool, 100, 1);
    let kept = receive(&mut link);
    assert!(is_copy(&link, &kept));
    for number in 1..=2 * MOST {
        let index = send(&mut link, &mut pool, 100, 2);
        let block = receive(&mut link);
        assert_eq!(is_copy(&link, &block), number % MOST != 0, "{number}");
        assert!(block.bytes().iter().all(|byte| *byte == 2));
        link.return_block(block).unwrap();
        assert_eq!(take_back(&mut link, &mut pool), index);
        assert!(kept.bytes().iter().all(|byte| *byte == 1), "{number}");
    }
    link.return_block(kept).unwrap();
    assert_eq!(take_back(&mut link, &mut pool), kept_index);
    for number in 2 * MOST + 1..=3 * MOST {
        send(&mut link, &mut pool, 100, 3);
        let block = receive(&mut link);
        assert!(is_copy(&link, &block), "{number}");
        link.return_block(block).unwrap();
        take_back(&mut link, &mut pool);
    }
}

/// A process that misbehaves ends its link, and nothing more.
#[test]
fn entries_that_no_block_can_have_are_refused() {
    let room = SLOT_ROOM as u32;
    let wrong: [fn(Part<'_>) -> u64; 4] =
        [|part| part.slot_at(0, 1), |part| part.slot_at(0, 0) + 64, |_| 0, |part| part.slot_at(0, MOST)];
    for offset in wrong {
        let (mut link, _pool) = link();
        let offset = offset(link.region.own());
        link.out.push(Entry { index: 0, length: 64, offset });
        assert!(matches!(link.poll(), Some(Event::Invalid)), "{offset}");
    }
    let (mut link, _pool) = link();
    let offset = link.region.own().slot_at(0, 0);
    link.out.push(Entry { index: 0, length: room + 1, offset });
    assert!(matches!(link.poll(), Some(Event::Invalid)), "longer than the slot");

    // A block of ours is given back that never left, or from a place other than it was sent from.
    let (mut link, mut pool) = self::link();
    let index = send(&mut link, &mut pool, 100, 1);
    let block = receive(&mut link);
    let offset = link.region.own().slot_at(0, 1);
    link.returning.push(Entry { index, length: 100, offset });
    assert!(link.poll().is_none());
    assert!(matches!(link.poll(), Some(Event::Invalid)), "of another slot");
    link.return_block(block).unwrap();
    assert_eq!(take_back(&mut link, &mut pool), index);
}

/// The peer's blocks keep arriving, and each poll finds one.
#[test]
fn blocks_that_come_back_are_seen_while_others_keep_arriving() {
    let (mut link, mut pool) = link();
    send(&mut link, &mut pool, 100, 1);
    let first = receive(&mut link);
    link.return_block(first).unwrap();
    let mut seen = false;
    for _ in 0..2 {
        send(&mut link, &mut pool, 100, 2);
        match link.poll() {
            Some(Event::Sent(block)) => {
                seen = true;
                pool.give_sealed(block).unwrap();
                break;
            }
            Some(Event::Received(block)) => drop(block),
            _ => panic!("something is there"),
        }
    }
    assert!(seen);
}
