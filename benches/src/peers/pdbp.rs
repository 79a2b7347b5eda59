//! PDBP as users get it: a `pdbp::Cluster` in this process, one part per node, registered by the node's thread.
//!
//! A packet is one `try_send`; arrivals are read a train at a time with `try_recv_batch`. Settings that neither a peer below nor the command line
//! sets come from the environment variables (`PDBP_MEMORY_BYTES=…`), or are PDBP's defaults.

use std::marker::PhantomData;
use std::time::Duration;

use pdbp::{Builder, Node, Part, PartKind, SendError, Target};

use crate::fabric::{Endpoint, Fabric};
use crate::scenario::Scenario;

/// How long nodes wait for each other at the start.
const SOON: Duration = Duration::from_secs(30);

/// A cluster's settings, as names and values.
pub trait Settings {
    /// The settings for a scenario.
    fn of(scenario: &Scenario) -> Vec<(&'static str, String)>;
}

/// Default settings, except that the node's own thread makes progress.
#[derive(Debug)]
pub struct Inline;

/// Default settings: a progress thread per node.
#[derive(Debug)]
pub struct Threaded;

/// The skew experiment, adaptive: `TIMES` times 4 blocks per peer in all, of which 2 at the start.
#[derive(Debug)]
pub struct Shared<const TIMES: u32>;

/// The skew experiment, static: 4 · `TIMES` blocks per peer, divided once and for all.
#[derive(Debug)]
pub struct Divide<const TIMES: u32>;

/// Block bytes of the skew experiment.
const SKEW_BLOCK: usize = 16 * 1024;

/// `block_bytes` that a packet needs beside others.
fn block_for(packet: usize) -> usize {
    packet.next_multiple_of(8) + 64
}

fn tuned(scenario: &Scenario, progress: &str) -> Vec<(&'static str, String)> {
    let tuning = &scenario.tuning;
    let mut settings = vec![("progress", progress.to_owned())];
    // A packet is never cut: that is a matter of other measurements.
    let least = block_for(scenario.packet);
    let default = pdbp::Settings::default().block_bytes;
    if let Some(bytes) = tuning.block_bytes.or((default < least).then_some(least)) {
        settings.push(("block_bytes", bytes.max(least).to_string()));
    }
    if let Some(bytes) = tuning.pack_bytes {
        settings.push(("pack_bytes", bytes.to_string()));
    }
    if let Some(blocks) = tuning.blocks_per_peer {
        settings.push(("row_blocks", blocks.to_string()));
    }
    settings
}

/// `blocks` blocks for the rows of a node, plus those that the runtime sets aside for control messages.
fn skewed(scenario: &Scenario, policy: &str, row: u32, initial: u32) -> Vec<(&'static str, String)> {
    let block = scenario.tuning.block_bytes.unwrap_or(SKEW_BLOCK).max(block_for(scenario.packet));
    let nodes = scenario.nodes as u32;
    // Adaptive rows may take all that the others leave.
    let (blocks, row) = if policy == "fixed" { (row * nodes, row) } else { (row * nodes, row * nodes) };
    let memory = (blocks + nodes.clamp(2, 16)) as usize * pdbp_core::umb::stride(block);
    [
        ("progress", "inline".to_owned()),
        ("policy", policy.to_owned()),
        ("block_bytes", block.to_string()),
        ("pack_bytes", block.to_string()),
        ("row_blocks", row.to_string()),
        ("initial_blocks", initial.to_string()),
        ("memory_bytes", memory.max(65_536).to_string()),
    ]
    .into()
}

impl Settings for Inline {
    fn of(scenario: &Scenario) -> Vec<(&'static str, String)> {
        tuned(scenario, "inline")
    }
}

impl Settings for Threaded {
    fn of(scenario: &Scenario) -> Vec<(&'static str, String)> {
        tuned(scenario, "thread")
    }
}

impl<const TIMES: u32> Settings for Shared<TIMES> {
    fn of(scenario: &Scenario) -> Vec<(&'static str, String)> {
        skewed(scenario, "adaptive", 4 * TIMES, 2)
    }
}

impl<const TIMES: u32> Settings for Divide<TIMES> {
    fn of(scenario: &Scenario) -> Vec<(&'static str, String)> {
        skewed(scenario, "fixed", 4 * TIMES, 4 * TIMES)
    }
}

/// A cluster of one part per node.
#[derive(Debug)]
pub struct Pdbp<S>(PhantomData<S>);

/// A node on its way to its thread.
pub struct PdbpSeat {
    node: Node,
    nodes: usize,
}

/// A node's part, and where it sends to.
pub struct PdbpEndpoint {
    part: Part,
    /// By node; looked up when the first packet is sent, since the others have to register first.
    targets: Vec<Target>,
    nodes: usize,
    /// What arrived while a packet longer than a block was being sent.
    early: Vec<Vec<u8>>,
}

impl<S: Settings> Fabric for Pdbp<S> {
    type Endpoint = PdbpEndpoint;
    type Seat = PdbpSeat;

    fn connect(scenario: &Scenario) -> Vec<PdbpSeat> {
        // Invariant: set-up of a benchmark; a failure here is a mistake in the settings above, and ends it.
        let builder = Builder::from_env().unwrap_or_else(|error| panic!("pdbp: {error}"));
        let builder = builder.nodes(scenario.nodes as u16);
        let builder = S::of(scenario).into_iter().fold(builder, |b, (key, value)| b.set(key, &value));
        let cluster = builder.start().unwrap_or_else(|error| panic!("pdbp: {error}"));
        cluster.into_nodes().into_iter().map(|node| PdbpSeat { node, nodes: scenario.nodes }).collect()
    }
}

impl From<PdbpSeat> for PdbpEndpoint {
    fn from(PdbpSeat { node, nodes }: PdbpSeat) -> Self {
        Self::new(&node, nodes)
    }
}

impl PdbpEndpoint {
    /// The part of a node of a cluster of `nodes` nodes.
    ///
    /// # Panics
    ///
    /// When the node has such a part already, or the cluster does not answer.
    pub fn new(node: &Node, nodes: usize) -> Self {
        let part = node.register("sink", PartKind::Cpu).unwrap_or_else(|error| panic!("pdbp: {error}"));
        Self { part, targets: Vec::new(), nodes, early: Vec::new() }
    }

    /// The part.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// The part of another node.
    #[inline]
    pub fn target(&mut self, to: usize) -> Target {
        if let Some(target) = self.targets.get(to) {
            return *target;
        }
        self.find_targets(to)
    }

    #[cold]
    fn find_targets(&mut self, to: usize) -> Target {
        let find = |node| {
            let found = self.part.find(&format!("sink@node{node}"), SOON);
            found.unwrap_or_else(|error| panic!("pdbp: {error}"))
        };
        self.targets = (0..self.nodes).map(find).collect();
        self.targets[to]
    }
}

impl Endpoint for PdbpEndpoint {
    #[inline]
    fn try_send(&mut self, to: usize, packet: &[u8]) -> bool {
        let target = self.target(to);
        match self.part.try_send(target, packet) {
            Ok(()) => true,
            Err(SendError::WouldBlock) => false,
            // Longer than a block: it takes what arrives while it waits for room, since the others may do the same.
            Err(SendError::NeedsWaiting { .. }) => {
                let sent = self.part.send_or(target, packet, |message| self.early.push(message.into_vec()));
                sent.unwrap_or_else(|error| panic!("pdbp: {error}"));
                true
            }
            Err(error) => panic!("pdbp: {error}"),
        }
    }

    #[inline]
    fn receive(&mut self, mut f: impl FnMut(&[u8])) -> usize {
        let mut count = self.early.len();
        self.early.drain(..).for_each(|packet| f(&packet));
        // A batch is at most a block. More of them than this, and a sender on another core could keep the node here.
        for _ in 0..2 * self.nodes {
            let Some(batch) = self.part.try_recv_batch() else { break };
            batch.bytes().chunks_exact(batch.message_len()).for_each(&mut f);
            count += batch.len();
        }
        count
    }

    fn flush(&mut self) {
        self.part.flush();
    }

    /// Whether all blocks have come back, so that nobody waits for this node's polls.
    fn finished(&mut self) -> bool {
        self.flush();
        self.part.node().poll();
        self.part.node().stats().send.iter().all(|row| row.space.used() == 0)
    }
}
