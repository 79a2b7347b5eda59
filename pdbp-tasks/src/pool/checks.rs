//! Periodic checks of the pool: for tasks that take too long, and for tasks that need what nobody offers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::wire::{Down, TaskId};

use super::lanes::PLAIN;
use super::table::{Holder, Row};
use super::tasks::{Entry, State};
use super::{Flaw, Pool, Processor, TaskError, Waits};

/// A task is copied after this time if few tasks of its kind have ended.
const COPY_UNKNOWN: Duration = Duration::from_secs(60);
/// No task is copied sooner.
const COPY_LEAST: Duration = Duration::from_millis(10);
/// Least and most time between two checks.
pub(super) const CHECK_INTERVAL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

impl Pool {
    /// The job of a task that a processor may be running.
    pub(crate) fn job_of_running(&self, task: TaskId) -> Option<u32> {
        let entry = self.tasks.get(task)?;
        matches!(entry.state, State::Scheduled { .. }).then_some(entry.job.0)
    }

    /// Whether a job of this number exists.
    pub(crate) fn has_job(&self, job: u32) -> bool {
        self.jobs.contains_key(&super::JobId(job))
    }

    /// The name of a task, of a pool with a journal.
    #[cfg(feature = "net")]
    pub(crate) fn name_of(&self, task: TaskId) -> Option<crate::wire::Name> {
        self.tasks.get(task).map(super::name_of)
    }

    /// Runs the periodic checks.
    pub(super) fn check(&mut self, now: Duration) {
        self.next_check = now + CHECK_INTERVAL.1;
        if self.limited > 0 {
            self.take_from_overdue(now);
            self.next_check = now + 10 * CHECK_INTERVAL.0;
        }
        self.refuse_unoffered(now);
        self.end_pauses(now);
        if !self.parked.is_empty() && !self.is_paused() && self.peek(PLAIN).is_none() {
            let next = self.copy(now);
            self.next_check = self.next_check.min(next).max(now + CHECK_INTERVAL.0);
        }
    }

    /// What each processor runs: the first of the tasks that it holds, by turn.
    pub(super) fn running(&self) -> HashMap<Processor, u64> {
        let mut running = HashMap::new();
        for holder in self.table.rows().flat_map(|row| row.holders()) {
            let first = running.entry(holder.processor).or_insert(holder.turn);
            *first = (*first).min(holder.turn);
        }
        running
    }

    /// Gives copies of tasks that take long to idle processors; the first result counts. A running task is copied to another node, one that waits
    /// behind it in its processor to any. Returns when the next copy is due.
    fn copy(&mut self, now: Duration) -> Duration {
        let running = self.running();
        let (mut due, mut next) = (Vec::new(), now + CHECK_INTERVAL.1);
        for row in self.table.rows().filter(|row| !row.copied) {
            let ([Some(holder), None] | [None, Some(holder)]) = row.holders else { continue };
            let may_once = self.has(Flaw::CopiesOnce);
            let may = |entry: &&Entry| (!entry.options.once || may_once) && !entry.options.exclusive;
            let Some(entry) = self.tasks.get(row.task).filter(may) else { continue };
            let most = self.kinds.get(usize::from(entry.kind.0)).and_then(|figures| figures.most());
            let at = holder.since + most.map_or(COPY_UNKNOWN, |most| (2 * most).max(COPY_LEAST));
            if at > now {
                next = next.min(at);
            } else {
                due.push((holder.turn, row.task, holder.processor, running.get(&holder.processor)));
            }
        }
        due.sort_unstable();
        let due: Vec<_> =
            due.into_iter().map(|(turn, task, on, first)| (task, on, first == Some(&turn))).collect();
        for (task, on, runs) in due {
            let Some(lane) = self.tasks.get(task).map(|entry| entry.lane) else { continue };
            // Tasks that nobody has begun go first.
            if self.peek(lane).is_some() {
                continue;
            }
            let demand = &self.lanes.get(lane).demand;
            let fits = |node| {
                let may = self.most_in_trouble(now, node).is_none();
                may && self.nodes.get(node).is_some_and(|room| room.fits(demand))
            };
            let suits = |(processor, number): &(Processor, u64)| {
                let known = self.processors.get(processor);
                fits(processor.node)
                    && known
                        .is_some_and(|known| known.waits == Waits::Parked(*number) && known.share.is_none())
                    && *processor != on
                    && (processor.node != on.node || !runs)
            };
            let Some(at) = self.parked.iter().position(suits) else { continue };
            let Some((processor, _)) = self.parked.remove(at) else { continue };
            if let Some(known) = self.processors.get_mut(&processor) {
                known.waits = Waits::No;
            }
            if let Some(copy) = self.schedule(now, task, processor) {
                self.counts.copies += 1;
                self.notices.push_back((processor, Down::Tasks(vec![copy])));
            }
        }
        next
    }

    /// Takes tasks from processors that have not ended them long after their limit. Such a processor is given nothing more until it reports
    /// again.
    fn take_from_overdue(&mut self, now: Duration) {
        let running = self.running();
        let overdue = |row: &Row, holder: &Holder| {
            let entry = self.tasks.get(row.task).filter(|entry| entry.options.limit_ms > 0)?;
            let limit = Duration::from_millis(entry.options.limit_ms.into());
            let heard = self.processors.get(&holder.processor).map_or(Duration::ZERO, |known| known.heard);
            let began = holder.since.max(heard);
            let runs = running.get(&holder.processor) == Some(&holder.turn);
            (runs && now > (began + limit).saturating_add(self.limits.grace))
                .then_some((row.task, *holder, limit))
        };
        let rows = self.table.rows();
        let late: Vec<_> =
            rows.flat_map(|row| row.holders().filter_map(move |holder| overdue(row, holder))).collect();
        for (task, holder, limit) in late {
            let processor = holder.processor;
            self.fail(task, processor, holder.attempt, TaskError::TimedOut { limit, processor }, true);
            self.forget_processors(|other| other == processor);
            self.trouble.write_off(processor, limit);
        }
    }

    /// Whether tasks of special lanes are queued, which may need what nobody offers.
    pub(super) fn has_special(&self) -> bool {
        self.lanes.special().iter().any(|lane| self.lanes.get(*lane).len() > 0)
    }

    /// See [`Limits::offer_wait`].
    pub(crate) fn offer_wait(&self) -> Duration {
        self.limits.offer_wait
    }

    /// Ends tasks that need what no node has offered for a long time, although there are processors.
    fn refuse_unoffered(&mut self, now: Duration) {
        for id in self.lanes.special().to_vec() {
            let waits = self.peek(id).is_some();
            let lane = self.lanes.get_mut(id);
            let needs = &lane.demand.needs;
            if !waits || needs.is_plain() || self.processors.is_empty() || self.nodes.could(&lane.demand) {
                lane.unoffered = None;
                continue;
            }
            if now < lane.unoffered.get_or_insert(now).saturating_add(self.limits.offer_wait) {
                continue;
            }
            let error = Arc::new(TaskError::NoOffer { needs: needs.clone(), offers: self.nodes.offers() });
            let lost = std::mem::take(&mut lane.lost);
            let all: Vec<_> = lost
                .into_iter()
                .chain(std::iter::from_fn(|| lane.ready.pop().map(|(task, _)| task)))
                .collect();
            lane.unoffered = None;
            for task in all {
                self.leave_table(task, None);
                self.end(task, Err(Arc::clone(&error)));
            }
        }
    }
}
