//! Two endpoints on a line.

mod reuse;

use std::boxed::Box;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::vec::Vec;

use super::*;
use crate::embed::{Wire, WireError, WireStorage, WireTransport};
use crate::id::NodeId;
use crate::policy::Adaptive;
use crate::umb::{HeapMemory, stride};

/// Frames to either end of a line.
type Frames = Rc<RefCell<[VecDeque<Vec<u8>>; 2]>>;

/// The end of a line with this number.
struct Line(usize, Frames);

impl Wire for Line {
    fn try_send(&mut self, _: NodeId, frame: &[u8]) -> Result<(), WireError> {
        self.1.borrow_mut()[1 - self.0].push_back(frame.to_vec());
        Ok(())
    }

    fn try_recv(&mut self, _: NodeId, room: &mut [u8]) -> Result<usize, WireError> {
        let frame = self.1.borrow_mut()[self.0].pop_front().ok_or(WireError::WouldBlock)?;
        room[..frame.len()].copy_from_slice(&frame);
        Ok(frame.len())
    }
}

type Node = Endpoint<'static, WireTransport<'static, Line>, HeapMemory, Adaptive>;

fn config(index: u16) -> Config {
    Config::new(NodeId::new(index).unwrap(), 2)
}

fn storage(config: &Config) -> EndpointStorage<'static> {
    EndpointStorage::allocate(config, (32, 8), 4, (1, 16 << 10))
}

fn start(config: Config, frames: &Frames, storage: EndpointStorage<'static>) -> Result<Node, ConfigError> {
    let line = Line(config.node.index(), Rc::clone(frames));
    let transport = WireTransport::new(line, config.node, 2, WireStorage::allocate(2, 10));
    let memory = HeapMemory::new(32 * stride(config.body)).unwrap();
    Endpoint::new(config, Adaptive::DEFAULT, transport, memory, storage)
}

fn nodes() -> [Node; 2] {
    let frames = Frames::default();
    [0, 1].map(config).map(|config| {
        let storage = storage(&config);
        start(config, &frames, storage).unwrap()
    })
}

fn settle(nodes: &mut [Node; 2], turn: &mut u64) {
    for _ in 0..20 {
        *turn += 1;
        nodes.iter_mut().for_each(|node| _ = node.poll(Time(*turn * 1000)));
    }
}

/// The bytes of a stream until it ends, and whether it ends well.
fn read(nodes: &mut [Node; 2], turn: &mut u64, stream: &StreamIn) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    for _ in 0..20 {
        match nodes[1].poll_stream(stream) {
            StreamPiece::Data(segment) => {
                bytes.extend_from_slice(segment.bytes());
                nodes[1].release_segment(segment);
            }
            StreamPiece::Nothing => settle(nodes, turn),
            StreamPiece::End => return (bytes, true),
            StreamPiece::Broken => return (bytes, false),
        }
    }
    panic!("the stream has no end after {bytes:?}");
}

/// A stream of more than 2^32 segments is one stream to its end.
#[test]
fn segment_numbers_wrap_around_and_no_other_stream_begins() {
    let (mut nodes, mut turn) = (nodes(), 0);
    let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
    settle(&mut nodes, &mut turn);
    let mut out = nodes[0].open_stream(from, to).unwrap();
    let mut reading = None;
    for number in 0..5u8 {
        assert_eq!(nodes[0].write(&mut out, &[number]), Ok(1));
        nodes[0].flush_stream(&mut out);
        settle(&mut nodes, &mut turn);
        let stream = *reading.get_or_insert_with(|| nodes[1].accept(to).unwrap());
        let StreamPiece::Data(segment) = nodes[1].poll_stream(&stream) else { panic!("no segment {number}") };
        assert_eq!(segment.bytes(), [number]);
        nodes[1].release_segment(segment);
        if number == 0 {
            out.skip_to(u32::MAX - 1);
            nodes[1].engine.skip_to(from.node(), out.number(), u32::MAX - 1);
        }
    }
    assert_eq!(nodes[0].poll_finish(&mut out), Ok(true));
    settle(&mut nodes, &mut turn);
    let Some(stream) = reading else { panic!("it was accepted") };
    assert_eq!(nodes[1].accept(to), None);
    assert!(matches!(nodes[1].poll_stream(&stream), StreamPiece::Data(_)), "the last segment is empty");
    assert!(matches!(nodes[1].poll_stream(&stream), StreamPiece::End));
}

/// A host sleeps until [`Endpoint::next_poll`]: it must not sleep on something that only a poll carries on.
#[test]
fn whoever_has_something_for_a_poll_to_do_is_polled_at_once() {
    type Act = fn(&mut Node, PartId, PartId) -> bool;
    let acts: [(&str, Act); 16] = [
        ("send", |node, from, to| node.send(from, to, b"x").is_ok()),
        ("send_with", |node, from, to| node.send_with(from, to, 8, |room| room.fill(1)).is_ok()),
        ("send_train", |node, from, to| {
            let begun = node.send(from, to, b"ab").is_ok();
            node.pipes.dirty = false;
            begun && node.send_train(from, to, b"abcdef", 2) == Ok(3)
        }),
        ("poll_set", |node, from, to| {
            let mut set = node.begin_set(from, [to], b"x").unwrap();
            node.poll_set(&mut set) == Ok(true)
        }),
        ("send_command", |node, from, to| node.send_command(from, to, 1, b"x").is_ok()),
        ("abort_long", |node, from, to| {
            let long = node.begin_long(from, to, [7; 5000]).unwrap();
            node.abort_long(long);
            true
        }),
        ("poll_long", |node, from, _| {
            let mut long = node.begin_long(from, from, [7; 5000]).unwrap();
            node.pipes.dirty = false;
            node.poll_long(&mut long) == Ok(false)
        }),
        ("open_stream", |node, from, to| node.open_stream(from, to).is_ok()),
        ("flush_stream", |node, from, to| {
            let mut out = node.open_stream(from, to).unwrap();
            let written = node.write(&mut out, b"x") == Ok(1);
            node.pipes.dirty = false;
            node.flush_stream(&mut out);
            written
        }),
        ("poll_finish", |node, from, to| {
            let mut out = node.open_stream(from, to).unwrap();
            node.pipes.dirty = false;
            node.poll_finish(&mut out) == Ok(true)
        }),
        ("abort_stream", |node, from, to| {
            let out = node.open_stream(from, to).unwrap();
            node.pipes.dirty = false;
            node.abort_stream(out);
            true
        }),
        ("register", |node, _, _| node.register("another", PartKind::Cpu).is_ok()),
        ("unregister", |node, from, _| node.unregister(from).is_ok()),
        ("barrier", |node, _, _| {
            let barrier = node.barrier();
            !node.has_passed(barrier)
        }),
        ("quiesce", |node, _, _| {
            let asked = node.quiesce();
            !node.is_quiescent(asked)
        }),
        ("advance", |node, from, _| node.advance(from, true) == Ok(true)),
    ];
    for (name, act) in acts {
        let (mut nodes, mut turn) = (nodes(), 0);
        let [to, from] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
        settle(&mut nodes, &mut turn);
        let node = &mut nodes[1];
        assert!(node.next_poll() > node.now, "it is at rest before {name}");
        assert!(act(node, from, to), "{name}");
        assert_eq!(node.next_poll(), node.now, "after {name}");
    }
}

/// What a part had in progress is over with it: there is room for one long message only, which another part gets.
#[test]
fn a_part_that_leaves_with_a_long_message_in_progress_gives_up_its_room() {
    for asked_only in [true, false] {
        let (mut nodes, mut turn) = (nodes(), 0);
        let to = nodes[0].register("reads", PartKind::Cpu).unwrap();
        let [from, other] = ["leaves", "stays"].map(|name| nodes[1].register(name, PartKind::Cpu).unwrap());
        settle(&mut nodes, &mut turn);
        let mut long = nodes[1].begin_long(from, to, [7; 16 << 10]).unwrap();
        assert_eq!(nodes[1].poll_long(&mut long), Ok(false), "it asks for room");
        if !asked_only {
            settle(&mut nodes, &mut turn);
        }
        nodes[1].unregister(from).unwrap();
        settle(&mut nodes, &mut turn);
        let mut long = Some(nodes[1].begin_long(other, to, [9; 16 << 10]).unwrap());
        let mut lengths = Vec::new();
        for _ in 0..40 {
            long.take_if(|long| nodes[1].poll_long(long) == Ok(true));
            settle(&mut nodes, &mut turn);
            // The end of the first message is behind what is read.
            nodes[0].recv_each(to, |info, bytes| lengths.push((info.source(), bytes.len())));
        }
        assert_eq!(lengths, [(other, 16 << 10)]);
    }
}

#[test]
fn memory_that_lacks_a_table_is_refused_by_the_name_of_the_table() {
    fn none<T>() -> ManagedSlice<'static, T> {
        ManagedSlice::Owned(Vec::new())
    }
    type Take = fn(&mut EndpointStorage<'static>);
    let takes: [(&str, Take); 7] = [
        ("lanes", |storage| storage.lanes = none()),
        ("inboxes", |storage| storage.inboxes = none()),
        ("pieces", |storage| storage.pieces = none()),
        ("piece_rings", |storage| storage.piece_rings = none()),
        ("notices", |storage| storage.notices = none()),
        ("notice_rings", |storage| storage.notice_rings = none()),
        ("part_states", |storage| storage.part_states = none()),
    ];
    for (name, take) in takes {
        let config = config(0);
        let mut storage = storage(&config);
        take(&mut storage);
        let refused = start(config, &Frames::default(), storage).err();
        assert!(matches!(refused, Some(ConfigError::Storage { slice, .. }) if slice == name), "{refused:?}");
    }
}

#[test]
fn fewer_private_pipes_than_parts_are_refused() {
    let mut config = config(0);
    config.private_pipes = 1;
    let storage = storage(&config);
    let refused = start(config, &Frames::default(), storage).err();
    assert_eq!(refused, Some(ConfigError::PrivatePipes { have: 1, need: 8 }));
}

#[test]
fn an_inbox_for_fewer_long_messages_than_there_are_buffers_is_refused() {
    let config = config(0);
    let storage = storage(&config).with_inboxes(8, 0, 8);
    let refused = start(config, &Frames::default(), storage).err();
    assert_eq!(refused, Some(ConfigError::Storage { slice: "assemblies", have: 0, need: 1 }));
}

#[test]
fn a_long_message_that_an_inbox_cannot_begin_gives_its_space_back() {
    let (mut nodes, mut turn) = (nodes(), 0);
    let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
    settle(&mut nodes, &mut turn);
    // As if the message were longer than can be counted.
    let inbox = crate::inbox::InboxStorage::allocate(8, 0, 8);
    nodes[1].inboxes.iter_mut().for_each(|inbox| *inbox = Inbox::default());
    nodes[1].inboxes[0] = Inbox::new(inbox);
    let mut long = nodes[0].begin_long(from, to, [7; 16 << 10]).unwrap();
    for _ in 0..40 {
        if nodes[0].poll_long(&mut long) == Ok(true) {
            break;
        }
        settle(&mut nodes, &mut turn);
        assert!(nodes[1].poll_recv(to).is_none());
    }
    settle(&mut nodes, &mut turn);
    assert!(nodes[1].poll_recv(to).is_none());
    assert_eq!((nodes[1].unreadable(to), nodes[1].engine.assembly_in_use()), (1, 0));
    // The next part that has its pipe counts from the start.
    nodes[1].unregister(to).unwrap();
    settle(&mut nodes, &mut turn);
    let next = nodes[1].register("next", PartKind::Cpu).unwrap();
    assert_eq!(nodes[1].unreadable(next), 0);
}

/// What is read of an inbox that has no room to sort more makes such room, even if nothing is released yet.
#[test]
fn a_host_that_makes_room_in_an_inbox_is_polled_at_once() {
    type Act = fn(&mut Node, &StreamIn) -> Option<StreamSegment<'static>>;
    let acts: [Act; 2] = [
        |node, stream| {
            let StreamPiece::Data(held) = node.poll_stream(stream) else { panic!("no segment") };
            Some(held)
        },
        |node, stream| {
            node.forget_stream(*stream);
            None
        },
    ];
    for (act, (entries, streams)) in acts.into_iter().zip([(1, 2), (8, 1)]) {
        let frames = Frames::default();
        let mut nodes = [0, 1].map(config).map(|config| {
            let storage = storage(&config).with_inboxes(entries, 1, streams);
            start(config, &frames, storage).unwrap()
        });
        let mut turn = 0;
        let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
        settle(&mut nodes, &mut turn);
        for _ in 0..2 {
            let mut out = nodes[0].open_stream(from, to).unwrap();
            assert_eq!(nodes[0].poll_finish(&mut out), Ok(true));
        }
        nodes[0].send(from, to, b"behind").unwrap();
        settle(&mut nodes, &mut turn);
        let stream = nodes[1].accept(to).unwrap();
        if entries > 1 {
            // Only its end is left.
            let StreamPiece::Data(segment) = nodes[1].poll_stream(&stream) else { panic!("no segment") };
            nodes[1].release_segment(segment);
        }
        assert!(nodes[1].poll_recv(to).is_none(), "the second stream is in the way");
        settle(&mut nodes, &mut turn);
        assert!(nodes[1].next_poll() > nodes[1].now, "it is at rest");
        let held = act(&mut nodes[1], &stream);
        assert_eq!(nodes[1].next_poll(), nodes[1].now);
        let message = nodes[1].poll_recv(to).expect("there is room now");
        nodes[1].release(message);
        held.into_iter().for_each(|held| nodes[1].release_segment(held));
    }
}

/// Reading an end takes nothing out of the pipe, but there may be more to read behind it.
#[test]
fn a_host_that_reads_the_end_of_one_of_its_streams_is_polled_at_once() {
    let (mut nodes, mut turn) = (nodes(), 0);
    let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
    settle(&mut nodes, &mut turn);
    for _ in 0..2 {
        let mut out = nodes[0].open_stream(from, to).unwrap();
        assert_eq!(nodes[0].write(&mut out, b"x"), Ok(1));
        assert_eq!(nodes[0].poll_finish(&mut out), Ok(true));
    }
    settle(&mut nodes, &mut turn);
    let mut ends = 0;
    while let Some((_, piece)) = nodes[1].poll_streams(to) {
        match piece {
            StreamPiece::Data(segment) => nodes[1].release_segment(segment),
            StreamPiece::End => {
                assert_eq!(nodes[1].next_poll(), nodes[1].now);
                ends += 1;
            }
            other => panic!("{other:?}"),
        }
        settle(&mut nodes, &mut turn);
        assert!(nodes[1].next_poll() > nodes[1].now, "it is at rest");
    }
    assert_eq!(ends, 2);
}

/// Its writer can do nothing more about it once the stream is closed.
#[test]
fn a_stream_whose_data_came_by_other_means_ends_well_also_where_there_was_no_block_for_its_end() {
    for (delivered, ends_well) in [(true, true), (false, false)] {
        let (mut nodes, mut turn) = (nodes(), 0);
        let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
        settle(&mut nodes, &mut turn);
        let mut out = nodes[0].open_stream(from, to).unwrap();
        assert_eq!(nodes[0].write(&mut out, b"announced"), Ok(9));
        nodes[0].flush_stream(&mut out);
        settle(&mut nodes, &mut turn);
        if delivered {
            out.deliver();
        }
        let engine = &mut nodes[0].engine;
        let blocks: Vec<_> = core::iter::from_fn(|| engine.open(to.node()).ok()).collect();
        nodes[0].abort_stream(out);
        settle(&mut nodes, &mut turn);
        blocks.into_iter().for_each(|block| nodes[0].engine.submit(block));
        settle(&mut nodes, &mut turn);
        let stream = nodes[1].accept(to).unwrap();
        assert_eq!(read(&mut nodes, &mut turn, &stream), (b"announced".to_vec(), ends_well));
    }
}

/// Otherwise it would sleep for ever if the answer was lost.
#[test]
fn a_host_whose_long_message_waits_for_room_is_polled_again_after_a_while() {
    let (mut nodes, mut turn) = (nodes(), 0);
    let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
    settle(&mut nodes, &mut turn);
    let mut long = nodes[0].begin_long(from, to, [7; 5000]).unwrap();
    for _ in 0..3 {
        // Whether it polls the message before or after it polls the node.
        assert_eq!(nodes[0].poll_long(&mut long), Ok(false));
        while nodes[0].next_poll() <= nodes[0].now {
            nodes[0].poll(nodes[0].now.after(1000));
        }
        let next = nodes[0].next_poll();
        assert!(next < Time(u64::MAX), "nothing would ask again");
        nodes[0].poll(next);
    }
    nodes[0].abort_long(long);
}

#[test]
fn a_long_message_that_was_sent_is_not_sent_again() {
    for length in [5, 5000] {
        let (mut nodes, mut turn) = (nodes(), 0);
        let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
        settle(&mut nodes, &mut turn);
        let mut long = nodes[0].begin_long(from, to, std::vec![7; length]).unwrap();
        while nodes[0].poll_long(&mut long) == Ok(false) {
            settle(&mut nodes, &mut turn);
        }
        let mut read = 0;
        for _ in 0..4 {
            assert_eq!(nodes[0].poll_long(&mut long), Ok(true));
            settle(&mut nodes, &mut turn);
            read += nodes[1].recv_each(to, |_, bytes| assert_eq!(bytes.len(), length));
        }
        assert_eq!((read, nodes[1].engine.assembly_in_use()), (1, 0));
    }
}

/// A message that is still held made room in the inbox, too.
#[test]
fn a_host_that_reads_a_message_ahead_of_a_stream_is_polled_at_once() {
    let reads: [fn(&mut Node, PartId); 2] = [
        |node, to| node.poll_recv(to).map(core::mem::forget).unwrap(),
        |node, to| node.poll_recv_batch(to).map(core::mem::forget).unwrap(),
    ];
    for read in reads {
        let frames = Frames::default();
        let mut nodes = [0, 1].map(config).map(|config| {
            let storage = storage(&config).with_inboxes(1, 1, 1);
            start(config, &frames, storage).unwrap()
        });
        let mut turn = 0;
        let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
        settle(&mut nodes, &mut turn);
        nodes[0].send(from, to, b"ahead").unwrap();
        settle(&mut nodes, &mut turn);
        let mut out = nodes[0].open_stream(from, to).unwrap();
        assert_eq!(nodes[0].poll_finish(&mut out), Ok(true));
        settle(&mut nodes, &mut turn);
        assert!(nodes[1].accept(to).is_none(), "the message is in the way");
        settle(&mut nodes, &mut turn);
        assert!(nodes[1].next_poll() > nodes[1].now, "it is at rest");
        read(&mut nodes[1], to);
        assert_eq!(nodes[1].next_poll(), nodes[1].now);
        assert!(nodes[1].accept(to).is_some());
    }
}

/// Its block held stale bytes as a message, or was lost.
#[test]
fn a_message_whose_writer_panics_is_not_sent() {
    let (mut nodes, mut turn) = (nodes(), 0);
    let [from, to] = nodes.each_mut().map(|node| node.register("part", PartKind::Cpu).unwrap());
    settle(&mut nodes, &mut turn);
    // Without an open block, and with one.
    for byte in 0..2 {
        let panics =
            AssertUnwindSafe(|| nodes[0].send_with(from, to, 8, |_| panic::resume_unwind(Box::new(()))));
        assert!(panic::catch_unwind(panics).is_err());
        nodes[0].send_with(from, to, 8, |room| room.fill(byte)).unwrap();
    }
    let mut read = Vec::new();
    settle(&mut nodes, &mut turn);
    while nodes[1].recv_each(to, |_, bytes| read.push(bytes.to_vec())) > 0 {}
    assert_eq!(read, [[0; 8], [1; 8]]);
    settle(&mut nodes, &mut turn);
    assert!(nodes.iter().all(|node| !node.engine.leaks()));
}
