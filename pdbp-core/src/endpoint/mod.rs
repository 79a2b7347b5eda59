//! A node without threads, clock and heap: the engine, and for each part of the node what it sends and what it has received.
//!
//! ```text
//!  send ─▶ outbox ─▶ ┌────────┐ ─▶ pipes ─▶ inbox ─▶ poll_recv, accept
//!                    │ engine │ ◀───────────────────── release
//!  poll(now) ──────▶ └────────┘ ─▶ events ─▶ poll_event
//! ```
//!
//! Time comes in with [`Endpoint::poll`], which does a bounded amount of work; [`Endpoint::next_poll`] says when to call it again. What has
//! come is pulled. Nothing waits: what takes time is a value that is asked again ([`Barrier`], [`Quiescence`], [`LongSend`],
//! [`StreamOut`](crate::outbox::StreamOut)), a call that says whether it is over ([`Endpoint::advance`]), or shows by itself
//! ([`Endpoint::find`], [`Event::Changed`]). All memory is in the [`EndpointStorage`].
//!
//! [`embed::Host`](crate::embed::Host) has the same by shared reference, with messages that give themselves back.
//!
//! ```
//! use pdbp_core::Config;
//! use pdbp_core::embed::{Posted, PostedStorage};
//! use pdbp_core::endpoint::{Endpoint, EndpointStorage};
//! use pdbp_core::id::{NodeId, Time};
//! use pdbp_core::policy::Adaptive;
//! use pdbp_core::tables::PartKind;
//! use pdbp_core::umb::{HeapMemory, stride};
//! # use std::{cell::RefCell, collections::VecDeque, rc::Rc};
//! # use pdbp_core::embed::{Wire, WireError};
//! # /// The end of a line with this number: frames to the other one.
//! # struct Line(usize, Rc<RefCell<[VecDeque<Vec<u8>>; 2]>>);
//! # impl Wire for Line {
//! #     fn try_send(&mut self, _: NodeId, frame: &[u8]) -> Result<(), WireError> {
//! #         self.1.borrow_mut()[1 - self.0].push_back(frame.to_vec());
//! #         Ok(())
//! #     }
//! #     fn try_recv(&mut self, _: NodeId, room: &mut [u8]) -> Result<usize, WireError> {
//! #         let frame = self.1.borrow_mut()[self.0].pop_front().ok_or(WireError::WouldBlock)?;
//! #         room[..frame.len()].copy_from_slice(&frame);
//! #         Ok(frame.len())
//! #     }
//! # }
//!
//! // Two nodes in one loop, on a line that carries frames.
//! let line = Rc::default();
//! let mut nodes = [0, 1].map(|index| {
//!     let config = Config::new(NodeId::new(index).expect("a node number"), 2);
//!     let wire = Line(index.into(), Rc::clone(&line));
//!     let transport = Posted::new(wire, config.node, 2, PostedStorage::allocate(2, 10));
//!     let memory = HeapMemory::new(32 * stride(config.body)).expect("memory for 32 blocks");
//!     // Room for 8 parts in all, 4 deliveries that wait for a part, and one long message of up to 16 KiB.
//!     let storage = EndpointStorage::allocate(&config, (32, 8), 4, (1, 16 << 10));
//!     Endpoint::new(config, Adaptive::DEFAULT, transport, memory, storage)
//! });
//! let [Ok(left), Ok(right)] = &mut nodes else { return Err("they do not fit".into()) };
//! let (from, to) = (left.register("asks", PartKind::Cpu)?, right.register("reads", PartKind::Cpu)?);
//!
//! let bytes = vec![7; 10_000];
//! let mut sending = None;
//! for turn in 1.. {
//!     left.poll(Time(turn * 1000));
//!     right.poll(Time(turn * 1000));
//!     if sending.is_none() && left.find("reads@node1") == Some(to) {
//!         left.send(from, to, b"short")?;
//!         sending = Some(left.begin_long(from, to, &bytes)?);
//!     }
//!     if let Some(sending) = &mut sending {
//!         left.poll_long(sending)?;
//!     }
//!     if let Some(message) = right.poll_recv(to) {
//!         let length = message.bytes().len();
//!         right.release(message);
//!         if length == bytes.len() {
//!             break;
//!         }
//!         assert_eq!(length, 5);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrivals;
mod pipes;
mod sending;
mod storage;
mod streams;
mod superstep;

use managed::ManagedSlice;

use crate::Event;
use crate::engine::{Config, ConfigError, Engine, LocalPart, RegisterError};
use crate::flaw::Flaw;
use crate::id::{NodeId, PartId, Time};
use crate::inbox::{self, Inbox, Info};
use crate::outbox::{Due, Outbox, Rule};
use crate::policy::SpacePolicy;
use crate::tables::PartKind;
use crate::transport::Transport;
use crate::umb::BlockMemory;

pub use crate::outbox::{LongSend, SetSend};
pub(crate) use arrivals::Note;
pub use arrivals::{Buffer, Hold};
use arrivals::{Pipes, Source};
pub use sending::SendError;
pub use storage::EndpointStorage;
pub(crate) use storage::Owner;
pub(crate) use storage::{EVENTS, notes};
pub use streams::{StreamIn, StreamPiece, StreamSegment};

/// A node, for whoever calls it. See the [module](self).
pub struct Endpoint<'a, T: Transport, M: BlockMemory, P: SpacePolicy> {
    engine: Engine<'a, T, M, P>,
    outbox: Outbox<'a>,
    /// By private pipe, as `pipes`.
    inboxes: ManagedSlice<'a, Inbox<'a, Hold<'a>, Buffer<'a>>>,
    pipes: Pipes<'a>,
    /// By the places of parts.
    owners: ManagedSlice<'a, Owner>,
    now: Time,
    /// When the engine wants to be called, as of the last poll.
    engine_next: Option<Time>,
}

/// A barrier that this node has entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier(u32);

impl Barrier {
    /// Its ordinal at this node, from 1: for [`Engine::barrier_missing`], which says who has not arrived.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// A request to learn whether all messages have been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiescence(u32);

/// A message that has arrived. It holds its block, and with it credit of its sender, until it is [released](Endpoint::release).
#[derive(Debug)]
#[must_use = "a message that is not released keeps its block from being used again"]
pub struct Message<'a>(inbox::Message<Hold<'a>>);

impl Message<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let start = self.0.start();
        self.0.hold().bytes().get(start..start + self.0.length()).unwrap_or(&[])
    }

    /// The part that has sent it.
    pub fn source(&self) -> PartId {
        self.0.info().source()
    }

    /// For a command: its number.
    pub fn command(&self) -> Option<u16> {
        let info = self.0.info();
        info.is_command().then(|| info.command())
    }
}

/// Messages of one length from one part, received together: the rest of a train. It holds its block until it is
/// [released](Endpoint::release_batch).
#[derive(Debug)]
#[must_use = "a batch that is not released keeps its block from being used again"]
pub struct Batch<'a>(inbox::Batch<Hold<'a>>);

impl Batch<'_> {
    /// All bytes, one message behind the other.
    pub fn bytes(&self) -> &[u8] {
        let start = self.0.start();
        self.0.hold().bytes().get(start..start + self.0.count() * self.0.length()).unwrap_or(&[])
    }

    /// Number of messages, at least 1.
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Bytes of each.
    pub fn message_len(&self) -> usize {
        self.0.length()
    }

    /// The part that has sent them.
    pub fn source(&self) -> PartId {
        self.0.info().source()
    }

    /// For commands: their number.
    pub fn command(&self) -> Option<u16> {
        let info = self.0.info();
        info.is_command().then(|| info.command())
    }
}

/// A message, or a segment of a stream or of a long message, that was not delivered. It holds its block until it is
/// [released](Endpoint::release_returned).
#[derive(Debug)]
#[must_use = "a message that is not released keeps its block from being used again"]
pub struct Returned<'a>(inbox::Returned<Hold<'a>>);

impl Returned<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let start = self.0.start();
        self.0.hold().bytes().get(start..start + self.0.length()).unwrap_or(&[])
    }

    /// The node that did not receive it. If it went to a set, other members may have.
    pub fn node(&self) -> Option<NodeId> {
        let Hold::Piece(delivery) = self.0.hold() else { return None };
        Some(self.0.node(delivery))
    }

    /// The parts that it was sent to.
    pub fn targets(&self) -> impl Iterator<Item = PartId> {
        let Hold::Piece(delivery) = self.0.hold() else { return None.into_iter().flatten() };
        Some(self.0.targets(delivery)).into_iter().flatten()
    }

    /// For a segment of a stream or of a long message: its number, from 0.
    pub fn segment(&self) -> Option<u32> {
        self.0.segment()
    }
}

impl<'a, T: Transport, M: BlockMemory, P: SpacePolicy> Endpoint<'a, T, M, P> {
    /// Sets up a node on `transport`, its blocks in `memory`, everything else in `storage`.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(
        config: Config,
        policy: P,
        transport: T,
        memory: M,
        storage: EndpointStorage<'a>,
    ) -> Result<Self, ConfigError> {
        storage.check(&config)?;
        let rule = Rule { flush_after: config.flush_after, pack: config.body };
        let EndpointStorage { tables, lanes, inboxes, pieces, ends, notes, note_ends, buffers, .. } = storage;
        let (mut owners, events) = (storage.owners, storage.events);
        owners.fill(Owner::default());
        let shortest = buffers.iter().flatten().map(|buffer| buffer.len()).min().unwrap_or(0);
        let count = buffers.len();
        let pipes = Pipes::new(&config, (pieces, ends), (notes, note_ends), (buffers, events));
        let mut engine = Engine::new(config, policy, transport, memory, tables)?;
        engine.divide_assembly(count, shortest);
        let (outbox, now) = (Outbox::new(lanes, rule), Time(0));
        Ok(Self { engine, outbox, inboxes, pipes, owners, now, engine_next: None })
    }

    /// Does a bounded amount of work: takes what has arrived, sends what is due, looks after tables and space. `now` must not go
    /// back. [`next_poll`](Self::next_poll) says when to call again. Returns how many blocks were moved: with 0 there was nothing to do.
    pub fn poll(&mut self, now: Time) -> u32 {
        self.now = now;
        let progress = self.engine.poll(now, &mut self.pipes);
        let due = match (core::mem::take(&mut self.pipes.flush_wanted), progress.worked) {
            (true, _) => Due::All,
            (false, 0) => Due::Idle(now),
            (false, _) => Due::Past(now),
        };
        let flushed = self.outbox.flush(&mut self.engine, due).blocks;
        self.engine_next = progress.next;
        let worked = progress.worked + flushed;
        self.pipes.stirred = worked > 0;
        worked
    }

    /// When to call [`poll`](Self::poll) at the latest: at once, which is the time of the last poll, when that did something or something
    /// was sent, read or given back since; `Time(u64::MAX)` when nothing is planned. Earlier when the transport has something to report. Ask
    /// when everything else is done, before the program sleeps.
    pub fn next_poll(&self) -> Time {
        if self.pipes.stirred {
            return self.now;
        }
        let deadline = self.outbox.deadline(|dest| self.engine.backlog(dest));
        self.engine_next.into_iter().chain(deadline).min().unwrap_or(Time(u64::MAX))
    }

    /// The next event. There is memory for eight per node; of more the oldest are
    /// [dropped](Self::lost_events). Call it after each poll until it returns `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.pipes.events.pop()
    }

    /// Events that were dropped because [`poll_event`](Self::poll_event) was not called in time.
    pub fn lost_events(&self) -> u64 {
        self.pipes.events.lost
    }

    /// For a node that was started anew: the ids of its parts are of this generation, a higher number each time, so that messages to
    /// parts of an earlier run do not reach those of this one. Call it before the first part is registered.
    pub fn begin_generation(&mut self, generation: u32) {
        self.engine.begin_generation(generation);
    }

    /// Registers a part of this node under a name that is new here. Its id is valid from now on; other nodes
    /// [find](Self::find) it once [`Event::Changed`] says so.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&mut self, name: &str, kind: PartKind) -> Result<PartId, RegisterError> {
        self.pipes.stirred = true;
        let part = self.engine.register(name, kind)?;
        self.bind(part);
        Ok(part)
    }

    /// Adds a part without a name, which costs no agreement: see [`Engine::attach`]. [`unregister`](Self::unregister) gives it up.
    ///
    /// # Errors
    /// As [`Engine::attach`]: [`RegisterError::Busy`], call again after a poll.
    pub fn attach(&mut self) -> Result<PartId, RegisterError> {
        self.pipes.stirred = true;
        let part = self.engine.attach()?;
        self.bind(part);
        Ok(part)
    }

    fn bind(&mut self, part: PartId) {
        // There are as many private pipes as parts.
        let bound = self.apply_pipe(part);
        debug_assert!(bound.is_ok(), "{bound:?}");
        let place = self.engine.place_of(part).unwrap_or(usize::MAX);
        if let Some(owner) = self.owners.get_mut(place) {
            *owner = Owner::of(part);
        }
    }

    /// Gives up a part of this node. What has come for it and was not read goes back.
    ///
    /// # Errors
    /// [`RegisterError::Busy`]: call again after a poll.
    pub fn unregister(&mut self, part: PartId) -> Result<(), RegisterError> {
        if let LocalPart::Known | LocalPart::Refused = self.state(part) {
            self.clear(part);
        }
        self.pipes.stirred = true;
        self.engine.free(part)
    }

    pub(super) fn clear(&mut self, part: PartId) {
        if let Some((inbox, mut source)) = self.source_of(part)
            && !Flaw::KeepsInPipe.strikes()
        {
            inbox.clear(&mut source);
            source.clear();
        }
    }

    /// What is known of a part of this node.
    pub fn state(&self, part: PartId) -> LocalPart {
        if part.node() == self.engine.config().node {
            self.engine.local_part(part.local())
        } else {
            LocalPart::Free
        }
    }

    /// The part with an address, which is `name@node`, or `name` of this node. `None` as long as this node does not know it: ask again
    /// after a poll.
    pub fn find(&self, address: &str) -> Option<PartId> {
        let (name, node) = match address.split_once('@') {
            Some((name, node)) => (name, self.engine.node_named(node)?),
            None => (address, self.engine.config().node),
        };
        self.engine.lookup(node, name).map(|entry| entry.id)
    }

    /// The next message of a part of this node, commands first. `None`: nothing has come.
    pub fn poll_recv(&mut self, part: PartId) -> Option<Message<'a>> {
        let (inbox, mut source) = self.source_of(part)?;
        inbox.next(&mut source).map(Message)
    }

    /// Takes a message back: its block is used again when all its messages are back.
    pub fn release(&mut self, message: Message<'a>) {
        self.give_back(message.0.into_hold());
    }

    /// The rest of the next train of a part of this node, commands first: many messages at once. A message by itself, and one that is longer
    /// than a block, is a batch of one. `None`: nothing has come.
    pub fn poll_recv_batch(&mut self, part: PartId) -> Option<Batch<'a>> {
        let (inbox, mut source) = self.source_of(part)?;
        inbox.next_batch(&mut source).map(Batch)
    }

    /// Takes a batch back.
    pub fn release_batch(&mut self, batch: Batch<'a>) {
        self.give_back(batch.0.into_hold());
    }

    /// Reads what has come next for a part of this node, commands first, where it lies: all messages of a block, or one that is longer.
    /// `each` gets who has sent it, what kind it is, and its bytes; nothing has to be released. Returns how many there were. 0: nothing has come.
    pub fn recv_each(&mut self, part: PartId, mut each: impl FnMut(Info, &[u8])) -> usize {
        let Some((inbox, mut source)) = self.source_of(part) else { return 0 };
        // Whoever reads until there is nothing ends with such a look.
        if inbox.is_empty() && source.is_empty() {
            return 0;
        }
        match inbox.read_each(&mut source, &mut each) {
            Some(read) => read,
            None => self.recv_one(part, each),
        }
    }

    /// As [`recv_each`](Self::recv_each), for one that comes in segments.
    #[cold]
    fn recv_one(&mut self, part: PartId, mut each: impl FnMut(Info, &[u8])) -> usize {
        let Some(message) = self.poll_recv(part) else { return 0 };
        each(message.0.info(), message.bytes());
        self.release(message);
        1
    }

    /// The next message of a part of this node that was not delivered, since its destination has failed.
    pub fn poll_returned(&mut self, part: PartId) -> Option<Returned<'a>> {
        loop {
            let (inbox, mut source) = self.source_of(part)?;
            let returned = inbox.next_returned(&mut source).map(Returned)?;
            // Skips requests that the engine sent on the part's behalf.
            if returned.targets().all(|to| to.local() != PartId::NODE) {
                return Some(returned);
            }
            self.release_returned(returned);
        }
    }

    /// Takes a returned message back.
    pub fn release_returned(&mut self, returned: Returned<'a>) {
        self.give_back(returned.0.into_hold());
    }

    /// Messages for a part that could not be read: malformed, or longer than there is room for.
    pub fn unreadable(&self, part: PartId) -> u64 {
        let pipe = self.engine.private_pipe(part);
        pipe.and_then(|pipe| self.inboxes.get(usize::from(pipe.0))).map_or(0, |inbox| inbox.unreadable())
    }

    /// Messages longer than a block, to any part of this node, of which something had come and that will not become whole: their sender
    /// has given them up or has failed, or their part was unregistered.
    pub fn incomplete(&self) -> u64 {
        self.pipes.incomplete
    }

    /// Arrives at the next barrier. Call once per node and barrier.
    pub fn barrier(&mut self) -> Barrier {
        self.pipes.stirred = true;
        Barrier(self.engine.arrive())
    }

    /// Whether all nodes have arrived at a barrier.
    pub fn has_passed(&self, barrier: Barrier) -> bool {
        self.engine.barrier_passed(barrier.0)
    }

    /// Asks whether all that was sent before, by any node, has arrived at its part.
    pub fn quiesce(&mut self) -> Quiescence {
        self.flush();
        Quiescence(self.engine.ask_quiescence())
    }

    /// Whether all that was sent before the request has arrived.
    pub fn is_quiescent(&self, asked: Quiescence) -> bool {
        self.engine.is_quiescent(asked.0)
    }

    /// The engine, for what else it knows: counters, rows, members.
    pub fn engine(&self) -> &Engine<'a, T, M, P> {
        &self.engine
    }

    /// The transport, for what is special to it.
    pub fn transport_mut(&mut self) -> &mut T {
        self.engine.transport_mut()
    }

    /// The inbox of a part of this node, and where its deliveries come from.
    #[expect(clippy::type_complexity, reason = "two references")]
    fn source_of(
        &mut self,
        part: PartId,
    ) -> Option<(&mut Inbox<'a, Hold<'a>, Buffer<'a>>, Source<'_, 'a, T, M, P>)> {
        let Self { inboxes, pipes, engine, .. } = self;
        let pipe = usize::from(engine.private_pipe(part)?.0);
        Some((inboxes.get_mut(pipe)?, Source { engine, pipes, part, pipe }))
    }

    fn give_back(&mut self, hold: Hold<'a>) {
        self.pipes.give_back(hold, &mut self.engine);
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for Endpoint<'_, T, M, P> {
    /// What the endpoint itself has goes back to the engine, which leaks its transport if anything is missing.
    fn drop(&mut self) {
        for place in 0..self.owners.len() {
            let part = self.owners.get(place).and_then(|owner| owner.part);
            part.into_iter().for_each(|part| self.clear(part));
        }
        self.outbox.flush(&mut self.engine, Due::All);
    }
}
