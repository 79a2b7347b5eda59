//! Handles that outlive what they stand for, when its number, pipe or slot is in use again.

use super::*;
use crate::outbox::StreamError;

fn write(node: &mut Node, out: &mut crate::outbox::StreamOut, byte: u8) {
    assert_eq!(node.write(out, &[byte]), Ok(1));
    node.flush_stream(out);
}

/// A node that was restarted numbers its streams from the beginning.
#[test]
fn a_reader_of_an_earlier_stream_of_the_same_number_is_dropped_and_the_stream_arrives_whole() {
    let (mut nodes, mut turn) = (nodes(), 0);
    let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
    settle(&mut nodes, &mut turn);
    let mut numbers = Vec::new();
    let mut before = None;
    for _ in 0..2 {
        let mut out = nodes[0].open_stream(from, to).unwrap();
        numbers.push(out.number());
        write(&mut nodes[0], &mut out, 1);
        settle(&mut nodes, &mut turn);
        let stream = nodes[1].accept(to).unwrap();
        if let Some(before) = before.replace(stream) {
            nodes[1].forget_stream(before);
        }
        for byte in 2..4 {
            write(&mut nodes[0], &mut out, byte);
            settle(&mut nodes, &mut turn);
        }
        assert_eq!(nodes[0].poll_finish(&mut out), Ok(true));
        assert_eq!(read(&mut nodes, &mut turn, &stream), ([1, 2, 3].to_vec(), true));
        nodes[0].engine.renumber_streams();
    }
    assert_eq!(numbers[0], numbers[1]);
}

#[test]
fn a_writer_whose_part_has_left_leaves_the_next_stream_of_its_pipe_alone() {
    type Drop = fn(&mut Node, crate::outbox::StreamOut);
    let drops: [Drop; 3] = [
        |node, out| node.abort_stream(out),
        |node, mut out| {
            node.flush_stream(&mut out);
            assert_eq!(node.write(&mut out, b"x"), Err(StreamError::PeerFailed));
            node.abort_stream(out);
        },
        |node, mut out| {
            for _ in 0..2 {
                assert_eq!(node.poll_finish(&mut out), Err(StreamError::PeerFailed));
            }
        },
    ];
    for (polls, drop) in drops.into_iter().flat_map(|drop| [(false, drop), (true, drop)]) {
        let (mut nodes, mut turn) = (nodes(), 0);
        let [leaves, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
        let stays = nodes[0].register("stays", PartKind::Cpu).unwrap();
        settle(&mut nodes, &mut turn);
        let mut out = nodes[0].open_stream(leaves, to).unwrap();
        assert_eq!(nodes[0].write(&mut out, b"stale"), Ok(5));
        nodes[0].unregister(leaves).unwrap();
        if !polls {
            nodes[0].abort_stream(out);
            settle(&mut nodes, &mut turn);
            assert_eq!(nodes[0].engine.pipes(crate::pipe::PipeKind::Stream).busy, 0);
            continue;
        }
        settle(&mut nodes, &mut turn);
        let mut other = nodes[0].open_stream(stays, to).unwrap();
        write(&mut nodes[0], &mut other, 1);
        settle(&mut nodes, &mut turn);
        drop(&mut nodes[0], out);
        settle(&mut nodes, &mut turn);
        write(&mut nodes[0], &mut other, 2);
        assert_eq!(nodes[0].poll_finish(&mut other), Ok(true));
        settle(&mut nodes, &mut turn);
        let stream = nodes[1].accept(to).unwrap();
        assert_eq!(stream.source(), stays);
        assert_eq!(read(&mut nodes, &mut turn, &stream), ([1, 2].to_vec(), true));
        assert_eq!(nodes[1].accept(to), None);
    }
}

#[test]
fn a_long_message_that_is_over_is_given_up_and_the_next_one_of_its_part_goes_on() {
    let (mut nodes, mut turn) = (nodes(), 0);
    let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
    settle(&mut nodes, &mut turn);
    let mut refused = nodes[0].begin_long(from, to, [7; (16 << 10) + 1]).unwrap();
    let error = loop {
        match nodes[0].poll_long(&mut refused) {
            Ok(sent) => assert!(!sent),
            Err(error) => break error,
        }
        settle(&mut nodes, &mut turn);
    };
    assert_eq!(error, SendError::NoRoom(16 << 10));
    let mut next = nodes[0].begin_long(from, to, [9; 16 << 10]).unwrap();
    assert_eq!(nodes[0].poll_long(&mut next), Ok(false), "it asks for room");
    nodes[0].abort_long(refused);
    assert_eq!(nodes[0].begin_long(from, to, [0; 1]).err(), Some(SendError::Unfinished(from)));
    let (mut next, mut read) = (Some(next), Vec::new());
    for _ in 0..40 {
        settle(&mut nodes, &mut turn);
        next.take_if(|next| nodes[0].poll_long(next) == Ok(true));
        nodes[1].recv_each(to, |info, bytes| read.push((info.source(), bytes.len())));
    }
    assert_eq!(read, [(from, 16 << 10)]);
}

#[test]
fn a_long_message_of_a_part_that_has_left_is_refused_and_that_of_the_next_part_in_its_slot_arrives() {
    let (mut nodes, mut turn) = (nodes(), 0);
    let [leaves, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
    settle(&mut nodes, &mut turn);
    let mut stale = nodes[0].begin_long(leaves, to, [7; 16 << 10]).unwrap();
    let slot = nodes[0].engine.slot_of(leaves);
    nodes[0].unregister(leaves).unwrap();
    let next = loop {
        settle(&mut nodes, &mut turn);
        let part = nodes[0].register("next", PartKind::Cpu).unwrap();
        settle(&mut nodes, &mut turn);
        if nodes[0].engine.slot_of(part) == slot {
            break part;
        }
        nodes[0].unregister(part).unwrap();
    };
    let mut long = Some(nodes[0].begin_long(next, to, [9; 16 << 10]).unwrap());
    let mut read = Vec::new();
    for _ in 0..40 {
        long.take_if(|long| nodes[0].poll_long(long) == Ok(true));
        assert_eq!(nodes[0].poll_long(&mut stale), Err(SendError::NoSuchPart(leaves)));
        settle(&mut nodes, &mut turn);
        nodes[1].recv_each(to, |info, bytes| read.push((info.source(), bytes.len(), bytes[0])));
    }
    assert_eq!(read, [(next, 16 << 10, 9)]);
}
