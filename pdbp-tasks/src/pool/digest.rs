//! The state of a pool as text, by which tests recognise states they have seen: without counts, ever-growing numbers and times.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Pool, Waits};

impl Pool {
    pub(crate) fn digest(&self) -> String {
        let mut text = String::new();
        let mut turns: Vec<u64> =
            self.table.rows().flat_map(|row| row.holders().map(|holder| holder.turn)).collect();
        turns.sort_unstable();
        for row in self.table.rows() {
            let of = |turn: u64| turns.iter().position(|other| *other == turn);
            let held: Vec<_> = row.holders().map(|h| (h.processor, h.attempt, of(h.turn))).collect();
            write!(text, "{:?}{held:?}{}", row.task, row.copied).expect("memory");
        }
        let known: BTreeMap<_, _> = self.processors.iter().collect();
        for (processor, known) in known {
            let waits = match known.waits {
                Waits::No => 0,
                Waits::Asking => 1,
                Waits::Parked(_) => 2,
            };
            write!(text, "{processor:?}{}{}{waits}{:?}", known.room, known.held, known.share)
                .expect("memory");
        }
        let is_parked = |at: &&(super::Processor, u64)| {
            self.processors.get(&at.0).is_some_and(|known| known.waits == Waits::Parked(at.1))
        };
        let parked: Vec<_> =
            self.parked.iter().filter(is_parked).map(|at| (at.0, at.1 <= self.reconsider)).collect();
        let blame: BTreeMap<_, _> = self.blame.iter().collect();
        let means: Vec<_> = self.kinds.iter().map(|kind| kind.mean().is_some()).collect();
        write!(text, "{:?}{:?}{:?}{:?}", self.tasks, self.asking, parked, blame).expect("memory");
        write!(text, "{:?}{:?}{means:?}{}", self.notices, self.lanes.text(), self.nodes.text())
            .expect("memory");
        for job in self.jobs.values() {
            let kept: BTreeMap<_, _> = job.kept.iter().collect();
            write!(text, "{}{kept:?}{:?}{:?}", job.live, job.outcomes, job.aside).expect("memory");
        }
        if let Some(journal) = &self.journal {
            text.push_str(&journal.digest());
        }
        text
    }
}
