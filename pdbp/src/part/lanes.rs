//! Where a part packs its messages: an outbox with a lane for each destination node.
//!
//! The part owns it. Where a thread other than the part's polls the node, that thread may flush it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pdbp_core::cdu::{Full, Route};
use pdbp_core::id::{NodeId, Time};
use pdbp_core::outbox::{Due, Loan, Outbox, Outcome, Rule};
use pdbp_core::{Bell, OpenBlock};

use super::Target;
use super::pace::PartWindows;
use crate::config::Progress;
use crate::node::{NodeEngine, Shared};
use crate::sync::{Owner, Visitor, Windowed};

/// No block is open.
const NOTHING: u64 = u64::MAX;

/// Lower bound on when the oldest open block was opened; visitors read it before disturbing the owner. It is written under the
/// lock, so a visitor may read a stale value, just as it may come late itself.
#[derive(Clone)]
struct Oldest(Arc<AtomicU64>);

impl Oldest {
    /// Whether it is the first.
    fn note(&self, since: Time) -> bool {
        let before = self.0.load(Ordering::Relaxed);
        if before > since.0 {
            self.0.store(since.0, Ordering::Relaxed);
        }
        before == NOTHING
    }

    fn set(&self, left: Option<Time>) {
        self.0.store(left.map_or(NOTHING, |since| since.0), Ordering::Relaxed);
    }

    fn time(&self) -> Option<Time> {
        Some(self.0.load(Ordering::Relaxed)).filter(|since| *since != NOTHING).map(Time)
    }

    /// Whether any open block may be due.
    fn may_be_due(&self, due: Due, after: u64) -> bool {
        self.time().is_some_and(|oldest| match due {
            Due::Past(now) => now.since(oldest) >= after,
            Due::All | Due::Idle(_) => true,
        })
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

/// The lanes of a part, for its own thread.
pub(crate) struct Lanes {
    outbox: Owner<Outbox<'static>>,
    oldest: Oldest,
    flush_after: u64,
    /// The last request for all open blocks that was followed.
    followed: Cell<u64>,
    /// Of who has to flush what this part leaves open.
    bell: Option<Arc<dyn Bell>>,
}

/// The lanes of a part, for other threads.
pub(crate) struct SharedLanes {
    outbox: Visitor<Outbox<'static>>,
    oldest: Oldest,
    flush_after: u64,
}

impl Lanes {
    pub(crate) fn new(shared: &Shared, nodes: u16) -> Self {
        let settings = &shared.settings;
        let flush_after = settings.flush_after.as_nanos() as u64;
        let mut outbox = Outbox::allocate(nodes.into(), Rule { flush_after, pack: settings.pack_bytes });
        for node in (0..nodes).filter_map(NodeId::new) {
            outbox.set_body(node.index(), shared.body(node));
            outbox.set_read_elsewhere(node.index(), shared.is_read_elsewhere(node));
        }
        let followed = Cell::new(shared.flushes.load(Ordering::Acquire));
        Self {
            outbox: Owner::new(outbox),
            oldest: Oldest(Arc::new(AtomicU64::new(NOTHING))),
            flush_after,
            followed,
            bell: (settings.progress == Progress::Thread).then(|| Arc::clone(&shared.bell)),
        }
    }

    /// Whoever has the part flushes what it leaves open, and nobody else need be told of it.
    #[cfg(feature = "net")]
    pub(crate) fn silence(&mut self) {
        self.bell = None;
    }

    /// For other threads that poll.
    pub(crate) fn share(&self) -> SharedLanes {
        let (outbox, oldest) = (self.outbox.visitor(), self.oldest.clone());
        SharedLanes { outbox, oldest, flush_after: self.flush_after }
    }

    /// Whether those are the same lanes.
    pub(crate) fn is(&self, shared: &SharedLanes) -> bool {
        Arc::ptr_eq(&self.oldest.0, &shared.oldest.0)
    }

    /// Packs a plain message that follows one to the same part. `false`: it does not, or there is no room.
    #[inline(always)]
    #[expect(unsafe_code, reason = "the promise that packing does nothing else")]
    pub(crate) fn push_next(&self, to: Target, message: &[u8]) -> bool {
        let pack = |windows: &mut PartWindows| {
            let packed = windows.push(to, message);
            packed.or_else(|| windows.push_first(to, message))
        };
        // SAFETY: packing only copies bytes.
        unsafe { self.outbox.quick(pack) }.is_some()
    }

    /// Packs a message into the open block to its node. [`Full`] also when there is no open block.
    #[inline]
    #[expect(unsafe_code, reason = "the promise that packing does nothing else")]
    pub(crate) fn push(&self, to: Target, route: Route, message: &[u8]) -> Result<(), Full> {
        let pack = |outbox: &mut Outbox<'static>, windows: &mut PartWindows| {
            // SAFETY: the lock closes the windows before the outbox is used for something else; and tokens in an outbox keep the memory of blocks.
            unsafe { windows.pack(outbox, to, route, message) }
        };
        // SAFETY: packing only copies bytes.
        unsafe { self.outbox.with_window(pack) }
    }

    /// Packs as many messages of `length` bytes each, of `most` that lie side by side, as the open block to their node has room for; how many.
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

    /// Does something with the outbox.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Outbox<'static>) -> R) -> R {
        self.outbox.with(f)
    }

    /// Takes the open block to a node.
    pub(crate) fn take(&self, node: NodeId) -> Option<OpenBlock> {
        // Nothing is open: only who has flushed the last block says so, and this part alone opens others.
        self.oldest.time()?;
        self.with(|outbox| outbox.take(node.index())).map(|(block, _)| block)
    }

    /// Does something with the outbox that may open blocks.
    pub(crate) fn send<R>(&self, now: Time, f: impl FnOnce(&mut Outbox<'static>) -> R) -> R {
        let mut is_first = false;
        let result = self.with(|outbox| {
            is_first = self.oldest.note(now);
            f(outbox)
        });
        if is_first && let Some(bell) = &self.bell {
            bell.ring();
        }
        result
    }

    /// Puts an open block into its lane; returns the one that was there.
    pub(crate) fn put(&self, block: OpenBlock, now: Time) -> Option<OpenBlock> {
        let lane = block.dest().index();
        self.send(now, |outbox| outbox.put(lane, block, now))
    }

    /// Takes a loan back; returns the block that the lane had.
    pub(crate) fn end_loan(&self, loan: Loan, outcome: Outcome) -> Option<OpenBlock> {
        self.send(loan.since(), |outbox| outbox.end_loan(loan, outcome))
    }

    /// Whether blocks may be open.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        self.oldest.time().is_some()
    }

    /// Submits all open blocks; how many.
    #[inline]
    pub(crate) fn flush(&self, engine: &mut NodeEngine) -> u32 {
        self.flush_due(engine, Due::All)
    }

    /// Submits the open blocks that are due, or all if that was asked for by number `asked`; how many.
    #[inline]
    pub(crate) fn follow(&self, engine: &mut NodeEngine, asked: u64, due: Due) -> u32 {
        let all = self.followed.replace(asked) != asked;
        self.flush_due(engine, if all { Due::All } else { due })
    }

    #[inline]
    fn flush_due(&self, engine: &mut NodeEngine, due: Due) -> u32 {
        if self.oldest.may_be_due(due, self.flush_after) { self.flush_open(engine, due) } else { 0 }
    }

    #[inline(never)]
    fn flush_open(&self, engine: &mut NodeEngine, due: Due) -> u32 {
        self.with(|outbox| flush(outbox, &self.oldest, engine, due))
    }
}

impl SharedLanes {
    /// Whether their part is still there.
    pub(crate) fn is_alive(&self) -> bool {
        self.outbox.is_alive()
    }

    /// From now on the part checks the target of each message.
    pub(crate) fn disturb(&self) {
        self.outbox.disturb();
    }

    /// It need not any more.
    #[cfg(feature = "net")]
    pub(crate) fn settle(&self) {
        self.outbox.settle();
    }

    /// When the oldest open block was opened, or before.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.oldest.time()
    }

    /// Submits the open blocks that are due; how many.
    pub(crate) fn flush(&self, engine: &mut NodeEngine, due: Due) -> u32 {
        if !self.oldest.may_be_due(due, self.flush_after) {
            return 0;
        }
        // Lanes that their part is using at this moment can wait for the next time.
        self.outbox.visit(|outbox| flush(outbox, &self.oldest, engine, due)).unwrap_or(0)
    }
}

#[inline]
fn flush(outbox: &mut Outbox<'static>, oldest: &Oldest, engine: &mut NodeEngine, due: Due) -> u32 {
    let flushed = outbox.flush(engine, due);
    oldest.set(flushed.left);
    flushed.blocks
}
