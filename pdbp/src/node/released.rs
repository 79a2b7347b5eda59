//! Deliveries and space that readers have released, on their way back to the engine.

use std::sync::atomic::Ordering;

#[cfg(feature = "cuda")]
use pdbp_core::Delivery;
use pdbp_core::engine::RoomToken;

use super::{NodeEngine, Shared};
use crate::part::{Run, Runs};
use crate::sync::{Last, Stack};

/// Deliveries that have no readers left, in the memory of the runs that held them.
#[derive(Default)]
pub(super) struct Released(Stack<Run>);

impl Released {
    /// Returns released deliveries to the engine, and their memory to the polling part.
    #[inline]
    pub(super) fn release(&self, engine: &mut NodeEngine, runs: Option<&Runs>) {
        if !self.0.is_empty() {
            self.release_all(engine, runs);
        }
    }

    #[inline(never)]
    fn release_all(&self, engine: &mut NodeEngine, runs: Option<&Runs>) {
        let mut released = self.0.take();
        while let Some(mut run) = released.pop() {
            if let Some(delivery) = run.take_delivery() {
                engine.release(delivery);
            }
            if let Some(runs) = runs {
                runs.put(run);
            }
        }
    }
}

impl Shared {
    /// Takes back a delivery from its last reader, for the engine.
    pub(crate) fn return_delivery(&self, run: Last<Run>) {
        self.released.0.push(run);
        self.cut_nap_short();
    }

    /// Takes back an unshared delivery, for the engine.
    #[cfg(feature = "cuda")]
    pub(crate) fn release(&self, delivery: Delivery) {
        self.return_delivery(Last::new(Run::returning(delivery)));
    }

    /// Takes back the space of a long message.
    pub(crate) fn return_room(&self, room: RoomToken) {
        if let Err(room) = self.rooms.push(room) {
            self.engine_without_wakes().release_room(room);
        }
        self.cut_nap_short();
    }

    /// Cuts a long nap short, since something waits for the next poll and no thread that knows of it may poll soon. No fence: if
    /// the sleeper misses this, the wait is one nap at most.
    fn cut_nap_short(&self) {
        if self.is_napping.load(Ordering::Relaxed) {
            self.bell.ring();
        }
    }
}
