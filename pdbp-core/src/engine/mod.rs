//! The engine of a node: rows, pipes, tables and transport combined.
//!
//! [`Engine::poll`] does a bounded amount of work and returns when it wants to be called again. The host decides who calls it (a
//! thread, the sender, another runtime's loop) and supplies the time.
//!
//! ```text
//!  writer:  open ─▶ OpenBlock::push … ─▶ submit ─▶ SCBP row ─▶ poll: credit? ─▶ Transport      (see `outbox`)
//!  reader:  Transport ─▶ poll: header, sequence ─▶ RCBP row ─▶ PipeM ─▶ PrivatePipes::deliver ─▶ … ─▶ release
//! ```
//!
//! Most hosts use an [`Endpoint`](crate::Endpoint), which combines an engine with the state of its parts. A host that does all of
//! this itself:
//!
//! ```
//! use pdbp_core::cdu::{CduClass, Route};
//! use pdbp_core::embed::{WireStorage, WireTransport};
//! use pdbp_core::id::{NodeId, PartId, PipeId, Time};
//! use pdbp_core::policy::Adaptive;
//! use pdbp_core::tables::PartKind;
//! use pdbp_core::umb::{HeapMemory, stride};
//! use pdbp_core::{Config, Delivery, Engine, PrivatePipes, Storage};
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
//! /// A private pipe for one delivery.
//! #[derive(Default)]
//! struct Pipe(Option<Delivery>);
//! impl PrivatePipes for Pipe {
//!     fn deliver(&mut self, _: PipeId, delivery: Delivery) -> Result<(), Delivery> {
//!         if self.0.is_some() {
//!             return Err(delivery);
//!         }
//!         self.0 = Some(delivery);
//!         Ok(())
//!     }
//! }
//!
//! let line = Rc::default();
//! let mut nodes = [0, 1].map(|index| {
//!     let config = Config::new(NodeId::new(index).expect("a node number"), 2);
//!     let wire = Line(index.into(), Rc::clone(&line));
//!     let transport = WireTransport::new(wire, config.node, 2, WireStorage::allocate(2, 10));
//!     let memory = HeapMemory::new(32 * stride(config.body)).expect("memory for 32 blocks");
//!     let storage = Storage::allocate(&config, 32, 8);
//!     Engine::new(config, Adaptive::DEFAULT, transport, memory, storage)
//! });
//! let [Ok(left), Ok(right)] = &mut nodes else { return Err("they do not fit".into()) };
//! let (from, to) = (left.register("writes", PartKind::Cpu)?, right.register("reads", PartKind::Cpu)?);
//! right.bind_pipe(to)?;
//!
//! let (mut pipe, mut sent) = (Pipe::default(), false);
//! for turn in 1.. {
//!     left.poll(Time(turn * 1000), &mut Pipe::default());
//!     right.poll(Time(turn * 1000), &mut pipe);
//!     if !sent && left.part(to).is_some() && let Ok(mut block) = left.open(to.node()) {
//!         let route = Route::new(CduClass::ShortMessage, 0, from, to);
//!         block.push(route, b"hello").map_err(|_| "an empty block has room")?;
//!         left.submit(block);
//!         sent = true;
//!     }
//!     if let Some(delivery) = pipe.0.take() {
//!         let train = delivery.cdus().next().ok_or("a message")??;
//!         assert_eq!(train.data(), b"hello");
//!         right.release(delivery);
//!         break;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Credit.** Node j may have as many unreleased blocks at this node as RCBP_j has real elements. Every block header reports to
//! the peer that number, the number of blocks released so far, and how many blocks this node could use at the peer (*wanted*: in
//! flight or waiting). A node grants a peer no credit until it has found that their settings agree ([`Setting`]). When the credit
//! changes and no other block is there to carry it, a block without a body does. So a reader that does not read stops its sender,
//! in the sender's own memory, and nobody else. With [`Config::copy_blocks`], unread short messages do not even stop their
//! sender: they are copied, and their blocks are returned.
//!
//! **Priorities.** Commands are packed into *urgent* blocks, which overtake waiting blocks in their row; once a row has four
//! elements of credit, one is reserved for them. Control messages need no credit. They use blocks reserved for them and two
//! places of each link's [capacity](Transport::capacity), so they never wait for data (see [`routing`](crate::routing)).
//!
//! **Routing.** With [`Routing::Grid`](crate::Routing), a node has rows only for the nodes of its own row and column in a grid,
//! and forwards the messages and streams of others: see [`routing`](crate::routing).
//!
//! **Tables.** The primary master orders all changes of NTA and PTA. The node that requested a change is answered once all
//! members have applied it. A standby takes over when the primary fails, and a change also declares a failed node down: see
//! [`agreement`](crate::agreement). Nothing is sent to such a node, and anything it sends is refused.
//!
//! **Failure.** Messages that a failed node did not receive go back to the parts that sent them, as deliveries of the kind
//! [`Returned`](DeliveryKind::Returned); streams from that node end. A transport may restore a link, and the members may readmit
//! a node; everything between the two then starts over.
//!
//! **Stopping.** Dropping the engine frees everything. However, while open blocks or deliveries are still out, the transport is
//! left in place (leaked); and the memory is left in place while anyone holds a token of one of its blocks, including a transport
//! that keeps one beyond its own end. So no token ever dangles. Deliveries are counted before the host has them: a host that
//! panics, or hands back something else, cannot make the count too low.

mod arrivals;
mod barrier;
mod blocks;
mod circuits;
mod config;
mod control;
mod control_queue;
mod copying;
mod event;
mod link;
mod membership;
mod nameless;
mod parts;
mod poll;
mod posting;
mod protocol;
mod readers;
mod receiving;
mod relaying;
mod requests;
mod returning;
mod room;
mod round;
mod sending;
mod space;
mod stats;
mod storage;
mod streams;
mod superstep;
mod termination;
#[cfg(test)]
mod tests;

use managed::ManagedSlice;

use crate::agreement::{Agreement, Start};
use crate::cdu::BLOCK_HEADER;
use crate::id::{NodeId, PipeId, Time};
use crate::matrix::Queue;
use crate::outbox::{Outbox, Rule};
use crate::pipe::{PartSlots, PipePool, StreamEntry, StreamMap};
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::tables::Tables;
use crate::transport::{Arrival, Capabilities, Transport};
use crate::umb::{BlockMemory, BlockState, Copies, Leakable, Umb};

pub use crate::umb::{Delivery, DeliveryKind, StreamTag};
pub use config::{Checksum, Config, ConfigError};
pub use event::Event;
pub(crate) use link::Link;
use link::{LinkState, Links};
pub(crate) use parts::Local;
pub use parts::{LocalPart, RegisterError};
pub use protocol::{Disagreement, Setting};
pub(crate) use readers::Element;
pub(crate) use room::RoomEntry;
pub use room::{RoomError, RoomToken};
pub use sending::OpenError;
pub use stats::{Counters, PipeUse, RowStats};
pub use storage::Storage;
pub use superstep::{Superstep, SuperstepError};

/// In UMBInfo-Tab: a block reserved for control messages.
const CONTROL_ROW: u16 = u16::MAX;
/// Maximum number of completions, and of blocks of a row, handled in one poll.
const BUDGET: usize = 64;

/// Receives deliveries and events. Implemented by the host, with a queue per private pipe.
pub trait PrivatePipes {
    /// Puts a delivery into a private pipe.
    ///
    /// # Errors
    /// The delivery, if the pipe is full. It is offered again in a later poll, and later blocks of the same peer wait behind it.
    fn deliver(&mut self, pipe: PipeId, delivery: Delivery) -> Result<(), Delivery>;

    /// Handles an event. Ignored by default.
    fn event(&mut self, event: Event) {
        let _ = event;
    }
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Number of blocks moved, delivered or returned. If 0, there was nothing to do.
    pub worked: u32,
    /// The latest time for the next call, unless something happens earlier.
    pub next: Option<Time>,
}

/// The protocol engine of one node. See the [module](self).
pub struct Engine<'a, T: Transport, M: BlockMemory, P> {
    config: Config,
    transport: Leakable<T>,
    capabilities: Capabilities,
    umb: Umb<'a, M>,
    links: Links<'a>,
    /// The allocation of blocks and credit to rows; SM.
    space: space::Space<'a, P>,
    /// RM.
    rm: ManagedSlice<'a, Element>,
    /// Copies of short messages whose parts do not keep up, made so that their blocks can leave RM.
    copies: Copies<'a>,
    /// Unused blocks for control messages.
    control_blocks: Queue,
    /// The link at which the next round of control messages begins.
    control_turn: usize,
    /// Open blocks of forwarded messages, one for each link.
    relayed: Outbox<'a>,
    tables: Tables<'a>,
    agreement: Agreement<'a>,
    requests: requests::Requests,
    barrier: barrier::Barrier,
    termination: termination::Termination,
    supersteps: superstep::Supersteps,
    parts: parts::Parts<'a>,
    pipes: PipePool<'a>,
    streams: StreamMap<'a>,
    next_stream: u32,
    rooms: room::Rooms<'a>,
    /// The settings on which all nodes must agree, and the first one found to differ at another node.
    protocol: protocol::Protocol,
    disagreement: Option<Disagreement>,
    counters: Counters,
    /// Number of open blocks and deliveries that are out.
    tokens: u64,
    /// The time of the current poll.
    now: Time,
    is_started: bool,
    /// The places of nodes declared down are given up once all members know of the entries up to this one.
    vacates_at: Option<u64>,
    /// The primary, and this node's term, as last reported to the transport.
    reported_leader: (Option<NodeId>, Option<u32>),
    /// When the agreement wants to be called.
    agreement_due: Option<Time>,
    /// Whether anything has happened since `advance_control` found nothing to do.
    control_dirty: bool,
    /// The link whose blocks are being routed.
    routed_link: LinkId,
    /// Whether the last poll used up its budget, so the transport's next poll may check for arrivals alone.
    budget_spent: bool,
    /// Whether readers are to be notified of streams that have ended: this node's own that were given up, and those that it
    /// cannot forward.
    has_broken_streams: bool,
}

impl<'a, T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'a, T, M, P> {
    /// Sets up a node on `transport`, with its blocks in `memory` and its tables in `storage`.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration cannot work.
    pub fn new(
        config: Config,
        policy: P,
        transport: T,
        memory: M,
        storage: Storage<'a>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        storage.check(&config)?;
        let capabilities = transport.capabilities();
        config.check_transport(&capabilities)?;
        // Table lengths serve as bounds checks for indices, so no table may be longer than the configuration specifies.
        let storage = storage.cut(&config);
        let Storage { blocks, send_matrix, mut recv_matrix, links, relayed, mut nodes, mut parts, .. } =
            storage;
        let Storage { local_parts, mut bound, pipes, mut streams, rooms, copies, agreement, .. } = storage;
        recv_matrix.fill_with(Element::default);
        nodes.fill_with(|| None);
        parts.fill_with(|| None);
        bound.fill(None);
        streams.fill(StreamEntry::default());
        let places = PartSlots::new(config.local_parts);
        let life = transport.life(config.node);
        let mut engine = Self {
            links: Links::new(links, config.topology()),
            copies: Copies::new(copies, BLOCK_HEADER + config.body),
            umb: Umb::new(memory, config.node, config.body, blocks),
            space: space::Space::new(policy, send_matrix, &config),
            transport: Leakable::new(transport),
            capabilities,
            rm: recv_matrix,
            relayed: Outbox::new(relayed, Rule { flush_after: config.flush_after, pack: usize::MAX }),
            control_blocks: Queue::default(),
            control_turn: 0,
            protocol: protocol::Protocol::of(&config, parts.len(), agreement.log.len()),
            tables: Tables::new(nodes, parts),
            agreement: Agreement::new(Time(0), config.agreement(life), agreement)
                .map_err(ConfigError::Agreement)?,
            requests: requests::Requests::default(),
            barrier: barrier::Barrier::new(&config),
            termination: termination::Termination::default(),
            supersteps: superstep::Supersteps::default(),
            parts: parts::Parts::new(local_parts, places),
            pipes: PipePool::new(pipes, (bound, places), config.private_pipes, config.local_parts),
            streams: StreamMap::new(streams, usize::from(config.stream_pipes), config.circuits()),
            next_stream: 1,
            rooms: room::Rooms::new(rooms),
            disagreement: None,
            counters: Counters::default(),
            tokens: 0,
            now: Time(0),
            is_started: false,
            vacates_at: None,
            reported_leader: (None, None),
            agreement_due: None,
            control_dirty: true,
            routed_link: LinkId::NONE,
            budget_spent: false,
            has_broken_streams: false,
            config,
        };
        engine.set_up_links()?;
        engine.distribute_space()?;
        Ok(engine)
    }

    /// Queries the transport about each link.
    fn set_up_links(&mut self) -> Result<(), ConfigError> {
        let own = self.links.own;
        for link in self.links.iter_mut() {
            let (need, have) = (Config::MIN_CAPACITY, self.transport.capacity(link.peer));
            if have < need && link.id != own {
                return Err(ConfigError::Capacity { peer: link.peer, have, need });
            }
            link.posted = self.transport.arrival(link.peer) == Arrival::Posted;
            link.session = self.transport.session(link.peer);
            link.places =
                u32::try_from(have).unwrap_or(u32::MAX).saturating_sub(control_queue::CONTROL_CAPACITY);
            link.state = LinkState::at_start(self.config.start != Start::Together);
            match (self.transport.is_vacant(link.peer), self.config.start) {
                _ if link.id == own => {}
                (true, _) => {
                    link.state.fail();
                    self.agreement.link_down(Time(0), link.peer, false);
                }
                // A founder regards all places as vacant.
                (false, Start::Alone) => {
                    self.agreement.link_up(Time(0), link.peer, self.transport.life(link.peer));
                }
                (false, _) => {}
            }
        }
        if let Some(own) = self.links.own_mut() {
            own.state = LinkState::OWN;
            own.control.introduced = true;
        }
        Ok(())
    }

    /// Gives each row its initial space, and control messages their blocks.
    fn distribute_space(&mut self) -> Result<(), ConfigError> {
        let Self { links, umb, space, config, control_blocks, .. } = self;
        let blocks = space.check(links, umb, config.control_blocks)?;
        for _ in 0..config.control_blocks {
            let Some(index) = umb.take() else { break };
            if let Some(entry) = umb.entry(index) {
                (entry.row, entry.state) = (CONTROL_ROW, BlockState::Vacant);
            }
            control_blocks.push_back(umb, index);
        }
        space.distribute_space(links, umb, blocks);
        self.link_elements();
        for id in self.links.ids() {
            if self.links.get(id).is_some_and(|link| link.state.is_down()) {
                self.clear_space(id);
            } else if id != self.links.own && self.links.is_posted(id) {
                self.post(id);
            }
        }
        Ok(())
    }

    /// The configuration of this engine.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the transport, for calls of its own.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// As [`transport`](Self::transport), mutable.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }
}

impl<T: Transport, M: BlockMemory, P> Engine<'_, T, M, P> {
    /// Whether open blocks or deliveries are out, so that dropping the engine would leak its memory and its transport.
    pub fn leaks(&self) -> bool {
        // Open blocks of the engine itself, for forwarded messages, are not out.
        self.tokens > self.relayed.open() as u64
    }
}

impl<T: Transport, M: BlockMemory, P> Drop for Engine<'_, T, M, P> {
    /// Drops what the engine itself holds, then the transport with what it holds. The memory is freed once no token is left
    /// anywhere.
    fn drop(&mut self) {
        self.transport.leak = self.leaks();
        // The tables may belong to the host and outlive the engine.
        self.relayed.clear();
        self.rm.iter_mut().for_each(Element::clear);
        self.copies.clear();
    }
}
