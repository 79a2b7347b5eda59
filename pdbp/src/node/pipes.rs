//! The private pipes of a node: one queue of deliveries each, from the engine to its part.
#![allow(
    unsafe_code,
    reason = "queues with one writer and one reader, which are the engine's lock and the part"
)]

use std::collections::VecDeque;
#[cfg(feature = "rapidio")]
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use pdbp_core::engine::{DeliveryKind, PrivatePipes};
use pdbp_core::id::{NodeId, PipeId, StreamNo};
use pdbp_core::inbox::Arrival;
use pdbp_core::{Delivery, Event};
use pdbp_local::Doorbell;

use super::Shared;
use super::tasks::TaskKey;
use crate::sync::{Ring, WakerList};

/// A private pipe.
pub(crate) struct Pipe {
    /// Deliveries, put in under the engine's lock and taken out by the part: commands, and everything else.
    urgent: Ring<Delivery>,
    normal: Ring<Delivery>,
    /// Notices for the part, each due after a number of deliveries; `has_notices` is set while there are any.
    notices: Mutex<VecDeque<(usize, Notice)>>,
    has_notices: AtomicBool,
    /// Set when something else that the part waits for has completed.
    nudged: AtomicBool,
    /// Rung when something was put in.
    pub(crate) bell: Doorbell,
    /// The bell on which its part sleeps.
    pub(crate) sleeps_on: AtomicU8,
    /// Tasks waiting for something in it.
    pub(crate) tasks: WakerList<TaskKey>,
}

/// A notice for the part, in order with deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A stream ended before its last segment.
    StreamBroken(NodeId, StreamNo),
    /// A node is unreachable.
    Failed(NodeId),
}

impl Pipe {
    pub(crate) const OWN_BELL: u8 = 0;
    /// The part sleeps on the node's bell, as the leader.
    pub(crate) const NODES_BELL: u8 = 1;
    /// The part sleeps on the bell of threads that wait for several pipes.
    pub(crate) const SEVERALS_BELL: u8 = 2;

    pub(crate) fn new(depth: usize) -> Self {
        Self {
            urgent: Ring::new(depth),
            normal: Ring::new(depth),
            notices: Mutex::default(),
            has_notices: AtomicBool::new(false),
            nudged: AtomicBool::new(false),
            bell: Doorbell::default(),
            sleeps_on: AtomicU8::new(Self::OWN_BELL),
            tasks: WakerList::default(),
        }
    }

    /// The next command.
    ///
    /// # Safety
    /// As [`pull`](Self::pull).
    #[inline]
    pub(crate) unsafe fn pull_command(&self) -> Option<Delivery> {
        // SAFETY: only the part does so (contract).
        unsafe { self.urgent.pop() }
    }

    /// The next arrival other than a command.
    ///
    /// # Safety
    /// The caller must be the part that owns the pipe, or act for it, and nobody else may take anything out of the pipe
    /// meanwhile.
    #[inline]
    pub(crate) unsafe fn pull(&self) -> Option<Arrival> {
        let mut notice = None;
        // Pairs with the stores of `true`, which come before the deliveries behind a notice.
        let is_noticed = || {
            notice = if self.has_notices.load(Ordering::Relaxed) { self.due_notice() } else { None };
            notice.is_some()
        };
        // SAFETY: only the part does so (contract).
        let delivery = unsafe { self.normal.pop_unless(is_noticed) };
        notice.or(delivery.map(Arrival::Piece))
    }

    /// The first notice, once all deliveries before it have been taken.
    #[cold]
    fn due_notice(&self) -> Option<Arrival> {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.normal.taken();
        notices.front().filter(|(behind, _)| taken.wrapping_sub(*behind) <= usize::MAX / 2)?;
        let (_, notice) = notices.pop_front()?;
        self.has_notices.store(!notices.is_empty(), Ordering::Release);
        Some(match notice {
            Notice::StreamBroken(source, number) => Arrival::StreamBroken { source, number },
            Notice::Failed(node) => Arrival::Failed(node),
        })
    }

    /// Adds a notice behind the deliveries so far. A repeated notice of a failed node moves to the end. One of a broken stream stays
    /// if something has been delivered since: a node that was restarted may have begun another stream of the same number behind it. So
    /// unread notices never outnumber nodes, streams and deliveries. Called under the engine's lock.
    fn notify(&self, notice: Notice) {
        let behind = self.normal.put();
        let moves = matches!(notice, Notice::Failed(_));
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        notices.retain(|(at, other)| *other != notice || !moves && *at != behind);
        notices.push_back((behind, notice));
        self.has_notices.store(true, Ordering::Release);
    }

    /// The next delivery, commands first; notices are dropped.
    ///
    /// # Safety
    /// As [`pull`](Self::pull).
    pub(crate) unsafe fn next_delivery(&self) -> Option<Delivery> {
        // SAFETY: only the caller takes anything out (contract).
        if let Some(delivery) = unsafe { self.pull_command() } {
            return Some(delivery);
        }
        loop {
            // SAFETY: as above.
            if let Arrival::Piece(delivery) = unsafe { self.pull() }? {
                return Some(delivery);
            }
        }
    }

    /// Wakes the part that reads the pipe, after something was put in.
    fn ring(&self, shared: &Shared) {
        self.bell.ring();
        // Pairs with the store in `sleep` through the fences of the bells: the fence of the ring above lies between what was
        // put in and this load, and that of the sleeper between its store and its last look into the pipe.
        match self.sleeps_on.load(Ordering::Relaxed) {
            Self::NODES_BELL => shared.bell.ring(),
            Self::SEVERALS_BELL => shared.several.ring(),
            _ => {}
        }
        shared.tasks.mark_due(&self.tasks);
    }

    /// Drops the notices and the nudge, which were for the previous owner of the pipe.
    pub(crate) fn forget_notices(&self) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.has_notices.store(false, Ordering::Release);
        self.nudged.store(false, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let nothing = self.normal.is_empty() && self.urgent.is_empty();
        nothing && !self.has_notices.load(Ordering::Acquire) && !self.nudged.load(Ordering::Acquire)
    }

    /// Whether the part was woken since the last call by something outside its pipe.
    #[cfg(feature = "rapidio")]
    pub(crate) fn take_nudge(&self) -> bool {
        // Pairs with the store in `Sleeper::wake`.
        self.nudged.load(Ordering::Relaxed) && self.nudged.swap(false, Ordering::Acquire)
    }
}

/// A part that sometimes sleeps until something outside its pipe happens.
#[cfg(feature = "rapidio")]
pub(crate) struct Sleeper {
    shared: Weak<Shared>,
    pipe: PipeId,
    /// Set while the part sleeps or is about to. While this is `false`, the part will look once more before it sleeps.
    sleeps: AtomicBool,
}

#[cfg(feature = "rapidio")]
impl Sleeper {
    pub(crate) fn new(shared: Weak<Shared>, pipe: PipeId) -> Self {
        Self { shared, pipe, sleeps: AtomicBool::new(false) }
    }

    /// Announces that the part will sleep after one more look. Returns whether that was announced before.
    pub(crate) fn will_sleep(&self) -> bool {
        // The look takes a lock that a waker has held before it calls `wake`, so one of the two sees the other.
        self.sleeps.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_awake(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// Wakes the part if it sleeps: what it waits for has happened.
    pub(crate) fn wake(&self) {
        if self.sleeps.load(Ordering::Relaxed)
            && let Some(shared) = self.shared.upgrade()
            && let Some(pipe) = shared.pipes.get(usize::from(self.pipe.0))
        {
            pipe.nudged.store(true, Ordering::Release);
            pipe.ring(&shared);
        }
    }
}

/// The node's pipes as the engine sees them, and the work left after a poll.
pub(crate) struct Sink<'a> {
    pub(super) shared: &'a Shared,
    /// The pipe of the polling part, which checks the pipe next.
    pub(super) own: Option<&'a Pipe>,
    pub(super) flush_wanted: bool,
    /// Whether the master has answered a request.
    pub(super) has_answer: bool,
}

impl PrivatePipes for Sink<'_> {
    fn deliver(&mut self, pipe: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        let Some(pipe) = self.shared.pipes.get(usize::from(pipe.0)) else { return Err(delivery) };
        let urgent = matches!(delivery.kind(), DeliveryKind::Messages { urgent: true });
        let ring = if urgent { &pipe.urgent } else { &pipe.normal };
        // SAFETY: a sink is used under the engine's lock, and nothing else puts deliveries in.
        unsafe { ring.push(delivery) }?;
        if self.own.is_some_and(|own| std::ptr::eq(own, pipe)) {
            // A part that polls does not sleep.
            self.shared.tasks.mark_due(&pipe.tasks);
        } else {
            pipe.ring(self.shared);
        }
        Ok(())
    }

    fn event(&mut self, event: Event) {
        if let Some(trace) = &self.shared.trace {
            trace.event(&event);
        }
        match &event {
            Event::FlushWanted => {
                self.flush_wanted = true;
                return;
            }
            Event::Changed { .. } => {
                self.has_answer = true;
                self.shared.wake_all_readers();
                return;
            }
            Event::PartsForgotten { recurrence } => {
                self.shared.recurrence.on_parts_forgotten(*recurrence);
                if *recurrence != 0 {
                    self.shared.force_slow_path();
                }
                self.shared.wake_all_readers();
                return;
            }
            Event::NodeDown { .. } => self.shared.wake_all_readers(),
            Event::StreamBroken { mapping } => {
                if let Some(pipe) = self.shared.pipes.get(usize::from(mapping.pipe.0)) {
                    pipe.notify(Notice::StreamBroken(mapping.source, mapping.number));
                    pipe.ring(self.shared);
                }
            }
            Event::LinkEnded { peer } => {
                self.failed(*peer);
                return;
            }
            _ => {}
        }
        self.shared.record_event(event);
    }
}

impl<'a> Sink<'a> {
    pub(super) fn new(shared: &'a Shared, own: Option<&'a Pipe>) -> Self {
        Self { shared, own, flush_wanted: false, has_answer: false }
    }

    /// Notifies all pipes that nothing more comes from a node, nor from the nodes behind it if it is a relay.
    fn failed(&self, node: NodeId) {
        let (settings, me) = (&self.shared.settings, self.shared.id);
        let relay = |from| settings.routing.relay(settings.nodes, settings.master_count(), from, me);
        let nodes = (0..settings.nodes).filter_map(NodeId::new);
        let silent = nodes.filter(|from| *from == node || relay(*from) == Some(node));
        for (from, pipe) in silent.flat_map(|from| self.shared.pipes.iter().map(move |pipe| (from, pipe))) {
            pipe.notify(Notice::Failed(from));
            pipe.ring(self.shared);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reads_is_noted_once() {
        let pipe = Pipe::new(4);
        let [first, second] = [1, 2].map(|n| NodeId::new(n).unwrap());
        for _ in 0..1000 {
            pipe.notify(Notice::Failed(first));
            pipe.notify(Notice::Failed(second));
            pipe.notify(Notice::StreamBroken(first, StreamNo(7)));
        }
        assert_eq!(pipe.notices.lock().unwrap().len(), 3);
        // SAFETY: only this test uses the pipe.
        let next = || unsafe { pipe.pull() };
        assert!(matches!(next(), Some(Arrival::Failed(node)) if node == first));
        assert!(matches!(next(), Some(Arrival::Failed(node)) if node == second));
        assert!(matches!(next(), Some(Arrival::StreamBroken { number: StreamNo(7), .. })));
        assert!(next().is_none() && pipe.is_empty());
    }

    #[test]
    fn a_stream_is_broken_ahead_of_what_came_later() {
        let pipe = Pipe::new(4);
        let (node, broken) =
            (NodeId::new(1).unwrap(), Notice::StreamBroken(NodeId::new(1).unwrap(), StreamNo(1)));
        pipe.notify(Notice::Failed(node));
        pipe.notify(broken);
        // As if a stream of the same number had begun since.
        pipe.notices.lock().unwrap().iter_mut().for_each(|(behind, _)| *behind = behind.wrapping_sub(1));
        pipe.notify(broken);
        pipe.notify(Notice::Failed(node));
        let kinds: Vec<_> = pipe.notices.lock().unwrap().iter().map(|(_, notice)| *notice).collect();
        assert_eq!(kinds, [broken, broken, Notice::Failed(node)]);
    }
}
