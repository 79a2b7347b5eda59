//! The private pipes of a node: one queue of deliveries each, from the engine to its part.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crossbeam_queue::ArrayQueue;
use pdbp_core::engine::{DeliveryKind, PrivatePipes};
use pdbp_core::id::{NodeId, PipeId, StreamNo};
use pdbp_core::{Delivery, Event};
use pdbp_local::Doorbell;

use super::Shared;

/// A private pipe.
pub(crate) struct Pipe {
    pub(crate) urgent: ArrayQueue<Delivery>,
    pub(crate) normal: ArrayQueue<Delivery>,
    /// Streams that ended with their node; `has_broken` says whether there are any.
    pub(crate) broken: Mutex<Vec<(NodeId, StreamNo)>>,
    pub(crate) has_broken: AtomicBool,
    /// Rung when something was put in.
    pub(crate) bell: Doorbell,
    /// Its part sleeps on the node's bell instead, as the leader.
    pub(crate) leads: AtomicBool,
}

impl Pipe {
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            urgent: ArrayQueue::new(depth),
            normal: ArrayQueue::new(depth),
            broken: Mutex::default(),
            has_broken: AtomicBool::new(false),
            bell: Doorbell::default(),
            leads: AtomicBool::new(false),
        }
    }

    /// Wakes the part that reads the pipe, after something was put in.
    fn ring(&self, shared: &Shared) {
        self.bell.ring();
        // Pairs with the store in `sleep` by the fences of the bells: that of the ring above stands between what was put in
        // and this load, that of the sleeper between its store and its last look into the pipe.
        if self.leads.load(Ordering::Relaxed) {
            shared.bell.ring();
        }
    }

    /// For the next part that gets the pipe: what it had of broken streams was for the part before.
    pub(crate) fn forget_broken(&self) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.has_broken.store(false, Ordering::Release);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.normal.is_empty() && self.urgent.is_empty() && !self.has_broken.load(Ordering::Acquire)
    }
}

/// The node's pipes as the engine sees them, and what it wants done after a poll.
pub(crate) struct Sink<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) flush_wanted: bool,
}

impl PrivatePipes for Sink<'_> {
    fn deliver(&mut self, pipe: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        let Some(pipe) = self.shared.pipes.get(usize::from(pipe.0)) else { return Err(delivery) };
        let urgent = matches!(delivery.kind(), DeliveryKind::Messages { urgent: true });
        if urgent { &pipe.urgent } else { &pipe.normal }.push(delivery)?;
        pipe.ring(self.shared);
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
            Event::Changed { .. } => return,
            Event::PartsForgotten { .. } => {
                self.shared.recurrence.note(&event);
                return;
            }
            Event::StreamBroken { mapping } => {
                if let Some(pipe) = self.shared.pipes.get(usize::from(mapping.pipe.0)) {
                    let entry = (mapping.source, mapping.number);
                    pipe.broken.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
                    pipe.has_broken.store(true, Ordering::Release);
                    pipe.ring(self.shared);
                }
            }
            _ => {}
        }
        self.shared.note(event);
    }
}
