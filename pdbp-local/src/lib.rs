//! PDBP's in-process transport: nodes are threads of one process, and a block changes hands as an address.
//!
//! Every ordered pair of nodes has two single-producer rings: one carries sealed blocks to the reader, the other carries them back when the last
//! reader is done. With [`Arrival::InPlace`] nothing is copied; with [`Arrival::Posted`] the block is copied into one that the receiver has
//! posted, as a network would do, which lets tests run engines on that kind of link. A network may have links of both kinds:
//! [`Local::network_of_hosts`] copies between hosts only, as MPI does.
//!
//! ```text
//!   node A                            node B
//!   submit(Send) ──▶ ring A→B ──▶ Completion::Received      (reads A's memory)
//!   Completion::Sent ◀── ring back ◀── submit(Return)
//! ```
//!
//! A node that is dropped abandons its rings. Its peers notice, get back the blocks that it still held ([`Completion::Failed`]) and a
//! [`Completion::PeerFailed`]. The memory of all nodes lives as long as any of them. If a node is dropped while blocks of a peer are still read
//! in place, those blocks never come back to the peer, and the memory stays for ever.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod blocks;
mod doorbell;
#[allow(unsafe_code)]
mod mapping;
#[allow(unsafe_code)]
pub mod reading;
pub mod slate;
mod stores;
mod sync;
#[cfg(test)]
mod tests;
#[allow(unsafe_code)]
mod words;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pdbp_core::id::NodeId;
use pdbp_core::umb::{HeapMemory, MemoryKeeper};
use pdbp_core::{
    Arrival, ArrivedBlock, Capabilities, Completion, Op, Reason, Refused, SealedBlock, Transport, VacantBlock,
};
use rtrb::{Consumer, Producer, RingBuffer};

use blocks::{BlockRef, Borrowed, Outstanding};
pub use doorbell::Doorbell;
pub use stores::{Copier, StoreChoice};
pub use words::copy_lines as copy_past_caches;

/// One node's end of the in-process network.
pub struct Local {
    node: NodeId,
    largest_block: usize,
    links: Vec<Link>,
    /// The index in `links` of the link to a node, by the node's index.
    places: Vec<Option<usize>>,
    /// This node's blocks that peers hold, by block index.
    outstanding: Outstanding,
    doorbells: Arc<[Arc<Doorbell>]>,
    /// The memory that this node brought to the network.
    memory: MemoryKeeper,
    /// Keeps every node's blocks in place while this node may read them.
    memories: Arc<[MemoryKeeper]>,
    ready: VecDeque<Completion<Infallible>>,
    /// The peer to poll next.
    turn: usize,
}

/// The rings to and from one peer.
struct Link {
    peer: NodeId,
    bell: Arc<Doorbell>,
    arrival: Arrival,
    out: Producer<BlockRef>,
    back: Consumer<BlockRef>,
    incoming: Consumer<BlockRef>,
    returning: Producer<BlockRef>,
    posted: VecDeque<VacantBlock>,
    /// Blocks of ours that the peer holds; at most the rings' capacity, so giving one back never finds a full ring.
    outstanding: usize,
    /// Blocks of the peer that are read in place.
    borrowed: Borrowed,
    /// The next poll checks for blocks of the peer alone.
    skips_back: bool,
    /// Blocks sent to the peer, and blocks taken from its ring.
    sent: u64,
    taken: u64,
    /// How many of the blocks sent to it the peer keeps, since they were being read when it was dropped; and the count that this node reports to
    /// the peer.
    kept: Arc<AtomicU64>,
    keeps: Arc<AtomicU64>,
    capacity: usize,
    failed: bool,
}

impl Local {
    /// Returns the ends of a network with one node per element of `memories`, in which each ordered pair of nodes has up to `in_flight` blocks
    /// in flight (at least 1; engines need 3). A node sends only blocks of its own memory.
    pub fn network(
        memories: &[HeapMemory],
        arrival: Arrival,
        largest_block: usize,
        in_flight: usize,
    ) -> Vec<Self> {
        Self::network_of_links(memories, |_, _| Some(arrival), largest_block, in_flight)
    }

    /// Like [`network`](Self::network), for nodes on several hosts: blocks arrive in place between nodes of one host, and are posted between
    /// nodes of different hosts. `hosts` has the host of each node, numbered freely; a node beyond its end is on a host of its own.
    ///
    /// ```
    /// use pdbp_core::id::NodeId;
    /// use pdbp_core::umb::HeapMemory;
    /// use pdbp_core::{Arrival, Transport};
    /// use pdbp_local::Local;
    ///
    /// let memories: Vec<_> = (0..3).filter_map(|_| HeapMemory::new(4096)).collect();
    /// let ends = Local::network_of_hosts(&memories, &[0, 0, 1], 1024, 4);
    /// let arrivals: Vec<_> = (1..3).filter_map(NodeId::new).map(|peer| ends[0].arrival(peer)).collect();
    /// assert_eq!(arrivals, [Arrival::InPlace, Arrival::Posted]);
    /// ```
    pub fn network_of_hosts(
        memories: &[HeapMemory],
        hosts: &[usize],
        largest_block: usize,
        in_flight: usize,
    ) -> Vec<Self> {
        let arrival = |a: usize, b: usize| match (hosts.get(a), hosts.get(b)) {
            (Some(a), Some(b)) if a == b => Some(Arrival::InPlace),
            _ => Some(Arrival::Posted),
        };
        Self::network_of_links(memories, arrival, largest_block, in_flight)
    }

    /// Like [`network`](Self::network), with links of any kind: `arrival` returns how blocks arrive between two nodes, the same for both
    /// directions; `None` means that they have no link.
    pub fn network_of_links(
        memories: &[HeapMemory],
        arrival: impl Fn(usize, usize) -> Option<Arrival>,
        largest_block: usize,
        in_flight: usize,
    ) -> Vec<Self> {
        let nodes = memories.len();
        let in_flight = in_flight.max(1);
        let memories: Arc<[MemoryKeeper]> = memories.iter().map(HeapMemory::keeper).collect();
        let doorbells: Arc<[Arc<Doorbell>]> = (0..nodes).map(|_| Arc::new(Doorbell::default())).collect();
        let mut out = grid(nodes);
        let mut incoming = grid(nodes);
        let mut returning = grid(nodes);
        let mut back = grid(nodes);
        let (mut kept, mut keeps) = (grid(nodes), grid(nodes));
        for (from, to) in pairs(nodes).filter(|(a, b)| arrival(*a, *b).is_some()) {
            let (producer, consumer) = RingBuffer::new(in_flight);
            out[from][to] = Some(producer);
            incoming[to][from] = Some(consumer);
            let (producer, consumer) = RingBuffer::new(in_flight);
            returning[to][from] = Some(producer);
            back[from][to] = Some(consumer);
            let blocks = Arc::new(AtomicU64::new(0));
            kept[from][to] = Some(Arc::clone(&blocks));
            keeps[to][from] = Some(blocks);
        }
        let ids = (0..nodes).filter_map(|i| NodeId::new(i as u16));
        ids.enumerate()
            .map(|(i, node)| {
                let links: Vec<Link> = (0..nodes)
                    .filter_map(|j| {
                        Some(Link {
                            peer: NodeId::new(j as u16)?,
                            bell: Arc::clone(&doorbells[j]),
                            arrival: arrival(i, j)?,
                            out: out[i][j].take()?,
                            back: back[i][j].take()?,
                            incoming: incoming[i][j].take()?,
                            returning: returning[i][j].take()?,
                            posted: VecDeque::new(),
                            outstanding: 0,
                            borrowed: Borrowed::default(),
                            skips_back: false,
                            sent: 0,
                            taken: 0,
                            kept: kept[i][j].take()?,
                            keeps: keeps[i][j].take()?,
                            capacity: in_flight,
                            failed: false,
                        })
                    })
                    .collect();
                Self {
                    node,
                    largest_block,
                    places: places_of(&links, nodes),
                    links,
                    outstanding: Outstanding::default(),
                    doorbells: Arc::clone(&doorbells),
                    memory: memories[i].clone(),
                    memories: Arc::clone(&memories),
                    ready: VecDeque::new(),
                    turn: 0,
                }
            })
            .collect()
    }

    /// The bell that peers ring when they have pushed something into this node's rings.
    pub fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(&self.doorbells[self.node.index()])
    }

    /// The link to a node, whatever its state.
    #[inline]
    fn link_to(&self, peer: NodeId) -> Option<&Link> {
        self.links.get((*self.places.get(peer.index())?)?)
    }

    /// The link to a node unless it has failed.
    #[inline]
    fn link(&mut self, peer: NodeId) -> Option<&mut Link> {
        let place = *self.places.get(peer.index())?;
        self.links.get_mut(place?).filter(|link| !link.failed)
    }

    #[inline(always)]
    fn send(&mut self, peer: NodeId, block: SealedBlock) -> Result<(), Refused<Infallible>> {
        let refuse = |block, reason| Err(Refused { op: Op::Send { peer, block }, reason });
        if block.bytes().len() > self.largest_block || !self.is_in_own_memory(&block) {
            return refuse(block, Reason::Unsupported);
        }
        let place = self.places.get(peer.index()).copied().flatten();
        let Some(link) = place.and_then(|place| self.links.get_mut(place)).filter(|link| !link.failed) else {
            return refuse(block, Reason::PeerFailed);
        };
        if link.outstanding == link.capacity {
            return refuse(block, Reason::Busy);
        }
        // If another block of this index is away, one of the two is not this node's.
        let block_ref = match self.outstanding.put(peer, link.sent, block) {
            Ok(block_ref) => block_ref,
            Err(block) => return refuse(block, Reason::Unsupported),
        };
        (link.outstanding, link.sent) = (link.outstanding + 1, link.sent + 1);
        // The push succeeds: blocks in the ring count as away, and the ring holds `capacity` blocks.
        let pushed = link.out.push(block_ref);
        debug_assert!(pushed.is_ok(), "more blocks in the ring than are away");
        link.bell.ring();
        Ok(())
    }

    /// Whether the block lies in the memory that this node brought to the network, which the peers keep in place.
    #[inline]
    fn is_in_own_memory(&self, block: &SealedBlock) -> bool {
        self.memory.holds(block.bytes())
    }

    #[inline]
    fn return_block(&mut self, peer: NodeId, block: ArrivedBlock) -> Result<(), Refused<Infallible>> {
        let refuse = |block, reason| Err(Refused { op: Op::Return { peer, block }, reason });
        let place = self.places.get(peer.index()).copied().flatten();
        let Some(link) = place.and_then(|place| self.links.get_mut(place)) else {
            return refuse(block, Reason::Unsupported);
        };
        if link.arrival == Arrival::Posted {
            return refuse(block, Reason::Unsupported);
        }
        if link.failed {
            return refuse(block, Reason::PeerFailed);
        }
        let block_ref = match link.borrowed.take_back(block) {
            Ok(block_ref) => block_ref,
            Err(block) => return refuse(block, Reason::Unsupported),
        };
        // The push succeeds: the peer has at most `capacity` blocks away, and the ring holds as many.
        let pushed = link.returning.push(block_ref);
        debug_assert!(pushed.is_ok(), "more blocks given back than were sent");
        link.bell.ring();
        Ok(())
    }

    #[inline(always)]
    fn poll_link(&mut self, at: usize) -> Option<Completion<Infallible>> {
        let link = self.links.get_mut(at).filter(|link| !link.failed)?;
        let peer = link.peer;
        // After a poll that found an arrival, the next one checks only for another arrival and skips returned blocks; it does so every other
        // time. A peer that answers gives our block back right behind its answer, and a caller waiting for the answer would otherwise wait for
        // that cache line, too.
        let skips_back = std::mem::take(&mut link.skips_back);
        if !skips_back
            && let Ok(block_ref) = link.back.pop()
            && let Some(block) = self.outstanding.take(peer, block_ref)
        {
            link.outstanding -= 1;
            return Some(Completion::Sent { peer, block });
        }
        match link.arrival {
            Arrival::InPlace => {
                if let Ok(block_ref) = link.incoming.pop() {
                    link.taken += 1;
                    link.skips_back = !skips_back;
                    return Some(Completion::Received { peer, block: link.borrowed.lend(block_ref) });
                }
            }
            Arrival::Posted => {
                if !link.posted.is_empty()
                    && let Ok(block_ref) = link.incoming.pop()
                    && let Some(mut block) = link.posted.pop_front()
                {
                    let length = block_ref.bytes().len().min(block.bytes_mut().len());
                    block.bytes_mut()[..length].copy_from_slice(&block_ref.bytes()[..length]);
                    let pushed = link.returning.push(block_ref);
                    debug_assert!(pushed.is_ok(), "more blocks given back than were sent");
                    link.bell.ring();
                    return Some(Completion::Received { peer, block: block.into_arrived(length) });
                }
            }
        }
        if link.incoming.is_abandoned() { self.check_peer_end(peer) } else { None }
    }

    /// Reports the peer's failure, if it is gone and everything that it left has been taken.
    #[cold]
    fn check_peer_end(&mut self, peer: NodeId) -> Option<Completion<Infallible>> {
        let link = self.link(peer)?;
        // The peer may have pushed something between the last poll of the rings and its end.
        let waits =
            !link.incoming.is_empty() && (link.arrival == Arrival::InPlace || !link.posted.is_empty());
        if waits || !link.back.is_empty() {
            return None;
        }
        link.failed = true;
        // Pairs with the store in `drop`, which precedes the end of the ring.
        let kept = link.kept.load(Ordering::Acquire);
        let posted = std::mem::take(&mut link.posted);
        self.ready.extend(posted.into_iter().map(|block| Completion::Unused { peer, block }));
        self.ready.extend(
            self.outstanding.take_all(peer, kept).into_iter().map(|block| Completion::Failed { peer, block }),
        );
        self.ready.push_back(Completion::PeerFailed { peer, cause: None });
        self.ready.pop_front()
    }
}

impl Transport for Local {
    type Error = Infallible;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            nodes: self.places.len() as u16,
            node: self.node,
            largest_block: self.largest_block,
            trusted: true,
        }
    }

    fn arrival(&self, peer: NodeId) -> Arrival {
        self.link_to(peer).map_or(Arrival::Posted, |link| link.arrival)
    }

    fn capacity(&self, peer: NodeId) -> usize {
        self.link_to(peer).map_or(0, |link| link.capacity)
    }

    /// Nodes of one process fail only by being dropped.
    fn has_ended(&self, peer: NodeId) -> bool {
        self.link_to(peer).is_some_and(|link| link.failed)
    }

    #[inline(always)]
    fn submit(&mut self, op: Op) -> Result<(), Refused<Infallible>> {
        match op {
            Op::Send { peer, block } => self.send(peer, block),
            Op::Return { peer, block } => self.return_block(peer, block),
            Op::Recv { peer, block } if self.arrival(peer) == Arrival::Posted => match self.link(peer) {
                Some(link) => {
                    link.posted.push_back(block);
                    Ok(())
                }
                None => Err(Refused { op: Op::Recv { peer, block }, reason: Reason::PeerFailed }),
            },
            op => Err(Refused { op, reason: Reason::Unsupported }),
        }
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<Completion<Infallible>> {
        if !self.ready.is_empty() {
            return self.ready.pop_front();
        }
        let links = self.links.len();
        for _ in 0..links {
            let at = self.turn;
            self.turn = if at + 1 < links { at + 1 } else { 0 };
            let completion = self.poll_link(at);
            if completion.is_some() {
                return completion;
            }
        }
        None
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        for link in self.links.iter().filter(|link| link.borrowed.has_readers()) {
            // Which of the taken blocks are still read is unknown. Those still in the ring are not read.
            link.keeps.store(link.taken, Ordering::Release);
            std::mem::forget(Arc::clone(&self.memories));
        }
        self.links.clear();
        for bell in self.doorbells.iter() {
            bell.ring();
        }
    }
}

fn grid<T>(nodes: usize) -> Vec<Vec<Option<T>>> {
    (0..nodes).map(|_| (0..nodes).map(|_| None).collect()).collect()
}

/// The index in `links` of each node's link.
fn places_of(links: &[Link], nodes: usize) -> Vec<Option<usize>> {
    let place = |node| links.iter().position(|link| link.peer.index() == node);
    (0..nodes).map(place).collect()
}

fn pairs(nodes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..nodes).flat_map(move |i| (0..nodes).map(move |j| (i, j))).filter(|(i, j)| i != j)
}
