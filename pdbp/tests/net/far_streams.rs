//! Streams between parts of clusters joined by a trunk.

use std::io::{Read, Write};
use std::time::Duration;

use pdbp::{Cluster, Node, Part, PartKind, RecvError, SendError};

use super::grid::{builder, run, two};
use super::proxy::Proxy;
use super::{Patience, SOON};

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i / 251 + i * 7 + seed * 13) as u8).collect()
}

fn read_all(part: &Part) -> Vec<u8> {
    let mut bytes = Vec::new();
    part.accept_stream(SOON).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// Several streams at a time, both ways, across different block sizes, with messages alongside.
#[test]
fn streams_cross_in_order_and_to_their_ends() {
    const LENGTHS: [usize; 5] = [3_000_000, 0, 1, 200_000, 1_000_000];
    let west = builder("west").listen("127.0.0.1:0".to_owned()).block_bytes(4096).start().unwrap();
    let east = builder("east").trunk("west", west.address().unwrap()).start().unwrap();
    let talk = |node: Node, own: &str, other: &str| {
        let part = node.register(own, PartKind::Cpu).unwrap();
        let to = part.find(other, SOON).unwrap();
        // A part that has ended belongs to no cluster: it stays until the other has read everything.
        let _writer = std::thread::scope(|scope| {
            let writer = node.register_shared(&format!("{own}-writer"), PartKind::Cpu).unwrap();
            let to = writer.find(other, SOON).unwrap();
            let writer = scope.spawn(move || {
                let mut streams: Vec<_> = LENGTHS.map(|_| writer.open_stream(to).unwrap()).into();
                let data: Vec<_> = LENGTHS.iter().enumerate().map(|(i, n)| pattern(i, *n)).collect();
                for at in (0..LENGTHS[0]).step_by(10_000) {
                    for (stream, data) in streams.iter_mut().zip(&data) {
                        stream.write_all(data.get(at..data.len().min(at + 10_000)).unwrap_or(&[])).unwrap();
                    }
                }
                streams.into_iter().for_each(|stream| stream.finish().unwrap());
                writer
            });
            let (mut readers, mut came) = (Vec::new(), Vec::new());
            let patience = Patience::new();
            while came.len() < LENGTHS.len() {
                patience.check();
                if let Some(accepted) = part.try_accept_stream().unwrap() {
                    assert!(node.cluster_of(accepted.source()).is_some());
                    readers.push((accepted, Vec::new()));
                }
                readers.retain_mut(|(reader, bytes)| match reader.next_segment(Duration::from_millis(1)) {
                    Ok(Some(segment)) => {
                        bytes.extend_from_slice(&segment);
                        true
                    }
                    Ok(None) => {
                        came.push(std::mem::take(bytes));
                        false
                    }
                    Err(RecvError::Timeout(_)) => true,
                    Err(error) => panic!("{error}"),
                });
            }
            came.sort_by_key(Vec::len);
            let mut sent: Vec<_> = LENGTHS.iter().enumerate().map(|(i, n)| pattern(i, *n)).collect();
            sent.sort_by_key(Vec::len);
            assert!(came == sent, "{:?}", came.iter().map(Vec::len).collect::<Vec<_>>());
            writer.join().unwrap()
        });
        part.send(to, b"a message").unwrap();
        part.flush();
        assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"a message");
    };
    run(&(west, east), |node| talk(node, "a", "b@node1.east"), |node| talk(node, "b", "a@node1.west"));
}

/// What has been written can be read before more is.
#[test]
fn a_segment_that_is_flushed_crosses_at_once() {
    let clusters = two(|builder| builder);
    let in_west = |node: Node| {
        let part = node.register("reader", PartKind::Cpu).unwrap();
        let mut stream = part.accept_stream(SOON).unwrap();
        let asks = stream.source();
        for number in 0..50u32 {
            assert_eq!(*stream.next_segment(SOON).unwrap().unwrap(), number.to_le_bytes());
            part.send(asks, &[]).unwrap();
            part.flush();
        }
        // The end, as inside a cluster.
        assert!(stream.next_segment(SOON).unwrap().unwrap().is_empty());
        assert!(stream.next_segment(SOON).unwrap().is_none());
    };
    let in_east = |node: Node| {
        let part = node.register("writer", PartKind::Cpu).unwrap();
        let to = part.find("reader@node1.west", SOON).unwrap();
        let mut stream = part.open_stream(to).unwrap();
        for number in 0..50u32 {
            stream.write_all(&number.to_le_bytes()).unwrap();
            stream.flush().unwrap();
            assert!(part.recv_timeout(SOON).unwrap().is_empty());
        }
        stream.finish().unwrap();
    };
    run(&clusters, in_west, in_east);
}

#[test]
fn a_stream_given_up_by_either_end_is_over_at_both_and_others_go_on() {
    let clusters = two(|builder| builder);
    let in_west = |node: Node| {
        let part = node.register("reader", PartKind::Cpu).unwrap();
        let mut given_up = part.accept_stream(SOON).unwrap();
        let mut bytes = Vec::new();
        let error = loop {
            match given_up.next_segment(SOON) {
                Ok(segment) => bytes.extend_from_slice(&segment.expect("it was not finished")),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, RecvError::StreamBroken { .. }), "{error}");
        assert!(pattern(1, 300_000).starts_with(&bytes), "{} bytes", bytes.len());
        let asks = given_up.source();
        let mut unwanted = part.accept_stream(SOON).unwrap();
        assert!(unwanted.next_segment(SOON).unwrap().is_some());
        drop(unwanted);
        assert!(read_all(&part) == pattern(3, 500_000));
        part.send(asks, b"all").unwrap();
        part.flush();
        // The next reader is a part that goes.
        let goes = node.register("goes", PartKind::Cpu).unwrap();
        let mut stream = goes.accept_stream(SOON).unwrap();
        assert!(stream.next_segment(SOON).unwrap().is_some());
    };
    let in_east = |node: Node| {
        let part = node.register("writer", PartKind::Cpu).unwrap();
        let to = part.find("reader@node1.west", SOON).unwrap();
        let mut stream = part.open_stream(to).unwrap();
        stream.write_all(&pattern(1, 300_000)).unwrap();
        drop(stream);
        for seed in [2, 3] {
            let mut stream = part.open_stream(to).unwrap();
            stream.write_all(&pattern(seed, 500_000)).unwrap();
            stream.finish().unwrap();
        }
        assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"all");
        let goes = part.find("goes@node1.west", SOON).unwrap();
        let mut stream = part.open_stream(goes).unwrap();
        let error = loop {
            let written = stream.write_some(&[7; 1000]).and_then(|_| stream.flush_segment());
            if let Err(error) = written {
                break error;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(error, SendError::NoSuchPart(goes));
    };
    run(&clusters, in_west, in_east);
}

#[test]
fn a_cluster_that_goes_is_named_at_the_writer_and_breaks_the_reader() {
    let (west, east) = two(|builder| builder);
    let [west_node, node] = [&west, &east].map(|cluster| cluster.node(1).unwrap());
    let there = west_node.register("part", PartKind::Cpu).unwrap();
    let part = node.register("part", PartKind::Cpu).unwrap();
    let to = part.find("part@node1.west", SOON).unwrap();
    let mut stream = part.open_stream(to).unwrap();
    stream.write_all(b"the beginning").unwrap();
    stream.flush_segment().unwrap();
    let read = there.accept_stream(SOON).unwrap();
    let mut back = there.open_stream(read.source()).unwrap();
    back.write_all(b"of both").unwrap();
    back.flush_segment().unwrap();
    let mut reader = part.accept_stream(SOON).unwrap();
    assert_eq!(*reader.next_segment(SOON).unwrap().unwrap(), *b"of both");
    // Its gateway goes with it.
    drop(west);
    let error = loop {
        if let Err(error) = stream.write_some(&[7; 1000]).and_then(|_| stream.flush_segment()) {
            break error;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(error, SendError::ClusterGone { cluster: "west".to_owned() });
    assert!(error.to_string().contains("west"), "{error}");
    let broken = reader.next_segment(SOON).err().unwrap();
    assert!(matches!(broken, RecvError::StreamBroken { .. }), "{broken}");
}

#[test]
fn cuts_of_a_trunk_lose_and_double_nothing_of_streams() {
    const LENGTH: usize = 40_000_000;
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let line = Proxy::to(west.address().unwrap().to_string());
    let east = builder("east").trunk("west", line.address()).start().unwrap();
    let write = |node: &Node, name: &str, to: &str, cut: Option<&Proxy>| {
        let part = node.register(name, PartKind::Cpu).unwrap();
        let mut stream = part.open_stream(part.find(to, SOON).unwrap()).unwrap();
        for (i, bytes) in pattern(0, LENGTH).chunks(100_000).enumerate() {
            stream.write_all(bytes).unwrap();
            if let Some(line) = cut.filter(|_| i % 40 == 39) {
                line.cut();
            }
        }
        stream.finish().unwrap();
        // Until the other has read it.
        part.recv_timeout(SOON).unwrap();
    };
    let read = |node: &Node, name: &str, other: &str| {
        let part = node.register(name, PartKind::Cpu).unwrap();
        assert!(read_all(&part) == pattern(0, LENGTH));
        part.send(part.find(other, SOON).unwrap(), b"read").unwrap();
        part.flush();
    };
    let both = |cluster: &Cluster, other: &str, cut: Option<&Proxy>| {
        let (zero, one) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| read(&zero, "reader", &format!("writer@node1.{other}")));
            write(&one, "writer", &format!("reader@node0.{other}"), cut);
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| both(&west, "east", None));
        both(&east, "west", Some(&line));
    });
    assert!(line.lines() > 2, "{} connections", line.lines());
}
