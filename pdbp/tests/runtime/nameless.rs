//! Parts without a name.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use pdbp::{PartKind, Progress, RecvError, RegisterError};

use crate::{SOON, clusters, find, pair, part, small_builder, until};

#[test]
fn parts_without_a_name_come_and_go_by_the_thousand_and_are_answered() {
    for cluster in clusters(2) {
        let server = part(&cluster.node(0).unwrap(), "server");
        let node = cluster.node(1).unwrap();
        let known = node.parts();
        let mut gone = Vec::new();
        for count in 0u64..2000 {
            let client = node.attach().unwrap();
            assert!(client.name().is_empty() && !gone.contains(&client.id()), "{client:?}");
            client.send_value(server.id(), &count).unwrap();
            client.flush();
            let source = until(&[&client, &server], || {
                let message = server.try_recv()?;
                assert_eq!(message.value(), Some(count));
                Some(message.source())
            });
            assert_eq!(source, client.id());
            server.send_value(source, &(count + 1)).unwrap();
            server.flush();
            assert_eq!(until(&[&client, &server], || client.try_recv()?.value::<u64>()), count + 1);
            gone.push(client.id());
            gone.truncate(3);
        }
        assert_eq!(node.parts(), known, "nobody sees them");
        assert_eq!(cluster.node(0).unwrap().parts(), ["server@node0"]);
    }
}

#[test]
fn what_was_sent_to_one_that_is_gone_reaches_nobody() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let first = b.node().attach().unwrap();
        let gone = first.id();
        drop(first);
        let next = b.node().attach().unwrap();
        a.send(gone, b"late").unwrap();
        a.send(next.id(), b"new").unwrap();
        a.flush();
        assert_eq!(*until(&[&a, &next], || next.try_recv()), *b"new");
        until(&[&a, &b], || (b.node().stats().counters.unroutable == 1).then_some(()));
        assert!(next.try_recv().is_none());
    }
}

#[test]
fn long_messages_and_streams_reach_parts_without_a_name() {
    let cluster = small_builder(2, pdbp::Progress::Thread).start().unwrap();
    let server = part(&cluster.node(0).unwrap(), "server");
    let client = cluster.node(1).unwrap().attach_shared().unwrap();
    client.send(find(&server, "server@node0"), b"ask").unwrap();
    client.flush();
    let asked = server.recv_timeout(SOON).unwrap();
    let to = asked.source();
    let reads = std::thread::spawn(move || {
        let message = client.recv_timeout(SOON).unwrap();
        assert_eq!(*message, [8; 10_000]);
        let mut stream = client.accept_stream(SOON).unwrap();
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut read).unwrap();
        read
    });
    server.send(to, &[8; 10_000]).unwrap();
    let mut stream = server.open_stream(to).unwrap();
    stream.write_all(&[9; 10_000]).unwrap();
    stream.finish().unwrap();
    assert_eq!(reads.join().unwrap(), [9; 10_000]);
}

#[test]
fn they_take_places_of_their_node_and_none_of_the_cluster() {
    let cluster = small_builder(2, pdbp::Progress::Inline).set("local_parts", "3").set("parts", "2");
    let cluster = cluster.start().unwrap();
    let (n0, n1) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
    let _named = (part(&n0, "a"), part(&n1, "b"));
    let attached: Vec<_> = (0..2).map(|_| n1.attach().unwrap()).collect();
    let full = n1.attach().map(|_| ()).unwrap_err();
    assert!(matches!(full, RegisterError::Refused(_)) && full.to_string().contains("local_parts"), "{full}");
    assert_eq!(n1.register("c", PartKind::Cpu).map(|_| ()), Err(RegisterError::TableFull { parts: 2 }));
    drop(attached);
    n1.attach().unwrap();
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_task_hears_that_the_last_other_part_was_one_without_a_name() {
    let mut nodes = small_builder(2, Progress::Thread).start().unwrap().into_nodes();
    let (second, first) = (nodes.pop().unwrap(), nodes.pop().unwrap());
    let part = first.register_shared("part", PartKind::Cpu).unwrap();
    let other = first.attach_shared().unwrap();
    drop(second);
    first.wait_event(SOON).unwrap();
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&flag));
    let poll = || part.poll_recv(&mut Context::from_waker(&waker));
    assert!(poll().is_pending(), "the other part could still send something");
    // A waiting task polls for a while before it relies on being woken.
    while flag.0.swap(false, Ordering::Acquire) {
        assert!(poll().is_pending());
    }
    drop(other);
    let began = Instant::now();
    let received = loop {
        while !flag.0.swap(false, Ordering::Acquire) {
            assert!(began.elapsed() < SOON, "nobody wakes it");
            std::thread::yield_now();
        }
        if let Poll::Ready(received) = poll() {
            break received;
        }
    };
    assert_eq!(received.err(), Some(RecvError::NobodyLeft));
}
