//! A node of the cluster: its engine, who sends and reads there, and the books on every message.

use std::collections::BTreeMap;

use pdbp_core::id::{NodeId, PartId, Time};
use pdbp_core::inbox::{Arrival, InboxStorage, StreamKey};
use pdbp_core::outbox::{Due, Outbox, Rule};
use pdbp_core::policy::Choice;
use pdbp_core::umb::HeapMemory;
use pdbp_core::{Engine, Routing, Transport};

use super::arriving::{Arriving, Buffer, Hold, Reader, Table};
use super::check::Breach;
use super::clock::Clock;
use super::guests::{Doors, Guests};
use super::inbox::Inbox;
use super::meetings::{Ends, Meetings};
use super::payload::Way;
use super::reading::{Clerk, Lane};
use super::report::Latencies;
use super::streams::Streams;
use super::traffic::Sender;
use super::writing::Writer;

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
    /// When the host wants to run again of its own accord.
    pub(super) wanted: Option<u64>,
    /// The barrier that it has passed.
    pub(super) passed: Option<u32>,
    /// It has asked for quiescence.
    pub(super) asked: bool,
    /// The request for quiescence that was answered.
    pub(super) quiet: Option<u32>,
}

impl Work {
    /// The host wants to run again then.
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
    /// Messages that were not sent since their peer's link was down.
    pub(super) refused: u64,
    /// Messages that came back since their peer did not get them.
    pub(super) returned: u64,
    /// Messages of several segments read whole.
    pub(super) assembled: u64,
    /// Streams read whole, and those that ended otherwise.
    pub(super) streams: (u64, u64),
    /// Barriers passed.
    pub(super) barriers: u64,
    /// Requests for quiescence answered.
    pub(super) quiets: u64,
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
    }
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
    pub(super) outbox: Outbox<'static>,
    pub(super) inbox: Inbox,
    pub(super) clock: Clock,
    pub(super) life: u32,
    /// How many times as long everything takes.
    pub(super) slow: u64,
    /// It does nothing at present.
    pub(super) paused: bool,
    pub(super) busy_until: u64,
    pub(super) wake_at: Option<u64>,
    pub(super) sender: Sender,
    pub(super) writer: Writer,
    pub(super) streams: Streams,
    pub(super) meetings: Meetings,
    /// Messages sent, by destination and way.
    pub(super) sent: BTreeMap<(u16, Way), u64>,
    /// How many of them may have been lost when the link failed for the last time.
    pub(super) doubtful: BTreeMap<(u16, Way), u64>,
    /// By source and way.
    pub(super) lanes: BTreeMap<(u16, Way), Lane>,
    /// Messages to sets of parts that the second part has read, by source: its life, and how many of that.
    pub(super) seconds: BTreeMap<u16, (u32, u64)>,
    /// What its parts read with, what they have taken out of their pipes, and the streams that they read.
    pub(super) readers: [Reader; 2],
    pub(super) table: Table,
    pub(super) open: Vec<(u16, StreamKey)>,
    /// Looks into the inboxes so far.
    pub(super) turn: u32,
    /// The bytes that were read last.
    pub(super) read: Vec<u8>,
    pub(super) totals: Totals,
    /// The fewest blocks that have been free.
    pub(super) least_free: u32,
    /// Bytes of blocks and of tables.
    pub(super) memory: (usize, usize),
    /// Messages can be missing between two that have come, although no link of this node has failed.
    pub(super) gaps: bool,
    pub(super) held: Held,
    pub(super) guests: Guests,
    #[cfg(test)]
    pub(super) slip: Option<(super::sabotage::Slip, u32)>,
}

/// The first part of a node, which gets all but messages to sets.
pub(super) fn part(node: u16) -> Option<PartId> {
    PartId::new(NodeId::new(node)?, 0)
}

/// The parts of a node.
pub(super) fn parts(node: u16) -> impl Iterator<Item = PartId> {
    (0..2).filter_map(move |local| PartId::new(NodeId::new(node)?, local))
}

impl<T: Transport> Host<T> {
    pub(super) fn new(
        engine: Engine<'static, T, HeapMemory, Choice>,
        (sender, writer): (Sender, Writer),
        (inbox, meetings): (Inbox, Meetings),
        guests: Guests,
        life: u32,
        memory: (usize, usize),
    ) -> Self {
        let streams = engine.config().streams() + 1;
        let nodes = usize::from(engine.config().nodes);
        let readers = [(); 2].map(|()| reader(nodes, streams));
        let lanes = engine.config().rows();
        let rule = Rule { flush_after: engine.config().flush_after, pack: engine.config().body };
        Self {
            engine,
            outbox: Outbox::allocate(lanes, rule),
            inbox,
            clock: Clock::default(),
            life,
            slow: 1,
            paused: false,
            busy_until: 0,
            wake_at: None,
            sender,
            writer,
            streams: Streams::default(),
            meetings,
            sent: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            lanes: BTreeMap::new(),
            seconds: BTreeMap::new(),
            readers,
            table: Table::default(),
            open: Vec::new(),
            turn: 0,
            read: Vec::new(),
            totals: Totals::default(),
            least_free: u32::MAX,
            memory,
            gaps: false,
            held: Held::default(),
            guests,
            #[cfg(test)]
            slip: None,
        }
    }

    pub(super) fn node(&self) -> u16 {
        self.engine.config().node.raw()
    }

    /// Its totals so far.
    pub(super) fn all(&self) -> Totals {
        let (barriers, quiets) = (self.meetings.passed.into(), self.meetings.quiets);
        Totals { streams: self.streams.count(), barriers, quiets, ..self.totals }
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
        self.send_due(now, now.min(traffic_until), local, &mut work)?;
        self.meet(now, traffic_until, &mut work)?;
        let due = self.guests.act((&mut self.engine, &mut self.outbox), (now, traffic_until), local);
        due.into_iter().for_each(|at| work.wants(at));
        // Rows grow while messages are written, and give space back in the poll.
        self.least_free = self.least_free.min(self.engine.free_blocks());
        let routing = self.engine.config().routing;
        let mut doors = Doors { inbox: &mut self.inbox, guests: &mut self.guests, routing };
        let progress = self.engine.poll(local, &mut doors);
        self.guests.read(&mut self.engine)?;
        work.blocks += u64::from(progress.worked + self.flush(local, progress.worked));
        let leaves = self.outbox.deadline(|dest| self.engine.backlog(dest));
        #[cfg(test)]
        let leaves = leaves.filter(|_| !self.slips(super::sabotage::Slip::Hold));
        work.next = [progress.next, leaves].into_iter().flatten().min();
        self.note_failures();
        self.part(&mut work);
        let mut clerk = Clerk { now, warm, latencies };
        for _ in 0..reads {
            let before = self.totals;
            let Some(messages) = self.read_next(&mut clerk)? else { break };
            if now <= traffic_until {
                self.totals.timely += self.totals.delivered - before.delivered;
                self.totals.timely_bytes += self.totals.bytes - before.bytes;
            }
            work.messages += messages;
            work.blocks += 1;
        }
        self.least_free = self.least_free.min(self.engine.free_blocks());
        self.held.note(in_time, self.engine.free_blocks());
        Ok(work)
    }

    /// Sends the open blocks that are due after a poll that did so much; how many.
    fn flush(&mut self, local: Time, worked: u32) -> u32 {
        let due = match (std::mem::take(&mut self.inbox.flush_wanted), worked) {
            (true, _) => Due::All,
            (false, 0) => Due::Idle(local),
            (false, _) => Due::Past(local),
        };
        #[cfg(test)]
        if self.slips(super::sabotage::Slip::Hold) {
            return 0;
        }
        #[cfg(test)]
        if self.outbox.open() > 0 && self.slips(super::sabotage::Slip::LoseFlush) {
            self.outbox.discard(&mut self.engine);
        }
        self.outbox.flush(&mut self.engine, due).blocks
    }

    /// Whether the host does something wrong now.
    #[cfg(test)]
    pub(super) fn slips(&mut self, what: super::sabotage::Slip) -> bool {
        self.slip.as_mut().is_some_and(|(slip, after)| *slip == what && slip.strikes(after))
    }

    /// What had been sent by links that have failed may not have arrived.
    fn note_failures(&mut self) {
        for number in std::mem::take(&mut self.inbox.stopped) {
            self.streams.stop(number);
        }
        for peer in std::mem::take(&mut self.inbox.fresh) {
            self.streams.tell(peer);
            for way in Way::ALL {
                if let Some(sent) = self.sent.get(&(peer, way)) {
                    self.doubtful.insert((peer, way), *sent);
                }
            }
        }
    }

    /// What does not rest yet, and why.
    pub(super) fn unrest(&self, traffic_until: u64, barriers: Ends) -> Option<String> {
        if self.inbox.unread() > 0 {
            return Some(format!("{} deliveries are not read", self.inbox.unread()));
        }
        // What a node behind a relay had begun to send, or was asked for room for, is given up when that is declared down, for which there has
        // to be a primary.
        let is_told = self.engine.config().routing == Routing::Direct || self.engine.master().is_some();
        if is_told && (!self.table.is_empty() || self.engine.assembly_in_use() > 0) {
            let reserved = self.engine.assembly_in_use();
            return Some(format!("something is being read, and {reserved} bytes of room are reserved"));
        }
        let waiting = self.sender.next().filter(|entry| entry.at <= traffic_until && is_told);
        if let Some(entry) = waiting {
            return Some(format!("the message to node{} of {} ns has not been sent", entry.dest, entry.at));
        }
        let meetings = || self.unmet(traffic_until, barriers);
        let rows = || super::check::unrest(&self.engine, self.engine.config().nodes);
        self.streams.unrest().or_else(meetings).or_else(rows)
    }
}

impl<T: Transport> Drop for Host<T> {
    /// Gives deliveries and blocks back, so that the engine can free its memory.
    fn drop(&mut self) {
        self.outbox.discard(&mut self.engine);
        let me = self.engine.config().node;
        for local in 0..2 {
            let Some(part) = PartId::new(me, local) else { continue };
            let Self { engine, inbox, table, readers, .. } = self;
            let mut arriving = Arriving { engine, pipes: inbox, table, part };
            if let Some(reader) = readers.get_mut(usize::from(local)) {
                reader.clear(&mut arriving);
            }
            loop {
                match arriving
                    .pipes
                    .pull_command(local)
                    .map(Arrival::Piece)
                    .or_else(|| arriving.pipes.pull(local))
                {
                    Some(Arrival::Piece(delivery)) => arriving.engine.release(delivery),
                    Some(_) => {}
                    None => break,
                }
            }
        }
    }
}

/// Deliveries that an inbox sorts and does not hand out, at most: so few that it has to leave some in its pipe.
const SORTED: usize = 4;

fn reader(nodes: usize, streams: usize) -> Reader {
    Reader::new(InboxStorage::<Hold, Buffer>::allocate(SORTED, nodes, streams))
}
