//! The bell in the window under loom: in no interleaving, and with no store seen late that may be, does a sleeper miss a ring.
//!
//! The futex is a lock and a condition variable that never times out, so that a ring that is missed is a deadlock, which loom
//! reports.

#[path = "../src/eventcount.rs"]
#[allow(dead_code, unreachable_pub)]
mod eventcount;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

mod futex {
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    loom::lazy_static! {
        static ref WAITERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    /// The kernel compares the word and joins the queue in one step.
    pub(super) fn wait(word: &AtomicU32, value: u32, _timeout: Duration) {
        let queue = WAITERS.0.lock().unwrap();
        if word.load(Ordering::Relaxed) == value {
            drop(WAITERS.1.wait(queue).unwrap());
        }
    }

    pub(super) fn wake_all(_word: &AtomicU32) {
        let _queue = WAITERS.0.lock().unwrap();
        WAITERS.1.notify_all();
    }
}

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use eventcount::Eventcount;

#[derive(Default)]
struct Line {
    rings: AtomicU32,
    sleepers: AtomicU32,
    place: AtomicU32,
}

impl Line {
    fn bell(&self) -> Eventcount<'_> {
        Eventcount { rings: &self.rings, sleepers: &self.sleepers }
    }

    fn sleep(&self) {
        while self.place.load(Ordering::Relaxed) == 0 {
            self.bell().sleep(Duration::MAX, &mut || self.place.load(Ordering::Relaxed) == 0);
        }
    }
}

fn check(sleepers: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let line = Arc::new(Line::default());
        let peer = {
            let line = Arc::clone(&line);
            thread::spawn(move || {
                line.place.store(1, Ordering::Relaxed);
                line.bell().ring();
            })
        };
        let others: Vec<_> = (1..sleepers)
            .map(|_| {
                let line = Arc::clone(&line);
                thread::spawn(move || line.sleep())
            })
            .collect();
        line.sleep();
        others.into_iter().for_each(|other| other.join().unwrap());
        peer.join().unwrap();
        assert_eq!(line.sleepers.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_sleeper_sees_what_was_put_in_place_or_is_woken() {
    check(1);
}

#[test]
fn all_sleepers_are_woken() {
    check(2);
}
