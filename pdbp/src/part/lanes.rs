//! Where a part packs its messages: in an outbox with one lane for each destination node.
//!
//! The part owns the outbox. Another thread that polls the node may flush it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pdbp_core::cdu::{Full, Route};
use pdbp_core::id::{NodeId, Time};
use pdbp_core::outbox::{Due, Loan, Outbox, Outcome};
use pdbp_core::{Bell, OpenBlock};

use super::Target;
use super::pace::PartWindows;
use crate::node::{NodeEngine, Shared};
use crate::sync::{Owner, Visitor, Windowed};

/// No block is open.
const NONE_OPEN: u64 = u64::MAX;

/// Lower bound on when the oldest open block was opened. Visitors read it before they disturb the owner. It is written under the lock; a
/// visitor may read a stale value, which is no worse than visiting late.
#[derive(Clone)]
pub(crate) struct Oldest(Arc<AtomicU64>);

impl Default for Oldest {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(NONE_OPEN)))
    }
}

impl Oldest {
    /// Records that a block was opened at `since`. Returns whether none was open before.
    pub(crate) fn record(&self, since: Time) -> bool {
        let before = self.0.load(Ordering::Relaxed);
        if before > since.0 {
            self.0.store(since.0, Ordering::Relaxed);
        }
        before == NONE_OPEN
    }

    fn set(&self, left: Option<Time>) {
        self.0.store(left.map_or(NONE_OPEN, |since| since.0), Ordering::Relaxed);
    }

    pub(crate) fn time(&self) -> Option<Time> {
        Some(self.0.load(Ordering::Relaxed)).filter(|since| *since != NONE_OPEN).map(Time)
    }

    /// Whether any open block may be due.
    #[inline]
    pub(crate) fn may_be_due(&self, due: Due, after: u64) -> bool {
        self.time().is_some_and(|oldest| match due {
            Due::Past(now) => now.since(oldest) >= after,
            Due::All | Due::Behind(_) | Due::Idle(_) => true,
        })
    }

    /// Submits the open blocks that are due. Returns how many.
    #[inline]
    pub(crate) fn flush(&self, outbox: &mut Outbox<'static>, engine: &mut NodeEngine, due: Due) -> u32 {
        let flushed = outbox.flush(engine, due);
        self.set(flushed.left);
        flushed.blocks
    }
}

impl Windowed for Outbox<'static> {
    type Window = PartWindows;

    #[inline]
    fn is_open(windows: &PartWindows) -> bool {
        windows.is_open()
    }

    #[inline]
    fn close(&mut self, windows: &mut PartWindows) {
        windows.close(self);
    }
}

/// A part's lanes, as its own thread uses them.
pub(crate) struct Lanes {
    outbox: Owner<Outbox<'static>>,
    oldest: Oldest,
    flush_after: u64,
    /// Number of the last request to flush all open blocks that this part has carried out.
    last_flush: Cell<u64>,
    /// Wakes the thread that flushes what this part leaves open, if there is one.
    bell: Option<Arc<dyn Bell>>,
}

/// A part's lanes, as other threads use them.
pub(crate) struct SharedLanes {
    outbox: Visitor<Outbox<'static>>,
    oldest: Oldest,
    flush_after: u64,
}

impl Lanes {
    pub(crate) fn new(shared: &Shared, nodes: u16) -> Self {
        let last_flush = Cell::new(shared.flushes.load(Ordering::Acquire));
        Self {
            outbox: Owner::new(shared.outbox(nodes)),
            oldest: Oldest::default(),
            flush_after: shared.flush_after(),
            last_flush,
            bell: shared.flushing_bell().map(Arc::clone),
        }
    }

    /// The part's owner flushes everything it leaves open, so no other thread need be woken.
    #[cfg(feature = "net")]
    pub(crate) fn disable_bell(&mut self) {
        self.bell = None;
    }

    /// The same lanes, for other threads that poll.
    pub(crate) fn share(&self) -> SharedLanes {
        let (outbox, oldest) = (self.outbox.visitor(), self.oldest.clone());
        SharedLanes { outbox, oldest, flush_after: self.flush_after }
    }

    /// Whether `shared` are the same lanes.
    pub(crate) fn is(&self, shared: &SharedLanes) -> bool {
        Arc::ptr_eq(&self.oldest.0, &shared.oldest.0)
    }

    /// Packs a plain message behind the last one to the same part. `false` if no open window takes it.
    #[inline(always)]
    #[expect(unsafe_code, reason = "the promise that packing does nothing else")]
    pub(crate) fn push_next(&self, to: Target, message: &[u8]) -> bool {
        // SAFETY: packing only copies bytes.
        unsafe { self.outbox.try_fast(|windows| windows.push(to, message)) }.is_some()
    }

    /// Packs a message into the open block for its node. [`Full`] also if there is no open block.
    #[inline]
    #[expect(unsafe_code, reason = "the promise that packing does nothing else")]
    pub(crate) fn push(&self, to: Target, route: Route, message: &[u8]) -> Result<(), Full> {
        let pack = |outbox: &mut Outbox<'static>, windows: &mut PartWindows| {
            // SAFETY: the lock closes the windows before the outbox is used otherwise, and block tokens in an outbox keep the
            // blocks' memory alive.
            unsafe { windows.pack(outbox, to, route, message) }
        };
        // SAFETY: packing only copies bytes.
        unsafe { self.outbox.with_window(pack) }
    }

    /// Packs adjacent messages of `length` bytes each: up to `most`, or as many as the open block for their node has room for. Returns
    /// how many.
    #[expect(unsafe_code, reason = "the promise that packing does nothing else")]
    pub(crate) fn push_each(
        &self,
        way: (Target, Route),
        messages: &[u8],
        length: usize,
        most: usize,
    ) -> usize {
        let pack = |outbox: &mut Outbox<'static>, windows: &mut PartWindows| {
            // SAFETY: as in `push`.
            unsafe { windows.pack_each(outbox, way, messages, length, most) }
        };
        // SAFETY: packing only copies bytes.
        unsafe { self.outbox.with_window(pack) }
    }

    /// Calls `f` with the outbox.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Outbox<'static>) -> R) -> R {
        self.outbox.with(f)
    }

    /// Takes the open block for a node.
    pub(crate) fn take(&self, node: NodeId) -> Option<OpenBlock> {
        // `NONE_OPEN` is reliable here: it is set once the last block has been flushed, and only this part opens blocks.
        self.oldest.time()?;
        self.with(|outbox| outbox.take(node.index())).map(|(block, _)| block)
    }

    /// Calls `f`, which may open blocks, with the outbox.
    pub(crate) fn send<R>(&self, now: Time, f: impl FnOnce(&mut Outbox<'static>) -> R) -> R {
        let mut is_first = false;
        let result = self.with(|outbox| {
            is_first = self.oldest.record(now);
            f(outbox)
        });
        if is_first && let Some(bell) = &self.bell {
            bell.ring();
        }
        result
    }

    /// Puts an open block into its lane. Returns the block that the lane had.
    pub(crate) fn put(&self, block: OpenBlock, now: Time) -> Option<OpenBlock> {
        let lane = block.dest().index();
        self.send(now, |outbox| outbox.put(lane, block, now))
    }

    /// Ends a loan. Returns the block that the lane had.
    pub(crate) fn end_loan(&self, loan: Loan, outcome: Outcome) -> Option<OpenBlock> {
        self.send(loan.since(), |outbox| outbox.end_loan(loan, outcome))
    }

    /// Whether blocks may be open.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        self.oldest.time().is_some()
    }

    /// Submits all open blocks. Returns how many.
    #[inline]
    pub(crate) fn flush(&self, engine: &mut NodeEngine) -> u32 {
        self.flush_due(engine, Due::All)
    }

    /// Submits the open blocks that are due, or all of them if flush request number `request` is new. Returns how many.
    #[inline]
    pub(crate) fn flush_if_requested(&self, engine: &mut NodeEngine, request: u64, due: Due) -> u32 {
        let all = self.last_flush.replace(request) != request;
        self.flush_due(engine, if all { Due::All } else { due })
    }

    #[inline]
    fn flush_due(&self, engine: &mut NodeEngine, due: Due) -> u32 {
        if self.oldest.may_be_due(due, self.flush_after) { self.flush_open(engine, due) } else { 0 }
    }

    #[inline(never)]
    fn flush_open(&self, engine: &mut NodeEngine, due: Due) -> u32 {
        self.with(|outbox| self.oldest.flush(outbox, engine, due))
    }
}

impl SharedLanes {
    /// Whether the part still exists.
    pub(crate) fn is_alive(&self) -> bool {
        self.outbox.is_alive()
    }

    /// Makes the part check the target of each message from now on.
    pub(crate) fn force_slow_path(&self) {
        self.outbox.force_slow_path();
    }

    /// Lets the part stop checking the target of each message.
    #[cfg(feature = "net")]
    pub(crate) fn allow_fast_path(&self) {
        self.outbox.allow_fast_path();
    }

    /// When the oldest open block was opened, or earlier.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.oldest.time()
    }

    /// Submits the open blocks of several parts that are due. Returns how many.
    pub(crate) fn flush_each<'l>(
        lanes: impl Iterator<Item = &'l Self>,
        engine: &mut NodeEngine,
        due: Due,
    ) -> u32 {
        let mut blocks = 0;
        let lanes = lanes.filter(|lanes| lanes.oldest.may_be_due(due, lanes.flush_after));
        // Blocks of a part that is using its lanes at this moment can wait for the next visit.
        Visitor::visit_all(lanes.map(|lanes| (&lanes.outbox, &lanes.oldest)), |oldest, outbox| {
            blocks += oldest.flush(outbox, engine, due);
        });
        blocks
    }
}
