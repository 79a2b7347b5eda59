//! The biased lock under loom, with fences for barriers: in no interleaving, and with no store seen late that may be, are the owner and
//! a visitor both inside.

#[path = "../src/part/biased.rs"]
#[allow(dead_code, unreachable_pub)]
mod biased;

mod sync {
    use std::cell::Cell;

    use loom::sync::atomic::fence;

    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};

    thread_local! {
        /// Whether there are barriers. loom runs all threads of a model on the one that asks for it.
        pub(super) static FENCED: Cell<bool> = const { Cell::new(true) };
    }

    pub(super) fn try_lock(lock: &Mutex<()>) -> Option<loom::sync::MutexGuard<'_, ()>> {
        lock.try_lock().ok()
    }

    pub(super) fn wait_while(flag: &AtomicBool) {
        while flag.load(Ordering::Relaxed) {
            loom::thread::yield_now();
        }
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

/// An owner that enters twice, and so many visitors that come once each. loom finds out when two use the value at a time. Threads are
/// interrupted three times in all, which is more than it takes.
fn enter_and_visit(visitors: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let owner = Owner::new(0);
        let visit = |_| {
            let visitor = owner.visitor();
            thread::spawn(move || visitor.visit(|value| *value += 1).map_or(0, |()| 1))
        };
        let threads: Vec<_> = (0..visitors).map(visit).collect();
        owner.with(|value| *value += 1);
        owner.with(|value| *value += 1);
        let visits: i32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        owner.with(|value| assert_eq!(*value, 2 + visits));
    });
}

#[test]
fn the_owner_and_a_visitor_are_never_both_inside() {
    enter_and_visit(1);
}

#[test]
fn the_owner_and_two_visitors_are_never_two_inside() {
    enter_and_visit(2);
}

#[test]
#[should_panic]
fn without_barriers_they_can_be() {
    sync::FENCED.set(false);
    enter_and_visit(1);
}
