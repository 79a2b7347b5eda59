//! The view of a running task: it adds sub-tasks, sets its result, and learns when it is no longer wanted.

use std::io;
use std::marker::PhantomData;

use serde::Serialize;

use crate::job::New;
use crate::kind::{self, Kind};
use crate::large::{self, Large, LargeReader, LargeWriter, OfTask};
use crate::wire::{Assignment, Ending, Failure, SubTask};

/// The surroundings of a running task. Tasks that it adds exist if and only if its own result is taken: a run that fails, whose processor is lost,
/// or that was a copy and came second, has added nothing.
pub struct Scope<'a> {
    is_unwanted: &'a dyn Fn() -> bool,
    attempt: u32,
    gpus: u64,
    large: Option<OfTask<'a>>,
    pub(crate) tasks: Vec<SubTask>,
    /// Why its sub-tasks cannot be passed on.
    pub(crate) wrong: Option<Failure>,
}

/// The result of a task: a value, or the result of one of its sub-tasks.
pub struct Given<O> {
    pub(crate) ending: Ending,
    types: PhantomData<fn() -> O>,
}

/// A task that the running one has added.
pub struct Sub<T> {
    index: u16,
    types: PhantomData<fn() -> T>,
}

impl<T> Clone for Sub<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Sub<T> {}

impl<'a> Scope<'a> {
    pub(crate) fn new(
        task: &Assignment,
        is_unwanted: &'a dyn Fn() -> bool,
        large: Option<OfTask<'a>>,
    ) -> Self {
        let Assignment { attempt, gpus, .. } = *task;
        Self { is_unwanted, attempt, gpus, large, tasks: Vec::new(), wrong: None }
    }

    /// Whether the result is no longer wanted: the job was cancelled, the limit is over, or another processor was faster. A long task should check
    /// now and then, and end early with any result.
    pub fn is_unwanted(&self) -> bool {
        (self.is_unwanted)()
    }

    /// Which hand-out of the task this is, from 1 on.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The numbers, from 0 on, of the node's GPUs assigned to the task while it runs: as many as it [needs](New::needs).
    pub fn gpus(&self) -> impl Iterator<Item = u32> + use<> {
        let gpus = self.gpus;
        (0..u64::BITS).filter(move |number| gpus >> number & 1 == 1)
    }

    /// Begins a value of any length, which is written in pieces and stored beside the pool. Its name may be part of the result, and of inputs of
    /// sub-tasks. It is kept if and only if the result of this run is taken.
    ///
    /// # Errors
    /// The pool keeps no large values: see [`Program::large_in`](crate::Program::large_in).
    pub fn write_large(&self) -> io::Result<LargeWriter<'a>> {
        Ok(LargeWriter::new(Box::new(self.large.ok_or_else(large::not_kept)?)))
    }

    /// Reads a value of any length, in pieces.
    ///
    /// # Errors
    /// As [`write_large`](Self::write_large). A missing value or an unreachable pool is an error of `read`.
    pub fn read_large(&self, value: &Large) -> io::Result<LargeReader<'a>> {
        Ok(LargeReader::new(Box::new(self.large.ok_or_else(large::not_kept)?), *value))
    }

    /// Ends with this value as the result.
    pub fn done<O: Serialize>(&mut self, value: O) -> Given<O> {
        Given { ending: kind::value(&value), types: PhantomData }
    }

    /// Ends with the result of a task that was added.
    pub fn result_of<O>(&mut self, task: Sub<O>) -> Given<O> {
        Given { ending: Ending::Of(task.index), types: PhantomData }
    }

    /// Ends without a result. If the task has retries left, it runs again.
    pub fn fail<O>(&mut self, why: impl Into<String>) -> Given<O> {
        Given { ending: Ending::Failed(Failure::Said(why.into())), types: PhantomData }
    }

    /// Adds a task.
    pub fn add<I: Serialize, T>(&mut self, kind: Kind<I, T>, input: I) -> Sub<T> {
        self.task().add(kind, input)
    }

    /// Adds a task that receives the results of others, and makes its result that of the running one.
    pub fn join<A: Serialize, T, O>(
        &mut self,
        kind: Kind<(A, Vec<T>), O>,
        own: A,
        parts: &[Sub<T>],
    ) -> Given<O> {
        let task = self.task().join(kind, own, parts);
        self.result_of(task)
    }

    /// Begins a task with options.
    pub fn task(&mut self) -> New<&mut Self, u16> {
        New::of(self)
    }
}

impl New<&mut Scope<'_>, u16> {
    /// Runs it only when that task is over.
    pub fn after<T>(mut self, task: Sub<T>) -> Self {
        self.after.push(task.index);
        self
    }

    /// Adds it.
    pub fn add<I: Serialize, T>(self, kind: Kind<I, T>, input: I) -> Sub<T> {
        self.push(kind, &input, None)
    }

    /// Adds it; it receives the results of other tasks.
    pub fn join<A: Serialize, T, O>(self, kind: Kind<(A, Vec<T>), O>, own: A, parts: &[Sub<T>]) -> Sub<O> {
        self.push(kind, &own, Some(parts.iter().map(|part| part.index).collect()))
    }

    fn push<I, T>(self, kind: Kind<I, T>, input: &impl Serialize, join: Option<Vec<u16>>) -> Sub<T> {
        let Self { job: scope, options, needs, after } = self;
        let index = u16::try_from(scope.tasks.len());
        match (index, kind::encode(input)) {
            (Ok(_), Ok(input)) => {
                scope.tasks.push(SubTask { kind: kind.id, options, needs, input, join, after })
            }
            (Err(_), _) => scope.wrong = Some(Failure::Unusable("it adds more than 65536 sub-tasks".into())),
            (_, Err(e)) => {
                let why = format!("the input of a sub-task cannot be encoded: {e}");
                scope.wrong = Some(Failure::Unusable(why));
            }
        }
        Sub { index: index.unwrap_or(u16::MAX), types: PhantomData }
    }
}
