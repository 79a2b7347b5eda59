//! A transport over anything that carries frames.

use core::convert::Infallible;

use managed::ManagedSlice;

use super::rings::{RingState, Rings};
use crate::id::NodeId;
use crate::transport::{Arrival, Capabilities, Completion, Op, Reason, Refused, Transport};
use crate::umb::{SealedBlock, VacantBlock};

/// Carries frames of bytes to and from other nodes: a UART, a socket per peer, a bus.
///
/// Between two nodes, frames arrive whole, once and in order, or the link has [failed](WireError::Failed). A medium that loses
/// frames needs a layer below that retransmits them. No method blocks. A frame stays in the wire until it is requested; a wire
/// without room for more frames makes its peer wait.
pub trait Wire {
    /// Takes a whole frame for a node, or nothing. The bytes may change as soon as the call returns.
    ///
    /// # Errors
    /// See [`WireError`].
    fn try_send(&mut self, to: NodeId, frame: &[u8]) -> Result<(), WireError>;

    /// Copies the next frame from a node to the beginning of `room`, and returns its length. Frames are requested per node, because
    /// a node without room for the frames of one peer keeps receiving those of others. If all nodes share one line, a frame waits
    /// in the wire until its source is polled.
    ///
    /// # Errors
    /// See [`WireError`].
    fn try_recv(&mut self, from: NodeId, room: &mut [u8]) -> Result<usize, WireError>;

    /// Maximum length of a frame: header and body of a block. Unlimited by default.
    fn longest_frame(&self) -> usize {
        usize::MAX
    }
}

/// Why a frame was not sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The wire has no room for the frame, or no frame has arrived. Try again later.
    WouldBlock,
    /// The link with the node has failed for good.
    Failed,
}

impl core::fmt::Display for WireError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::WouldBlock => "the wire has no room, or no frame; try again later",
            Self::Failed => "the link has failed",
        })
    }
}

impl core::error::Error for WireError {}

/// A [`Transport`] over a [`Wire`]. Queues the blocks to be sent and those to be filled, and drops none.
#[derive(Debug)]
pub struct WireTransport<'a, W> {
    wire: W,
    node: NodeId,
    nodes: u16,
    /// Blocks to send; the wire has taken the first [`Link::written`] of them.
    sending: Rings<'a, SealedBlock>,
    /// Blocks to fill.
    posted: Rings<'a, VacantBlock>,
    links: ManagedSlice<'a, Link>,
    /// The node served first in the next poll.
    turn: usize,
}

/// The memory of a [`WireTransport`], part of [`NodeMemory`](super::NodeMemory).
#[derive(Debug)]
pub struct WireStorage<'a> {
    /// For each node, as many slots as a link has [capacity](Transport::capacity): at least
    /// [`Config::MIN_CAPACITY`](crate::Config::MIN_CAPACITY). More than a row plus these is never used.
    pub(crate) sending: ManagedSlice<'a, Option<SealedBlock>>,
    /// For each node, as many slots as blocks may be posted for it; the same number as in `sending`.
    pub(crate) posted: ManagedSlice<'a, Option<VacantBlock>>,
    /// One per node.
    pub(crate) sending_rings: ManagedSlice<'a, RingState>,
    /// One per node.
    pub(crate) posted_rings: ManagedSlice<'a, RingState>,
    /// One per node.
    pub(crate) links: ManagedSlice<'a, Link>,
}

#[cfg(feature = "alloc")]
impl WireStorage<'static> {
    /// Allocates memory on the heap, for `nodes` nodes and `places` blocks each way on each link.
    pub fn allocate(nodes: u16, places: usize) -> Self {
        use alloc::vec::Vec;
        fn table<T>(length: usize, make: impl Fn() -> T) -> ManagedSlice<'static, T> {
            ManagedSlice::Owned((0..length).map(|_| make()).collect::<Vec<_>>())
        }
        let nodes = usize::from(nodes);
        Self {
            sending: table(nodes * places, || None),
            posted: table(nodes * places, || None),
            sending_rings: table(nodes, RingState::default),
            posted_rings: table(nodes, RingState::default),
            links: table(nodes, Link::default),
        }
    }
}

/// The state of the link with a node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    state: State,
    /// Blocks that the wire has taken but whose completion has not been reported.
    written: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Up,
    /// Its blocks are being returned.
    Failing,
    Down,
}

impl<'a, W: Wire> WireTransport<'a, W> {
    /// The transport of node `node` of `nodes`.
    pub fn new(wire: W, node: NodeId, nodes: u16, storage: WireStorage<'a>) -> Self {
        let WireStorage { sending, posted, sending_rings, posted_rings, mut links } = storage;
        links.fill(Link::default());
        let (sending, posted) = (Rings::new(sending, sending_rings), Rings::new(posted, posted_rings));
        Self { wire, node, nodes, sending, posted, links, turn: 0 }
    }

    /// The wire.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Returns why a block of this length cannot be sent to, or posted for, a node.
    fn refusal(&self, peer: NodeId, length: usize) -> Option<Reason<Infallible>> {
        let exists = peer != self.node && peer.index() < usize::from(self.nodes);
        let link = self.links.get(peer.index()).filter(|link| exists && link.state == State::Up);
        if link.is_none() {
            return Some(Reason::PeerFailed);
        }
        (length > self.wire.longest_frame()).then_some(Reason::Unsupported)
    }

    /// Writes as many waiting blocks as the wire takes.
    fn write(&mut self, peer: NodeId) {
        let list = peer.index();
        let Some(link) = self.links.get_mut(list) else { return };
        while let Some(block) = self.sending.get_mut(list, link.written as usize) {
            match self.wire.try_send(peer, block.bytes()) {
                Ok(()) => link.written += 1,
                Err(WireError::WouldBlock) => return,
                Err(WireError::Failed) => {
                    link.state = State::Failing;
                    return;
                }
            }
        }
    }

    /// Takes the next block that the wire has taken.
    fn next_written(&mut self, peer: NodeId) -> Option<SealedBlock> {
        let link = self.links.get_mut(peer.index()).filter(|link| link.written > 0)?;
        let block = self.sending.pop(peer.index())?;
        link.written -= 1;
        Some(block)
    }

    /// Returns the next completion of a link.
    fn poll_link(&mut self, peer: NodeId) -> Option<Completion<Infallible>> {
        let list = peer.index();
        if self.links.get(list)?.state == State::Up {
            self.write(peer);
        }
        if let Some(block) = self.next_written(peer) {
            return Some(Completion::Sent { peer, block });
        }
        if self.links.get(list)?.state == State::Up {
            let room = self.posted.get_mut(list, 0)?;
            match self.wire.try_recv(peer, room.bytes_mut()) {
                Ok(length) => {
                    let block = self.posted.pop(list)?.into_arrived(length);
                    return Some(Completion::Received { peer, block });
                }
                Err(WireError::WouldBlock) => return None,
                Err(WireError::Failed) => self.links.get_mut(list)?.state = State::Failing,
            }
        }
        if self.links.get(list)?.state == State::Down {
            return None;
        }
        if let Some(block) = self.sending.pop(list) {
            return Some(Completion::Failed { peer, block });
        }
        if let Some(block) = self.posted.pop(list) {
            return Some(Completion::Unused { peer, block });
        }
        self.links.get_mut(list)?.state = State::Down;
        Some(Completion::PeerFailed { peer, cause: None })
    }
}

impl<W: Wire> Transport for WireTransport<'_, W> {
    type Error = Infallible;

    fn capabilities(&self) -> Capabilities {
        let (nodes, node, largest_block) = (self.nodes, self.node, self.wire.longest_frame());
        Capabilities { nodes, node, largest_block, trusted: false }
    }

    fn arrival(&self, _peer: NodeId) -> Arrival {
        Arrival::Posted
    }

    fn capacity(&self, _peer: NodeId) -> usize {
        self.sending.depth()
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Infallible>> {
        let reason = match &op {
            Op::Send { peer, block } => self.refusal(*peer, block.bytes().len()),
            Op::Recv { peer, .. } => self.refusal(*peer, 0),
            Op::Return { .. } => Some(Reason::Unsupported),
        };
        if let Some(reason) = reason {
            return Err(Refused { op, reason });
        }
        let refused = match op {
            Op::Send { peer, block } => match self.sending.push(peer.index(), block) {
                Ok(()) => {
                    self.write(peer);
                    return Ok(());
                }
                Err(block) => Op::Send { peer, block },
            },
            Op::Recv { peer, block } => match self.posted.push(peer.index(), block) {
                Ok(()) => return Ok(()),
                Err(block) => Op::Recv { peer, block },
            },
            op @ Op::Return { .. } => op,
        };
        Err(Refused { op: refused, reason: Reason::Busy })
    }

    fn poll_completion(&mut self) -> Option<Completion<Infallible>> {
        let nodes = usize::from(self.nodes);
        for step in 0..nodes {
            let at = (self.turn + step) % nodes;
            let Some(peer) = NodeId::new(at as u16).filter(|peer| *peer != self.node) else { continue };
            if let Some(completion) = self.poll_link(peer) {
                // The other links go first next time.
                self.turn = at + 1;
                return Some(completion);
            }
        }
        None
    }
}

impl<W> Drop for WireTransport<'_, W> {
    /// Empties the memory, which may belong to the caller and outlive this value.
    fn drop(&mut self) {
        self.sending.clear();
        self.posted.clear();
    }
}
