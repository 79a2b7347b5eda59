//! PDBP without its runtime: an engine per node over the in-process transport, polled by the node itself.
//!
//! The sender packs packets into an open block per destination, as a writer of the runtime does; `receive` polls the
//! engine, reads the CDUs of every delivery in place and releases it. One part per node, one private pipe each.
//!
//! **Blocks**: see [`Allocation`]. A packet is never cut; a block has room for at least one.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Instant;

use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::engine::{Checksum, LocalPart};
use pdbp_core::id::{NodeId, PartId, PipeId, Time};
use pdbp_core::outbox::{Due, Hop, Outbox, Outgoing, Rule};
use pdbp_core::policy::{Adaptive, Fixed, SpacePolicy};
use pdbp_core::tables::PartKind;
use pdbp_core::umb::{HeapMemory, stride};
use pdbp_core::{Arrival, Config, Delivery, Engine, PrivatePipes, Storage};
use pdbp_local::Local;

use crate::fabric::{Endpoint, Fabric};
use crate::scenario::{Pattern, Scenario};
use crate::source::copy_packet;

/// How many blocks a node has, and how they are divided at the start.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    /// Bytes of a block's body.
    pub body: usize,
    /// Largest number of elements of a row (N).
    pub row: u32,
    /// Real elements of a row at the start (m).
    pub initial: u32,
    /// Blocks for rows, besides those for control messages.
    pub blocks: u32,
}

/// A policy and what it works on.
pub trait Setup {
    /// The policy of rows.
    type Policy: SpacePolicy + Send;
    /// The policy's value.
    fn policy() -> Self::Policy;
    /// What a node gets.
    fn allocation(scenario: &Scenario) -> Allocation;
}

/// What the comparison with other peers uses: the default policy, rows of up to 4 blocks per peer, 2 at the start, of
/// 512 KiB over the number of nodes.
///
/// The blocks are that large because the receiver reads them in place: with few and small ones it follows on the
/// sender's heels, and the same lines go back and forth between two cores. Between two nodes, 4 blocks of 32 KiB gave 3.1
/// GB/s at 64 B and 4.7 at 4 KiB, 4 of 256 KiB gave 6.1 and 10; more blocks change little.
///
/// Under n↔n traffic of more nodes than cores a row has one block. Then a node that has filled one for each of the others gives its
/// core away, instead of filling on for those whose core is the other one. With 4 and 8 nodes on two cores that is 1.4 and 1.3 times
/// the throughput at 64 B, 1.2 times at 1 KiB, 1.1 times at 16 KiB; 1→n and n→1 would lose 3 to 28 %.
#[derive(Debug)]
pub struct Usual;

/// The memory of the skew experiment with the adaptive policy: 4 blocks per peer in all, 2 of them at the start.
#[derive(Debug)]
pub struct Sparse;

/// The same memory `TIMES` times, divided once and for all: 4 · `TIMES` blocks per peer.
#[derive(Debug)]
pub struct Divided<const TIMES: u32>;

/// Bytes of a block's body: `wanted`, or whatever a packet needs.
fn body(scenario: &Scenario, wanted: usize) -> usize {
    let packet = scenario.packet.next_multiple_of(8) + 64;
    scenario.tuning.block_bytes.unwrap_or(wanted).max(packet)
}

impl Setup for Usual {
    type Policy = Adaptive;

    fn policy() -> Adaptive {
        Adaptive::DEFAULT
    }

    fn allocation(scenario: &Scenario) -> Allocation {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let takes_turns = scenario.pattern == Pattern::AllToAll && scenario.nodes > cores;
        let row = scenario.tuning.blocks_per_peer.unwrap_or(if takes_turns { 1 } else { 4 });
        let initial = row.div_ceil(2);
        Allocation {
            body: body(scenario, 512 * 1024 / scenario.nodes),
            row,
            initial,
            blocks: row * scenario.nodes as u32,
        }
    }
}

impl Setup for Sparse {
    type Policy = Adaptive;

    fn policy() -> Adaptive {
        Adaptive::DEFAULT
    }

    fn allocation(scenario: &Scenario) -> Allocation {
        let blocks = 4 * scenario.nodes as u32;
        Allocation { body: body(scenario, SKEW_BODY), row: blocks, initial: 2, blocks }
    }
}

/// Block bodies of the skew experiment.
const SKEW_BODY: usize = 16 * 1024;

impl<const TIMES: u32> Setup for Divided<TIMES> {
    type Policy = Fixed;

    fn policy() -> Fixed {
        Fixed
    }

    fn allocation(scenario: &Scenario) -> Allocation {
        let row = 4 * TIMES;
        Allocation { body: body(scenario, SKEW_BODY), row, initial: row, blocks: row * scenario.nodes as u32 }
    }
}

/// Blocks leave when they are full, and when all is sent.
const RULE: Rule = Rule { flush_after: u64::MAX, pack: usize::MAX };

/// Engines over the in-process transport.
#[derive(Debug)]
pub struct PdbpCore<S>(PhantomData<S>);

type NodeEngine<P> = Engine<'static, Local, HeapMemory, P>;

/// A node: its engine, the blocks it is filling, what has arrived.
pub struct CoreEndpoint<P: SpacePolicy> {
    engine: NodeEngine<P>,
    /// A lane for each destination.
    outbox: Outbox<'static>,
    routes: Vec<Route>,
    arrived: Arrived,
    /// By destination: there was no block, and nothing has been polled since; and whether there is such a destination.
    refused: Vec<bool>,
    any_refused: bool,
    start: Instant,
    /// The time when the clock was looked at last, and the polls since.
    now: Time,
    polls: u32,
}

/// Polls for one look at the clock. The engine needs no better time than its intervals, of a millisecond, and a look costs about as much as
/// the rest of a poll that finds nothing.
const POLLS_PER_LOOK: u32 = 16;

/// The one private pipe of a node.
#[derive(Default)]
struct Arrived(VecDeque<Delivery>);

impl PrivatePipes for Arrived {
    fn deliver(&mut self, _: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        // Bounded by the credit that the node gives its peers.
        self.0.push_back(delivery);
        Ok(())
    }
}

impl<S: Setup> Fabric for PdbpCore<S> {
    type Endpoint = CoreEndpoint<S::Policy>;
    type Seat = Self::Endpoint;

    fn connect(scenario: &Scenario) -> Vec<Self::Seat> {
        let allocation = S::allocation(scenario);
        let control = control_blocks(scenario);
        let blocks = (allocation.blocks + control) as usize;
        let memory = blocks * stride(allocation.body);
        // Invariant: set-up of a benchmark; a failure here is a mistake in the allocations above, and ends it.
        let memories: Vec<_> =
            (0..scenario.nodes).map(|_| HeapMemory::new(memory).expect("memory for the blocks")).collect();
        let in_flight = (allocation.row + control) as usize;
        let ends = Local::network(&memories, Arrival::InPlace, stride(allocation.body), in_flight);
        let mut nodes: Vec<_> = ends
            .into_iter()
            .zip(memories)
            .enumerate()
            .map(|(id, (transport, memory))| {
                let config = config(id, scenario, allocation);
                let storage = Storage::allocate(&config, blocks, 2 * scenario.nodes);
                let engine = Engine::new(config, S::policy(), transport, memory, storage);
                CoreEndpoint {
                    engine: engine.unwrap_or_else(|error| panic!("node {id}: {error}")),
                    outbox: Outbox::allocate(scenario.nodes, RULE),
                    routes: (0..scenario.nodes).map(|to| route(id, to)).collect(),
                    arrived: Arrived::default(),
                    refused: vec![false; scenario.nodes],
                    any_refused: false,
                    start: Instant::now(),
                    now: Time(0),
                    polls: 0,
                }
            })
            .collect();
        introduce(&mut nodes);
        nodes
    }
}

/// Blocks for control messages: one for each link at least.
fn control_blocks(scenario: &Scenario) -> u32 {
    (scenario.nodes as u32).max(32)
}

fn config(id: usize, scenario: &Scenario, allocation: Allocation) -> Config {
    let mut config = Config::new(node(id), scenario.nodes as u16);
    config.body = allocation.body;
    config.row = allocation.row;
    config.initial = allocation.initial;
    config.control_blocks = control_blocks(scenario);
    config.interval = 1_000_000;
    config.checksum = Checksum::Off;
    config.masters = 1;
    config.patience = 1_000_000;
    config
}

fn node(id: usize) -> NodeId {
    // Invariant: the command line allows 256 nodes.
    NodeId::new(id as u16).expect("a node number")
}

fn route(from: usize, to: usize) -> Route {
    let part = |id| PartId::new(node(id), 0).expect("part 0");
    Route::new(CduClass::ShortMessage, 0, part(from), part(to))
}

/// Registers one part per node and waits until all nodes know all of them.
fn introduce<P: SpacePolicy>(nodes: &mut [CoreEndpoint<P>]) {
    for node in nodes.iter_mut() {
        let part = node.engine.register("sink", PartKind::Cpu).expect("the first part of a node");
        node.engine.bind_pipe(part).expect("the first pipe of a node");
    }
    for _ in 0..100_000 {
        for node in nodes.iter_mut() {
            node.poll();
        }
        if nodes.iter().all(|n| n.engine.is_ready() && n.engine.local_part(0) == LocalPart::Known) {
            return;
        }
    }
    panic!("the nodes did not get to know each other");
}

impl<P: SpacePolicy> CoreEndpoint<P> {
    /// Has the engine take what has arrived and send what is queued; blocks moved.
    pub fn poll(&mut self) -> u32 {
        if self.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.now = Time(self.start.elapsed().as_nanos() as u64);
        }
        self.polls = self.polls.wrapping_add(1);
        if std::mem::take(&mut self.any_refused) {
            self.refused.fill(false);
        }
        self.engine.poll(self.now, &mut self.arrived).worked
    }

    /// Packs a message with this route for node `to`, or returns `false` when there is no room. Messages of the same
    /// size and route that follow each other share a header.
    #[inline]
    pub fn pack(&mut self, to: usize, route: Route, message: &[u8]) -> bool {
        if let Ok(room) = self.outbox.reserve(Hop::to_node(node(to)), route, message.len()) {
            copy_packet(room, message);
            return true;
        }
        self.pack_elsewhere(to, route, message)
    }

    /// Reads all messages that `poll` has delivered, and releases them; their number.
    #[inline]
    pub fn read(&mut self, mut f: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while let Some(delivery) = self.arrived.0.pop_front() {
            // What cannot be read is missing from the sums, so that the run ends with this peer's name.
            for train in delivery.cdus().map_while(Result::ok) {
                for message in train.messages() {
                    f(message);
                }
                count += train.count() as usize;
            }
            self.engine.release(delivery);
        }
        count
    }

    #[cold]
    #[inline(never)]
    fn pack_elsewhere(&mut self, to: usize, route: Route, packet: &[u8]) -> bool {
        // A row that was full is so until a poll finds that blocks have come back.
        !self.refused[to] && self.turn_over(to, route, packet)
    }

    /// A new block for `to`, in place of the full one, with room for `length` bytes.
    #[inline(never)]
    fn turn_over(&mut self, to: usize, route: Route, packet: &[u8]) -> bool {
        if let Some((full, _)) = self.outbox.take(to) {
            self.engine.submit(full);
            self.poll();
        }
        let Ok(block) = self.engine.open(node(to)) else {
            (self.refused[to], self.any_refused) = (true, true);
            return false;
        };
        let outgoing = Outgoing::message(route, packet);
        let before = self.outbox.place(block, Hop::to_node(node(to)), &outgoing, Time(0));
        assert!(matches!(before, Ok(None)), "a block holds at least one packet of {} bytes", packet.len());
        true
    }
}

impl<P: SpacePolicy + Send> Endpoint for CoreEndpoint<P> {
    #[inline]
    fn try_send(&mut self, to: usize, packet: &[u8]) -> bool {
        self.pack(to, self.routes[to], packet)
    }

    #[inline]
    fn receive(&mut self, f: impl FnMut(&[u8])) -> usize {
        self.poll();
        self.read(f)
    }

    fn flush(&mut self) {
        self.outbox.flush(&mut self.engine, Due::All);
        self.poll();
    }

    /// All blocks have come back, so that nobody waits for this node's polls.
    fn finished(&mut self) -> bool {
        self.flush();
        (0..self.routes.len())
            .all(|to| self.engine.send_row(node(to)).is_none_or(|row| row.space.used() == 0))
    }
}
