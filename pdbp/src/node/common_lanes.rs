//! Lanes that all parts of a node share, for destinations to which more parts send than their row has places for open blocks.
//!
//! A part packs into blocks of its own, without a lock. Each takes a place in the row from the moment it is opened, so if there are more senders
//! than places, they can only go on by submitting each other's blocks, almost empty. From then on they pack into one block together, under the
//! engine's lock, until such a block has left with messages of a single part. A part that sends many in a row still gets blocks of its own.
//!
//! **Order.** A part submits its own block before it packs into the common one, and the common one before it opens its own.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pdbp_core::engine::OpenError;
use pdbp_core::id::{NodeId, PartId, Time};
use pdbp_core::outbox::{Due, Hop, Outbox, Outgoing, SendError};

use super::{NodeEngine, Shared};
use crate::part::Oldest;

/// The common lanes of a node. Used under the engine's lock; its own is there for the compiler.
pub(crate) struct CommonLanes {
    lanes: Mutex<Lanes>,
    oldest: Oldest,
}

struct Lanes {
    outbox: Outbox<'static>,
    rows: Box<[Row]>,
}

/// How the parts send to a node.
#[derive(Clone, Default)]
struct Row {
    is_common: bool,
    /// The part that sent the last message, and how many in a row.
    last: Option<PartId>,
    run: u32,
    /// Whether the common block has got messages of several parts.
    is_mixed: bool,
    /// How many before it had got those of a single one.
    unmixed: u32,
}

/// So many messages in a row a part packs into a common block before it opens one of its own, where the next ones cost a fifth. That block, and the
/// common one that leaves early, cost as much as 50 messages.
const RUN: u32 = 64;

/// After so many common blocks in a row with messages of a single part, parts pack into their own again. Tasks that wait for answers are often woken
/// one by one.
const UNMIXED: u32 = 16;

impl CommonLanes {
    pub(super) fn new(shared: &Shared, nodes: u16) -> Self {
        let lanes = Lanes { outbox: shared.outbox(nodes), rows: vec![Row::default(); nodes.into()].into() };
        Self { lanes: Mutex::new(lanes), oldest: Oldest::default() }
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the parts pack messages to the node into one block together.
    pub(super) fn begin(&self, node: NodeId) {
        if let Some(row) = self.lanes().rows.get_mut(node.index()).filter(|row| !row.is_common) {
            *row = Row { is_common: true, last: None, run: 0, is_mixed: true, unmixed: 0 };
        }
    }

    /// Packs a message of the part `from`. `None` if parts pack into blocks of their own for that node: then nothing is left in the common one.
    pub(crate) fn send(
        &self,
        shared: &Shared,
        engine: &mut NodeEngine,
        now: Time,
        from: PartId,
        (hop, outgoing): (Hop, &Outgoing<'_>),
    ) -> Option<Result<(), SendError>> {
        let Lanes { outbox, rows } = &mut *self.lanes();
        let row = rows.get_mut(hop.lane()).filter(|row| row.is_common)?;
        let is_next = row.last.replace(from) == Some(from);
        row.run = if is_next { row.run.saturating_add(1) } else { 1 };
        if row.run <= RUN && outbox.pack(hop, outgoing).is_ok() {
            row.is_mixed |= !is_next;
            return Some(Ok(()));
        }
        let unmixed = if row.is_mixed { 0 } else { row.unmixed + 1 };
        if row.run > RUN || unmixed > UNMIXED {
            row.is_common = row.is_mixed;
            submit(outbox, engine, hop.dest());
            return None;
        }
        self.record_open(shared, now);
        let sent = outbox.send_anew(engine, now, hop, outgoing);
        if sent.is_ok() {
            (row.is_mixed, row.unmixed) = (false, unmixed);
            shared.renew_row(hop.dest());
        }
        Some(sent)
    }

    /// Notes that a block is opened, and wakes the thread that flushes it if it was not waiting for one.
    fn record_open(&self, shared: &Shared, now: Time) {
        if self.oldest.record(now)
            && let Some(bell) = shared.flushing_bell()
        {
            bell.ring();
        }
    }

    /// Whether a message of `short` bytes to the node has room in the common block, or in a new one. `None` as for [`send`](Self::send).
    pub(crate) fn has_room(
        &self,
        shared: &Shared,
        engine: &mut NodeEngine,
        now: Time,
        node: NodeId,
        short: usize,
    ) -> Option<bool> {
        let lane = node.index();
        let Lanes { outbox, rows } = &mut *self.lanes();
        let row = rows.get_mut(lane).filter(|row| row.is_common)?;
        if outbox.room(lane).is_some_and(|room| room >= short) {
            return Some(true);
        }
        submit(outbox, engine, node);
        Some(match engine.open(node) {
            Ok(block) => {
                self.record_open(shared, now);
                (row.last, row.is_mixed) = (None, false);
                outbox.put(lane, block, now).is_none()
            }
            // `send` will report any other error without waiting.
            Err(error) => error != OpenError::WouldBlock,
        })
    }

    /// Submits the common block to the node, which becomes vacant if nothing is in it. Returns whether there was one.
    pub(crate) fn submit(&self, engine: &mut NodeEngine, node: NodeId) -> bool {
        submit(&mut self.lanes().outbox, engine, node)
    }

    /// Submits the blocks that are due. Returns how many.
    #[cold]
    fn flush(&self, engine: &mut NodeEngine, due: Due, after: u64) -> u32 {
        if !self.oldest.may_be_due(due, after) {
            return 0;
        }
        self.oldest.flush(&mut self.lanes().outbox, engine, due)
    }

    /// When the oldest block was opened, or earlier; `None` if there is none.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.oldest.time()
    }
}

impl Shared {
    /// Makes the parts pack messages to the node into one block together.
    pub(crate) fn begin_common(&self, engine: &NodeEngine, node: NodeId) {
        self.common.get_or_init(|| CommonLanes::new(self, engine.config().nodes)).begin(node);
    }

    /// Whether parts pack messages to the node into one block together.
    pub(crate) fn has_common(&self, node: NodeId) -> bool {
        let has =
            |common: &CommonLanes| common.lanes().rows.get(node.index()).is_some_and(|row| row.is_common);
        self.common.get().is_some_and(has)
    }

    /// Submits the common blocks that are due. Returns how many.
    #[inline]
    pub(crate) fn flush_common(&self, engine: &mut NodeEngine, due: Due) -> u32 {
        self.common.get().map_or(0, |common| common.flush(engine, due, self.flush_after()))
    }
}

fn submit(outbox: &mut Outbox<'static>, engine: &mut NodeEngine, node: NodeId) -> bool {
    let block = outbox.take(node.index()).map(|(block, _)| block);
    block.map(|block| engine.submit(block)).is_some()
}
