use std::io::Write;
use std::thread;
use std::time::Duration;

use pdbp::{Event, Interest, Node, Progress, RecvError, SendError, WaitError};

use crate::{SOON, clusters, find, pair, small_builder, until};

/// A node whose handles are all dropped is down; the others see it and go on.
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
            // Neither finished nor abandoned: the node simply disappears.
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
        assert!(matches!(error, Err(RecvError::StreamBroken { .. })), "{error:?}");
        let error = until(&[&a, &c], || a.send(to_b, b"x").err());
        assert!(matches!(error, SendError::PeerFailed(_)) && error.to_string().contains("node1"), "{error}");
        let events = a.node().take_events();
        assert!(events.iter().any(|e| matches!(e, Event::PeerFailed { .. })), "{events:?}");
        a.send(a_to_c, b"we go on").unwrap();
        a.flush();
        assert_eq!(*until(&[&a, &c], || c.try_recv()), *b"we go on");
    }
}

/// The end of a stream must not overtake its segments before its reader has looked at them.
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
        assert!(matches!(reader.next_segment(SOON), Err(RecvError::StreamBroken { .. })));
    }
}

#[test]
fn receiving_ends_when_the_only_node_that_could_send_is_gone() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&b, "a@node0");
        let mut nodes = cluster.into_nodes();
        b.send(to, b"the last").unwrap();
        b.flush();
        until(&[&a, &b], || a.wait(Interest::Recv, SOON).ok());
        drop((b, nodes.remove(1)));
        assert_eq!(*a.recv().unwrap(), *b"the last");
        let error = a.recv().map(|_| ()).unwrap_err();
        assert_eq!(error, RecvError::NobodyLeft);
        assert!(error.to_string().contains("every other node has failed or left"), "{error}");
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
        let kept = until(&[&a, &b], || b.try_recv());
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

#[test]
fn a_panic_in_one_node_ends_what_the_others_wait_for_and_is_the_one_that_is_passed_on() {
    for cluster in clusters(3) {
        let program = |node: Node| {
            let part = crate::part(&node, "waits");
            if node.id().index() == 2 {
                panic!("node 2 has had enough");
            }
            // No other part would ever send it anything.
            let received = part.recv().map(|_| ());
            let barrier = node.barrier(SOON);
            assert!(matches!(
                (received, barrier),
                (Err(RecvError::Interrupted), Err(WaitError::Interrupted))
            ));
            panic!("nor can node {} go on", node.id().index());
        };
        let run = std::panic::AssertUnwindSafe(|| cluster.run(program));
        let panic = std::panic::catch_unwind(run).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"node 2 has had enough"));
        // The cluster goes on.
        cluster.run(|node| crate::part(&node, "works").recv_timeout(Duration::ZERO).unwrap_err());
    }
}

/// Nor does it where the primary, which tells the others, has gone: another master is primary then.
#[test]
fn a_barrier_does_not_wait_for_a_node_that_has_gone() {
    for cluster in clusters(4) {
        assert_eq!(cluster.node(0).unwrap().settings().masters, 2);
        let mut nodes = cluster.into_nodes();
        let gone = nodes.pop().unwrap().id();
        let wait = |node: &Node| node.barrier(SOON).unwrap_err();
        thread::scope(|scope| {
            let others: Vec<_> =
                nodes.drain(1..).map(|node| scope.spawn(move || (wait(&node), node))).collect();
            while !others.iter().all(|other| other.is_finished()) {
                nodes[0].poll();
                thread::yield_now();
            }
            for other in others {
                let (error, node) = other.join().unwrap();
                assert_eq!(error, WaitError::PeerFailed(gone));
                nodes.push(node);
            }
        });
        assert_eq!(wait(&nodes[0]), WaitError::PeerFailed(gone));
        drop(nodes.remove(0));
        for node in nodes {
            let error = wait(&node);
            assert!(matches!(error, WaitError::PeerFailed(_)), "{error:?}");
        }
    }
}

/// A message of any kind is delivered or comes back to the part that sent it.
#[test]
fn what_a_node_that_is_gone_did_not_get_comes_back_to_its_senders() {
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        let cluster = crate::small(2, progress);
        let (a, b) = pair(&cluster);
        let other = crate::part(&cluster.node(0).unwrap(), "other");
        let b2 = crate::part(&cluster.node(1).unwrap(), "b2");
        let (to_b, to_b2) = (find(&a, "b@node1"), find(&a, "b2@node1"));
        // Nothing is read, so the row fills and messages queue.
        let mut sent = Vec::new();
        for i in 0..2000u32 {
            match a.try_send(to_b, &i.to_le_bytes()) {
                Ok(()) => sent.push(i),
                Err(SendError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
            if i == 3 {
                a.send_all(&[to_b, to_b2], b"to both").unwrap();
                other.send(to_b, b"of another part").unwrap();
                other.flush();
                a.sender(to_b).command(7).send(b"a command").unwrap();
            }
        }
        a.flush();
        // What b has taken out of its pipe is delivered.
        let mut delivered = Vec::new();
        while let Some(message) = b.try_recv() {
            if message.len() == 4 {
                delivered.push(message.value::<u32>().unwrap());
            }
            if delivered.len() == 10 {
                break;
            }
        }
        let mut nodes = cluster.into_nodes();
        drop((b, b2, nodes.remove(1)));
        let mut returned = Vec::new();
        let failed = || a.send(to_b, b"x").is_err();
        until(&[&a], || failed().then_some(()));
        a.flush();
        let mut rest = 0;
        until(&[&a, &other], || {
            while let Some(message) = a.try_returned().unwrap() {
                returned.push(message);
            }
            rest += other.try_returned().unwrap().into_iter().count();
            let undelivered = a.node().stats().counters.undelivered as usize;
            (returned.len() + rest >= undelivered).then_some(())
        });
        let numbers: Vec<u32> = returned
            .iter()
            .filter(|m| m.len() == 4 && m.targets() == [to_b])
            .map(|m| u32::from_le_bytes((**m).try_into().unwrap()))
            .collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        // Blocks that had been delivered in whole or in part do not come back.
        assert!(numbers.iter().all(|n| !delivered.contains(n)));
        // The progress thread may have put all of them into b's pipe; otherwise the last never left.
        if progress != Progress::Thread || !numbers.is_empty() {
            assert_eq!(sent.last(), numbers.last());
        }
        let whole = a.node().stats().counters.undelivered;
        assert_eq!(returned.len() + rest, whole as usize, "all that was not delivered came back");
        drop(returned);
        let used = || a.node().stats().send.iter().map(|row| row.space.used()).sum::<u32>();
        until(&[&a], || (used() == 0).then_some(()));
    }
}

#[test]
fn segments_of_a_stream_come_back_with_its_number() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let mut nodes = cluster.into_nodes();
        let mut stream = a.open_stream(to).unwrap();
        let number = stream.number();
        // A segment that is being filled when its reader goes.
        stream.write_all(b"never arrives").unwrap();
        drop((b, nodes.remove(1)));
        until(&[&a], || matches!(a.send(to, b"x"), Err(SendError::PeerFailed(_))).then_some(()));
        assert!(matches!(stream.finish(), Err(SendError::PeerFailed(_))));
        let segment = until(&[&a], || a.try_returned().unwrap().filter(|m| m.stream().is_some()));
        assert_eq!((segment.stream(), segment.segment()), (Some(number), Some(0)));
        assert_eq!(*segment, *b"never arrives");
    }
}

/// All remaining nodes are notified once, and agree on the members.
#[test]
fn a_node_that_is_gone_is_no_member_for_anybody() {
    for cluster in clusters(4) {
        let parts: Vec<_> = cluster.nodes().iter().map(|node| crate::part(node, "part")).collect();
        let mut nodes = cluster.into_nodes();
        assert!(nodes.iter().all(|node| node.members().len() == 4));
        let all: Vec<_> = nodes.iter().map(pdbp::Node::id).collect();
        let mut parts = parts;
        drop((parts.remove(2), nodes.remove(2)));
        let rest: Vec<_> = parts.iter().collect();
        until(&rest, || nodes.iter().all(|node| node.members().len() == 3).then_some(()));
        for node in &nodes {
            assert_eq!(node.members(), [all[0], all[1], all[3]]);
            let events = node.take_events();
            let changes: Vec<_> = events
                .iter()
                .filter_map(|event| match event {
                    Event::NodeUp { node } => Some((*node, true)),
                    Event::NodeDown { node } => Some((*node, false)),
                    _ => None,
                })
                .collect();
            assert_eq!(changes, [(all[2], false)], "{events:?}");
        }
    }
}

/// The standby takes over, and finds what the master knew; it also serves requests made meanwhile.
#[test]
fn a_master_that_is_gone_is_replaced() {
    for cluster in clusters(4) {
        let parts: Vec<_> = cluster.nodes().iter().map(|node| crate::part(node, "part")).collect();
        let mut nodes = cluster.into_nodes();
        let mut parts = parts.into_iter();
        let master = parts.next();
        drop((master, nodes.remove(0)));
        let rest: Vec<_> = parts.collect();
        let all: Vec<_> = rest.iter().collect();
        // While there is no master, a registration waits for the next one.
        let late = std::thread::scope(|scope| {
            let node = nodes[2].clone();
            let registers = scope.spawn(move || crate::part(&node, "late").id());
            while !registers.is_finished() {
                all.iter().for_each(|part| _ = part.node().poll());
            }
            registers.join().unwrap()
        });
        let is_new = |event: &Event| matches!(event, Event::NewMaster { node, .. } if node.index() == 1);
        let events: Vec<_> = nodes[1].take_events();
        assert!(events.iter().any(is_new), "{events:?}");
        // The part was dropped with its thread, so that its name is free again.
        let _ = late;
        let again = std::thread::scope(|scope| {
            let node = nodes[0].clone();
            let registers = scope.spawn(move || {
                let part = crate::part(&node, "later");
                (part.lookup("part@node3").unwrap(), part.find("later@node1", SOON).unwrap())
            });
            while !registers.is_finished() {
                all.iter().for_each(|part| _ = part.node().poll());
            }
            registers.join().unwrap()
        });
        assert_ne!(again.0, again.1);
        assert!(all[0].lookup("part@node0").is_err(), "parts of the node that is gone are forgotten");
        // Quiescence goes through the new master as well.
        rest[0].send(find(&rest[0], "part@node2"), b"x").unwrap();
        rest[0].flush();
        std::thread::scope(|scope| {
            let node = nodes[2].clone();
            let quiet = scope.spawn(move || node.quiesce(SOON));
            while !quiet.is_finished() {
                all.iter().for_each(|part| _ = part.node().poll());
            }
            quiet.join().unwrap().unwrap();
        });
        assert_eq!(*rest[1].recv().unwrap(), *b"x");
    }
}

#[test]
fn waits_for_messages_and_streams_end_at_once_when_nobody_is_left() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&b, "a@node0");
        let mut nodes = cluster.into_nodes();
        b.send(to, b"the last").unwrap();
        b.flush();
        until(&[&a, &b], || a.wait(Interest::Recv, SOON).ok());
        drop((b, nodes.remove(1)));
        until(&[&a], || a.is_alone().then_some(()));
        assert_eq!(*a.try_recv().unwrap(), *b"the last");
        let began = std::time::Instant::now();
        let long = Duration::from_secs(600);
        assert_eq!(a.recv_timeout(long).map(|_| ()), Err(RecvError::NobodyLeft));
        assert_eq!(a.recv_batch(long).map(|_| ()), Err(RecvError::NobodyLeft));
        assert_eq!(a.accept_stream(long).map(|_| ()), Err(RecvError::NobodyLeft));
        assert_eq!(a.wait(Interest::Recv, long).map(|_| ()), Err(RecvError::NobodyLeft));
        assert_eq!(nodes[0].wait_any(&[(&a, Interest::Recv)], long).map(|_| ()), Err(RecvError::NobodyLeft));
        assert!(began.elapsed() < long);
        // A part that waits only briefly, again and again, gets the error too.
        assert_eq!(a.recv_timeout(Duration::ZERO).map(|_| ()), Err(RecvError::NobodyLeft));
        assert_eq!(nodes[0].wait_any(&[(&a, Interest::Recv)], Duration::ZERO), Err(RecvError::NobodyLeft));
        // Another part could send something.
        let other = crate::part(&nodes[0], "other");
        assert!(!a.is_alone());
        let recv = [(&a, Interest::Recv)];
        assert!(matches!(nodes[0].wait_any(&recv, Duration::from_millis(50)), Err(RecvError::Timeout(_))));
        // Unless that part is waiting itself, other than for room.
        let both = [recv[0], (&other, Interest::Recv)];
        assert_eq!(nodes[0].wait_any(&both, long), Err(RecvError::NobodyLeft));
        let room = [recv[0], (&other, Interest::Send(to))];
        assert!(nodes[0].wait_any(&room, long).unwrap()[1].send);
        assert!(matches!(a.recv_timeout(Duration::from_millis(50)), Err(RecvError::Timeout(_))));
        other.send(a.id(), b"here").unwrap();
        other.flush();
        drop(other);
        assert_eq!(*a.recv_timeout(SOON).unwrap(), *b"here");
    }
}

/// The remaining node is not a master, so nobody can count any more.
#[test]
fn a_quiesce_without_the_primary_says_at_once_that_it_has_gone() {
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        let cluster = small_builder(2, progress).set("masters", "1").start().unwrap();
        let (_a, b) = pair(&cluster);
        let mut nodes = cluster.into_nodes();
        let stays = nodes.remove(1);
        drop((_a, nodes));
        let (node, part) = (stays.quiesce(SOON).unwrap_err(), b.quiesce(SOON, |_| {}).unwrap_err());
        let (WaitError::Timeout(node), RecvError::Timeout(part)) = (node, part) else { panic!("no timeout") };
        for late in [node, part] {
            let said = late.to_string();
            assert!(
                late.waited < SOON && said.contains("node0 has not") && said.contains("has failed"),
                "{said}"
            );
        }
    }
}

/// Another master takes its place, for which this waits.
#[test]
fn a_quiesce_without_the_primary_waits_for_the_next_one() {
    for cluster in clusters(2) {
        let (_a, b) = pair(&cluster);
        let mut nodes = cluster.into_nodes();
        let stays = nodes.remove(1);
        drop((_a, nodes));
        stays.quiesce(SOON).unwrap();
        b.quiesce(SOON, |_| {}).unwrap();
    }
}
