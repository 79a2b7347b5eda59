//! A whole node without threads, clock or heap: the engine, and the outboxes and inboxes of its parts.
//!
//! ```text
//!  send ─▶ outbox ─▶ ┌────────┐ ─▶ pipes ─▶ inbox ─▶ poll_recv, accept
//!                    │ engine │ ◀───────────────────── release
//!  poll(now) ──────▶ └────────┘ ─▶ events ─▶ poll_event
//! ```
//!
//! [`Endpoint::poll`] takes the time and does a bounded amount of work; [`Endpoint::next_poll`] returns when to call it again.
//! Messages and events are pulled. No call waits. Operations that take time are values to poll ([`Barrier`], [`Quiescence`],
//! [`LongSend`], [`StreamOut`](crate::outbox::StreamOut)), calls that report whether they have finished ([`Endpoint::advance`]),
//! or changes of state ([`Endpoint::find`], [`Event::Changed`]). All memory is in the [`EndpointStorage`].
//!
//! Sends do not check whether their destination still exists. Once [`Engine::recurrence`] is not 0, because a node has returned or
//! registers very many parts, the id of a part that is gone may lead to another part: check [`Engine::has_part`] before sending.
//!
//! [`embed::Host`](crate::embed::Host) offers the same through a shared reference, with messages that release themselves when
//! dropped.
//!
//! ```
//! use pdbp_core::Config;
//! use pdbp_core::embed::{WireStorage, WireTransport};
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
//!     let transport = WireTransport::new(wire, config.node, 2, WireStorage::allocate(2, 10));
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
mod packing;
mod pipes;
mod receiving;
mod sending;
mod storage;
mod streams;
mod superstep;
#[cfg(test)]
mod tests;

use managed::ManagedSlice;

use crate::Event;
use crate::engine::{Config, ConfigError, Engine, LocalPart, RegisterError};
use crate::flaw::Flaw;
use crate::id::{PartId, Time};
use crate::inbox::Inbox;
use crate::outbox::{Due, InPlace, Outbox, Rule, Staging};
use crate::policy::SpacePolicy;
use crate::tables::PartKind;
use crate::transport::Transport;
use crate::umb::BlockMemory;

pub use crate::outbox::{LongSend, SetSend};
pub(crate) use arrivals::Notice;
use arrivals::Pipes;
pub use arrivals::{Buffer, Hold};
use packing::Packing;
pub use receiving::{Batch, Message, Returned};
pub use sending::SendError;
pub use storage::EndpointStorage;
pub(crate) use storage::PartState;
pub(crate) use storage::{EVENTS, notices};
pub use streams::{StreamIn, StreamPiece, StreamSegment};

/// A node, driven by its caller. See the [module](self). `W` decides how runs of short messages are written into their blocks
/// when other processors of this host read those blocks in place.
pub struct Endpoint<'a, T: Transport, M: BlockMemory, P: SpacePolicy, W = InPlace>
where
    W: Staging,
{
    engine: Engine<'a, T, M, P>,
    packing: Packing<'a, W>,
    /// Indexed by private pipe, like `pipes`.
    inboxes: ManagedSlice<'a, Inbox<'a, Hold<'a>, Buffer<'a>>>,
    pipes: Pipes<'a>,
    /// Indexed by part slot.
    part_states: ManagedSlice<'a, PartState>,
    now: Time,
    /// Whether the last poll moved any block, so that the next one may move more.
    worked: bool,
    /// When the engine wants to be polled, as of its last poll.
    engine_next: Option<Time>,
    /// When a long message that waits should be polled again.
    retry: Option<Time>,
}

/// A barrier that this node has entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier(u32);

impl Barrier {
    /// Its ordinal at this node, from 1. Pass it to [`Engine::barrier_missing`] to see which nodes have not arrived.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// A request to find out whether all messages have been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiescence(u32);

impl<'a, T: Transport, M: BlockMemory, P: SpacePolicy> Endpoint<'a, T, M, P> {
    /// Sets up a node on `transport`, with its blocks in `memory` and everything else in `storage`.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration cannot work.
    pub fn new(
        config: Config,
        policy: P,
        transport: T,
        memory: M,
        storage: EndpointStorage<'a>,
    ) -> Result<Self, ConfigError> {
        Self::with_staging(config, policy, transport, memory, storage)
    }
}

impl<'a, T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging> Endpoint<'a, T, M, P, W> {
    /// As [`new`](Endpoint::new), but writes short messages as `W` decides.
    ///
    /// # Errors
    /// As for [`new`](Endpoint::new).
    pub fn with_staging(
        config: Config,
        policy: P,
        transport: T,
        memory: M,
        storage: EndpointStorage<'a>,
    ) -> Result<Self, ConfigError> {
        storage.check(&config)?;
        let rule = Rule { flush_after: config.flush_after, pack: config.body };
        let EndpointStorage {
            tables,
            lanes,
            inboxes,
            pieces,
            piece_rings,
            notices,
            notice_rings,
            buffers,
            ..
        } = storage;
        let (mut part_states, events) = (storage.part_states, storage.events);
        part_states.fill(PartState::default());
        let shortest = buffers.iter().flatten().map(|buffer| buffer.len()).min().unwrap_or(0);
        let count = buffers.len();
        let pipes = Pipes::new(&config, (pieces, piece_rings), (notices, notice_rings), (buffers, events));
        let mut engine = Engine::new(config, policy, transport, memory, tables)?;
        engine.divide_assembly(count, shortest);
        let (packing, now) = (Packing::new(Outbox::new(lanes, rule)), Time(0));
        let (worked, engine_next, retry) = (false, None, None);
        Ok(Self { engine, packing, inboxes, pipes, part_states, now, worked, engine_next, retry })
    }

    /// Does a bounded amount of work: takes arrivals, sends whatever is due, and maintains tables and buffer space. `now` must
    /// not go back. [`next_poll`](Self::next_poll) returns when to call it again. Returns the number of blocks moved; 0 means
    /// that there was nothing to do.
    pub fn poll(&mut self, now: Time) -> u32 {
        self.now = now;
        let progress = self.engine.poll(now, &mut self.pipes);
        let due = match (core::mem::take(&mut self.pipes.flush_wanted), progress.worked) {
            (true, _) => Due::All,
            (false, 0) => Due::Idle(now),
            (false, _) => Due::Past(now),
        };
        let flushed = self.packing.outbox().flush(&mut self.engine, due).blocks;
        self.engine_next = progress.next;
        self.retry.take_if(|at| *at <= now);
        let worked = progress.worked + flushed;
        (self.pipes.dirty, self.worked) = (false, worked > 0);
        worked
    }

    /// Whether anything was sent, read or released since the last poll. What lies unsorted in a pipe may then be readable.
    pub(crate) fn was_used(&self) -> bool {
        self.pipes.dirty
    }

    /// Returns the latest time at which to call [`poll`](Self::poll): at once (the time of the last poll) if that poll did
    /// something, or if anything was sent, read or released since; `Time(u64::MAX)` if nothing is scheduled. Poll earlier if the
    /// transport has something to report. Call this last, right before the program sleeps.
    pub fn next_poll(&self) -> Time {
        if self.pipes.dirty || self.worked {
            return self.now;
        }
        let deadline = self.packing.peek().deadline(|dest| self.engine.backlog(dest));
        [self.engine_next, self.retry, deadline].into_iter().flatten().min().unwrap_or(Time(u64::MAX))
    }

    /// Takes the next event. Up to eight events per node are kept; beyond that, the oldest are [dropped](Self::lost_events). Call
    /// this after each poll until it returns `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.pipes.events.pop()
    }

    /// Number of events that were dropped because [`poll_event`](Self::poll_event) was not called in time.
    pub fn lost_events(&self) -> u64 {
        self.pipes.events.lost
    }

    /// Sets the generation of this node's part ids. A restarted node uses a higher number each time, so that messages to parts of
    /// an earlier run do not reach those of this one. Call this before registering the first part.
    pub fn begin_generation(&mut self, generation: u32) {
        self.engine.begin_generation(generation);
    }

    /// Registers a part of this node under a name not yet in use here. Its id is valid at once; other nodes can
    /// [find](Self::find) it once this node has reported [`Event::Changed`].
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&mut self, name: &str, kind: PartKind) -> Result<PartId, RegisterError> {
        self.pipes.dirty = true;
        let part = self.engine.register(name, kind)?;
        self.bind(part);
        Ok(part)
    }

    /// Adds a part without a name, which needs no agreement among the nodes; see [`Engine::attach`].
    /// [`unregister`](Self::unregister) removes it.
    ///
    /// # Errors
    /// As for [`Engine::attach`]. On [`RegisterError::Busy`], call again after a poll.
    pub fn attach(&mut self) -> Result<PartId, RegisterError> {
        self.pipes.dirty = true;
        let part = self.engine.attach()?;
        self.bind(part);
        Ok(part)
    }

    fn bind(&mut self, part: PartId) {
        // There are as many private pipes as parts.
        let bound = self.apply_pipe(part);
        debug_assert!(bound.is_ok(), "{bound:?}");
        let place = self.engine.slot_of(part).unwrap_or(usize::MAX);
        if let Some(owner) = self.part_states.get_mut(place) {
            *owner = PartState::of(part);
        }
    }

    /// Removes a part of this node. Unread deliveries are released.
    ///
    /// # Errors
    /// [`RegisterError::Busy`]: call again after a poll.
    pub fn unregister(&mut self, part: PartId) -> Result<(), RegisterError> {
        if let LocalPart::Registered | LocalPart::Refused = self.state(part) {
            self.clear(part);
        }
        self.pipes.dirty = true;
        self.engine.free(part)
    }

    pub(super) fn clear(&mut self, part: PartId) {
        if let Some((inbox, mut source)) = self.inbox_of(part)
            && !Flaw::KeepsInPipe.strikes()
        {
            inbox.clear(&mut source);
            source.clear();
        }
    }

    /// Returns the state of a part of this node.
    pub fn state(&self, part: PartId) -> LocalPart {
        if part.node() == self.engine.config().node {
            self.engine.local_part(part.local())
        } else {
            LocalPart::Free
        }
    }

    /// Looks up a part by its address: `name@node`, or `name` for a part of this node. `None` if this node does not know it yet:
    /// try again after a poll.
    pub fn find(&self, address: &str) -> Option<PartId> {
        let (name, node) = match address.split_once('@') {
            Some((name, node)) => (name, self.engine.node_named(node)?),
            None => (address, self.engine.config().node),
        };
        self.engine.lookup(node, name).map(|entry| entry.id)
    }

    /// Arrives at the next barrier. Call this once per node and barrier.
    pub fn barrier(&mut self) -> Barrier {
        self.pipes.dirty = true;
        Barrier(self.engine.arrive())
    }

    /// Whether all nodes have arrived at a barrier.
    pub fn has_passed(&self, barrier: Barrier) -> bool {
        self.engine.barrier_passed(barrier.0)
    }

    /// Starts to find out whether everything sent so far, by any node, has arrived at its part.
    pub fn quiesce(&mut self) -> Quiescence {
        self.flush();
        self.pipes.dirty = true;
        Quiescence(self.engine.request_quiescence())
    }

    /// Whether everything that was sent before the request has arrived.
    pub fn is_quiescent(&self, asked: Quiescence) -> bool {
        self.engine.is_quiescent(asked.0)
    }

    /// Returns the engine, for its counters, rows and members.
    pub fn engine(&self) -> &Engine<'a, T, M, P> {
        &self.engine
    }

    /// Returns the transport, for calls of its own.
    pub fn transport_mut(&mut self) -> &mut T {
        self.engine.transport_mut()
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging> Drop for Endpoint<'_, T, M, P, W> {
    /// Gives everything that the endpoint holds back to the engine, which leaks its transport if anything is missing.
    fn drop(&mut self) {
        for place in 0..self.part_states.len() {
            let part = self.part_states.get(place).and_then(|owner| owner.part);
            part.into_iter().for_each(|part| self.clear(part));
        }
        self.packing.outbox().flush(&mut self.engine, Due::All);
    }
}
