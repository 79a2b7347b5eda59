//! State shared by the threads of a node: its engine, pipes and lanes.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use pdbp_core::cdu::{Packer, VIA_HEADER};
use pdbp_core::engine::{PrivatePipes, RoomToken, Storage};
use pdbp_core::id::{Address, NodeId, PipeId, Time};
use pdbp_core::outbox::Due;
use pdbp_core::policy::Choice;
use pdbp_core::umb::{BlockMemory, Space, stride};
use pdbp_core::{Bell, Delivery, Engine, Routing};
use pdbp_local::Doorbell;

use super::backend::Body;
use super::clock::Clock;
use super::common_lanes::CommonLanes;
use super::full_rows::FullRows;
use super::pipes::{Pipe, Sink};
use super::released::Released;
use super::tasks::Waiters;
use super::waiting::LearnedPolicy;
use super::watch::Events;
use super::{Backend, Memory, backend};
use crate::config::{ConfigError, Progress, Settings};
use crate::monitor::Monitor;
use crate::part::{self, Lanes, Recurrence, Runs, SharedLanes, Target};
use crate::sync::{TaskLeader, Tasks};
use crate::trace::NodeTrace;

pub(crate) type NodeEngine = Engine<'static, Backend, Memory, Choice>;

/// Rows of PTA per node beyond the setting `parts`. Counted whether or not a node has a monitor, trunks or parts without a name,
/// since the table is the same on all nodes.
pub(crate) const OWN_ROWS: usize = 3;

/// How often a waiting part checks for arrivals before it looks at anything else, all under one lock of the engine. A check takes
/// a fraction of a poll: with them, half a round trip of 8 bytes over shared memory takes 0.29 µs instead of 0.32.
const ARRIVAL_CHECKS: u32 = 4;

/// What a poll did, and when.
pub(crate) struct Turn {
    pub(crate) worked: u32,
    /// When the engine wants to be polled again; see [`Shared::due`].
    pub(super) next: Option<Time>,
    pub(crate) now: Time,
}

impl Turn {
    /// A turn that did nothing.
    pub(crate) fn at(now: Time) -> Self {
        Self { worked: 0, next: None, now }
    }
}

/// The polling part.
#[derive(Clone, Copy)]
pub(crate) struct Own<'p> {
    pub(crate) lanes: &'p Lanes,
    /// Takes back the memory of what was read.
    pub(crate) runs: &'p Runs,
    pub(crate) pipe: Option<&'p Pipe>,
}

/// The engine under its lock. Releasing the lock wakes the tasks that are due.
pub(crate) struct Locked<'s> {
    // In this order: fields are dropped from first to last.
    engine: MutexGuard<'s, NodeEngine>,
    _then: Wakes<'s>,
}

impl Deref for Locked<'_> {
    type Target = NodeEngine;
    #[inline]
    fn deref(&self) -> &NodeEngine {
        &self.engine
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut NodeEngine {
        &mut self.engine
    }
}

struct Wakes<'s>(&'s Tasks);

impl Drop for Wakes<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// State shared by the threads of a node.
pub(crate) struct Shared {
    pub(crate) id: NodeId,
    pub(super) space: Space,
    #[cfg(feature = "mpi")]
    pub(crate) direct: Option<super::Direct>,
    /// See [`Backend::fabric`].
    #[cfg(feature = "rapidio")]
    pub(crate) fabric: Option<Arc<crate::fabric::Fabric>>,
    pub(crate) settings: Settings,
    engine: Mutex<NodeEngine>,
    /// Per node.
    bodies: Box<[Body]>,
    /// Whether blocks for all other nodes leave when they are submitted.
    pub(super) submit_sends: bool,
    /// See [`Backend::crowded`].
    pub(super) crowded: bool,
    pub(super) learned_policy: LearnedPolicy,
    pub(crate) pipes: Box<[Pipe]>,
    /// Deliveries released by readers, on their way to the engine.
    pub(super) released: Released,
    /// Space of long messages released by readers.
    pub(super) rooms: ArrayQueue<RoomToken>,
    /// Rung by peers.
    pub(crate) bell: Arc<dyn Bell>,
    /// Rung when something is put into a pipe of a thread that waits for several.
    pub(crate) several: Doorbell,
    pub(crate) tasks: Tasks,
    pub(crate) task_leader: TaskLeader,
    pub(super) waiters: Waiters,
    /// The progress thread, if there is one.
    pub(super) driver: OnceLock<Thread>,
    /// Held by the thread that sleeps on the node's bell.
    pub(crate) leader: Mutex<()>,
    /// Whether that thread must wake the progress thread when its wait ends.
    pub(super) off_duty: AtomicBool,
    /// Whether that thread is taking a long nap.
    pub(super) is_napping: AtomicBool,
    /// Polls by parts; shows the progress thread whether it is needed.
    pub(crate) polls: AtomicU64,
    /// Counts polls that did something.
    pub(crate) productive_polls: AtomicU64,
    pub(crate) full_rows: FullRows,
    /// Counts requests to flush all open blocks.
    pub(crate) flushes: AtomicU64,
    /// Counts the calls of [`Node::interrupt`](super::Node::interrupt).
    pub(crate) interrupts: AtomicU64,
    /// Records when targets must be looked up again before anything is sent to them.
    pub(crate) recurrence: Recurrence,
    /// Dropped parts that could not be freed in time, with their names.
    pub(crate) unfreed: Mutex<Vec<(Target, String)>>,
    pub(super) lanes: Mutex<Vec<SharedLanes>>,
    /// None until they are needed.
    pub(crate) common: OnceLock<CommonLanes>,
    /// When lanes were last scanned, in nanoseconds.
    pub(super) scanned: AtomicU64,
    pub(super) events: Events,
    clock: Clock,
    /// The other nodes of this process.
    pub(crate) siblings: OnceLock<Vec<Weak<Shared>>>,
    pub(crate) monitor: Option<Monitor>,
    #[cfg(feature = "net")]
    pub(crate) flow: Option<crate::grid::Flow>,
    /// Carries trunks, on the node that does.
    #[cfg(feature = "net")]
    pub(crate) gateway: OnceLock<Arc<crate::grid::Common>>,
    pub(crate) trace: Option<NodeTrace>,
}

impl Shared {
    /// Sets up a node on a transport. `memory` holds this node's blocks, as the transport knows them.
    pub(crate) fn new(
        id: NodeId,
        nodes: u16,
        settings: Settings,
        backend: Backend,
        memory: Memory,
        trace: Option<NodeTrace>,
    ) -> Result<Self, ConfigError> {
        let backend = match &trace {
            Some(trace) => trace.wrap(backend),
            None => backend,
        };
        let space = memory.space();
        let blocks = BlockMemory::len(&memory) / stride(settings.block_bytes);
        let mut config = backend::config(id, nodes, &settings, &backend);
        if config.initial == 0 {
            config.initial = backend::initial_blocks(&config, &backend, blocks);
        }
        let pipes = config.private_pipes;
        let storage = Storage::allocate(&config, blocks, settings.parts + OWN_ROWS * usize::from(nodes));
        let bell = Arc::clone(&backend.bell);
        let bodies = backend::bodies(&config, &backend);
        let submit_sends = (0..).zip(&bodies).all(|(node, body)| node == id.index() || body.in_place);
        let (crowded, generation) = (backend.crowded, backend.generation);
        #[cfg(feature = "mpi")]
        let direct = backend.direct.clone();
        #[cfg(feature = "rapidio")]
        let fabric = backend.fabric.clone();
        let engine = Engine::new(config, backend::policy(&settings), backend, memory, storage);
        let mut engine = engine.map_err(|error| ConfigError::of(&settings, error))?;
        engine.limit_assembly(settings.assembly_bytes as u64);
        engine.begin_generation(generation.unwrap_or(0));
        // A new engine has room for a part and a pipe. If it had none, the node would merely not answer.
        let monitor = settings.is_monitored().then(|| Monitor::start(&mut engine).ok()).flatten();
        // The same holds here.
        #[cfg(feature = "net")]
        let flow = settings.grid.is_some().then(|| crate::grid::Flow::start(&mut engine)).flatten();
        let pipes = (0..pipes).map(|_| Pipe::new(settings.pipe_depth)).collect();
        Ok(Self {
            id,
            space,
            #[cfg(feature = "mpi")]
            direct,
            #[cfg(feature = "rapidio")]
            fabric,
            engine: Mutex::new(engine),
            bodies,
            submit_sends,
            crowded,
            learned_policy: LearnedPolicy::new(),
            pipes,
            released: Released::default(),
            rooms: ArrayQueue::new(64),
            bell,
            several: Doorbell::default(),
            tasks: Tasks::default(),
            task_leader: TaskLeader::default(),
            waiters: Waiters::default(),
            driver: OnceLock::new(),
            leader: Mutex::new(()),
            off_duty: AtomicBool::new(false),
            is_napping: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            productive_polls: AtomicU64::new(0),
            full_rows: FullRows::new(nodes),
            flushes: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            recurrence: Recurrence::default(),
            unfreed: Mutex::default(),
            lanes: Mutex::default(),
            common: OnceLock::new(),
            scanned: AtomicU64::new(0),
            events: Events::default(),
            clock: Clock::start(),
            siblings: OnceLock::new(),
            monitor,
            #[cfg(feature = "net")]
            flow,
            #[cfg(feature = "net")]
            gateway: OnceLock::new(),
            trace,
            settings,
        })
    }

    /// Body bytes of blocks to a node, for blocks that are to hold several messages.
    pub(crate) fn body(&self, node: NodeId) -> usize {
        self.bodies.get(node.index()).map_or(self.settings.block_bytes, |body| body.length)
    }

    /// The longest message that travels to a node in a block of that size.
    pub(crate) fn longest_to(&self, node: NodeId) -> usize {
        let relay = self.bodies.get(node.index()).map_or(0, |body| body.relay);
        Packer::longest(self.body(node)) - relay
    }

    /// Whether blocks to that node are read in this node's memory, on another processor.
    pub(crate) fn is_read_remotely(&self, node: NodeId) -> bool {
        self.bodies.get(node.index()).is_some_and(|body| body.read_elsewhere)
    }

    /// The longest message that travels in one block on any route.
    pub(crate) fn longest(&self) -> usize {
        let relay = if self.settings.routing == Routing::Grid { VIA_HEADER } else { 0 };
        Packer::longest(self.settings.block_bytes) - relay
    }

    /// Called when a poll has found nothing. With more nodes than processors, yields, since what this node waits for may need the
    /// processor. Returns whether it did.
    pub(crate) fn yield_if_crowded(&self) -> bool {
        if self.crowded {
            std::thread::yield_now();
        }
        self.crowded
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Locks the engine. A part takes this lock once per block, never per message. No borrow of a part may outlive the lock.
    #[inline]
    pub(crate) fn engine(&self) -> Locked<'_> {
        Locked { engine: self.engine_without_wakes(), _then: Wakes(&self.tasks) }
    }

    #[inline]
    pub(crate) fn try_engine(&self) -> Option<Locked<'_>> {
        let engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { engine, _then: Wakes(&self.tasks) })
    }

    /// Locks the engine for calls during which a part's inbox may be borrowed: wakes no task. Not for polling.
    pub(crate) fn engine_without_wakes(&self) -> MutexGuard<'_, NodeEngine> {
        // A poisoned lock is safe to use: the engine is made of values, and a panic cannot leave it in an unsafe state.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the progress thread, which is needed now.
    pub(super) fn unpark_driver(&self) {
        if let Some(driver) = self.driver.get() {
            driver.unpark();
        }
    }

    /// The part that has this address now; if no part has it, a target that every use refuses.
    #[inline]
    pub(crate) fn resolve(&self, address: Address) -> Target {
        if self.recurrence.value() == 0 { address.in_generation(0) } else { self.resolve_reused(address) }
    }

    #[cold]
    fn resolve_reused(&self, address: Address) -> Target {
        self.engine().resolve(address).unwrap_or(address.in_generation(u32::MAX))
    }

    /// Polls the engine. Returns how much it did, and when it wants to be polled again.
    pub(crate) fn poll_with(&self, engine: &mut NodeEngine) -> Turn {
        self.poll_as(engine, None)
    }

    /// As [`poll_with`](Self::poll_with), by a part.
    pub(crate) fn poll_as(&self, engine: &mut NodeEngine, own: Option<Own<'_>>) -> Turn {
        let began = self.trace.as_ref().map(NodeTrace::begin);
        let polled = self.poll_engine(engine, own);
        if let (Some(trace), Some(began)) = (&self.trace, began) {
            trace.polled(engine, began, polled.worked);
        }
        polled
    }

    /// Delivers what has arrived, checking a few times, for a part that waits and polls in between; see [`Engine::poll_arrivals`].
    pub(crate) fn poll_arrivals(&self, engine: &mut NodeEngine, own: Own<'_>) -> u32 {
        if engine.has_pending_work() || self.trace.is_some() {
            return self.poll_as(engine, Some(own)).worked;
        }
        let mut sink = Sink::new(self, own.pipe);
        let mut check = || engine.poll_arrivals(&mut sink);
        let worked = (0..ARRIVAL_CHECKS).map(|_| check()).find(|worked| *worked > 0).unwrap_or(0);
        if sink.flush_wanted {
            // The next poll flushes the parts' own blocks.
            self.request_flush(engine);
        }
        if sink.has_answer {
            part::free_dropped(engine, self);
        }
        if worked > 0 {
            self.record_progress();
            self.update_rows(engine);
        }
        worked
    }

    /// Records that a poll did something.
    #[inline]
    fn record_progress(&self) {
        // Only a hint (see `Part::is_stalled`), so relaxed ordering is enough. Written only under the engine's lock, so no
        // count is lost.
        self.productive_polls
            .store(self.productive_polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.wake_waiters();
    }

    #[inline(always)]
    fn poll_engine(&self, engine: &mut NodeEngine, own: Option<Own<'_>>) -> Turn {
        self.released.release(engine, own.map(|own| own.runs));
        // Checking first is cheaper: `pop` on an empty queue has a fence.
        while !self.rooms.is_empty()
            && let Some(room) = self.rooms.pop()
        {
            engine.release_room(room);
        }
        let now = self.now();
        let mut sink = Sink::new(self, own.and_then(|own| own.pipe));
        let mut progress = engine.poll(now, &mut sink);
        let all = sink.flush_wanted;
        if all {
            self.request_flush(engine);
        }
        let mut flushed = self.flush_lanes(engine, now, all, own.map(|own| own.lanes));
        if let Some(Own { lanes: own, .. }) = own {
            // Pairs with the addition above, in the poll that was asked for all blocks.
            flushed += own.flush_if_requested(engine, self.flushes.load(Ordering::Acquire), Due::Past(now));
        }
        if let Some(monitor) = &self.monitor {
            flushed += monitor.advance(self, engine);
        }
        #[cfg(feature = "net")]
        if let Some(flow) = &self.flow {
            flushed += flow.advance(self, engine);
        }
        if flushed > 0 {
            let worked = progress.worked + flushed;
            progress = engine.poll(now, &mut sink);
            progress.worked += worked;
        }
        if sink.has_answer {
            part::free_dropped(engine, self);
        }
        if progress.worked > 0 {
            self.record_progress();
        }
        // Released blocks make room as well, but do not count as something done.
        self.update_rows(engine);
        Turn { worked: progress.worked, next: progress.next, now }
    }

    /// Polls, unless another thread is polling.
    pub(crate) fn poll(&self) -> u32 {
        self.try_engine().map_or(0, |mut engine| self.poll_with(&mut engine).worked)
    }

    /// Polls the other nodes of this process that have no polling thread, for calls that need all nodes.
    pub(crate) fn help_siblings(&self) {
        if self.settings.progress == Progress::Thread {
            return;
        }
        for sibling in self.siblings.get().into_iter().flatten().filter_map(Weak::upgrade) {
            if sibling.id != self.id {
                sibling.poll();
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Returns what readers have released since the last poll: an engine that misses deliveries leaks its transport, and its
        // peers then do not see that the node is gone.
        let engine = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.released.release(engine, None);
        if let Some(monitor) = &self.monitor {
            monitor.leave(&self.pipes, engine);
        }
        #[cfg(feature = "net")]
        if let Some(flow) = &self.flow {
            flow.leave(&self.pipes, engine);
        }
        // The master may know that all nodes are at a barrier before the others do.
        let began = Instant::now();
        while engine.has_news() && began.elapsed() < FAREWELL_TIMEOUT {
            let now = self.clock.now();
            if engine.poll(now, &mut Closed).worked == 0 {
                std::thread::yield_now();
            }
        }
    }
}

/// How long a dropped node tries to send its last news. That takes microseconds, unless its link is busy or others have the
/// processor.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// The pipes of a node that is gone: they take nothing in.
struct Closed;

impl PrivatePipes for Closed {
    fn deliver(&mut self, _pipe: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        Err(delivery)
    }
}
