//! The biased lock with real threads; `tests/biased.rs` runs it under loom.

#![allow(unsafe_code, reason = "the promise that nothing else is done")]

use std::sync::atomic::{AtomicBool, Ordering};

use super::biased::{Owner, Visitor, Windowed};

impl Windowed for (u64, u64) {
    /// What is added to both.
    type Window = Option<u64>;

    fn is_open(window: &Option<u64>) -> bool {
        window.is_some()
    }

    fn close(&mut self, window: &mut Option<u64>) {
        let added = window.take().unwrap_or(0);
        self.0 += added;
        self.1 += added;
    }
}

impl Windowed for () {
    type Window = ();

    fn is_open((): &()) -> bool {
        false
    }

    fn close(&mut self, (): &mut ()) {}
}

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
                    // At least one each after the owner has gone.
                    while !done.load(Ordering::Acquire) || visits == 0 {
                        let visited = visit(&visitor, |(a, b)| {
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
            // SAFETY: nothing else is done.
            if unsafe { owner.try_fast(|window| window.as_mut().map(|added| *added += 1)) }.is_some() {
                continue;
            }
            let open = |both: &mut (u64, u64), window: &mut _| {
                both.close(window);
                let (a, b) = both;
                assert_eq!(a, b);
                *a += 1;
                std::hint::black_box(&mut *a);
                *b += 1;
                *window = Some(0);
            };
            // SAFETY: nothing else is done.
            unsafe { owner.with_window(open) }
        }
        done.store(true, Ordering::Release);
        visitors.into_iter().map(|v| v.join().unwrap()).sum::<u64>()
    });
    owner.with(|both| assert_eq!(*both, (ROUNDS + visits, ROUNDS + visits)));
}

#[test]
fn a_visitor_stays_out_while_the_owner_is_inside() {
    let owner = Owner::new((1, 1));
    let visitor = owner.visitor();
    owner.with(|_| assert_eq!(visit(&visitor, |_| ()), None));
    assert_eq!(visit(&visitor, |value| value.0), Some(1));
    drop(owner);
    assert!(!visitor.is_alive());
    assert_eq!(visit(&visitor, |_| ()), None);
}

#[test]
fn the_window_is_closed_while_anybody_uses_the_value() {
    let owner = Owner::new((0, 0));
    // SAFETY: nothing else is done.
    let add = || unsafe { owner.try_fast(|window| window.as_mut().map(|added| *added += 1)) };
    assert_eq!(add(), None);
    // SAFETY: nothing else is done.
    let open = || unsafe { owner.with_window(|_, window| *window = Some(0)) };
    open();
    assert_eq!(add(), Some(()));
    let visitor = owner.visitor();
    owner.with(|value| {
        assert_eq!(*value, (1, 1));
        assert_eq!(add(), None);
        // This has not let anybody in.
        assert_eq!(visit(&visitor, |_| ()), None);
    });
    open();
    assert_eq!(add(), Some(()));
    // SAFETY: nothing else is done.
    unsafe { owner.with_window(|value, window| assert_eq!((*value, *window), ((1, 1), Some(1)))) }
    assert_eq!(visit(&visitor, |value| *value), Some((2, 2)));
    assert_eq!(add(), None);
    open();
    visitor.force_slow_path();
    assert_eq!(add(), None);
    assert_eq!(visit(&visitor, |value| *value), Some((2, 2)));
}

#[test]
#[should_panic(expected = "entered it recursively")]
fn an_owner_that_enters_twice_is_told() {
    let owner = Owner::new(());
    owner.with(|()| owner.with(|()| ()));
}

/// What `f` returns of the value, unless somebody else is using it.
fn visit<T: Windowed, R>(visitor: &Visitor<T>, f: impl Fn(&mut T) -> R) -> Option<R> {
    let mut result = None;
    Visitor::visit_all([(visitor, ())].into_iter(), |(), value| result = Some(f(value)));
    result
}
