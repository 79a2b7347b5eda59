//! A job in the journal: its chunks, which of its tasks are over, and which wait for others.
//!
//! A task enters the pool when all its dependencies are over and durable. A task with dependencies waits for one of them at a time and is checked
//! again when that one is over; the rest of its chunk waits along with it. Since a task depends only on earlier ones, the first unfinished task
//! never waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::resources::Resources;
use crate::store::JobRecord;
use crate::wire::{self, Bytes, Chunk, KindId, Options};

/// Never the number of a task.
const NONE: u64 = u64::MAX;
/// The most chunks, or tasks to run again, that wait for others; above this no more tasks are examined.
const WAITING: usize = 1 << 14;
/// The most tasks that end together because one that they need has failed: there may be any number, and tasks that end together are written
/// together.
pub(super) const NOT_RUN: u64 = 4096;

/// A task of a chunk.
pub(super) struct Task<'b> {
    pub(super) kind: KindId,
    pub(super) options: Options,
    pub(super) needs: &'b Resources,
    /// Its own part of its input.
    pub(super) own: Bytes,
    /// The tasks whose results follow.
    pub(super) join: Option<&'b [u64]>,
    /// Whether it has waited for others.
    pub(super) was_unlocked: bool,
}

/// What to feed next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This task enters the pool.
    Task(u64),
    /// These cannot run, since a task that they need has failed.
    NotRun { tasks: Range<u64>, needed: u64 },
}

/// Whether the dependencies of a task are available.
enum Dependency {
    Ready,
    Pending(u64),
    Failed(u64),
}

/// A flaw: a task runs when one of its dependencies is available.
#[derive(Clone, Copy)]
pub(super) struct Hasty;

/// Tasks of a [page](Bits).
const PAGE: u64 = 4096;
const WORDS: usize = PAGE as usize / 64;

/// One bit per task, in pages of those that have one set: a job may have more tasks than there is memory for bits.
#[derive(Clone, Debug, Default)]
struct Bits(BTreeMap<u64, Box<[u64; WORDS]>>);

impl Bits {
    /// The page of a task, its word there and its bit in that.
    fn place(number: u64) -> (u64, usize, u64) {
        (number / PAGE, (number % PAGE / 64) as usize, 1 << (number % 64)) // below `PAGE`
    }

    fn has(&self, number: u64) -> bool {
        let (page, at, bit) = Self::place(number);
        self.0.get(&page).and_then(|words| words.get(at)).is_some_and(|bits| bits & bit != 0)
    }

    /// The first set bit at or after this one. Many in between may be clear.
    fn next(&self, from: u64) -> Option<u64> {
        let (first, mut skip, bit) = Self::place(from);
        let mut mask = !(bit - 1);
        for (page, words) in self.0.range(first..) {
            if *page > first {
                (skip, mask) = (0, u64::MAX);
            }
            for (at, bits) in words.iter().enumerate().skip(skip) {
                if bits & mask != 0 {
                    return Some(page * PAGE + at as u64 * 64 + u64::from((bits & mask).trailing_zeros()));
                }
                mask = u64::MAX;
            }
        }
        None
    }

    fn set(&mut self, number: u64, value: bool) {
        let (page, at, bit) = Self::place(number);
        let words = if value {
            self.0.entry(page).or_insert_with(|| [0; WORDS].into())
        } else if let Some(words) = self.0.get_mut(&page) {
            words
        } else {
            return;
        };
        if let Some(bits) = words.get_mut(at) {
            if value { *bits |= bit } else { *bits &= !bit }
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) record: JobRecord,
    /// As it is in the journal; `None`: not there yet.
    pub(super) known: Option<JobRecord>,
    /// Encoded, by the number of their first task.
    chunks: BTreeMap<u64, Bytes>,
    /// The chunk that was decoded last.
    open: Option<(u64, Chunk)>,
    /// The last chunk whose dependencies are known to be all available.
    unlocked: Option<u64>,
    /// How many tasks were added, and how many of those may be handed out.
    pub(super) next: u64,
    pub(super) there: u64,
    /// The next of those to enter the pool, and the ranges that come before it.
    fed: u64,
    first: VecDeque<Range<u64>>,
    /// Tasks that are in the pool ahead of their turn.
    begun: BTreeSet<u64>,
    /// Ranges that wait for a task, by its number.
    waiting: BTreeMap<u64, Vec<Range<u64>>>,
    /// How many ranges that is.
    waits: usize,
    ended: Bits,
    /// Tasks that are over durably.
    durable: Bits,
    /// Task numbers in order of completion; [`NONE`] for a task that runs again.
    order: Vec<u64>,
    /// How many entries of `order` are durable.
    shown: usize,
    /// Failed tasks, with their places in `order`.
    failed: BTreeMap<u64, u64>,
    /// Runs of tasks that run again and are not over.
    runs: BTreeMap<u64, u32>,
    count: u64,
}

impl Batch {
    pub(super) fn new(record: JobRecord) -> Self {
        Self {
            record,
            known: None,
            chunks: BTreeMap::new(),
            open: None,
            unlocked: None,
            next: 0,
            there: 0,
            fed: 0,
            first: VecDeque::new(),
            begun: BTreeSet::new(),
            waiting: BTreeMap::new(),
            waits: 0,
            ended: Bits::default(),
            durable: Bits::default(),
            order: Vec::new(),
            shown: 0,
            failed: BTreeMap::new(),
            runs: BTreeMap::new(),
            count: 0,
        }
    }

    /// This batch without its caches.
    #[cfg(test)]
    pub(super) fn digest(&self) -> Self {
        Self { open: None, unlocked: None, ..self.clone() }
    }

    pub(super) fn add(&mut self, chunk: Bytes, count: u64) {
        self.chunks.insert(self.next, chunk);
        self.next += count;
    }

    /// The chunk that begins with this task, encoded.
    pub(super) fn chunk(&self, first: u64) -> Option<&[u8]> {
        self.chunks.get(&first).map(|chunk| &**chunk)
    }

    /// What to feed next, if anything is ready.
    pub(super) fn next_to_feed(&mut self, flaw: Option<Hasty>) -> Option<Next> {
        loop {
            let tasks = match self.first.front() {
                Some(tasks) => tasks.clone(),
                None if self.fed < self.there && self.waits < WAITING => self.fed..self.there,
                None => return None,
            };
            let number = tasks.start;
            if self.ended.has(number) || self.begun.remove(&number) {
                self.step(number + 1);
                continue;
            }
            let (first, chunk) = self.open(number)?;
            let behind = tasks.start..tasks.end.min(first + chunk.inputs.len());
            match self.needed(number, flaw) {
                Dependency::Ready => {
                    self.step(number + 1);
                    return Some(Next::Task(number));
                }
                Dependency::Pending(needed) => {
                    self.step(behind.end);
                    self.waits += 1;
                    self.waiting.entry(needed).or_default().push(behind);
                }
                Dependency::Failed(needed) => {
                    let tasks = number..behind.end.min(number.saturating_add(NOT_RUN));
                    self.step(tasks.end);
                    return Some(Next::NotRun { tasks, needed });
                }
            }
        }
    }

    /// Marks the tasks before this number as examined.
    fn step(&mut self, to: u64) {
        match self.first.front_mut() {
            Some(tasks) => {
                tasks.start = to;
                if tasks.is_empty() {
                    self.first.pop_front();
                }
            }
            None => self.fed = to,
        }
    }

    /// Returns to the front tasks that could not enter the pool, or end, for now.
    pub(super) fn requeue(&mut self, tasks: Range<u64>) {
        self.first.push_front(tasks);
    }

    fn needed(&mut self, number: u64, flaw: Option<Hasty>) -> Dependency {
        let Some((first, chunk)) = &self.open else { return Dependency::Ready };
        let is_free = chunk.join.is_none() && chunk.after.is_empty();
        if is_free || self.unlocked == Some(*first) {
            return Dependency::Ready;
        }
        debug_assert!(*first <= number, "{first} {number}");
        if !self.failed.is_empty()
            && let Some(failed) = chunk.needed().find(|number| self.failed.contains_key(number))
        {
            return Dependency::Failed(failed);
        }
        if flaw.is_some() && chunk.needed().any(|number| self.durable.has(number)) {
            return Dependency::Ready;
        }
        // The last one first, since tasks tend to end in the order in which they were added.
        if let Some(needed) = chunk.needed().rev().find(|number| !self.durable.has(*number)) {
            return Dependency::Pending(needed);
        }
        self.unlocked = Some(*first);
        Dependency::Ready
    }

    /// A task for which this one waits.
    pub(super) fn waits_for(&self, number: u64) -> Option<u64> {
        let waits = self.waiting.iter().find(|(_, all)| all.iter().any(|tasks| tasks.contains(&number)));
        waits.map(|(needed, _)| *needed)
    }

    /// Requeues the ranges that wait for a task.
    fn release(&mut self, number: u64) {
        if let Some(tasks) = self.waiting.remove(&number) {
            self.waits -= tasks.len();
            self.first.extend(tasks);
        }
    }

    /// Notes that a task is in the pool, though earlier ones may not be.
    pub(super) fn mark_begun(&mut self, number: u64) {
        // A task that is over was brought in for its sub-tasks, and has its turn again if it runs again.
        if !self.ended.has(number) {
            self.begun.insert(number);
        }
    }

    pub(super) fn was_begun(&self, number: u64) -> bool {
        self.begun.contains(&number)
    }

    fn open(&mut self, number: u64) -> Option<&(u64, Chunk)> {
        let (first, encoded) = self.chunks.range(..=number).next_back()?;
        if self.open.as_ref().is_none_or(|(open, _)| open != first) {
            // It was already decoded when it was added or read from the journal.
            self.open = Some((*first, wire::decode(encoded).ok()?));
        }
        self.open.as_ref()
    }

    pub(super) fn task(&mut self, number: u64) -> Option<Task<'_>> {
        let (first, chunk) = self.open(number)?;
        let end = chunk.inputs.get(number - first)?;
        Some(Task {
            kind: chunk.kind,
            options: chunk.options,
            needs: &chunk.needs,
            own: if chunk.prefix.is_empty() { end } else { [&*chunk.prefix, &*end].concat().into() },
            join: chunk.join.as_deref(),
            was_unlocked: chunk.needed().next().is_some(),
        })
    }

    pub(super) fn is_ended(&self, number: u64) -> bool {
        self.ended.has(number)
    }

    /// Ends a task. Returns how many ended before it.
    pub(super) fn end(&mut self, number: u64, failed: bool) -> u64 {
        let position = self.order.len() as u64;
        self.end_at(number, position, failed);
        position
    }

    /// Ends a task at the position that the journal gives.
    pub(super) fn end_at(&mut self, number: u64, position: u64, failed: bool) {
        self.ended.set(number, true);
        self.begun.remove(&number);
        self.runs.remove(&number);
        self.count += 1;
        if failed {
            self.failed.insert(number, position);
            // Tasks that wait for it cannot run, whether or not the failure is durable.
            self.release(number);
        }
        let at = usize::try_from(position).unwrap_or(usize::MAX - 1);
        if at >= self.order.len() {
            self.order.resize(at + 1, NONE);
        }
        if let Some(place) = self.order.get_mut(at) {
            *place = number;
        }
    }

    /// Makes room for this many places, which the journal claims. Returns `false` if there is no memory for them.
    pub(super) fn reserve(&mut self, places: u64) -> bool {
        let Ok(places) = usize::try_from(places) else { return false };
        let more = places.saturating_sub(self.order.len());
        if self.order.try_reserve(more).is_err() {
            return false;
        }
        self.order.resize(self.order.len() + more, NONE);
        true
    }

    /// Marks this many entries of the completion order as durable.
    pub(super) fn show(&mut self, shown: usize) {
        for at in self.shown..shown.min(self.order.len()) {
            let Some(number) = self.order.get(at).copied().filter(|number| *number != NONE) else { continue };
            self.durable.set(number, true);
            self.release(number);
        }
        self.shown = shown;
    }

    /// Makes all failed tasks run again, in this run, and returns them. Their [`turns`](Self::turns) follow once that is durable.
    pub(super) fn retry(&mut self, run: u32) -> Vec<Range<u64>> {
        let failed = std::mem::take(&mut self.failed);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (number, position) in &failed {
            self.ended.set(*number, false);
            self.durable.set(*number, false);
            self.count -= 1;
            if let Some(place) = usize::try_from(*position).ok().and_then(|at| self.order.get_mut(at)) {
                *place = NONE;
            }
            self.runs.insert(*number, run);
            match ranges.last_mut().filter(|last| last.end == *number) {
                Some(last) => last.end += 1,
                None => ranges.push(*number..*number + 1),
            }
        }
        ranges
    }

    /// The part of these tasks that has had its turn; the rest still has it to come.
    pub(super) fn turns(&self, tasks: &[Range<u64>]) -> Vec<Range<u64>> {
        let had = tasks.iter().map(|some| some.start.min(self.fed)..some.end.min(self.fed));
        had.filter(|some| !some.is_empty()).collect()
    }

    /// Gives these another turn.
    pub(super) fn requeue_reruns(&mut self, tasks: Vec<Range<u64>>) {
        self.first.extend(tasks);
    }

    /// Notes tasks that were to run again in this run, as the journal says. Returns `false` if no such tasks exist.
    pub(super) fn run_again(&mut self, tasks: Range<u64>, run: u32) -> bool {
        if tasks.end > self.next || run > self.record.again.runs {
            return false;
        }
        for number in tasks.filter(|number| !self.ended.has(*number)) {
            self.runs.insert(number, run);
        }
        true
    }

    /// The run of a task that is not over.
    pub(super) fn run_of(&self, number: u64) -> u32 {
        self.runs.get(&number).copied().unwrap_or(0)
    }

    /// How many tasks are over.
    pub(super) fn ended(&self) -> u64 {
        self.count
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.len() as u64
    }

    /// How many tasks are durably over, and how many of them have failed.
    pub(super) fn ended_durably(&self) -> (u64, u64) {
        let later = self.order.get(self.shown..).unwrap_or(&[]).iter().filter(|number| **number != NONE);
        let (later, failed) = later.fold((0, 0), |(later, failed), number| {
            (later + 1, failed + u64::from(self.failed.contains_key(number)))
        });
        (self.count - later, self.failed() - failed)
    }

    /// How many places the completion order has.
    pub(super) fn positions(&self) -> usize {
        self.order.len()
    }

    /// Whether all that has ended is durable.
    pub(super) fn is_shown(&self) -> bool {
        self.shown == self.order.len()
    }

    pub(super) fn is_over(&self) -> bool {
        self.record.cancelled || self.record.closed && self.count == self.next
    }

    /// Durable results in order of completion: task numbers, each with the place after it.
    pub(super) fn by_completion(&self, from: u64, most: usize) -> Vec<(u64, u64)> {
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.shown);
        let shown = self.order.get(from..self.shown).unwrap_or(&[]).iter().zip(from as u64 + 1..);
        shown
            .filter(|(number, _)| **number != NONE)
            .take(most)
            .map(|(number, next)| (*number, next))
            .collect()
    }

    /// Results by number, up to the first one missing. Whether they are durable is up to the store.
    pub(super) fn by_number(&self, from: u64, most: usize) -> Vec<(u64, u64)> {
        let mut items = Vec::new();
        let mut at = from;
        while items.len() < most {
            let ended = if self.record.cancelled {
                self.ended.next(at)
            } else {
                Some(at).filter(|at| self.ended.has(*at))
            };
            let Some(number) = ended.filter(|number| *number < self.next) else { break };
            at = number + 1;
            items.push((number, at));
        }
        items
    }
}
