//! A backend written from scratch, and the conformance suite run on it: nodes on threads, whose blocks are copied through channels
//! into blocks that the receiver has posted.
//!
//! ```text
//! cargo run -p pdbp-sim --example backend
//! ```
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use pdbp_core::id::NodeId;
use pdbp_core::umb::HeapMemory;
use pdbp_core::{
    Arrival, Capabilities, Completion, Op, Reason, Refused, SealedBlock, Transport, VacantBlock,
};
use pdbp_sim::conformance::{Node, cases, run_on_threads};

/// The longest block.
const LONGEST: usize = 1000;
/// Number of blocks that a link takes at a time.
const PLACES: usize = 8;

/// One node's endpoint.
struct Channels {
    me: NodeId,
    links: Vec<Option<Link>>,
    /// The link polled last.
    turn: usize,
}

/// The link to and from one peer.
struct Link {
    peer: NodeId,
    /// `None` once the link has failed; its blocks are then returned.
    channels: Option<Pair>,
    /// This node's blocks in the order submitted; the first `written` of them are in the channel.
    sending: VecDeque<SealedBlock>,
    written: usize,
    /// Blocks to copy the peer's blocks into.
    posted: VecDeque<VacantBlock>,
    reported: bool,
}

/// A channel each way.
struct Pair {
    to: SyncSender<Vec<u8>>,
    from: Receiver<Vec<u8>>,
}

impl Link {
    /// Writes as many waiting blocks as the channel has room for.
    fn write(&mut self) {
        while let Some(pair) = &self.channels
            && let Some(block) = self.sending.get(self.written)
        {
            match pair.to.try_send(block.bytes().to_vec()) {
                Ok(()) => self.written += 1,
                Err(TrySendError::Full(_)) => return,
                Err(TrySendError::Disconnected(_)) => self.channels = None,
            }
        }
    }

    fn poll(&mut self) -> Option<Completion<Infallible>> {
        let peer = self.peer;
        self.write();
        if self.written > 0 {
            self.written -= 1;
            return self.sending.pop_front().map(|block| Completion::Sent { peer, block });
        }
        if let Some(pair) = &self.channels {
            // Arrived bytes wait in the channel until a block is posted for them.
            let room = self.posted.front_mut()?;
            match pair.from.try_recv() {
                Ok(bytes) => {
                    room.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
                    let block = self.posted.pop_front()?.into_arrived(bytes.len());
                    return Some(Completion::Received { peer, block });
                }
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => self.channels = None,
            }
        }
        // The link has failed: return everything, then report the failure once.
        if let Some(block) = self.sending.pop_front() {
            return Some(Completion::Failed { peer, block });
        }
        if let Some(block) = self.posted.pop_front() {
            return Some(Completion::Unused { peer, block });
        }
        let first = !std::mem::replace(&mut self.reported, true);
        first.then_some(Completion::PeerFailed { peer, cause: None })
    }
}

impl Transport for Channels {
    type Error = Infallible;

    fn capabilities(&self) -> Capabilities {
        let nodes = self.links.len() as u16;
        // Nobody checks the bytes, so readers must not trust blocks.
        Capabilities { nodes, node: self.me, largest_block: LONGEST, trusted: false }
    }

    fn arrival(&self, _peer: NodeId) -> Arrival {
        Arrival::Posted
    }

    fn capacity(&self, _peer: NodeId) -> usize {
        PLACES
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Infallible>> {
        let (Op::Send { peer, .. } | Op::Recv { peer, .. } | Op::Return { peer, .. }) = &op;
        let link = self.links.get_mut(peer.index()).and_then(Option::as_mut);
        let Some(link) = link.filter(|link| link.channels.is_some()) else {
            return Err(Refused { op, reason: Reason::PeerFailed });
        };
        match op {
            Op::Send { block, .. } if block.bytes().len() <= LONGEST && link.sending.len() < PLACES => {
                link.sending.push_back(block);
                link.write();
                Ok(())
            }
            Op::Send { ref block, .. } if block.bytes().len() <= LONGEST => {
                Err(Refused { op, reason: Reason::Busy })
            }
            Op::Recv { block, .. } => {
                link.posted.push_back(block);
                Ok(())
            }
            op => Err(Refused { op, reason: Reason::Unsupported }),
        }
    }

    fn poll_completion(&mut self) -> Option<Completion<Infallible>> {
        for _ in 0..self.links.len() {
            // The link polled last goes last the next time.
            self.turn = (self.turn + 1) % self.links.len();
            if let Some(completion) = self.links[self.turn].as_mut().and_then(Link::poll) {
                return Some(completion);
            }
        }
        None
    }
}

/// The endpoints of `nodes` nodes, with a channel from each to each.
fn domain(nodes: usize) -> Vec<Node<Channels, HeapMemory>> {
    let id = |index: usize| NodeId::new(index as u16).expect("a node number");
    let end = |me| Channels { me: id(me), links: (0..nodes).map(|_| None).collect(), turn: 0 };
    let mut ends: Vec<_> = (0..nodes).map(end).collect();
    for (a, b) in (0..nodes).flat_map(|a| (0..a).map(move |b| (a, b))) {
        let ((to_a, at_a), (to_b, at_b)) = (sync_channel(4), sync_channel(4));
        let pairs = [(a, b, Pair { to: to_b, from: at_a }), (b, a, Pair { to: to_a, from: at_b })];
        for (me, peer, pair) in pairs {
            let (sending, posted) = (VecDeque::new(), VecDeque::new());
            let channels = Some(pair);
            ends[me].links[peer] =
                Some(Link { peer: id(peer), channels, sending, written: 0, posted, reported: false });
        }
    }
    let node = |end| {
        let bytes = Node::<Channels, HeapMemory>::memory(nodes, 1024);
        Node::new(end, HeapMemory::new(bytes).expect("some memory"), 1024)
    };
    ends.into_iter().map(node).collect()
}

fn main() {
    let mut failed = 0;
    for case in cases() {
        match run_on_threads(&case, domain(3)) {
            Ok(verdict) => println!("{}: {verdict:?}", case.name),
            Err(failures) => {
                failed += 1;
                failures.iter().for_each(|failure| println!("{}: FAILED: {failure}", case.name));
            }
        }
    }
    assert_eq!(failed, 0, "the backend breaks its contract");
}
