//! The node's loop, the same for every peer; timing and verification of one run between threads.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::fabric::{Endpoint, Fabric};
use crate::scenario::{Pattern, Placement, Scenario};
use crate::source::{Source, Tally};

/// Bytes that a node sends to each destination between two checks for arrivals, unless the packets are larger; at most [`BURST_PACKETS`] packets.
const BURST_BYTES: usize = 4096;
/// Most packets per destination between two checks for arrivals.
const BURST_PACKETS: usize = 64;
/// Waits of a node without progress before the run is declared hung.
pub(crate) const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 180 } else { 20 });

/// Exchanges `warm_up` and then `count` units of the scenario's traffic (one packet over every pair, more where it is
/// skewed) and returns how long the `count` units took: from the first node's start to the last node's last packet.
///
/// # Panics
///
/// If a node received anything other than what was sent, or nothing moves for 20 seconds; the message names `peer`.
pub fn run<F: Fabric>(peer: &str, scenario: &Scenario, warm_up: u64, count: u64) -> Duration {
    let seats = F::connect(scenario);
    assert_eq!(seats.len(), scenario.nodes, "{peer}: one seat per node");
    let line = StartLine { nodes: scenario.nodes, arrived: AtomicUsize::new(0) };
    let times: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = seats
            .into_iter()
            .enumerate()
            .map(|(id, seat)| {
                let (line, peer) = (&line, peer.to_owned());
                scope.spawn(move || {
                    place(id, scenario);
                    let mut node = Node::<F::Endpoint>::new(peer, id, scenario, seat.into());
                    line.wait(1);
                    node.exchange(warm_up);
                    line.wait(2);
                    let start = Instant::now();
                    node.exchange(count);
                    let end = Instant::now();
                    line.wait(3);
                    node.verify(scenario, warm_up + count);
                    (start, end)
                })
            })
            .collect();
        // Invariant: a node's thread panics only to report a wrong peer, and then the whole program must end.
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panic!("{peer}: a node failed"))).collect()
    });
    let start = times.iter().map(|&(start, _)| start).min();
    let end = times.iter().map(|&(_, end)| end).max();
    start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start)
}

/// Pins the calling thread, that of node `id`, to a core, if the scenario wants it.
pub(crate) fn place(id: usize, scenario: &Scenario) {
    if scenario.placement == Placement::Pinned
        && let Some(cores) = core_affinity::get_core_ids()
        && !cores.is_empty()
    {
        core_affinity::set_for_current(cores[id % cores.len()]);
    }
}

/// One node's traffic to one other node.
struct Flow {
    to: usize,
    weight: u64,
    left: u64,
    /// The part of `left` that belongs to the current round, where flows keep in step.
    due: u64,
    /// Where in the source buffer the next packet starts.
    at: usize,
}

/// One node: its end of the fabric, what it has to send and what it has received.
pub(crate) struct Node<E> {
    peer: String,
    id: usize,
    packet: usize,
    endpoint: E,
    source: Source,
    flows: Vec<Flow>,
    /// Whether the flows keep in step, each with its weight.
    in_step: bool,
    /// Packets that it receives for one unit of traffic.
    due: u64,
    received: Tally,
    idle: Idle,
}

impl<E: Endpoint> Node<E> {
    /// Node `id` of the scenario; `peer` is what a panic begins with.
    pub(crate) fn new(peer: String, id: usize, scenario: &Scenario, endpoint: E) -> Self {
        Self {
            peer,
            id,
            packet: scenario.packet,
            endpoint,
            source: Source::new(id, scenario.packet),
            flows: scenario
                .destinations(id)
                .map(|(to, weight)| Flow { to, weight, left: 0, due: 0, at: 0 })
                .collect(),
            in_step: scenario.pattern == Pattern::Skewed,
            due: scenario.origins(id).map(|(_, weight)| weight).sum(),
            received: Tally::default(),
            idle: Idle::new(scenario.nodes),
        }
    }

    /// Sends `count` units of traffic, and receives what the origins send of theirs.
    pub(crate) fn exchange(&mut self, count: u64) {
        for flow in &mut self.flows {
            flow.left = count * flow.weight;
        }
        let burst = (BURST_BYTES / self.packet).clamp(1, BURST_PACKETS);
        let goal = self.received.packets + count * self.due;
        let mut sending = !self.flows.is_empty();
        loop {
            let mut moved = 0;
            if sending {
                let (sent, refused) = if self.in_step { self.send_rounds() } else { self.send_burst(burst) };
                moved += sent;
                sending = self.flows.iter().any(|flow| flow.left > 0);
                if !sending || (refused && sent == 0) {
                    self.endpoint.flush();
                }
            }
            moved += self.receive();
            if !sending && self.received.packets >= goal {
                // Asked again and again, so that a peer may do its part of the work here.
                if self.endpoint.finished() {
                    break;
                }
                self.endpoint.flush();
            }
            if moved == 0 {
                self.endpoint.flush();
                self.wait(goal);
            } else {
                self.idle.reset();
            }
        }
        self.idle.reset();
    }

    /// Does this node's share of the others' remaining work, once it has done its own.
    #[cfg(feature = "mpi")]
    pub(crate) fn help(&mut self) {
        self.endpoint.finished();
    }

    /// Sends up to `burst` rounds of one packet to each destination. Returns how many were taken, and whether any was refused.
    #[inline(always)]
    fn send_burst(&mut self, burst: usize) -> (usize, bool) {
        let (packet, bytes) = (self.packet, self.source.bytes());
        let (mut sent, mut refused) = (0, false);
        for _ in 0..burst {
            let before = sent;
            for flow in &mut self.flows {
                if flow.left == 0 {
                    continue;
                }
                if self.endpoint.try_send(flow.to, &bytes[flow.at..flow.at + packet]) {
                    sent += 1;
                    flow.left -= 1;
                    flow.at = if flow.at + 2 * packet <= bytes.len() { flow.at + packet } else { 0 };
                } else {
                    refused = true;
                }
            }
            if sent == before {
                break;
            }
        }
        (sent, refused)
    }

    /// Sends the rest of the current round, or else one round: as many packets of each flow as its weight. A full flow does not hold up the others,
    /// but no round begins before the previous one has ended; otherwise the flows of small weight would finish long before the others, and the
    /// traffic would not be skewed but first even, then for one.
    fn send_rounds(&mut self) -> (usize, bool) {
        if self.flows.iter().all(|flow| flow.due == 0) {
            self.flows.iter_mut().for_each(|flow| flow.due = flow.weight.min(flow.left));
        }
        let (packet, bytes) = (self.packet, self.source.bytes());
        let (mut sent, mut refused) = (0, false);
        for flow in &mut self.flows {
            while flow.due > 0 {
                if !self.endpoint.try_send(flow.to, &bytes[flow.at..flow.at + packet]) {
                    refused = true;
                    break;
                }
                sent += 1;
                flow.due -= 1;
                flow.left -= 1;
                flow.at = if flow.at + 2 * packet <= bytes.len() { flow.at + packet } else { 0 };
            }
        }
        (sent, refused)
    }

    #[inline(always)]
    fn receive(&mut self) -> usize {
        let mut tally = self.received;
        let packet = self.packet;
        let got = self.endpoint.receive(|bytes| {
            debug_assert_eq!(bytes.len(), packet);
            tally.add(bytes);
        });
        self.received = tally;
        got
    }

    /// Waits a little, or gives up when nothing has moved for long.
    fn wait(&mut self, goal: u64) {
        if self.idle.wait() {
            let left: u64 = self.flows.iter().map(|flow| flow.left).sum();
            panic!(
                "{}: node {} hangs: {left} packets cannot be sent, {} of {goal} received",
                self.peer, self.id, self.received.packets
            );
        }
    }

    /// Panics if anything other than `count` units of traffic arrived.
    pub(crate) fn verify(&self, scenario: &Scenario, count: u64) {
        let expected = Tally::expected(
            scenario.origins(self.id).map(|(from, weight)| (from, weight * count)),
            scenario.packet,
        );
        if let Err(what) = black_box(self.received).verify(&expected) {
            panic!("{}: node {}: {what}", self.peer, self.id);
        }
    }
}

/// How a node without progress waits: spins a little, then yields. With more nodes than cores it yields at once.
pub(crate) struct Idle {
    waits: u32,
    spins: u32,
    since: Option<Instant>,
}

impl Idle {
    pub(crate) fn new(nodes: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self { waits: 0, spins: if nodes > cores { 1 } else { 64 }, since: None }
    }

    fn reset(&mut self) {
        self.waits = 0;
        self.since = None;
    }

    /// Waits once; returns whether [`PATIENCE`] is at an end.
    pub(crate) fn wait(&mut self) -> bool {
        self.waits = self.waits.wrapping_add(1);
        if self.waits <= self.spins {
            for _ in 0..16 {
                spin_loop();
            }
            return false;
        }
        thread::yield_now();
        if self.waits.is_multiple_of(1 << 10) {
            return self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE;
        }
        false
    }
}

/// Where the nodes wait for each other: before the warm-up, before the clock starts, before the first is dropped. Unlike `std::sync::Barrier` it
/// ends when a node dies.
struct StartLine {
    nodes: usize,
    arrived: AtomicUsize,
}

impl StartLine {
    /// Waits until all nodes have called it for the `time`-th time.
    fn wait(&self, time: usize) {
        // Release and Acquire pair with each other across nodes: what a node did before the line is seen after it.
        self.arrived.fetch_add(1, Ordering::Release);
        let start = Instant::now();
        let mut spins = 0u32;
        while self.arrived.load(Ordering::Acquire) < self.nodes * time {
            spins += 1;
            if spins < 256 {
                spin_loop();
            } else {
                thread::yield_now();
                assert!(start.elapsed() < 2 * PATIENCE, "another node did not reach the start");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fabric that claims to have sent and delivers packets of zeros.
    struct Liar {
        owed: usize,
    }

    impl Fabric for Liar {
        type Endpoint = Self;
        type Seat = Self;
        fn connect(scenario: &Scenario) -> Vec<Self> {
            (0..scenario.nodes).map(|_| Self { owed: 0 }).collect()
        }
    }

    impl Endpoint for Liar {
        fn try_send(&mut self, _to: usize, _packet: &[u8]) -> bool {
            self.owed += 1;
            true
        }
        fn receive(&mut self, mut f: impl FnMut(&[u8])) -> usize {
            (0..self.owed).for_each(|_| f(&[0; 8]));
            std::mem::take(&mut self.owed)
        }
    }

    #[test]
    #[should_panic(expected = "liar: a node failed")]
    fn a_peer_that_delivers_something_else_is_named() {
        run::<Liar>("liar", &Scenario::new(Pattern::AllToAll, 2, 8), 0, 10);
    }
}
