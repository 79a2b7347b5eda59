//! A job of a pool with a journal, as seen by a remote client.

use std::collections::{BTreeSet, VecDeque};
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Remote;
use super::remote::{OfRemote, unexpected};
use crate::error::Error;
use crate::job::{Handle, New};
use crate::kind::{self, Kind};
use crate::large::{Large, LargeReader, LargeWriter};
use crate::pool::Refused;
use crate::wire::{self, Answer, By, Bytes, Chunk, Inputs, KindId, Request, ResultOf, pieces};

/// Least and most time between two polls for results.
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// Tasks of a request, and bytes of their inputs.
const CHUNK: (u64, usize) = (4096, 256 << 10);

/// A task of a pool with a journal that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteDone<O> {
    /// Its number in the job: how many tasks were added before it.
    pub number: u64,
    /// Its result, or why there is none.
    pub result: Result<O, String>,
}

/// A job of a pool with a journal. Dropping this value leaves the job in the pool.
///
/// Results of type `O` are those of tasks that [`each`](Self::each) has added. Results of tasks added by [`add`](Self::add) and
/// [`join`](Self::join), of any type, are read by [`wait`](Self::wait), and other tasks of the job can depend on them. These two methods collect
/// tasks and send them in large messages: the tasks are in the journal when [`flush`](Self::flush), [`close`](Self::close), [`each`](Self::each),
/// [`wait`](Self::wait) or [`next_result`](Self::next_result) has returned, and are not sent if this value is dropped before.
pub struct RemoteJob<'r, O = ()> {
    remote: &'r mut Remote,
    number: u32,
    /// Tasks in the journal; `None`: not known.
    tasks: Option<u64>,
    /// Tasks to be sent, and their number and bytes.
    chunks: Vec<Chunk>,
    collected: (u64, usize),
    /// Tasks that `add` and `join` have added.
    single: BTreeSet<u64>,
    /// Place of the next result to be read.
    read: u64,
    came: VecDeque<ResultOf>,
    over: bool,
    types: PhantomData<fn() -> O>,
}

impl<'r, O: DeserializeOwned> RemoteJob<'r, O> {
    /// Its number, by which [`Remote::job_of`] finds it again.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Adds a task for each input, numbered after the previous ones. When it returns, they are in the journal.
    ///
    /// # Errors
    /// As [`Remote::ask`]; an input cannot be encoded.
    pub fn each<I: Serialize>(
        &mut self,
        kind: Kind<I, O>,
        inputs: impl IntoIterator<Item = I>,
    ) -> Result<(), Error> {
        self.task().each(kind, inputs)
    }

    /// Adds a task.
    ///
    /// # Errors
    /// As [`Remote::ask`]; the input cannot be encoded.
    pub fn add<I: Serialize, T>(&mut self, kind: Kind<I, T>, input: I) -> Result<Handle<T>, Error> {
        self.task().add(kind, input)
    }

    /// Adds a task that runs when all `parts` are over, and receives `own` and their results. If one of them fails, the task is not run and has
    /// failed as well.
    ///
    /// # Errors
    /// As [`add`](Self::add); a handle is of another job.
    pub fn join<A: Serialize, T, R>(
        &mut self,
        kind: Kind<(A, Vec<T>), R>,
        own: A,
        parts: &[Handle<T>],
    ) -> Result<Handle<R>, Error> {
        self.task().join(kind, own, parts)
    }

    /// Begins a task with options.
    pub fn task(&mut self) -> New<&mut Self> {
        New::of(self)
    }

    /// Returns a task of the job, for example one added before this client started, by its number: how many were added before it.
    pub fn handle<T>(&self, number: u64) -> Handle<T> {
        Handle::new(self.number.into(), number)
    }

    /// Adds tasks as they are. When it returns, they are in the journal.
    ///
    /// # Errors
    /// As [`Remote::ask`].
    pub fn add_chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        self.collect(chunk)?;
        self.flush()
    }

    /// Sends the collected tasks. When it returns, they are in the journal.
    ///
    /// # Errors
    /// As [`Remote::ask`]. Tasks that the pool refuses are not added; without an answer they may have been added.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.chunks.is_empty() {
            return Ok(());
        }
        let first = self.tasks()?;
        let (chunks, (count, _)) = (std::mem::take(&mut self.chunks), std::mem::take(&mut self.collected));
        // If this fails, the number of tasks in the journal is asked anew.
        self.tasks = None;
        let fingerprint = self.remote.fingerprint();
        let added = self.remote.ask(&Request::Add { fingerprint, job: self.number, first, chunks });
        if added.is_err() {
            self.single.split_off(&first);
        }
        match added? {
            Answer::Done(there) if there == first + count => {
                self.tasks = Some(there);
                Ok(())
            }
            Answer::Done(there) => Err(Error::other(format!(
                "job {} has {there} tasks, not {}: another client adds to it; use one for each job",
                self.number,
                first + count
            ))),
            other => Err(unexpected(&other)),
        }
    }

    /// Begins a value of any length, which is written in pieces and stored beside the journal; it exists once
    /// [`LargeWriter::finish`](crate::LargeWriter::finish) has returned, and is deleted with the job.
    pub fn write_large(&mut self) -> LargeWriter<'_> {
        LargeWriter::new(Box::new(OfRemote::new(self.remote, self.number)))
    }

    /// Reads a value of any length that a result names, in pieces.
    pub fn read_large(&mut self, value: &Large) -> LargeReader<'_> {
        self.remote.read_large(value)
    }

    /// Closes the job: nothing is added any more.
    ///
    /// # Errors
    /// As [`Remote::ask`].
    pub fn close(&mut self) -> Result<(), Error> {
        self.flush()?;
        self.remote.ask(&Request::Close { job: self.number }).map(drop)
    }

    /// Waits for the result of a task.
    ///
    /// # Errors
    /// As [`Remote::ask`]; the task has none, its job was cancelled, or it is of another job.
    pub fn wait<T: DeserializeOwned>(&mut self, task: &Handle<T>) -> Result<T, Error> {
        let number = task.awaited_in(self.number.into())?;
        self.flush()?;
        self.check_added(number)?;
        let mut pause = POLL.0;
        loop {
            let (_, over, mut results) = self.read(By::Number, number, 1)?;
            match results.pop().filter(|done| done.number == number) {
                Some(ResultOf { result: Ok(bytes), .. }) => return Ok(wire::decode(&bytes)?),
                Some(ResultOf { result: Err(why), .. }) => {
                    return Err(Error::other(format!("task {number}: {why}")));
                }
                None if over => {
                    return Err(Error::other(format!(
                        "job {} is over, or was cancelled, and has no result of task {number}",
                        self.number
                    )));
                }
                None => {}
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(POLL.1);
        }
    }

    /// Returns the next result of a task that [`each`](Self::each) has added, in order of completion; `None` when all are over, which requires that
    /// the job is [closed](Self::close). Each result comes once, however often the pool is lost. For a job that was [found again](Remote::job_of),
    /// the results of all tasks come, which must then be of type `O`.
    ///
    /// # Errors
    /// As [`Remote::ask`].
    pub fn next_result(&mut self) -> Result<Option<RemoteDone<O>>, Error> {
        self.flush()?;
        let mut pause = POLL.0;
        loop {
            while let Some(ResultOf { number, result }) = self.came.pop_front() {
                if self.single.contains(&number) {
                    continue;
                }
                let result = match result {
                    Ok(bytes) => Ok(wire::decode(&bytes)?),
                    Err(why) => Err(why),
                };
                return Ok(Some(RemoteDone { number, result }));
            }
            if self.over {
                return Ok(None);
            }
            let (next, over, results) = self.read(By::Completion, self.read, u32::MAX)?;
            (self.read, self.over) = (next, over);
            self.came.extend(results);
            if self.came.is_empty() && !self.over {
                std::thread::sleep(pause);
                pause = (2 * pause).min(POLL.1);
            }
        }
    }

    fn read(&mut self, by: By, from: u64, most: u32) -> Result<(u64, bool, Vec<ResultOf>), Error> {
        match self.remote.ask(&Request::Read { job: self.number, by, from, most })? {
            Answer::Results { next, over, results } => Ok((next, over, results)),
            other => Err(unexpected(&other)),
        }
    }
}

impl<'r, O> RemoteJob<'r, O> {
    pub(super) fn new(remote: &'r mut Remote, number: u32, tasks: Option<u64>) -> Self {
        Self {
            remote,
            number,
            tasks,
            chunks: Vec::new(),
            collected: (0, 0),
            single: BTreeSet::new(),
            read: 0,
            came: VecDeque::new(),
            over: false,
            types: PhantomData,
        }
    }

    /// Another client may have added tasks since this one asked.
    fn check_added(&mut self, number: u64) -> Result<(), Error> {
        if number >= self.tasks()? {
            self.tasks = None;
        }
        match self.tasks()? {
            tasks if number < tasks => Ok(()),
            tasks => Err(Error::other(format!(
                "task {number} of job {} does not exist; the job has {tasks}, numbered from 0; add it first",
                self.number
            ))),
        }
    }

    /// How many tasks the journal has.
    fn tasks(&mut self) -> Result<u64, Error> {
        if let Some(tasks) = self.tasks {
            return Ok(tasks);
        }
        match self.remote.ask(&Request::Status { job: Some(self.number) })? {
            Answer::Status(status) => {
                let tasks = status.jobs.first().map_or(0, |job| job.tasks);
                Ok(*self.tasks.insert(tasks))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Collects a chunk to be sent, and returns the number of its first task.
    fn collect(&mut self, chunk: Chunk) -> Result<u64, Error> {
        let number = self.tasks()? + self.collected.0;
        if let Some(later) = chunk.needed().find(|needed| *needed >= number) {
            return Err(Error::other(format!(
                "task {later} of job {} was not added before task {number}, which needs it; add it first",
                self.number
            )));
        }
        let most = pieces::VALUE;
        if let Some(bytes) = chunk.longest().filter(|bytes| *bytes > most) {
            return Err(Refused::TooLong { bytes, most }.into());
        }
        let needed = chunk.needed().count();
        let bytes = match &chunk.inputs {
            Inputs::List(list) => list.iter().map(|input| input.len()).sum(),
            Inputs::Numbers { .. } => 0,
        };
        self.collected = (self.collected.0 + chunk.inputs.len(), self.collected.1 + bytes + 8 * needed);
        if let Some(chunk) = self.with_last(chunk) {
            self.chunks.push(chunk);
        }
        Ok(number)
    }

    /// Appends to the last chunk if only the inputs differ.
    fn with_last(&mut self, chunk: Chunk) -> Option<Chunk> {
        let Some(last) = self.chunks.last_mut() else { return Some(chunk) };
        let is_alike = chunk.join.is_none()
            && last.join.is_none()
            && (last.kind, last.options, &last.needs) == (chunk.kind, chunk.options, &chunk.needs)
            && (&last.prefix, &last.after) == (&chunk.prefix, &chunk.after);
        match (&mut last.inputs, chunk) {
            (Inputs::List(list), Chunk { inputs: Inputs::List(more), .. }) if is_alike => {
                list.extend(more);
                None
            }
            (_, chunk) => Some(chunk),
        }
    }

    /// Whether it is time to send.
    fn is_full(&self) -> bool {
        self.collected.0 >= CHUNK.0 || self.collected.1 >= CHUNK.1
    }
}

impl<O: DeserializeOwned> New<&mut RemoteJob<'_, O>> {
    /// As [`RemoteJob::each`].
    ///
    /// # Errors
    /// As [`RemoteJob::each`].
    pub fn each<I: Serialize>(
        self,
        kind: Kind<I, O>,
        inputs: impl IntoIterator<Item = I>,
    ) -> Result<(), Error> {
        let after = self.after_in(self.job.number.into())?;
        let Self { job, options, needs, .. } = self;
        for input in inputs {
            let inputs = Inputs::List(vec![kind::encode(&input)?]);
            let (needs, after) = (needs.clone(), after.clone());
            job.collect(Chunk { options, needs, after, ..Chunk::new(kind.id, inputs) })?;
            if job.is_full() {
                job.flush()?;
            }
        }
        job.flush()
    }

    /// As [`RemoteJob::add`].
    ///
    /// # Errors
    /// As [`RemoteJob::add`].
    pub fn add<I: Serialize, T>(self, kind: Kind<I, T>, input: I) -> Result<Handle<T>, Error> {
        self.push(kind.id, kind::encode(&input)?, None)
    }

    /// As [`RemoteJob::join`].
    ///
    /// # Errors
    /// As [`RemoteJob::join`].
    pub fn join<A: Serialize, T, R>(
        self,
        kind: Kind<(A, Vec<T>), R>,
        own: A,
        parts: &[Handle<T>],
    ) -> Result<Handle<R>, Error> {
        let parts =
            parts.iter().map(|part| part.number_in(self.job.number.into())).collect::<Result<_, _>>()?;
        self.push(kind.id, kind::encode(&own)?, Some(parts))
    }

    fn push<T>(self, kind: KindId, input: Bytes, join: Option<Vec<u64>>) -> Result<Handle<T>, Error> {
        let after = self.after_in(self.job.number.into())?;
        let Self { job, options, needs, .. } = self;
        let inputs = Inputs::List(vec![input]);
        let number = job.collect(Chunk { options, needs, join, after, ..Chunk::new(kind, inputs) })?;
        job.single.insert(number);
        if job.is_full() {
            job.flush()?;
        }
        Ok(Handle::new(job.number.into(), number))
    }
}
