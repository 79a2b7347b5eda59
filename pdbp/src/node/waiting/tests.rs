use super::*;
use crate::{Cluster, PartKind, Progress};

#[test]
fn a_panic_of_who_polls_for_all_does_not_end_polling_for_all() {
    let cluster = Cluster::builder().nodes(1).progress(Progress::Inline).start().unwrap();
    let node = cluster.node(0).unwrap();
    let shared = &node.shared;
    let panics = || {
        let _leader = shared.leader.lock();
        panic!("as a waker of the program may");
    };
    assert!(thread::scope(|scope| scope.spawn(panics).join()).is_err());
    assert!(sleep(shared, &[], Duration::ZERO).1);
    assert!(sleep_until_event(shared, || true, Duration::ZERO).1);
    assert!(!shared.delegate_to_leader(), "nobody leads");
}

/// This test is the progress thread: it leaves everything to the part, which computes between two calls.
#[test]
fn between_the_calls_of_a_superstep_the_progress_thread_is_on_duty() {
    let cluster = Cluster::builder()
        .nodes(2)
        .progress(Progress::Inline)
        .timeout(Duration::from_secs(60))
        .start()
        .unwrap();
    let node = cluster.node(0).unwrap();
    let part = node.register("part", PartKind::Cpu).unwrap();
    node.shared.off_duty.store(true, Ordering::Relaxed);
    let began = Instant::now();
    while node.shared.off_duty.load(Ordering::Relaxed) {
        assert!(part.advance(true).unwrap() && began.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn who_waits_for_long_wakes_seldom() {
    let cluster = Cluster::local(1).unwrap();
    let node = cluster.node(0).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let part = node.register("part", PartKind::Cpu).unwrap();
            while !over.load(Ordering::Relaxed) {
                assert!(part.recv_timeout(Duration::from_secs(60)).is_err());
            }
        });
        // Each nap is two polls or three; before, there were 500 naps a second. In one of these periods the thread is asleep from
        // the beginning.
        let seldom = (0..50).any(|_| {
            let before = node.shared.polls.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(500));
            let polls = node.shared.polls.load(Ordering::Relaxed) - before;
            (1..=125).contains(&polls)
        });
        over.store(true, Ordering::Relaxed);
        node.interrupt();
        assert!(seldom, "a part that waits never sleeps");
    });
}

#[test]
fn time_also_passes_between_looks_without_a_pause() {
    let cluster = Cluster::builder().nodes(1).progress(Progress::Host).start().unwrap();
    let node = cluster.node(0).unwrap();
    let (mut waiter, began) = (Waiter::new(Duration::from_millis(10), &node.shared), Instant::now());
    waiter.pause(&node, &[]).unwrap();
    while !waiter.is_over() {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}
