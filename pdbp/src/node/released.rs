//! What readers are done with, on its way to the engine.

use std::sync::atomic::Ordering;

#[cfg(feature = "cuda")]
use pdbp_core::Delivery;
use pdbp_core::engine::RoomToken;

use super::{NodeEngine, Shared};
use crate::part::{Run, Runs};
use crate::sync::{Last, Stack};

/// Deliveries that nobody reads any more, in the memory of those who did.
#[derive(Default)]
pub(super) struct Released(Stack<Run>);

impl Released {
    /// Gives the engine what has come, and the memory to the part that polls.
    #[inline]
    pub(super) fn release(&self, engine: &mut NodeEngine, runs: Option<&Runs>) {
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
    /// Takes what a reader is done with, for the engine.
    pub(crate) fn give_back(&self, run: Last<Run>) {
        self.released.0.push(run);
        self.disturb_nap();
    }

    /// Takes a delivery that was not shared, for the engine.
    #[cfg(feature = "cuda")]
    pub(crate) fn release(&self, delivery: Delivery) {
        self.give_back(Last::new(Run::returning(delivery)));
    }

    /// Takes back the room of a long message.
    pub(crate) fn give_room(&self, room: RoomToken) {
        if let Err(room) = self.rooms.push(room) {
            self.engine_within().give_room(room);
        }
        self.disturb_nap();
    }

    /// Something waits for the next poll, and nobody who knows of it may poll soon. Without a fence: what is not seen is late by a nap at most.
    fn disturb_nap(&self) {
        if self.naps.load(Ordering::Relaxed) {
            self.bell.ring();
        }
    }
}
