//! A transport made of a wire that carries frames keeps the contract, also when links fail.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::embed::{Wire, WireError, WireStorage, WireTransport};
use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use pdbp_core::{Completion, Op, Reason, Transport};
use pdbp_sim::conformance::Node;

const LONGEST: usize = 1000;

/// What is between any two nodes: frames on their way, and which nodes have gone.
#[derive(Default)]
struct Between {
    frames: Vec<Vec<VecDeque<Vec<u8>>>>,
    gone: Vec<bool>,
}

/// A node's end of lines in memory, with room for so many frames each.
struct Line {
    me: usize,
    room: usize,
    between: Arc<Mutex<Between>>,
}

impl Line {
    fn all(nodes: usize, room: usize) -> Vec<Self> {
        let frames = vec![vec![VecDeque::new(); nodes]; nodes];
        let between = Arc::new(Mutex::new(Between { frames, gone: vec![false; nodes] }));
        (0..nodes).map(|me| Self { me, room, between: Arc::clone(&between) }).collect()
    }
}

impl Wire for Line {
    fn try_send(&mut self, to: NodeId, frame: &[u8]) -> Result<(), WireError> {
        let mut between = self.between.lock().unwrap();
        if between.gone[to.index()] {
            return Err(WireError::Failed);
        }
        let line = &mut between.frames[self.me][to.index()];
        if line.len() == self.room {
            return Err(WireError::WouldBlock);
        }
        line.push_back(frame.to_vec());
        Ok(())
    }

    fn try_recv(&mut self, from: NodeId, room: &mut [u8]) -> Result<usize, WireError> {
        let mut between = self.between.lock().unwrap();
        let frame = between.frames[from.index()][self.me].pop_front();
        let Some(frame) = frame else {
            return Err(if between.gone[from.index()] { WireError::Failed } else { WireError::WouldBlock });
        };
        room[..frame.len()].copy_from_slice(&frame);
        Ok(frame.len())
    }

    fn longest_frame(&self) -> usize {
        LONGEST
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.between.lock().unwrap().gone[self.me] = true;
    }
}

/// Transports over lines with room for `room` frames and `places` blocks.
fn ends(nodes: u16, room: usize, places: usize) -> Vec<WireTransport<'static, Line>> {
    let lines = Line::all(usize::from(nodes), room).into_iter();
    let end = |(i, line)| {
        let storage = WireStorage::allocate(nodes, places);
        WireTransport::new(line, NodeId::new(i as u16).unwrap(), nodes, storage)
    };
    lines.enumerate().map(end).collect()
}

fn domain(nodes: u16, room: usize, places: usize) -> Vec<Node<WireTransport<'static, Line>, HeapMemory>> {
    type Any = Node<WireTransport<'static, Line>, HeapMemory>;
    let node = |end| {
        let memory = HeapMemory::new(Any::memory(usize::from(nodes), 1024)).unwrap();
        Any::new(end, memory, 1024)
    };
    ends(nodes, room, places).into_iter().map(node).collect()
}

pdbp_sim::conformance!(two_nodes, domain(2, 4, 10));
pdbp_sim::conformance!(three_nodes, domain(3, 4, 10));
pdbp_sim::conformance!(least_room, domain(3, 1, 3));

/// A link fails with blocks of all kinds on it: each comes back once, those that the wire has taken as sent, and the failure is
/// reported last and once.
#[test]
fn all_blocks_come_back_when_a_link_fails() {
    let mut ends = ends(2, 2, 5).into_iter();
    let (mut zero, one) = (ends.next().unwrap(), ends.next().unwrap());
    let peer = NodeId::new(1).unwrap();
    let memory = HeapMemory::new(stride(256) * 8).unwrap();
    let mut pool = BlockPool::new(memory, NodeId::new(0).unwrap(), 256);
    for _ in 0..4 {
        let block = pool.take().unwrap();
        let block = pool.seal(block, BLOCK_HEADER);
        assert!(zero.submit(Op::Send { peer, block }).is_ok());
    }
    for _ in 0..2 {
        assert!(zero.submit(Op::Recv { peer, block: pool.take().unwrap() }).is_ok());
    }
    drop(one);
    let mut seen = String::new();
    while let Some(completion) = zero.poll_completion() {
        match completion {
            Completion::Sent { block, .. } => {
                seen.push('s');
                assert!(pool.give_sealed(block).is_ok());
            }
            Completion::Failed { block, .. } => {
                seen.push('f');
                assert!(pool.give_sealed(block).is_ok());
            }
            Completion::Unused { block, .. } => {
                seen.push('u');
                assert!(pool.give_vacant(block).is_ok());
            }
            Completion::PeerFailed { .. } => seen.push('!'),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, "ssffuu!");
    let block = pool.take().unwrap();
    let refused = zero.submit(Op::Recv { peer, block }).unwrap_err();
    assert!(matches!(refused.reason, Reason::PeerFailed), "{refused:?}");
}
