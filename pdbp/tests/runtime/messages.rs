use std::time::Instant;

use pdbp::{Interest, Progress, SendError, Target};

use crate::{BRIEFLY, SOON, clusters, find, pair, part, small_builder, until};

/// Bytes that differ from message to message.
fn contents(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (number * 31 + i * 7) as u8).collect()
}

#[test]
fn messages_of_any_length_arrive_once_and_in_order() {
    // Around the limits of an empty message, a block of 1024 bytes, and many blocks.
    let lengths = [0, 1, 7, 8, 64, 500, 999, 1000, 1007, 1008, 1009, 1024, 1025, 2500, 100_000, 0, 3];
    for cluster in clusters(2) {
        cluster.run(|node| {
            let me = part(&node, "part");
            let peer = find(&me, if node.id().index() == 0 { "part@node1" } else { "part@node0" });
            if node.id().index() == 0 {
                for round in 0..3 {
                    for (i, length) in lengths.into_iter().enumerate() {
                        me.send(peer, &contents(round * 100 + i, length)).unwrap();
                    }
                }
                me.flush();
                assert_eq!(me.recv().unwrap().into_vec(), b"done");
            } else {
                for round in 0..3 {
                    for (i, length) in lengths.into_iter().enumerate() {
                        let message = me.recv().unwrap();
                        assert_eq!(message.source(), peer);
                        assert_eq!(
                            *message,
                            *contents(round * 100 + i, length),
                            "round {round}, length {length}"
                        );
                    }
                }
                assert!(me.try_recv().is_none(), "something came twice");
                me.send(peer, b"done").unwrap();
                me.flush();
                node.quiesce(SOON).unwrap();
            }
        });
    }
}

/// More nodes than a part keeps open trains for, two parts on each, and messages of two lengths in between.
#[test]
fn messages_to_many_nodes_in_turn_arrive_in_order() {
    const NODES: u16 = 36;
    for progress in [Progress::Inline, Progress::Thread] {
        let cluster = small_builder(NODES, progress).memory_bytes(4 << 20).start().unwrap();
        let nodes: Vec<_> = (0..usize::from(NODES)).map(|i| cluster.node(i).unwrap()).collect();
        let readers: Vec<_> =
            nodes.iter().flat_map(|node| ["one", "two"].map(|name| part(node, name))).collect();
        let sender = part(&nodes[0], "sender");
        let to: Vec<_> = readers
            .iter()
            .map(|reader| find(&sender, &format!("{}@{}", reader.name(), reader.node().name())))
            .collect();
        let (mut random, mut sent, mut got) = (1_u32, vec![0_usize; to.len()], vec![0; to.len()]);
        let read = |got: &mut [usize]| {
            for (reader, got) in readers.iter().zip(got) {
                while let Some(message) = reader.try_recv() {
                    assert_eq!(*message, *contents(*got, message.len()));
                    *got += 1;
                }
            }
        };
        let mut send = |at: usize, length| {
            while sender.try_send(to[at], &contents(sent[at], length)) == Err(SendError::WouldBlock) {
                read(&mut got);
            }
            sent[at] += 1;
        };
        // Mostly to one part on each of a few nodes: their trains are still open when messages to others come in between.
        let few = [0, 2, 4, 64, 66, 68];
        for _ in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let any = (random >> 8) as usize;
            let at = if random >> 28 == 0 { any % to.len() } else { few[any % few.len()] };
            send(at, if random >> 29 == 1 { 24 } else { 8 });
        }
        (0..4).for_each(|_| few.into_iter().for_each(|at| send(at, 8)));
        sender.flush();
        until(&[&sender], || {
            read(&mut got);
            (got == sent).then_some(())
        });
    }
}

#[test]
fn parts_of_one_node_reach_each_other() {
    for cluster in clusters(1) {
        let node = cluster.node(0).unwrap();
        let (a, b) = (part(&node, "a"), part(&node, "b"));
        for i in 0..2000u32 {
            a.send_value(find(&a, "b"), &i).unwrap();
            if i % 10 == 9 {
                a.flush();
                for expected in i - 9..=i {
                    assert_eq!(b.recv().unwrap().value(), Some(expected));
                }
            }
        }
        a.send(find(&a, "a@node0"), b"to myself").unwrap();
        assert_eq!(*a.recv().unwrap(), *b"to myself");
    }
}

#[test]
fn plain_values_travel_in_trains_and_are_read_in_place() {
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        // A block that leaves because its time is over (on a busy machine, between two values) would be a separate train.
        let cluster = small_builder(2, progress).set("flush_after_us", "10000000").start().unwrap();
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        for i in 0..20u64 {
            a.send_value(to, &[i, i * i]).unwrap();
        }
        a.sender(to).send_slice(&[1.5f32, 2.5, 3.5]).unwrap();
        a.flush();
        let batch = until(&[&a, &b], || b.try_recv_batch());
        let values: &[[u64; 2]] = batch.values().unwrap();
        assert_eq!(values.len(), 20, "one train");
        assert!(values.iter().zip(0..).all(|(v, i)| *v == [i, i * i]));
        assert_eq!((batch.len(), batch.message_len()), (20, 16));
        assert_eq!(batch.iter().count(), 20);
        assert!(batch.values::<[u8; 5]>().is_none(), "5 does not divide 16");
        let message = b.recv().unwrap();
        assert_eq!(message.values::<f32>(), Some(&[1.5f32, 2.5, 3.5][..]));
        assert_eq!(message.value::<u64>(), None, "12 bytes are no u64");
    }
}

#[test]
fn values_sent_many_at_a_time_arrive_as_messages_of_their_own() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        // Far more than the row holds, so that some calls find no room.
        let values: Vec<[u32; 3]> = (0..20_000).map(|i| [i, i + 1, i + 2]).collect();
        let (mut sent, mut got) = (0, 0);
        let mut refused = 0;
        until(&[&a, &b], || {
            let now = a.sender(to).no_wait().send_each(&values[sent..]).unwrap();
            sent += now;
            refused += usize::from(sent < values.len());
            if sent == values.len() {
                a.flush();
            }
            while let Some(message) = b.try_recv() {
                assert_eq!(message.value(), Some(values[got]));
                got += 1;
            }
            (got == values.len()).then_some(())
        });
        assert!(refused > 0, "the row never was full");
        let to = a.sender(to);
        assert_eq!(to.send_each(&values[..100]), Ok(100));
        assert_eq!(to.send_each::<[u32; 3]>(&[]), Ok(0));
        assert_eq!(to.send_each(&[(), (), ()]), Ok(3));
        // Lengths known at run time; an incomplete rest is not sent.
        assert_eq!(to.send_train(b"onetwosix+", 3), Ok(3));
        assert_eq!(to.send_train(b"nothing", 0), Ok(0));
        assert_eq!(to.send_train(b"too long", 9), Ok(0));
        assert_eq!(to.command(9).send_train(b"no trains", 3), Ok(3));
        to.flush();
        // Commands come first if they have arrived when the receiver looks.
        a.node().quiesce(SOON).unwrap();
        for word in ["no ", "tra", "ins"] {
            let command = until(&[&a, &b], || b.try_recv());
            assert_eq!((command.command(), &*command), (9, word.as_bytes()));
        }
        for value in &values[..100] {
            assert_eq!(until(&[&a, &b], || b.try_recv()).value(), Some(*value));
        }
        for _ in 0..3 {
            assert!(until(&[&a, &b], || b.try_recv()).is_empty());
        }
        for word in ["one", "two", "six"] {
            assert_eq!(*until(&[&a, &b], || b.try_recv()), *word.as_bytes());
        }
        assert!(b.try_recv().is_none());
    }
}

#[test]
fn a_loan_is_filled_in_place_and_dropping_it_sends_nothing() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        a.send(to, b"one").unwrap();
        a.send(to, b"two").unwrap();
        let mut loan = a.sender(to).loan(5).unwrap();
        loan.copy_from_slice(b"three");
        assert_eq!(*loan, *b"three");
        loan.send();
        let mut dropped = a.sender(to).loan(100).unwrap();
        dropped.fill(9);
        drop(dropped);
        a.send(to, b"four").unwrap();
        a.flush();
        for expected in ["one", "two", "three", "four"] {
            let got = until(&[&a, &b], || b.try_recv());
            assert_eq!(*got, *expected.as_bytes());
        }
        assert!(b.try_recv().is_none());
        let limit = a.longest();
        let refused = a.sender(to).loan(limit + 1).map(|_| ()).unwrap_err();
        assert_eq!(refused, SendError::LoanTooLong { bytes: limit + 1, limit });
        assert!(refused.to_string().contains("block_bytes"), "{refused}");
        assert_eq!(a.sender(to).loan(limit).unwrap().len(), limit);
    }
}

#[test]
fn nothing_overtakes_a_loan() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let (to, own) = (find(&a, "b@node1"), a.id());
        a.send(to, b"before").unwrap();
        let mut loan = a.sender(to).loan(4).unwrap();
        let refused = SendError::Loaned(to.node());
        assert_eq!(a.send(to, b"later"), Err(refused.clone()));
        assert_eq!(a.try_send(to, b"later"), Err(refused.clone()));
        assert_eq!(a.send_all(&[to], b"later"), Err(refused.clone()));
        assert_eq!(a.sender(to).send_each(&[1u8, 2]), Err(refused.clone()));
        assert_eq!(a.send(to, &[0; 5000]), Err(refused.clone()));
        assert_eq!(a.sender(own).loan(4).map(|_| ()), Err(refused.clone()), "one at a time");
        assert!(refused.to_string().contains("send or drop it first"), "{refused}");
        assert!(a.wait(Interest::Send(to), SOON).unwrap().send, "a send does not wait");
        // Messages to other targets, or ahead of the rest anyway, are not held up.
        a.send(own, b"elsewhere").unwrap();
        a.sender(to).command(1).send(b"now").unwrap();
        a.flush();
        loan.copy_from_slice(b"lent");
        loan.send();
        a.send(to, b"after").unwrap();
        a.flush();
        a.node().quiesce(SOON).unwrap();
        for expected in ["now", "before", "lent", "after"] {
            assert_eq!(*b.try_recv().unwrap(), *expected.as_bytes());
        }
        assert_eq!(*a.try_recv().unwrap(), *b"elsewhere");
    }
}

#[test]
fn a_sender_waits_until_its_deadline_and_no_longer() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let began = Instant::now();
        let sender = a.sender(to).deadline(began + 2 * BRIEFLY);
        // As many as fit; then none, since the deadline is for all.
        let refused = std::iter::repeat_with(|| sender.send(&[1; 700])).find_map(Result::err);
        assert!(began.elapsed() >= 2 * BRIEFLY);
        assert!(matches!(refused, Some(SendError::Timeout(_))), "{refused:?}");
        // More fit once the first have left, however late that is.
        until(&[&a, &b], || {
            let [late, refused] = [sender, sender.no_wait()].map(|sender| sender.send(&[1; 700]));
            assert!(matches!(late, Ok(()) | Err(SendError::Timeout(_))), "{late:?}");
            (late.is_err() && refused == Err(SendError::WouldBlock)).then_some(())
        });
    }
}

#[test]
fn a_message_to_many_reaches_every_part_once() {
    for cluster in clusters(3) {
        let nodes: Vec<_> = (0..3).map(|i| cluster.node(i).unwrap()).collect();
        let sender = part(&nodes[0], "sender");
        let parts: Vec<_> = (0..6).map(|i| part(&nodes[i / 2], &format!("p{i}"))).collect();
        let mut targets: Vec<Target> =
            (0..6).map(|i| find(&sender, &format!("p{i}@node{}", i / 2))).collect();
        // The same part twice: once is enough.
        targets.push(targets[3]);
        let all: Vec<_> = parts.iter().chain([&sender]).collect();
        // To each part separately, and such that the row of one node has room for both of its parts.
        let long = contents(5, 2500);
        for message in [&b"to all"[..], b"", &long] {
            sender.send_all(&targets, message).unwrap();
            sender.flush();
            for p in &parts {
                let got = until(&all, || p.try_recv());
                assert_eq!(*got, *message);
                assert_eq!(got.source(), sender.id());
            }
        }
        let sent = nodes[0].stats().send.iter().map(|r| r.messages).sum::<u64>();
        assert!(sent >= 6, "two short messages to three nodes");
        for p in &parts {
            assert!(p.try_recv().is_none());
        }
        assert_eq!(sender.send_all(&[], b"x"), Err(SendError::NoDestination));
    }
}

#[test]
fn a_command_is_received_before_messages_that_wait() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        for i in 0..40u8 {
            a.send(to, &[i; 60]).unwrap();
        }
        a.flush();
        a.sender(to).command(77).send(b"stop").unwrap();
        // Everything is at the receiver before it looks.
        a.node().quiesce(SOON).unwrap();
        let first = b.try_recv().unwrap();
        assert_eq!((first.command(), first.is_command(), &*first), (77, true, &b"stop"[..]));
        for i in 0..40u8 {
            assert_eq!(b.try_recv().unwrap()[0], i);
        }
        let long = vec![0; a.longest() + 1];
        let error = SendError::LongerThanBlock { bytes: long.len(), limit: a.longest() };
        let says = error.to_string();
        assert!(says.contains("`block_bytes`") && !says.contains("assembly_bytes"), "{says}");
        assert_eq!(a.sender(to).command(1).send(&long), Err(error.clone()));
        assert_eq!(a.sender(to).command(1).no_wait().send(&long), Err(error));
    }
}

#[test]
fn a_command_that_may_not_wait_says_when_there_is_no_room_and_none_is_lost() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let mut sent = 0u16;
        let error = loop {
            match a.sender(to).command(sent).no_wait().send(&sent.to_le_bytes()) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            assert!(sent < 10_000, "the row never fills");
        };
        assert_eq!(error, SendError::WouldBlock);
        assert!(sent > 0);
        for expected in 0..sent {
            let got = until(&[&a, &b], || b.try_recv());
            assert!(got.is_command());
            assert_eq!((got.command(), got.value()), (expected, Some(expected)));
        }
        until(&[&a, &b], || a.sender(to).command(sent).no_wait().send(b"").ok());
        assert_eq!(until(&[&a, &b], || b.try_recv()).command(), sent);
    }
}

#[test]
fn a_message_can_be_kept_while_others_are_received() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let mut kept = Vec::new();
        for i in 0..6u8 {
            a.send(to, &[i; 300]).unwrap();
            a.flush();
            kept.push(until(&[&a, &b], || b.try_recv()));
        }
        for (i, message) in kept.iter().enumerate() {
            assert_eq!(**message, [i as u8; 300]);
        }
    }
}

#[test]
fn a_message_above_the_limit_is_refused_by_name() {
    for cluster in clusters(2) {
        let (a, _b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let error = a.send(to, &vec![0; 1_000_001]).unwrap_err();
        assert_eq!(error, SendError::TooLong { bytes: 1_000_001, limit: 1_000_000 });
        assert!(error.to_string().contains("assembly_bytes"), "{error}");
    }
}

#[test]
fn a_batch_is_the_rest_of_a_train_or_a_long_message_or_a_command() {
    // Fits in the row, so it arrives before anybody reads, provided that open blocks were flushed.
    const LONG: usize = 3000;
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        for i in 0..3u64 {
            a.send_value(to, &i).unwrap();
        }
        a.send(to, &contents(1, LONG)).unwrap();
        a.flush();
        a.node().quiesce(SOON).unwrap();
        a.sender(to).command(9).send(b"first").unwrap();
        a.node().quiesce(SOON).unwrap();
        let batch = b.try_recv_batch().unwrap();
        assert_eq!(
            (batch.is_command(), batch.command(), batch.len(), batch.bytes()),
            (true, 9, 1, &b"first"[..])
        );
        let mut values: Vec<u64> = Vec::new();
        while values.len() < 3 {
            let batch = b.try_recv_batch().unwrap();
            assert!(!batch.is_command());
            values.extend(batch.values::<u64>().unwrap());
        }
        assert_eq!(values, [0, 1, 2]);
        let batch = b.try_recv_batch().unwrap();
        assert_eq!((batch.len(), batch.message_len(), batch.is_command()), (1, LONG, false));
        assert_eq!(batch.bytes(), contents(1, LONG));
        assert!(b.try_recv_batch().is_none());
    }
}

/// Two senders that together have more in flight than the receiver reassembles at a time.
#[test]
fn long_messages_share_the_memory_of_a_node_and_none_is_lost() {
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        let cluster = small_builder(3, progress).set("assembly_bytes", "70000").start().unwrap();
        cluster.run(|node| {
            let me = part(&node, "part");
            if node.id().index() > 0 {
                let to = find(&me, "part@node0");
                for k in 0..4 {
                    me.send(to, &contents(k, 40_000)).unwrap();
                }
                assert_eq!(*me.recv().unwrap(), *b"all read");
                return;
            }
            let mut got = std::collections::HashMap::new();
            while got.values().sum::<usize>() < 8 {
                let message = me.recv_timeout(SOON).unwrap();
                let k = got.entry(message.source()).or_insert(0);
                assert_eq!(*message, *contents(*k, 40_000));
                *k += 1;
            }
            assert_eq!(me.unreadable(), 0);
            for node in [1, 2] {
                me.send(find(&me, &format!("part@node{node}")), b"all read").unwrap();
            }
            me.flush();
            node.quiesce(SOON).unwrap();
        });
    }
}

#[test]
fn a_long_message_that_is_not_read_is_room_that_the_next_waits_for() {
    let cluster = small_builder(2, Progress::Thread).set("assembly_bytes", "70000").start().unwrap();
    let (a, b) = pair(&cluster);
    let to = find(&a, "b@node1");
    std::thread::scope(|scope| {
        let node = cluster.node(0).unwrap();
        let sending = scope.spawn(move || {
            let first = part(&node, "first");
            first.send(to, &contents(1, 40_000)).unwrap();
            first.flush();
            assert_eq!(*first.recv().unwrap(), *b"done");
        });
        let kept = b.recv_timeout(SOON).unwrap();
        let error = a.sender(to).timeout(crate::BRIEFLY).send(&contents(2, 40_000)).unwrap_err();
        assert!(
            matches!(error, SendError::Timeout(_)) && error.to_string().contains("assembly_bytes"),
            "{error}"
        );
        let source = kept.source();
        drop(kept);
        b.send(source, b"done").unwrap();
        b.flush();
        sending.join().unwrap();
    });
    // Segments that were given up belong to no message, and their room is free again.
    std::thread::scope(|scope| {
        let node = cluster.node(0).unwrap();
        scope.spawn(move || {
            let third = part(&node, "third");
            third.send(to, &contents(3, 60_000)).unwrap();
            third.flush();
        });
        let message = b.recv_timeout(SOON).unwrap();
        assert_eq!(*message, *contents(3, 60_000));
        assert_eq!(b.unreadable(), 0);
    });
}

#[test]
fn the_last_block_of_a_long_message_goes_back_with_the_others() {
    let cluster = crate::small(2, pdbp::Progress::Inline);
    let (a, b) = pair(&cluster);
    let to = find(&a, "b@node1");
    a.send(to, &contents(0, 2500)).unwrap();
    a.flush();
    let message = until(&[&a, &b], || b.try_recv());
    assert_eq!(*message, *contents(0, 2500));
    // Without a call that asks for another message.
    let used = |part: &pdbp::Part| part.node().stats().send.iter().map(|row| row.space.used()).sum::<u32>();
    until(&[&a, &b], || (used(&a) == 0).then_some(()));
    assert_eq!(message.len(), 2500);
}
