//! Tests beyond the conformance suite, which knows no backend.

use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory};
use pdbp_core::{Arrival, Completion, Op, Reason, Transport};

use super::Local;

fn pair() -> (Vec<Local>, Vec<BlockPool<HeapMemory>>) {
    let memories: Vec<_> = (0..2).map(|_| HeapMemory::new(4096).unwrap()).collect();
    let ends = Local::network(&memories, Arrival::InPlace, 164, 2);
    let pools = memories.into_iter().enumerate();
    (ends, pools.map(|(i, m)| BlockPool::new(m, NodeId::new(i as u16).unwrap(), 100)).collect())
}

/// Peers read a block in place, so it must lie in memory that the network keeps.
#[test]
fn a_block_from_memory_that_the_network_does_not_keep_is_refused() {
    let (mut ends, _pools) = pair();
    let own = NodeId::new(0).unwrap();
    let mut elsewhere = BlockPool::new(HeapMemory::new(4096).unwrap(), own, 100);
    let block = elsewhere.take().unwrap();
    let block = elsewhere.seal(block, 64);
    let refused = ends[0].submit(Op::Send { peer: NodeId::new(1).unwrap(), block }).unwrap_err();
    assert!(matches!(refused.reason, Reason::Unsupported), "{:?}", refused.reason);
}

/// A block that only looks like one of the peer's does not complete a block that is still being read.
#[test]
fn a_forged_return_does_not_complete_a_block_that_is_being_read() {
    let (mut ends, mut pools) = pair();
    let (zero, one) = (NodeId::new(0).unwrap(), NodeId::new(1).unwrap());
    let block = pools[0].take().unwrap();
    let block = pools[0].seal(block, 64);
    let index = block.id().index;
    ends[0].submit(Op::Send { peer: one, block }).unwrap();
    let Some(Completion::Received { block: read, .. }) = ends[1].poll_completion() else {
        panic!("no block")
    };

    let mut forger = BlockPool::new(HeapMemory::new(4096).unwrap(), zero, 100);
    let forged = std::iter::from_fn(|| forger.take()).find(|b| b.id().index == index).unwrap();
    let refused = ends[1].submit(Op::Return { peer: zero, block: forged.into_arrived(64) }).unwrap_err();
    assert!(matches!(refused.reason, Reason::Unsupported), "{:?}", refused.reason);
    assert!(ends[0].poll_completion().is_none(), "the reader still has the block");

    ends[1].submit(Op::Return { peer: zero, block: read }).unwrap();
    assert!(matches!(ends[0].poll_completion(), Some(Completion::Sent { .. })));
}

/// Works as two processes do: each maps the memory for itself.
#[cfg(target_os = "linux")]
#[test]
fn slates_of_processes_are_found_by_their_location_and_known_by_their_key() {
    use crate::slate::{End, Location, Put, Slate};

    let (made, at) = Slate::shared(3, 100, 7).unwrap();
    let at = Location::from_bits(at.to_bits());
    let opened = Slate::open(3, 100, 7, at).unwrap();
    let (mut one, mut other) = (End::new(&made, 0).unwrap(), End::new(&opened, 2).unwrap());
    assert!(other.announce_sleep());
    assert_eq!(one.put(2, &[1; 8], &[2; 5]), Put::Wake);
    other.cancel_sleep();
    let mut message = Vec::new();
    assert!(other.take(|from, incoming| message.extend([&[from as u8], incoming.bytes(0)].concat())));
    assert_eq!(message, [0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);

    let kind = |slate: std::io::Result<_>| slate.map(|_| ()).unwrap_err().kind();
    assert_eq!(kind(Slate::open(3, 100, 8, at)), std::io::ErrorKind::InvalidData);
    assert_eq!(kind(Slate::open(3, 500, 7, at)), std::io::ErrorKind::InvalidData);
    assert_eq!(kind(Slate::open(65, 100, 7, at)), std::io::ErrorKind::InvalidInput);
    drop((one, made));
    // The memory stays for those that have mapped it, and can no longer be found.
    assert_eq!(other.put(0, &[1; 8], &[]), Put::Done);
    assert!(Slate::open(3, 100, 7, at).is_err());
}

/// Lengths below, at and above the threshold for storing past the caches, in whole cache lines and not.
#[test]
fn messages_of_slates_are_the_same_whatever_way_they_are_copied() {
    use crate::slate::{End, Put, Slate};

    let slate = Slate::new(2, 9000).unwrap();
    let (mut one, mut other) = (End::new(&slate, 0).unwrap(), End::new(&slate, 1).unwrap());
    let bytes: Vec<u8> = (0..9000u32).map(|i| (i * i % 251) as u8).collect();
    for header in [0, 8, 24, 64] {
        for length in (0..140).chain(4000..4300).chain(8900..=9000 - header) {
            for start in [0, 1] {
                let (head, data) = (&bytes[..header], &bytes[start..length.max(start)]);
                assert_eq!(one.put(1, head, data), Put::Done);
                let mut got = None;
                assert!(other.take(|from, incoming| {
                    let mut read = vec![0; data.len()];
                    incoming.read(header, &mut read);
                    got = Some((from, incoming.bytes(0) == [head, data].concat(), read == data));
                }));
                assert_eq!(got, Some((0, true, true)), "header {header}, length {length}, from {start}");
            }
        }
    }
}

#[test]
fn who_watches_sees_the_next_message_of_that_member_and_leaves_it_there() {
    use crate::slate::{End, Put, Slate};

    let slate = Slate::new(3, 64).unwrap();
    let [mut one, mut two, mut reader] = [0, 1, 2].map(|rank| End::new(&slate, rank).unwrap());
    assert!(!reader.watch(0, 3));
    assert!(!reader.watch(3, 3), "no member");
    assert_eq!(two.put(2, &[], &[1]), Put::Done);
    assert!(!reader.watch(0, 3), "it is another member's");
    assert_eq!(one.put(2, &[], &[0]), Put::Done);
    assert!(reader.watch(0, 1));
    assert!(!reader.watch(0, 0));
    for _ in 0..2 {
        assert!(reader.watch(0, 1) || reader.watch(1, 1));
        assert!(reader.take(|from, incoming| assert_eq!(incoming.bytes(0), [from as u8])));
    }
    assert!(!reader.watch(0, 1) && !reader.watch(1, 1));
}
