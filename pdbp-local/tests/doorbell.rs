//! The doorbell under loom: in no interleaving, and with no store seen late that may be, does a sleeper miss a ring.
//!
//! loom's `wait_timeout` never times out, so that a ring that is missed is a deadlock, which loom reports.

#[path = "../src/doorbell.rs"]
#[allow(dead_code, unreachable_pub)]
mod doorbell;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering, fence};
    pub(super) use loom::sync::{Condvar, Mutex};
    pub(super) use std::sync::PoisonError;
}

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use doorbell::Doorbell;

#[test]
fn a_sleeper_sees_what_was_put_in_place_or_is_woken() {
    loom::model(|| {
        let bell = Arc::new(Doorbell::default());
        let place = Arc::new(AtomicU32::new(0));
        let peer = {
            let (bell, place) = (Arc::clone(&bell), Arc::clone(&place));
            thread::spawn(move || {
                place.store(1, Ordering::Relaxed);
                bell.ring();
            })
        };
        bell.sleep(Duration::MAX, || place.load(Ordering::Relaxed) == 0);
        assert_eq!(place.load(Ordering::Relaxed), 1, "woken without cause");
        peer.join().unwrap();
    });
}

#[test]
fn all_sleepers_are_woken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let bell = Arc::new(Doorbell::default());
        let place = Arc::new(AtomicU32::new(0));
        let sleeper = {
            let (bell, place) = (Arc::clone(&bell), Arc::clone(&place));
            thread::spawn(move || bell.sleep(Duration::MAX, || place.load(Ordering::Relaxed) == 0))
        };
        let peer = {
            let (bell, place) = (Arc::clone(&bell), Arc::clone(&place));
            thread::spawn(move || {
                place.store(1, Ordering::Relaxed);
                bell.ring();
            })
        };
        bell.sleep(Duration::MAX, || place.load(Ordering::Relaxed) == 0);
        sleeper.join().unwrap();
        peer.join().unwrap();
    });
}
