//! Parts, the endpoints that programs send and receive with (generalised processes, GP, in the documents).

#[cfg(feature = "cuda")]
mod device;
mod inbox;
mod known;
mod lanes;
mod leading;
mod loan;
mod message;
mod pace;
mod polling;
mod readiness;
mod receiving;
mod returned;
mod room;
mod row_room;
mod sender;
mod sending;
mod share;
mod stall;
mod stream;
mod superstep;
mod train;
mod waiting;

use std::cell::{Cell, RefCell};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use pdbp_core::engine::LocalPart;
use pdbp_core::id::{NodeId, PipeId};
use pdbp_core::pipe::PipeError;
use pdbp_core::tables::PartKind;
use pdbp_local::Copier;

use crate::error::{LookupError, RecvError, RegisterError};
use crate::node::{self, Node, NodeEngine, Pipe};
use inbox::{Inbox, Source};
use known::KnownTargets;
use message::Spare;
pub(crate) use message::{Run, Runs};
use stall::Stall;
use superstep::Superstep;
use train::Train;

#[cfg(feature = "cuda")]
pub use device::{
    DeviceMessage, DeviceRead, DeviceRecv, DeviceRecvEach, DeviceSend, DeviceSendEach, DeviceWrite,
};
pub(crate) use known::Recurrence;
pub(crate) use lanes::{Lanes, Oldest, SharedLanes};
pub use loan::Loan;
pub use message::{Batch, Message, Messages};
pub use pdbp_core::id::PartId as Target;
pub use readiness::{Interest, Ready};
pub use returned::Returned;
pub use sender::Sender;
pub use share::{HoldsPart, Local, Share, Shared};
pub use stream::{Piece, Segment, StreamId, StreamReader, StreamWriter, Streams};

/// How long dropping a part waits for room for another request to the master.
const FREEING: Duration = Duration::from_secs(1);

/// An endpoint of a node, [registered](Node::register) under a name or [attached](Node::attach) without one. It sends to parts of
/// any node and receives from its private pipe. It stays on the thread that registered it, unless it is
/// [shared](Node::register_shared).
///
/// Dropping it sends what it has packed and frees its pipe and name (`prcsReleasePipe`, `prcsFree`). What arrives for it later is
/// discarded and counted at its node ([`Event::Unroutable`](crate::Event::Unroutable)). Senders get
/// [`SendError::NoSuchPart`](crate::SendError::NoSuchPart) from the first block that they begin after their node has learnt that
/// the part is gone; nodes never learn this of a part without a name.
///
/// The parts of a node share its buffers to and from each other node, `row_blocks` blocks each way. A block is free again once all
/// messages in it have been read and dropped. Short messages do not use up the buffers, even if each arrives in its own block:
/// while more than half of the blocks from a node are unread, anything that takes up at most a sixteenth of a block (a message of
/// up to 8,000 bytes) is copied to a free block of the receiving node, and its own block is returned. Up to 8 blocks (1 MiB) hold
/// copies, each 1,024 messages of up to 48 bytes, or 16 of 8,000. These limits remain:
///
/// * 8 unread messages longer than that, in separate blocks, stop everything else from their node. So do short ones if there is no
///   room for copies, and so does a part whose pipe is full (`pipe_depth`, 64 unread deliveries).
/// * A part that blocks in [`send`](Self::send) does not read meanwhile, and may be waiting for itself. A part that receives while
///   it sends should use [`send_or`](Self::send_or), or [`try_send`](Self::try_send) and [`wait`](Self::wait).
/// * Each part packs into blocks of its own. If more parts of a node than `row_blocks` send to one node at a time, they pack into one
///   block together, and a message costs several times as much as one in a block of its part's own. Let one part per thread send for
///   all, and say in the message for whom, or raise `row_blocks` (and `memory_bytes`) to the number of parts that send.
pub struct Part<S: Share = Local> {
    pub(crate) node: Node,
    id: Target,
    name: String,
    lanes: Lanes,
    /// Whether this part has packed into the node's common lanes since it last flushed.
    in_common: Cell<bool>,
    /// Whether it has left such messages to the task that polls for all.
    has_left_packed: Cell<bool>,
    known: KnownTargets,
    /// Access it through [`Part::inbox`].
    inbox: RefCell<Inbox<S>>,
    /// Messages taken out of the inbox ahead of their reader.
    train: Train<S>,
    /// Memory for what is received.
    runs: Runs,
    /// Memory of the last long message, kept for the next one.
    spare: Arc<Spare>,
    pipe: Cell<Option<PipeId>>,
    /// Number of the next message longer than a block.
    next_message: Cell<u32>,
    is_sending_long: Cell<bool>,
    /// Per node: when a send last found no room, and the retries since.
    stalled: Box<[Cell<Stall>]>,
    /// Consecutive polls that found nothing; reset when they made the part yield.
    idle: Cell<u32>,
    /// Whether it has polled since its last flush.
    polled: Cell<bool>,
    /// Looks for something rare since the last one that polled.
    looks: Cell<u32>,
    /// For a waiting task: since when it has been polling.
    polls_since: Cell<Option<Instant>>,
    superstep: Superstep,
    /// Per node: how long messages are copied.
    copiers: Box<[Cell<Copier>]>,
    /// The destination node of the outstanding loan, if any.
    loaned: Cell<Option<NodeId>>,
    /// Memory of the last loan that was copied, kept for the next one.
    lent: Cell<Vec<u8>>,
}

impl<S: Share> Part<S> {
    pub(crate) fn register(node: &Node, name: &str, kind: PartKind) -> Result<Self, RegisterError> {
        Self::register_within(node, name, kind, node.shared.settings.timeout)
    }

    /// As [`register`](Self::register), with a timeout.
    pub(crate) fn register_within(
        node: &Node,
        name: &str,
        kind: PartKind,
        timeout: Duration,
    ) -> Result<Self, RegisterError> {
        let began = Instant::now();
        let shared = &node.shared;
        // PTA also has rows for monitors, which no setting counts.
        let parts = shared.settings.parts;
        let count = {
            let mut engine = shared.engine();
            free_dropped(&mut engine, shared);
            part_count(&engine)
        };
        if count >= parts {
            return Err(RegisterError::TableFull { parts });
        }
        let waited = node.wait_for(
            timeout,
            "accepted the request to register a part",
            |engine| {
                free_dropped(engine, shared);
                match engine.register(name, kind) {
                    Err(pdbp_core::engine::RegisterError::Busy) => None,
                    // The part with that name is being dropped; the name is free once all nodes have forgotten it.
                    Err(pdbp_core::engine::RegisterError::Taken(_))
                        if is_being_freed(engine, shared, name) =>
                    {
                        None
                    }
                    // Bound before anybody can know the name, so that no message finds the part without a pipe.
                    other => Some(other.map(|id| (id, bind(engine, shared, id)))),
                }
            },
            |engine| engine.master().into_iter().collect(),
        );
        let (id, pipe) = waited?.map_err(RegisterError::Refused)?;
        let part = Self::new(node, id, name, pipe.as_ref().ok().copied());
        let confirmed = part.confirmed(began, timeout);
        pipe.map_err(RegisterError::Pipe).and(confirmed)
    }

    /// The owner flushes everything it sends, so the progress thread need not be woken to do it.
    #[cfg(feature = "net")]
    pub(crate) fn flushed_by_owner(mut self) -> Self {
        self.lanes.disable_bell();
        self
    }

    /// See [`Node::attach`].
    pub(crate) fn attach(node: &Node) -> Result<Self, RegisterError> {
        use pdbp_core::engine::RegisterError as Refused;
        let (began, shared) = (Instant::now(), &node.shared);
        let timeout = shared.settings.timeout;
        free_dropped(&mut shared.engine(), shared);
        let waited = node.wait_for(
            timeout,
            "confirmed that this node has parts without a name",
            |engine| match engine.attach() {
                Err(Refused::Busy) => None,
                other => Some(other.map(|id| (id, bind(engine, shared, id)))),
            },
            |engine| engine.master().into_iter().collect(),
        );
        let parts = shared.settings.parts;
        let (id, pipe) = waited?.map_err(|refused| match refused {
            Refused::NoRow => RegisterError::TableFull { parts },
            refused => RegisterError::Refused(refused),
        })?;
        let part = Self::new(node, id, "", pipe.as_ref().ok().copied());
        pipe.map_err(RegisterError::Pipe)?;
        if id.is_nameless() { Ok(part) } else { part.confirmed(began, timeout) }
    }

    /// Gives a part without a name another number, so that nothing that is on its way to it arrives. `false`: none can be had at once.
    #[cfg(feature = "desk")]
    pub(crate) fn renew(&mut self) -> bool {
        let shared = Arc::clone(self.shared());
        let old = self.id;
        if !old.is_nameless() {
            return false;
        }
        self.inbox().clear(&mut Source(self));
        let mut engine = shared.engine();
        self.flush_lanes(&mut engine);
        let Some(id) = engine.attach_at_once() else { return false };
        // Done at once without a name, and frees the pipe.
        let _ = free(&mut engine, &shared, old);
        if let Some(pipe) = self.pipe.take() {
            self.drain(pipe, &mut engine);
        }
        self.id = id;
        // There is one: that of before.
        self.pipe.set(bind(&mut engine, &shared, id).ok());
        self.pipe.get().is_some()
    }

    fn new(node: &Node, id: Target, name: &str, pipe: Option<PipeId>) -> Self {
        let shared = &node.shared;
        let nodes = shared.engine().config().nodes;
        let lanes = Lanes::new(shared, nodes);
        shared.share_lanes(lanes.share());
        Self {
            id,
            name: name.to_owned(),
            lanes,
            in_common: Cell::new(false),
            has_left_packed: Cell::new(false),
            known: KnownTargets::default(),
            inbox: RefCell::new(inbox::inbox(&shared.settings)),
            train: Train::default(),
            runs: Runs::default(),
            spare: Arc::default(),
            pipe: Cell::new(pipe),
            next_message: Cell::new(0),
            is_sending_long: Cell::new(false),
            stalled: (0..nodes).map(|_| Cell::new(Stall::NONE)).collect(),
            idle: Cell::new(0),
            polled: Cell::new(false),
            looks: Cell::new(0),
            polls_since: Cell::new(None),
            superstep: Superstep::default(),
            copiers: (0..nodes).map(|_| Cell::default()).collect(),
            loaned: Cell::new(None),
            lent: Cell::default(),
            node: node.clone(),
        }
    }

    /// Waits until every node knows the part, as long as `timeout` after registering it began.
    fn confirmed(self, began: Instant, timeout: Duration) -> Result<Self, RegisterError> {
        let (shared, local) = (self.shared(), self.id.local());
        let state = self.node.wait_for(
            timeout.saturating_sub(began.elapsed()),
            "confirmed the part",
            |engine| Some(engine.local_part(local)).filter(|s| *s != LocalPart::Pending),
            |engine| engine.master().into_iter().collect(),
        );
        match state.map_err(|late| late.after(timeout))? {
            LocalPart::Refused => Err(RegisterError::TableFull { parts: shared.settings.parts }),
            _ => Ok(self),
        }
    }

    /// The part's identifier (`Pid`): the target for messages to it.
    pub fn id(&self) -> Target {
        self.id
    }

    /// Its name; empty for a part that was [attached](Node::attach).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node that hosts it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// As [`Node::lookup`].
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn lookup(&self, address: &str) -> Result<Target, LookupError> {
        self.node.lookup(address)
    }

    /// As [`Node::find`].
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn find(&self, address: &str, timeout: Duration) -> Result<Target, LookupError> {
        self.node.find(address, timeout)
    }

    /// Releases the private pipe (`prcsReleasePipe`). Messages that arrive for the part from now on are counted and discarded.
    ///
    /// # Errors
    /// [`PipeError::NotBound`] if it was released before.
    pub fn release_pipe(&self) -> Result<(), PipeError> {
        let Some(pipe) = self.pipe.get() else {
            return Err(PipeError::NotBound(PipeId(u16::MAX)));
        };
        self.inbox().clear(&mut Source(self));
        self.pipe.set(None);
        let mut engine = self.shared().engine();
        let released = engine.release_pipe(pipe);
        self.drain(pipe, &mut engine);
        released
    }

    /// Binds a private pipe again (`prcsApplyPipe`) after [`release_pipe`](Self::release_pipe).
    ///
    /// # Errors
    /// [`PipeError::AlreadyBound`] and [`PipeError::NoneIdle`].
    pub fn apply_pipe(&self) -> Result<(), PipeError> {
        let shared = self.shared();
        self.pipe.set(Some(bind(&mut shared.engine(), shared, self.id)?));
        Ok(())
    }

    /// Number of messages that arrived but could not be read: malformed, or in segments for which no room had been granted.
    pub fn unreadable(&self) -> u64 {
        self.inbox.borrow().unreadable()
    }

    pub(crate) fn shared(&self) -> &Arc<node::Shared> {
        &self.node.shared
    }

    /// The pipe that the part receives from.
    #[cfg(feature = "net")]
    pub(crate) fn pipe_id(&self) -> Option<PipeId> {
        self.pipe.get()
    }

    #[inline]
    pub(crate) fn pipe(&self) -> Result<&Pipe, RecvError> {
        self.bound_pipe().ok_or(RecvError::NoPipe)
    }

    /// The same, if there is one.
    #[inline]
    pub(crate) fn bound_pipe(&self) -> Option<&Pipe> {
        self.pipe.get().and_then(|p| self.shared().pipes.get(usize::from(p.0)))
    }

    /// Releases the deliveries left in a former pipe of this part.
    #[expect(unsafe_code, reason = "the promise that nobody else reads the pipe")]
    fn drain(&self, pipe: PipeId, engine: &mut NodeEngine) {
        if let Some(pipe) = self.shared().pipes.get(usize::from(pipe.0)) {
            // SAFETY: the pipe was this part's, and no other part can be given it while the engine's lock is held.
            while let Some(delivery) = unsafe { pipe.next_delivery() } {
                engine.release(delivery);
            }
            pipe.forget_notices();
            // Wakes the waiting tasks, which then find no pipe.
            self.shared().tasks.mark_due(&pipe.tasks);
        }
    }
}

/// Number of the programs' parts in the cluster, without those of this node that are being dropped.
fn part_count(engine: &NodeEngine) -> usize {
    let node = engine.config().node;
    let stays = |id: Target| id.node() != node || engine.local_part(id.local()) != LocalPart::Leaving;
    engine.parts().filter(|part| !is_internal(part.name.as_str()) && stays(part.id)).count()
}

/// Whether the part belongs to a node itself, which the settings do not count.
fn is_internal(name: &str) -> bool {
    #[cfg(feature = "net")]
    if name == crate::grid::FLOW {
        return true;
    }
    name == crate::monitor::NAME
}

/// Frees dropped parts that could not be freed in time, as far as that is possible by now.
pub(crate) fn free_dropped(engine: &mut NodeEngine, shared: &node::Shared) {
    let mut unfreed = shared.unfreed.lock().unwrap_or_else(PoisonError::into_inner);
    unfreed.retain(|(part, _)| free(engine, shared, *part).is_err());
}

fn free(
    engine: &mut NodeEngine,
    shared: &node::Shared,
    part: Target,
) -> Result<(), pdbp_core::engine::RegisterError> {
    engine.free(part)?;
    if part.is_nameless() {
        // No change of the tables tells others that it is gone.
        shared.wake_all_readers();
    }
    Ok(())
}

/// Binds a pipe, cleared of what its previous part left.
fn bind(engine: &mut NodeEngine, shared: &node::Shared, id: Target) -> Result<PipeId, PipeError> {
    let pipe = engine.bind_pipe(id)?;
    if let Some(pipe) = shared.pipes.get(usize::from(pipe.0)) {
        pipe.forget_notices();
    }
    Ok(pipe)
}

fn is_being_freed(engine: &NodeEngine, shared: &node::Shared, name: &str) -> bool {
    let part = engine.lookup(shared.id, name);
    part.is_some_and(|part| engine.local_part(part.id.local()) == LocalPart::Leaving)
        || shared.unfreed.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(_, of)| of == name)
}

impl<S: Share> Drop for Part<S> {
    fn drop(&mut self) {
        let shared = Arc::clone(self.shared());
        self.inbox().clear(&mut Source(self));
        {
            let mut engine = shared.engine();
            engine.leave_superstep(self.id);
            self.flush_packed(&mut engine);
            if let Some(pipe) = self.pipe.take() {
                // Bound until now, so this cannot be a second release.
                let _ = engine.release_pipe(pipe);
                self.drain(pipe, &mut engine);
            }
            shared.poll_with(&mut engine);
        }
        // Freed when the master has answered a request, if it does, or when the node adds a part.
        let free_later = || {
            let mut unfreed = shared.unfreed.lock().unwrap_or_else(PoisonError::into_inner);
            unfreed.push((self.id, self.name.clone()));
        };
        let freed = self.node.wait_uninterrupted(FREEING, |engine| {
            // Of a registration that was given up: it could take any time.
            let is_pending = engine.local_part(self.id.local()) == LocalPart::Pending;
            if is_pending {
                free_later();
                return Some(());
            }
            free(engine, &shared, self.id).ok()
        });
        if freed.is_none() {
            free_later();
        }
    }
}

impl<S: Share> std::fmt::Debug for Part<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.name {
            "" => write!(f, "Part({})", self.id),
            name => write!(f, "Part({name}@{})", self.node.name()),
        }
    }
}

#[cfg(test)]
mod tests;
