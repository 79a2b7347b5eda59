//! A wrapper that makes a transport behave as badly as its contract allows, and slightly worse, all determined by a seed.
//!
//! | fault | what the user of the transport sees |
//! |---|---|
//! | busy | [`Reason::Busy`] for sends and posts. Never for [`Op::Return`]: a reader could not get rid of the block |
//! | delay | completions some polls later, without changing their order on each link |
//! | corruption | changed bytes in arrived blocks; [`Capabilities::trusted`] is false |
//! | failure | the link to one peer goes down at a certain operation, or when its [`Breaker`] is tripped |
//!
//! Bytes are never changed in a peer's memory: a block that arrived in place is copied, and the copy is changed. On links with
//! posted arrival, an injector that can corrupt or fail links posts blocks of its own and copies what arrives, so that it has the
//! user's blocks at hand when it needs them. Its own blocks are on the heap, or, for a transport that takes only blocks of its own
//! memory, in the memory passed to [`with_memory`](FaultInjector::with_memory).

#[allow(unsafe_code)]
mod copies;
mod faults;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockMemory, BlockPool, HeapMemory, stride};
use pdbp_core::{
    Arrival, ArrivedBlock, Capabilities, Completion, Op, Reason, Refused, Transport, VacantBlock,
};

use crate::random::Random;
use copies::Copies;
pub use faults::{Breaker, Chance, Faults, Injected, LinkFailure};

/// A transport with faults.
pub struct FaultInjector<T: Transport, M: BlockMemory = HeapMemory> {
    capabilities: Capabilities,
    faults: Faults,
    random: Random,
    links: Vec<Link<T>>,
    polls: u64,
    /// The link served next.
    turn: usize,
    copies: Copies,
    /// Dropped after its blocks, which are in the fields above, and before the pool below, whose blocks it holds.
    inner: T,
    /// Blocks to post instead of the user's, on links with posted arrival.
    shadows: Option<BlockPool<M>>,
    breaker: Breaker,
    injected: Injected,
}

struct Link<T: Transport> {
    /// Completions, each with the poll from which on it may be reported.
    queue: VecDeque<(u64, Completion<T::Error>)>,
    /// The user's posted blocks, if shadows are posted instead.
    posted: VecDeque<VacantBlock>,
    operations: u64,
    failed: bool,
}

impl<T: Transport> FaultInjector<T> {
    /// Wraps `inner`; any blocks that it must post itself are on the heap.
    pub fn new(inner: T, faults: Faults) -> Self {
        let capabilities = inner.capabilities();
        let shadows = needs_shadows(&inner, &faults).then(|| shadow_memory(&capabilities)).flatten();
        Self::assemble(inner, faults, shadows)
    }
}

impl<T: Transport, M: BlockMemory> FaultInjector<T, M> {
    /// Wraps `inner`; any blocks that it must post itself are in `memory`. That must hold as many as the user posts, or the user
    /// finds the transport busy.
    pub fn with_memory(inner: T, faults: Faults, memory: M) -> Self {
        let shadows = needs_shadows(&inner, &faults).then_some(memory);
        Self::assemble(inner, faults, shadows)
    }

    fn assemble(inner: T, faults: Faults, shadows: Option<M>) -> Self {
        let capabilities = inner.capabilities();
        let link = || Link { queue: VecDeque::new(), posted: VecDeque::new(), operations: 0, failed: false };
        let links = (0..capabilities.nodes).map(|_| link()).collect();
        let body = capabilities.largest_block.saturating_sub(BLOCK_HEADER);
        let shadows = shadows.map(|memory| BlockPool::new(memory, capabilities.node, body));
        let random = Random::new(faults.seed ^ u64::from(capabilities.node.raw()));
        Self {
            inner,
            capabilities,
            faults,
            random,
            links,
            polls: 0,
            turn: 0,
            copies: Copies::default(),
            shadows,
            breaker: Breaker::default(),
            injected: Injected::default(),
        }
    }

    /// The faults injected so far.
    pub fn injected(&self) -> Injected {
        self.injected
    }

    /// Returns the breaker that takes down the link given in [`Faults::fail`].
    pub fn breaker(&self) -> Breaker {
        self.breaker.clone()
    }

    /// Sets how many arrived blocks are changed from now on. Has no effect on an injector made with `corrupt: None`, whose
    /// capabilities promise trust.
    pub fn set_corruption(&mut self, chance: Chance) {
        if let Some(corrupt) = &mut self.faults.corrupt {
            *corrupt = chance;
        }
    }

    /// The wrapped transport.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn post(&mut self, peer: NodeId, block: VacantBlock) -> Result<(), Refused<T::Error>> {
        let refuse = |block, reason| Err(Refused { op: Op::Recv { peer, block }, reason });
        let Some(pool) = self.shadows.as_mut().filter(|_| self.inner.arrival(peer) == Arrival::Posted) else {
            return self.inner.submit(Op::Recv { peer, block });
        };
        let Some(shadow) = pool.take() else { return refuse(block, Reason::Busy) };
        match self.inner.submit(Op::Recv { peer, block: shadow }) {
            Ok(()) => {
                if let Some(link) = self.links.get_mut(peer.index()) {
                    link.posted.push_back(block);
                }
                Ok(())
            }
            Err(Refused { op, reason }) => {
                if let Op::Recv { block: shadow, .. } = op {
                    let _ = pool.give_vacant(shadow);
                }
                refuse(block, reason)
            }
        }
    }

    fn return_block(&mut self, peer: NodeId, block: ArrivedBlock) -> Result<(), Refused<T::Error>> {
        let original = match self.copies.take_original(block) {
            Ok(original) => original,
            Err(block) => return self.inner.submit(Op::Return { peer, block }),
        };
        self.inner.submit(Op::Return { peer, block: original })
    }

    /// Takes the link down.
    fn fail(&mut self, peer: NodeId) {
        let Some(link) = self.links.get_mut(peer.index()).filter(|l| !l.failed) else { return };
        link.failed = true;
        self.injected.failures += 1;
        let now = self.polls;
        let unused = std::mem::take(&mut link.posted);
        link.queue.extend(unused.into_iter().map(|block| (now, Completion::Unused { peer, block })));
        link.queue.push_back((now, Completion::PeerFailed { peer, cause: None }));
    }

    /// Counts an operation; returns whether the link goes down at it.
    fn is_due(&mut self, peer: NodeId) -> bool {
        let Some(link) = self.links.get_mut(peer.index()) else { return false };
        link.operations += 1;
        let operations = link.operations;
        self.faults
            .fail
            .is_some_and(|f| f.peer == peer && (f.after == operations || self.breaker.is_tripped()))
    }

    fn has_failed(&self, peer: NodeId) -> bool {
        self.links.get(peer.index()).is_some_and(|l| l.failed)
    }

    /// Whether the user has yet to be told of an end or a beginning of the link. Blocks it submits before that are for a session that is over, and
    /// must not leave in the next one.
    fn is_untold(&self, peer: NodeId) -> bool {
        let is_news = |(_, completion): &(u64, Completion<T::Error>)| {
            matches!(completion, Completion::PeerFailed { .. } | Completion::PeerRestored { .. })
        };
        self.links.get(peer.index()).is_some_and(|link| link.queue.iter().any(is_news))
    }

    /// Queues a completion of the wrapped transport, changed where necessary.
    fn admit(&mut self, completion: Completion<T::Error>) {
        let (peer, completion) = match completion {
            Completion::Sent { peer, block } if self.has_failed(peer) => {
                (peer, Some(Completion::Failed { peer, block }))
            }
            Completion::Received { peer, block } => (peer, self.received(peer, block)),
            Completion::Unused { peer, block } => (peer, self.unused(peer, block)),
            // A link that was taken down here stays down.
            Completion::PeerFailed { peer, .. } | Completion::PeerRestored { peer, .. }
                if self.has_failed(peer) =>
            {
                (peer, None)
            }
            Completion::Sent { peer, .. }
            | Completion::Failed { peer, .. }
            | Completion::PeerFailed { peer, .. }
            | Completion::PeerRestored { peer, .. } => (peer, Some(completion)),
        };
        let Some(completion) = completion else { return };
        let delay = self.random.below(u64::from(self.faults.delay) + 1);
        self.injected.delayed += u64::from(delay > 0);
        if let Some(link) = self.links.get_mut(peer.index()) {
            link.queue.push_back((self.polls + delay, completion));
        }
    }

    fn received(&mut self, peer: NodeId, block: ArrivedBlock) -> Option<Completion<T::Error>> {
        let failed = self.has_failed(peer);
        let corrupt = !failed && self.faults.corrupt.is_some_and(|chance| chance.strikes(&mut self.random));
        let in_place = self.inner.arrival(peer) == Arrival::InPlace;
        let block = if let Some(pool) = self.shadows.as_mut().filter(|_| !in_place) {
            let mine = self.links.get_mut(peer.index()).and_then(|l| l.posted.pop_front());
            let filled = mine.map(|mut mine| {
                let length = block.bytes().len().min(mine.bytes_mut().len());
                let bytes = mine.bytes_mut().get_mut(..length).unwrap_or(&mut []);
                bytes.copy_from_slice(block.bytes().get(..length).unwrap_or(&[]));
                if corrupt {
                    corrupt_bytes(&mut self.random, bytes);
                }
                mine.into_arrived(length)
            });
            let _ = pool.give_arrived(block);
            if filled.is_none() {
                self.post_again(peer);
            }
            filled?
        } else if failed && in_place {
            // The link is down for the user; the peer still gets its block back.
            let _ = self.inner.submit(Op::Return { peer, block });
            return None;
        } else if corrupt && in_place {
            let random = &mut self.random;
            self.copies.copy(block, |bytes| corrupt_bytes(random, bytes))
        } else {
            block
        };
        self.injected.corrupted += u64::from(corrupt);
        Some(Completion::Received { peer, block })
    }

    /// Posts another block after the link went down for the user: the peer continues, and must not find the link full.
    fn post_again(&mut self, peer: NodeId) {
        let Some(pool) = &mut self.shadows else { return };
        if let Some(block) = pool.take()
            && let Err(Refused { op: Op::Recv { block, .. }, .. }) =
                self.inner.submit(Op::Recv { peer, block })
        {
            let _ = pool.give_vacant(block);
        }
    }

    fn unused(&mut self, peer: NodeId, block: VacantBlock) -> Option<Completion<T::Error>> {
        let Some(pool) = &mut self.shadows else { return Some(Completion::Unused { peer, block }) };
        let _ = pool.give_vacant(block);
        let block = self.links.get_mut(peer.index())?.posted.pop_front()?;
        Some(Completion::Unused { peer, block })
    }
}

impl<T: Transport, M: BlockMemory> Transport for FaultInjector<T, M> {
    type Error = T::Error;
    pdbp_core::forward_links!(inner);

    fn capabilities(&self) -> Capabilities {
        let trusted = self.capabilities.trusted && self.faults.corrupt.is_none();
        Capabilities { trusted, ..self.capabilities }
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<T::Error>> {
        let (peer, can_wait) = match &op {
            Op::Send { peer, .. } | Op::Recv { peer, .. } => (*peer, true),
            Op::Return { peer, .. } => (*peer, false),
        };
        if self.is_due(peer) {
            self.fail(peer);
        }
        if can_wait && (self.has_failed(peer) || self.is_untold(peer)) {
            return Err(Refused { op, reason: Reason::PeerFailed });
        }
        if can_wait && self.faults.busy.strikes(&mut self.random) {
            self.injected.refused += 1;
            return Err(Refused { op, reason: Reason::Busy });
        }
        match op {
            Op::Recv { peer, block } => self.post(peer, block),
            Op::Return { peer, block } => self.return_block(peer, block),
            op => self.inner.submit(op),
        }
    }

    fn poll_completion(&mut self) -> Option<Completion<T::Error>> {
        self.polls += 1;
        if let Some(LinkFailure { peer, .. }) = self.faults.fail.filter(|_| self.breaker.is_tripped()) {
            self.fail(peer);
        }
        if let Some(completion) = self.inner.poll_completion() {
            self.admit(completion);
        }
        let (now, links) = (self.polls, self.links.len());
        for _ in 0..links {
            let at = self.turn;
            self.turn = if at + 1 == links { 0 } else { at + 1 };
            let Some(link) = self.links.get_mut(at) else { continue };
            if link.queue.front().is_some_and(|(due, _)| *due <= now) {
                return link.queue.pop_front().map(|(_, completion)| completion);
            }
        }
        None
    }
}

/// Whether the injector must post blocks of its own instead of the user's.
fn needs_shadows(inner: &impl Transport, faults: &Faults) -> bool {
    let Capabilities { nodes, node, .. } = inner.capabilities();
    let mut peers = (0..nodes).filter_map(NodeId::new).filter(|n| *n != node);
    (faults.corrupt.is_some() || faults.fail.is_some())
        && peers.any(|peer| inner.arrival(peer) == Arrival::Posted)
}

fn shadow_memory(capabilities: &Capabilities) -> Option<HeapMemory> {
    const MOST_BYTES: usize = 64 << 20;
    let stride = stride(capabilities.largest_block.saturating_sub(BLOCK_HEADER));
    HeapMemory::new((MOST_BYTES / stride).clamp(16, 1024) * stride)
}

/// Changes each of one to four adjacent bytes: a burst that a CRC-32 always detects.
fn corrupt_bytes(random: &mut Random, bytes: &mut [u8]) {
    let at = random.below(bytes.len() as u64) as usize;
    let burst = 1 + random.below(4) as usize;
    for byte in bytes.iter_mut().skip(at).take(burst) {
        *byte ^= 1 + random.below(255) as u8;
    }
}
