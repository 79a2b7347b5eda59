use std::io::Write;

use pdbp::{Event, Interest, RecvError, SendError};

use crate::{SOON, clusters, find, pair, until};

/// A node whose handles are all dropped is gone; the others see it and go on.
#[test]
fn a_node_that_is_gone_fails_its_senders_and_breaks_its_streams() {
    for cluster in clusters(3) {
        let (a, b) = pair(&cluster);
        let c = crate::part(&cluster.node(2).unwrap(), "c");
        let (to_a, to_b, a_to_c) = (find(&b, "a@node0"), find(&a, "b@node1"), find(&a, "c@node2"));
        let mut nodes = cluster.into_nodes();
        {
            let mut stream = b.open_stream(to_a).unwrap();
            stream.write_all(b"begun").unwrap();
            stream.flush().unwrap();
            // Neither finished nor given up: the node just goes.
            std::mem::forget(stream);
        }
        let mut reader = a.accept_stream(SOON).unwrap();
        assert_eq!(*reader.next_segment(SOON).unwrap().unwrap(), *b"begun");
        let gone = nodes.remove(1);
        drop((b, gone));
        let error = until(&[&a, &c], || match reader.next_segment(crate::BRIEFLY) {
            Err(RecvError::Timeout(_)) => None,
            other => Some(other.map(|_| ())),
        });
        assert!(matches!(error, Err(RecvError::StreamBroken(_))), "{error:?}");
        let error = until(&[&a, &c], || a.send(to_b, b"x").err());
        assert!(matches!(error, SendError::PeerFailed(_)) && error.to_string().contains("node1"), "{error}");
        let events = a.node().take_events();
        assert!(events.iter().any(|e| matches!(e, Event::PeerFailed { .. })), "{events:?}");
        a.send(a_to_c, b"we go on").unwrap();
        a.flush();
        assert_eq!(*until(&[&a, &c], || c.try_recv().unwrap()), *b"we go on");
    }
}

/// The end of a stream must not overtake its segments, on which its reader has not looked yet.
#[test]
fn a_stream_whose_node_went_before_anybody_looked_ends_with_an_error() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&b, "a@node0");
        let mut nodes = cluster.into_nodes();
        let mut stream = b.open_stream(to).unwrap();
        stream.write_all(b"begun").unwrap();
        stream.flush().unwrap();
        std::mem::forget(stream);
        drop((b, nodes.remove(1)));
        until(&[&a], || (a.node().stats().counters.blocks_delivered > 0).then_some(()));
        let failed = |events: Vec<Event>| events.iter().any(|e| matches!(e, Event::PeerFailed { .. }));
        until(&[&a], || failed(a.node().take_events()).then_some(()));
        let mut reader = a.accept_stream(SOON).unwrap();
        assert_eq!(*reader.next_segment(SOON).unwrap().unwrap(), *b"begun");
        assert!(matches!(reader.next_segment(SOON), Err(RecvError::StreamBroken(_))));
    }
}

#[test]
fn a_part_that_waits_to_send_to_a_node_that_is_gone_is_told_at_once() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let mut nodes = cluster.into_nodes();
        drop((b, nodes.remove(1)));
        until(&[&a], || matches!(a.try_send(to, b"x"), Err(SendError::PeerFailed(_))).then_some(()));
        assert!(a.wait(Interest::Send(to), SOON).unwrap().send);
    }
}

/// Messages may outlive their part and its node; their blocks still go back, so that the node's end is seen.
#[test]
fn a_message_that_is_kept_longer_than_its_node_does_not_hide_its_end() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let mut nodes = cluster.into_nodes();
        a.send(to, b"kept").unwrap();
        a.flush();
        let kept = until(&[&a, &b], || b.try_recv().unwrap());
        drop((b, nodes.remove(1)));
        assert_eq!(*kept, *b"kept");
        drop(kept);
        let error = until(&[&a], || a.send(to, b"x").err());
        assert!(matches!(error, SendError::PeerFailed(_)), "{error}");
    }
}

#[test]
fn a_panic_in_one_node_is_passed_on() {
    for cluster in clusters(2) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cluster.run(|node| assert_eq!(node.id().index(), 0, "only node 0 may live"));
        }));
        assert!(result.is_err());
    }
}
