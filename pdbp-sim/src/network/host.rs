//! A node of the cluster: its engine, its senders and readers, and the books on every message.

use std::collections::{BTreeMap, BTreeSet};

use pdbp_core::endpoint::{EndpointStorage, Message};
use pdbp_core::engine::Counters;
use pdbp_core::id::{NodeId, PartId, Time};
use pdbp_core::policy::Choice;
use pdbp_core::umb::HeapMemory;
use pdbp_core::{Config, Engine, Event, Routing, Transport};

use super::actor::Acting;
use super::beside::HostEndpoint;
use super::check::{Breach, Invariant};
use super::clock::Clock;
use super::guests::Guests;
use super::meetings::{Ends, Meetings};
use super::mix::{self, Mix};
use super::payload::Channel;
use super::reading::{Reading, Received};
use super::report::Latencies;
use super::setup::Setup;
use super::streams::Streams;
use super::supersteps::Supersteps;
use super::traffic::Sender;
use super::writing::Writer;

/// The cost of a host's work in nanoseconds of its processor, and the limit on its work per run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCosts {
    /// A poll of the engine; at least 1 is used.
    pub poll: u64,
    /// A block handled.
    pub block: u64,
    /// A message written or read.
    pub message: u64,
    /// Maximum number of messages, batches of messages, and pieces of streams read in one run.
    pub reads: usize,
}

impl Default for HostCosts {
    fn default() -> Self {
        Self { poll: 300, block: 100, message: 30, reads: 256 }
    }
}

/// The outcome of one run of a host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Number of blocks that the endpoint has moved.
    pub(super) blocks: u64,
    /// Number of messages.
    pub(super) messages: u64,
    /// When the endpoint must be polled, or the actor run, by the node's clock.
    pub(super) next: Option<Time>,
    /// Whether the next message found no room.
    pub(super) blocked: bool,
    /// When the host wants to run again of its own accord.
    pub(super) wanted: Option<u64>,
    /// The barrier that the host has passed.
    pub(super) passed: Option<u32>,
    /// Whether it has requested quiescence.
    pub(super) asked: bool,
    /// Whether its request for quiescence was answered.
    pub(super) quiet: bool,
    /// The superstep that it has finished its part of.
    pub(super) done: Option<u32>,
    /// The superstep that has ended for it.
    pub(super) ended: Option<u32>,
}

impl Work {
    /// Makes the host run again then, at the latest.
    pub(super) fn wants(&mut self, at: u64) {
        self.wanted = Some(self.wanted.map_or(at, |wanted| wanted.min(at)));
    }
}

/// Totals of a host, kept when it crashes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) sent: u64,
    pub(super) delivered: u64,
    pub(super) bytes: u64,
    /// Messages read while there was traffic.
    pub(super) timely: u64,
    /// Their bytes.
    pub(super) timely_bytes: u64,
    /// Messages not sent because the link to their peer was down.
    pub(super) refused: u64,
    /// Messages returned because their peer did not get them.
    pub(super) returned: u64,
    /// Messages of several segments read whole.
    pub(super) assembled: u64,
    /// Streams read whole, and those that ended otherwise.
    pub(super) streams: (u64, u64),
    /// Barriers passed.
    pub(super) barriers: u64,
    /// Requests for quiescence answered.
    pub(super) quiets: u64,
    /// Supersteps that ended.
    pub(super) supersteps: u64,
    /// Blocks that went through send rows, and the bytes in their bodies.
    pub(super) blocks: (u64, u64),
    /// Counters of the engine.
    pub(super) undelivered: u64,
    pub(super) relayed: u64,
    pub(super) relay_lost: u64,
    pub(super) copied: u64,
}

impl Totals {
    pub(super) fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.bytes += other.bytes;
        self.timely += other.timely;
        self.timely_bytes += other.timely_bytes;
        self.refused += other.refused;
        self.returned += other.returned;
        self.assembled += other.assembled;
        self.streams = (self.streams.0 + other.streams.0, self.streams.1 + other.streams.1);
        self.barriers += other.barriers;
        self.quiets += other.quiets;
        self.supersteps += other.supersteps;
        self.blocks = (self.blocks.0 + other.blocks.0, self.blocks.1 + other.blocks.1);
        self.undelivered += other.undelivered;
        self.relayed += other.relayed;
        self.relay_lost += other.relay_lost;
        self.copied += other.copied;
    }
}

/// Free blocks over time, until traffic ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// Free blocks times nanoseconds.
    pub(super) free: u128,
    /// Nanoseconds.
    pub(super) time: u64,
    /// Since when this many blocks have been free.
    since: Option<(u64, u32)>,
}

impl Held {
    /// Notes that this many blocks are free from `now` on.
    fn record(&mut self, now: u64, free: u32) {
        if let Some((since, before)) = self.since {
            self.time += now - since;
            self.free += u128::from(before) * u128::from(now - since);
        }
        self.since = Some((now, free));
    }
}

/// What a host has been told of.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Peers whose link has failed, now or before.
    pub(super) failed: BTreeSet<u16>,
    /// Nodes that were declared down, now or before.
    pub(super) down: BTreeSet<u16>,
    #[cfg(test)]
    pub(super) hides: Option<super::sabotage::Hidden>,
}

/// What a node runs on. It outlives the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) clock: Clock,
    /// Factor by which everything takes longer.
    pub(super) slow: u64,
}

impl Default for Machine {
    fn default() -> Self {
        Self { clock: Clock::default(), slow: 1 }
    }
}

/// One life of a node.
pub(super) struct Host<T: Transport + 'static> {
    pub(super) endpoint: HostEndpoint<T>,
    /// The permanent parts, in the order registered.
    pub(super) parts: Vec<PartId>,
    pub(super) failures: Failures,
    pub(super) machine: Machine,
    pub(super) life: u32,
    /// Whether it is doing nothing at present.
    pub(super) paused: bool,
    pub(super) busy_until: u64,
    pub(super) wake_at: Option<u64>,
    pub(super) sender: Sender,
    pub(super) writer: Writer,
    pub(super) streams: Streams,
    pub(super) meetings: Meetings,
    pub(super) supersteps: Supersteps,
    /// Messages sent, by destination and channel; of streams, those that were flushed.
    pub(super) sent: BTreeMap<(u16, Channel), u64>,
    /// How many of them may have been lost when the link last failed.
    pub(super) doubtful: BTreeMap<(u16, Channel), u64>,
    /// Messages received, by source and channel.
    pub(super) received: BTreeMap<(u16, Channel), Received>,
    /// Numbers of the messages that came back, by destination and channel, except those in segments.
    pub(super) returned: BTreeMap<(u16, Channel), BTreeSet<u64>>,
    /// Messages to sets of parts that the second part has read: for each source, its life, their number in that life, and the number of the message
    /// that may come next.
    pub(super) seconds: BTreeMap<u16, (u32, u64, u64)>,
    /// The streams that its parts read, by the number of the part.
    pub(super) open: Vec<(usize, Reading)>,
    /// Messages held until the next run, with copies of their bytes at arrival.
    pub(super) held_messages: Vec<(Message<'static>, Vec<u8>)>,
    /// Whether the last attempt to read found nothing.
    pub(super) has_read_all: bool,
    /// Number of attempts to read so far.
    pub(super) turn: u32,
    /// The bytes read last.
    pub(super) read: Vec<u8>,
    pub(super) totals: Totals,
    /// The smallest number of free blocks so far.
    pub(super) least_free: u32,
    /// Bytes of blocks and of tables.
    pub(super) memory: (usize, usize),
    /// Whether messages may be missing between two that arrived, although no link of this node has failed.
    pub(super) gaps: bool,
    pub(super) held: Held,
    pub(super) guests: Guests,
    pub(super) acting: Option<Acting<T>>,
    #[cfg(test)]
    pub(super) slip: Option<(super::sabotage::Slip, u32)>,
}

/// The first part of a node, which gets all messages; the second gets only messages to sets.
pub(super) fn part(node: u16) -> Option<PartId> {
    PartId::new(NodeId::new(node)?, 0)
}

/// The parts of a node.
pub(super) fn parts(node: u16) -> impl Iterator<Item = PartId> {
    (0..2).filter_map(move |local| PartId::new(NodeId::new(node)?, local))
}

impl<T: Transport + 'static> Host<T> {
    pub(super) fn new(
        endpoint: HostEndpoint<T>,
        parts: Vec<PartId>,
        (sender, writer): (Sender, Writer),
        (guests, meetings, supersteps): (Guests, Meetings, Supersteps),
        life: u32,
        memory: (usize, usize),
    ) -> Self {
        Self {
            endpoint,
            parts,
            failures: Failures::default(),
            machine: Machine::default(),
            life,
            paused: false,
            busy_until: 0,
            wake_at: None,
            sender,
            writer,
            streams: Streams::default(),
            meetings,
            supersteps,
            sent: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            received: BTreeMap::new(),
            returned: BTreeMap::new(),
            seconds: BTreeMap::new(),
            open: Vec::new(),
            held_messages: Vec::new(),
            has_read_all: true,
            turn: 0,
            read: Vec::new(),
            totals: Totals::default(),
            least_free: u32::MAX,
            memory,
            gaps: false,
            held: Held::default(),
            guests,
            acting: None,
            #[cfg(test)]
            slip: None,
        }
    }

    pub(super) fn engine(&self) -> &Engine<'static, T, HeapMemory, Choice> {
        self.endpoint.engine()
    }

    pub(super) fn node(&self) -> u16 {
        self.engine().config().node.raw()
    }

    /// Number of long messages to its parts that will not be read: abandoned halfway, or without the room that they had been
    /// granted.
    pub(super) fn incomplete(&self) -> u64 {
        let unreadable = self.parts.iter().map(|part| self.endpoint.unreadable(*part)).sum::<u64>();
        self.endpoint.incomplete() + unreadable
    }

    /// Its totals so far.
    pub(super) fn all(&self) -> Totals {
        let (barriers, quiets) = (self.meetings.passed(), self.meetings.quiets);
        let (supersteps, streams) = (self.supersteps.over.into(), self.streams.count());
        let Counters { undelivered, relayed, relay_lost, copied, .. } = self.engine().counters();
        let peers = (0..self.engine().config().nodes).filter_map(NodeId::new);
        let rows = peers.filter_map(|peer| self.engine().send_row(peer));
        let blocks = rows.fold((0, 0), |(blocks, bytes), row| (blocks + row.blocks, bytes + row.bytes));
        let counters = Totals { undelivered, relayed, relay_lost, copied, blocks, ..self.totals };
        Totals { streams, barriers, quiets, supersteps, ..counters }
    }

    /// Sends what is due, polls, and reads.
    pub(super) fn run(
        &mut self,
        now: u64,
        measured: (u64, u64),
        reads: usize,
        latencies: &mut Latencies,
    ) -> Result<Work, Breach> {
        let local = Time(self.machine.clock.local(now));
        let (warm, traffic_until) = measured;
        let in_time = now.clamp(warm, traffic_until.max(warm));
        self.held.record(in_time, self.engine().free_blocks());
        let mut work = Work::default();
        self.release_held()?;
        self.send_due(now, now.min(traffic_until), &mut work)?;
        self.meet(now, traffic_until, &mut work)?;
        let due = self.guests.act(&mut self.endpoint, (now, traffic_until))?;
        due.into_iter().for_each(|at| work.wants(at));
        // Rows grow while messages are written, and return space during the poll.
        self.least_free = self.least_free.min(self.engine().free_blocks());
        work.blocks += u64::from(self.endpoint.poll(local));
        self.hear()?;
        self.part(&mut work);
        self.step(now, traffic_until, &mut work)?;
        if work.passed.is_some() && self.engine().config().is_open() {
            // Perhaps no other node is left whose messages would wake it for the next barrier.
            work.wants(now);
        }
        let again = self.act(local.0, || now <= traffic_until, &mut work)?;
        let mut clerk = Clerk { now, warm, latencies };
        for _ in 0..reads {
            let before = self.totals;
            let Some(messages) = self.read_next(&mut clerk)? else { break };
            if now <= traffic_until {
                self.totals.timely += self.totals.delivered - before.delivered;
                self.totals.timely_bytes += self.totals.bytes - before.bytes;
            }
            work.messages += messages;
        }
        if !self.held_messages.is_empty() {
            work.wants(now + HOLD);
        }
        self.least_free = self.least_free.min(self.engine().free_blocks());
        self.held.record(in_time, self.engine().free_blocks());
        let polled = Some(self.endpoint.next_poll()).filter(|next| *next != Time(u64::MAX));
        work.next = polled.into_iter().chain(again.map(Time)).min();
        Ok(work)
    }

    /// Whether the host does something wrong now.
    #[cfg(test)]
    pub(super) fn slips(&mut self, what: super::sabotage::Slip) -> bool {
        self.slip.as_mut().is_some_and(|(slip, after)| *slip == what && slip.strikes(after))
    }

    /// Processes the endpoint's events. Messages sent over links that have failed may not have arrived.
    fn hear(&mut self) -> Result<(), Breach> {
        while let Some(event) = self.endpoint.poll_event() {
            #[cfg(test)]
            if self.failures.hides.is_some_and(|hidden| hidden.covers(&event)) {
                continue;
            }
            if let Some(acting) = &mut self.acting {
                acting.actor.hear(&event);
            }
            match event {
                Event::PeerFailed { peer, .. } => self.peer_failed(peer.raw()),
                Event::NodeDown { node } => _ = self.failures.down.insert(node.raw()),
                Event::StreamStopped { number, .. } => self.streams.stop(number),
                Event::Unroutable { part, messages, .. } => self.guests.record_unroutable(part, messages),
                _ => {}
            }
        }
        match self.endpoint.lost_events() {
            0 => Ok(()),
            lost => {
                Err(Breach::new(Invariant::Accounted, format!("{lost} events found no room in one poll")))
            }
        }
    }

    fn peer_failed(&mut self, peer: u16) {
        self.failures.failed.insert(peer);
        self.streams.on_link_failed(peer);
        for channel in Channel::ALL {
            if let Some(sent) = self.sent.get(&(peer, channel)) {
                self.doubtful.insert((peer, channel), *sent);
            }
        }
    }

    /// Returns what has not come to rest yet, and why.
    pub(super) fn unrest(&self, traffic_until: u64, (barriers, quiescence): (Ends, Ends)) -> Option<String> {
        if !self.has_read_all || !self.held_messages.is_empty() {
            return Some("there is something to read".to_owned());
        }
        // Messages that a node behind a relay had begun to send, or had requested room for, are dropped when that node is declared
        // down, which requires a primary.
        let is_told = self.engine().config().routing == Routing::Direct || self.engine().master().is_some();
        if is_told && self.engine().assembly_in_use() > 0 {
            return Some(format!("{} bytes of room are reserved", self.engine().assembly_in_use()));
        }
        let waiting = self.sender.next().filter(|entry| entry.at <= traffic_until && is_told);
        if let Some(entry) = waiting {
            return Some(format!("the message to node{} of {} ns has not been sent", entry.dest, entry.at));
        }
        let meetings = || {
            let supersteps = || self.supersteps.unrest(traffic_until, barriers);
            self.meetings.unrest(traffic_until, (barriers, quiescence)).or_else(supersteps)
        };
        let rows = || super::check::unrest(self.engine(), self.engine().config().nodes);
        let actor = || self.acting.as_ref().and_then(|acting| acting.actor.unrest());
        self.streams.unrest().or_else(meetings).or_else(rows).or_else(actor)
    }
}

impl<T: Transport + 'static> Drop for Host<T> {
    /// Returns everything it holds, so that the engine can free its memory.
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held_messages);
        held.into_iter().for_each(|(message, _)| self.endpoint.release(message));
        self.writer.take_streams().for_each(|stream| self.endpoint.abort_stream(stream));
    }
}

/// The time of a read, and the record of latencies.
pub(super) struct Clerk<'l> {
    pub(super) now: u64,
    pub(super) warm: u64,
    pub(super) latencies: &'l mut Latencies,
}

/// Nanoseconds for which messages are held.
const HOLD: u64 = 20_000;

/// Maximum number of deliveries that an inbox sorts but has not handed out: so few that it must leave some in its pipe.
const SORTED: usize = 4;

/// Number of messages longer than a block that are reassembled at a time: so few that others must wait.
const LONG: usize = 2;

/// Number of table entries for the parts of all nodes.
fn places(setup: &Setup) -> usize {
    setup.nodes * (2 + usize::from(setup.mix.has_sets()) + usize::from(setup.actor_parts)) + 16
}

/// The memory of a host's endpoint.
pub(super) fn storage(setup: &Setup, config: &Config) -> EndpointStorage<'static> {
    let longest = mix::longest_in_segments(setup.body);
    let long = if setup.mix.long == Mix::default().long && setup.actor_parts == 0 {
        (0, 0)
    } else {
        (LONG, longest)
    };
    let blocks = setup.blocks(config.node) as usize;
    EndpointStorage::allocate(config, (blocks, places(setup)), setup.pipe, long).with_inboxes(
        SORTED,
        long.0,
        config.streams() + 1,
    )
}
