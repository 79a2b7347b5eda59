//! Who has asked, and what is handed out to whom.
//!
//! In this order: tasks of lost processors; by priority what is ready; copies of tasks that take long elsewhere. What tasks of a kind take
//! decides how many go out at a time: those of microseconds by the hundred, those above 2 ms one by one with one in reserve, above 100 ms
//! without; and never more than a processor's share of what is ready.

use std::collections::HashMap;
use std::time::Duration;

use crate::wire::{Assignment, Down, TaskId};

use super::table::Holder;
use super::tasks::{Entry, State};
use super::{Known, Pool, Processor, TaskError, Waits};

/// What a processor is given at a time takes about so long.
const BATCH: Duration = Duration::from_millis(2);
/// Tasks of kinds that take longer are handed out when they are needed only.
const LONG: Duration = Duration::from_millis(100);
/// A task of a kind that few are known of is copied after this time.
const COPY_UNKNOWN: Duration = Duration::from_secs(60);
/// None is copied before.
const COPY_LEAST: Duration = Duration::from_millis(10);
/// Least and most time between two looks for tasks that take too long.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Submissions of tasks that never existed after which nothing of a processor is looked at any more.
const STRAYS: u32 = 100;

impl Pool {
    /// A processor says which functions it knows. With others than the pool's it is refused, and all that it sends ignored.
    pub fn hello(&mut self, processor: Processor, fingerprint: u64) {
        if fingerprint != self.fingerprint {
            self.banned.insert(processor);
            self.notices.push_back((processor, Down::Refused { fingerprint: self.fingerprint }));
        }
    }

    /// A processor has room for so many more tasks.
    pub fn ask(&mut self, now: Duration, processor: Processor, room: usize) {
        if self.banned.contains(&processor) {
            return;
        }
        let known = self.processors.entry(processor).or_insert(Known {
            room,
            held: 0,
            waits: Waits::No,
            heard: now,
            unknown: 0,
        });
        (known.room, known.heard) = (room, now);
        // Who is remembered and asks again, since the first answer may have been lost, is answered again.
        if known.waits != Waits::Asking {
            known.waits = Waits::Asking;
            self.asking.push_back(processor);
        }
    }

    /// A processor is gone, or has said that it goes: what it holds is handed out again.
    pub fn leave(&mut self, processor: Processor) {
        self.forget_processors(|other| other == processor);
    }

    /// All processors of a node are gone.
    pub fn lose_node(&mut self, node: u16) {
        self.forget_processors(|processor| processor.node == node);
    }

    fn forget_processors(&mut self, is_gone: impl Fn(Processor) -> bool) {
        self.processors.retain(|processor, _| !is_gone(*processor));
        self.banned.retain(|processor| !is_gone(*processor));
        self.notices.retain(|(processor, _)| !is_gone(*processor));
        let mut dropped = Vec::new();
        for row in self.table.rows_mut() {
            let gone = row.holders().find(|holder| is_gone(holder.processor)).map(|holder| holder.processor);
            for holder in &mut row.holders {
                holder.take_if(|holder| is_gone(holder.processor));
            }
            dropped.extend(gone.filter(|_| !row.is_held()).map(|processor| (row.task, processor)));
        }
        for (task, processor) in dropped {
            self.counts.lost += 1;
            self.drop_by_all(task, TaskError::MayHaveRun(processor));
        }
    }

    /// Nobody holds a task of the table any more: it is handed out again, unless it may be started only once.
    pub(super) fn drop_by_all(&mut self, task: TaskId, if_once: TaskError) {
        if self.tasks.get(task).is_some_and(|entry| entry.options.once) {
            self.leave_table(task, None);
            return self.end(task, Err(if_once.into()));
        }
        self.lost.push_back(task);
    }

    /// The next message to a processor, if there is one now.
    pub fn poll(&mut self, now: Duration) -> Option<(Processor, Down)> {
        if let Some(notice) = self.notices.pop_front() {
            return Some(notice);
        }
        loop {
            let Some((processor, waits)) = self.next_asker() else {
                let late = now >= self.next_look && (self.limited > 0 || !self.parked.is_empty());
                if !late {
                    return None;
                }
                self.look(now);
                match self.notices.pop_front() {
                    None if self.has_more() && !self.parked.is_empty() => continue,
                    notice => return notice,
                }
            };
            let Some(known) = self.processors.get_mut(&processor).filter(|known| known.waits == waits) else {
                continue;
            };
            known.waits = Waits::No;
            let idle = known.held == 0;
            let tasks = self.hand_out(now, processor);
            if !tasks.is_empty() {
                return Some((processor, Down::Tasks(tasks)));
            }
            if self.is_over() {
                self.processors.remove(&processor);
                return Some((processor, Down::Stop));
            }
            // With more than it may hold now it reports anyway, and is thought of again then.
            if !self.has_more() {
                self.park(now, processor);
                if waits == Waits::Asking && idle {
                    return Some((processor, Down::Standby));
                }
            }
        }
    }

    /// When to call [`poll`](Self::poll) again though nothing has happened; `None`: not before.
    pub fn next_time(&self) -> Option<Duration> {
        let idle = !self.parked.is_empty() && self.table.len() > 0;
        (self.limited > 0 || idle).then_some(self.next_look)
    }

    /// Who is thought of next, and as what it waits.
    fn next_asker(&mut self) -> Option<(Processor, Waits)> {
        if let Some(processor) = self.asking.pop_front() {
            return Some((processor, Waits::Asking));
        }
        let any = self.has_more() || self.is_over();
        any.then(|| self.parked.pop_front())
            .flatten()
            .map(|(processor, number)| (processor, Waits::Parked(number)))
    }

    fn park(&mut self, now: Duration, processor: Processor) {
        // It may be the one to take a copy.
        self.next_look = self.next_look.min(now + LOOK.0);
        self.turns += 1;
        let waits = Waits::Parked(self.turns);
        if let Some(known) = self.processors.get_mut(&processor) {
            known.waits = waits;
            self.parked.push_back((processor, self.turns));
        }
        if self.parked.len() > 2 * self.processors.len() + 16 {
            let known = &self.processors;
            let is_parked =
                |at: &(Processor, u64)| known.get(&at.0).is_some_and(|k| k.waits == Waits::Parked(at.1));
            self.parked.retain(is_parked);
        }
    }

    /// Whether there is a task that nobody holds and everybody may be given.
    fn has_more(&mut self) -> bool {
        self.peek().is_some()
    }

    fn peek(&mut self) -> Option<(TaskId, From)> {
        while let Some(task) = self.lost.front() {
            if self.is_unheld(*task) {
                return Some((*task, From::Lost));
            }
            self.lost.pop_front();
        }
        let tasks = &self.tasks;
        self.ready.peek(|task| tasks.get(task).is_some()).map(|task| (task, From::Ready))
    }

    fn is_unheld(&self, task: TaskId) -> bool {
        match self.tasks.get(task).map(|entry| entry.state) {
            Some(State::Scheduled { row }) => self.table.get(row).is_some_and(|row| !row.is_held()),
            _ => false,
        }
    }

    fn hand_out(&mut self, now: Duration, processor: Processor) -> Vec<Assignment> {
        let Some(Known { room, held, .. }) = self.processors.get(&processor) else { return Vec::new() };
        let (room, held) = (*room, *held);
        let available = self.ready.len() + self.lost.len();
        let share = available.div_ceil(2 * self.processors.len().max(1)).min(room);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < share
            && let Some((task, from)) = self.peek()
            && let Some(entry) = self.tasks.get(task)
        {
            let length = entry.input.bytes().map_or(0, |bytes| bytes.len());
            let mean = self.kinds.get(usize::from(entry.kind.0)).and_then(|figures| figures.mean());
            let busy = held + batch.len();
            if busy >= most_of(mean) || (busy > 0 && bytes + length > self.limits.batch_bytes) {
                break;
            }
            bytes += length;
            match from {
                From::Lost => drop(self.lost.pop_front()),
                From::Ready => drop(self.ready.pop()),
            }
            batch.extend(self.schedule(now, task, processor));
        }
        batch
    }

    /// A task is handed out: for the first time into the table.
    fn schedule(&mut self, now: Duration, task: TaskId, processor: Processor) -> Option<Assignment> {
        let entry = self.tasks.get_mut(task)?;
        let row = match entry.state {
            State::Scheduled { row } => row,
            State::Ready => {
                let row = self.table.insert(task);
                entry.state = State::Scheduled { row };
                row
            }
            State::Waiting { .. } => return None,
        };
        let row = self.table.get_mut(row)?;
        row.copied = row.is_held();
        let place = row.holders.iter_mut().find(|holder| holder.is_none())?;
        entry.attempts = entry.attempts.saturating_add(1);
        self.turns += 1;
        *place = Some(Holder { processor, attempt: entry.attempts, since: now, turn: self.turns });
        self.counts.handed_out += 1;
        if let Some(known) = self.processors.get_mut(&processor) {
            known.held += 1;
        }
        Some(Assignment {
            task,
            attempt: entry.attempts,
            kind: entry.kind,
            limit_ms: entry.options.limit_ms,
            input: entry.input.bytes()?.clone(),
        })
    }

    /// Looks for tasks that take too long.
    fn look(&mut self, now: Duration) {
        self.next_look = now + LOOK.1;
        if self.limited > 0 {
            self.take_from_overdue(now);
            self.next_look = now + 10 * LOOK.0;
        }
        if !self.parked.is_empty() && !self.has_more() {
            let next = self.copy(now);
            self.next_look = self.next_look.min(next).max(now + LOOK.0);
        }
    }

    /// What each processor runs: of what it holds the first that it was given.
    fn running(&self) -> HashMap<Processor, u64> {
        let mut running = HashMap::new();
        for holder in self.table.rows().flat_map(|row| row.holders()) {
            let first = running.entry(holder.processor).or_insert(holder.turn);
            *first = (*first).min(holder.turn);
        }
        running
    }

    /// Hands tasks that take long to idle processors as well. The result that comes first counts. What runs is copied to another node;
    /// what waits behind it in its processor to anybody. Returns when the next is due.
    fn copy(&mut self, now: Duration) -> Duration {
        let running = self.running();
        let (mut due, mut next) = (Vec::new(), now + LOOK.1);
        for row in self.table.rows().filter(|row| !row.copied) {
            let ([Some(holder), None] | [None, Some(holder)]) = row.holders else { continue };
            let may = |entry: &&Entry| !entry.options.once && !entry.options.exclusive;
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
            let suits = |(processor, number): &(Processor, u64)| {
                let known = self.processors.get(processor);
                known.is_some_and(|known| known.waits == Waits::Parked(*number) && known.held == 0)
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

    /// Takes tasks from processors that have not ended them long after their limit. Such a processor is given nothing more until it says
    /// something.
    fn take_from_overdue(&mut self, now: Duration) {
        let running = self.running();
        let overdue = |row: &super::table::Row, holder: &Holder| {
            let entry = self.tasks.get(row.task).filter(|entry| entry.options.limit_ms > 0)?;
            let limit = Duration::from_millis(entry.options.limit_ms.into());
            let heard = self.processors.get(&holder.processor).map_or(Duration::ZERO, |known| known.heard);
            let began = holder.since.max(heard);
            let runs = running.get(&holder.processor) == Some(&holder.turn);
            (runs && now > began + limit + self.limits.grace).then_some((row.task, *holder, limit))
        };
        let rows = self.table.rows();
        let late: Vec<_> =
            rows.flat_map(|row| row.holders().filter_map(move |holder| overdue(row, holder))).collect();
        for (task, holder, limit) in late {
            let processor = holder.processor;
            self.fail(task, processor, holder.attempt, TaskError::TimedOut { limit, processor }, true);
            self.forget_processors(|other| other == processor);
        }
    }

    /// A submission of a task that never existed.
    pub(super) fn note_unknown(&mut self, processor: Processor) {
        self.counts.unknown += 1;
        if let Some(known) = self.processors.get_mut(&processor) {
            known.unknown += 1;
            if known.unknown >= STRAYS {
                self.leave(processor);
                self.banned.insert(processor);
            }
        }
    }
}

/// Which queue a task comes from.
enum From {
    Lost,
    Ready,
}

/// How many tasks of a kind with this mean a processor may hold.
fn most_of(mean: Option<Duration>) -> usize {
    match mean {
        None => 1,
        Some(mean) if mean > LONG => 1,
        Some(mean) => {
            let batch = BATCH.as_nanos() / mean.as_nanos().max(1);
            2 * usize::try_from(batch.max(1)).unwrap_or(usize::MAX / 2)
        }
    }
}
