//! The pool against a list of what is out.

use std::vec::Vec;

use managed::ManagedSlice;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::cdu::{BLOCK_HEADER, CduClass, Full, Packer, Route};
use crate::id::{NodeId, PartId};

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
        row: crate::routing::Slot::from_index(0),
        urgent: false,
        stream: None,
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
                    // The block that came last is the next to go out: it is still in a cache.
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
    assert_eq!(crate::cdu::Cdus::validate(&block.raw.bytes(length as usize)[BLOCK_HEADER..]), Ok(1));
}
