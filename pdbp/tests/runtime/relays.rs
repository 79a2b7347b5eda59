//! Nine nodes in three rows of three; node 0 is the master. The way from node 4 to node 8 is through node 5.

use std::io::{Read, Write};
use std::time::Instant;

use pdbp::{Cluster, Event, Node, Part, Progress, RecvError, Routing, SendError, StreamReader};

use crate::{BRIEFLY, SOON, find, part};

const WAYS: [Progress; 3] = [Progress::Thread, Progress::Inline, Progress::Host];

fn grid(progress: Progress, settings: &[(&str, &str)]) -> Cluster {
    let builder = Cluster::builder().nodes(9).routing(Routing::Grid).progress(progress).timeout(SOON);
    let small =
        [("masters", "1"), ("block_bytes", "1024"), ("pack_bytes", "512"), ("memory_bytes", "131072")];
    let builder = small.iter().chain(settings).fold(builder, |builder, (key, value)| builder.set(key, value));
    builder.start().unwrap()
}

fn text(from: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251 + from) as u8).collect()
}

#[test]
fn whatever_a_part_sends_arrives_by_relays_as_well() {
    for progress in WAYS {
        let cluster = grid(progress, &[]);
        cluster.run(|node| {
            let here = part(&node, "part");
            let me = node.id().index();
            let all: Vec<_> = (0..9).map(|i| find(&here, &format!("part@node{i}"))).collect();
            node.barrier(SOON).unwrap();
            let longest = here.longest();
            // In each round every node sends to one and gets from one.
            for to in all.iter().cycle().skip(me).take(9) {
                here.sender(*to).send_each(&[1u32, 2, 3]).unwrap();
                let mut loan = here.sender(*to).loan(longest).unwrap();
                loan.copy_from_slice(&text(me, longest));
                loan.send();
                here.send(*to, &text(me, 3000)).unwrap();
                here.sender(*to).command(7).send(&text(me, longest)).unwrap();
                here.flush();
                for _ in 0..6 {
                    take(&here);
                }
                node.barrier(SOON).unwrap();
            }
            here.send_all(&all, b"to all").unwrap();
            here.flush();
            node.barrier(SOON).unwrap();
            node.quiesce(SOON).unwrap();
            for _ in 0..9 {
                assert_eq!(*here.try_recv().expect("it was sent before the quiesce"), *b"to all");
            }
            node.barrier(SOON).unwrap();
            let counters = node.stats().counters;
            assert_eq!((counters.relay_lost, counters.malformed, counters.undelivered), (0, 0, 0));
            assert!(counters.relayed > 0);
            // The node itself, its row, its column and the master; the master has links to all.
            assert_eq!(node.stats().send.len(), [9, 5, 5, 5, 6, 6, 5, 6, 6][me]);
        });
    }
}

/// Takes any message and checks it.
fn take(here: &Part) {
    let message = here.recv().unwrap();
    let from = message.source().node().index();
    match message.len() {
        4 => assert!(message.value::<u32>().is_some_and(|v| (1..=3).contains(&v))),
        length => assert!(*message == *text(from, length), "{length} bytes of node {from}"),
    }
}

#[test]
fn streams_between_all_nodes_arrive_as_written() {
    for progress in WAYS {
        let cluster = grid(progress, &[("row_blocks", "4")]);
        cluster.run(|node| {
            let here = part(&node, "part");
            let me = node.id().index();
            for step in 1..9 {
                let to = find(&here, &format!("part@node{}", (me + step) % 9));
                let from = (me + 9 - step) % 9;
                let mut stream = here.open_stream(to).unwrap();
                stream.write_all(&text(me, 100)).unwrap();
                stream.flush().unwrap();
                let mut incoming = here.accept_stream(SOON).unwrap();
                assert_eq!(incoming.source().node().index(), from);
                let (mut got, rest) = (Vec::new(), text(me, 20_000));
                // A part that only writes could wait for another part that only writes.
                for piece in rest[100..].chunks(995) {
                    stream.write_all(piece).unwrap();
                    stream.flush().unwrap();
                    let mut bytes = vec![0; piece.len()];
                    incoming.read_exact(&mut bytes).unwrap();
                    got.extend(bytes);
                }
                stream.finish().unwrap();
                incoming.read_to_end(&mut got).unwrap();
                assert!(got == text(from, 20_000), "from node {from}");
                // Segments of a stream that is not read yet would hold the credit that the relay needs for this one.
                node.barrier(SOON).unwrap();
            }
            node.quiesce(SOON).unwrap();
            node.barrier(SOON).unwrap();
            assert_eq!((node.stats().pipes[2].busy, node.stats().counters.relay_lost), (0, 0));
        });
    }
}

/// Polls all nodes until `done` returns a value.
fn polling<R>(nodes: &[Node], mut done: impl FnMut() -> Option<R>) -> R {
    let started = Instant::now();
    loop {
        for node in nodes {
            node.poll();
        }
        if let Some(result) = done() {
            return result;
        }
        assert!(started.elapsed() < SOON, "waited too long");
        std::thread::yield_now();
    }
}

/// Reads a stream to its end.
fn rest(nodes: &[Node], incoming: &mut StreamReader<&Part>) -> Vec<u8> {
    let mut bytes = Vec::new();
    polling(nodes, || match incoming.next_segment(BRIEFLY) {
        Ok(Some(segment)) => {
            bytes.extend_from_slice(&segment);
            None
        }
        Ok(None) => Some(()),
        Err(RecvError::Timeout(_)) => None,
        Err(e) => panic!("{e}"),
    });
    bytes
}

#[test]
fn when_a_relay_is_gone_writer_reader_and_sender_are_told_and_the_others_go_on() {
    for progress in WAYS {
        let cluster = grid(progress, &[]);
        let [writer, reader, third] = [4, 8, 6].map(|i| part(&cluster.node(i).unwrap(), "part"));
        let [to_reader, to_third] = [8, 6].map(|i| find(&writer, &format!("part@node{i}")));
        let mut nodes = cluster.into_nodes();
        let mut stream = writer.open_stream(to_reader).unwrap();
        stream.write_all(b"begun").unwrap();
        stream.flush().unwrap();
        let mut incoming = polling(&nodes, || reader.try_accept_stream().unwrap());
        assert_eq!(*incoming.next_segment(SOON).unwrap().unwrap(), *b"begun");
        drop(nodes.remove(5));
        let error = polling(&nodes, || match incoming.next_segment(BRIEFLY) {
            Err(RecvError::Timeout(_)) => None,
            other => Some(other.map(|_| ())),
        });
        assert!(matches!(error, Err(RecvError::StreamBroken { .. })), "{error:?}");
        let told = |error: &SendError| {
            let named = ["node5", "node8"].iter().all(|node| error.to_string().contains(node));
            assert!(named && matches!(error, SendError::RelayFailed { .. }), "{error}");
        };
        told(
            &polling(&nodes, || stream.write_all(b"x").and_then(|()| stream.flush()).err())
                .downcast()
                .unwrap(),
        );
        told(&polling(&nodes, || writer.send(to_reader, b"x").err()));
        // Through node 3.
        writer.send(to_third, b"we go on").unwrap();
        writer.flush();
        assert_eq!(*polling(&nodes, || third.try_recv()), *b"we go on");
    }
}

#[test]
fn a_stream_for_which_its_relay_has_no_room_is_an_error_that_names_relay_and_destination() {
    for progress in WAYS {
        let cluster = grid(progress, &[("stream_pipes", "1")]);
        let nodes = cluster.nodes();
        let [first, second, reader] = [3, 4, 8].map(|i| part(&nodes[i], "part"));
        let to = [&first, &second].map(|part| find(part, "part@node8"));
        let mut open = first.open_stream(to[0]).unwrap();
        open.write_all(b"one").unwrap();
        open.flush().unwrap();
        let mut incoming = polling(nodes, || reader.try_accept_stream().unwrap());
        // Short enough to be over before the relay has reported anything.
        let mut stream = second.open_stream(to[1]).unwrap();
        stream.write_all(b"two").unwrap();
        let error = stream.finish().unwrap_err();
        assert!(matches!(error, SendError::StreamStopped { .. }), "{error}");
        for word in ["node5", "node8", "stream_pipes"] {
            assert!(error.to_string().contains(word), "{error}");
        }
        let stopped = |e: &Event| matches!(e, Event::StreamStopped { relay, .. } if relay.index() == 5);
        assert!(nodes[4].take_events().iter().any(stopped));
        open.finish().unwrap();
        assert_eq!(rest(nodes, &mut incoming), b"one");
        let mut stream = second.open_stream(to[1]).unwrap();
        stream.write_all(b"three").unwrap();
        stream.finish().unwrap();
        let mut incoming = polling(nodes, || reader.try_accept_stream().unwrap());
        assert_eq!(rest(nodes, &mut incoming), b"three");
    }
}

#[cfg(feature = "metrics")]
#[test]
fn rows_and_figures_are_those_of_links() {
    let cluster = grid(Progress::Thread, &[("monitor", "on")]);
    let [from, to] = [4, 8].map(|i| part(&cluster.node(i).unwrap(), "part"));
    let target = find(&from, "part@node8");
    from.send(target, b"by node 5").unwrap();
    from.flush();
    assert_eq!(*to.recv().unwrap(), *b"by node 5");
    let figures = from.node().observe(SOON);
    assert!(figures.nodes.iter().all(|node| node.figures.is_some()), "{figures:?}");
    let sent = |node: usize| {
        let rows = &figures.nodes[node].figures.as_ref().unwrap().send;
        rows.iter().filter(|row| row.messages > 0).map(|row| row.peer).collect::<Vec<_>>()
    };
    assert_eq!(sent(4), [5]);
    assert!(sent(5).contains(&8));
}
