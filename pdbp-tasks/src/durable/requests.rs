//! Requests of clients, and their answers.

use std::fmt::Write;

use super::{Batch, Durable, Output, Reading, Waiting};
#[cfg(feature = "metrics")]
use crate::pool::seen::{Journal, Seen};
use crate::pool::{JobId, Processor, Refused};
use crate::store::{Change, JobRecord};
use crate::wire::{Answer, By, Bytes, Chunk, Down, Inputs, JobStatus, Name, Request, Status};

/// The most results in an answer.
const MOST: usize = 4096;
/// The most holds in an answer.
const SPANS: usize = 4096;
/// The most bytes of a job's name: it is for people, and in each answer with the progress.
const NAME: usize = 4096;
/// How many of a job's latest retry requests are remembered, to recognise repetitions.
const ASKED: usize = 16;

impl Durable {
    pub(super) fn request(&mut self, from: Processor, id: u64, request: Request) {
        let answer = match request {
            Request::Begin { fingerprint, nonce, name } => self.begin(fingerprint, nonce, name),
            Request::Add { fingerprint, job, first, chunks } => match self.check_fingerprint(fingerprint) {
                Some(other) => other,
                None => self.add(job, first, &chunks),
            },
            Request::Close { job } => self.with(job, |batch| batch.record.closed = true),
            Request::Cancel { job } => self.cancel(job),
            Request::Retry { job, nonce } => self.retry(job, nonce),
            Request::Forget { job } => self.forget(job),
            // These report what is durable, or do not matter: nobody waits for the disk to learn that it is full. The first is what a client asks
            // before all else.
            Request::Journal => {
                let journal = self.pools.first().copied().unwrap_or(0);
                return self.answer_now(from, id, Answer::Journal(journal));
            }
            Request::Status { job } => return self.answer_now(from, id, self.status(job)),
            Request::Explain { job, number } => {
                let answer = self.explain(job, number);
                return self.answer_now(from, id, answer);
            }
            Request::Spans { from: first } => {
                let spans = self.pool.spans().iter().skip(usize::try_from(first).unwrap_or(usize::MAX));
                let spans = Answer::Spans(spans.take(SPANS).copied().collect());
                return self.answer_now(from, id, spans);
            }
            Request::Read { job, by, from: place, most } => {
                let Some(batch) = self.jobs.get(&job) else { return self.answer(from, id, no_job(job)) };
                let most = MOST.min(usize::try_from(most).unwrap_or(MOST));
                let (items, end) = match by {
                    By::Completion => (batch.by_completion(place, most), batch.positions() as u64),
                    By::Number => (batch.by_number(place, most), batch.next),
                };
                let reaches = items.last().map_or(place, |(_, next)| *next);
                let all = if batch.record.cancelled { items.len() < most } else { reaches >= end };
                let alone = self.pool.live(JobId(job)) == 0;
                let over = batch.is_over() && alone && batch.is_shown() && all;
                return self
                    .ready
                    .push_back(Output::Read(from, Reading { id, job, from: place, items, over }));
            }
        };
        self.answer(from, id, answer);
    }

    /// Answers once everything that has happened so far is durable.
    fn answer(&mut self, to: Processor, id: u64, answer: Answer) {
        self.send_when_durable(to, Down::Answer { id, answer });
    }

    fn answer_now(&mut self, to: Processor, id: u64, answer: Answer) {
        self.ready.push_back(Output::Down(to, Down::Answer { id, answer }));
    }

    /// The refusal for a client that knows other functions.
    fn check_fingerprint(&self, fingerprint: u64) -> Option<Answer> {
        (fingerprint != self.fingerprint).then(|| {
            Answer::No(format!(
                "the functions of the pool ({:016x}) differ from those of this program ({fingerprint:016x}); use the same program everywhere",
                self.fingerprint
            ))
        })
    }

    fn begin(&mut self, fingerprint: u64, nonce: u128, name: String) -> Answer {
        if let Some(other) = self.check_fingerprint(fingerprint) {
            return other;
        }
        if let Some(job) = self.nonces.get(&nonce) {
            return Answer::Job(*job);
        }
        if self.jobs.len() >= self.most_jobs {
            let most = self.most_jobs;
            return Answer::No(format!(
                "the pool has {most} jobs, the most that it keeps (`Limits::jobs`); forget some that are over: `pdbp-tasks status` lists them, `pdbp-tasks forget` forgets one"
            ));
        }
        let job = self.next_job;
        self.next_job += 1;
        let record = JobRecord { nonce, name: shortened(name), ..JobRecord::default() };
        self.changes.push(Change::NextJob(self.next_job));
        self.record_job(job, &record);
        self.nonces.insert(nonce, job);
        self.pool.begin_as(job);
        self.jobs.insert(job, Batch::new(record));
        Answer::Job(job)
    }

    fn add(&mut self, job: u32, first: u64, chunks: &[Chunk]) -> Answer {
        let Some(batch) = self.jobs.get(&job) else { return no_job(job) };
        if first < batch.next {
            return added_before(job, batch, first, chunks);
        }
        if batch.record.cancelled || batch.record.closed {
            return Answer::No(format!(
                "nothing can be added to job {job}: it was closed or cancelled; begin another one"
            ));
        }
        if first > batch.next {
            return Answer::No(format!("tasks {} to {} of job {job} are missing", batch.next, first - 1));
        }
        let (mut next, mut encoded) = (first, Vec::with_capacity(chunks.len()));
        for chunk in chunks {
            let most = self.pool.most_input();
            if let Some(bytes) = chunk.longest().filter(|bytes| *bytes > most) {
                let refused = crate::Error::Add(Refused::TooLong { bytes, most });
                return Answer::No(format!("among the tasks from {next} on: {refused}"));
            }
            if let Some(refused) = self.check_chunk(next, chunk) {
                return Answer::No(refused);
            }
            if self.pool.refuses_needs(&chunk.needs) {
                return Answer::No(
                    "tasks of this pool have more than a thousand different needs; round them".into(),
                );
            }
            match postcard::to_stdvec(chunk) {
                Ok(bytes) => encoded.push((next, chunk.inputs.len(), Bytes::from(bytes))),
                Err(error) => return Answer::No(error.to_string()),
            }
            next += chunk.inputs.len();
        }
        let Some(batch) = self.jobs.get_mut(&job) else { return no_job(job) };
        for (first, count, encoded) in encoded {
            batch.add(encoded.clone(), count);
            self.changes.push(Change::Added(job, first, encoded));
        }
        if next > first {
            self.wait(self.group, Waiting::There(job, next));
        }
        Answer::Done(next)
    }

    /// Why a chunk whose tasks begin with this number cannot be added, whatever the limits are: those of the pool that has accepted it may have
    /// been higher.
    pub(super) fn check_chunk(&self, first: u64, chunk: &Chunk) -> Option<String> {
        if usize::from(chunk.kind.0) >= self.kinds {
            return Some(format!("unknown kind {}", chunk.kind.0));
        }
        if chunk.inputs.is_empty() || first.checked_add(chunk.inputs.len()).is_none() {
            return Some(format!("{} tasks cannot be added", chunk.inputs.len()));
        }
        if let Inputs::Numbers { first, count } = chunk.inputs
            && first.checked_add(count).is_none()
        {
            return Some(format!("{count} numbers from {first} on exceed 64 bits"));
        }
        if let Some(later) = chunk.needed().find(|needed| *needed >= first) {
            return Some(format!(
                "task {first} of the job needs task {later}, which was not added before it; a task can need those before it"
            ));
        }
        None
    }

    /// Changes the record of a job.
    fn with(&mut self, job: u32, change: impl FnOnce(&mut Batch)) -> Answer {
        let Some(batch) = self.jobs.get_mut(&job) else { return no_job(job) };
        let before = batch.record.clone();
        change(batch);
        let (next, record) = (batch.next, batch.record.clone());
        if record != before {
            self.record_job(job, &record);
        }
        Answer::Done(next)
    }

    /// Puts the record of a job into the journal.
    fn record_job(&mut self, job: u32, record: &JobRecord) {
        self.changes.push(Change::Job(job, record.clone()));
        self.wait(self.group, Waiting::Known(job, record.clone()));
    }

    fn cancel(&mut self, job: u32) -> Answer {
        // One that was cancelled is cancelled again: the first answer may have been lost.
        let is_over = |batch: &Batch| batch.record.closed && !batch.record.cancelled && batch.is_over();
        let is_over = self.jobs.get(&job).is_some_and(is_over);
        if is_over && self.pool.live(JobId(job)) == 0 {
            return Answer::Done(0);
        }
        let answer = self.with(job, |batch| batch.record.cancelled = true);
        self.pool.cancel(JobId(job));
        self.collect();
        // Tasks that the cancellation has ended have no result.
        while self.pool.take_outcome(JobId(job)).is_some() {}
        match (answer, self.jobs.get(&job)) {
            (Answer::Done(_), Some(batch)) => Answer::Done(batch.next - batch.ended()),
            (answer, _) => answer,
        }
    }

    fn retry(&mut self, job: u32, nonce: u128) -> Answer {
        let Some(batch) = self.jobs.get_mut(&job) else { return no_job(job) };
        if batch.record.cancelled {
            return Answer::No(format!("job {job} was cancelled; submit it again"));
        }
        let mut again = batch.record.again.clone();
        if let Some((_, count)) = again.asked.iter().find(|(asked, _)| *asked == nonce) {
            return Answer::Done(*count);
        }
        let Some(run) = again.runs.checked_add(1) else {
            return Answer::No(format!("tasks of job {job} were retried too often; submit it again"));
        };
        again.runs = run;
        let failed = batch.retry(run);
        let (turns, count) = (batch.turns(&failed), failed.iter().map(|some| some.end - some.start).sum());
        again.asked.push((nonce, count));
        let before = again.asked.len().saturating_sub(ASKED);
        again.asked.drain(..before);
        // Sub-tasks that still run belong to the failed run; the next run adds its own.
        self.pool.end_families(JobId(job), &failed);
        self.collect();
        let Some(batch) = self.jobs.get_mut(&job) else { return no_job(job) };
        // No place is given twice, not even by a later pool: a client that reads results remembers a place in that order.
        again.places = batch.positions() as u64;
        batch.record.again = again;
        let record = batch.record.clone();
        self.record_job(job, &record);
        self.changes.extend(failed.into_iter().map(|numbers| Change::Unended(job, numbers, run)));
        self.wait(self.group, Waiting::Again(job, turns));
        Answer::Done(count)
    }

    fn forget(&mut self, job: u32) -> Answer {
        let Some(batch) = self.jobs.remove(&job) else { return no_job(job) };
        self.nonces.remove(&batch.record.nonce);
        self.orphans.retain(|name, _| name.job != job);
        self.pool.forget(JobId(job));
        self.collect();
        self.changes.push(Change::Forget(job));
        Answer::Done(batch.next)
    }

    fn status(&self, job: Option<u32>) -> Answer {
        let jobs = self.jobs.iter().filter(|(number, _)| job.is_none_or(|job| job == **number));
        let jobs: Vec<_> = jobs.filter_map(|(number, batch)| self.job_status(*number, batch)).collect();
        if let Some(job) = job.filter(|_| jobs.is_empty()) {
            return no_job(job);
        }
        Answer::Status(Status {
            term: self.term,
            processors: self.pool.processors() as u64,
            stalled: self.stalled.clone(),
            refusals: self
                .pool
                .refusals()
                .iter()
                .map(ToString::to_string)
                .chain(self.pool.troubles())
                .collect(),
            counts: self.pool.counts(),
            jobs,
        })
    }

    /// A snapshot, without the length of the file.
    #[cfg(feature = "metrics")]
    pub(crate) fn seen(&self) -> Seen {
        let mut seen = self.pool.seen();
        let open = self.jobs.values().filter(|batch| !batch.is_over());
        let open = open.fold(0u64, |sum, batch| sum.saturating_add(batch.next - batch.ended()));
        seen.queued = seen.queued.saturating_add(open.saturating_sub(self.pool.given()));
        (seen.ended, seen.failed) = self.ended;
        seen.jobs = self.jobs.iter().filter_map(|(job, batch)| self.job_status(*job, batch)).collect();
        let (term, stalled) = (self.term, self.stalled.clone());
        let waiting_groups = self.group - 1 - self.durable;
        seen.journal = Some(Journal { term, stalled, waiting_groups, bytes: None });
        seen
    }

    /// The progress of a job as recorded in the journal; `None`: it is not recorded yet.
    fn job_status(&self, job: u32, batch: &Batch) -> Option<JobStatus> {
        let record = batch.known.as_ref()?;
        let (ended, failed) = batch.ended_durably();
        Some(JobStatus {
            job,
            name: record.name.clone(),
            tasks: batch.there,
            ended,
            failed,
            live: self.pool.live(JobId(job)) as u64,
            open: !record.closed,
            cancelled: record.cancelled,
        })
    }

    fn explain(&mut self, job: u32, number: Option<u64>) -> Answer {
        let Some(batch) = self.jobs.get(&job) else { return no_job(job) };
        let Some(status) = self.job_status(job, batch) else { return no_job(job) };
        let mut text = String::new();
        if let Some(why) = &self.stalled {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "no task is handed out, since the journal cannot be written: {why}");
        }
        let Some(number) = number else {
            let in_chunks = status.tasks.saturating_sub(status.ended + status.live);
            let state = match (batch.record.cancelled, status.is_over()) {
                (true, _) => "cancelled",
                (_, true) => "over",
                _ if status.open => "open: its client may add more",
                _ => "not over",
            };
            let _ = writeln!(
                text,
                "job {job} is {state}: {} of {} tasks have ended, {} of them failed; {} are with the pool, {in_chunks} wait in the journal",
                status.ended, status.tasks, status.failed, status.live
            );
            text.push_str(&self.pool.explain(JobId(job)));
            return Answer::Text(text);
        };
        let name = Name { job, number, sub: 0, run: batch.run_of(number) };
        let line = if number >= batch.next {
            format!("{name} does not exist; the job has {} tasks, numbered from 0", batch.next)
        } else if batch.is_ended(number) {
            format!("{name} has ended; `pdbp-tasks output … {job} {number}` shows how")
        } else if batch.record.cancelled {
            format!("{name} was cancelled with its job")
        } else {
            match self.pool.explain_task(name) {
                Some(why) => format!("{name} {why}"),
                None => match self.pool.live_of(JobId(job), number) {
                    0 => match batch.waits_for(number) {
                        Some(needed) => format!("{name} waits for task {needed} of its job"),
                        None => format!("{name} waits in the journal until those before it are over"),
                    },
                    live => format!("{name} has run, and {live} sub-tasks of it are not over"),
                },
            }
        };
        Answer::Text(text + &line + "\n")
    }
}

/// Answers a client that adds tasks which exist: it has asked again, or another client was faster.
fn added_before(job: u32, batch: &Batch, first: u64, chunks: &[Chunk]) -> Answer {
    let mut next = first;
    for chunk in chunks {
        let is_there = postcard::to_stdvec(chunk).is_ok_and(|bytes| batch.chunk(next) == Some(&*bytes));
        if !is_there {
            return Answer::No(format!(
                "task {next} of job {job} is another one: another client adds to the job; use one for each job"
            ));
        }
        next += chunk.inputs.len();
    }
    Answer::Done(next)
}

/// The beginning of a name that is too long.
fn shortened(mut name: String) -> String {
    if name.len() > NAME {
        let end = (0..=NAME).rfind(|end| name.is_char_boundary(*end)).unwrap_or(0);
        name.truncate(end);
        name.push('…');
        name.shrink_to_fit();
    }
    name
}

fn no_job(job: u32) -> Answer {
    Answer::No(format!("job {job} does not exist; `pdbp-tasks status` lists the jobs"))
}
