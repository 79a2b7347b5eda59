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
use super::shared::TaskKey;
use crate::sync::{Ring, Waiting};

/// A private pipe.
pub(crate) struct Pipe {
    /// Deliveries, put in by whoever has the engine's lock, and taken out by the part: commands, and all else.
    urgent: Ring<Delivery>,
    normal: Ring<Delivery>,
    /// Notices for the part, each behind a number of deliveries; `has_notices` says whether there are any.
    notices: Mutex<VecDeque<(usize, Notice)>>,
    has_notices: AtomicBool,
    /// Something has ended that its part waits for besides.
    nudged: AtomicBool,
    /// Rung when something was put in.
    pub(crate) bell: Doorbell,
    /// The bell on which its part sleeps.
    pub(crate) sleeps_on: AtomicU8,
    /// The tasks that wait for something in it.
    pub(crate) tasks: Waiting<TaskKey>,
}

/// A notice for the part, in order with deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A stream has ended before its last segment.
    StreamBroken(NodeId, StreamNo),
    /// A node is out of reach.
    Failed(NodeId),
}

impl Pipe {
    pub(crate) const OWN_BELL: u8 = 0;
    /// As the leader.
    pub(crate) const NODES_BELL: u8 = 1;
    /// With other pipes.
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
            tasks: Waiting::default(),
        }
    }

    /// The next delivery of commands.
    ///
    /// # Safety
    /// As [`pull`](Self::pull).
    #[inline]
    pub(crate) unsafe fn pull_command(&self) -> Option<Delivery> {
        // SAFETY: only the part does so (contract).
        unsafe { self.urgent.pop() }
    }

    /// What has arrived next, commands aside.
    ///
    /// # Safety
    /// The caller is the part that has the pipe, or has it for that: nobody else takes anything out of it meanwhile.
    #[inline]
    pub(crate) unsafe fn pull(&self) -> Option<Arrival> {
        if self.has_notices.load(Ordering::Relaxed)
            && let Some(notice) = self.due_notice()
        {
            return Some(notice);
        }
        // SAFETY: only the part does so (contract).
        unsafe { self.normal.pop() }.map(Arrival::Piece)
    }

    /// The first notice, when all deliveries before it have been taken.
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

    /// Adds a notice behind the deliveries so far. A notice that is there already moves to the end, so that there are no more
    /// than nodes and streams even if they are not read. To be called under the engine's lock.
    fn notify(&self, notice: Notice) {
        let behind = self.normal.put();
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        notices.retain(|(_, other)| *other != notice);
        notices.push_back((behind, notice));
        self.has_notices.store(true, Ordering::Release);
    }

    /// The next delivery, commands first; what there is to know besides is forgotten.
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
        // Pairs with the store in `sleep` by the fences of the bells: that of the ring above stands between what was put in
        // and this load, that of the sleeper between its store and its last look into the pipe.
        match self.sleeps_on.load(Ordering::Relaxed) {
            Self::NODES_BELL => shared.bell.ring(),
            Self::SEVERALS_BELL => shared.several.ring(),
            _ => {}
        }
        shared.tasks.come(&self.tasks);
    }

    /// For the next part that gets the pipe: what there is to know was for the part before.
    pub(crate) fn forget_notices(&self) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.has_notices.store(false, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let nothing = self.normal.is_empty() && self.urgent.is_empty();
        nothing && !self.has_notices.load(Ordering::Acquire) && !self.nudged.load(Ordering::Acquire)
    }

    /// Whether its part was woken since the last time for something that does not come by the pipe.
    #[cfg(feature = "rapidio")]
    pub(crate) fn take_nudge(&self) -> bool {
        // Pairs with the store of whoever wakes it.
        self.nudged.load(Ordering::Relaxed) && self.nudged.swap(false, Ordering::Acquire)
    }
}

/// A part that sleeps now and then, for something that does not come by its pipe.
#[cfg(feature = "rapidio")]
pub(crate) struct Sleeper {
    shared: Weak<Shared>,
    pipe: PipeId,
    /// It sleeps or is about to. While this is `false`, it will look once more before it sleeps.
    sleeps: AtomicBool,
}

#[cfg(feature = "rapidio")]
impl Sleeper {
    pub(crate) fn new(shared: Weak<Shared>, pipe: PipeId) -> Self {
        Self { shared, pipe, sleeps: AtomicBool::new(false) }
    }

    /// Says that it will sleep, after one more look; whether that was said before.
    pub(crate) fn will_sleep(&self) -> bool {
        // The look takes a lock that whoever ends what it waits for has had before it wakes: one of them sees the other.
        self.sleeps.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_awake(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// Wakes it if it sleeps. What it waits for has ended.
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

/// The node's pipes as the engine sees them, and what it wants done after a poll.
pub(crate) struct Sink<'a> {
    pub(super) shared: &'a Shared,
    /// That of the part that polls, which looks into it next.
    pub(super) own: Option<&'a Pipe>,
    pub(super) flush_wanted: bool,
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
            self.shared.tasks.come(&pipe.tasks);
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
                self.look_around();
                return;
            }
            Event::PartsForgotten { .. } => {
                self.shared.recurrence.note(&event);
                self.shared.disturb_lanes();
                self.look_around();
                return;
            }
            Event::NodeDown { .. } => self.look_around(),
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
        self.shared.note(event);
    }
}

impl Sink<'_> {
    /// A part or a node has gone, or come: tasks that wait for a message look whether anybody is left who could send one.
    fn look_around(&self) {
        // They look under the engine's lock, so no fence is needed.
        self.shared.pipes.iter().for_each(|pipe| self.shared.tasks.come(&pipe.tasks));
    }

    /// No more comes from a node, nor from those that it is the relay of.
    fn failed(&self, node: NodeId) {
        let (settings, me) = (&self.shared.settings, self.shared.id);
        let relay = |from| settings.routing.relay(settings.nodes, settings.masters_there_are(), from, me);
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
        // SAFETY: nobody else has it.
        let next = || unsafe { pipe.pull() };
        assert!(matches!(next(), Some(Arrival::Failed(node)) if node == first));
        assert!(matches!(next(), Some(Arrival::Failed(node)) if node == second));
        assert!(matches!(next(), Some(Arrival::StreamBroken { number: StreamNo(7), .. })));
        assert!(next().is_none() && pipe.is_empty());
    }
}
