//! Threads that wait for the events of a node.

use std::thread;

use pdbp::{Event, NodeId, Progress, WaitError};

use crate::{BRIEFLY, SOON, clusters, small};

/// The end of the node that the tests drop.
fn is_end(event: &Event) -> bool {
    matches!(event, Event::NodeDown { node } if Some(*node) == NodeId::new(2))
}

#[test]
fn an_event_wakes_each_thread_that_waits() {
    for cluster in clusters(3) {
        let mut nodes = cluster.into_nodes();
        let gone = nodes.remove(2);
        let node = &nodes[0];
        let watches = [node.watch(), node.watch()];
        thread::scope(|scope| {
            scope.spawn(|| while !is_end(&node.wait_event(SOON).unwrap()) {});
            for watch in &watches {
                scope.spawn(|| while !is_end(&watch.wait_event(node, SOON).unwrap()) {});
            }
            thread::sleep(BRIEFLY);
            drop(gone);
        });
    }
}

#[test]
fn without_an_event_the_wait_times_out() {
    for cluster in clusters(1) {
        let node = &cluster.nodes()[0];
        let watch = node.watch();
        node.take_events();
        for waited in [node.wait_event(BRIEFLY), watch.wait_event(node, BRIEFLY)] {
            let Err(WaitError::Timeout(timeout)) = waited else { panic!("{waited:?}") };
            assert_eq!(timeout.waited, BRIEFLY);
            assert!(timeout.to_string().ends_with("no node has caused an event"), "{timeout}");
        }
    }
}

#[test]
fn an_interrupt_ends_a_wait_for_an_event() {
    for progress in [Progress::Thread, Progress::Inline] {
        let cluster = small(1, progress);
        let node = cluster.node(0).unwrap();
        node.take_events();
        node.interrupt();
        let is_interrupted = |waited| matches!(waited, Err(WaitError::Interrupted));
        assert!(is_interrupted(node.wait_event(SOON)), "before it has begun");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| node.wait_event(SOON));
            thread::sleep(BRIEFLY);
            node.interrupt();
            assert!(is_interrupted(waiting.join().unwrap()));
        });
    }
}
