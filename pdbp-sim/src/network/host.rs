//! A node of the cluster: its engine, who sends and reads there, and the books on every message.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::engine::{DeliveryKind, PrivatePipes, SendError};
use pdbp_core::id::{NodeId, PartId, PipeId, Time};
use pdbp_core::policy::Choice;
use pdbp_core::umb::HeapMemory;
use pdbp_core::{Delivery, Engine, Event, OpenError, Transport};

use super::check::{Breach, Invariant};
use super::clock::Clock;
use super::payload::Payload;
use super::report::Latencies;
use super::traffic::Sender;

/// Messages sent in one run of a host at most.
const SENDS: u32 = 64;

/// What a host's work costs, in nanoseconds of its processor, and in one run at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCosts {
    /// A poll of the engine; 1 at least is taken.
    pub poll: u64,
    /// A block or delivery handled.
    pub block: u64,
    /// A message written or read.
    pub message: u64,
    /// Deliveries read in one run.
    pub reads: usize,
}

impl Default for HostCosts {
    fn default() -> Self {
        Self { poll: 300, block: 100, message: 30, reads: 64 }
    }
}

/// The private pipe of a host's part, and what the engine had to say.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    queue: VecDeque<Delivery>,
    capacity: usize,
    /// Peers whose link has failed, now or before.
    pub(super) failed: BTreeSet<u16>,
}

impl PrivatePipes for Inbox {
    fn deliver(&mut self, _: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        if self.queue.len() >= self.capacity {
            return Err(delivery);
        }
        self.queue.push_back(delivery);
        Ok(())
    }

    fn event(&mut self, event: Event) {
        if let Event::PeerFailed { peer, .. } = event {
            self.failed.insert(peer.raw());
        }
    }
}

/// What has come from one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    /// The life of the peer that the rest is about.
    pub(super) life: u32,
    next: u64,
    pub(super) delivered: u64,
}

/// What one run of a host did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Blocks and deliveries.
    pub(super) blocks: u64,
    /// Messages.
    pub(super) messages: u64,
    /// When the engine wants to be polled, by the node's clock.
    pub(super) next: Option<Time>,
    /// The next message found no room.
    pub(super) blocked: bool,
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
    /// Messages that were not sent since their peer's link was down.
    pub(super) refused: u64,
    /// Messages that came back since their peer did not get them.
    pub(super) returned: u64,
}

/// Free blocks over time, until traffic ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// Free blocks times nanoseconds.
    pub(super) free: u128,
    /// Nanoseconds.
    pub(super) time: u64,
    /// Since when so many blocks are free.
    since: Option<(u64, u32)>,
}

impl Held {
    /// So many blocks are free from `now` on.
    fn note(&mut self, now: u64, free: u32) {
        if let Some((since, before)) = self.since {
            self.time += now - since;
            self.free += u128::from(before) * u128::from(now - since);
        }
        self.since = Some((now, free));
    }
}

/// One life of a node.
pub(super) struct Host<T: Transport> {
    pub(super) engine: Engine<'static, T, HeapMemory, Choice>,
    pub(super) inbox: Inbox,
    pub(super) clock: Clock,
    pub(super) life: u32,
    /// How many times as long everything takes.
    pub(super) slow: u64,
    pub(super) busy_until: u64,
    pub(super) wake_at: Option<u64>,
    pub(super) sender: Sender,
    /// Messages sent, by destination.
    pub(super) sent: BTreeMap<u16, u64>,
    /// By source.
    pub(super) lanes: BTreeMap<u16, Lane>,
    pub(super) totals: Totals,
    /// The fewest blocks that have been free.
    pub(super) least_free: u32,
    /// Bytes of blocks and of tables.
    pub(super) memory: (usize, usize),
    /// Messages can be missing between two that have come, although no link of this node has failed.
    pub(super) gaps: bool,
    pub(super) held: Held,
    message: Vec<u8>,
}

/// The only part of a node.
pub(super) fn part(node: u16) -> Option<PartId> {
    PartId::new(NodeId::new(node)?, 0)
}

impl<T: Transport> Host<T> {
    pub(super) fn new(
        engine: Engine<'static, T, HeapMemory, Choice>,
        sender: Sender,
        life: u32,
        capacity: usize,
        memory: (usize, usize),
    ) -> Self {
        Self {
            engine,
            inbox: Inbox { capacity, ..Inbox::default() },
            clock: Clock::default(),
            life,
            slow: 1,
            busy_until: 0,
            wake_at: None,
            sender,
            sent: BTreeMap::new(),
            lanes: BTreeMap::new(),
            totals: Totals::default(),
            least_free: u32::MAX,
            memory,
            gaps: false,
            held: Held::default(),
            message: Vec::new(),
        }
    }

    fn node(&self) -> u16 {
        self.engine.config().node.raw()
    }

    /// Sends what is due, polls, and reads.
    pub(super) fn run(
        &mut self,
        now: u64,
        measured: (u64, u64),
        reads: usize,
        latencies: &mut Latencies,
    ) -> Result<Work, Breach> {
        let local = Time(self.clock.local(now));
        let (warm, traffic_until) = measured;
        let in_time = now.clamp(warm, traffic_until.max(warm));
        self.held.note(in_time, self.engine.free_blocks());
        let mut work = Work::default();
        self.send_due(now.min(traffic_until), local, &mut work)?;
        // Rows grow while messages are written, and give space back in the poll.
        self.least_free = self.least_free.min(self.engine.free_blocks());
        let progress = self.engine.poll(local, &mut self.inbox);
        work.blocks += u64::from(progress.worked);
        work.next = progress.next;
        for _ in 0..reads {
            let Some(delivery) = self.inbox.queue.pop_front() else { break };
            let before = self.totals;
            let read = self.read(now, warm, &delivery, latencies);
            if now <= traffic_until {
                self.totals.timely += self.totals.delivered - before.delivered;
                self.totals.timely_bytes += self.totals.bytes - before.bytes;
            }
            self.engine.release(delivery);
            work.messages += read?;
            work.blocks += 1;
        }
        self.least_free = self.least_free.min(self.engine.free_blocks());
        self.held.note(in_time, self.engine.free_blocks());
        Ok(work)
    }

    fn send_due(&mut self, until: u64, local: Time, work: &mut Work) -> Result<(), Breach> {
        let me = self.node();
        for _ in 0..SENDS {
            let Some(entry) = self.sender.next().filter(|entry| entry.at <= until) else { return Ok(()) };
            let (Some(source), Some(dest)) = (part(me), part(entry.dest)) else { return Ok(()) };
            let count = self.sent.entry(entry.dest).or_default();
            let payload =
                Payload { source: me, dest: entry.dest, life: self.life, number: *count, sent_at: entry.at };
            payload.write(entry.bytes, &mut self.message);
            let route = Route::new(CduClass::ShortMessage, 0, source, dest);
            match self.engine.send(local, route, dest, &self.message) {
                Ok(()) => {
                    *count += 1;
                    self.totals.sent += 1;
                    work.messages += 1;
                }
                Err(SendError::Open(OpenError::WouldBlock)) => {
                    work.blocked = true;
                    return Ok(());
                }
                Err(SendError::Open(OpenError::PeerFailed(peer))) if self.engine.has_failed(peer) => {
                    self.totals.refused += 1;
                }
                Err(error) => {
                    let what = format!(
                        "a message of {} bytes to node{} was refused: {error:?}",
                        entry.bytes, entry.dest
                    );
                    return Err(Breach::new(Invariant::Accounted, what));
                }
            }
            self.sender.advance();
        }
        Ok(())
    }

    /// Checks the messages of a delivery; their number.
    fn read(
        &mut self,
        now: u64,
        warm: u64,
        delivery: &Delivery,
        latencies: &mut Latencies,
    ) -> Result<u64, Breach> {
        let me = self.node();
        let from = delivery.source().raw();
        // What is not messages of a peer are messages of this node that a peer whose link failed did not get.
        let is_own = !matches!(delivery.kind(), DeliveryKind::Messages { .. });
        let ends = if is_own { (me, from) } else { (from, me) };
        let mut messages = 0;
        for train in delivery.cdus() {
            let unreadable = |e| Breach::new(Invariant::Contents, format!("a block of node{from}: {e:?}"));
            for bytes in train.map_err(unreadable)?.messages() {
                let found = Payload::read(bytes);
                let payload =
                    found.map_err(|e| Breach::new(Invariant::Contents, format!("node{from}: {e}")))?;
                if (payload.source, payload.dest) != ends {
                    let what = format!("from node{from} came {payload:?}");
                    return Err(Breach::new(Invariant::Contents, what));
                }
                messages += 1;
                if is_own {
                    self.totals.returned += 1;
                    continue;
                }
                self.take(payload)?;
                self.totals.delivered += 1;
                self.totals.bytes += bytes.len() as u64;
                if payload.sent_at >= warm {
                    latencies.note(now.saturating_sub(payload.sent_at));
                }
            }
        }
        Ok(messages)
    }

    /// Enters a message into the books of its lane.
    fn take(&mut self, payload: Payload) -> Result<(), Breach> {
        let Payload { source, life, number, .. } = payload;
        let failed = self.gaps || self.inbox.failed.contains(&source);
        // Messages to this node's life before are not this one's.
        let next = if self.life > 1 { number } else { 0 };
        let lane = self.lanes.entry(source).or_insert(Lane { life, next, ..Lane::default() });
        if life > lane.life {
            *lane = Lane { life, ..Lane::default() };
        }
        if life < lane.life || number < lane.next {
            let what = format!(
                "message {number} of life {life} of node{source} came when message {} of life {} was next",
                lane.next, lane.life
            );
            return Err(Breach::new(Invariant::Once, what));
        }
        if number > lane.next && !failed {
            let what = format!("message {number} of node{source} came when message {} was next", lane.next);
            return Err(Breach::new(Invariant::Order, what));
        }
        lane.next = number + 1;
        lane.delivered += 1;
        Ok(())
    }

    /// What does not rest yet, and why.
    pub(super) fn unrest(&self, traffic_until: u64) -> Option<String> {
        if !self.inbox.queue.is_empty() {
            return Some(format!("{} deliveries are not read", self.inbox.queue.len()));
        }
        let waiting = self.sender.next().filter(|entry| entry.at <= traffic_until);
        if let Some(entry) = waiting {
            return Some(format!("the message to node{} of {} ns has not been sent", entry.dest, entry.at));
        }
        super::check::unrest(&self.engine, self.engine.config().nodes)
    }
}

impl<T: Transport> Drop for Host<T> {
    /// Gives the deliveries back, so that the engine can free its memory.
    fn drop(&mut self) {
        while let Some(delivery) = self.inbox.queue.pop_front() {
            self.engine.release(delivery);
        }
    }
}
