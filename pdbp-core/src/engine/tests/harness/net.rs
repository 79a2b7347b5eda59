//! The in-memory network, and its ends.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::ptr::NonNull;
use std::rc::Rc;
use std::vec::Vec;

use pdbp_core::cdu::{BlockClass, BlockHeader};
use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::umb::{HeapMemory, Lender, MemoryKeeper, stride};
use pdbp_core::{
    Arrival, Capabilities, Completion, Op, Reason, Refused, SealedBlock, Transport, VacantBlock,
};

use super::{BODY, Setup, node};

/// The kinds of links in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    InPlace,
    Posted,
    /// Two hosts, one with the even-numbered nodes and one with the odd-numbered: in place within each host, posted between them.
    Mixed,
}

impl Links {
    pub fn between(self, a: usize, b: usize) -> Arrival {
        match self {
            Self::Mixed if a % 2 == b % 2 => Arrival::InPlace,
            Self::InPlace => Arrival::InPlace,
            Self::Posted | Self::Mixed => Arrival::Posted,
        }
    }
}

enum InFlight {
    /// A sender's block, read in place.
    Lent(BlockId, NonNull<u8>, u32),
    /// Bytes in flight to a posted block, with the sender's block unless that is complete before they arrive; or bytes that
    /// nobody sent.
    Bytes(Vec<u8>, Option<SealedBlock>),
}

#[derive(Default)]
pub struct Link {
    flight: VecDeque<InFlight>,
    /// Blocks on their way back to the sender.
    back: VecDeque<SealedBlock>,
    /// In place: the sender's next poll checks for the receiver's blocks only, as after one that has found such a block.
    skips_back: bool,
    /// In place: the sender's blocks held by the receiver.
    lent: BTreeMap<u32, SealedBlock>,
    lender: Lender,
    posted: VecDeque<VacantBlock>,
    /// Injected blocks, by number.
    foreign: BTreeMap<u32, Vec<u8>>,
    /// Nothing moves while the gate is closed.
    pub closed: bool,
    /// How many more times blocks to send and to receive into are refused.
    pub busy: u32,
    /// Flips a byte of the next data block: the offset, and the bits.
    pub flip: Option<(u16, u8)>,
    /// Number of blocks whose bytes changed.
    pub flipped: u32,
    /// In place: what the receiver reads instead of blocks with a flipped byte. Kept to the end, since the receiver may read it
    /// until then.
    altered: Vec<Vec<u64>>,
    /// How many control blocks become unreadable in flight, and how many readable ones come first.
    pub garbled: u32,
    pub spared: u32,
    failed: bool,
    session: u32,
    /// Blocks sent in this session.
    sent: u64,
}

impl Link {
    /// A copy of a block with one byte flipped.
    fn altered(&mut self, block: &[u8], at: usize, bits: u8) -> NonNull<u8> {
        let mut bytes = block.to_vec();
        bytes[at] ^= bits;
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let words: Vec<_> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let base = NonNull::from(&words[..]).cast();
        self.altered.push(words);
        base
    }

    /// The byte of the next block that changes in flight, and its bits.
    fn change(&mut self, data: bool) -> Option<(u16, u8)> {
        let change = if data {
            self.flip.take()
        } else if self.garbled > 0 && self.spared > 0 {
            self.spared -= 1;
            None
        } else {
            let garbles = self.garbled > 0;
            self.garbled = self.garbled.saturating_sub(1);
            garbles.then_some((0, 1))
        };
        self.flipped += u32::from(change.is_some());
        change
    }

    /// Number of the sender's blocks that are not complete.
    fn away(&self) -> usize {
        let waits = |stream_use: &&InFlight| matches!(stream_use, InFlight::Bytes(_, Some(_)));
        self.lent.len() + self.back.len() + self.flight.iter().filter(waits).count()
    }

    /// Returns the sender's blocks; none of them arrives any more.
    fn recall(&mut self) {
        for stream_use in self.flight.drain(..) {
            if let InFlight::Bytes(_, Some(block)) = stream_use {
                self.back.push_back(block);
            }
        }
    }
}

pub struct Net {
    kinds: Links,
    pub trusted: bool,
    nodes: usize,
    pub capacity: usize,
    /// Indexed by [from][to].
    pub links: Vec<Vec<Link>>,
    ready: Vec<VecDeque<Completion<Infallible>>>,
    memories: Vec<MemoryKeeper>,
    numbered: u32,
    dead: Vec<bool>,
    /// Links that engines have ended; they come up again on their own.
    pub ended: Vec<(usize, usize)>,
    /// Whether places are vacant at the start; and the places that have been given up, by the engine that did so.
    open: bool,
    pub vacated: Vec<(usize, usize)>,
    /// What nodes have reported: the node, the primary, and its term.
    pub led: Vec<(usize, Option<usize>, Option<u32>)>,
}

impl Net {
    pub fn new(setup: &Setup, memories: &[HeapMemory]) -> Self {
        let nodes = setup.nodes;
        let link = || Link { failed: setup.open, ..Link::default() };
        Self {
            kinds: setup.links,
            trusted: setup.trusted,
            nodes,
            capacity: setup.capacity,
            links: (0..nodes).map(|_| (0..nodes).map(|_| link()).collect()).collect(),
            ready: (0..nodes).map(|_| VecDeque::new()).collect(),
            memories: memories.iter().map(HeapMemory::keeper).collect(),
            numbered: 0,
            dead: std::vec![false; nodes],
            ended: Vec::new(),
            open: setup.open,
            vacated: Vec::new(),
            led: Vec::new(),
        }
    }

    fn is_data(bytes: &[u8]) -> bool {
        BlockHeader::read(bytes).is_ok_and(|h| h.class() != BlockClass::Control)
    }

    /// Returns a block that looks like one of the peer, with something wrong.
    pub fn forge(&self, from: usize, to: usize, seed: u16) -> Vec<u8> {
        let mut state = u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let length = (random() % 200) as usize;
        let mut bytes: Vec<u8> = (0..64 + length).map(|_| 0).collect();
        bytes[..4].copy_from_slice(&[b'P', b'D', 1, (random() % 3) as u8]);
        bytes[4] = from as u8;
        bytes[6] = to as u8;
        bytes[8] = self.session(from, to) as u8;
        bytes[12..16].copy_from_slice(&(length as u32).to_le_bytes());
        bytes[16] = random() as u8;
        bytes[38] = (random() % 3) as u8;
        bytes[52] = (random() % 3) as u8;
        bytes[58] = random() as u8;
        for _ in 0..random() % 4 {
            let at = (random() % bytes.len() as u64) as usize;
            bytes[at] = random() as u8;
        }
        if length >= 16 {
            bytes[64] = (random() % 3) as u8;
            bytes[72] = (length - 16) as u8 & 0xF8;
            bytes[76] = 1;
        }
        bytes
    }

    /// Injects a block that nobody sent.
    pub fn inject(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        if from != to && !self.links[from][to].failed {
            self.links[from][to].flight.push_back(InFlight::Bytes(bytes, None));
        }
    }

    /// Number of blocks that node `at` has posted for peer `from` and that have not been filled yet.
    pub fn posted(&self, at: usize, from: usize) -> u32 {
        self.links[from][at].posted.len() as u32
    }

    /// Removes node `dead`: the others get their blocks back.
    pub fn kill(&mut self, dead: usize) {
        self.dead[dead] = true;
        for other in (0..self.nodes).filter(|o| *o != dead) {
            let peer = node(dead);
            let (out, into) = (&mut self.links[other][dead], Link::default());
            out.failed = true;
            out.recall();
            let ready = &mut self.ready[other];
            ready.extend(out.back.drain(..).map(|block| Completion::Failed { peer, block }));
            // The node that read them is gone.
            let lent = std::mem::take(&mut out.lent).into_values();
            ready.extend(lent.map(|block| Completion::Failed { peer, block }));
            let gone = std::mem::replace(&mut self.links[dead][other], into);
            self.links[dead][other].failed = true;
            // Injected blocks that the survivor is still reading stay where they are.
            self.links[dead][other].foreign = gone.foreign;
            self.links[dead][other].altered = gone.altered;
            self.links[dead][other].lender = gone.lender;
            ready.extend(gone.posted.into_iter().map(|block| Completion::Unused { peer, block }));
            ready.push_back(Completion::PeerFailed { peer, cause: None });
        }
    }

    /// Drops all its blocks. It takes no more, nor returned ones that are read in place.
    pub fn drop_blocks(&mut self) {
        self.ready.iter_mut().for_each(VecDeque::clear);
        for link in self.links.iter_mut().flatten() {
            link.failed = true;
            (link.flight, link.back, link.lent, link.posted) = Default::default();
        }
    }

    /// Whether the link between two nodes is up and can be cut. Only possible if all links are posted, since readers of a block
    /// in place must be done before its owner has it back.
    pub fn is_up(&self, a: usize, b: usize) -> bool {
        a != b && self.kinds == Links::Posted && !self.links[a][b].failed && !self.links[b][a].failed
    }

    /// Whether the link between two live nodes was cut and both have noticed.
    pub fn is_cut(&self, a: usize, b: usize) -> bool {
        let is_end = |done: &Completion<Infallible>, of: usize| matches!(done, Completion::PeerFailed { peer, .. } if peer.index() == of);
        let knows = |at: usize, of: usize| !self.ready[at].iter().any(|done| is_end(done, of));
        let lives = a != b && !self.dead[a] && !self.dead[b];
        lives && knows(a, b) && knows(b, a) && self.links[a][b].failed && self.links[b][a].failed
    }

    /// Number of blocks that a node has posted and that are coming back to it unused.
    pub fn unused(&self, at: usize) -> u32 {
        let unused = |done: &&Completion<Infallible>| matches!(done, Completion::Unused { .. });
        self.ready[at].iter().filter(unused).count() as u32
    }

    /// Cuts the posted link between two nodes: everything on it is lost.
    pub fn cut(&mut self, a: usize, b: usize) {
        assert_eq!(self.kinds.between(a, b), Arrival::Posted);
        for (me, peer) in [(a, b), (b, a)] {
            let out = &mut self.links[me][peer];
            out.failed = true;
            out.recall();
            let (back, ready) = (std::mem::take(&mut out.back), &mut self.ready[me]);
            ready.extend(back.into_iter().map(|block| Completion::Failed { peer: node(peer), block }));
            let posted = std::mem::take(&mut self.links[peer][me].posted);
            ready.extend(posted.into_iter().map(|block| Completion::Unused { peer: node(peer), block }));
            ready.push_back(Completion::PeerFailed { peer: node(peer), cause: None });
        }
    }

    /// The session of a link.
    pub fn session(&self, from: usize, to: usize) -> u32 {
        self.links[from][to].session
    }

    /// Number of blocks sent in the session of a link, which is the number of the next one.
    pub fn on_send_complete(&self, from: usize, to: usize) -> u64 {
        self.links[from][to].sent
    }

    /// Restores the link.
    pub fn mend(&mut self, a: usize, b: usize) {
        for (me, peer) in [(a, b), (b, a)] {
            let link = &mut self.links[me][peer];
            link.failed = false;
            link.session += 1;
            link.sent = 0;
            self.ready[me].push_back(Completion::PeerRestored { peer: node(peer), session: link.session });
        }
    }

    fn next(&mut self, me: usize) -> Option<Completion<Infallible>> {
        if let Some(ready) = self.ready[me].pop_front() {
            return Some(ready);
        }
        for peer in (0..self.nodes).filter(|p| *p != me) {
            let out = &mut self.links[me][peer];
            let skips_back = std::mem::take(&mut out.skips_back);
            if !out.closed
                && !skips_back
                && let Some(block) = out.back.pop_front()
            {
                return Some(Completion::Sent { peer: node(peer), block });
            }
            let (arrival, number) = (self.kinds.between(me, peer), self.numbered);
            let link = &mut self.links[peer][me];
            if link.closed || link.failed || (arrival == Arrival::Posted && link.posted.is_empty()) {
                continue;
            }
            let Some(stream_use) = link.flight.pop_front() else { continue };
            let block = match stream_use {
                InFlight::Lent(id, base, length) => {
                    // SAFETY: this is a block of the sender, whose token `lent` holds until it is given back; its memory lives as
                    // long as the network, or forever if an engine leaks it.
                    unsafe { link.lender.lend(id, base, length) }
                }
                InFlight::Bytes(bytes, sent) if arrival == Arrival::Posted => {
                    link.back.extend(sent);
                    let mut block = link.posted.pop_front().unwrap();
                    let length = bytes.len().min(block.bytes_mut().len());
                    block.bytes_mut()[..length].copy_from_slice(&bytes[..length]);
                    block.into_arrived(length)
                }
                InFlight::Bytes(mut bytes, _) => {
                    self.numbered += 1;
                    let length = bytes.len() as u32;
                    bytes.resize(bytes.len() + 8, 0);
                    let base = NonNull::from(&mut bytes[..]).cast();
                    link.foreign.insert(number, bytes);
                    let id = BlockId { segment: node(peer), index: 0x8000_0000 + number };
                    // SAFETY: the bytes stay in `foreign` until the block is given back. (Only an alignment of 1 is used.)
                    unsafe { link.lender.lend(id, base, length) }
                }
            };
            self.links[me][peer].skips_back = arrival == Arrival::InPlace && !skips_back;
            return Some(Completion::Received { peer: node(peer), block });
        }
        None
    }
}

pub struct Port {
    me: usize,
    net: Rc<RefCell<Net>>,
}

/// Another end of the network on the same node.
pub fn port(me: usize, net: &Rc<RefCell<Net>>) -> Port {
    Port { me, net: Rc::clone(net) }
}

impl Transport for Port {
    type Error = Infallible;

    fn capabilities(&self) -> Capabilities {
        let net = self.net.borrow();
        Capabilities {
            nodes: net.nodes as u16,
            node: node(self.me),
            largest_block: stride(BODY),
            trusted: net.trusted,
        }
    }

    fn arrival(&self, peer: NodeId) -> Arrival {
        self.net.borrow().kinds.between(self.me, peer.index())
    }

    fn capacity(&self, _: NodeId) -> usize {
        self.net.borrow().capacity
    }

    fn has_ended(&self, peer: NodeId) -> bool {
        self.net.borrow().dead[peer.index()]
    }

    fn restores_links(&self) -> bool {
        true
    }

    fn is_vacant(&self, peer: NodeId) -> bool {
        let net = self.net.borrow();
        net.open && net.links[self.me][peer.index()].failed
    }

    fn vacate(&mut self, peer: NodeId) {
        self.net.borrow_mut().vacated.push((self.me, peer.index()));
    }

    fn lead(&mut self, primary: Option<NodeId>, term: Option<u32>) {
        self.net.borrow_mut().led.push((self.me, primary.map(NodeId::index), term));
    }

    fn disconnect(&mut self, peer: NodeId) {
        let mut net = self.net.borrow_mut();
        if net.is_up(self.me, peer.index()) {
            net.cut(self.me, peer.index());
            net.ended.push((self.me, peer.index()));
        }
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Infallible>> {
        let mut net = self.net.borrow_mut();
        let (Op::Send { peer, .. } | Op::Recv { peer, .. } | Op::Return { peer, .. }) = &op;
        let (arrival, capacity) = (net.kinds.between(self.me, peer.index()), net.capacity);
        match op {
            Op::Send { peer, block } => {
                let link = &mut net.links[self.me][peer.index()];
                if link.failed {
                    return Err(Refused { op: Op::Send { peer, block }, reason: Reason::PeerFailed });
                }
                if link.busy > 0 || link.away() >= capacity {
                    link.busy = link.busy.saturating_sub(1);
                    return Err(Refused { op: Op::Send { peer, block }, reason: Reason::Busy });
                }
                link.sent += 1;
                let flip = link.change(Net::is_data(block.bytes()));
                if arrival == Arrival::Posted {
                    let mut bytes = block.bytes().to_vec();
                    if let Some((at, bits)) = flip {
                        let at = usize::from(at) % bytes.len();
                        bytes[at] ^= bits;
                    }
                    // Like MPI with short messages: bytes that have room leave at once, others once there is room.
                    let leaves = link.flight.len() < link.posted.len();
                    let (waits, complete) = if leaves { (None, Some(block)) } else { (Some(block), None) };
                    link.flight.push_back(InFlight::Bytes(bytes, waits));
                    link.back.extend(complete);
                } else {
                    let (id, length) = (block.id(), block.bytes().len());
                    let base = match flip {
                        Some((at, bits)) => link.altered(block.bytes(), usize::from(at) % length, bits),
                        None => NonNull::from(block.bytes()).cast(),
                    };
                    link.lent.insert(id.index, block);
                    link.flight.push_back(InFlight::Lent(id, base, length as u32));
                }
                Ok(())
            }
            Op::Return { peer, block } => {
                assert_eq!(arrival, Arrival::InPlace);
                let link = &mut net.links[peer.index()][self.me];
                if link.failed {
                    return Err(Refused { op: Op::Return { peer, block }, reason: Reason::PeerFailed });
                }
                let index = block.id().index;
                link.lender.reclaim(block).expect("a block of another link");
                if index >= 0x8000_0000 {
                    link.foreign.remove(&(index - 0x8000_0000)).expect("a foreign block given back twice");
                    return Ok(());
                }
                link.back.push_back(link.lent.remove(&index).expect("a block given back twice"));
                Ok(())
            }
            Op::Recv { peer, block } => {
                assert_eq!(arrival, Arrival::Posted);
                let link = &mut net.links[peer.index()][self.me];
                if link.failed {
                    return Err(Refused { op: Op::Recv { peer, block }, reason: Reason::PeerFailed });
                }
                if link.busy > 0 {
                    link.busy -= 1;
                    return Err(Refused { op: Op::Recv { peer, block }, reason: Reason::Busy });
                }
                link.posted.push_back(block);
                Ok(())
            }
        }
    }

    fn poll_completion(&mut self) -> Option<Completion<Infallible>> {
        self.net.borrow_mut().next(self.me)
    }
}
