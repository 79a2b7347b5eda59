//! A cluster of engines on a network in memory, driven by operations and checked against an oracle. The property tests use
//! it, and by path the fuzz target `engine`; so it names everything through the crate's public interface.
//!
//! All is deterministic: nodes are polled when an operation says so, and the network does what operations told it to (hold
//! back, refuse as busy, flip a byte, bring blocks that nobody sent).
#![allow(
    dead_code,
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::missing_panics_doc,
    clippy::type_complexity
)]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::ptr::NonNull;
use std::rc::Rc;
use std::vec::Vec;
use std::{format, vec};

use pdbp_core::cdu::{BlockClass, BlockHeader, CduClass, Route, SegmentHeader, flag};
use pdbp_core::engine::{Checksum, DeliveryKind, LocalPart, PrivatePipes, SendError, StreamTag};
use pdbp_core::id::{BlockId, Epoch, NodeId, PartId, PipeId, StreamNo, Time};
use pdbp_core::matrix::RowSpace;
use pdbp_core::policy::{Adaptive, Fixed, Growth, SpacePolicy, Threshold, ThresholdAllocation};
use pdbp_core::tables::{Name, PartKind};
use pdbp_core::umb::{HeapMemory, MemoryKeeper, stride};
use pdbp_core::{
    Arrival, ArrivedBlock, Capabilities, Completion, Config, Delivery, Engine, Event, Op, OpenBlock,
    OpenError, Reason, Refused, SealedBlock, Storage, Transport, VacantBlock,
};

pub const BODY: usize = 512;
pub const PARTS: u16 = 2;

pub fn node(i: usize) -> NodeId {
    NodeId::new(i as u16).unwrap()
}

pub fn part(n: usize, local: u16) -> PartId {
    PartId::new(node(n), local).unwrap()
}

/// Any of the policies.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    Fixed,
    Published,
    Adaptive,
    /// Gives everything back.
    Miser,
    /// Wants more than there is.
    Glutton,
}

impl SpacePolicy for Policy {
    fn at_critical(&self, row: &RowSpace, free: u32) -> Growth {
        match self {
            Self::Glutton => Growth::By(1_000_000),
            Self::Fixed | Self::Miser => Fixed.at_critical(row, free),
            Self::Published => ThresholdAllocation { threshold: Threshold::DEFAULT }.at_critical(row, free),
            Self::Adaptive => Adaptive::DEFAULT.at_critical(row, free),
        }
    }
    fn at_stall(&self, row: &RowSpace, free: u32) -> Growth {
        if let Self::Adaptive = self { Adaptive::DEFAULT.at_stall(row, free) } else { Growth::Keep }
    }
    fn surplus(&self, row: &RowSpace) -> u32 {
        match self {
            Self::Adaptive => Adaptive::DEFAULT.surplus(row),
            Self::Miser => u32::MAX,
            _ => 0,
        }
    }
    fn spare(&self, row: &RowSpace) -> u32 {
        if let Self::Adaptive = self { Adaptive::DEFAULT.spare(row) } else { 0 }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Network

enum Parcel {
    /// A sender's block, read in place.
    Lent(BlockId, NonNull<u8>, u32),
    /// Bytes on their way into a posted block, or that nobody sent.
    Bytes(Vec<u8>),
}

#[derive(Default)]
pub struct Link {
    flight: VecDeque<Parcel>,
    /// Blocks of the sender that come back to it.
    back: VecDeque<SealedBlock>,
    /// In place: the sender's blocks that the receiver has.
    lent: BTreeMap<u32, (NonNull<u8>, u32)>,
    posted: VecDeque<VacantBlock>,
    /// Blocks of nobody, by their number.
    foreign: BTreeMap<u32, Vec<u8>>,
    /// Nothing moves while the gate is closed.
    pub closed: bool,
    pub busy: u32,
    /// Flips a byte of the next data block: place and bits.
    pub flip: Option<(u16, u8)>,
    pub flipped: u32,
    failed: bool,
    data_in_flight: u32,
}

pub struct Net {
    pub arrival: Arrival,
    pub trusted: bool,
    nodes: usize,
    pub capacity: usize,
    /// [from][to].
    pub links: Vec<Vec<Link>>,
    ready: Vec<VecDeque<Completion<Infallible>>>,
    memories: Vec<MemoryKeeper>,
    numbered: u32,
}

impl Net {
    fn is_data(bytes: &[u8]) -> bool {
        BlockHeader::read(bytes).is_ok_and(|h| h.class() != BlockClass::Control)
    }

    /// A block that nobody sent.
    pub fn inject(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        if from != to && !self.links[from][to].failed {
            self.links[from][to].flight.push_back(Parcel::Bytes(bytes));
        }
    }

    /// Blocks that node `at` has posted for peer `from` and that are not filled.
    pub fn posted(&self, at: usize, from: usize) -> u32 {
        self.links[from][at].posted.len() as u32
    }

    /// Node `dead` is gone: the others get their blocks back.
    pub fn kill(&mut self, dead: usize) {
        for other in (0..self.nodes).filter(|o| *o != dead) {
            let peer = node(dead);
            let (out, into) = (&mut self.links[other][dead], Link::default());
            out.failed = true;
            out.flight.clear();
            let ready = &mut self.ready[other];
            ready.extend(out.back.drain(..).map(|block| Completion::Failed { peer, block }));
            for (index, (base, length)) in std::mem::take(&mut out.lent) {
                let id = BlockId { segment: node(other), index };
                // SAFETY: the values of `into_raw`, once; the node that read the block is gone.
                let block = unsafe { SealedBlock::from_raw(id, base, length) };
                ready.push_back(Completion::Failed { peer, block });
            }
            let gone = std::mem::replace(&mut self.links[dead][other], into);
            self.links[dead][other].failed = true;
            // What the survivor still reads of foreign blocks stays where it is.
            self.links[dead][other].foreign = gone.foreign;
            ready.extend(gone.posted.into_iter().map(|block| Completion::Unused { peer, block }));
            ready.push_back(Completion::PeerFailed { peer, cause: None });
        }
    }

    fn next(&mut self, me: usize) -> Option<Completion<Infallible>> {
        if let Some(ready) = self.ready[me].pop_front() {
            return Some(ready);
        }
        for peer in (0..self.nodes).filter(|p| *p != me) {
            let out = &mut self.links[me][peer];
            if !out.closed
                && let Some(block) = out.back.pop_front()
            {
                return Some(Completion::Sent { peer: node(peer), block });
            }
            let (arrival, number) = (self.arrival, self.numbered);
            let link = &mut self.links[peer][me];
            if link.closed || link.failed || (arrival == Arrival::Posted && link.posted.is_empty()) {
                continue;
            }
            let Some(parcel) = link.flight.pop_front() else { continue };
            let block = match parcel {
                Parcel::Lent(id, base, length) => {
                    // SAFETY: a block of the sender that nobody writes until it is given back.
                    unsafe { ArrivedBlock::in_place(id, base, length) }
                }
                Parcel::Bytes(bytes) if arrival == Arrival::Posted => {
                    let mut block = link.posted.pop_front().unwrap();
                    let length = bytes.len().min(block.bytes_mut().len());
                    block.bytes_mut()[..length].copy_from_slice(&bytes[..length]);
                    block.into_arrived(length)
                }
                Parcel::Bytes(mut bytes) => {
                    self.numbered += 1;
                    let length = bytes.len() as u32;
                    bytes.resize(bytes.len() + 8, 0);
                    let base = NonNull::from(&mut bytes[..]).cast();
                    link.foreign.insert(number, bytes);
                    let id = BlockId { segment: node(peer), index: 0x8000_0000 + number };
                    // SAFETY: the bytes stay in `foreign` until the block is given back. (Alignment of 1 is all that is used.)
                    unsafe { ArrivedBlock::in_place(id, base, length) }
                }
            };
            return Some(Completion::Received { peer: node(peer), block });
        }
        None
    }
}

pub struct Port {
    me: usize,
    net: Rc<RefCell<Net>>,
}

/// Another end of the network at the same node.
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

    fn arrival(&self, _peer: NodeId) -> Arrival {
        self.net.borrow().arrival
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Infallible>> {
        let mut net = self.net.borrow_mut();
        let (arrival, capacity) = (net.arrival, net.capacity);
        match op {
            Op::Send { peer, block } => {
                let link = &mut net.links[self.me][peer.index()];
                if link.failed {
                    return Err(Refused { op: Op::Send { peer, block }, reason: Reason::PeerFailed });
                }
                if link.busy > 0 || link.flight.len() + link.lent.len() + link.back.len() >= capacity {
                    link.busy = link.busy.saturating_sub(1);
                    return Err(Refused { op: Op::Send { peer, block }, reason: Reason::Busy });
                }
                let data = Net::is_data(block.bytes());
                let flip = if data { link.flip.take() } else { None };
                link.flipped += u32::from(flip.is_some());
                if arrival == Arrival::Posted {
                    let mut bytes = block.bytes().to_vec();
                    if let Some((at, bits)) = flip {
                        let at = usize::from(at) % bytes.len();
                        bytes[at] ^= bits;
                    }
                    link.flight.push_back(Parcel::Bytes(bytes));
                    link.back.push_back(block);
                } else {
                    let (id, base, length) = block.into_raw();
                    if let Some((at, bits)) = flip {
                        // SAFETY: inside the block, whose only right the network has now.
                        let at = unsafe { base.add(usize::from(at) % length as usize) };
                        // SAFETY: as above.
                        unsafe { *at.as_ptr() ^= bits }
                    }
                    link.lent.insert(id.index, (base, length));
                    link.flight.push_back(Parcel::Lent(id, base, length));
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
                if index >= 0x8000_0000 {
                    link.foreign.remove(&(index - 0x8000_0000)).expect("a foreign block given back twice");
                    return Ok(());
                }
                let (base, length) = link.lent.remove(&index).expect("a block given back twice");
                // SAFETY: the values of `into_raw`, taken once from `lent`; the reader has just given the block up.
                link.back.push_back(unsafe { SealedBlock::from_raw(block.id(), base, length) });
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

// ---------------------------------------------------------------------------------------------------------------------
// Oracle

/// Between which parts, urgent or not, and by which way (command number) messages keep their order.
type Lane = (u32, u32, bool, u16);

#[derive(Default)]
pub struct Oracle {
    expected: BTreeMap<Lane, VecDeque<(u64, Vec<u8>)>>,
    /// By source node and number: destination node and segments.
    streams: BTreeMap<(usize, u32), (usize, VecDeque<(u64, u32, bool, Vec<u8>)>)>,
    pub serial: u64,
    /// Bytes may change on the way: what does not arrive is skipped.
    pub lossy: bool,
    /// Nodes whose messages nobody waits for.
    dead: Vec<usize>,
    pub delivered: u64,
}

impl Oracle {
    fn expect(&mut self, lane: Lane, data: Vec<u8>) {
        if self.is_dead(lane) {
            return;
        }
        self.serial += 1;
        self.expected.entry(lane).or_default().push_back((self.serial, data));
    }

    fn is_dead(&self, lane: Lane) -> bool {
        self.dead.iter().any(|d| [lane.0, lane.1].iter().any(|raw| (raw >> 16) as usize == *d))
    }

    fn took(&mut self, lane: Lane, data: &[u8]) {
        self.delivered += 1;
        if self.is_dead(lane) {
            return;
        }
        let queue = self.expected.entry(lane).or_default();
        loop {
            match queue.pop_front() {
                Some((_, expected)) if expected == data => return,
                Some(_) if self.lossy => {}
                other => panic!("lane {lane:?}: got {data:?}, expected {other:?}"),
            }
        }
    }

    fn took_segment(&mut self, from: usize, number: StreamNo, got: (u32, bool, bool), data: &[u8]) {
        self.delivered += 1;
        if self.dead.contains(&from) {
            return;
        }
        let (_, queue) = self.streams.entry((from, number.0)).or_default();
        let (segment, last, aborted) = got;
        if aborted {
            assert!(self.lossy, "a stream was broken");
            queue.clear();
            return;
        }
        let (_, expected, is_last, bytes) = queue.pop_front().expect("a segment that was not sent");
        assert_eq!((expected, is_last, &bytes[..]), (segment, last, data), "stream {number:?} from {from}");
    }

    /// The oldest message that has not been delivered.
    pub fn oldest(&self) -> Option<u64> {
        let messages = self.expected.values().filter_map(|q| q.front().map(|m| m.0));
        let segments = self.streams.values().filter_map(|q| q.1.front().map(|m| m.0));
        messages.chain(segments).min()
    }

    /// Forgets what concerns a node that is gone.
    fn forget(&mut self, dead: usize) {
        self.dead.push(dead);
        let of = |raw: u32| (raw >> 16) as usize == dead;
        self.expected.retain(|lane, _| !of(lane.0) && !of(lane.1));
        self.streams.retain(|(source, _), (dest, _)| *source != dead && *dest != dead);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Hosts

pub struct Pipes {
    me: usize,
    pub queues: Vec<VecDeque<(Delivery, u64)>>,
    pub capacity: usize,
    pub events: Vec<Event>,
    oracle: Rc<RefCell<Oracle>>,
    /// The part that has each private pipe.
    pub owner: BTreeMap<u16, u16>,
    /// Deliveries are checked against the oracle.
    pub checked: bool,
}

fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3))
}

impl PrivatePipes for Pipes {
    fn deliver(&mut self, pipe: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        let queue = &mut self.queues[usize::from(pipe.0)];
        if queue.len() >= self.capacity {
            return Err(delivery);
        }
        let owner = self.owner[&pipe.0];
        let from = delivery.source().index();
        let mut oracle = self.oracle.borrow_mut();
        for train in delivery.cdus() {
            let Ok(train) = train else { break };
            if !self.checked {
                for message in train.messages() {
                    assert!(message.len() <= BODY);
                }
                continue;
            }
            for cdu in train.cdus(delivery.block(), 0).expect("readable addresses") {
                let to = part(self.me, owner);
                assert!(cdu.dest.parts().any(|p| p == to), "{to} got what is for {:?}", cdu.dest);
                assert_eq!(cdu.source.node().index(), from);
                match delivery.kind() {
                    DeliveryKind::Messages { urgent } => {
                        oracle.took((cdu.source.raw(), to.raw(), urgent, cdu.command), cdu.data);
                    }
                    DeliveryKind::Stream { number, segment, last, aborted } => {
                        assert_eq!(cdu.stream, Some(number));
                        assert_eq!(cdu.segment, segment);
                        oracle.took_segment(from, number, (segment, last, aborted), cdu.data);
                    }
                }
            }
        }
        let sum = digest(delivery.bytes());
        queue.push_back((delivery, sum));
        Ok(())
    }

    fn event(&mut self, event: Event) {
        self.events.push(event);
    }
}

pub type TestEngine = Engine<'static, Port, HeapMemory, Policy>;

pub struct Outgoing {
    tag: StreamTag,
    source: u16,
}

pub struct Host {
    pub engine: TestEngine,
    pub pipes: Pipes,
    /// Open blocks by destination and urgency, with what they hold.
    pub open: BTreeMap<(usize, bool), (OpenBlock, Vec<(Lane, Vec<u8>)>)>,
    pub held: Vec<(Delivery, u64)>,
    pub streams: BTreeMap<u16, Outgoing>,
    pub barrier: Option<u32>,
    pub barriers: u32,
    pub quiet: Option<(u32, u64)>,
    pub quiets: u32,
}

impl Host {
    /// Gives all tokens back and drops the engine.
    fn close(mut self) {
        let queued = self.pipes.queues.iter_mut().flat_map(|q| q.drain(..));
        for (delivery, _) in queued.collect::<Vec<_>>().into_iter().chain(self.held.drain(..)) {
            self.engine.release(delivery);
        }
        for (_, (block, _)) in std::mem::take(&mut self.open) {
            self.engine.submit(block);
        }
        assert!(!self.engine.leaks(), "a token is missing");
    }
}

/// How a cluster is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub nodes: usize,
    pub arrival: Arrival,
    pub trusted: bool,
    pub policy: Policy,
    pub checksum: Checksum,
    pub row: u32,
    pub initial: u32,
    /// Blocks beyond what is needed.
    pub extra: u32,
    pub control: u32,
    /// Blocks under way on one link.
    pub capacity: usize,
    /// Deliveries that a private pipe takes.
    pub pipe: usize,
    pub body: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            nodes: 3,
            arrival: Arrival::InPlace,
            trusted: false,
            policy: Policy::Adaptive,
            checksum: Checksum::Off,
            row: 8,
            initial: 2,
            extra: 6,
            control: 4,
            capacity: 64,
            pipe: 1 << 20,
            body: BODY,
        }
    }
}

impl Setup {
    pub fn blocks(&self) -> u32 {
        let nodes = self.nodes as u32;
        let posts = if self.arrival == Arrival::Posted { self.initial + 2 } else { 0 };
        nodes * self.initial + (nodes - 1) * posts + self.control + self.extra
    }

    pub fn config(&self, i: usize) -> Config {
        Config {
            node: node(i),
            nodes: self.nodes as u16,
            name: Name::new(&format!("n{i}")).unwrap(),
            body: self.body,
            row: self.row,
            initial: self.initial,
            control_blocks: self.control,
            local_parts: PARTS + 1,
            private_pipes: PARTS + 1,
            stream_pipes: 2,
            flush_after: 1000,
            interval: 10_000,
            checksum: self.checksum,
            epoch: Epoch(1),
        }
    }

    /// Engines that have not met yet.
    pub fn start(&self) -> Cluster {
        let memories: Vec<_> = (0..self.nodes)
            .map(|_| HeapMemory::new(stride(self.body) * self.blocks() as usize).unwrap())
            .collect();
        let net = Rc::new(RefCell::new(Net {
            arrival: self.arrival,
            trusted: self.trusted,
            nodes: self.nodes,
            capacity: self.capacity,
            links: (0..self.nodes).map(|_| (0..self.nodes).map(|_| Link::default()).collect()).collect(),
            ready: (0..self.nodes).map(|_| VecDeque::new()).collect(),
            memories: memories.iter().map(HeapMemory::keeper).collect(),
            numbered: 0,
        }));
        let oracle = Rc::new(RefCell::new(Oracle::default()));
        let hosts = memories.into_iter().enumerate().map(|(i, memory)| {
            let config = self.config(i);
            let storage = Storage::allocate(&config, self.blocks() as usize, 64);
            let port = Port { me: i, net: Rc::clone(&net) };
            let engine = Engine::new(config, self.policy, port, memory, storage).unwrap();
            let pipes = Pipes {
                me: i,
                queues: (0..=PARTS).map(|_| VecDeque::new()).collect(),
                capacity: self.pipe,
                events: vec![],
                oracle: Rc::clone(&oracle),
                owner: BTreeMap::new(),
                checked: true,
            };
            let (open, held, streams) = (BTreeMap::new(), vec![], BTreeMap::new());
            let (barrier, quiet) = (None, None);
            Some(Host { engine, pipes, open, held, streams, barrier, barriers: 0, quiet, quiets: 0 })
        });
        Cluster { setup: self.clone(), hosts: hosts.collect(), net, oracle, now: Time(1), dead: vec![] }
    }

    /// A cluster whose parts are registered everywhere and have their private pipes.
    pub fn ready(&self) -> Cluster {
        let mut cluster = self.start();
        cluster.run(40, |c| c.hosts.iter().flatten().all(|h| h.engine.is_ready()));
        for i in 0..self.nodes {
            for local in 0..PARTS {
                let host = cluster.host(i);
                let id = host.engine.register(&format!("p{local}"), PartKind::Cpu).unwrap();
                assert_eq!(id, part(i, local));
                let pipe = host.engine.bind_pipe(id).unwrap();
                host.pipes.owner.insert(pipe.0, local);
            }
        }
        let parts = self.nodes * usize::from(PARTS);
        cluster.run(20 + 10 * parts, |c| {
            c.hosts.iter().flatten().all(|h| {
                h.engine.parts().count() == parts
                    && (0..PARTS).all(|p| h.engine.local_part(p) == LocalPart::Known)
            })
        });
        cluster
    }
}

pub struct Cluster {
    pub setup: Setup,
    pub hosts: Vec<Option<Host>>,
    pub net: Rc<RefCell<Net>>,
    pub oracle: Rc<RefCell<Oracle>>,
    pub now: Time,
    pub dead: Vec<usize>,
}

/// Something that happens to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Send { node: usize, source: u16, to: usize, dest: u16, length: usize },
    Push { node: usize, source: u16, to: usize, dest: u16, length: usize, urgent: bool, segment: bool },
    PushSet { node: usize, source: u16, length: usize, mask: u8 },
    Submit { node: usize, to: usize, urgent: bool },
    Flush { node: usize },
    Poll { node: usize },
    Read { node: usize, part: u16, count: usize, keep: bool },
    Release { node: usize },
    Segment { node: usize, source: u16, to: usize, dest: u16, length: usize, last: bool },
    Gate { from: usize, to: usize, closed: bool },
    Busy { from: usize, to: usize, times: u32 },
    Flip { from: usize, to: usize, at: u16, bits: u8 },
    Barrier { node: usize },
    Quiet { node: usize },
    Wait { nanos: u64 },
    Kill { node: usize },
    Inject { from: usize, to: usize, seed: u16 },
}

impl Operation {
    /// Any four bytes are an operation. The first decides which; rare ones have few values.
    pub fn decode([kind, a, b, c]: [u8; 4], nodes: usize) -> Self {
        let n = |x: u8| usize::from(x) % nodes;
        let (node, to) = (n(a), n(a >> 4));
        let (source, dest) = (u16::from(b) % PARTS, u16::from(b >> 4) % PARTS);
        let length = match c {
            0..128 => usize::from(c) / 2,
            128..192 => usize::from(c) * 2,
            _ => usize::from(c & 1) * (BODY - 16),
        };
        match kind {
            0..32 => Self::Send { node, source, to, dest, length },
            32..64 => {
                Self::Push { node, source, to, dest, length, urgent: b & 4 != 0, segment: b & 0xC8 == 0xC8 }
            }
            64..76 => Self::PushSet { node, source, length: length.min(200), mask: b | 1 },
            76..100 => Self::Submit { node, to, urgent: b & 4 != 0 },
            100..106 => Self::Flush { node },
            106..160 => Self::Poll { node },
            160..180 => Self::Read { node, part: source, count: usize::from(c) % 8, keep: b & 4 != 0 },
            180..196 => Self::Release { node },
            196..216 => Self::Segment { node, source, to, dest, length, last: b & 0x0C == 0x0C },
            216..222 => Self::Gate { from: node, to, closed: b & 1 != 0 },
            222..228 => Self::Busy { from: node, to, times: u32::from(b % 4) },
            228..234 => Self::Flip { from: node, to, at: u16::from(b) << 4 | u16::from(c >> 4), bits: c | 1 },
            234..240 => Self::Barrier { node },
            240..246 => Self::Quiet { node },
            246..250 => Self::Wait { nanos: u64::from(b) * 200 },
            250..252 => Self::Kill { node },
            252.. => Self::Inject { from: node, to, seed: u16::from(b) << 8 | u16::from(c) },
        }
    }

    /// Whether it can lose what was sent.
    pub fn is_hostile(&self) -> bool {
        matches!(self, Self::Flip { .. } | Self::Kill { .. } | Self::Inject { .. })
    }
}

impl Cluster {
    pub fn host(&mut self, i: usize) -> &mut Host {
        self.hosts[i].as_mut().expect("the node lives")
    }

    pub fn live(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|i| self.hosts[*i].is_some()).collect()
    }

    pub fn poll(&mut self, i: usize) -> u32 {
        let now = self.now;
        let Some(host) = self.hosts[i].as_mut() else { return 0 };
        let worked = host.engine.poll(now, &mut host.pipes).worked;
        self.check(i);
        worked
    }

    /// Polls all nodes in turn until `done`.
    pub fn run(&mut self, rounds: usize, done: impl Fn(&Self) -> bool) {
        for _ in 0..rounds {
            if done(self) {
                return;
            }
            for i in 0..self.hosts.len() {
                self.poll(i);
            }
            self.now = self.now.after(100);
        }
        assert!(done(self), "not done after {rounds} rounds");
    }

    fn fill(&self, length: usize) -> Vec<u8> {
        let serial = self.oracle.borrow().serial;
        (0..length).map(|i| (serial.wrapping_mul(31).wrapping_add(i as u64 * 7)) as u8).collect()
    }

    /// The block that the host fills for a destination; `None` when there is none to be had.
    fn block(&mut self, i: usize, to: usize, urgent: bool) -> Option<&mut (OpenBlock, Vec<(Lane, Vec<u8>)>)> {
        let gone = self.dead.contains(&to);
        let host = self.hosts[i].as_mut()?;
        if !host.open.contains_key(&(to, urgent)) {
            match host.engine.open(node(to)) {
                Ok(block) => {
                    let block = if urgent { block.into_urgent() } else { block };
                    host.open.insert((to, urgent), (block, vec![]));
                }
                Err(OpenError::WouldBlock) => return None,
                Err(e) => {
                    assert!(gone, "{e}");
                    return None;
                }
            }
        }
        host.open.get_mut(&(to, urgent))
    }

    pub fn submit(&mut self, i: usize, to: usize, urgent: bool) {
        let Some(host) = self.hosts[i].as_mut() else { return };
        if let Some((block, messages)) = host.open.remove(&(to, urgent)) {
            host.engine.submit(block);
            for (lane, data) in messages {
                self.oracle.borrow_mut().expect(lane, data);
            }
        }
    }

    pub fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Send { node: i, source, to, dest, length } => {
                let data = self.fill(length);
                let route = Route::new(CduClass::ShortMessage, 1, part(i, source), part(to, dest));
                let (now, gone) = (self.now, self.dead.contains(&to));
                let Some(host) = self.hosts[i].as_mut() else { return };
                match host.engine.send(now, route, part(to, dest), &data) {
                    Ok(()) => {
                        let lane = (part(i, source).raw(), part(to, dest).raw(), false, 1);
                        if !gone {
                            self.oracle.borrow_mut().expect(lane, data);
                        }
                    }
                    Err(SendError::Open(OpenError::WouldBlock)) => {}
                    Err(SendError::Open(_)) => assert!(gone),
                    Err(e) => panic!("{e:?}"),
                }
            }
            Operation::Push { node: i, source, to, dest, length, urgent, segment } => {
                let mut data = self.fill(length);
                let class = if urgent { CduClass::Command } else { CduClass::ShortMessage };
                let route = Route::new(class, 0, part(i, source), part(to, dest));
                let lane = (part(i, source).raw(), part(to, dest).raw(), urgent, 0);
                for _ in 0..2 {
                    let Some((block, messages)) = self.block(i, to, urgent) else { return };
                    let room = if segment {
                        block.reserve_segment(route, SegmentHeader::new(1, 2, 3), data.len())
                    } else {
                        block.reserve(route, data.len())
                    };
                    if let Ok(room) = room {
                        room.copy_from_slice(&data);
                        messages.push((lane, data));
                        return;
                    }
                    self.submit(i, to, urgent);
                    data.truncate(BODY - 32);
                }
                panic!("an empty block has no room for {length} bytes");
            }
            Operation::PushSet { node: i, source, length, mask } => {
                let all = (0..self.hosts.len()).flat_map(|n| (0..PARTS).map(move |p| part(n, p)));
                let set: Vec<_> =
                    all.enumerate().filter(|(k, _)| mask & 1 << (k % 8) != 0).map(|(_, p)| p).collect();
                let data = self.fill(length);
                let route = Route::new(CduClass::ShortMessage, 0, part(i, source), part(i, source));
                for to in 0..self.hosts.len() {
                    let here: Vec<_> = set.iter().copied().filter(|p| p.node().index() == to).collect();
                    if here.is_empty() {
                        continue;
                    }
                    for _ in 0..2 {
                        let Some((block, messages)) = self.block(i, to, false) else { break };
                        if let Ok(room) = block.reserve_set(route, &set, None, data.len()) {
                            room.copy_from_slice(&data);
                            for p in &here {
                                messages.push(((part(i, source).raw(), p.raw(), false, 0), data.clone()));
                            }
                            break;
                        }
                        self.submit(i, to, false);
                    }
                }
            }
            Operation::Submit { node, to, urgent } => self.submit(node, to, urgent),
            Operation::Flush { node } => {
                if let Some(host) = self.hosts[node].as_mut() {
                    host.engine.flush();
                }
            }
            Operation::Poll { node } => {
                self.poll(node);
                self.now = self.now.after(10);
            }
            Operation::Read { node, part, count, keep } => self.read(node, part, count, keep),
            Operation::Release { node } => self.release(node),
            Operation::Segment { node: i, source, to, dest, length, last } => {
                self.segment(i, source, (to, dest), length, last);
            }
            Operation::Gate { from, to, closed } => self.net.borrow_mut().links[from][to].closed = closed,
            Operation::Busy { from, to, times } => self.net.borrow_mut().links[from][to].busy = times,
            Operation::Flip { from, to, at, bits } => {
                self.net.borrow_mut().links[from][to].flip = Some((at, bits));
            }
            Operation::Barrier { node } => {
                if let Some(host) = self.hosts[node].as_mut().filter(|h| h.barrier.is_none()) {
                    host.barriers += 1;
                    host.barrier = Some(host.engine.arrive());
                    assert_eq!(host.barrier, Some(host.barriers));
                }
            }
            Operation::Quiet { node } => {
                let serial = self.oracle.borrow().serial;
                if let Some(host) = self.hosts[node].as_mut().filter(|h| h.quiet.is_none()) {
                    host.quiet = Some((host.engine.ask_quiet(), serial));
                }
            }
            Operation::Wait { nanos } => self.now = self.now.after(nanos),
            Operation::Kill { node } => {
                // The master's failure is not handled yet.
                if node != 0 && self.live().len() > 1 {
                    self.kill(node);
                }
            }
            Operation::Inject { from, to, seed } => {
                let bytes = self.forge(from, to, seed);
                self.net.borrow_mut().inject(from, to, bytes);
            }
        }
        for i in 0..self.hosts.len() {
            self.check(i);
        }
    }

    /// A block that looks like one of the peer, with some of it wrong.
    fn forge(&self, from: usize, to: usize, seed: u16) -> Vec<u8> {
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
        bytes[8] = 1;
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

    pub fn read(&mut self, i: usize, local: u16, count: usize, keep: bool) {
        let Some(host) = self.hosts[i].as_mut() else { return };
        for _ in 0..count {
            let Some((delivery, sum)) =
                host.pipes.queues.get_mut(usize::from(local)).and_then(VecDeque::pop_front)
            else {
                return;
            };
            assert_eq!(digest(delivery.bytes()), sum, "a delivery's bytes changed while it waited");
            if keep {
                host.held.push((delivery, sum));
            } else {
                host.engine.release(delivery);
            }
        }
    }

    pub fn release(&mut self, i: usize) {
        let Some(host) = self.hosts[i].as_mut() else { return };
        for (delivery, sum) in host.held.drain(..) {
            assert_eq!(digest(delivery.bytes()), sum, "a delivery's bytes changed while it was held");
            host.engine.release(delivery);
        }
    }

    fn segment(&mut self, i: usize, source: u16, (to, dest): (usize, u16), length: usize, last: bool) {
        let data = self.fill(length);
        let gone = self.dead.contains(&to);
        let Some(host) = self.hosts[i].as_mut() else { return };
        if let std::collections::btree_map::Entry::Vacant(entry) = host.streams.entry(source) {
            if gone {
                return;
            }
            let Ok((group, number)) = host.engine.open_stream(part(i, source)) else { return };
            let tag = StreamTag { group, number, segment: 0, dest: part(to, dest), flags: flag::FIRST };
            entry.insert(Outgoing { tag, source });
        }
        let outgoing = &host.streams[&source];
        let (mut tag, source) = (outgoing.tag, outgoing.source);
        if last {
            tag.flags |= flag::LAST;
        }
        let Ok(mut block) = host.engine.open(tag.dest.node()) else {
            if self.dead.contains(&tag.dest.node().index()) {
                host.streams.remove(&source);
                host.engine.close_stream(tag.group).unwrap();
            }
            return;
        };
        block.set_stream(tag);
        block.push(Route::new(CduClass::Stream, 0, part(i, source), tag.dest), &data).unwrap();
        host.engine.submit(block);
        let mut oracle = self.oracle.borrow_mut();
        oracle.serial += 1;
        let entry = (oracle.serial, tag.segment, last, data);
        if !oracle.dead.contains(&tag.dest.node().index()) {
            let place = (tag.dest.node().index(), VecDeque::new());
            oracle.streams.entry((i, tag.number.0)).or_insert(place).1.push_back(entry);
        }
        if last {
            host.streams.remove(&source);
            host.engine.close_stream(tag.group).unwrap();
        } else if let Some(outgoing) = host.streams.get_mut(&source) {
            outgoing.tag.segment += 1;
            outgoing.tag.flags = 0;
        }
    }

    pub fn kill(&mut self, dead: usize) {
        let Some(host) = self.hosts[dead].take() else { return };
        self.dead.push(dead);
        host.close();
        self.net.borrow_mut().kill(dead);
        self.oracle.borrow_mut().forget(dead);
    }

    /// What holds at any time.
    fn check(&mut self, i: usize) {
        let (row, posted) = (self.setup.row, self.setup.arrival == Arrival::Posted);
        let (setup, nodes) = (&self.setup, self.hosts.len());
        let arrivals: Vec<_> = self.hosts.iter().flatten().map(|h| h.barriers).collect();
        let oldest = self.oracle.borrow().oldest();
        let (net, dead) = (self.net.borrow(), self.dead.clone());
        let lossy = self.oracle.borrow().lossy;
        let Some(host) = self.hosts[i].as_mut() else { return };
        let engine = &host.engine;
        let mut accounted = engine.free_blocks() + setup.control;
        for peer in 0..nodes {
            let send = engine.send_row(node(peer)).unwrap();
            let recv = engine.recv_row(node(peer)).unwrap();
            assert!(send.space.used() <= send.space.real() && send.space.real() <= row);
            assert!(recv.space.used() <= row && recv.space.real() <= row);
            assert_eq!(send.space.recv() - send.space.send(), u64::from(send.space.used()));
            assert_eq!(recv.space.recv() - recv.space.send(), u64::from(recv.space.used()));
            if let Policy::Fixed = setup.policy
                && peer != i
                && !dead.contains(&peer)
            {
                assert!(recv.space.used() <= setup.initial || lossy, "the peer sent without credit");
                assert_eq!(recv.space.real(), setup.initial);
            }
            accounted += send.space.real();
            if posted && peer != i {
                accounted += net.posted(i, peer) + recv.space.used();
            }
        }
        // A peer's failure that the node has not heard of yet: its posted blocks are between the two.
        let unheard = dead.iter().any(|d| !engine.has_failed(node(*d)));
        assert!(unheard || accounted == setup.blocks(), "{accounted} of {} blocks", setup.blocks());
        let counters = engine.counters();
        assert_eq!((counters.dropped_control, counters.foreign_tokens), (0, 0));
        if !lossy && dead.is_empty() {
            assert_eq!((counters.malformed, counters.stale, counters.out_of_sequence), (0, 0, 0));
            assert_eq!((counters.unroutable, counters.stray_segments, counters.undelivered), (0, 0, 0));
            assert_eq!(counters.misdirected, 0);
        }
        if let Some(barrier) = host.barrier
            && engine.barrier_passed(barrier)
        {
            assert!(arrivals.iter().all(|a| *a >= barrier), "a barrier was passed before all arrived");
            host.barrier = None;
        }
        if let Some((number, serial)) = host.quiet
            && engine.is_quiet(number)
        {
            assert!(
                lossy || oldest.is_none_or(|o| o > serial),
                "quiet, but message {oldest:?} is on its way"
            );
            (host.quiet, host.quiets) = (None, host.quiets + 1);
        }
    }

    /// Stops all nodes.
    pub fn close(self) {
        self.hosts.into_iter().flatten().for_each(Host::close);
    }

    /// As [`settle`](Self::settle), for messages that did not come from operations.
    pub fn settle_unchecked(&mut self) {
        self.oracle.borrow_mut().lossy = true;
        self.settle();
    }

    /// Lets everything come to rest, and checks that nothing is left anywhere.
    pub fn settle(&mut self) {
        for link in self.net.borrow_mut().links.iter_mut().flatten() {
            (link.closed, link.busy, link.flip) = (false, 0, None);
        }
        for i in self.live() {
            for to in 0..self.hosts.len() {
                self.submit(i, to, false);
                self.submit(i, to, true);
            }
        }
        let mut rest = 0;
        for _ in 0..3000 {
            let mut worked = 0;
            for i in self.live() {
                worked += self.poll(i);
                for local in 0..=PARTS {
                    self.read(i, local, usize::MAX, false);
                }
                self.release(i);
                for source in 0..PARTS {
                    let open = self.host(i).streams.get(&source).map(|s| s.tag.dest);
                    if let Some(dest) = open {
                        worked += 1;
                        self.segment(i, source, (dest.node().index(), dest.local()), 3, true);
                    }
                }
            }
            self.now = self.now.after(1000);
            let quiet = self.hosts.iter().flatten().all(|h| h.quiet.is_none());
            rest = if worked == 0 && quiet { rest + 1 } else { 0 };
            if rest == 3 {
                break;
            }
        }
        assert_eq!(rest, 3, "the cluster does not come to rest");
        let lossy = self.oracle.borrow().lossy;
        let oldest = self.oracle.borrow().oldest();
        assert!(lossy || oldest.is_none(), "message {oldest:?} was never delivered");
        for i in self.live() {
            self.check(i);
            let nodes = self.hosts.len();
            let engine = &mut self.host(i).engine;
            for peer in 0..nodes {
                let (send, recv) =
                    (engine.send_row(node(peer)).unwrap(), engine.recv_row(node(peer)).unwrap());
                assert_eq!((send.space.used(), send.waiting), (0, 0), "send row {peer} of node {i}");
                assert_eq!((recv.space.used(), recv.waiting), (0, 0), "receive row {peer} of node {i}");
            }
            if !lossy {
                assert_eq!(engine.stream_mappings().count(), 0);
            }
        }
    }
}
