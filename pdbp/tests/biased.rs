//! The biased lock under loom, with fences for barriers: in every interleaving, and with every permitted delay of a store, the
//! owner and a visitor are never inside together.

#[path = "../src/sync/biased.rs"]
#[allow(dead_code, unreachable_pub)]
mod biased;

mod primitives {
    use std::cell::Cell;

    use loom::sync::atomic::fence;

    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    thread_local! {
        /// Whether barriers are on. loom runs all threads of a model on the thread that starts it.
        pub(super) static FENCED: Cell<bool> = const { Cell::new(true) };
    }

    pub(super) fn try_lock(lock: &Mutex<()>) -> Option<loom::sync::MutexGuard<'_, ()>> {
        lock.try_lock().ok()
    }

    pub(super) fn wait_while(goes_on: impl Fn() -> bool) {
        while goes_on() {
            loom::thread::yield_now();
        }
    }

    pub(super) struct Barriers;

    impl Barriers {
        pub(super) fn new() -> Self {
            Self
        }

        pub(super) fn are_free(&self) -> bool {
            true
        }

        pub(super) fn light(&self) {
            if FENCED.get() {
                fence(Ordering::SeqCst);
            }
        }

        pub(super) fn light_if_free(&self) {
            self.light();
        }

        pub(super) fn heavy(&self) -> bool {
            self.light();
            true
        }
    }
}

use loom::thread;

use biased::{Owner, Visitor, Windowed};

/// A number to which the owner adds through the window.
#[derive(Default)]
struct Sum(i32);

/// What was added through the window, if it is open.
#[derive(Default)]
struct Added(Option<i32>);

impl Windowed for Sum {
    type Window = Added;

    fn is_open(Added(added): &Added) -> bool {
        added.is_some()
    }

    fn close(&mut self, Added(added): &mut Added) {
        self.0 += added.take().unwrap_or(0);
    }
}

/// Adds one: through the window if it is open; otherwise opens it.
fn add(owner: &Owner<Sum>) {
    // SAFETY: adding does nothing else.
    let added = unsafe { owner.try_fast(|Added(added)| added.as_mut().map(|added| *added += 1)) };
    if added.is_none() {
        let open = |sum: &mut Sum, window: &mut Added| {
            sum.close(window);
            sum.0 += 1;
            *window = Added(Some(0));
        };
        // SAFETY: adding does nothing else.
        unsafe { owner.with_window(open) }
    }
}

/// An owner that adds several times, and `visitors` visitors that add once each. loom detects two threads that use the value, or
/// its window, at the same time. Threads are preempted three times in all, or twice with three threads: that is as much as the
/// check needs and as long as one can wait.
fn enter_and_visit(visitors: usize, each: impl Fn(&Visitor<Sum>) -> i32 + Copy + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(if visitors == 1 { 3 } else { 2 });
    model.check(move || {
        let owner = Owner::new(Sum(0));
        let visit = |_| {
            let visitor = owner.visitor();
            thread::spawn(move || each(&visitor))
        };
        let threads: Vec<_> = (0..visitors).map(visit).collect();
        (0..3).for_each(|_| add(&owner));
        let visits: i32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        owner.with(|sum| assert_eq!(sum.0, 3 + visits));
    });
}

fn visit(visitor: &Visitor<Sum>) -> i32 {
    let mut visits = 0;
    let add = |(), sum: &mut Sum| {
        sum.0 += 1;
        visits += 1;
    };
    Visitor::visit_all([(visitor, ())].into_iter(), add);
    visits
}

#[test]
fn the_owner_and_a_visitor_are_never_both_inside() {
    enter_and_visit(1, visit);
}

#[test]
fn the_owner_and_two_visitors_are_never_two_inside() {
    enter_and_visit(2, visit);
}

#[test]
fn owners_that_are_visited_together_are_never_inside_with_the_visitor() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let owners = [0, 1].map(|_| Owner::new(Sum(0)));
        let visitors = owners.each_ref().map(Owner::visitor);
        let visits = thread::spawn(move || {
            let mut visits = [0; 2];
            Visitor::visit_all(visitors.iter().zip([0, 1]), |which, sum| {
                sum.0 += 1;
                visits[which] += 1;
            });
            visits
        });
        (0..2).for_each(|_| owners.iter().for_each(add));
        for (owner, visits) in owners.iter().zip(visits.join().unwrap()) {
            owner.with(|sum| assert_eq!(sum.0, 2 + visits));
        }
    });
}

#[test]
fn an_owner_that_is_disturbed_adds_all_the_same() {
    enter_and_visit(1, |visitor| {
        visitor.force_slow_path();
        visit(visitor)
    });
}

#[test]
#[should_panic]
fn without_barriers_they_can_be() {
    primitives::FENCED.set(false);
    enter_and_visit(1, visit);
}
