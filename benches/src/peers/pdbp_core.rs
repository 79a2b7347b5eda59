//! PDBP without its runtime: an endpoint per node over the in-process transport, polled by the node itself.
//!
//! The sender writes packets where they leave from; `receive` polls, and reads what has come where it lies. Two parts per node send, the
//! first of which receives.
//!
//! **Blocks**: see [`Allocation`]. A packet is never cut; a block has room for at least one.

use std::marker::PhantomData;
use std::time::Instant;

use pdbp_core::endpoint::{EndpointStorage, SendError};
use pdbp_core::engine::{Checksum, LocalPart};
use pdbp_core::id::{NodeId, PartId, Time};
use pdbp_core::policy::{Adaptive, Fixed, SpacePolicy};
use pdbp_core::tables::PartKind;
use pdbp_core::umb::{HeapMemory, stride};
use pdbp_core::{Arrival, Config};
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

/// Endpoints over the in-process transport.
#[derive(Debug)]
pub struct PdbpCore<S>(PhantomData<S>);

/// Parts of a node.
pub const PARTS: u16 = 2;

/// A node.
pub struct CoreEndpoint<P: SpacePolicy> {
    endpoint: pdbp_core::Endpoint<'static, Local, HeapMemory, P>,
    parts: Vec<PartId>,
    /// By node: the part that receives.
    sinks: Vec<PartId>,
    /// By destination: there was no block, and nothing has been polled since.
    refused: Vec<bool>,
    start: Instant,
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
                // What is in the pipe is bounded by the credit that the node gives its peers.
                let parts = usize::from(PARTS) * scenario.nodes;
                let storage = EndpointStorage::allocate(&config, (blocks, parts), blocks, (0, 0));
                let endpoint = pdbp_core::Endpoint::new(config, S::policy(), transport, memory, storage);
                CoreEndpoint {
                    endpoint: endpoint.unwrap_or_else(|error| panic!("node {id}: {error}")),
                    parts: Vec::new(),
                    sinks: (0..scenario.nodes).map(sink).collect(),
                    refused: vec![false; scenario.nodes],
                    start: Instant::now(),
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
    (config.local_parts, config.private_pipes) = (PARTS, PARTS);
    // Blocks leave when they are full, when all is sent, and when there is nothing else to do.
    config.flush_after = u64::MAX;
    config
}

fn node(id: usize) -> NodeId {
    // Invariant: the command line allows 256 nodes.
    NodeId::new(id as u16).expect("a node number")
}

fn sink(id: usize) -> PartId {
    // Invariant: part 0 is none of the reserved ones.
    PartId::new(node(id), 0).expect("part 0")
}

/// Registers the parts of all nodes and waits until all nodes know all of them.
fn introduce<P: SpacePolicy>(nodes: &mut [CoreEndpoint<P>]) {
    for node in nodes.iter_mut() {
        for part in 0..PARTS {
            let id = node.endpoint.register(&format!("part{part}"), PartKind::Cpu);
            node.parts.push(id.expect("one of the first parts of a node"));
        }
    }
    for _ in 0..100_000 {
        for node in nodes.iter_mut() {
            node.poll();
        }
        if nodes.iter().all(CoreEndpoint::is_known) {
            return;
        }
    }
    panic!("the nodes did not get to know each other");
}

impl<P: SpacePolicy> CoreEndpoint<P> {
    fn is_known(&self) -> bool {
        let known = |part: &PartId| self.endpoint.state(*part) == LocalPart::Known;
        self.endpoint.engine().is_ready() && self.parts.iter().all(known)
    }

    /// Has the endpoint take what has arrived and send what is queued; blocks moved.
    pub fn poll(&mut self) -> u32 {
        let now = Time(self.start.elapsed().as_nanos() as u64);
        self.refused.fill(false);
        self.endpoint.poll(now)
    }

    /// Sends a message of part number `from` to node `to`, or returns `false` when there is no room. Messages of the same size and
    /// the same parts that follow each other share a header.
    #[inline]
    pub fn pack(&mut self, from: usize, to: usize, message: &[u8]) -> bool {
        match self.send(from, to, message) {
            Ok(()) => true,
            Err(error) => self.pack_later(from, to, message, error),
        }
    }

    #[inline]
    fn send(&mut self, from: usize, to: usize, message: &[u8]) -> Result<(), SendError> {
        let fill = |room: &mut [u8]| copy_packet(room, message);
        self.endpoint.send_with(self.parts[from], self.sinks[to], message.len(), fill)
    }

    #[cold]
    #[inline(never)]
    fn pack_later(&mut self, from: usize, to: usize, message: &[u8], error: SendError) -> bool {
        assert_eq!(
            error,
            SendError::WouldBlock,
            "a block holds at least one packet of {} bytes",
            message.len()
        );
        // A row that was full is so until a poll finds that blocks have come back.
        if self.refused[to] {
            return false;
        }
        self.poll();
        let sent = self.send(from, to, message).is_ok();
        self.refused[to] = !sent;
        sent
    }

    /// Reads all messages that `poll` has delivered; their number.
    #[inline]
    pub fn read(&mut self, mut f: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        loop {
            // What cannot be read is missing from the sums, so that the run ends with this peer's name.
            match self.endpoint.recv_each(self.parts[0], |_, message| f(message)) {
                0 => return count,
                some => count += some,
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
        self.endpoint.flush();
        self.poll();
    }

    /// All blocks have come back, so that nobody waits for this node's polls.
    fn finished(&mut self) -> bool {
        self.flush();
        let engine = self.endpoint.engine();
        (0..self.sinks.len()).all(|to| engine.send_row(node(to)).is_none_or(|row| row.space.used() == 0))
    }
}
