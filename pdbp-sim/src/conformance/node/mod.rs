//! A node of the suite: a transport's endpoint, blocks of its own, and books on every block that moves. `steps` holds the building
//! blocks of cases, `books` the checks, `beside` what nodes of one process know of each other without using the transport.

mod beside;
mod books;
mod steps;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::umb::{BlockPool, stride};
use pdbp_core::{
    Arrival, ArrivedBlock, BlockMemory, Capabilities, Op, Reason, Refused, SealedBlock, Transport,
    VacantBlock,
};

use super::contents::{Contents, Kind};
use super::{Failure, Leaving};
pub(super) use beside::{Call, SharedCounts};
use steps::describe;
pub(super) use steps::{Sending, Traffic};

/// Maximum number of blocks in flight, and of blocks posted, per link.
pub(super) const WINDOW: usize = 8;

/// One node of the domain under test. All checks of the contract that need no plan happen here, on every block of every case:
/// order, number, session and bytes of arriving blocks, identity and bytes of returned blocks.
pub struct Node<T: Transport, M: BlockMemory> {
    // Before the pool: the endpoint releases blocks when it is dropped.
    endpoint: Option<T>,
    pool: BlockPool<M>,
    capabilities: Capabilities,
    links: Vec<Link>,
    leaving: Leaving<T>,
    /// Cuts the connection beneath a link, which restores itself.
    cut: Option<fn(&mut T, NodeId)>,
    patience: Duration,
    /// What the nodes of this process know of each other.
    beside: Option<Arc<SharedCounts>>,
    /// The transport call in progress.
    call: Arc<Call>,
    /// Number of consecutive polls without result, and since when.
    idle: u32,
    idle_since: Option<Instant>,
    /// Whether the case is over at this node; peers may leave.
    pub(super) closing: bool,
}

/// The books on the links to and from one peer.
#[derive(Debug, Default)]
struct Link {
    in_place: bool,
    best_block: usize,
    capacity: usize,
    session: u32,
    next_out: u64,
    next_in: u64,
    away: Vec<(BlockId, Contents)>,
    inbox: VecDeque<(Contents, ArrivedBlock)>,
    posted: Vec<BlockId>,
    sent: u64,
    busy: u64,
    may_fail: bool,
    down: bool,
    /// How often the link came up again.
    restored: u32,
}

impl<T: Transport, M: BlockMemory> Node<T, M> {
    /// Bytes of memory that a node needs in a domain of `nodes` nodes, for blocks with bodies of `body` bytes.
    pub const fn memory(nodes: usize, body: usize) -> usize {
        stride(body) * (2 * WINDOW * nodes + 4)
    }

    /// Creates a node on `endpoint`, with [`memory`](Self::memory) divided into blocks with bodies of `body` bytes. For a full
    /// check, the blocks must be longer than the longest that the transport carries.
    pub fn new(endpoint: T, memory: M, body: usize) -> Self {
        let capabilities = endpoint.capabilities();
        let pool = BlockPool::new(memory, capabilities.node, body);
        let nodes = (0..capabilities.nodes).filter_map(NodeId::new);
        let links = nodes
            .map(|n| Link {
                in_place: endpoint.arrival(n) == Arrival::InPlace,
                best_block: endpoint.best_block(n),
                capacity: endpoint.capacity(n),
                session: endpoint.session(n),
                ..Link::default()
            })
            .collect();
        Self {
            endpoint: Some(endpoint),
            pool,
            capabilities,
            links,
            leaving: Leaving::By(drop),
            cut: None,
            patience: Duration::from_secs(60),
            beside: None,
            call: Arc::default(),
            idle: 0,
            idle_since: None,
            closing: false,
        }
    }

    /// Sets how the node leaves in the cases in which it does. Must be the same for all nodes of a domain.
    #[must_use]
    pub fn leaving(mut self, leaving: Leaving<T>) -> Self {
        self.leaving = leaving;
        self
    }

    /// Sets the function that cuts a link of the transport, like an outage. A short outage goes unnoticed; giving up the link
    /// ([`Transport::disconnect`]) fails it, and it then restores itself. Without this function, the cases with such links are
    /// skipped. Must be the same for all nodes of a domain.
    #[must_use]
    pub fn cut_by(mut self, cut: fn(&mut T, NodeId)) -> Self {
        self.cut = Some(cut);
        self
    }

    /// Sets how long a wait may go on without anything happening before it fails; a minute by default. This is a duration rather
    /// than a count of polls, since on a busy machine a node may poll any number of times before another gets the processor.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// This node.
    pub fn id(&self) -> NodeId {
        self.capabilities.node
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Whether blocks from and to the peer are read in place.
    pub(super) fn in_place(&self, peer: NodeId) -> bool {
        self.links.get(peer.index()).is_some_and(|l| l.in_place)
    }

    /// The block length up to which blocks to the peer travel best, according to the transport.
    pub(super) fn best_block(&self, peer: NodeId) -> usize {
        self.links.get(peer.index()).map_or(0, |l| l.best_block)
    }

    /// Number of blocks that the link takes at a time, according to the transport.
    pub(super) fn capacity(&self, peer: NodeId) -> usize {
        self.links.get(peer.index()).map_or(0, |l| l.capacity)
    }

    /// The longest block that both transport and pool have room for.
    pub(super) fn longest(&self) -> usize {
        self.capabilities.largest_block.min(self.pool.room())
    }

    pub(super) fn room(&self) -> usize {
        self.pool.room()
    }

    pub(super) fn node(&self, index: usize) -> NodeId {
        NodeId::new(index as u16).unwrap_or(self.id())
    }

    /// All other nodes whose link is up.
    pub(super) fn peers(&self) -> Vec<NodeId> {
        let all = (0..self.links.len()).filter(|i| self.links.get(*i).is_some_and(|l| !l.down));
        all.map(|i| self.node(i)).filter(|n| *n != self.id()).collect()
    }

    pub(super) fn failure(&self, what: impl Into<String>) -> Failure {
        Failure { node: self.id(), what: what.into() }
    }

    /// Fails the case unless `holds`.
    pub(super) fn ensure(&self, holds: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
        if holds { Ok(()) } else { Err(self.failure(what())) }
    }

    pub(super) fn endpoint(&mut self) -> Result<&mut T, Failure> {
        let gone = Failure { node: self.capabilities.node, what: "the node has left".to_owned() };
        self.endpoint.as_mut().ok_or(gone)
    }

    fn link(&mut self, peer: NodeId) -> Result<&mut Link, Failure> {
        let gone = Failure {
            node: self.capabilities.node,
            what: format!("the transport names {peer}, which is not in the domain"),
        };
        self.links.get_mut(peer.index()).ok_or(gone)
    }

    /// Number of blocks sent to the peer that have not come back.
    pub(super) fn away(&self, peer: NodeId) -> usize {
        self.links.get(peer.index()).map_or(0, |l| l.away.len())
    }

    /// Whether any block of the case itself, not of a meeting, is away to the peer.
    pub(super) fn has_data_away(&self, peer: NodeId) -> bool {
        self.links.get(peer.index()).is_some_and(|l| l.away.iter().any(|(_, c)| c.kind == Kind::Data))
    }

    /// Number of blocks sent to the peer that came back as sent.
    pub(super) fn sent(&self, peer: NodeId) -> u64 {
        self.links.get(peer.index()).map_or(0, |l| l.sent)
    }

    /// How often the transport refused a block to the peer for lack of room.
    pub(super) fn busy(&self, peer: NodeId) -> u64 {
        self.links.get(peer.index()).map_or(0, |l| l.busy)
    }

    pub(super) fn arrived(&self, peer: NodeId) -> usize {
        self.links.get(peer.index()).map_or(0, |l| l.inbox.len())
    }

    pub(super) fn posted(&self, peer: NodeId) -> usize {
        self.links.get(peer.index()).map_or(0, |l| l.posted.len())
    }

    pub(super) fn is_down(&self, peer: NodeId) -> bool {
        self.links.get(peer.index()).is_none_or(|l| l.down)
    }

    /// Allows the peer's link to fail from now on.
    pub(super) fn let_fail(&mut self, peer: NodeId) {
        if let Some(link) = self.links.get_mut(peer.index()) {
            link.may_fail = true;
        }
    }

    /// Whether links can be cut, and are restored.
    pub(super) fn restores(&self) -> bool {
        self.cut.is_some()
    }

    /// Cuts the link to a peer for a moment.
    pub(super) fn cut(&mut self, peer: NodeId) -> Result<(), Failure> {
        if let Some(cut) = self.cut {
            cut(self.endpoint()?, peer);
        }
        Ok(())
    }

    /// How often the peer's link came up again.
    pub(super) fn restored(&self, peer: NodeId) -> u32 {
        self.links.get(peer.index()).map_or(0, |l| l.restored)
    }

    /// Lets the nodes of one process know of each other.
    pub(super) fn share_counts(&mut self, beside: &Arc<SharedCounts>) {
        self.beside = Some(Arc::clone(beside));
    }

    pub(super) fn has_shared_counts(&self) -> bool {
        self.beside.is_some()
    }

    /// The call in progress, and the time after which it counts as blocking.
    pub(super) fn call(&self) -> (&Arc<Call>, Duration) {
        (&self.call, self.patience)
    }

    pub(super) fn leaves(&self) -> bool {
        matches!(self.leaving, Leaving::By(_))
    }

    /// Leaves the domain.
    pub(super) fn leave(&mut self) {
        for link in &mut self.links {
            link.inbox.clear();
        }
        if let (Some(endpoint), Leaving::By(leave)) = (self.endpoint.take(), &self.leaving) {
            leave(endpoint);
        }
    }

    /// Takes a block from the pool, not yet written.
    pub(super) fn vacant(&mut self) -> Result<VacantBlock, Failure> {
        self.pool.take().ok_or_else(|| Failure {
            node: self.capabilities.node,
            what: "the pool is empty: blocks have not come back, or it has less than Node::memory".to_owned(),
        })
    }

    pub(super) fn seal(&self, block: VacantBlock, length: usize) -> SealedBlock {
        self.pool.seal(block, length)
    }

    /// Takes back the block that a refused operation holds.
    pub(super) fn take_back(&mut self, op: Op) -> Result<(), Failure> {
        let given = match op {
            Op::Send { block, .. } => self.pool.give_sealed(block).is_ok(),
            Op::Recv { block, .. } => self.pool.give_vacant(block).is_ok(),
            Op::Return { block, .. } => self.pool.give_arrived(block).is_ok(),
        };
        self.ensure(given, || "an operation was handed back with a block that is not this node's".to_owned())
    }

    /// Submits an operation, and checks that a refusal hands back the same operation.
    pub(super) fn submit(&mut self, op: Op) -> Result<Option<Refused<T::Error>>, Failure> {
        let before = describe(&op);
        let call = Arc::clone(&self.call);
        let endpoint = self.endpoint()?;
        match call.of("submit", || endpoint.submit(op)) {
            Ok(()) => Ok(None),
            Err(refused) => {
                let after = describe(&refused.op);
                self.ensure(before == after, || {
                    format!("submit was given {before:?} and handed back {after:?}")
                })?;
                Ok(Some(refused))
            }
        }
    }

    /// Sends the next block to the peer, unless there is no room at present, or the peer is down and may be.
    pub(super) fn try_send(&mut self, peer: NodeId, kind: Kind, length: usize) -> Result<Sending, Failure> {
        if self.away(peer) >= WINDOW {
            return Ok(Sending::Later);
        }
        let Some(mut block) = self.pool.take() else { return Ok(Sending::Later) };
        let Link { next_out: sequence, session, .. } = *self.link(peer)?;
        let contents = Contents { source: self.id(), dest: peer, kind, session, sequence, length };
        contents.write(block.bytes_mut());
        let block = self.pool.seal(block, length);
        let id = block.id();
        let Some(refused) = self.submit(Op::Send { peer, block })? else {
            let link = self.link(peer)?;
            link.next_out += 1;
            link.away.push((id, contents));
            return Ok(Sending::Sent);
        };
        if let Op::Send { block, .. } = &refused.op {
            let same = contents.compare(block.bytes());
            same.map_err(|e| self.failure(format!("a block handed back by submit {e}")))?;
        }
        let outcome = match &refused.reason {
            Reason::Busy => {
                self.link(peer)?.busy += 1;
                Ok(Sending::Later)
            }
            Reason::PeerFailed if self.link(peer)?.may_fail => Ok(Sending::Never),
            reason => {
                Err(self.failure(format!("a block of {length} bytes to {peer} was refused: {reason:?}")))
            }
        };
        self.take_back(refused.op)?;
        outcome
    }

    /// With posted arrival: posts until `want` blocks from the peer are posted or have arrived.
    pub(super) fn keep_posted(&mut self, peer: NodeId, want: usize) -> Result<(), Failure> {
        while !self.in_place(peer) && self.posted(peer) + self.arrived(peer) < want.min(WINDOW) {
            let Some(block) = self.pool.take() else { return Ok(()) };
            let id = block.id();
            let Some(refused) = self.submit(Op::Recv { peer, block })? else {
                self.link(peer)?.posted.push(id);
                continue;
            };
            let outcome = match &refused.reason {
                Reason::Busy => Ok(()),
                Reason::PeerFailed if self.link(peer)?.may_fail => Ok(()),
                reason => Err(self.failure(format!("a block posted for {peer} was refused: {reason:?}"))),
            };
            self.take_back(refused.op)?;
            return outcome;
        }
        Ok(())
    }

    /// Takes the oldest block from the peer that the case has not taken yet.
    pub(super) fn next_arrived(
        &mut self,
        peer: NodeId,
        kind: Kind,
        length: usize,
    ) -> Result<Option<Held>, Failure> {
        let Some((contents, block)) = self.link(peer)?.inbox.pop_front() else { return Ok(None) };
        self.ensure(contents.kind == kind && contents.length == length, || {
            format!("{peer} should have sent {kind:?} of {length} bytes next, and sent {contents:?}")
        })?;
        Ok(Some(Held { contents, block }))
    }

    /// Returns an arrived block to its owner. Its bytes must not have changed meanwhile.
    pub(super) fn release(&mut self, held: Held) -> Result<(), Failure> {
        let Held { contents, block } = held;
        contents.compare(block.bytes()).map_err(|e| {
            self.failure(format!("a block from {} changed while it was held: {e}", contents.source))
        })?;
        let peer = contents.source;
        if !self.in_place(peer) {
            let given = self.pool.give_arrived(block).is_ok();
            return self.ensure(given, || format!("a block filled by {peer} is not of this node's pool"));
        }
        match self.submit(Op::Return { peer, block })? {
            None => Ok(()),
            Some(Refused { reason: Reason::PeerFailed, .. }) if self.link(peer)?.may_fail || self.closing => {
                Ok(())
            }
            Some(Refused { reason, .. }) => {
                Err(self.failure(format!("a block given back to {peer} was refused: {reason:?}")))
            }
        }
    }
}

/// An arrived block that a case holds.
#[derive(Debug)]
pub(super) struct Held {
    contents: Contents,
    block: ArrivedBlock,
}
