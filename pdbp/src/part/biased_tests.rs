//! The biased lock with real threads; `tests/biased.rs` has it under loom.

use std::sync::atomic::{AtomicBool, Ordering};

use super::biased::Owner;

/// Two counters that are equal whenever nobody is inside.
#[test]
fn the_owner_and_visitors_are_never_both_inside() {
    const ROUNDS: u64 = 200_000;
    let owner = Owner::new((0u64, 0u64));
    let done = AtomicBool::new(false);
    let visits = std::thread::scope(|scope| {
        let visitors: Vec<_> = (0..2)
            .map(|_| {
                let (visitor, done) = (owner.visitor(), &done);
                scope.spawn(move || {
                    let mut visits = 0;
                    // At least one each, when the owner has gone.
                    while !done.load(Ordering::Acquire) || visits == 0 {
                        let visited = visitor.visit(|(a, b)| {
                            assert_eq!(a, b);
                            *a += 1;
                            std::hint::black_box(&mut *a);
                            *b += 1;
                        });
                        visits += u64::from(visited.is_some());
                    }
                    visits
                })
            })
            .collect();
        for _ in 0..ROUNDS {
            owner.with(|(a, b)| {
                assert_eq!(a, b);
                *a += 1;
                std::hint::black_box(&mut *a);
                *b += 1;
            });
        }
        done.store(true, Ordering::Release);
        visitors.into_iter().map(|v| v.join().unwrap()).sum::<u64>()
    });
    owner.with(|both| assert_eq!(*both, (ROUNDS + visits, ROUNDS + visits)));
}

#[test]
fn a_visitor_stays_out_while_the_owner_is_inside() {
    let owner = Owner::new(1);
    let visitor = owner.visitor();
    owner.with(|_| assert_eq!(visitor.visit(|_| ()), None));
    assert_eq!(visitor.visit(|value| *value), Some(1));
    drop(owner);
    assert!(!visitor.is_alive());
    assert_eq!(visitor.visit(|_| ()), None);
}

#[test]
#[should_panic(expected = "entered it twice")]
fn an_owner_that_enters_twice_is_told() {
    let owner = Owner::new(());
    owner.with(|()| owner.with(|()| ()));
}
