//! Both nodes in one program, with a line between them.

use core::cell::RefCell;

use pdbp_core::embed::{Error, Host, Wire, WireError};
use pdbp_core::id::{NodeId, Time};
use pdbp_core::{Config, storage};

use super::node::Node;

storage!(static LEFT = nodes 2, blocks 32 of 1024, row 8, parts 8, local 2, streams 2, pipe 4, long 1 of 4096);
storage!(static RIGHT = nodes 2, blocks 32 of 1024, row 8, parts 8, local 2, streams 2, pipe 4, long 1 of 4096);

/// A frame on its way, and its length; 0: there is none.
type Frame = RefCell<([u8; 2048], usize)>;

/// A line between the two nodes: a frame at a time to each.
struct Line<'l>(&'l [Frame; 2]);

impl Line<'_> {
    fn to(&self, node: NodeId) -> Result<&Frame, WireError> {
        self.0.get(node.index()).ok_or(WireError::Failed)
    }
}

impl Wire for Line<'_> {
    fn try_send(&mut self, to: NodeId, frame: &[u8]) -> Result<(), WireError> {
        let (bytes, length) = &mut *self.to(to)?.borrow_mut();
        if *length > 0 {
            return Err(WireError::WouldBlock);
        }
        bytes.get_mut(..frame.len()).ok_or(WireError::Failed)?.copy_from_slice(frame);
        *length = frame.len();
        Ok(())
    }

    fn try_recv(&mut self, from: NodeId, room: &mut [u8]) -> Result<usize, WireError> {
        // The other one of two.
        let me = NodeId::new(1 - from.raw()).ok_or(WireError::Failed)?;
        let (bytes, length) = &mut *self.to(me)?.borrow_mut();
        let frame = bytes.get(..*length).filter(|frame| !frame.is_empty()).ok_or(WireError::WouldBlock)?;
        room.get_mut(..frame.len()).ok_or(WireError::Failed)?.copy_from_slice(frame);
        Ok(core::mem::take(length))
    }
}

/// Both nodes send everything to each other at once. `false`: not everything has come.
pub fn run() -> Result<bool, Error> {
    let frames = [const { RefCell::new(([0; 2048], 0)) }; 2];
    let config = |index| Config::new(NodeId::new(index).unwrap_or_else(|| panic!()), 2);
    let left = Host::new(config(0), Line(&frames), LEFT.take()?)?;
    let right = Host::new(config(1), Line(&frames), RIGHT.take()?)?;
    let (mut left, mut right) = (Node::new(&left, "worker@node1")?, Node::new(&right, "worker@node0")?);
    for turn in 0..1_000_000 {
        let now = Time(turn * 100);
        if left.turn(now)? & right.turn(now)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What there is to say of it.
pub fn verdict(done: bool) -> &'static str {
    if done {
        "no-std-check: 2 nodes, 1000 messages, a long one and a stream each way, on static memory: ok\n"
    } else {
        "no-std-check: not everything arrived\n"
    }
}
