use std::time::{Duration, Instant};

use pdbp::{Cluster, Interest, Progress, RecvError, SendError};

use crate::{BRIEFLY, SOON, clusters, find, pair, part, small, until};

#[test]
fn a_sender_that_nobody_reads_is_told_so_and_nothing_is_lost() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let mut sent = 0u32;
        let error = loop {
            let message = [&sent.to_le_bytes()[..], &[1; 96]].concat();
            match a.try_send(to, &message) {
                Ok(()) => sent += 1,
                // There may be room again, once the row has grown.
                Err(SendError::WouldBlock) => match a.sender(to).timeout(BRIEFLY).send(&message) {
                    Ok(()) => sent += 1,
                    Err(error) => break error,
                },
                Err(e) => panic!("{e}"),
            }
            assert!(sent < 10_000, "the row never fills: memory is not bounded");
        };
        let said = error.to_string();
        assert!(
            said.contains("node1") && said.contains("`send_or`"),
            "whom it waits for, and what to do: {said}"
        );
        assert!(matches!(&error, SendError::Timeout(t) if t.peers == [b.node().id()]));
        let stalls: u64 = a.node().stats().send.iter().map(|r| r.stalls).sum();
        assert!(stalls > 0, "the stall is counted");
        for expected in 0..sent {
            let message = until(&[&a, &b], || b.try_recv());
            assert_eq!(message[..4], expected.to_le_bytes());
        }
        a.send(to, b"room again").unwrap();
        a.flush();
        assert_eq!(*until(&[&a, &b], || b.try_recv()), *b"room again");
    }
}

#[test]
fn a_long_message_is_given_up_in_time_and_never_just_would_block() {
    for cluster in clusters(2) {
        let (a, _b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let long = vec![1; 100_000];
        let error = a.sender(to).timeout(BRIEFLY).send(&long).unwrap_err();
        // If it had waited that long for one segment, it would name the setting.
        assert!(matches!(&error, SendError::Timeout(t) if t.waited == BRIEFLY), "{error}");
        let error = a.try_send(to, &long).unwrap_err();
        assert_eq!(error, SendError::NeedsWaiting { bytes: long.len(), limit: a.longest() });
        assert!(error.to_string().contains("a call that waits"), "{error}");
    }
}

#[test]
fn parts_that_all_send_before_they_receive_do_not_deadlock() {
    const MESSAGES: u32 = 3000;
    for cluster in clusters(3) {
        cluster.run(|node| {
            let me = part(&node, "ring");
            let peers: Vec<_> = (0..3)
                .filter(|i| *i != node.id().index())
                .map(|i| find(&me, &format!("ring@node{i}")))
                .collect();
            let mut sent = vec![0u32; peers.len()];
            let mut received = 0;
            while sent.iter().any(|s| *s < MESSAGES) || received < 2 * MESSAGES {
                for (peer, sent) in peers.iter().zip(&mut sent) {
                    while *sent < MESSAGES && me.try_send(*peer, &[7; 100]).is_ok() {
                        *sent += 1;
                    }
                }
                while me.try_recv().is_some() {
                    received += 1;
                }
                let next = sent.iter().position(|s| *s < MESSAGES);
                let interest = match next {
                    Some(i) => Interest::Either(peers[i]),
                    None if received < 2 * MESSAGES => Interest::Recv,
                    None => break,
                };
                let ready = me.wait(interest, SOON).unwrap();
                assert!(ready.recv || ready.send);
            }
            me.flush();
            node.quiesce(SOON).unwrap();
        });
    }
}

#[test]
fn a_stream_that_waits_to_be_accepted_is_no_message() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let mut stream = a.open_stream(find(&a, "b@node1")).unwrap();
        std::io::Write::write_all(&mut stream, b"data").unwrap();
        stream.finish().unwrap();
        a.node().quiesce(SOON).unwrap();
        let ready = b.wait(Interest::Recv, SOON).unwrap();
        assert!(ready.stream && !ready.recv, "{ready:?}");
        assert!(b.try_recv().is_none());
        assert_eq!(*b.accept_stream(SOON).unwrap().next_segment(SOON).unwrap().unwrap(), *b"data");
        assert!(matches!(b.wait(Interest::Recv, BRIEFLY), Err(RecvError::Timeout(_))));
    }
}

#[test]
fn receiving_and_waiting_end_in_time() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let started = Instant::now();
        assert!(matches!(a.recv_timeout(BRIEFLY), Err(RecvError::Timeout(_))));
        assert!(matches!(a.recv_batch(BRIEFLY), Err(RecvError::Timeout(_))));
        assert!(matches!(a.wait(Interest::Recv, BRIEFLY), Err(RecvError::Timeout(_))));
        assert!(matches!(a.accept_stream(BRIEFLY).map(|_| ()), Err(RecvError::Timeout(_))));
        assert!(started.elapsed() >= 4 * BRIEFLY);
        let to = find(&a, "b@node1");
        assert!(a.wait(Interest::Send(to), SOON).unwrap().send);
        b.send(find(&b, "a@node0"), b"x").unwrap();
        b.flush();
        assert!(a.wait(Interest::Recv, SOON).unwrap().recv);
        assert_eq!(*a.recv().unwrap(), *b"x");
    }
}

/// With a progress thread, or a host that polls, a message leaves although its sender makes no further call.
#[test]
fn a_message_leaves_after_its_time_without_another_call() {
    for progress in [Progress::Thread, Progress::Host] {
        let cluster = crate::small(2, progress);
        let (a, b) = pair(&cluster);
        a.send(find(&a, "b@node1"), b"by itself").unwrap();
        let got = if progress == Progress::Thread {
            b.recv_timeout(SOON).unwrap()
        } else {
            until(&[&a, &b], || b.try_recv())
        };
        assert_eq!(*got, *b"by itself");
    }
}

/// The peer may be waiting for the packed message.
#[test]
fn what_is_packed_leaves_when_a_part_waits_though_a_message_for_it_is_on_its_way() {
    let builder = Cluster::builder().nodes(2).progress(Progress::Inline).set("transport", "local");
    let cluster = builder.flush_after(Duration::from_secs(10)).start().unwrap();
    let (a, b) = pair(&cluster);
    a.send(find(&a, "b@node1"), b"packed").unwrap();
    b.send(find(&b, "a@node0"), b"on its way").unwrap();
    b.flush();
    assert_eq!(*a.recv().unwrap(), *b"on its way");
    assert_eq!(*until(&[&b], || b.try_recv()), *b"packed");
}

/// A host that sleeps for the time that a poll returns must not sleep while a message waits.
#[test]
fn a_host_is_called_back_while_a_message_waits_in_its_block() {
    let cluster = crate::small(2, Progress::Host);
    let (a, _b) = pair(&cluster);
    let to = find(&a, "b@node1");
    a.send(to, b"leaves when its time is over").unwrap();
    let sent = || a.node().stats().send[1].messages;
    let started = Instant::now();
    while sent() == 0 {
        let pdbp::Polled { worked, next, .. } = a.node().poll();
        assert!(worked || next.is_some() || sent() > 0, "nobody would ever poll again");
        assert!(started.elapsed() < SOON, "the message never left");
        std::thread::sleep(next.unwrap_or_default());
    }
}

#[test]
fn more_parts_than_blocks_all_get_their_turn() {
    let cluster = Cluster::builder()
        .nodes(2)
        .block_bytes(4096)
        .memory_bytes(65_536)
        .set("row_blocks", "4")
        .timeout(Duration::from_secs(60))
        .start()
        .unwrap();
    let sink = cluster.node(1).unwrap();
    let receiver = std::thread::spawn(move || {
        let sink = part(&sink, "sink");
        let mut counts = [0; 12];
        for _ in 0..12 * 200 {
            counts[usize::from(sink.recv().unwrap()[0])] += 1;
        }
        counts
    });
    std::thread::scope(|scope| {
        for i in 0..12u8 {
            let node = cluster.node(0).unwrap();
            scope.spawn(move || {
                let me = part(&node, &format!("source{i}"));
                let to = find(&me, "sink@node1");
                for _ in 0..200 {
                    me.send(to, &[i; 32]).unwrap();
                }
            });
        }
    });
    assert_eq!(receiver.join().unwrap(), [200; 12]);
}

/// The open blocks of parts that do nothing more fill the row: whoever needs room sends them, since their thread may be the one that waits.
#[test]
fn parts_of_one_thread_whose_open_blocks_fill_a_row_do_not_wait_for_each_other() {
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        let hour = Duration::from_secs(3600);
        let builder = Cluster::builder().nodes(1).progress(progress).flush_after(Duration::from_secs(10));
        let cluster = builder.set("row_blocks", "4").timeout(hour).start().unwrap();
        let node = cluster.node(0).unwrap();
        let sink = part(&node, "sink");
        let sources: Vec<_> = (0..20).map(|i| part(&node, &format!("source{i}"))).collect();
        for (number, source) in
            (0..3_u8).flat_map(|number| sources.iter().map(move |source| (number, source)))
        {
            let began = Instant::now();
            source.send(sink.id(), &[number]).unwrap();
            while source.try_send(sink.id(), &[number]).is_err() {
                assert!(began.elapsed() < SOON, "{progress:?}: only its time sends a block");
                while sink.try_recv().is_some() {}
            }
            while sink.try_recv().is_some() {}
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn who_waits_to_send_sleeps_though_something_lies_unread() {
    // Nanoseconds that this thread has had a processor.
    let ran = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        b.send(find(&b, "a@node0"), b"unread").unwrap();
        b.flush();
        assert!(a.wait(Interest::Recv, SOON).unwrap().recv);
        let time = Duration::from_millis(400);
        let took = loop {
            while a.try_send(to, &[0; 100]).is_ok() {}
            let before = ran();
            match a.wait(Interest::Send(to), time) {
                // There may be room again, once the row has grown or its blocks have left.
                Ok(ready) => assert!(ready.send),
                Err(RecvError::Timeout(_)) => break Duration::from_nanos(ran() - before),
                Err(error) => panic!("{error}"),
            }
        };
        assert!(took < time / 2, "{took:?} of {time:?}");
    }
}

/// Blocks that readers give back become room, although a poll that only takes them back counts as having done nothing.
#[test]
fn room_that_readers_have_given_back_is_found_by_who_does_not_wait() {
    let cluster = small(1, Progress::Inline);
    let node = cluster.node(0).unwrap();
    let (a, b) = (part(&node, "a"), part(&node, "b"));
    let to = find(&a, "b@node0");
    let mut held = Vec::new();
    // Until no more arrive and none is accepted: held messages take all the room.
    let mut quiet = 0;
    while quiet < 100 {
        let came = b.try_recv().map(|message| held.push(message)).is_some();
        quiet = if a.try_send(to, &[1; 100]).is_ok() || came { 0 } else { quiet + 1 };
    }
    drop(held);
    let found = (0..1000).any(|_| {
        let _ = b.try_recv();
        a.try_send(to, &[1; 100]).is_ok()
    });
    assert!(found);
}

/// While a peer takes nothing, senders that do not wait probe its row only when it may have room, and not whenever another peer
/// takes something.
#[test]
fn a_row_that_is_full_is_not_looked_at_for_what_others_do() {
    const ROUNDS: u64 = 2_000;
    for cluster in clusters(3) {
        let (sender, reader) = pair(&cluster);
        let _stalled = part(&cluster.node(2).unwrap(), "stalled");
        let [reads, full] = ["b@node1", "stalled@node2"].map(|name| find(&sender, name));
        let looks = || sender.node().stats().send.iter().find(|row| row.peer == full.node()).unwrap().stalls;
        let (mut refused, mut since) = (0, Instant::now());
        // Until nothing is in flight any more that could make room. Who holds it may have no processor for a while.
        while refused < 200 || since.elapsed() < Duration::from_secs(1) {
            refused += 1;
            if sender.try_send(full, &[1; 700]).is_ok() {
                (refused, since) = (0, Instant::now());
            }
            cluster.nodes().iter().for_each(|node| _ = node.poll());
        }
        let before = looks();
        for round in 0..ROUNDS {
            until(&[&sender, &reader], || sender.try_send(reads, &[2; 300]).ok());
            sender.flush();
            assert_eq!(sender.try_send(full, &[1; 700]), Err(SendError::WouldBlock), "{round}");
            until(&[&sender, &reader], || reader.try_recv());
        }
        let looks = looks() - before;
        assert!(looks <= ROUNDS / 4, "{looks} looks in {ROUNDS} rounds");
    }
}

/// The stream is no reason to look again at once, and neither is room that a stream cannot use.
#[test]
fn who_receives_while_there_is_no_room_waits_beside_a_stream_that_nobody_accepts() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let mut unread = b.open_stream(a.id()).unwrap();
        unread.write_some(b"unread").unwrap();
        unread.flush_segment().unwrap();
        until(&[&a, &b], || a.wait(Interest::Recv, Duration::ZERO).ok().filter(|ready| ready.stream));
        // Not flushed: its block has room for more messages.
        a.send(b.id(), b"packed").unwrap();
        let mut stream = a.open_stream(b.id()).unwrap();
        stream.set_timeout(Some(BRIEFLY));
        let mut write = || stream.write_or(&[1; 100_000], |_| panic!("nobody has sent anything"));
        let late = write();
        assert!(matches!(late, Err(SendError::Timeout(_))), "{late:?}");
        // Room for one segment.
        let mut reader = b.accept_stream(SOON).unwrap();
        drop(reader.next_segment(SOON).unwrap());
        let late = write();
        assert!(matches!(late, Err(SendError::Timeout(_))), "{late:?}");
        cluster.node(0).unwrap().interrupt();
        let send = || a.send_or(b.id(), &[1; 700], |_| panic!("nobody has sent anything")).err();
        assert_eq!(std::iter::repeat_with(send).find_map(|error| error), Some(SendError::Interrupted));
    }
}
