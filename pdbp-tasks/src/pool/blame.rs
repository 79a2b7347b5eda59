//! Works out which task killed a node.
//!
//! When a node is lost, the oldest unsubmitted task of each of its processors becomes *suspect*: it was running, or one whose result did not
//! arrive. A suspect is handed out with nothing behind it and as the only suspect of its node; after a second death it has a node for itself.
//! Only deaths of nodes that held this task and nothing else count, so tasks that share a node with the culprit are never punished for it; after
//! [`Limits::crashes`](super::Limits::crashes) of those the task is given up. A node that leaves voluntarily is not a death, and one that returns
//! with what it runs has not died.

use super::lanes::Isolation;
use super::{Flaw, Pool, TaskError};
use crate::wire::TaskId;

/// The deaths attributed to a task.
#[derive(Clone, Debug, Default)]
pub(super) struct Blame {
    deaths: u32,
    /// Nodes that died while they held nothing else.
    nodes: Vec<u16>,
}

impl Pool {
    /// Marks the suspects of a node that has died.
    pub(super) fn blame(&mut self, node: u16) {
        let running = self.running();
        let holds = self.table.rows().flat_map(|row| {
            let held = row.holders().filter(|holder| holder.processor.node == node);
            let running = &running;
            held.map(move |holder| (row.task, running.get(&holder.processor) == Some(&holder.turn)))
        });
        let held: Vec<_> = holds.collect();
        let is_alone = held.len() == 1 || self.has(Flaw::BlamesAll);
        for (task, _) in held.into_iter().filter(|(_, is_oldest)| *is_oldest) {
            let blame = self.blame.entry(task).or_default();
            blame.deaths += 1;
            if is_alone {
                blame.nodes.push(node);
            }
        }
    }

    /// Takes back one death: the processor thought dead still runs the task, and only its link was lost.
    pub(super) fn acquit(&mut self, task: TaskId) {
        let Some(blame) = self.blame.get_mut(&task) else { return };
        blame.deaths = blame.deaths.saturating_sub(1);
        blame.nodes.pop();
        if blame.deaths == 0 {
            self.blame.remove(&task);
        }
    }

    /// How a task is isolated at its next hand-out.
    pub(super) fn isolation(&self, task: TaskId) -> Isolation {
        match self.blame.get(&task).map_or(0, |blame| blame.deaths) {
            0 => Isolation::None,
            1 => Isolation::Processor,
            _ => Isolation::Node,
        }
    }

    /// Why a task is given up, if it is.
    pub(super) fn verdict(&self, task: TaskId) -> Option<TaskError> {
        let blame = self.blame.get(&task).filter(|blame| blame.nodes.len() >= self.limits.crashes.max(1))?;
        Some(TaskError::Crashed { nodes: blame.nodes.clone() })
    }
}
