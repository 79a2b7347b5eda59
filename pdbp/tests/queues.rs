//! The queues between the engine and its parts under loom: in every interleaving, and with every permitted delay of a store, no
//! value is lost, received twice, or used by two threads.

#[path = "../src/sync/counted.rs"]
#[allow(dead_code, unreachable_pub)]
mod counted;
#[path = "../src/sync/ring.rs"]
#[allow(dead_code, unreachable_pub)]
mod ring;
#[path = "../src/sync/stack.rs"]
#[allow(dead_code, unreachable_pub)]
mod stack;

mod primitives {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use counted::{Last, Shareable};
use ring::Ring;
use stack::Stack;

#[test]
fn a_reader_gets_all_in_order_and_the_writer_no_more_room_than_there_is() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2));
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                for n in 0..3 {
                    let mut value = Box::new(n);
                    // SAFETY: this thread alone puts values in.
                    while let Err(back) = unsafe { ring.push(value) } {
                        value = back;
                        thread::yield_now();
                    }
                }
            })
        };
        for n in 0..3 {
            let value = loop {
                // SAFETY: this thread alone takes values.
                match unsafe { ring.pop() } {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(*value, n);
        }
        writer.join().unwrap();
        assert!(ring.is_empty());
    });
}

/// As a notice that a node has failed stands between what came before, and what its next session brings.
#[test]
fn what_the_writer_says_before_it_puts_a_value_in_is_heard_before_that_is_taken() {
    loom::model(|| {
        let shared = Arc::new((Ring::new(2), AtomicBool::new(false)));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (ring, notice) = &*shared;
                notice.store(true, Ordering::Release);
                // SAFETY: this thread alone puts values in.
                assert!(unsafe { ring.push(()) }.is_ok());
            })
        };
        let (ring, notice) = &*shared;
        // SAFETY: this thread alone takes values.
        let taken = unsafe { ring.pop_unless(|| notice.load(Ordering::Relaxed)) };
        assert!(taken.is_none(), "the notice was there first");
        writer.join().unwrap();
    });
}

/// A number whose accesses loom checks.
struct Watched(UnsafeCell<u32>);

impl Shareable for Watched {}

#[test]
fn what_threads_put_on_a_stack_is_taken_once() {
    // All interleavings take minutes; too weak an ordering shows with one switch that no thread asked for.
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(|| {
        let stack = Arc::new(Stack::default());
        let put = |n: u32| {
            let stack = Arc::clone(&stack);
            thread::spawn(move || {
                let value = Last::new(Watched(UnsafeCell::new(0)));
                // SAFETY: nobody else has it.
                value.0.with_mut(|value| unsafe { *value = n });
                stack.push(value);
            })
        };
        let threads = [put(1), put(2)];
        let (mut sum, mut count) = (0, 0);
        while count < 2 {
            let mut taken = stack.take();
            while let Some(value) = taken.pop() {
                // SAFETY: nobody else has it.
                sum += value.0.with_mut(|value| unsafe { *value });
                count += 1;
            }
            thread::yield_now();
        }
        assert_eq!(sum, 3);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
