//! What tasks wait for at a node, and how they are woken.

use std::sync::atomic::{Ordering, fence};
use std::task::Waker;

use pdbp_core::id::{NodeId, StreamNo};

use super::shared::NodeEngine;
use super::{Pipe, Shared};
use crate::part::Target;
use crate::sync::WakerList;

/// A waiting task: its part, and what it waits for.
pub(crate) type TaskKey = (Target, Awaited);

/// The room that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    None,
    /// Anything that happens at this node may make it.
    Any,
    /// In a row that [was full](super::full_rows::FullRows::mark_full).
    InRow,
}

/// What a task waits for. Tasks of one part that wait for the same thing count as one: only the last one is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    Message,
    Stream,
    Ready,
    Room,
    /// A segment of a stream being read, from this node.
    Segment(NodeId, StreamNo),
    /// Room for a stream being written.
    Writer(StreamNo),
}

/// Tasks that wait for something else than what arrives in a pipe.
#[derive(Default)]
pub(super) struct Waiters {
    /// For anything to happen at this node, since that may make room.
    room: WakerList<TaskKey>,
    /// For room in a row that was full.
    row: WakerList<TaskKey>,
}

impl Shared {
    /// Wakes those that wait for anything to happen. No fence is needed, since they look once more under the engine's lock.
    #[inline]
    pub(super) fn wake_waiters(&self) {
        self.tasks.mark_due(&self.waiters.room);
        if !self.full_rows.are_any() {
            // A task that had just found room when it was registered is still on this list.
            self.tasks.mark_due(&self.waiters.row);
        }
    }

    /// Wakes the tasks that wait for a message, since a part or node has come or gone: they check whether anybody is left to
    /// send one. Called under the engine's lock.
    pub(crate) fn wake_all_readers(&self) {
        // The tasks check under the engine's lock, so no fence is needed.
        self.pipes.iter().for_each(|pipe| self.tasks.mark_due(&pipe.tasks));
    }

    #[inline]
    pub(super) fn update_rows(&self, engine: &NodeEngine) {
        if self.full_rows.update(engine) {
            self.wake_row_waiters();
        }
    }

    /// Lets parts that found no room in the row to a node look again: it has room now in a block that they share.
    pub(super) fn renew_row(&self, node: NodeId) {
        self.full_rows.renew(node);
        self.wake_row_waiters();
    }

    #[cold]
    fn wake_row_waiters(&self) {
        // Pairs with that in `Tasks::wait_on`: either the task is on the list, or it sees that its row has room.
        fence(Ordering::SeqCst);
        self.tasks.mark_due(&self.waiters.row);
    }

    /// Registers a task. It must look once more afterwards. Wakes the progress thread to poll for it, unless the task `is_led` by another.
    pub(crate) fn register_waker(
        &self,
        waits: (Option<&Pipe>, Room),
        key: TaskKey,
        waker: &Waker,
        is_led: bool,
    ) {
        let pipe = waits.0.map(|pipe| &pipe.tasks);
        let room = match waits.1 {
            Room::None => None,
            Room::Any => Some(&self.waiters.room),
            Room::InRow => Some(&self.waiters.row),
        };
        let mut unwatched = false;
        for list in pipe.into_iter().chain(room) {
            unwatched |= self.tasks.wait_on(list, key, waker.clone(), is_led);
        }
        // A leader wakes a progress thread that is off duty when its wait ends.
        if unwatched && !self.off_duty.load(Ordering::Relaxed) {
            self.unpark_driver();
        }
    }

    /// Whether several tasks wait for room in full rows.
    pub(crate) fn have_several_row_waiters(&self) -> bool {
        self.waiters.row.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, PartKind, Progress};

    #[test]
    fn a_task_that_found_room_as_it_was_registered_is_forgotten() {
        let cluster = Cluster::builder().nodes(1).progress(Progress::Host).start().unwrap();
        let node = &cluster.nodes()[0];
        let part = node.register("part", PartKind::Cpu).unwrap();
        let key = (part.id(), Awaited::Room);
        node.shared.register_waker((None, Room::InRow), key, Waker::noop(), false);
        assert!(node.shared.tasks.has_waiting());
        part.send(part.id(), b"something happens").unwrap();
        part.flush();
        (0..10).for_each(|_| _ = node.poll());
        assert!(!node.shared.tasks.has_waiting());
    }
}
