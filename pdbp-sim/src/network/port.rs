//! A node's end of the network.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::umb::Lender;
use pdbp_core::{Arrival, ArrivedBlock, Capabilities, Completion, Op, Reason, Refused, Transport};

use super::pair::Belief;
use super::wire::{Net, Pace, Ready};

/// Why a link failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Nothing was heard from the peer, not even acknowledgements, for this many nanoseconds.
    Silence(u64),
    /// The peer crashed.
    Crash,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silence(ns) => write!(f, "the peer has been silent for {ns} ns"),
            Self::Crash => f.write_str("the peer has crashed"),
        }
    }
}

impl std::error::Error for Cause {}

/// One life of a node on a [`Network`](super::Network). Dropping it crashes the node.
#[derive(Debug)]
pub struct Port {
    net: Arc<Mutex<Net>>,
    node: u16,
    life: u32,
    /// In place: the blocks that this node is reading, by address.
    held: BTreeMap<usize, Held>,
    lender: Lender,
}

/// A copy of a peer's block.
#[derive(Debug)]
struct Held {
    id: BlockId,
    session: u32,
    /// Keeps the bytes in place.
    _words: Arc<[u64]>,
}

pub(super) fn lock(net: &Mutex<Net>) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    pub(super) fn new(net: &Arc<Mutex<Net>>, node: u16, life: u32) -> Self {
        Self { net: Arc::clone(net), node, life, held: BTreeMap::new(), lender: Lender::new() }
    }

    /// Number of blocks posted for a peer that have not come back, filled or unused.
    pub fn posted(&self, peer: NodeId) -> u32 {
        if self.index_of(peer).is_none() {
            return 0;
        }
        let mut net = lock(&self.net);
        net.end(self.node, peer.raw()).posts_away
    }

    fn index_of(&self, peer: NodeId) -> Option<u16> {
        let known = peer.index() < lock(&self.net).nodes.len() && peer.raw() != self.node;
        known.then(|| peer.raw())
    }

    fn is_alive(&self, net: &Net) -> bool {
        net.nodes.get(usize::from(self.node)).is_some_and(|n| n.alive && n.life == self.life)
    }

    fn return_block(&mut self, peer: NodeId, block: ArrivedBlock) -> Result<(), Refused<Cause>> {
        let address = block.bytes().as_ptr().addr();
        let is_it = |held: &Held| held.id == block.id() && held.id.segment == peer;
        if !self.held.get(&address).is_some_and(is_it) {
            return Err(Refused { op: Op::Return { peer, block }, reason: Reason::Unsupported });
        }
        if let Err(block) = self.lender.reclaim(block) {
            return Err(Refused { op: Op::Return { peer, block }, reason: Reason::Unsupported });
        }
        if let Some(held) = self.held.remove(&address) {
            let mut net = lock(&self.net);
            if self.is_alive(&net) {
                net.return_block(self.node, peer.raw(), held.id.index, held.session);
            }
        }
        Ok(())
    }

    #[allow(unsafe_code)]
    fn read_in_place(&mut self, id: BlockId, words: Arc<[u64]>, length: u32, session: u32) -> ArrivedBlock {
        let base = NonNull::from(&*words).cast::<u8>();
        self.held.insert(base.as_ptr().addr(), Held { id, session, _words: words });
        // SAFETY: the words are aligned to 8 and hold `length` bytes; nobody writes them, and `held` keeps them until the token
        // comes back in `give_back` or the port is dropped, or forever if the token is still out then.
        unsafe { self.lender.lend(id, base, length) }
    }
}

impl Transport for Port {
    type Error = Cause;

    fn capabilities(&self) -> Capabilities {
        let net = lock(&self.net);
        Capabilities {
            nodes: net.nodes.len() as u16,
            node: super::wire::id(self.node),
            largest_block: net.physics.largest_block,
            trusted: false,
        }
    }

    fn arrival(&self, _: NodeId) -> Arrival {
        lock(&self.net).physics.arrival
    }

    fn capacity(&self, _: NodeId) -> usize {
        lock(&self.net).physics.in_flight
    }

    fn has_ended(&self, peer: NodeId) -> bool {
        let net = lock(&self.net);
        net.physics.crash_sight == super::CrashSight::AtOnce && !net.is_alive(peer.raw())
    }

    fn disconnect(&mut self, peer: NodeId) {
        let Some(peer) = self.index_of(peer) else { return };
        let mut net = lock(&self.net);
        if self.is_alive(&net) {
            net.fail(self.node, peer);
        }
    }

    fn session(&self, peer: NodeId) -> u32 {
        let Some(peer) = self.index_of(peer) else { return 0 };
        let net = lock(&self.net);
        // Once a session is over, this is already the next one, of which the other end learns when it begins.
        net.pairs.get(&super::wire::key(self.node, peer)).map_or(0, |pair| pair.session)
    }

    fn restores_links(&self) -> bool {
        true
    }

    fn is_vacant(&self, peer: NodeId) -> bool {
        let Some(peer) = self.index_of(peer) else { return false };
        let mut net = lock(&self.net);
        net.tells_lives && net.end(self.node, peer).belief == Belief::Down
    }

    fn vacate(&mut self, peer: NodeId) {
        let Some(peer) = self.index_of(peer) else { return };
        let mut net = lock(&self.net);
        // Only the primary reassigns places, and never one that is connected.
        let is_connected = net.is_alive(peer) && net.end(self.node, peer).belief == Belief::Up;
        if net.nodes.get(usize::from(self.node)).is_some_and(|state| state.leads)
            && !is_connected
            && let Some(state) = net.nodes.get_mut(usize::from(peer))
        {
            state.vacated = true;
        }
    }

    fn life(&self, peer: NodeId) -> u64 {
        let net = lock(&self.net);
        if !net.tells_lives {
            return 0;
        }
        let peer = peer.raw();
        if peer == self.node {
            return of_process(self.life);
        }
        let pair = net.pairs.get(&super::wire::key(self.node, peer));
        let of = pair.map_or(0, |pair| pair.lives[usize::from(peer > self.node)]);
        of_process(if of > 0 { of } else { net.life(peer) })
    }

    fn lead(&mut self, _: Option<NodeId>, term: Option<u32>) {
        let mut net = lock(&self.net);
        if self.is_alive(&net)
            && let Some(state) = net.nodes.get_mut(usize::from(self.node))
        {
            state.leads = term.is_some();
        }
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Cause>> {
        let (Op::Send { peer, .. } | Op::Recv { peer, .. } | Op::Return { peer, .. }) = &op;
        let Some(to) = self.index_of(*peer) else {
            return Err(Refused { op, reason: Reason::PeerFailed });
        };
        let peer = *peer;
        let net = Arc::clone(&self.net);
        let mut net = lock(&net);
        let (alive, arrival) = (self.is_alive(&net), net.physics.arrival);
        match op {
            Op::Return { block, .. } if arrival == Arrival::InPlace => {
                drop(net);
                self.return_block(peer, block)
            }
            op if !alive => Err(Refused { op, reason: Reason::PeerFailed }),
            Op::Send { block, .. } => net
                .send(self.node, to, block)
                .map_err(|(block, reason)| Refused { op: Op::Send { peer, block }, reason }),
            Op::Recv { block, .. } if arrival == Arrival::Posted => net
                .post(self.node, to, block)
                .map_err(|block| Refused { op: Op::Recv { peer, block }, reason: Reason::PeerFailed }),
            op => Err(Refused { op, reason: Reason::Unsupported }),
        }
    }

    fn poll_completion(&mut self) -> Option<Completion<Cause>> {
        let net = Arc::clone(&self.net);
        let mut net = lock(&net);
        if !self.is_alive(&net) {
            return None;
        }
        let me = usize::from(self.node);
        if net.pace == Pace::Polls && net.nodes.get(me).is_some_and(|n| n.ready.is_empty()) {
            net.step(u64::MAX);
        }
        match net.nodes.get_mut(me)?.ready.pop_front()? {
            Ready::InPlace { peer, id, words, length, session } => {
                drop(net);
                let block = self.read_in_place(id, words, length, session);
                Some(Completion::Received { peer, block })
            }
            Ready::Done(completion) => {
                match &completion {
                    Completion::Received { peer, .. } | Completion::Unused { peer, .. } => {
                        let end = net.end(self.node, peer.raw());
                        end.posts_away = end.posts_away.saturating_sub(1);
                    }
                    Completion::PeerFailed { peer, .. } | Completion::PeerRestored { peer, .. } => {
                        let end = net.end(self.node, peer.raw());
                        end.untold = end.untold.saturating_sub(1);
                    }
                    Completion::Sent { .. } | Completion::Failed { .. } => {}
                }
                Some(completion)
            }
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if self.lender.outstanding() > 0 {
            std::mem::forget(std::mem::take(&mut self.held));
        }
        let mut net = lock(&self.net);
        if self.is_alive(&net) && !net.over {
            net.crash(self.node);
        }
    }
}

/// Returns the number of the process that a life of a node stands for; a founder is number 0.
fn of_process(life: u32) -> u64 {
    life.saturating_sub(1).into()
}
