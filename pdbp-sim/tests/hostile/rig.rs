//! Engines, hosts and transports for the tests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;

use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::engine::{Checksum, Config, Event, PrivatePipes, Storage};
use pdbp_core::id::{NodeId, PartId, PipeId, Time};
use pdbp_core::policy::Fixed;
use pdbp_core::tables::PartKind;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use pdbp_core::{Arrival, Capabilities, Completion, Delivery, Engine, Op, Refused, SealedBlock, Transport};
use pdbp_local::Local;

pub const BODY: usize = 512;
pub const BLOCKS: usize = 32;

pub type Node<T> = Engine<'static, T, HeapMemory, Fixed>;

pub fn node(i: u16) -> NodeId {
    NodeId::new(i).unwrap()
}

pub fn part(i: u16) -> PartId {
    PartId::new(node(i), 0).unwrap()
}

pub fn memory() -> HeapMemory {
    HeapMemory::new(stride(BODY) * BLOCKS).unwrap()
}

pub fn engine<T: Transport>(me: u16, nodes: u16, transport: T, memory: HeapMemory) -> Node<T> {
    let mut config = Config::new(node(me), nodes);
    config.body = BODY;
    config.row = 4;
    config.initial = 3;
    config.control_blocks = 4;
    config.flush_after = 1000;
    config.interval = 10_000;
    config.checksum = Checksum::Off;
    config.masters = 1;
    config.patience = 2000;
    let storage = Storage::allocate(&config, BLOCKS, 64);
    Engine::new(config, Fixed, transport, memory, storage).unwrap()
}

/// Memory that was freed is given out again and written.
pub fn reuse_freed_memory() {
    for _ in 0..16 {
        std::hint::black_box(vec![0x55u8; stride(BODY) * BLOCKS]);
    }
}

/// What the host does with the next delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Takes,
    Refuses,
    Panics,
    /// Panics after it has stored what it got.
    TakesAndPanics,
    /// Keeps it and hands back the one it had first.
    Swaps,
}

/// A host.
#[derive(Default)]
pub struct Pipes {
    pub got: Vec<Delivery>,
    /// What it does with the next deliveries; it takes what comes then.
    pub moods: VecDeque<Mood>,
    pub panics_at_events: bool,
    pub events: Vec<Event>,
}

impl PrivatePipes for Pipes {
    fn deliver(&mut self, _: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        match self.moods.pop_front().unwrap_or(Mood::Takes) {
            Mood::Takes => self.got.push(delivery),
            Mood::Refuses => return Err(delivery),
            Mood::Panics => panic!("a bug in the host"),
            Mood::TakesAndPanics => {
                self.got.push(delivery);
                panic!("a bug in the host");
            }
            Mood::Swaps => {
                self.got.push(delivery);
                return Err(self.got.remove(0));
            }
        }
        Ok(())
    }

    fn event(&mut self, event: Event) {
        if std::mem::take(&mut self.panics_at_events) {
            panic!("a bug in the host");
        }
        self.events.push(event);
    }
}

/// What a [`Puppet`] was given, and what it will say.
#[derive(Default)]
pub struct Strings {
    pub taken: Vec<Op>,
    pub ready: VecDeque<Completion<Infallible>>,
    pub answer: Option<Answer>,
}

type Answer = Box<dyn FnMut(&mut Vec<Op>, Op) -> Result<(), Refused<Infallible>>>;

impl Strings {
    /// The data blocks to be sent that it was given.
    pub fn sends(&mut self) -> Vec<SealedBlock> {
        let (data, rest) = std::mem::take(&mut self.taken).into_iter().partition(is_data);
        self.taken = rest;
        let data: Vec<Op> = data;
        data.into_iter()
            .filter_map(|op| if let Op::Send { block, .. } = op { Some(block) } else { None })
            .collect()
    }
}

pub fn is_data(op: &Op) -> bool {
    matches!(op, Op::Send { block, .. } if block.bytes().len() > 3 && block.bytes()[3] != 2)
}

/// A transport that does what the test says.
pub struct Puppet {
    me: u16,
    nodes: u16,
    arrival: Arrival,
    strings: Rc<RefCell<Strings>>,
}

impl Puppet {
    pub fn new(me: u16, nodes: u16, arrival: Arrival) -> (Self, Rc<RefCell<Strings>>) {
        let strings = Rc::new(RefCell::new(Strings::default()));
        (Self { me, nodes, arrival, strings: Rc::clone(&strings) }, strings)
    }
}

impl Transport for Puppet {
    type Error = Infallible;

    fn capabilities(&self) -> Capabilities {
        Capabilities { nodes: self.nodes, node: node(self.me), largest_block: stride(BODY), trusted: false }
    }

    fn arrival(&self, _: NodeId) -> Arrival {
        self.arrival
    }

    fn capacity(&self, _: NodeId) -> usize {
        usize::MAX
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Infallible>> {
        let mut strings = self.strings.borrow_mut();
        let Some(mut answer) = strings.answer.take() else {
            strings.taken.push(op);
            return Ok(());
        };
        let outcome = answer(&mut strings.taken, op);
        strings.answer = Some(answer);
        outcome
    }

    fn poll_completion(&mut self) -> Option<Completion<Infallible>> {
        self.strings.borrow_mut().ready.pop_front()
    }
}

/// Node 0 of two on a transport that does what the test says. The two have met: each knows the other's settings, and has credit.
pub fn acquainted(arrival: Arrival) -> (Host<Puppet>, Rc<RefCell<Strings>>) {
    let (ours, strings) = Puppet::new(0, 2, arrival);
    let (theirs, their_strings) = Puppet::new(1, 2, arrival);
    let mut host = Host::new(engine(0, 2, ours, memory()));
    let mut peer = Host::new(engine(1, 2, theirs, memory()));
    let mut pools = [0, 1].map(|i| BlockPool::new(memory(), node(i), BODY));
    peer.engine.register("a part", PartKind::Cpu).unwrap();
    for _ in 0..30 {
        host.poll();
        peer.poll();
        let [of_ours, of_theirs] = &mut pools;
        relay((&strings, 0), (&their_strings, 1), arrival, of_ours);
        relay((&their_strings, 1), (&strings, 0), arrival, of_theirs);
    }
    (host, strings)
}

/// Hands over what one node has sent, and what it gives back.
fn relay(
    (from, me): (&RefCell<Strings>, u16),
    (to, peer): (&RefCell<Strings>, u16),
    arrival: Arrival,
    pool: &mut BlockPool<HeapMemory>,
) {
    let (mut from, mut to) = (from.borrow_mut(), to.borrow_mut());
    for op in std::mem::take(&mut from.taken) {
        let Op::Send { block, .. } = op else {
            from.taken.push(op);
            continue;
        };
        let room = match arrival {
            Arrival::InPlace => pool.take(),
            Arrival::Posted => to.taken.iter().position(|op| matches!(op, Op::Recv { .. })).map(|at| {
                let Op::Recv { block, .. } = to.taken.swap_remove(at) else { unreachable!() };
                block
            }),
        };
        let (mut room, length) = (room.unwrap(), block.bytes().len());
        room.bytes_mut()[..length].copy_from_slice(block.bytes());
        let arrived = room.into_arrived(length);
        to.ready.push_back(Completion::Received { peer: node(me), block: arrived });
        from.ready.push_back(Completion::Sent { peer: node(peer), block });
    }
    // What comes back of what was read in place.
    for op in std::mem::take(&mut to.taken) {
        match op {
            Op::Return { block, .. } => pool.give_arrived(block).unwrap(),
            op => to.taken.push(op),
        }
    }
}

/// An engine with its host and its time.
pub struct Host<T: Transport> {
    pub engine: Node<T>,
    pub pipes: Pipes,
    now: u64,
}

impl<T: Transport> Host<T> {
    pub fn new(engine: Node<T>) -> Self {
        Self { engine, pipes: Pipes::default(), now: 1 }
    }

    pub fn poll(&mut self) {
        self.now += 3000;
        self.engine.poll(Time(self.now), &mut self.pipes);
    }

    /// Polls with a host that panics somewhere.
    pub fn poll_and_panic(&mut self) {
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.poll()));
        assert!(polled.is_err(), "the host has not panicked");
    }

    /// A message from its first part to part number `dest` of a node. `false`: there is no block.
    pub fn send(&mut self, to: u16, dest: u16, text: &[u8]) -> bool {
        let Ok(mut block) = self.engine.open(node(to)) else { return false };
        let dest = PartId::new(node(to), dest).unwrap();
        let from = part(self.engine.config().node.raw());
        block.push(Route::new(CduClass::ShortMessage, 0, from, dest), text).unwrap();
        self.engine.submit(block);
        true
    }

    pub fn foreign(&self) -> u64 {
        self.engine.counters().foreign_tokens
    }

    /// Gives back all deliveries but the first `keep`.
    pub fn release_but(&mut self, keep: usize) {
        for delivery in self.pipes.got.drain(keep..) {
            self.engine.release(delivery);
        }
    }
}

/// The texts of deliveries.
pub fn texts(deliveries: &[Delivery]) -> Vec<Vec<u8>> {
    let text = |delivery: &Delivery| delivery.cdus().flatten().flat_map(|t| t.data().to_vec()).collect();
    deliveries.iter().map(text).collect()
}

/// Hosts of one network, each with two parts that have pipes.
pub fn cluster(nodes: u16, arrival: Arrival) -> Vec<Host<Local>> {
    let memories: Vec<_> = (0..nodes).map(|_| memory()).collect();
    let ends = Local::network(&memories, arrival, stride(BODY), 8);
    let hosts = ends.into_iter().zip(memories).enumerate();
    let mut hosts: Vec<_> =
        hosts.map(|(i, (end, memory))| Host::new(engine(i as u16, nodes, end, memory))).collect();
    for i in 0..hosts.len() {
        for p in 0..2 {
            let id = hosts[i].engine.register(&format!("p{p}of{i}"), PartKind::Cpu).unwrap();
            settle(&mut hosts);
            hosts[i].engine.bind_pipe(id).unwrap();
        }
    }
    hosts
}

pub fn settle<T: Transport>(hosts: &mut [Host<T>]) {
    for _ in 0..30 {
        hosts.iter_mut().for_each(Host::poll);
    }
}
