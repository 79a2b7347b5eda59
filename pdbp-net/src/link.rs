//! The link to and from one peer: a session that outlives its connections. Sans-IO: the socket and the time come in as arguments.
//!
//! Blocks are numbered from 0 in each session. The sender keeps each until the peer reports that it lies in a block posted for it. A new
//! connection begins with both ends stating their session and how many blocks of it they have taken; the sender resumes
//! from there, so nothing is lost or delivered twice. An end that has given the session up, for want of a connection, names the
//! next one instead. The other end then gives its own up, and both start afresh in the session with the greater number (after the last
//! number comes 0).
//!
//! ```text
//!            Open{s} = own                    all blocks are back, PeerFailed said
//!      ┌────────────────┐    outage, Bye, …              │
//!  (Up, s) ◀── resume ──┴────────────────▶ (Failing) ────▼──▶ (Down) ── Open{s'}, s' > s ──▶ (Up, s'), PeerRestored
//! ```

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::{Completion, SealedBlock, VacantBlock};

use crate::connection::{Connection, frame};
use crate::error::{Lost, Malformed, NetError};
use crate::framing::{Head, Kind, Protocol};
use crate::ring::Ring;
use crate::ring::codec::Codec;
use crate::ring::workers::{Done, Work};
use crate::rows::{Incoming, Outgoing};
use crate::stats::{LinkState, LinkStats};

mod farewell;
mod receive;
mod send;

pub(crate) use farewell::Urgency;

/// Blocks taken that force an acknowledgement, whatever else there is to do.
const ACK_THRESHOLD: u64 = 4;
/// Malformed connections in a row that make the link fail.
const FAULTS: u8 = 3;

/// Limits common to all links of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The longest block.
    pub(crate) longest: usize,
    /// Maximum blocks in flight to a peer.
    pub(crate) capacity: usize,
    /// How long a link may be without a connection.
    pub(crate) outage: Duration,
}

impl Limits {
    /// [`ACK_THRESHOLD`], but at most half of the in-flight limit, and at least 1.
    fn ack_threshold(&self) -> u64 {
        ACK_THRESHOLD.min(self.capacity as u64 / 2).max(1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The session is alive, with a connection or waiting for one.
    Up,
    /// Blocks are being given back.
    Failing,
    /// Waits for the next session.
    Down,
}

/// The link to and from a peer, over connections of type `S`.
pub(crate) struct Link<S> {
    peer: NodeId,
    pub(crate) address: SocketAddr,
    /// Identifies the process at the other end among those that have had the peer's place.
    pub(crate) incarnation: u64,
    limits: Limits,
    session: u32,
    /// The session that both ends have agreed on and that has not begun yet.
    next_session: Option<u32>,
    state: State,
    cause: Option<NetError>,
    out: Outgoing,
    incoming: Incoming,
    connection: Option<Connection<S>>,
    /// When the session is given up, if no connection comes about before.
    give_up_at: Option<Instant>,
    faults: u8,
    ended: bool,
    /// All members have declared the peer down: no connection is expected.
    vacant: bool,
    /// Set when this node is about to end: the scratch memory for blocks that are no longer taken.
    leaving: Option<Box<[u8]>>,
    /// Set while a duplicate block is arriving: the scratch memory for it.
    duplicate: Option<Box<[u8]>>,
    stats: LinkStats,
}

impl<S: Read + Write> Link<S> {
    /// A link that waits for its first connection, until `give_up_at`.
    pub(crate) fn new(
        peer: NodeId,
        address: SocketAddr,
        (limits, codec): (Limits, Codec),
        give_up_at: Instant,
    ) -> Self {
        Self {
            peer,
            address,
            incarnation: 0,
            limits,
            session: 0,
            next_session: None,
            state: State::Up,
            cause: None,
            out: Outgoing::new(peer.index(), codec),
            incoming: Incoming::new(peer.index()),
            connection: None,
            give_up_at: Some(give_up_at),
            faults: 0,
            ended: false,
            vacant: false,
            leaving: None,
            duplicate: None,
            stats: LinkStats::default(),
        }
    }

    /// A link in an open cluster, which comes up with its first connection. Both ends begin like this, whatever sessions they had with other
    /// processes before.
    pub(crate) fn expected(peer: NodeId, address: SocketAddr, limits: (Limits, Codec)) -> Self {
        let link = Self::new(peer, address, limits, Instant::now());
        Self { state: State::Down, give_up_at: None, ..link }
    }

    /// Notes that another process has taken the peer's place: blocks in flight to the former one come back, and the session is over.
    pub(crate) fn replace(&mut self, address: SocketAddr, incarnation: u64, ring: &mut Ring) {
        if self.state == State::Up {
            self.fail(NetError::Replaced, ring);
        }
        self.drop_connection(ring);
        (self.address, self.incarnation, self.next_session) = (address, incarnation, None);
        (self.ended, self.vacant, self.faults) = (false, false, 0);
    }

    /// Notes that the peer's process has ended.
    pub(crate) fn die(&mut self, ring: &mut Ring) {
        self.ended = true;
        if self.state == State::Up {
            return self.fail(NetError::Died, ring);
        }
        // No session begins with it, though both ends may have agreed on one.
        self.drop_connection(ring);
        self.next_session = None;
    }

    /// Stops expecting a connection, until a process makes one.
    pub(crate) fn vacate(&mut self) {
        self.vacant = true;
    }

    pub(crate) fn stats(&self) -> LinkStats {
        let figures = self.out.row.figures;
        let state = match (self.state, &self.connection) {
            (State::Up, Some(_)) => LinkState::Up,
            (State::Up, None) => LinkState::Cut,
            _ => LinkState::Down,
        };
        LinkStats {
            state,
            packing: figures.last,
            packed: figures.packed,
            plain_bytes: figures.plain_bytes,
            packed_bytes: figures.packed_bytes,
            density: self.out.row.density(),
            ..self.stats
        }
    }

    /// Counts a completion that is handed out.
    #[inline]
    pub(crate) fn count(&mut self, completion: &Completion<NetError>) {
        let (count, bytes, block) = match completion {
            Completion::Sent { block, .. } => {
                (&mut self.stats.sent, &mut self.stats.sent_bytes, block.bytes().len())
            }
            Completion::Received { block, .. } => {
                (&mut self.stats.received, &mut self.stats.received_bytes, block.bytes().len())
            }
            _ => return,
        };
        *count += 1;
        *bytes += block as u64;
    }

    /// Whether the peer is known to have ended, for instance by its goodbye.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether blocks can be submitted and posted.
    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether the link has no connection but wants one.
    pub(crate) fn needs_connection(&self) -> bool {
        self.connection.is_none() && !self.ended && !self.vacant
    }

    /// Whether the link has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Makes the next poll send any pending acknowledgement.
    pub(crate) fn flush_ack(&mut self) {
        self.incoming.flush_ack();
    }

    /// Whether an acknowledgement is being held back in the hope of a block to ride on.
    pub(crate) fn is_holding_ack(&self, ring: &Ring) -> bool {
        self.incoming.is_holding_ack(ring.patience)
    }

    /// Whether a poll has left something unread, or a block that the poller must pack before it can be written.
    pub(crate) fn has_more(&self) -> bool {
        let packs = || self.out.row.is_on() && self.out.has_next() && !self.out.row.waits();
        self.connection.as_ref().is_some_and(|c| c.readable || (c.writable && c.opened && packs()))
    }

    pub(crate) fn is_full(&self) -> bool {
        self.out.queue.len() >= self.limits.capacity
    }

    /// Takes a block to send, and writes it if possible at once. The link must not be full.
    pub(crate) fn send(&mut self, block: SealedBlock, ring: &mut Ring) {
        self.out.queue.push_back(block);
        if self.connection.as_ref().is_some_and(|connection| connection.writable) {
            self.write(ring);
        }
    }

    /// Takes a block to receive into.
    pub(crate) fn post(&mut self, block: VacantBlock) {
        self.incoming.posted.push_back(block);
    }

    /// Fails the session.
    pub(crate) fn disconnect(&mut self, ring: &mut Ring) {
        if self.state == State::Up {
            self.fail(NetError::Disconnected, ring);
        }
    }

    /// Takes a block that a worker has packed or expanded.
    pub(crate) fn on_done(&mut self, done: Done, ring: &mut Ring) {
        match done.work {
            Work::Pack => self.out.on_done(done, ring),
            Work::Expand(_) => self.incoming.row.on_done(done, ring),
        }
    }

    /// Continues on a new connection, dropping any old one.
    pub(crate) fn connect(&mut self, socket: S, protocol: Protocol, ring: &mut Ring) {
        if self.ended {
            return;
        }
        self.drop_connection(ring);
        self.vacant = false;
        let (session, (taken, room)) = match (self.state, self.next_session) {
            (State::Up, _) => (self.session, self.incoming.acknowledgement()),
            (_, Some(next)) => (next, (0, 0)),
            _ => (self.session.wrapping_add(1), (0, 0)),
        };
        let open = frame(Kind::Open, session.into(), taken, usize::try_from(room - taken).unwrap_or(0));
        self.connection = Some(Connection::new(socket, protocol.framing(self.limits.longest), open));
        self.incoming.sent_ack = (taken, room);
        self.give_up_at = None;
        self.stats.connections += 1;
    }

    /// The socket of the connection.
    pub(crate) fn socket(&mut self) -> Option<&mut S> {
        self.connection.as_mut().map(|connection| &mut connection.socket)
    }

    /// Notes that, according to the system, the connection may have something to read, or room to write.
    pub(crate) fn wake(&mut self, readable: bool, writable: bool) {
        if let Some(connection) = &mut self.connection {
            connection.readable |= readable;
            connection.writable |= writable;
        }
    }

    /// Checks how long the link has been without a connection. Connections that have arrived must be handed over before.
    pub(crate) fn tick(&mut self, now: Instant, ring: &mut Ring) {
        if self.state != State::Up || self.connection.is_some() {
            return;
        }
        // `checked_add` gives `None` for a time too late for anybody to wait for.
        if self.give_up_at.is_none() {
            self.give_up_at = now.checked_add(self.limits.outage);
        }
        if self.give_up_at.is_some_and(|give_up_at| now >= give_up_at) {
            self.fail(NetError::OutOfReach { address: self.address, outage: self.limits.outage }, ring);
        }
    }

    /// The next completion. Reads and writes if none is ready.
    pub(crate) fn poll(&mut self, ring: &mut Ring) -> Option<Completion<NetError>> {
        if let Some(ready) = self.poll_ready(ring) {
            return Some(ready);
        }
        if self.incoming.row.len() > 0
            && let Some(received) = self.deliver(ring)
        {
            return Some(received);
        }
        let connection = self.connection.as_ref()?;
        let due = || self.incoming.is_due(self.limits.ack_threshold(), ring.patience);
        if connection.writable && (connection.has_unwritten() || self.out.has_next() || due()) {
            self.write(ring);
        }
        if let Some(received) = self.read(ring) {
            return Some(received);
        }
        self.incoming.count_idle_poll();
        if self.connection.as_ref().is_some_and(|connection| connection.writable) {
            self.write(ring);
        }
        self.poll_ready(ring)
    }

    /// The next completion that is ready without reading or writing.
    fn poll_ready(&mut self, ring: &Ring) -> Option<Completion<NetError>> {
        let peer = self.peer;
        if let Some(block) = self.out.pop_taken(ring.now) {
            return Some(Completion::Sent { peer, block });
        }
        match self.state {
            State::Up => None,
            State::Failing => Some(self.return_block()),
            State::Down => {
                let session = self.next_session.take()?;
                (self.session, self.state) = (session, State::Up);
                Some(Completion::PeerRestored { peer, session })
            }
        }
    }

    /// Gives back the blocks of a failed session one by one, and reports the failure after the last.
    fn return_block(&mut self) -> Completion<NetError> {
        let peer = self.peer;
        if let Some(block) = self.out.queue.pop_front() {
            return Completion::Failed { peer, block };
        }
        if let Some(block) = self.incoming.posted.pop_front() {
            return Completion::Unused { peer, block };
        }
        self.state = State::Down;
        let granted = if self.next_session.is_some() { self.out.granted } else { 0 };
        self.out.begin(granted);
        self.incoming.begin();
        Completion::PeerFailed { peer, cause: self.cause.take() }
    }

    /// Gives up the session and its connection.
    fn fail(&mut self, cause: NetError, ring: &mut Ring) {
        self.drop_connection(ring);
        (self.state, self.cause) = (State::Failing, Some(cause));
        (self.next_session, self.give_up_at) = (None, None);
        self.stats.failures += 1;
    }

    /// Drops the connection and what the link has in the ring: retransmission starts from the blocks themselves.
    fn drop_connection(&mut self, ring: &mut Ring) {
        (self.connection, self.duplicate) = (None, None);
        self.incoming.waiting = None;
        self.incoming.row.forget(ring);
        self.out.row.forget(ring);
    }

    /// Handles the end of the connection.
    fn on_connection_lost(&mut self, lost: Lost, ring: &mut Ring) {
        if let (Lost::Malformed(what), Some(connection)) = (&lost, &mut self.connection) {
            connection.refuse(*what);
        }
        self.drop_connection(ring);
        let Lost::Malformed(what) = lost else { return };
        self.stats.malformed += 1;
        if matches!(what, Malformed::Bomb { .. } | Malformed::Expansion { .. }) {
            self.stats.bombs += 1;
        }
        self.faults = self.faults.saturating_add(1);
        if self.faults >= FAULTS && self.state == State::Up {
            self.faults = 0;
            self.fail(NetError::Malformed(what), ring);
        }
    }

    /// Acts on a head.
    fn on_head(&mut self, head: Head, ring: &mut Ring) -> Result<(), Malformed> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        match (head.kind, connection.opened) {
            (Kind::Open, false) => return self.open(head, ring),
            (Kind::Open, true) => return Err(Malformed::OpenTwice),
            (_, false) => return Err(Malformed::NotOpen),
            _ => {}
        }
        let (known, sent) = (self.out.acknowledged, connection.written);
        if !(known..=sent).contains(&head.taken) {
            return Err(Malformed::Taken { found: head.taken, sent });
        }
        if head.taken > known {
            self.faults = 0;
        }
        self.out.acknowledged = head.taken;
        self.out.granted = self.out.granted.max(head.taken.saturating_add(head.room.into()));
        match head.kind {
            Kind::Data => return self.begin_block(head, ring),
            Kind::Bye => {
                self.ended = true;
                // The peer waits for an answer to its goodbye, unless this is one.
                if !connection.sent_bye {
                    connection.send_bye(self.incoming.taken);
                }
                let _ = connection.flush(&self.out);
                if self.leaving.is_none() {
                    self.fail(NetError::Left, ring);
                }
            }
            Kind::Open | Kind::Ack => {}
        }
        Ok(())
    }

    /// Handles the peer's opening, which names its session.
    fn open(&mut self, head: Head, ring: &mut Ring) -> Result<(), Malformed> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let theirs = u32::try_from(head.number).unwrap_or(u32::MAX);
        let agreed = newer(theirs, connection.offered);
        // Counts of another session are void: the peer has taken and posted nothing in this one yet, and will report when it has.
        let (taken, room) = if theirs == agreed { (head.taken, u64::from(head.room)) } else { (0, 0) };
        connection.opened = true;
        if self.state == State::Up && agreed == self.session {
            let (known, sent) = (self.out.acknowledged, self.out.sent);
            if !(known..=sent).contains(&taken) {
                return Err(Malformed::Taken { found: taken, sent });
            }
            connection.written = taken;
            self.out.acknowledged = taken;
            self.out.granted = self.out.granted.max(taken.saturating_add(room));
            self.stats.sent_again += self.out.next.saturating_sub(taken);
            self.out.next = taken;
            return Ok(());
        }
        if self.state == State::Up {
            (self.state, self.cause) = (State::Failing, Some(NetError::GivenUp));
            self.stats.failures += 1;
            self.incoming.row.forget(ring);
            self.out.row.forget(ring);
        }
        self.next_session = Some(agreed);
        self.out.granted = room;
        self.incoming.sent_ack = (0, 0);
        Ok(())
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn cut(&mut self, ring: &mut Ring) {
        self.drop_connection(ring);
    }
}

/// Of two sessions the one that follows the other: after the last number comes 0, so that a peer that names a great one leaves some to those
/// that come after it. Both ends find the same.
fn newer(one: u32, other: u32) -> u32 {
    const HALF: u32 = 1 << 31;
    match one.wrapping_sub(other) {
        HALF => one.max(other),
        ahead if ahead < HALF => one,
        _ => other,
    }
}

#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod world;
