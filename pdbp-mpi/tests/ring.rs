//! Rings and bells of the window under loom: in no interleaving, and with no store seen late that may be, does an entry arrive
//! other than it was sent, or does a sleeper miss a ring.
//!
//! loom's condition variable never times out, so that a ring that is missed is a deadlock, which loom reports.

#[path = "../src/ring.rs"]
#[allow(dead_code, unreachable_pub)]
mod ring;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use ring::{Consumer, Entry, Producer};

/// Memory of a window, which stays to the end.
fn cells(slots: usize) -> &'static [AtomicU64] {
    Box::leak((0..2 * slots).map(|_| AtomicU64::new(0)).collect())
}

fn entry(number: u32) -> Entry {
    Entry { index: number, length: 100 + number, offset: 64 * (5000 + u64::from(number)) }
}

#[test]
fn entries_arrive_in_order_with_what_their_blocks_have() {
    loom::model(|| {
        let (out, blocks) = (cells(2), Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]));
        let writer = {
            let blocks = Arc::clone(&blocks);
            thread::spawn(move || {
                let mut producer = Producer::new(out);
                for number in 0..2 {
                    // SAFETY: the block is not under way yet.
                    blocks[number].with_mut(|block| unsafe { block.write(7 + number) });
                    producer.push(entry(number as u32));
                }
            })
        };
        let mut consumer = Consumer::new(out);
        for number in 0..2 {
            let got = loop {
                match consumer.pop() {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, entry(number as u32));
            // SAFETY: the writer has let go of the block.
            assert_eq!(blocks[number].with(|block| unsafe { block.read() }), 7 + number);
        }
        assert!(consumer.is_empty());
        writer.join().unwrap();
    });
}

/// One slot and one block, used again as soon as the block is back.
#[test]
fn a_slot_is_not_used_again_before_it_was_read() {
    loom::model(|| {
        let (out, back) = (cells(1), cells(1));
        let block = Arc::new(UnsafeCell::new(0));
        let owner = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                let (mut out, mut back) = (Producer::new(out), Consumer::new(back));
                for number in 0..2 {
                    // SAFETY: the block is back.
                    block.with_mut(|block| unsafe { block.write(number) });
                    out.push(entry(number));
                    while back.pop().is_none() {
                        thread::yield_now();
                    }
                }
            })
        };
        let (mut incoming, mut give_back) = (Consumer::new(out), Producer::new(back));
        for number in 0..2 {
            let got = loop {
                match incoming.pop() {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, entry(number));
            // SAFETY: the owner has let go of the block.
            assert_eq!(block.with(|block| unsafe { block.read() }), number);
            give_back.push(got);
        }
        owner.join().unwrap();
    });
}
