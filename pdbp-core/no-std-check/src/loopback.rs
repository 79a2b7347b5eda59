//! A backend for two nodes of one program, with posted arrival: a sent block is copied into one that the peer has posted.

use core::cell::RefCell;
use core::convert::Infallible;

use pdbp_core::id::NodeId;
use pdbp_core::{
    Arrival, Capabilities, Completion, Op, Reason, Refused, SealedBlock, Transport, VacantBlock,
};

const SLOTS: usize = 32;

/// A first-in first-out list of constant size.
struct Fifo<T> {
    slots: [Option<T>; SLOTS],
    head: usize,
    len: usize,
}

impl<T> Fifo<T> {
    const fn new() -> Self {
        Self { slots: [const { None }; SLOTS], head: 0, len: 0 }
    }

    fn push(&mut self, value: T) -> Result<(), T> {
        if self.len == SLOTS {
            return Err(value);
        }
        match self.slots.get_mut((self.head + self.len) % SLOTS) {
            Some(slot) => *slot = Some(value),
            None => return Err(value),
        }
        self.len += 1;
        Ok(())
    }

    fn pop(&mut self) -> Option<T> {
        let value = self.slots.get_mut(self.head)?.take()?;
        self.head = (self.head + 1) % SLOTS;
        self.len -= 1;
        Some(value)
    }
}

/// What is between the two nodes: for each, blocks that it has sent and that it has posted.
pub struct Wire {
    sent: [Fifo<SealedBlock>; 2],
    done: [Fifo<SealedBlock>; 2],
    posted: [Fifo<VacantBlock>; 2],
}

impl Wire {
    pub const fn new() -> Self {
        Self {
            sent: [const { Fifo::new() }; 2],
            done: [const { Fifo::new() }; 2],
            posted: [const { Fifo::new() }; 2],
        }
    }
}

/// One node's end.
pub struct Loopback {
    me: NodeId,
    wire: &'static RefCell<Wire>,
}

impl Loopback {
    pub fn new(me: NodeId, wire: &'static RefCell<Wire>) -> Self {
        Self { me, wire }
    }
}

impl Transport for Loopback {
    type Error = Infallible;

    fn capabilities(&self) -> Capabilities {
        let (node, largest_block) = (self.me, 1 << 20);
        Capabilities { nodes: 2, node, largest_block, trusted: false }
    }

    fn arrival(&self, _peer: NodeId) -> Arrival {
        Arrival::Posted
    }

    fn capacity(&self, _peer: NodeId) -> usize {
        SLOTS
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Infallible>> {
        let mut wire = self.wire.borrow_mut();
        let me = self.me.index();
        let refuse = |op| Err(Refused { op, reason: Reason::Busy });
        match op {
            Op::Send { peer, block } => match wire.sent.get_mut(me).map(|fifo| fifo.push(block)) {
                Some(Err(block)) => refuse(Op::Send { peer, block }),
                _ => Ok(()),
            },
            Op::Recv { peer, block } => match wire.posted.get_mut(me).map(|fifo| fifo.push(block)) {
                Some(Err(block)) => refuse(Op::Recv { peer, block }),
                _ => Ok(()),
            },
            op => Err(Refused { op, reason: Reason::Unsupported }),
        }
    }

    fn poll_completion(&mut self) -> Option<Completion<Infallible>> {
        let wire = &mut *self.wire.borrow_mut();
        let (me, other) = (self.me.index(), 1 - self.me.index());
        let peer = NodeId::new(other as u16)?;
        if let Some(block) = wire.done.get_mut(me)?.pop() {
            return Some(Completion::Sent { peer, block });
        }
        if wire.posted.get(me)?.len == 0 || wire.done.get(other)?.len == SLOTS {
            return None;
        }
        let source = wire.sent.get_mut(other)?.pop()?;
        let mut target = wire.posted.get_mut(me)?.pop()?;
        let length = source.bytes().len();
        target.bytes_mut().get_mut(..length)?.copy_from_slice(source.bytes());
        // There is room, see above.
        let _ = wire.done.get_mut(other)?.push(source);
        Some(Completion::Received { peer, block: target.into_arrived(length) })
    }
}
