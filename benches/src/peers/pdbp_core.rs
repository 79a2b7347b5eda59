//! PDBP without its runtime: an endpoint per node over the in-process transport, polled by the node itself.
//!
//! `try_send` is [`Endpoint::send`](endpoint::Endpoint::send); `receive` polls the endpoint and reads arrivals in place. One part per node sends
//! and receives; a second one only sends, for messages with separate headers.
//!
//! **Blocks**: see [`Allocation`]. A packet is never split; a block has room for at least one.

use std::marker::PhantomData;
use std::time::Instant;

use pdbp_core::endpoint::{self, EndpointStorage, SendError};
use pdbp_core::engine::{Checksum, LocalPart};
use pdbp_core::id::{NodeId, PartId, Time};
use pdbp_core::policy::{Adaptive, Fixed, SpacePolicy};
use pdbp_core::tables::PartKind;
use pdbp_core::umb::{HeapMemory, stride};
use pdbp_core::{Arrival, Config};
use pdbp_local::Local;

use crate::fabric::{Endpoint, Fabric};
use crate::scenario::{Pattern, Scenario};

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

/// The default for comparisons with other peers: the default policy, rows of up to 4 blocks per peer, 2 at the start, of 512 KiB divided by the
/// number of nodes.
///
/// The blocks are that large because the receiver reads them in place: with few and small blocks it follows close behind the sender, and the same
/// lines go back and forth between two cores. Between two nodes, 4 blocks of 32 KiB gave 3.1 GB/s at 64 B and 4.7 at 4 KiB, 4 of 256 KiB gave 6.1
/// and 10; more blocks change little.
///
/// Under n↔n traffic of more nodes than cores a row has one block. Then a node that has filled one for each of the others yields its core, instead
/// of filling more for those on the other core. With 4 and 8 nodes on two cores that is 1.4 and 1.3 times the throughput at 64 B, 1.2 times at 1
/// KiB, 1.1 times at 16 KiB; 1→n and n→1 would lose 3 to 28 %.
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

/// Endpoints over the in-process transport.
#[derive(Debug)]
pub struct PdbpCore<S>(PhantomData<S>);

type NodeEndpoint<P> = endpoint::Endpoint<'static, Local, HeapMemory, P>;

/// Parts of a node.
const PARTS: usize = 2;

/// A node.
pub struct CoreEndpoint<P: SpacePolicy> {
    node: NodeEndpoint<P>,
    /// Those that send; the first one receives.
    sources: [PartId; PARTS],
    /// By node, the part that receives.
    sinks: Vec<PartId>,
    start: Instant,
    /// When the clock was last read, and the polls since.
    now: Time,
    polls: u32,
}

/// Polls per read of the clock. The engine needs no finer time than its intervals of a millisecond, and a read costs about as much as the rest of a
/// poll that finds nothing.
const POLLS_PER_LOOK: u32 = 16;

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
        let nodes = ends
            .into_iter()
            .zip(memories)
            .enumerate()
            .map(|(id, (transport, memory))| {
                let config = config(id, scenario, allocation);
                let sizes = (blocks, PARTS * scenario.nodes);
                // No more blocks arrive than the node gives credit for; no message is longer than a block.
                let storage = EndpointStorage::allocate(&config, sizes, allocation.blocks as usize, (0, 0));
                NodeEndpoint::new(config, S::policy(), transport, memory, storage)
                    .unwrap_or_else(|error| panic!("node {id}: {error}"))
            })
            .collect();
        introduce(nodes)
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
    config.local_parts = PARTS as u16;
    config.private_pipes = PARTS as u16;
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

/// Registers the parts and waits until all nodes know all of them.
fn introduce<P: SpacePolicy>(mut nodes: Vec<NodeEndpoint<P>>) -> Vec<CoreEndpoint<P>> {
    let sources: Vec<_> = nodes
        .iter_mut()
        .map(|node| ["sink", "other"].map(|name| node.register(name, PartKind::Cpu).expect("a part of two")))
        .collect();
    let sinks: Vec<_> = sources.iter().map(|[sink, _]| *sink).collect();
    let start = Instant::now();
    let mut nodes: Vec<_> = nodes
        .into_iter()
        .zip(sources)
        .map(|(node, sources)| CoreEndpoint {
            node,
            sources,
            sinks: sinks.clone(),
            start,
            now: Time(0),
            polls: 0,
        })
        .collect();
    for _ in 0..100_000 {
        for node in nodes.iter_mut() {
            node.poll();
        }
        if nodes.iter().all(CoreEndpoint::is_known) {
            return nodes;
        }
    }
    panic!("the nodes did not get to know each other");
}

impl<P: SpacePolicy> CoreEndpoint<P> {
    fn is_known(&self) -> bool {
        let known = self.sources.iter().all(|part| self.node.state(*part) == LocalPart::Registered);
        self.node.engine().is_ready() && known
    }

    /// Lets the endpoint take arrivals and send what is due. Returns the number of blocks moved.
    pub fn poll(&mut self) -> u32 {
        if self.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.now = Time(self.start.elapsed().as_nanos() as u64);
        }
        self.polls = self.polls.wrapping_add(1);
        self.node.poll(self.now)
    }

    /// Sends a message of part `from` of this node, 0 or 1, to the first part of node `to`, or returns `false` when there is no room. Consecutive
    /// messages of the same size and from the same part share a header.
    ///
    /// # Panics
    ///
    /// If it can never be sent.
    #[inline]
    pub fn pack(&mut self, from: usize, to: usize, message: &[u8]) -> bool {
        match self.node.send(self.sources[from], self.sinks[to], message) {
            Ok(()) => true,
            Err(SendError::WouldBlock) => false,
            Err(error) => panic!("{} bytes for node {to}: {error}", message.len()),
        }
    }

    /// Reads all messages that `poll` has delivered. Returns their number.
    #[inline]
    pub fn read(&mut self, mut f: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        loop {
            // What cannot be read is missing from the sums, so that the run ends with this peer's name.
            match self.node.recv_each(self.sources[0], |_, message| f(message)) {
                0 => return count,
                read => count += read,
            }
        }
    }
}

impl<P: SpacePolicy + Send> Endpoint for CoreEndpoint<P> {
    #[inline]
    fn try_send(&mut self, to: usize, packet: &[u8]) -> bool {
        self.pack(0, to, packet)
    }

    #[inline]
    fn receive(&mut self, f: impl FnMut(&[u8])) -> usize {
        self.poll();
        self.read(f)
    }

    fn flush(&mut self) {
        self.node.flush();
        self.poll();
    }

    /// Whether all blocks have come back, so that nobody waits for this node's polls.
    fn finished(&mut self) -> bool {
        self.flush();
        (0..self.sinks.len())
            .all(|to| self.node.engine().send_row(node(to)).is_none_or(|row| row.space.used() == 0))
    }
}
