//! Nodes on which all fails while tasks of others go well: a file system that is not there, say. Such a node would eat a job, since failures are quick. It is given
//! one task at a time, after pauses that grow, until one of them goes well.
//!
//! And processors that are written off: they have not ended a task long after its limit, and nobody can stop a function.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{Pool, Processor};

/// The first pause, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Failures of a node since a task of it went well.
#[derive(Clone, Copy, Debug)]
struct Row {
    failures: u32,
    /// Tasks of all nodes that had gone well, and that had failed, before it.
    before: (u64, u64),
    pause: Duration,
    /// Until when it is given nothing.
    until: Duration,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Trouble {
    rows: HashMap<u16, Row>,
    /// Tasks that have gone well, and that have failed.
    ended: (u64, u64),
    /// With the limits of the tasks that they have not ended.
    written_off: BTreeMap<Processor, Duration>,
}

impl Trouble {
    /// Nothing is known of processors that are gone.
    pub(super) fn forget_processors(&mut self, is_gone: impl Fn(Processor) -> bool) {
        self.written_off.retain(|processor, _| !is_gone(*processor));
    }

    /// A processor has not ended a task long after this limit: it is given nothing until it says something.
    pub(super) fn write_off(&mut self, processor: Processor, limit: Duration) {
        self.written_off.insert(processor, limit);
    }

    /// A processor says something.
    pub(super) fn hear(&mut self, processor: Processor) {
        if !self.written_off.is_empty() {
            self.written_off.remove(&processor);
        }
    }

    /// Nothing is known of a node that is gone: its number may be another's next.
    pub(super) fn forget(&mut self, node: u16) {
        self.rows.remove(&node);
    }
}

impl Row {
    /// Whether it is the node's fault, as far as anybody can tell: others do not fail as often as they go well.
    fn is_trouble(&self, most: u32, (well, failed): (u64, u64)) -> bool {
        let others_well = well - self.before.0;
        let others_failed = (failed - self.before.1).saturating_sub(self.failures.into());
        self.failures >= most && others_well > 0 && others_well >= others_failed
    }
}

impl Pool {
    /// A task of a node has ended well.
    pub(super) fn note_well(&mut self, node: u16) {
        self.trouble.ended.0 += 1;
        if !self.trouble.rows.is_empty() && self.trouble.rows.remove(&node).is_some() {
            self.stir();
        }
    }

    /// A task of a node has failed.
    pub(super) fn note_trouble(&mut self, node: u16) {
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

    /// How many tasks a node may be given at a time, with some of its processors busy; `None`: any number.
    pub(super) fn most_in_trouble(&self, now: Duration, node: u16) -> Option<usize> {
        let row = self.trouble.rows.get(&node).filter(|row| row.pause > Duration::ZERO)?;
        let is_busy = self.nodes.get(node).is_some_and(super::nodes::Room::is_busy);
        Some(usize::from(now >= row.until && !is_busy))
    }

    /// Whether a node waits that has asked.
    pub(super) fn has_trouble(&self) -> bool {
        !self.trouble.rows.is_empty() && !self.parked.is_empty()
    }

    /// A pause may be over.
    pub(super) fn look_at_trouble(&mut self, now: Duration) {
        if self.trouble.rows.values().any(|row| row.pause > Duration::ZERO && now >= row.until) {
            self.stir();
        }
    }

    /// Nodes that are given one task at a time since theirs fail, processors that do not end a task, and jobs whose results wait to be read, in lines
    /// for people.
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
