//! The results of a scenario.

use std::fmt;

use pdbp_core::Transport;

use super::LinkCounts;
use super::host::{Host, Totals};
use super::setup::Setup;

/// Number of latencies kept; of more, only every second, fourth, eighth … is kept.
const KEPT: usize = 1 << 18;

/// Nanoseconds from when messages should have been sent until they were read: all of them, or an evenly spaced selection.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    values: Vec<u64>,
    seen: u64,
    /// One in 2^thinned is kept.
    thinned: u32,
    most: u64,
}

impl Latencies {
    pub(super) fn record(&mut self, nanos: u64) {
        self.most = self.most.max(nanos);
        if self.seen.is_multiple_of(1 << self.thinned) {
            self.values.push(nanos);
        }
        self.seen += 1;
        if self.values.len() >= KEPT {
            let mut place = 0;
            self.values.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.thinned += 1;
        }
    }

    pub(super) fn sort(&mut self) {
        self.values.sort_unstable();
    }

    /// Returns the latency that `permille` of 1000 messages do not exceed; 0 without messages.
    pub fn permille(&self, permille: usize) -> u64 {
        let place = self.values.len().saturating_sub(1) * permille.min(1000) / 1000;
        self.values.get(place).copied().unwrap_or(0)
    }

    /// The longest.
    pub fn most(&self) -> u64 {
        self.most
    }
}

/// The results of a scenario. Sums are over all nodes and lives.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Number of nodes.
    pub nodes: usize,
    /// The seed.
    pub seed: u64,
    /// Nanoseconds of virtual time, including the time to come to rest.
    pub time: u64,
    /// Nanoseconds with traffic.
    pub traffic_time: u64,
    /// Messages that engines accepted.
    pub sent: u64,
    /// Messages read.
    pub delivered: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages between live nodes that were lost with failed links.
    pub lost: u64,
    /// Messages that engines refused because the peer's link was down.
    pub refused: u64,
    /// Messages returned to their senders because a peer whose link failed did not get them.
    pub returned: u64,
    /// Messages longer than a block that were read whole.
    pub assembled: u64,
    /// Streams that were read whole.
    pub streams: u64,
    /// Streams whose readers learnt that they ended early.
    pub streams_cut: u64,
    /// Barriers passed, by each node.
    pub barriers: u64,
    /// Requests for quiescence that were answered.
    pub quiets: u64,
    /// Supersteps that ended, counted at each node.
    pub supersteps: u64,
    /// Messages that engines reported as undelivered.
    pub undelivered: u64,
    /// Messages that relays have passed on.
    pub relayed: u64,
    /// Messages that relays could not pass on.
    pub relay_lost: u64,
    /// Deliveries that were copied because they were read late.
    pub copied: u64,
    /// Messages read while there was traffic.
    pub timely: u64,
    /// Their bytes.
    pub timely_bytes: u64,
    /// Latencies of the messages that were read.
    pub latencies: Latencies,
    /// Blocks that went through send rows.
    pub blocks: u64,
    /// Bytes in their bodies, as a fraction of the bytes that they have room for.
    pub fill: f64,
    /// Bytes of block memory of one node, on average.
    pub block_memory: usize,
    /// Bytes of the tables of one node's engine, on average.
    pub table_memory: usize,
    /// Maximum number of blocks that a node had in rows or posted at a time.
    pub most_blocks: u32,
    /// The same maximum for each node alive at the end, averaged over these nodes.
    pub mean_blocks: f64,
    /// Number of blocks that a node had in rows or posted, averaged over the nodes alive at the end and over the time of the
    /// traffic after its warm-up.
    pub held_blocks: f64,
    /// The highest epoch of any node's tables; greater than the initial one if a master was elected.
    pub epoch: u32,
    /// Number of host runs.
    pub steps: u64,
    /// Counters of the links.
    pub links: LinkCounts,
    /// A number that depends on everything that happened.
    pub digest: u64,
    body_bytes: u64,
    body: usize,
    /// Number of blocks that can be in rows or posted, over all nodes so far.
    all_blocks: u64,
    /// Free blocks times nanoseconds, and nanoseconds.
    free: (u128, u64),
    /// Number of nodes so far, for the means.
    added: u32,
    memory: (u64, u64),
}

impl Report {
    pub(super) fn new(setup: &Setup, time: u64, past: Totals) -> Self {
        Self {
            nodes: setup.nodes,
            seed: setup.seed,
            time,
            traffic_time: time.min(setup.traffic_until),
            body: setup.body,
            ..Self::default()
        }
        .with(past)
    }

    fn with(self, totals: Totals) -> Self {
        let Totals { sent, delivered, bytes, timely, timely_bytes, refused, returned, .. } = totals;
        let Totals { assembled, streams, barriers, quiets, supersteps, .. } = totals;
        let Totals { blocks, undelivered, relayed, relay_lost, copied, .. } = totals;
        Self {
            sent: self.sent + sent,
            delivered: self.delivered + delivered,
            bytes: self.bytes + bytes,
            timely: self.timely + timely,
            timely_bytes: self.timely_bytes + timely_bytes,
            refused: self.refused + refused,
            returned: self.returned + returned,
            assembled: self.assembled + assembled,
            streams: self.streams + streams.0,
            streams_cut: self.streams_cut + streams.1,
            barriers: self.barriers + barriers,
            quiets: self.quiets + quiets,
            supersteps: self.supersteps + supersteps,
            blocks: self.blocks + blocks.0,
            body_bytes: self.body_bytes + blocks.1,
            undelivered: self.undelivered + undelivered,
            relayed: self.relayed + relayed,
            relay_lost: self.relay_lost + relay_lost,
            copied: self.copied + copied,
            ..self
        }
    }

    pub(super) fn add<T: Transport>(&mut self, setup: &Setup, host: &Host<T>, missing: u64) {
        *self = std::mem::take(self).with(host.all());
        self.lost += missing;
        let all = setup
            .blocks(host.engine().config().node)
            .saturating_sub(setup.control_blocks(host.engine().config().node));
        let blocks = all.saturating_sub(host.least_free);
        self.most_blocks = self.most_blocks.max(blocks);
        self.added += 1;
        self.free = (self.free.0 + host.held.free, self.free.1 + host.held.time);
        let free = self.free.0 as f64 / self.free.1.max(1) as f64;
        self.all_blocks += u64::from(all);
        self.held_blocks = (self.all_blocks as f64 / f64::from(self.added) - free).max(0.0);
        self.mean_blocks += (f64::from(blocks) - self.mean_blocks) / f64::from(self.added);
        let (block_memory, table_memory) = host.memory;
        self.memory = (self.memory.0 + block_memory as u64, self.memory.1 + table_memory as u64);
        self.block_memory = (self.memory.0 / u64::from(self.added)) as usize;
        self.table_memory = (self.memory.1 / u64::from(self.added)) as usize;
        self.epoch = self.epoch.max(host.engine().agreement().epoch().0);
        let room = self.blocks * self.body as u64;
        self.fill = if room == 0 { 0.0 } else { self.body_bytes as f64 / room as f64 };
    }

    /// Messages read while there was traffic, as a fraction of those that were due; a network that keeps up has little less than 1.
    pub fn efficiency(&self) -> f64 {
        let due = self.sent + self.refused;
        if due == 0 { 1.0 } else { self.timely as f64 / due as f64 }
    }

    /// Number of blocks of one node that can be in rows or posted, on average.
    pub fn blocks_of_rows(&self) -> u32 {
        (self.all_blocks / u64::from(self.added.max(1))) as u32
    }

    /// Bytes of messages read while there was traffic, per second.
    pub fn throughput(&self) -> f64 {
        if self.traffic_time == 0 { 0.0 } else { self.timely_bytes as f64 * 1e9 / self.traffic_time as f64 }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |nanos: u64| nanos as f64 / 1000.0;
        let LinkCounts { frames, lost, repeated, failures, restored, .. } = self.links;
        writeln!(f, "{} nodes, seed {}, {:.3} ms", self.nodes, self.seed, self.time as f64 / 1e6)?;
        writeln!(
            f,
            "messages: {} sent, {} delivered, {} lost with links, {} refused; {:.1} MB/s",
            self.sent,
            self.delivered,
            self.lost,
            self.refused,
            self.throughput() / 1e6
        )?;
        let at = |permille| us(self.latencies.permille(permille));
        writeln!(
            f,
            "latency, µs: {:.1} half, {:.1} 90 %, {:.1} 99 %, {:.1} 99.9 %, {:.1} most",
            at(500),
            at(900),
            at(990),
            at(999),
            us(self.latencies.most())
        )?;
        if self.streams + self.streams_cut > 0 {
            writeln!(f, "streams: {} whole, {} cut short", self.streams, self.streams_cut)?;
        }
        if self.barriers + self.quiets > 0 {
            writeln!(f, "barriers: {} passed; quiescence: {} times", self.barriers, self.quiets)?;
        }
        if self.supersteps > 0 {
            writeln!(f, "supersteps: {} over", self.supersteps)?;
        }
        writeln!(f, "blocks: {} of {:.0} % filled on average", self.blocks, self.fill * 100.0)?;
        writeln!(
            f,
            "frames: {frames}, {lost} lost, {repeated} repeated; links: {failures} failed, {restored} restored"
        )?;
        writeln!(
            f,
            "memory of a node: {} bytes of blocks, {} of tables; up to {} blocks in use, {:.0} on average",
            self.block_memory, self.table_memory, self.most_blocks, self.mean_blocks
        )?;
        writeln!(f, "{} steps, digest {:016x}", self.steps, self.digest)
    }
}
