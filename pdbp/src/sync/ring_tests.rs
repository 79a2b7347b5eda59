//! The ring with real threads; `tests/queues.rs` runs it under loom.
#![allow(unsafe_code, reason = "the promise that an end is on one thread")]

use std::sync::Arc;

use super::ring::Ring;

#[test]
fn values_come_out_as_they_were_put_in_and_no_more_than_there_is_room_for() {
    for depth in [1, 3, 4] {
        let ring = Ring::new(depth);
        let value = Arc::new(());
        for round in 0..10 {
            for n in 0..depth {
                // SAFETY: on one thread.
                unsafe { ring.push((n, Arc::clone(&value))) }.unwrap();
            }
            // SAFETY: on one thread.
            let refused = unsafe { ring.push((depth, Arc::clone(&value))) };
            assert_eq!(refused.unwrap_err().0, depth);
            for n in 0..depth {
                // SAFETY: on one thread.
                assert_eq!(unsafe { ring.pop() }.unwrap().0, n);
            }
            assert!(ring.is_empty() && ring.taken() == (round + 1) * depth);
        }
        // SAFETY: on one thread.
        unsafe { ring.push((0, Arc::clone(&value))) }.unwrap();
        assert_eq!((ring.put() - ring.taken(), Arc::strong_count(&value)), (1, 2));
        drop(ring);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}

#[test]
fn two_threads_pass_values_in_order() {
    const COUNT: usize = 20_000;
    let ring = Ring::new(5);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..COUNT {
                let mut value = Box::new(n);
                // SAFETY: this thread alone puts values in.
                while let Err(back) = unsafe { ring.push(value) } {
                    value = back;
                    std::thread::yield_now();
                }
            }
        });
        for n in 0..COUNT {
            let value = loop {
                // SAFETY: this thread alone takes values.
                match unsafe { ring.pop() } {
                    Some(value) => break value,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(*value, n);
        }
    });
}
