//! The biased lock under loom, with fences for barriers: in no interleaving, and with no store seen late that may be, are the owner and
//! a visitor both inside.

#[path = "../src/part/biased.rs"]
#[allow(dead_code, unreachable_pub)]
mod biased;

mod sync {
    use std::cell::Cell;

    use loom::sync::atomic::fence;

    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(super) use loom::thread::yield_now;

    thread_local! {
        /// Whether there are barriers. loom runs all threads of a model on the one that asks for it.
        pub(super) static FENCED: Cell<bool> = const { Cell::new(true) };
    }

    pub(super) struct Barriers;

    impl Barriers {
        pub(super) fn new() -> Self {
            Self
        }

        pub(super) fn light(&self) {
            if FENCED.get() {
                fence(Ordering::SeqCst);
            }
        }

        pub(super) fn heavy(&self) -> bool {
            self.light();
            true
        }
    }
}

use loom::thread;

use biased::Owner;

/// An owner that enters twice, and two visitors. loom finds out when two of them use the value at a time.
fn enter_and_visit() {
    loom::model(|| {
        let owner = Owner::new(0);
        let visitors = [owner.visitor(), owner.visitor()];
        let threads = visitors
            .map(|visitor| thread::spawn(move || visitor.visit(|value| *value += 1).map_or(0, |()| 1)));
        owner.with(|value| *value += 1);
        owner.with(|value| *value += 1);
        let visits: i32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        owner.with(|value| assert_eq!(*value, 2 + visits));
    });
}

#[test]
fn the_owner_and_visitors_are_never_both_inside() {
    enter_and_visit();
}

#[test]
#[should_panic]
fn without_barriers_they_can_be() {
    sync::FENCED.set(false);
    enter_and_visit();
}
