//! Nodes on which every task fails while those of others succeed, because of a missing file system, say. Since failures are quick, such a node
//! would consume a whole job. It is given one task at a time, after growing pauses, until one succeeds.
//!
//! Also processors that are written off because they have not ended a task long after its limit; nobody can stop a function.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{Pool, Processor};

/// The first pause, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Failures of a node since one of its tasks last succeeded.
#[derive(Clone, Copy, Debug)]
struct Row {
    failures: u32,
    /// Tasks of all nodes that had succeeded and failed before that.
    before: (u64, u64),
    pause: Duration,
    /// It is given nothing until then.
    until: Duration,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Trouble {
    rows: HashMap<u16, Row>,
    /// Tasks that have succeeded, and that have failed.
    ended: (u64, u64),
    /// With the limits of the tasks that they have not ended.
    written_off: BTreeMap<Processor, Duration>,
}

impl Trouble {
    /// Forgets processors that are gone.
    pub(super) fn forget_processors(&mut self, is_gone: impl Fn(Processor) -> bool) {
        self.written_off.retain(|processor, _| !is_gone(*processor));
    }

    /// Writes off a processor that has not ended a task long after this limit: it is given nothing until it reports again.
    pub(super) fn write_off(&mut self, processor: Processor, limit: Duration) {
        self.written_off.insert(processor, limit);
    }

    /// Restores a processor that has reported.
    pub(super) fn record_sign_of_life(&mut self, processor: Processor) {
        if !self.written_off.is_empty() {
            self.written_off.remove(&processor);
        }
    }

    /// Forgets a node that is gone: its number may be reused.
    pub(super) fn forget(&mut self, node: u16) {
        self.rows.remove(&node);
    }
}

impl Row {
    /// Whether the node itself is likely at fault: elsewhere at least as many tasks succeed as fail.
    fn is_trouble(&self, most: u32, (well, failed): (u64, u64)) -> bool {
        let others_well = well - self.before.0;
        let others_failed = (failed - self.before.1).saturating_sub(self.failures.into());
        self.failures >= most && others_well > 0 && others_well >= others_failed
    }
}

impl Pool {
    /// Notes that a task of a node has succeeded.
    pub(super) fn record_node_success(&mut self, node: u16) {
        self.trouble.ended.0 += 1;
        if !self.trouble.rows.is_empty() && self.trouble.rows.remove(&node).is_some() {
            self.reconsider_parked();
        }
    }

    /// Notes that a task of a node has failed.
    pub(super) fn record_node_failure(&mut self, node: u16) {
        let Trouble { rows, ended, .. } = &mut self.trouble;
        let new = Row { failures: 0, before: *ended, pause: Duration::ZERO, until: Duration::ZERO };
        let row = rows.entry(node).or_insert(new);
        row.failures = row.failures.saturating_add(1);
        ended.1 += 1;
        if row.is_trouble(self.limits.failures, *ended) {
            row.pause = (2 * row.pause).clamp(PAUSE.0, PAUSE.1);
            row.until = self.clock + row.pause;
        }
    }

    /// The most tasks that a node may be given at a time, also if some of its processors are busy; `None`: no limit.
    pub(super) fn most_in_trouble(&self, now: Duration, node: u16) -> Option<usize> {
        let row = self.trouble.rows.get(&node).filter(|row| row.pause > Duration::ZERO)?;
        let is_busy = self.nodes.get(node).is_some_and(super::nodes::Room::is_busy);
        Some(usize::from(now >= row.until && !is_busy))
    }

    /// Whether some node has failures while processors are on standby.
    pub(super) fn has_trouble(&self) -> bool {
        !self.trouble.rows.is_empty() && !self.parked.is_empty()
    }

    /// Reconsiders standby processors when a pause has ended.
    pub(super) fn end_pauses(&mut self, now: Duration) {
        if self.trouble.rows.values().any(|row| row.pause > Duration::ZERO && now >= row.until) {
            self.reconsider_parked();
        }
    }

    /// One line for each current trouble: nodes that are given one task at a time since theirs fail, processors that do not end a task, and jobs
    /// whose results wait to be read.
    pub fn troubles(&self) -> Vec<String> {
        let mut rows: Vec<_> =
            self.trouble.rows.iter().filter(|(_, row)| row.pause > Duration::ZERO).collect();
        rows.sort_unstable_by_key(|(node, _)| **node);
        let line = |(node, row): (&u16, &Row)| {
            format!(
                "node{node} is given one task at a time, after pauses: its last {} have failed, while those of other nodes went well; what does it lack?",
                row.failures
            )
        };
        let written_off = self.trouble.written_off.iter().map(|(processor, limit)| {
            format!(
                "{processor} has not ended a task long after its limit of {limit:?}, and is given nothing until it does; if its function hangs, end its process"
            )
        });
        rows.into_iter().map(line).chain(written_off).chain(self.held_back()).collect()
    }
}
