//! Rings and bells of the window under loom: in every interleaving, and with every permitted delay of a store, an entry arrives as
//! it was sent and no sleeper misses a ring.
//!
//! loom's condition variable never times out, so a missed ring is a deadlock, which loom reports.

#[path = "../src/ring.rs"]
#[allow(dead_code, unreachable_pub)]
mod ring;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};

    pub(super) fn prefetch(_: *const u8) {}
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use ring::{Consumer, ENTRY, Entry, Producer};

/// Words of a slot with room for a block of one word.
const SLOT: usize = ENTRY + 1;

/// Memory for a window of that many words, leaked.
fn cells(words: usize) -> &'static [AtomicU64] {
    Box::leak((0..words).map(|_| AtomicU64::new(0)).collect())
}

fn entry(number: u32) -> Entry {
    Entry { index: number, length: 100 + number, offset: 64 * (5000 + u64::from(number)) }
}

#[test]
fn entries_arrive_in_order_with_what_their_blocks_have() {
    loom::model(|| {
        let (out, blocks) = (cells(2 * ENTRY), Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]));
        let writer = {
            let blocks = Arc::clone(&blocks);
            thread::spawn(move || {
                let mut producer = Producer::<_, ENTRY>::new(out);
                for number in 0..2 {
                    // SAFETY: the block is not under way yet.
                    blocks[number].with_mut(|block| unsafe { block.write(7 + number) });
                    producer.push(entry(number as u32));
                }
            })
        };
        let mut consumer = Consumer::<_, ENTRY>::new(out);
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

/// One slot and one block, reused as soon as the block is back.
#[test]
fn a_slot_is_not_used_again_before_it_was_read() {
    loom::model(|| {
        let (out, back) = (cells(ENTRY), cells(ENTRY));
        let block = Arc::new(UnsafeCell::new(0));
        let owner = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                let (mut out, mut back) = (Producer::<_, ENTRY>::new(out), Consumer::<_, ENTRY>::new(back));
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
        let (mut incoming, mut give_back) = (Consumer::<_, ENTRY>::new(out), Producer::<_, ENTRY>::new(back));
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

/// One slot, into which the next block is copied as soon as the last one is back.
#[test]
fn a_copy_in_a_slot_is_whole_until_its_block_is_given_back() {
    loom::model(|| {
        let (out, back) = (cells(SLOT), cells(ENTRY));
        let owner = thread::spawn(move || {
            let (mut out, mut back) = (Producer::<_, SLOT>::new(out), Consumer::<_, ENTRY>::new(back));
            for number in 0..2 {
                out.copy(&u64::to_ne_bytes(7 + number));
                out.push(entry(number as u32));
                while back.pop().is_none() {
                    thread::yield_now();
                }
            }
        });
        let (mut incoming, mut give_back) = (Consumer::<_, SLOT>::new(out), Producer::<_, ENTRY>::new(back));
        for number in 0..2 {
            let slot = incoming.slot();
            let got = loop {
                match incoming.pop() {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((got, slot), (entry(number), 0));
            // Read as a reader reads it that knows nothing of atomics.
            assert_eq!(out[ENTRY].load(Ordering::Relaxed), 7 + u64::from(number));
            give_back.push(got);
        }
        owner.join().unwrap();
    });
}
