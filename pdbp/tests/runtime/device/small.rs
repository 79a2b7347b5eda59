//! Many small messages from and to device memory.

use std::collections::HashMap;
use std::ops::Range;

use pdbp::cuda::device::{Cuda, Device};
use pdbp::{DeviceMessage, PartKind};

use super::*;
use crate::until;

/// More messages than blocks of the small clusters can be in flight at a time.
const MESSAGES: usize = 400;

/// Lengths in runs of four, including zero and the longest that fits a block.
fn length(i: usize) -> usize {
    match i / 4 % 10 {
        7 => 1008,
        8 => i * 31 % 1009,
        run => run * 9,
    }
}

/// Where messages lie in the memory of a device, some of them side by side.
fn pieces(messages: usize) -> Vec<Range<usize>> {
    let mut at = 0;
    let mut next = |i: usize| {
        at += length(i) + if i.is_multiple_of(3) { i % 50 } else { 0 };
        at - length(i)..at
    };
    (0..messages).map(&mut next).collect()
}

fn message(i: usize) -> Vec<u8> {
    let pieces = pieces(i + 1);
    pattern(pieces[i].end)[pieces[i].clone()].to_vec()
}

/// Begins to send the first messages.
pub(super) fn begin_each<'p>(
    part: &'p Part,
    (device, copier): &(Simulated, Rc<Copier<Simulated>>),
    messages: usize,
    to: Target,
) -> pdbp::DeviceSendEach<&'p Part, Simulated> {
    let pieces = pieces(messages);
    let bytes = pieces.last().map_or(1, |last| last.end.max(1));
    let buffer = Buffer::new(device, bytes).unwrap();
    device.write(buffer.memory(), 0, &pattern(bytes));
    part.send_device_each(copier, buffer.into_slice(), pieces, None, to).unwrap()
}

/// Receives that many messages, into slots of that many bytes.
pub(super) fn receive_each(
    part: &Part,
    (device, copier): &(Simulated, Rc<Copier<Simulated>>),
    slot: usize,
    count: usize,
) -> Vec<(DeviceMessage, Vec<u8>)> {
    let buffer = Buffer::new(device, (slot * count).max(1)).unwrap();
    let mut receiving = part.recv_each_into_device(copier, buffer, slot, count, None).ok().unwrap();
    receiving.wait(SOON).unwrap();
    let messages = receiving.messages().to_vec();
    assert_eq!(messages.len(), count);
    let buffer = receiving.take_buffer().unwrap();
    let bytes = device.read(buffer.memory());
    let of = |(i, message): (usize, DeviceMessage)| {
        assert_eq!(message.slot(), i);
        (message, bytes[i * slot..][..message.bytes()].to_vec())
    };
    messages.into_iter().enumerate().map(of).collect()
}

#[test]
fn small_messages_go_from_device_memory_to_the_host() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            if node.id().index() == 0 {
                let mut sending = begin_each(&me, &gpu, MESSAGES, find(&me, "part@node1"));
                sending.wait(SOON).unwrap();
                assert_eq!(sending.sent(), MESSAGES);
                assert_eq!(sending.poll(), Ok(Step::Done));
                assert!(sending.into_slice().into_buffer().is_ok(), "nothing reads it any more");
            } else {
                for i in 0..MESSAGES {
                    assert_eq!(*me.recv().unwrap(), *message(i), "message {i}");
                }
            }
            check_quiet(&node, &gpu);
        });
    }
}

#[test]
fn small_messages_go_from_the_host_to_device_memory() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            if node.id().index() == 0 {
                let to = find(&me, "part@node1");
                for i in 0..MESSAGES {
                    me.send(to, &message(i)).unwrap();
                }
                me.flush();
            } else {
                let source = find(&me, "part@node0");
                // A few at a time, so that reading stops in the middle of blocks.
                let counts = [0, 1, 3, 96, 100, 200];
                let received = counts.into_iter().flat_map(|count| receive_each(&me, &gpu, 1008, count));
                for (i, (found, bytes)) in received.enumerate() {
                    assert_eq!(bytes, message(i), "message {i}");
                    assert_eq!((found.command(), found.is_command()), (0, false));
                    assert_eq!(found.source(), source);
                }
            }
            check_quiet(&node, &gpu);
        });
    }
}

/// Returns whether the operation is complete, after everything that can be done now. (Simulated copies complete only when
/// something waits for them.)
pub(super) fn is_done<E: std::fmt::Display>(step: Result<(), FlowError<E>>, late: fn(&E) -> bool) -> bool {
    match step {
        Ok(()) => true,
        Err(FlowError::Link(e)) if late(&e) => false,
        Err(e) => panic!("{e}"),
    }
}

pub(super) fn is_sent(sending: &mut pdbp::DeviceSendEach<&Part, Simulated>) -> bool {
    is_done(sending.wait(Duration::ZERO), |e| matches!(e, SendError::Timeout(_)))
}

pub(super) fn is_received(receiving: &mut pdbp::DeviceRecvEach<&Part, Simulated>) -> bool {
    is_done(receiving.wait(Duration::ZERO), |e| matches!(e, RecvError::Timeout(_)))
}

/// From two nodes and from the receiver's own.
#[test]
fn small_messages_go_from_device_memory_to_device_memory_in_order_by_sender() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            let mut sending = begin_each(&me, &gpu, MESSAGES, find(&me, "part@node2"));
            if node.id().index() == 2 {
                let buffer = Buffer::new(&gpu.0, 3 * MESSAGES * 1008).unwrap();
                let receiving = me.recv_each_into_device(&gpu.1, buffer, 1008, 3 * MESSAGES, None);
                let mut receiving = receiving.ok().unwrap();
                let mut done = [false; 2];
                while done != [true; 2] {
                    done = [is_sent(&mut sending), is_received(&mut receiving)];
                }
                let messages = receiving.messages().to_vec();
                let bytes = gpu.0.read(receiving.take_buffer().unwrap().memory());
                let mut next = HashMap::new();
                for found in messages {
                    let i = next.entry(found.source()).or_insert(0);
                    let bytes = &bytes[found.slot() * 1008..][..found.bytes()];
                    assert_eq!(bytes, message(*i), "message {i} of {:?}", found.source());
                    *i += 1;
                }
                assert!(next.len() == 3 && next.values().all(|sent| *sent == MESSAGES));
            } else {
                sending.wait(SOON).unwrap();
            }
            check_quiet(&node, &gpu);
        });
    }
}

/// Two parts on each of three nodes, the sender's own among them.
#[test]
fn each_small_message_can_go_to_a_part_of_its_own() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            let other = part(&node, "other");
            if node.id().index() == 0 {
                let parts =
                    ["part@node0", "other@node2", "part@node1", "other@node0", "part@node2", "other@node1"];
                let parts = parts.map(|name| find(&me, name));
                let pieces = pieces(MESSAGES).into_iter().enumerate();
                let pieces = pieces.map(|(i, piece)| (piece, parts[i * i % 7 % 6]));
                let all = pattern(MESSAGES * 1008);
                let buffer = Buffer::new(&gpu.0, all.len()).unwrap();
                gpu.0.write(buffer.memory(), 0, &all);
                let mut sending = me.send_device_to_each(&gpu.1, buffer.into_slice(), pieces, None).unwrap();
                let mut next = [0; 2];
                while !is_sent(&mut sending) || next != [count_for(0), count_for(3)] {
                    for (part, (next, index)) in [&me, &other].into_iter().zip(next.iter_mut().zip([0, 3])) {
                        while let Some(found) = part.try_recv() {
                            assert_eq!(*found, *for_part(index).nth(*next).unwrap());
                            *next += 1;
                        }
                    }
                }
                assert_eq!(sending.sent(), MESSAGES);
            } else {
                let [index, other_index] = if node.id().index() == 1 { [2, 5] } else { [4, 1] };
                // Alternately, since the pipe of one may fill up.
                let mut left =
                    [(&me, for_part(index).peekable()), (&other, for_part(other_index).peekable())];
                while left.iter_mut().any(|(_, expected)| expected.peek().is_some()) {
                    for (part, expected) in &mut left {
                        while let Some(found) = part.try_recv() {
                            assert_eq!(*found, *expected.next().unwrap());
                        }
                    }
                }
            }
            check_quiet(&node, &gpu);
        });
    }
}

/// The messages for the part with that number.
fn for_part(part: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..MESSAGES).filter(move |i| i * i % 7 % 6 == part).map(message)
}

fn count_for(part: usize) -> usize {
    for_part(part).count()
}

#[test]
fn what_was_sent_before_arrives_before_and_what_is_sent_after_behind() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            if node.id().index() == 0 {
                let to = find(&me, "part@node1");
                me.send(to, b"before").unwrap();
                let mut sending = begin_each(&me, &gpu, 30, to);
                sending.wait(SOON).unwrap();
                me.send(to, b"behind").unwrap();
                me.flush();
            } else {
                assert_eq!(receive_each(&me, &gpu, 10, 1)[0].1, b"before");
                for i in 0..30 {
                    assert_eq!(*me.recv().unwrap(), *message(i));
                }
                assert_eq!(receive_each(&me, &gpu, 10, 1)[0].1, b"behind");
            }
            check_quiet(&node, &gpu);
        });
    }
}

#[test]
fn commands_come_first_to_devices_too() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let (gpu, to) = (device(), find(&a, "b@node1"));
        a.send(to, b"second").unwrap();
        a.flush();
        a.sender(to).command(7).send(b"first").unwrap();
        // Both have arrived before the receiver looks.
        a.node().quiesce(SOON).unwrap();
        let found = receive_each(&b, &gpu, 10, 2);
        assert_eq!((found[0].1.as_slice(), found[0].0.command()), (&b"first"[..], 7));
        assert!(found[0].0.is_command() && !found[1].0.is_command());
        assert_eq!(found[1].1, b"second");
    }
}

/// Some messages of a block are read in place while others are copied.
#[test]
fn a_message_can_be_kept_while_its_neighbours_go_to_a_device() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let (gpu, to) = (device(), find(&a, "b@node1"));
        for i in 0..6u8 {
            a.send(to, &[i; 5]).unwrap();
        }
        a.flush();
        let kept = b.recv().unwrap();
        let found = receive_each(&b, &gpu, 8, 2);
        assert_eq!([&found[0].1, &found[1].1], [&[1; 5], &[2; 5]]);
        // A block that leaves because its time is over, between two messages, does not have them all.
        let mut rest = Vec::new();
        while rest.len() < 15 {
            rest.extend_from_slice(b.recv_batch(SOON).unwrap().bytes());
        }
        assert_eq!(rest, [[3; 5], [4; 5], [5; 5]].concat());
        assert_eq!(*kept, [0; 5]);
    }
}

/// Nine nodes in three rows of three: the way from node 4 to node 8 is through node 5.
#[test]
fn small_messages_of_devices_go_by_relays_as_well() {
    let builder = pdbp::Cluster::builder().nodes(9).routing(pdbp::Routing::Grid);
    let builder = builder.block_bytes(1040).memory_bytes(128 << 10).set("masters", "1");
    builder.timeout(SOON).start().unwrap().run(|node| {
        let (me, gpu) = (part(&node, "part"), device());
        match node.id().index() {
            4 => begin_each(&me, &gpu, MESSAGES, find(&me, "part@node8")).wait(SOON).unwrap(),
            8 => {
                for (i, (_, bytes)) in receive_each(&me, &gpu, 1008, MESSAGES).into_iter().enumerate() {
                    assert_eq!(bytes, message(i));
                }
            }
            _ => {}
        }
        node.barrier(SOON).unwrap();
        assert_eq!(gpu.0.misuse(), Vec::<String>::new());
    });
}

#[test]
fn a_row_of_one_block_is_enough_for_small_messages() {
    let builder = pdbp::Cluster::builder().nodes(2).block_bytes(1024).memory_bytes(64 << 10);
    let cluster = builder.set("row_blocks", "1").timeout(SOON).start().unwrap();
    cluster.run(|node| {
        let (me, gpu) = (part(&node, "part"), device());
        if node.id().index() == 0 {
            begin_each(&me, &gpu, MESSAGES, find(&me, "part@node1")).wait(SOON).unwrap();
        } else {
            assert_eq!(receive_each(&me, &gpu, 1008, MESSAGES).last().unwrap().1, message(MESSAGES - 1));
        }
        check_quiet(&node, &gpu);
    });
}

/// Rows at equal distances, forwards and backwards, all at one place and overlapping, to one node and to two in turn.
#[test]
fn rows_go_as_messages_that_lie_anywhere_do() {
    let rows = (0..300).map(|i| i * 40..i * 40 + 24);
    let rows: Vec<Range<usize>> =
        rows.clone().chain(rows.rev()).chain(vec![7..31; 100]).chain((0..99).map(|i| i..i + 24)).collect();
    let data = pattern(300 * 40);
    let is_for = |node, i| i < rows.len() && node == 1 || i >= rows.len() && node == 1 + i / 5 % 2;
    let all = || rows.iter().chain(&rows).cloned().enumerate();
    for cluster in clusters(3) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            match node.id().index() {
                0 => {
                    let targets = ["part@node1", "part@node2"].map(|name| find(&me, name));
                    let buffer = Buffer::new(&gpu.0, data.len()).unwrap();
                    gpu.0.write(buffer.memory(), 0, &data);
                    let pieces = all().map(|(i, row)| (row, targets[usize::from(is_for(2, i))]));
                    let sending = me.send_device_to_each(&gpu.1, buffer.into_slice(), pieces, None);
                    let mut sending = sending.unwrap();
                    sending.wait(SOON).unwrap();
                    assert_eq!(sending.sent(), 2 * rows.len());
                }
                own => {
                    let mine = all().filter(|(i, _)| is_for(own, *i)).map(|(_, row)| &data[row]);
                    let received = receive_each(&me, &gpu, 32, mine.clone().count());
                    assert!(received.iter().map(|(_, bytes)| &bytes[..]).eq(mine));
                }
            }
            node.barrier(SOON).unwrap();
            check_quiet(&node, &gpu);
        });
    }
}

/// To a device and from there back, on any device.
fn there_and_back<D: Device>(device: &D) {
    let copier = Rc::new(Copier::new(device, NonZeroUsize::new(3).unwrap()));
    for cluster in clusters(2) {
        let node = cluster.node(1).unwrap();
        let (a, b) = (part(&cluster.node(0).unwrap(), "a"), node.register("b", PartKind::Gpu).unwrap());
        let (to, back) = (find(&a, "b@node1"), find(&b, "a@node0"));
        let buffer = Buffer::new(device, MESSAGES * 1008).unwrap();
        let mut receiving = b.recv_each_into_device(&copier, buffer, 1008, MESSAGES, None).ok().unwrap();
        for i in 0..MESSAGES {
            while a.try_send(to, &message(i)).is_err() {
                a.flush();
                let _ = receiving.wait(Duration::ZERO);
            }
        }
        a.flush();
        receiving.wait(SOON).unwrap();
        let pieces = receiving.messages().iter().map(|m| m.slot() * 1008..m.slot() * 1008 + m.bytes());
        let pieces: Vec<_> = pieces.collect();
        let slice = receiving.take_buffer().unwrap().into_slice();
        let mut sending = b.send_device_each(&copier, slice, pieces, None, back).unwrap();
        for i in 0..MESSAGES {
            let found = until(&[&a, &b], || {
                let _ = sending.wait(Duration::ZERO);
                a.try_recv()
            });
            assert_eq!(*found, *message(i));
        }
        assert!(sending.wait(SOON).is_ok() && sending.into_slice().into_buffer().is_ok());
    }
}

#[test]
fn small_messages_go_to_a_simulated_device_and_back() {
    let (simulated, _) = device();
    there_and_back(&simulated);
    assert_eq!(simulated.misuse(), Vec::<String>::new());
}

#[test]
fn small_messages_go_to_a_real_device_and_back() {
    match Cuda::open(0) {
        Ok(device) => there_and_back(&device),
        Err(e) if e.is_absence() && std::env::var_os("PDBP_REQUIRE_GPU").is_none() => {
            eprintln!("small_messages_go_to_a_real_device_and_back: skipped: {e}");
        }
        Err(e) => panic!("{e}"),
    }
}
