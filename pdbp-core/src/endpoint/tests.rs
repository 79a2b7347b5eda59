//! Two endpoints on a line.

use std::cell::RefCell;
use std::collections::VecDeque;
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

fn nodes() -> [Node; 2] {
    let frames = Frames::default();
    [0, 1].map(|index| {
        let config = Config::new(NodeId::new(index).unwrap(), 2);
        let line = Line(index.into(), Rc::clone(&frames));
        let transport = WireTransport::new(line, config.node, 2, WireStorage::allocate(2, 10));
        let memory = HeapMemory::new(32 * stride(config.body)).unwrap();
        let storage = EndpointStorage::allocate(&config, (32, 8), 4, (1, 16 << 10));
        Endpoint::new(config, Adaptive::DEFAULT, transport, memory, storage).unwrap()
    })
}

fn settle(nodes: &mut [Node; 2], turn: &mut u64) {
    for _ in 0..20 {
        *turn += 1;
        nodes.iter_mut().for_each(|node| _ = node.poll(Time(*turn * 1000)));
    }
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
        let config = Config::new(NodeId::new(0).unwrap(), 2);
        let line = Line(0, Frames::default());
        let transport = WireTransport::new(line, config.node, 2, WireStorage::allocate(2, 10));
        let memory = HeapMemory::new(32 * stride(config.body)).unwrap();
        let mut storage = EndpointStorage::allocate(&config, (32, 8), 4, (1, 16 << 10));
        take(&mut storage);
        let refused = Endpoint::new(config, Adaptive::DEFAULT, transport, memory, storage).err();
        assert!(matches!(refused, Some(ConfigError::Storage { slice, .. }) if slice == name), "{refused:?}");
    }
}
