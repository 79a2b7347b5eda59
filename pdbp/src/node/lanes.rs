//! The open blocks of all parts of a node, flushed by the thread that polls it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use pdbp_core::Bell;
use pdbp_core::id::{NodeId, Time};
use pdbp_core::outbox::{Due, Outbox, Rule};

use super::common_lanes::CommonLanes;
use super::shared::{NodeEngine, Shared, Turn};
use crate::config::Progress;
use crate::part::{Lanes, SharedLanes};

impl Shared {
    /// An outbox with a lane for each node.
    pub(crate) fn outbox(&self, nodes: u16) -> Outbox<'static> {
        let rule = Rule { flush_after: self.flush_after(), pack: self.settings.pack_bytes };
        let mut outbox = Outbox::allocate(nodes.into(), rule);
        for node in (0..nodes).filter_map(NodeId::new) {
            outbox.set_body(node.index(), self.body(node));
            outbox.set_read_elsewhere(node.index(), self.is_read_remotely(node));
        }
        outbox
    }

    /// The setting `flush_after_us`, in nanoseconds.
    pub(crate) fn flush_after(&self) -> u64 {
        self.settings.flush_after.as_nanos() as u64
    }

    /// Wakes the thread that flushes what parts leave open, if there is one.
    pub(crate) fn flushing_bell(&self) -> Option<&Arc<dyn Bell>> {
        (self.settings.progress == Progress::Thread).then_some(&self.bell)
    }

    /// Submits open blocks that parts share, and of those that let others flush: overdue ones, or all. Returns the number of blocks.
    #[inline(always)]
    pub(super) fn flush_lanes(
        &self,
        engine: &mut NodeEngine,
        now: Time,
        all: bool,
        own: Option<&Lanes>,
    ) -> u32 {
        if self.settings.progress == Progress::Inline { 0 } else { self.flush_others(engine, now, all, own) }
    }

    fn flush_others(&self, engine: &mut NodeEngine, now: Time, all: bool, own: Option<&Lanes>) -> u32 {
        let after = self.flush_after();
        // Pairs with nothing: the engine's lock orders the calls.
        let scanned = Time(self.scanned.load(Ordering::Relaxed));
        if !all && now.since(scanned) < after {
            return 0;
        }
        self.scanned.store(now.0, Ordering::Relaxed);
        let due = if all { Due::All } else { Due::Past(now) };
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(SharedLanes::is_alive);
        // The polling part flushes its own more cheaply.
        let others = lanes.iter().filter(|lanes| own.is_none_or(|own| !own.is(lanes)));
        SharedLanes::flush_each(others, engine, due) + self.flush_common(engine, due)
    }

    /// Makes each part submit its open blocks when it polls, and submits those that they share.
    #[cold]
    pub(super) fn request_flush(&self, engine: &mut NodeEngine) {
        self.flushes.fetch_add(1, Ordering::Release);
        self.flush_common(engine, Due::All);
    }

    /// Submits all open blocks of other parts than the one with the lanes `own`, in every mode: a part is waiting for one of them.
    pub(crate) fn flush_all(&self, engine: &mut NodeEngine, own: &Lanes) -> u32 {
        let now = engine.last_poll();
        self.flush_others(engine, now, true, Some(own))
    }

    /// Whether submitted blocks leave without a poll.
    pub(crate) fn sends_without_poll(&self, engine: &NodeEngine) -> bool {
        self.submit_sends && !engine.has_pending_work()
    }

    /// How long no thread need poll after this turn if nothing happens; `None` means until something happens. Parts that open a
    /// block ring the bell.
    pub(super) fn due(&self, turn: &Turn) -> Option<Duration> {
        let after = self.flush_after();
        let opened = match self.settings.progress {
            Progress::Inline => None,
            _ => {
                let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
                lanes.iter().filter_map(SharedLanes::oldest).min()
            }
        };
        // An overdue block is in use by its part.
        let opened = [opened, self.common.get().and_then(CommonLanes::oldest)].into_iter().flatten().min();
        let flush = opened.map(|since| Some(since.after(after)).filter(|due| *due > turn.now));
        let flush = flush.map(|due| due.unwrap_or(turn.now.after(after)));
        let next = [turn.next, flush].into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.since(turn.now)))
    }

    pub(crate) fn share_lanes(&self, shared: SharedLanes) {
        {
            let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.retain(SharedLanes::is_alive);
            lanes.push(shared);
        }
        // If the new value is not visible yet, `force_slow_path` takes the lock later and finds these lanes.
        if self.recurrence.checks() != 0 {
            self.force_slow_path();
        }
    }

    /// Makes every part check `Recurrence` before each message from now on.
    pub(super) fn force_slow_path(&self) {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().for_each(SharedLanes::force_slow_path);
    }

    /// Makes every part check its targets before it sends from now on: some sender must wait. Called under the engine's lock.
    #[cfg(feature = "net")]
    pub(crate) fn require_target_checks(&self) {
        self.recurrence.require_checks();
        self.force_slow_path();
    }

    /// Lets parts send without that check: no sender must wait any more. Called under the engine's lock.
    #[cfg(feature = "net")]
    pub(crate) fn skip_target_checks(&self) {
        if self.recurrence.skip_checks() {
            let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.iter().for_each(SharedLanes::allow_fast_path);
        }
    }
}
