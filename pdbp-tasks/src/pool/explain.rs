//! Explains to people why a task is where it is.

use std::fmt::Write;

use crate::wire::Name;

use super::tasks::{Entry, State};
use super::{JobId, Pool};

/// The most running tasks that are listed.
const SOME: usize = 8;

impl Pool {
    /// Describes the tasks of a job that are not over.
    pub(crate) fn explain(&self, job: JobId) -> String {
        let (mut waiting, mut lanes, mut running) = (0u64, Vec::<(super::LaneId, u64)>::new(), Vec::new());
        for task in self.tasks.of_job(job) {
            let Some(entry) = self.tasks.get(task) else { continue };
            match entry.state {
                State::Waiting { .. } => waiting += 1,
                State::Scheduled { row } if self.table.get(row).is_some_and(super::table::Row::is_held) => {
                    running.push(entry);
                }
                _ => match lanes.iter_mut().find(|(lane, _)| *lane == entry.lane) {
                    Some((_, count)) => *count += 1,
                    None => lanes.push((entry.lane, 1)),
                },
            }
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        if waiting > 0 {
            let _ = writeln!(text, "{waiting} wait for others, or for the journal");
        }
        for (lane, count) in lanes {
            let _ = writeln!(text, "{count} could run: {}", self.explain_lane(lane));
        }
        if !running.is_empty() {
            let _ = writeln!(text, "{} are with processors", running.len());
        }
        for entry in running.iter().take(SOME) {
            let _ = writeln!(text, "  {} {}", super::name_of(entry), self.explain_entry(entry));
        }
        text
    }

    /// Why a task is not over; `None`: the pool has no task of this name.
    pub(crate) fn explain_task(&self, name: Name) -> Option<String> {
        Some(self.explain_entry(self.tasks.get(self.named(name)?)?))
    }

    /// How many sub-tasks of a family are not over.
    pub(crate) fn live_of(&self, job: JobId, number: u64) -> usize {
        let families = self.journal.as_ref().map(|journal| journal.family(job, number));
        families.unwrap_or(0)
    }

    fn explain_entry(&self, entry: &Entry) -> String {
        let text = match entry.state {
            State::Waiting { edges: 0 } => "waits until what it rests on is in the journal".to_owned(),
            State::Waiting { edges } => format!("waits for {edges} others"),
            State::Ready => format!("could run: {}", self.explain_lane(entry.lane)),
            State::Scheduled { row } => match self.table.get(row).filter(|row| row.is_held()) {
                None => {
                    format!("was lost with its processor, and could run: {}", self.explain_lane(entry.lane))
                }
                Some(row) => {
                    let holders = row.holders().map(|holder| {
                        let since = self.clock.saturating_sub(holder.since);
                        format!("is with {} since {since:.1?}, attempt {}", holder.processor, holder.attempt)
                    });
                    holders.collect::<Vec<_>>().join(" and ")
                }
            },
        };
        match entry.options.retries {
            0 => text,
            left => format!("{text}; {left} retries remain"),
        }
    }

    /// What keeps the tasks of a lane waiting.
    fn explain_lane(&self, lane: super::LaneId) -> String {
        let demand = &self.lanes.get(lane).demand;
        if self.is_paused() {
            return "no task is handed out, since the journal cannot be written".into();
        }
        if self.processors.is_empty() {
            return "there is no processor; start one with `pdbp-tasks work`".into();
        }
        if !self.nodes.could(demand) {
            return format!("no node offers {}: {}", demand.needs, self.nodes.offers());
        }
        let fits =
            self.processors.keys().any(|at| self.nodes.get(at.node).is_some_and(|room| room.fits(demand)));
        match (fits, demand.needs.is_plain()) {
            (true, _) => format!("others go first, {} processors are busy", self.processors.len()),
            (false, true) => "all processors are busy".into(),
            (false, false) => format!("{} are in use by others: {}", demand.needs, self.nodes.offers()),
        }
    }
}
