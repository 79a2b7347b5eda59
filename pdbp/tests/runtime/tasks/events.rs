//! Tasks that wait for the events of a node.

use pdbp::{Event, NodeId, WaitError, WakeFd};

use super::*;
use crate::BRIEFLY;

/// The end of the node that the tests drop.
fn is_end(event: &Event) -> bool {
    matches!(event, Event::NodeDown { node } if Some(*node) == NodeId::new(2))
}

#[test]
fn tasks_wait_for_events() {
    let mut nodes = small(3, Progress::Thread).into_nodes();
    let gone = nodes.remove(2);
    let watch = nodes[0].watch();
    thread::scope(|scope| {
        scope.spawn(|| block_on(async { while !is_end(&nodes[0].event_async().await.unwrap()) {} }));
        scope.spawn(|| block_on(async { while !is_end(&watch.event_async(&nodes[0]).await.unwrap()) {} }));
        thread::sleep(BRIEFLY);
        drop(gone);
    });
}

#[test]
fn a_task_that_waits_for_an_event_is_woken_for_nothing_else() {
    let mut nodes = small(3, Progress::Thread).into_nodes();
    let gone = nodes.remove(2);
    let woken = this_thread();
    let waker = Waker::from(Arc::clone(&woken));
    let poll = || nodes[0].poll_event(&mut Context::from_waker(&waker));
    while poll().is_ready() {}
    // Messages are no events.
    let [a, b] = [0, 1].map(|n| part(&nodes[n], "part"));
    for _ in 0..100 {
        a.send(b.id(), b"there").unwrap();
        assert_eq!(*b.recv_timeout(SOON).unwrap(), *b"there");
        b.send(a.id(), b"and back").unwrap();
        assert_eq!(*a.recv_timeout(SOON).unwrap(), *b"and back");
    }
    let mut events: u64 = 0;
    while let Poll::Ready(event) = poll() {
        assert!(!is_end(&event.unwrap()));
        events += 1;
    }
    drop(gone);
    let since = Instant::now();
    loop {
        match poll() {
            Poll::Ready(event) => {
                events += 1;
                if is_end(&event.unwrap()) {
                    break;
                }
            }
            Poll::Pending => thread::park_timeout(BRIEFLY),
        }
        assert!(since.elapsed() < SOON, "nobody has learned of its end");
    }
    let times = woken.times.load(Ordering::Relaxed);
    assert!(times <= events, "woken {times} times for {events} events");
}

#[test]
fn a_descriptor_is_readable_for_an_event() {
    let mut nodes = small(3, Progress::Thread).into_nodes();
    let gone = nodes.remove(2);
    let (waker, watch) = (WakeFd::new().unwrap(), nodes[0].watch());
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(BRIEFLY);
            drop(gone);
        });
        loop {
            waker.clear();
            let mut ended = false;
            while let Poll::Ready(event) = watch.poll_event(&nodes[0], &mut waker.context()) {
                ended |= is_end(&event.unwrap());
            }
            if ended {
                return;
            }
            let mut waits = [rustix::event::PollFd::new(&waker, rustix::event::PollFlags::IN)];
            let soon = rustix::event::Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut waits, Some(&soon)).unwrap(), 1);
        }
    });
}

#[test]
fn a_task_cannot_wait_for_an_event_where_nobody_polls() {
    let cluster = small(1, Progress::Inline);
    let node = &cluster.nodes()[0];
    node.take_events();
    let error = block_on(node.event_async()).unwrap_err();
    assert_eq!(error, WaitError::NobodyPolls);
    assert!(error.to_string().contains("nothing polls the node"));
}
