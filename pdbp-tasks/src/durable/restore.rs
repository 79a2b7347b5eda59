//! Rebuilds a pool from its journal.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::{Batch, Durable, Judge};
use crate::pool::{Flaw, JobId, Limits, Pool, Step};
use crate::store::{Reader, Saved, StoreError};
use crate::wire::{self, Chunk, Name};

fn damaged(why: String) -> StoreError {
    StoreError::Damaged { why }
}

impl Durable {
    /// Rebuilds the pool from what the journal has saved. Its term, one above that of the journal, and its number are durable already. `reader`
    /// must belong to the same store.
    ///
    /// # Errors
    /// The content of the journal is inconsistent.
    pub(crate) fn restore(
        saved: Saved,
        term: u32,
        (kinds, fingerprint): (usize, u64),
        limits: Limits,
        judge: Judge,
        reader: Box<dyn Reader>,
    ) -> Result<Self, StoreError> {
        let mut durable = Self::empty(saved.next_job, term, (kinds, fingerprint), limits, judge, reader);
        durable.restore_jobs(saved)?;
        Ok(durable)
    }

    pub(super) fn empty(
        next_job: u32,
        term: u32,
        (kinds, fingerprint): (usize, u64),
        limits: Limits,
        judge: Judge,
        reader: Box<dyn Reader>,
    ) -> Self {
        let mut pool = Pool::new(kinds, fingerprint, limits);
        pool.keep_journal(term);
        pool.judge_by(judge);
        Self {
            pool,
            fingerprint,
            kinds,
            term,
            pools: Vec::new(),
            judge,
            reader,
            jobs: BTreeMap::new(),
            nonces: HashMap::new(),
            most_jobs: limits.jobs,
            next_job,
            group: 1,
            changes: Vec::new(),
            durable: 0,
            waiting: VecDeque::new(),
            waiting_for: HashMap::new(),
            ready: VecDeque::new(),
            stalled: None,
            orphans: BTreeMap::new(),
            orphaned: None,
            awaited: false,
            unfed: BTreeSet::new(),
            crowded: BTreeSet::new(),
            ended: (0, 0),
            not_run: (0, 0),
            #[cfg(test)]
            searched: 0,
        }
    }

    pub(super) fn restore_jobs(&mut self, saved: Saved) -> Result<(), StoreError> {
        let Saved { jobs, added, ended, again, steps, started, pools, .. } = saved;
        self.pools = pools;
        self.pool.rest_on(0);
        for (job, record) in jobs {
            self.nonces.insert(record.nonce, job);
            self.pool.begin_as(job);
            self.next_job = self.next_job.max(job.saturating_add(1));
            let mut batch = Batch::new(record);
            batch.known = Some(batch.record.clone());
            self.jobs.insert(job, batch);
        }
        for (job, first, encoded) in added {
            let chunk: Chunk =
                wire::decode(&encoded).map_err(|error| damaged(format!("tasks of job {job}: {error}")))?;
            if let Some(refused) = self.check_chunk(first, &chunk) {
                return Err(damaged(format!("tasks of job {job}: {refused}")));
            }
            let Some(batch) = self.jobs.get_mut(&job) else {
                return Err(damaged(format!("job {job} does not exist")));
            };
            if first != batch.next {
                return Err(damaged(format!("tasks of job {job} begin with {first}, not {}", batch.next)));
            }
            batch.add(encoded, chunk.inputs.len());
            batch.there = batch.next;
        }
        for (job, batch) in &mut self.jobs {
            let places = batch.record.again.places;
            if !batch.reserve(places) {
                return Err(damaged(format!("{places} tasks of job {job} have ended")));
            }
        }
        for (job, number, head) in ended {
            let batch = self.jobs.get_mut(&job).filter(|batch| number < batch.next);
            let Some(batch) = batch else {
                return Err(damaged(format!("a result of task {number} of job {job}")));
            };
            // Since the last retry each task has ended at most once.
            let most = batch.record.again.places.saturating_add(batch.next);
            if head.position >= most || !batch.reserve(head.position + 1) {
                return Err(damaged(format!("task {number} of job {job} ended as number {}", head.position)));
            }
            batch.end_at(number, head.position, head.failed);
        }
        for (job, numbers, run) in again {
            if !self.jobs.get_mut(&job).is_some_and(|batch| batch.run_again(numbers.clone(), run)) {
                return Err(damaged(format!("tasks {numbers:?} of job {job} ran again, for the time {run}")));
            }
        }
        self.jobs.values_mut().for_each(|batch| batch.show(batch.positions()));
        self.restore_families(steps)?;
        // A task that is over while its sub-tasks are not has ended a second time here; that outcome must not reach a later run.
        for (job, batch) in &self.jobs {
            while batch.is_over() && self.pool.take_outcome(JobId(*job)).is_some() {}
        }
        for (name, processor) in started {
            // A sub-task was restored with its family; its root may be over and must not be brought in again.
            if name.sub == 0 {
                self.feed_needed(name)?;
            }
            self.pool.hold_back(name);
            if self.pool.has_named(name) {
                self.orphans.insert(name, processor);
            }
        }
        // Decides what had to wait for the steps above.
        self.pool.rest_on(self.group);
        self.pool.mark_durable(0);
        let jobs: Vec<u32> =
            self.jobs.iter().filter(|(_, batch)| !batch.is_over()).map(|(job, _)| *job).collect();
        self.collect();
        if !self.pool.has(Flaw::ForgetsTable) {
            jobs.into_iter().for_each(|job| self.feed(job));
        }
        Ok(())
    }

    /// Restores sub-tasks by replaying the journal's steps.
    fn restore_families(&mut self, steps: Vec<Step>) -> Result<(), StoreError> {
        let mut before = None;
        for step in steps {
            let (Step::Took { name, .. } | Step::Failed { name, .. }) = &step else { continue };
            let name = *name;
            let root = Name { sub: 0, ..name };
            if before != Some(root) {
                self.feed_needed(root)?;
                before = Some(root);
            }
            let is_cancelled = self.jobs.get(&name.job).is_none_or(|batch| batch.record.cancelled);
            if let Err(why) = self.pool.replay(step)
                && !is_cancelled
            {
                return Err(damaged(format!("a result of {name}: {why}")));
            }
        }
        Ok(())
    }
}
