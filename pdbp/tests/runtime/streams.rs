use std::collections::HashMap;
use std::io::{Read, Write};
use std::time::Duration;

use pdbp::{Interest, Part, Piece, PipeError, Progress, RecvError, SendError, StreamWriter, Streams};

use crate::{BRIEFLY, SOON, clusters, find, pair, part, small, until};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn a_stream_arrives_as_written_and_leaves_no_mapping() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let me = part(&node, "part");
            if node.id().index() == 0 {
                let to = find(&me, "part@node1");
                for length in [0, 1, 1000, 1008, 1009, 100_000] {
                    let mut stream = me.open_stream(to).unwrap();
                    for piece in pattern(length).chunks(313) {
                        stream.write_all(piece).unwrap();
                    }
                    stream.finish().unwrap();
                }
                assert_eq!(*me.recv().unwrap(), *b"all read");
                assert_eq!(node.stats().pipes[2].busy, 0, "stream pipes are free again");
            } else {
                for length in [0, 1, 1000, 1008, 1009, 100_000] {
                    let mut stream = me.accept_stream(SOON).unwrap();
                    assert_eq!(stream.source(), find(&me, "part@node0"));
                    let mut bytes = Vec::new();
                    stream.read_to_end(&mut bytes).unwrap();
                    assert!(bytes == pattern(length), "length {length}");
                }
                me.send(find(&me, "part@node0"), b"all read").unwrap();
                me.flush();
                node.quiesce(SOON).unwrap();
            }
        });
    }
}

#[test]
fn many_streams_at_once_keep_apart_and_segments_are_read_in_place() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            let me = part(&node, "part");
            if node.id().index() > 0 {
                let to = find(&me, "part@node0");
                let mut streams: Vec<_> = (0..5).map(|_| me.open_stream(to).unwrap()).collect();
                for round in 0..20u8 {
                    for (i, stream) in streams.iter_mut().enumerate() {
                        let room = stream.loan(10).unwrap();
                        room.fill(round * 5 + i as u8);
                        let filled = room.len();
                        stream.advance(filled);
                        stream.flush_segment().unwrap();
                    }
                }
                for stream in streams {
                    stream.finish().unwrap();
                }
                assert_eq!(*me.recv().unwrap(), *b"done");
            } else {
                let mut readers: Vec<_> = (0..10).map(|_| me.accept_stream(SOON).unwrap()).collect();
                // In the order in which they are written: a stream that is not read holds its blocks, and with them the credit of its node.
                let mut firsts = vec![None; readers.len()];
                for round in 0..20u8 {
                    for (reader, first) in readers.iter_mut().zip(&mut firsts) {
                        let segment = reader.next_segment(SOON).unwrap().unwrap();
                        let i = *first.get_or_insert(segment[0]);
                        assert_eq!(*segment, [round * 5 + i; 10]);
                    }
                }
                let mut seen = Vec::new();
                for (mut reader, first) in readers.into_iter().zip(firsts) {
                    // The last segment of a finished stream may be empty.
                    while let Some(segment) = reader.next_segment(SOON).unwrap() {
                        assert!(segment.is_empty());
                    }
                    seen.push((reader.source(), first));
                }
                seen.sort_by_key(|(source, first)| (*source, *first));
                seen.dedup();
                assert_eq!(seen.len(), 10, "five streams from each of two parts");
                for peer in ["part@node1", "part@node2"] {
                    me.send(find(&me, peer), b"done").unwrap();
                }
                me.flush();
                node.quiesce(SOON).unwrap();
            }
        });
    }
}

#[test]
fn a_stream_given_up_by_its_writer_ends_with_an_error() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let mut stream = a.open_stream(to).unwrap();
        stream.write_all(b"half of it").unwrap();
        stream.flush().unwrap();
        let number = stream.number();
        drop(stream);
        let mut reader = b.accept_stream(SOON).unwrap();
        assert_eq!(*reader.next_segment(SOON).unwrap().unwrap(), *b"half of it");
        let error = reader.next_segment(SOON).map(|_| ()).unwrap_err();
        assert_eq!(error, RecvError::StreamBroken { source: a.id(), number });
        assert!(error.to_string().contains(&format!("from {}", a.id())), "{error}");
        let again = reader.next_segment(SOON).map(|_| ()).unwrap_err();
        assert_eq!(again, error, "whoever asks again must not take it for whole");
        let mut stream = a.open_stream(to).unwrap();
        stream.write_all(b"half").unwrap();
        stream.flush().unwrap();
        drop(stream);
        // Both nodes are polled by this thread, and a read polls only one of them.
        a.node().quiesce(SOON).unwrap();
        let mut reader = b.accept_stream(SOON).unwrap();
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}

/// This includes the other parts of the reader's node, which unread segments would stop.
#[test]
fn a_reader_that_goes_stops_nobody_though_its_part_receives_nothing() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let c = part(&cluster.node(1).unwrap(), "c");
        let [to_b, to_c] = ["b@node1", "c@node1"].map(|address| find(&a, address));
        let mut stream = a.open_stream(to_b).unwrap();
        let mut write = || {
            let room = || until(&[&a, &b], || a.wait(Interest::Send(to_b), BRIEFLY).ok());
            room();
            stream.write_all(&pattern(1000)).unwrap();
            stream.flush_segment().unwrap();
        };
        write();
        let reader = until(&[&a, &b], || b.try_accept_stream().unwrap());
        // As many as a link holds arrive before it goes, and more than that after.
        (0..3).for_each(|_| write());
        drop(reader);
        (0..100).for_each(|_| write());
        stream.finish().unwrap();
        a.send(to_c, b"passes").unwrap();
        a.flush();
        assert_eq!(*until(&[&a, &c], || c.try_recv()), *b"passes");
        // It can go on with other streams.
        let mut next = a.open_stream(to_b).unwrap();
        next.write_all(b"next").unwrap();
        next.finish().unwrap();
        let mut reader = until(&[&a, &b], || b.try_accept_stream().unwrap());
        assert_eq!(*reader.next_segment(SOON).unwrap().unwrap(), *b"next");
    }
}

#[test]
fn a_reader_that_goes_early_frees_what_comes() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let me = part(&node, "part");
            if node.id().index() == 0 {
                let to = find(&me, "part@node1");
                for _ in 0..3 {
                    let mut stream = me.open_stream(to).unwrap();
                    stream.write_all(&pattern(50_000)).unwrap();
                    stream.finish().unwrap();
                }
                me.send(to, b"end").unwrap();
                me.flush();
                node.quiesce(SOON).unwrap();
            } else {
                for _ in 0..3 {
                    let mut reader = me.accept_stream(SOON).unwrap();
                    reader.next_segment(SOON).unwrap();
                }
                assert_eq!(*me.recv().unwrap(), *b"end");
            }
        });
    }
}

#[test]
fn streams_are_limited_and_a_finished_one_makes_room() {
    let cluster = pdbp::Cluster::builder().nodes(2).set("stream_pipes", "2").start().unwrap();
    let (a, _b) = pair(&cluster);
    let to = find(&a, "b@node1");
    let first = a.open_stream(to).unwrap();
    let _second = a.open_stream(to).unwrap();
    let error = a.open_stream(to).map(|_| ()).unwrap_err();
    assert!(matches!(error, PipeError::NoneIdle(..)));
    assert!(error.to_string().contains("stream_pipes"), "{error}");
    first.finish().unwrap();
    a.open_stream(to).unwrap();
}

#[test]
fn a_stream_to_a_node_that_does_not_read_times_out_by_name() {
    let cluster = small(2, Progress::Inline);
    let (a, _b) = pair(&cluster);
    let mut stream = a.open_stream(find(&a, "b@node1")).unwrap();
    stream.set_timeout(Some(BRIEFLY));
    let error = stream.write_all(&pattern(100_000)).unwrap_err();
    assert!(error.to_string().contains("node1"), "{error}");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn a_stream_takes_no_more_as_filled_than_it_lent() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let mut stream = a.open_stream(find(&a, "b@node1")).unwrap();
        stream.advance(usize::MAX);
        stream.loan(5).unwrap().copy_from_slice(b"whole");
        stream.advance(usize::MAX);
        stream.advance(1);
        stream.finish().unwrap();
        let mut reader = crate::until(&[&a, &b], || b.try_accept_stream().unwrap());
        assert_eq!(*reader.next_segment(SOON).unwrap().unwrap(), *b"whole");
    }
}

#[test]
fn a_stream_dropped_before_anything_was_written_leaves_no_block_behind() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        // More than a row has blocks.
        for _ in 0..20 {
            drop(a.open_stream(to).unwrap());
            let mut lent = a.open_stream(to).unwrap();
            lent.loan(10).unwrap();
        }
        a.send(to, b"there is room").unwrap();
        a.flush();
        assert_eq!(*crate::until(&[&a, &b], || b.try_recv()), *b"there is room");
        a.node().quiesce(SOON).unwrap();
        assert!(b.try_accept_stream().unwrap().is_none(), "nothing of the streams was sent");
    }
}

#[test]
fn ends_of_streams_need_not_wait() {
    let builder = pdbp::Builder::new().nodes(2).progress(pdbp::Progress::Inline).row_blocks(4);
    let cluster = builder.start().unwrap();
    let (a, b) = pair(&cluster);
    let mut writer = a.open_stream(find(&a, "b@node1")).unwrap();
    writer.set_timeout(Some(Duration::ZERO));
    assert_eq!(writer.write_some(b"first").unwrap(), 5);
    writer.flush_segment().unwrap();
    let mut reader = b.accept_stream(SOON).unwrap();
    let mut bytes = [0; 3];
    assert_eq!((reader.read_some(&mut bytes, SOON).unwrap(), bytes), (3, *b"fir"));
    assert_eq!((reader.read_some(&mut bytes, Duration::ZERO).unwrap(), &bytes[..2]), (2, &b"st"[..]));
    assert!(matches!(reader.read_some(&mut bytes, Duration::ZERO), Err(RecvError::Timeout(_))));
    // A call that may not wait also finds what has arrived at the node.
    assert_eq!(writer.write_some(b"now").unwrap(), 3);
    writer.flush_segment().unwrap();
    assert_eq!((reader.read_some(&mut bytes, Duration::ZERO).unwrap(), bytes), (3, *b"now"));

    // Nothing is read, so there is no room; soon there is some again.
    let mut written = 0;
    let full = loop {
        match writer.write_some(&[7; 1000]) {
            Ok(more) => written += more,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, pdbp::SendError::Timeout(_)), "{full}");
    assert!(full.to_string().contains("several streams"), "what to do: {full}");
    assert_eq!(writer.write_some(&[]).unwrap(), 0, "nothing needs no room");
    writer.set_timeout(None);
    let mut read = 0;
    let mut room = vec![0; 1000];
    while read < written {
        match reader.read_some(&mut room, Duration::ZERO) {
            Ok(more) => read += more,
            Err(RecvError::Timeout(_)) => {
                a.node().poll();
                writer.flush_segment().unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(written, read);
}

/// Reads pieces until this many streams are over. Returns the bytes of each, by source node and order of its first piece, and whether it was
/// broken.
fn read_together(streams: &mut Streams<&Part>, over: usize) -> Vec<(u16, Vec<u8>, bool)> {
    let (mut open, mut done) = (HashMap::new(), Vec::new());
    while done.len() < over {
        let (id, piece) = streams.next(SOON).unwrap();
        let source = id.source().node().raw();
        match piece {
            Piece::Data(segment) => open.entry(id).or_insert_with(Vec::new).extend_from_slice(&segment),
            piece => {
                let broken = matches!(piece, Piece::Broken);
                done.push((source, open.remove(&id).expect("it has begun"), broken));
            }
        }
    }
    assert!(open.is_empty(), "{} streams have not ended", open.len());
    done
}

#[test]
fn all_streams_to_a_part_are_read_by_one_thread_whichever_of_them_has_something() {
    const STREAMS: usize = 20;
    for cluster in clusters(3) {
        cluster.run(|node| {
            let me = part(&node, "part");
            let own = node.id().index();
            if own > 0 {
                let to = find(&me, "part@node0");
                let mut streams: Vec<_> = (0..STREAMS).map(|_| me.open_stream(to).unwrap()).collect();
                for round in 0..30u8 {
                    for (i, stream) in
                        streams.iter_mut().enumerate().filter(|(i, _)| i % 3 != 2 || round < 10)
                    {
                        stream.write_all(&[i as u8, round]).unwrap();
                        stream.flush_segment().unwrap();
                    }
                }
                for (i, stream) in streams.into_iter().enumerate() {
                    if i.is_multiple_of(3) { drop(stream) } else { stream.finish().unwrap() }
                }
                assert_eq!(*me.recv().unwrap(), *b"all read");
            } else {
                let mut read = read_together(&mut me.streams(), 2 * STREAMS);
                read.sort();
                let expected = |node: u16, i: usize| {
                    let rounds = if i % 3 == 2 { 10 } else { 30 };
                    (
                        node,
                        (0..rounds).flat_map(|round| [i as u8, round]).collect::<Vec<_>>(),
                        i.is_multiple_of(3),
                    )
                };
                let all: Vec<_> =
                    [1, 2].iter().flat_map(|node| (0..STREAMS).map(|i| expected(*node, i))).collect();
                assert!(read == all, "{read:?}");
                for node in ["node1", "node2"] {
                    me.send(find(&me, &format!("part@{node}")), b"all read").unwrap();
                }
                me.flush();
                node.quiesce(SOON).unwrap();
            }
        });
    }
}

#[test]
fn who_reads_streams_together_gives_up_one_or_all_and_leaves_others_to_their_readers() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let room = || until(&[&a, &b], || a.wait(Interest::Send(to), BRIEFLY).ok());
        let write = |stream: &mut StreamWriter<&Part>, bytes: &[u8]| {
            room();
            stream.write_all(bytes).unwrap();
            stream.flush_segment().unwrap();
        };
        let [mut alone, mut first, mut second] = [(); 3].map(|()| a.open_stream(to).unwrap());
        write(&mut alone, b"alone");
        let mut reader = until(&[&a, &b], || b.try_accept_stream().unwrap());
        let mut streams = b.streams();
        assert!(matches!(streams.try_next(), Ok(None)));
        assert!(matches!(streams.next(BRIEFLY), Err(RecvError::Timeout(_))));
        write(&mut first, b"first");
        let (id, piece) = until(&[&a, &b], || streams.try_next().unwrap());
        assert_eq!((id.number(), id.source()), (first.number(), a.id()));
        assert!(matches!(piece, Piece::Data(segment) if *segment == *b"first"));
        write(&mut first, b"unread");
        streams.give_up(id);
        write(&mut second, b"second");
        let (other, piece) = until(&[&a, &b], || streams.try_next().unwrap());
        assert!(other != id && matches!(piece, Piece::Data(segment) if *segment == *b"second"));
        drop(streams);
        // Far more than there is room for.
        for _ in 0..100 {
            write(&mut first, &pattern(1000));
            write(&mut second, &pattern(1000));
        }
        for stream in [first, second, alone] {
            stream.finish().unwrap();
        }
        a.node().quiesce(SOON).unwrap();
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"alone");
        assert!(matches!(b.try_accept_stream(), Ok(None)), "those that were given up are nobody's");
    }
}

#[test]
fn who_reads_streams_together_hears_of_those_whose_writers_are_gone_and_then_that_nobody_is_left() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let mut stream = a.open_stream(find(&a, "b@node1")).unwrap();
        stream.write_all(b"begun").unwrap();
        stream.flush_segment().unwrap();
        drop(stream);
        drop(a);
        drop(cluster.into_nodes().into_iter().nth(1));
        assert_eq!(read_together(&mut b.streams(), 1), [(0, b"begun".to_vec(), true)]);
        assert!(matches!(b.streams().next(SOON), Err(RecvError::NobodyLeft)));
    }
}

/// Messages to the writer fill the row that it needs: it receives them while it writes.
#[test]
fn a_writer_that_receives_meanwhile_is_not_held_up_by_messages_to_itself() {
    for progress in [Progress::Thread, Progress::Inline] {
        let cluster = small(1, progress);
        let node = cluster.node(0).unwrap();
        let [source, writer, reader] = ["source", "writer", "reader"].map(|name| part(&node, name));
        let mut sent = 0_u64;
        let mut flood = || {
            while source.try_send_value(writer.id(), &[sent; 100]).is_ok() {
                sent += 1;
            }
            source.flush();
        };
        let (mut stream, mut received, mut read) =
            (writer.open_stream(reader.id()).unwrap(), 0_u64, Vec::new());
        let mut streams = reader.streams();
        flood();
        stream.set_timeout(Some(BRIEFLY));
        while !matches!(stream.write_some(&pattern(2000)), Err(SendError::Timeout(_))) {
            while streams.try_next().unwrap().is_some() {}
        }
        drop((stream, streams));
        let (mut stream, mut streams) = (writer.open_stream(reader.id()).unwrap(), reader.streams());
        for _ in 0..100 {
            flood();
            stream
                .write_or(&pattern(500), |message| {
                    assert_eq!(message.value(), Some([received; 100]));
                    received += 1;
                })
                .unwrap();
            while let Some((_, piece)) = streams.try_next().unwrap() {
                if let Piece::Data(segment) = piece {
                    read.extend_from_slice(&segment);
                }
            }
        }
        stream.finish().unwrap();
        while let (_, Piece::Data(segment)) = streams.next(SOON).unwrap() {
            read.extend_from_slice(&segment);
        }
        assert_eq!(read, pattern(500).repeat(100));
        assert!(received > 100, "{received}");
    }
}

#[test]
fn a_writer_with_a_loan_and_no_room_times_out() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let sender = a.sender(b.id());
        let loan = sender.loan(8).unwrap();
        let mut stream = a.open_stream(b.id()).unwrap();
        stream.set_timeout(Some(BRIEFLY));
        // Nobody reads.
        let written = stream.write_or(&pattern(10 << 20), |_| panic!("nobody has sent anything"));
        assert!(matches!(written, Err(SendError::Timeout(_))), "{written:?}");
        drop(loan);
    }
}
