//! How tasks of a job move from its chunks into the pool, with the results that they need, and how those that cannot run end.

use super::batch::{Hasty, NOT_RUN, Next};
use super::{Batch, Durable, Waiting};
use crate::pool::{Flaw, JobId, Origin, Pool, TaskError, joined};
use crate::store::{Change, Ended, Head, Reader, StoreError};
use crate::wire::{Bytes, Name, pieces};

/// Above this many tasks of a job in the pool, no more are taken from its chunks.
const WINDOW: usize = 1 << 14;

/// Why a task has not entered the pool.
enum FeedError {
    /// A result that it needs cannot be read for now.
    Later(StoreError),
    /// The result of this task can never be read, and why.
    Never(u64, String),
    /// Its input would exceed the bound; it has at least this many bytes.
    TooLong(u64),
}

impl Durable {
    /// Takes tasks of a job from its chunks, as there is room in the pool.
    pub(super) fn feed(&mut self, job: u32) {
        let mut ended = Vec::new();
        // Chunks, and results that tasks need, are durable by the time tasks are taken.
        self.pool.rest_on(0);
        while self.pool.live(JobId(job)) < WINDOW
            && let Some(batch) = self.jobs.get_mut(&job).filter(|batch| !batch.record.cancelled)
            && let Some(next) = batch.next_to_feed(self.pool.has(Flaw::RunsTooEarly).then_some(Hasty))
        {
            let name = |number| Name { job, number, sub: 0, run: batch.run_of(number) };
            match next {
                Next::Task(number) => {
                    let most = self.pool.most_input();
                    match bring(&mut self.pool, &*self.reader, name(number), batch, most) {
                        Ok(()) => {}
                        Err(FeedError::Never(needed, why)) => ended.push((number, not_run(needed, why))),
                        Err(FeedError::TooLong(bytes)) => {
                            ended.push((number, Err(TaskError::TooLong { bytes, most: most as u64 })));
                        }
                        Err(FeedError::Later(_)) => {
                            batch.requeue(number..number + 1);
                            self.unfed.insert(job);
                            break;
                        }
                    }
                }
                Next::NotRun { tasks, needed } => {
                    let before = if self.not_run.0 == self.group { self.not_run.1 } else { 0 };
                    let with_these = before + (tasks.end - tasks.start);
                    if before > 0 && with_these > NOT_RUN {
                        batch.requeue(tasks);
                        self.unfed.insert(job);
                        break;
                    }
                    self.not_run = (self.group, with_these);
                    let left = tasks.filter(|number| !batch.is_ended(*number));
                    ended.extend(left.map(|number| (number, not_run(needed, "has failed".into()))));
                }
            }
            // This requeues whatever waits for these tasks.
            if !ended.is_empty() {
                self.end(job, std::mem::take(&mut ended));
            }
        }
        self.pool.rest_on(self.group);
        if self.pool.live(JobId(job)) >= WINDOW {
            self.crowded.insert(job);
        }
    }

    /// Feeds jobs that sub-tasks had filled up. Ends of sub-tasks are no outcomes, so this is checked separately.
    pub(super) fn feed_crowded(&mut self) {
        let pool = &self.pool;
        let has_room = |job: &u32| pool.live(JobId(*job)) < WINDOW;
        let freed: Vec<u32> = self.crowded.iter().copied().filter(has_room).collect();
        for job in freed {
            self.crowded.remove(&job);
            self.feed(job);
        }
    }

    /// Ends tasks of a job. Their results go into the journal, and are shown when durable.
    pub(super) fn end(&mut self, job: u32, ended: Vec<(u64, Result<Bytes, TaskError>)>) {
        let Some(batch) = self.jobs.get_mut(&job) else { return };
        for (number, result) in ended {
            if batch.is_ended(number) && !self.pool.has(Flaw::AppliesTwice) {
                continue;
            }
            let failed = match &result {
                Ok(bytes) => (self.judge)(bytes),
                Err(_) => true,
            };
            let position = batch.end(number, failed);
            self.ended.0 += 1;
            self.ended.1 += u64::from(failed);
            self.changes.push(Change::Ended(job, number, Ended { head: Head { position, failed }, result }));
        }
        let shown = batch.positions();
        self.wait(self.group, Waiting::Shown(job, shown));
    }

    /// Brings a client's task into the pool ahead of its turn, since the journal says that it was handed out.
    pub(super) fn feed_needed(&mut self, name: Name) -> Result<(), StoreError> {
        let batch = self.jobs.get_mut(&name.job).filter(|batch| !batch.record.cancelled);
        let Some(batch) = batch.filter(|batch| !batch.was_begun(name.number)) else { return Ok(()) };
        if self.pool.has_named(name) || name.number >= batch.next {
            return Ok(());
        }
        // The limit of the pool that has handed it out may have been higher.
        match bring(&mut self.pool, &*self.reader, name, batch, pieces::VALUE) {
            Ok(()) => batch.mark_begun(name.number),
            Err(FeedError::Later(error)) => return Err(error),
            Err(FeedError::Never(needed, why)) => {
                return Err(StoreError::Damaged { why: format!("{name} needs task {needed}, which {why}") });
            }
            Err(FeedError::TooLong(bytes)) => {
                let why = format!("{name} was handed out, and has an input of at least {bytes} bytes");
                return Err(StoreError::Damaged { why });
            }
        }
        Ok(())
    }
}

fn not_run(needed: u64, why: String) -> Result<Bytes, TaskError> {
    Err(TaskError::Needed { number: needed, why })
}

/// Adds a task to the pool, if the job has it, and if its input, with the results that it needs, has at most this many bytes.
fn bring(
    pool: &mut Pool,
    reader: &dyn Reader,
    name: Name,
    batch: &mut Batch,
    most: usize,
) -> Result<(), FeedError> {
    let Some(task) = batch.task(name.number) else { return Ok(()) };
    let input = match task.join {
        None => task.own,
        Some(needed) => {
            let (mut parts, mut bytes) = (Vec::with_capacity(needed.len()), task.own.len());
            for needed in needed {
                let part = read(reader, name.job, *needed)?;
                bytes = bytes.saturating_add(part.len());
                if bytes > most {
                    return Err(FeedError::TooLong(bytes as u64));
                }
                parts.push(part);
            }
            joined(&task.own, parts.len(), parts.iter())
        }
    };
    let came = if task.was_unlocked { Origin::Unlocked } else { Origin::New };
    let added = pool.add_as(name, (task.kind, task.options, task.needs), input, came);
    // The chunk was checked when it was added.
    debug_assert!(added.is_ok(), "{added:?}");
    Ok(())
}

fn read(reader: &dyn Reader, job: u32, number: u64) -> Result<Bytes, FeedError> {
    let why = match reader.ended(job, number) {
        Ok(Some(Ended { result: Ok(bytes), .. })) => return Ok(bytes),
        Ok(Some(Ended { result: Err(error), .. })) => format!("has failed: {error}"),
        Ok(None) => "has no result in the journal".to_owned(),
        Err(error @ StoreError::Damaged { .. }) => format!("has a result that cannot be read: {error}"),
        Err(error) => return Err(FeedError::Later(error)),
    };
    Err(FeedError::Never(number, why))
}
