//! Jobs: what a client adds, and its results.

#[cfg(feature = "cli")]
mod progress;
mod results;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use pdbp::{Node, Part, Target};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{AddError, Error};
use crate::kind::{self, Kind};
use crate::large::{self, Large, LargeReader, LargeWriter, OfClient};
use crate::pool::{Counts, JobId, NewTask, Outcome, Refusal, Refused};
use crate::resources::Resources;
use crate::serve::{self, Served};
use crate::timeline::Span;
use crate::wire::{self, Bytes, KindId, Options};

#[cfg(feature = "cli")]
pub use progress::Progress;
pub use results::{Done, InOrder, Results};

/// How long a client looks for the pool.
const MEETING: Duration = Duration::from_secs(60);

/// The pool, as a client sees it.
pub struct Tasks<'a> {
    served: &'a Served,
    part: Part,
    pool: Target,
}

impl<'a> Tasks<'a> {
    pub(crate) fn new(node: &Node, served: &'a Served) -> Result<Self, Error> {
        let part = node.attach()?;
        let pool = part.find(serve::ADDRESS, MEETING)?;
        Ok(Self { served, part, pool })
    }

    /// Begins a job whose [results](Job::results) are of type `O`. Dropping it cancels what is not over.
    pub fn job<O>(&self, name: &str) -> Job<'_, O> {
        let id = self.served.pool().begin();
        self.served.names().insert(id.0, name.to_owned());
        // Identities make handles of different jobs distinct, for all pools of this process; jobs of remote pools have numbers of 32 bits.
        static IDENTITY: AtomicU64 = AtomicU64::new(1 << 32);
        Job {
            tasks: self,
            id,
            identity: IDENTITY.fetch_add(1, Ordering::Relaxed),
            name: name.to_owned(),
            feeds: VecDeque::new(),
            fed: BTreeSet::new(),
            awaits_inputs: false,
            pause: results::LOOK,
            came: VecDeque::new(),
            early: BTreeMap::new(),
            sizes: results::Sizes::default(),
            types: PhantomData,
        }
    }

    /// Counts of the pool since its start.
    pub fn counts(&self) -> Counts {
        self.served.pool().counts()
    }

    /// Processors that have asked for tasks and not left.
    pub fn processors(&self) -> usize {
        self.served.pool().processors()
    }

    /// Processors that are ignored from now on, since they know other functions or send nonsense: the first hundred.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.served.pool().refusals().to_vec()
    }

    /// One line for each current trouble: nodes that are given one task at a time, after pauses, since all their tasks fail while those of others
    /// succeed; processors that are given nothing, since a task of theirs is long past its limit; and jobs held back until their results are read.
    pub fn troubles(&self) -> Vec<String> {
        self.served.pool().troubles()
    }

    /// Bytes of results of [`Job::each`] that the pool holds and nobody has read, plus 64 for each of them: see
    /// [`Limits::unread_bytes`](crate::Limits::unread_bytes).
    pub fn unread_bytes(&self) -> usize {
        self.served.pool().unread()
    }

    /// Records from now on which processor holds which task, for [`timeline::page`](crate::timeline::page): some 64 bytes per hold, at most a
    /// million holds.
    pub fn record(&self) {
        self.served.pool().record();
    }

    /// What was [recorded](Self::record), in the order in which the holds ended.
    pub fn spans(&self) -> Vec<Span> {
        self.served.pool().spans().to_vec()
    }

    /// Reads a value of any length, in pieces.
    ///
    /// # Errors
    /// The pool keeps no large values: see [`Program::large_in`](crate::Program::large_in). A missing value is an error of `read`.
    pub fn read_large(&self, value: &Large) -> io::Result<LargeReader<'_>> {
        Ok(LargeReader::new(Box::new(self.large(0)?), *value))
    }

    /// Frees the disk space of a large value that is no longer needed. Otherwise it is freed with its job.
    pub fn discard(&self, value: Large) {
        if let Ok(OfClient { store, .. }) = self.large(0) {
            store.discard(value.number());
        }
    }

    /// Bytes of all large values that exist now.
    pub fn large_bytes(&self) -> u64 {
        self.served.large.as_ref().map_or(0, large::Store::bytes)
    }

    fn large(&self, job: u32) -> io::Result<OfClient<'a>> {
        let store = self.served.large.as_ref().ok_or_else(large::not_kept)?;
        Ok(OfClient { store, served: self.served, job })
    }

    /// Wakes the pool's thread, which then handles what has changed.
    pub(crate) fn wake(&self) {
        if !self.served.asked.swap(true, Ordering::AcqRel) {
            if self.part.try_send(self.pool, &[]).is_err() {
                // The pool checks by itself, after a while.
                self.served.asked.store(false, Ordering::Release);
            }
            self.part.flush();
        }
    }
}

/// A task of a job: other tasks of the job can depend on it, and its result can be waited for.
pub struct Handle<T> {
    job: u64,
    number: u64,
    types: PhantomData<fn() -> T>,
}

impl<T> Handle<T> {
    pub(crate) fn new(job: u64, number: u64) -> Self {
        Self { job, number, types: PhantomData }
    }

    /// Its number, if it belongs to this job.
    pub(crate) fn number_in(&self, job: u64) -> Result<u64, Refused> {
        if self.job == job { Ok(self.number) } else { Err(Refused::UnknownTask(self.number)) }
    }

    /// The same for a caller that waits for its result.
    pub(crate) fn awaited_in(&self, job: u64) -> Result<u64, Error> {
        self.number_in(job).map_err(|_| Error::OtherJob { number: self.number })
    }

    /// Its number in the job.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Handle").field(&self.number).finish()
    }
}

/// Inputs that have not been read yet.
struct Feed<'t> {
    kind: KindId,
    options: Options,
    needs: Resources,
    after: Result<Vec<u64>, Refused>,
    /// An item of `None` means that no input is available yet.
    inputs: Box<dyn Iterator<Item = Result<Option<Bytes>, postcard::Error>> + 't>,
}

/// A set of tasks of one client. Results of type `O` are those of tasks that [`each`](Self::each) has added. Results of tasks added by
/// [`add`](Self::add) and [`join`](Self::join), of any type, are read by [`wait`](Self::wait), and other tasks of the job can depend on them.
pub struct Job<'t, O = ()> {
    tasks: &'t Tasks<'t>,
    id: JobId,
    identity: u64,
    name: String,
    feeds: VecDeque<Feed<'t>>,
    /// Numbers of tasks that `each` has added and whose results have not been returned yet.
    fed: BTreeSet<u64>,
    /// Inputs may still come that are not available yet.
    awaits_inputs: bool,
    /// Time until the next check for an input: it grows each time that none has come.
    pause: Duration,
    /// Outcomes that have not been returned yet: in order of arrival, and those too early for a reader in order.
    came: VecDeque<Outcome>,
    early: BTreeMap<u64, Outcome>,
    sizes: results::Sizes,
    types: PhantomData<fn() -> O>,
}

impl<'t, O: DeserializeOwned> Job<'t, O> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a task for each input. The iterator is read from within [`results`](Self::results) as there is room, so it may be of any length.
    pub fn each<I: Serialize>(
        &mut self,
        kind: Kind<I, O>,
        inputs: impl IntoIterator<Item = I, IntoIter: 't>,
    ) {
        self.task().each(kind, inputs);
    }

    /// Adds a task for each input received, until all senders are gone. Unlike [`each`](Self::each), whose iterator may hold up results, it returns
    /// results while there is no input yet: for input that is typed, or that another program discovers. A bounded channel blocks the sender while
    /// there is no room.
    ///
    /// ```
    /// use std::sync::mpsc;
    ///
    /// use pdbp_tasks::{Error, Program};
    ///
    /// let mut program = Program::new("squares");
    /// let square = program.kind("square", |n: u64| n * n);
    /// program.run(|tasks| {
    ///     let (give, take) = mpsc::channel();
    ///     let mut job = tasks.job("demo");
    ///     job.each_received(square, take);
    ///     give.send(3).map_err(Error::other)?;
    ///     let (mut give, mut last) = (Some(give), 0);
    ///     for done in job.results() {
    ///         // The next input is computed from this result.
    ///         last = done?.value;
    ///         give = give.filter(|give| last < 1000 && give.send(last).is_ok());
    ///     }
    ///     assert_eq!(last, 6561);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn each_received<I: Serialize + 't>(&mut self, kind: Kind<I, O>, inputs: Receiver<I>) {
        self.task().each_received(kind, inputs);
    }

    /// Adds a task. Its result is kept as long as the job is, since others may need it.
    ///
    /// # Errors
    /// The pool is full, the job was cancelled, or the input cannot be encoded; the error returns the input.
    pub fn add<I: Serialize, T>(&mut self, kind: Kind<I, T>, input: I) -> Result<Handle<T>, AddError<I>> {
        self.task().add(kind, input)
    }

    /// Adds a task that runs when all `parts` are over, and receives `own` and their results.
    ///
    /// # Errors
    /// As [`add`](Self::add); and [`Refused::UnknownTask`](crate::Refused::UnknownTask) for a handle of another job.
    pub fn join<A: Serialize, T, R>(
        &mut self,
        kind: Kind<(A, Vec<T>), R>,
        own: A,
        parts: &[Handle<T>],
    ) -> Result<Handle<R>, AddError<A>> {
        self.task().join(kind, own, parts)
    }

    /// Begins a value of any length for inputs of this job. It is written in pieces and lives as long as the job: later writes fail.
    ///
    /// # Errors
    /// The pool keeps no large values: see [`Program::large_in`](crate::Program::large_in).
    pub fn write_large(&self) -> io::Result<LargeWriter<'t>> {
        Ok(LargeWriter::new(Box::new(self.tasks.large(self.id.0)?)))
    }

    /// Begins a task with options.
    pub fn task(&mut self) -> New<&mut Self> {
        New::of(self)
    }

    /// Waits for the result of a task.
    ///
    /// # Errors
    /// [`Error::Task`]; [`Error::OtherJob`]; or the error that has ended the pool.
    pub fn wait<T: DeserializeOwned>(&self, task: &Handle<T>) -> Result<T, Error> {
        let number = task.awaited_in(self.identity)?;
        let served = self.tasks.served;
        let mut pool = served.pool();
        loop {
            match pool.result(self.id, number) {
                Some(Ok(bytes)) => return Ok(wire::decode(&bytes)?),
                Some(Err(error)) => return Err(Error::Task { number, error }),
                None => {}
            }
            if let Some(error) = served.error() {
                return Err(error);
            }
            pool = served.wait(pool);
        }
    }

    /// Returns the results of tasks added by [`each`](Self::each), as they come. The iterator ends when all tasks of the job are over, including
    /// those added by tasks.
    pub fn results(&mut self) -> Results<'_, 't, O> {
        Results::new(self)
    }

    /// Cancels all tasks that are not over. Running ones are notified ([`Scope::is_unwanted`](crate::Scope::is_unwanted)), and their results are
    /// ignored. Nothing can be added any more.
    pub fn cancel(&mut self) {
        self.feeds.clear();
        self.tasks.served.pool().cancel(self.id);
        self.tasks.wake();
    }
}

impl<O> Drop for Job<'_, O> {
    fn drop(&mut self) {
        self.tasks.served.pool().forget(self.id);
        self.tasks.served.names().remove(&self.id.0);
        if let Some(large) = &self.tasks.served.large {
            large.forget(self.id.0);
        }
        self.tasks.wake();
    }
}

/// A task that is about to be added to a job, or by a running task, with options.
#[must_use = "it is not added yet"]
pub struct New<J, A = Handle<()>> {
    pub(crate) job: J,
    pub(crate) options: Options,
    pub(crate) needs: Resources,
    /// Tasks that must be over first.
    pub(crate) after: Vec<A>,
}

impl<J, A> New<J, A> {
    pub(crate) fn of(job: J) -> Self {
        Self { job, options: Options::default(), needs: Resources::none(), after: Vec::new() }
    }

    /// Sets the priority: it goes out before tasks of lower priority. The default is 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.options.priority = priority;
        self
    }

    /// Sets how often it is run again after a failure. The default is 0.
    pub fn retries(mut self, retries: u16) -> Self {
        self.options.retries = retries;
        self
    }

    /// Sets the longest run. [`Scope::is_unwanted`](crate::Scope::is_unwanted) tells a function that its time is up; one that still runs long after
    /// that has failed.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.options = self.options.with_limit(limit);
        self
    }

    /// Never starts it a second time: it is neither copied, nor run again after a failure or the loss of its processor.
    pub fn once(mut self) -> Self {
        self.options.once = true;
        self
    }

    /// Sets what it needs from its node while it runs. It is handed out where that is offered and free, and ends as
    /// [`TaskError::NoOffer`](crate::TaskError::NoOffer) if no node offers it.
    pub fn needs(mut self, needs: Resources) -> Self {
        self.needs = needs;
        self
    }

    /// Does not copy it when it takes long: to the pool's knowledge, no two copies run at the same time. If its processor is lost, it runs again.
    pub fn exclusive(mut self) -> Self {
        self.options.exclusive = true;
        self
    }
}

impl<J> New<J> {
    /// Runs it only when that task, which must be of the same job, is over.
    pub fn after<T>(mut self, task: &Handle<T>) -> Self {
        self.after.push(Handle::new(task.job, task.number));
        self
    }

    /// Numbers of the tasks that must be over first, for the job they belong to.
    pub(crate) fn after_in(&self, job: u64) -> Result<Vec<u64>, Refused> {
        self.after.iter().map(|task| task.number_in(job)).collect()
    }
}

impl<'t, O: DeserializeOwned> New<&mut Job<'t, O>> {
    /// As [`Job::add`].
    ///
    /// # Errors
    /// As [`Job::add`].
    pub fn add<I: Serialize, T>(self, kind: Kind<I, T>, input: I) -> Result<Handle<T>, AddError<I>> {
        self.push(kind.id, input, None)
    }

    /// As [`Job::join`].
    ///
    /// # Errors
    /// As [`Job::join`].
    pub fn join<A: Serialize, T, R>(
        self,
        kind: Kind<(A, Vec<T>), R>,
        own: A,
        parts: &[Handle<T>],
    ) -> Result<Handle<R>, AddError<A>> {
        let parts = parts.iter().map(|part| part.number_in(self.job.identity)).collect();
        self.push(kind.id, own, Some(parts))
    }

    /// As [`Job::each`].
    pub fn each<I: Serialize>(self, kind: Kind<I, O>, inputs: impl IntoIterator<Item = I, IntoIter: 't>) {
        self.feed(kind.id, inputs.into_iter().map(|input| kind::encode(&input).map(Some)));
    }

    /// As [`Job::each_received`].
    pub fn each_received<I: Serialize + 't>(self, kind: Kind<I, O>, inputs: Receiver<I>) {
        let next = move || match inputs.try_recv() {
            Ok(input) => Some(kind::encode(&input).map(Some)),
            Err(TryRecvError::Empty) => Some(Ok(None)),
            Err(TryRecvError::Disconnected) => None,
        };
        self.feed(kind.id, std::iter::from_fn(next));
    }

    fn feed(self, kind: KindId, inputs: impl Iterator<Item = Result<Option<Bytes>, postcard::Error>> + 't) {
        let after = self.after_in(self.job.identity);
        self.job.feeds.push_back(Feed {
            kind,
            options: self.options,
            needs: self.needs,
            after,
            inputs: Box::new(inputs),
        });
    }

    fn push<I: Serialize, T>(
        self,
        kind: KindId,
        input: I,
        join: Option<Result<Vec<u64>, Refused>>,
    ) -> Result<Handle<T>, AddError<I>> {
        match self.push_encoded(kind, kind::encode(&input), join) {
            Ok(handle) => Ok(handle),
            Err(error) => Err(AddError { input, error }),
        }
    }

    fn push_encoded<T>(
        self,
        kind: KindId,
        input: Result<Bytes, postcard::Error>,
        join: Option<Result<Vec<u64>, Refused>>,
    ) -> Result<Handle<T>, Error> {
        let (after, join, input) = (self.after_in(self.job.identity)?, join.transpose()?, input?);
        let Self { job, options, needs, .. } = self;
        let (join, after) = (join.as_deref(), &after);
        let new = NewTask { kind, options, needs: &needs, input, join, after, keep: true };
        let added = job.tasks.served.pool().add(job.id, &new);
        job.tasks.wake();
        Ok(Handle::new(job.identity, added?))
    }
}
