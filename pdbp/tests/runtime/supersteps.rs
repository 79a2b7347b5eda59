//! Parts that all send and receive at the same time.

use pdbp::{Node, Part, Progress, RecvError, SendError, Target};

use crate::{SOON, clusters, find, part};

/// The parts "part" of all nodes.
fn workers(me: &Part, nodes: usize) -> Vec<Target> {
    (0..nodes).map(|i| find(me, &format!("part@node{i}"))).collect()
}

/// One superstep in which a part sends `count` numbers to each; returns those it has received.
fn exchange(me: &Part, to: &[Target], count: u64, step: u64) -> Vec<u64> {
    let (mut sent, mut got) = (0, Vec::new());
    let all = count * to.len() as u64;
    while me.advance(sent == all).unwrap() {
        while sent < all {
            match me.try_send_value(to[(sent % to.len() as u64) as usize], &[step, sent]) {
                Ok(()) => sent += 1,
                Err(SendError::WouldBlock) => break,
                Err(e) => panic!("{e}"),
            }
        }
        while let Some(message) = me.try_recv() {
            let [of, number]: [u64; 2] = message.value().unwrap();
            assert_eq!(of, step, "of another superstep");
            got.push(number);
        }
    }
    got
}

#[test]
fn a_superstep_ends_when_all_that_was_sent_in_it_was_received_and_not_before() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            let me = part(&node, "part");
            let to = workers(&me, 3);
            for step in 0..20 {
                let mut got = exchange(&me, &to, 1 + step * 17 % 300, step);
                got.sort_unstable();
                let mine: Vec<u64> =
                    (0..1 + step * 17 % 300).map(|i| 3 * i + node.id().index() as u64).collect();
                let mut three = mine.repeat(3);
                three.sort_unstable();
                assert_eq!(got, three);
            }
            node.barrier(SOON).unwrap();
        });
    }
}

#[test]
fn answers_arrive_in_the_superstep_after_the_requests() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            let me = part(&node, "part");
            let to = workers(&me, 3);
            let (mut asked, mut answered) = (0, 0);
            for _ in 0..2 {
                while me.advance(asked == 300).unwrap() {
                    while asked < 300 {
                        match me.try_send_value(to[asked % 3], &(asked as u64)) {
                            Ok(()) => asked += 1,
                            Err(SendError::WouldBlock) => break,
                            Err(e) => panic!("{e}"),
                        }
                    }
                    while let Some(message) = me.try_recv() {
                        match message.len() {
                            8 => me
                                .send_value(message.source(), &[message.value::<u64>().unwrap(), 1])
                                .unwrap(),
                            _ => answered += 1,
                        }
                    }
                }
            }
            assert_eq!(answered, 300);
            node.barrier(SOON).unwrap();
        });
    }
}

/// Even if only the primary, node 0, knows whom all wait for, and learns of a waiting node before or after the failure.
#[test]
fn a_superstep_without_a_node_that_has_failed_ends_in_an_error_that_names_it() {
    for is_first in [true, false] {
        let cluster = crate::small_builder(3, Progress::Thread).start().unwrap();
        let [a, b, c]: [Node; 3] = cluster.into_nodes().try_into().ok().unwrap();
        let parts = [part(&a, "part"), part(&b, "part")];
        if is_first {
            assert!(parts.iter().all(|me| me.advance(true).unwrap()));
        }
        drop(c);
        for me in &parts {
            let error = loop {
                match me.advance(true) {
                    Ok(true) => {}
                    other => break other,
                }
            };
            assert_eq!(error, Err(RecvError::PeerFailed(pdbp::NodeId::new(2).unwrap())));
        }
    }
}

#[test]
fn one_part_of_a_node_is_in_a_superstep_at_a_time() {
    let cluster = crate::small_builder(1, Progress::Inline).start().unwrap();
    let node = cluster.node(0).unwrap();
    let (first, second) = (part(&node, "first"), part(&node, "second"));
    assert!(first.advance(true).unwrap());
    assert_eq!(second.advance(true), Err(RecvError::SuperstepTaken));
    while first.advance(true).unwrap() {}
    while second.advance(true).unwrap() {}
    assert!(first.advance(true).unwrap());
    drop(first);
    while second.advance(true).unwrap() {}
}

#[test]
fn parts_that_wait_for_quiet_take_in_what_comes_meanwhile() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            let me = part(&node, "part");
            let to = workers(&me, 3);
            let mut got = 0;
            for i in 0..900_u64 {
                me.send_or(to[(i % 3) as usize], &[0; 100], |message| got += message.len()).unwrap();
            }
            // All have sent, whichever is first to wait for the others.
            me.flush();
            while got < 900 * 100 {
                me.quiesce(SOON, |message| got += message.len()).unwrap();
            }
            assert_eq!(got, 900 * 100);
            node.barrier(SOON).unwrap();
        });
    }
}

/// There is room for only one of these messages at a time: nodes that all waited for room without reading would wait for
/// ever.
#[test]
fn long_messages_in_a_circle_are_read_while_their_senders_wait() {
    const LONG: usize = 60_000;
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        let cluster = crate::small_builder(3, progress).set("assembly_bytes", "100000");
        cluster.start().unwrap().run(|node| {
            let me = part(&node, "part");
            let to = workers(&me, 3);
            let long = vec![7; LONG];
            let (mut got, mut refused) = (0, 0);
            for i in 0..9 {
                let sent = me.send_or(to[i % 3], &long, |message| {
                    got += message.len();
                    drop(message);
                    match me.send_or(to[i % 3], &long, |_| {}) {
                        Err(SendError::NeedsWaiting { bytes: LONG, .. }) => refused += 1,
                        other => panic!("{other:?}"),
                    }
                });
                sent.unwrap();
            }
            me.flush();
            while got < 9 * LONG {
                me.quiesce(SOON, |message| got += message.len()).unwrap();
            }
            assert_eq!(got, 9 * LONG);
            node.barrier(SOON).unwrap();
        });
    }
}
