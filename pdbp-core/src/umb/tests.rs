//! Tests the pool against a list of the blocks that are out.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::vec::Vec;

use managed::ManagedSlice;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::cdu::{BLOCK_HEADER, CduClass, Full, Packer, Route};
use crate::id::{NodeId, PartId, StreamNo};

fn node(i: u16) -> NodeId {
    NodeId::new(i).unwrap()
}

fn umb(blocks: usize) -> Umb<'static, HeapMemory> {
    let info: Vec<_> = (0..blocks).map(|_| BlockInfo::default()).collect();
    Umb::new(HeapMemory::new(stride(300) * blocks).unwrap(), node(0), 300, ManagedSlice::Owned(info))
}

fn open(umb: &mut Umb<'static, HeapMemory>, index: u32) -> OpenBlock {
    OpenBlock {
        raw: umb.lend(index).unwrap(),
        packer: Packer::new(),
        dest: node(0),
        closings: 0,
        row: crate::routing::LinkId::from_index(0),
        load: Load::Messages,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_block_is_lost_or_doubled(operations in vec(any::<Option<u8>>(), 0..100), blocks in 1usize..12) {
        let mut umb = umb(blocks);
        let mut out = Vec::new();
        for operation in operations {
            match operation {
                None => match umb.take() {
                    Some(index) => {
                        prop_assert!(!out.contains(&index) && (index as usize) < blocks);
                        umb.entry(index).unwrap().state = BlockState::Open;
                        out.push(index);
                    }
                    None => prop_assert_eq!(out.len(), blocks),
                },
                Some(which) if !out.is_empty() => {
                    let index = out.swap_remove(usize::from(which) % out.len());
                    umb.give(index);
                    // The block that came back last goes out next: it is still in a cache.
                    prop_assert_eq!(umb.take(), Some(index));
                    umb.entry(index).unwrap().state = BlockState::Open;
                    umb.give(index);
                }
                Some(_) => {}
            }
            prop_assert_eq!(umb.free() as usize + out.len(), blocks);
        }
    }
}

#[test]
fn blocks_do_not_overlap_and_lie_inside_their_memory() {
    let mut umb = umb(5);
    let start = umb.lend(0).unwrap().base.addr().get();
    for i in 1..5 {
        let raw = umb.lend(i).unwrap();
        assert_eq!(raw.base.addr().get(), start + i as usize * stride(300));
        assert_eq!(umb.index_of(&raw), Some(i));
    }
    let other = self::umb(5).lend(3).unwrap();
    assert_eq!(umb.index_of(&other), None, "the same number in another memory");
}

#[test]
fn a_block_has_as_much_room_as_memory_and_table_allow() {
    let info: Vec<_> = (0..9).map(|_| BlockInfo::default()).collect();
    let memory = HeapMemory::new(stride(300) * 4 + 7).unwrap();
    assert_eq!(Umb::new(memory, node(0), 300, ManagedSlice::Owned(info)).free(), 4);
    assert!(HeapMemory::new(0).is_none());
}

#[test]
fn a_mark_of_another_packer_does_not_reach_beyond_the_block() {
    let mut umb = umb(1);
    let part = PartId::new(node(0), 0).unwrap();
    let route = Route::new(CduClass::ShortMessage, 0, part, part);
    let mut large = std::vec![0; 9000];
    let mut packer = Packer::new();
    packer.push(&mut large, route, &[1; 8000]).unwrap();
    let mut block = open(&mut umb, 0);
    block.rewind(packer);
    assert_eq!(block.written(), 0);
    assert!(block.finish() as usize <= BLOCK_HEADER + block.room());
}

#[test]
fn a_segment_of_a_stream_stays_one_when_it_is_made_urgent() {
    let umb = &mut umb(2);
    let part = PartId::new(node(1), 0).unwrap();
    let tag = StreamTag { group: 1, number: StreamNo(2), segment: 3, dest: part, flags: 0 };
    let mut segment = open(umb, 0);
    segment.set_stream(tag);
    let (segment, messages) = (segment.into_urgent(), open(umb, 1).into_urgent());
    assert_eq!((segment.load, messages.load), (Load::Segment(tag), Load::Urgent));
    for block in [segment, messages] {
        umb.reclaim(block).unwrap();
    }
}

#[test]
fn a_limited_block_takes_less_and_keeps_what_it_has() {
    let mut umb = umb(1);
    let part = PartId::new(node(0), 0).unwrap();
    let route = Route::new(CduClass::ShortMessage, 0, part, part);
    let mut block = open(&mut umb, 0);
    block.limit(usize::MAX);
    assert_eq!(block.room(), 300);
    block.push(route, &[7; 50]).unwrap();
    block.limit(0);
    assert_eq!(block.room(), 72);
    assert_eq!(block.push(route, &[7; 50]), Err(Full));
    let length = block.finish();
    assert_eq!(length as usize, BLOCK_HEADER + 72);
    assert_eq!(crate::cdu::Cdus::validate(&block.raw.bytes()[BLOCK_HEADER..length as usize]), Ok(1));
}

/// Memory that records when it is freed.
struct Watched(HeapMemory, Arc<AtomicBool>);

// SAFETY: as for the heap memory inside.
unsafe impl BlockMemory for Watched {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

fn watched() -> (BlockPool<Watched>, Arc<AtomicBool>) {
    let freed = Arc::new(AtomicBool::new(false));
    let memory = Watched(HeapMemory::new(stride(100) * 4).unwrap(), Arc::clone(&freed));
    (BlockPool::new(memory, node(0), 100), freed)
}

#[test]
fn memory_is_freed_when_all_tokens_have_come_back_or_were_dropped() {
    let (mut pool, freed) = watched();
    let (back, dropped, sealed) = (pool.take().unwrap(), pool.take().unwrap(), pool.take().unwrap());
    pool.give_vacant(back).unwrap();
    drop(dropped);
    drop(pool.seal(sealed, 64));
    assert_eq!(pool.free(), 2, "what was dropped is not used again");
    drop(pool);
    assert!(freed.load(Ordering::Relaxed));
}

#[test]
fn memory_stays_while_somebody_has_a_token() {
    let (mut pool, freed) = watched();
    let (mut kept, dropped) = (pool.take().unwrap(), pool.take().unwrap());
    drop((dropped, pool));
    assert!(!freed.load(Ordering::Relaxed));
    kept.bytes_mut().fill(7);
    // Another pool, of a node with the same number, neither takes the block nor counts it.
    let (mut other, other_freed) = watched();
    let kept = other.give_vacant(kept).unwrap_err();
    drop((kept, other));
    assert!(other_freed.load(Ordering::Relaxed));
}

#[test]
fn a_block_has_one_token_however_often_it_is_asked_for() {
    let mut umb = umb(2);
    let first = umb.lend(1).unwrap();
    assert!(umb.lend(1).is_none() && umb.sealed(1).is_none());
    for index in [2, 3, NIL - 1, NIL] {
        assert!(umb.lend(index).is_none() && umb.sealed(index).is_none(), "there is no block {index}");
    }
    assert_eq!(umb.reclaim(first).unwrap(), 1);
    umb.entry(1).unwrap().length = 100;
    let place = (crate::routing::LinkId::from_index(0), 1);
    let piece = umb.lend_piece((0, 8), place, node(0), DeliveryKind::Returned { stream: None }).unwrap();
    assert!(umb.lend(1).is_none(), "it is read");
    assert!(umb.lend_piece((8, 4000), place, node(0), piece.kind()).is_none(), "no such piece");
    umb.take_piece(piece).unwrap();
    assert!(umb.lend(1).is_some());
}

#[test]
fn a_table_longer_than_the_memory_has_no_blocks_beyond_it() {
    let info: Vec<_> = (0..9).map(|_| BlockInfo::default()).collect();
    let memory = HeapMemory::new(stride(300) * 4).unwrap();
    let mut umb = Umb::new(memory, node(0), 300, ManagedSlice::Owned(info));
    assert!(umb.lend(3).is_some());
    assert!(umb.lend(4).is_none() && umb.lend(8).is_none());
}

#[test]
fn blocks_longer_than_can_be_are_none() {
    for body in [usize::MAX, usize::MAX - 64, usize::MAX - 127, u32::MAX as usize] {
        let mut pool = BlockPool::new(HeapMemory::new(4096).unwrap(), node(0), body);
        assert!(pool.blocks() == 0 && pool.take().is_none(), "{body}");
    }
}

#[test]
fn a_block_that_is_read_cannot_be_had_and_stays_when_its_holder_goes() {
    let (mut pool, freed) = watched();
    let place = (crate::routing::LinkId::from_index(1), 2);
    let kind = DeliveryKind::Messages { urgent: false };
    let mut shared = SharedBlock::new(pool.take().unwrap().into_arrived(80));
    let piece = shared.lend((0, 16), place, node(0), kind).unwrap();
    assert!(shared.lend((8, 17), place, node(0), kind).is_none(), "beyond the block");
    assert!(shared.reclaim(shared_elsewhere(place, kind), place).is_err());
    drop((shared, pool));
    assert!(!freed.load(Ordering::Relaxed));
    assert_eq!(piece.bytes(), [0; 16]);
    assert!(
        SharedBlock::new(watched().0.take().unwrap().into_arrived(63)).take().is_none(),
        "shorter than its header"
    );
}

/// A delivery of another block at the same place.
fn shared_elsewhere(place: Place, kind: DeliveryKind) -> Delivery {
    let mut shared = SharedBlock::new(watched().0.take().unwrap().into_arrived(80));
    shared.lend((0, 16), place, node(0), kind).unwrap()
}
