//! The task set: tasks that can be handed out, in hand-out order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::Origin;
use crate::wire::TaskId;

/// By priority; within a priority, tasks that others have added or unlocked come before new ones, the latest first, so that few are begun at a
/// time and memory stays small.
#[derive(Clone, Debug, Default)]
pub(super) struct Ready {
    queues: BTreeMap<Reverse<i16>, Queue>,
    /// Includes cancelled tasks not yet skipped.
    count: usize,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    unlocked: Vec<TaskId>,
    new: VecDeque<TaskId>,
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn push_new(&mut self, priority: i16, task: TaskId) {
        self.queues.entry(Reverse(priority)).or_default().new.push_back(task);
        self.count += 1;
    }

    pub(super) fn push_unlocked(&mut self, priority: i16, task: TaskId) {
        self.queues.entry(Reverse(priority)).or_default().unlocked.push(task);
        self.count += 1;
    }

    /// Puts a task back at the front of its queue.
    pub(super) fn push_front(&mut self, priority: i16, task: TaskId, came: Origin) {
        let queue = self.queues.entry(Reverse(priority)).or_default();
        match came {
            Origin::New => queue.new.push_front(task),
            Origin::Unlocked => queue.unlocked.push(task),
        }
        self.count += 1;
    }

    /// Returns the next task that `exists`, and discards those before it that do not.
    pub(super) fn peek(&mut self, exists: impl Fn(TaskId) -> bool) -> Option<TaskId> {
        while let Some(mut first) = self.queues.first_entry() {
            let queue = first.get_mut();
            let Some(next) = queue.unlocked.last().or(queue.new.front()).copied() else {
                first.remove();
                continue;
            };
            if exists(next) {
                return Some(next);
            }
            self.pop();
        }
        None
    }

    /// Removes the tasks for which `exists` does not hold.
    pub(super) fn retain(&mut self, exists: impl Fn(TaskId) -> bool) {
        for queue in self.queues.values_mut() {
            queue.unlocked.retain(|task| exists(*task));
            queue.new.retain(|task| exists(*task));
        }
        self.queues.retain(|_, queue| !queue.unlocked.is_empty() || !queue.new.is_empty());
        self.count = self.queues.values().map(|queue| queue.unlocked.len() + queue.new.len()).sum();
    }

    /// Takes the task that `peek` has returned.
    pub(super) fn pop(&mut self) -> Option<(TaskId, Origin)> {
        let mut first = self.queues.first_entry()?;
        let queue = first.get_mut();
        let unlocked = queue.unlocked.pop().map(|task| (task, Origin::Unlocked));
        let task = unlocked.or_else(|| queue.new.pop_front().map(|task| (task, Origin::New)))?;
        self.count -= 1;
        Some(task)
    }
}
