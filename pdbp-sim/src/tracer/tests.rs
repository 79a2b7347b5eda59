use pdbp_core::Arrival;
use pdbp_core::umb::{BlockPool, HeapMemory};
use pdbp_local::Local;

use super::*;

#[test]
fn the_life_of_a_block_is_recorded_and_the_ring_is_bounded() {
    let memories: Vec<_> = (0..2).map(|_| HeapMemory::new(4096).unwrap()).collect();
    let (zero, one) = (NodeId::new(0).unwrap(), NodeId::new(1).unwrap());
    let mut ends = Local::network(&memories, Arrival::InPlace, 164, 1).into_iter();
    let mut pool = BlockPool::new(memories.into_iter().next().unwrap(), zero, 100);
    let mut sender = Tracer::new(ends.next().unwrap(), 3);
    let mut time = 0;
    let clock = move || {
        time += 10;
        time
    };
    let mut reader = Tracer::with_clock(ends.next().unwrap(), 10, clock);

    for _ in 0..2 {
        let block = pool.take().unwrap();
        let _ = sender.submit(Op::Send { peer: one, block: pool.seal(block, 64) });
    }
    let Some(Completion::Received { block, .. }) = reader.poll_completion() else { panic!("no block") };
    reader.submit(Op::Return { peer: zero, block }).unwrap();
    let _ = reader.poll_completion();
    assert!(sender.poll_completion().is_some());
    drop(reader);
    assert!(sender.poll_completion().is_some());

    let kinds: Vec<_> = sender.trace().map(|r| (r.at, r.what)).collect();
    assert_eq!(kinds, [(1, What::Busy), (2, What::Sent), (3, What::PeerFailed)]);
    assert_eq!(sender.lost(), 1);
    let text = sender.to_string();
    assert!(text.contains("Sent       node1 block 0 of node0, 64 bytes"), "{text}");
}

#[test]
fn the_clock_gives_the_times() {
    let memories: Vec<_> = (0..2).map(|_| HeapMemory::new(4096).unwrap()).collect();
    let mut ends = Local::network(&memories, Arrival::InPlace, 164, 1);
    drop(ends.pop());
    // A program that wants them all.
    let mut end = Tracer::with_clock(ends.remove(0), usize::MAX, || 77);
    assert!(end.poll_completion().is_some());
    assert_eq!(end.trace().map(|r| r.at).collect::<Vec<_>>(), [77]);
}
