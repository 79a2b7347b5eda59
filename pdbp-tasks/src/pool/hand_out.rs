//! Requests from processors, and what each is handed.
//!
//! Tasks go out in this order: those of lost processors; ready ones by priority and, at equal priority, the more demanding first; copies of tasks
//! that take long elsewhere ([`checks`](super::checks)). How long tasks of a kind take decides how many go out at a time: those of microseconds by
//! the hundred, those above 4 ms one by one with one in reserve, those above 100 ms without a reserve; and never more than a processor's share of
//! what is ready. A task that needs more than a processor goes alone to a processor that holds nothing. So does a lost task: if its processor
//! died of it, the next death identifies it.
//!
//! If a task could run on a node but not next to what runs there now, one such node withholds tasks that would take the scarce resource, so that
//! small tasks cannot starve the large one. Other nodes carry on.

use std::cmp::Reverse;
use std::time::Duration;

use crate::resources::Resources;
use crate::timeline::Fate;
use crate::wire::{Assignment, Down, TaskId};

use super::checks::CHECK_INTERVAL;
use super::lanes::{LaneId, PLAIN, Source};
use super::table::Holder;
use super::tasks::State;
use super::{Flaw, Known, Pool, Processor, Share, TaskError, Waits};

/// A processor is given about this much work at a time. With less, commands that end at once would pass from thread to thread one by one.
const BATCH: Duration = Duration::from_millis(8);
/// Tasks of kinds that take longer are handed out only when they are needed.
const LONG: Duration = Duration::from_millis(100);

impl Pool {
    /// Registers a processor with the functions that it knows and what its node offers. If its functions differ from the pool's it is refused,
    /// and everything it sends is ignored. Returns whether it was accepted.
    pub fn hello(&mut self, processor: Processor, fingerprint: u64, offer: Resources) -> bool {
        if self.banned.contains(&processor) {
            return false;
        }
        if fingerprint != self.fingerprint {
            let why = format!(
                "its functions ({fingerprint:016x}) differ from those of the pool ({:016x})",
                self.fingerprint
            );
            self.refuse(processor, why);
            self.notices.push_back((processor, Down::Refused { fingerprint: self.fingerprint }));
            return false;
        }
        self.nodes.set_offer(processor.node, offer);
        self.reconsider_parked();
        true
    }

    /// Records that a processor has room for this many more tasks.
    pub fn ask(&mut self, now: Duration, processor: Processor, room: usize) {
        if self.banned.contains(&processor) {
            return;
        }
        self.meet(now, processor);
        let Some(known) = self.processors.get_mut(&processor) else { return };
        (known.room, known.heard) = (room, now);
        // Not before: a processor that was told to drop a task is still computing it.
        if known.held == 0
            && let Some(share) = known.share.take()
        {
            let demand = &self.lanes.get(share.lane).demand;
            self.nodes.of(processor.node).release(demand, share.gpus);
            self.reconsider = self.turns;
        }
        // A processor already remembered that asks again is answered again, since the first answer may have been lost.
        if known.waits != Waits::Asking {
            known.waits = Waits::Asking;
            self.asking.push_back(processor);
        }
    }

    /// Whether a processor has asked or brought tasks along, and has not left.
    #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "without a journal nobody returns"))]
    pub(crate) fn has_met(&self, processor: Processor) -> bool {
        self.processors.contains_key(&processor)
    }

    /// Registers a processor, if it is new.
    pub(super) fn meet(&mut self, now: Duration, processor: Processor) {
        self.trouble.record_sign_of_life(processor);
        self.processors.entry(processor).or_insert_with(|| {
            self.nodes.of(processor.node).processors += 1;
            Known { room: 0, held: 0, waits: Waits::No, share: None, heard: now }
        });
    }

    /// Removes a processor that is gone or has announced that it leaves: what it held is handed out again.
    pub fn leave(&mut self, processor: Processor) {
        self.forget_processors(|other| other == processor);
    }

    /// Removes a node that is gone without notice, with all its processors. What they ran may be the cause: see
    /// [`Limits::crashes`](super::Limits).
    pub fn lose_node(&mut self, node: u16) {
        self.blame(node);
        self.forget_processors(|processor| processor.node == node);
        // A processor that merely announces its departure stays banned.
        self.banned.retain(|processor| processor.node != node);
        self.strays.retain(|processor, _| processor.node != node);
    }

    pub(super) fn forget_processors(&mut self, is_gone: impl Fn(Processor) -> bool) {
        for (processor, known) in self.processors.extract_if(|processor, _| is_gone(*processor)) {
            let room = self.nodes.of(processor.node);
            room.processors -= 1;
            if let Some(share) = known.share {
                room.release(&self.lanes.get(share.lane).demand, share.gpus);
            }
            if room.processors == 0 {
                self.trouble.forget(processor.node);
                let here = self.lanes.iter_mut().filter(|lane| lane.waits_on == Some(processor.node));
                here.for_each(|lane| lane.waits_on = None);
            }
        }
        self.reconsider_parked();
        self.trouble.forget_processors(&is_gone);
        self.notices.retain(|(processor, _)| !is_gone(*processor));
        let (mut dropped, mut lost) = (Vec::new(), Vec::new());
        for row in self.table.rows_mut() {
            let gone = row.holders().find(|holder| is_gone(holder.processor)).map(|holder| holder.processor);
            for holder in &mut row.holders {
                lost.extend(
                    holder.take_if(|holder| is_gone(holder.processor)).map(|holder| (row.task, holder)),
                );
            }
            dropped.extend(gone.filter(|_| !row.is_held()).map(|processor| (row.task, processor)));
        }
        for (task, holder) in lost {
            self.record_span(task, &holder, Fate::Lost);
        }
        for (task, processor) in dropped {
            self.counts.lost += 1;
            self.drop_by_all(task, TaskError::MayHaveRun(processor));
        }
    }

    /// Hands out again a task of the table that nobody holds any more, or ends it if it may be started only once.
    pub(super) fn drop_by_all(&mut self, task: TaskId, if_once: TaskError) {
        let once =
            self.tasks.get(task).is_some_and(|entry| entry.options.once) && !self.has(Flaw::RestartsOnce);
        if let Some(error) = self.verdict(task).or(once.then_some(if_once)) {
            self.leave_table(task, None);
            return self.end(task, Err(error.into()));
        }
        self.queue_again(task);
    }

    /// Queues a task of the table that nobody holds to be handed out again.
    pub(super) fn queue_again(&mut self, task: TaskId) {
        if self.has(Flaw::ForgetsTable) {
            return;
        }
        let isolation = self.isolation(task);
        let Some(entry) = self.tasks.get_mut(task) else { return };
        entry.lane = self.lanes.isolated(entry.lane, isolation);
        self.lanes.get_mut(entry.lane).lost.push_back(task);
        self.reconsider_parked();
    }

    /// Removes tasks that were ended before they ran from the queues, which would keep them until a processor is given what lies behind.
    pub(super) fn forget_ended(&mut self) {
        let exists = |task: TaskId| self.tasks.get(task).is_some();
        for lane in self.lanes.iter_mut() {
            lane.ready.retain(exists);
            lane.lost.retain(|task| exists(*task));
        }
        self.reconsider_parked();
    }

    /// Reconsiders the processors on standby: there may be tasks for them now.
    pub(super) fn reconsider_parked(&mut self) {
        self.reconsider = self.turns;
    }

    /// Returns the next message to a processor, if there is one now.
    pub fn poll(&mut self, now: Duration) -> Option<(Processor, Down)> {
        self.clock = now;
        self.record_long(now);
        if let Some(notice) = self.notices.pop_front() {
            return Some(notice);
        }
        loop {
            let Some((processor, waits)) = self.next_asker() else {
                let any = self.limited > 0 || !self.parked.is_empty() || self.has_special();
                let late = now >= self.next_check && any;
                if !late {
                    return None;
                }
                self.check(now);
                match self.notices.pop_front() {
                    None if self.is_parked_due() => continue,
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
            // A processor that holds as much as it may will report anyway, and is considered again then.
            if idle || !self.has_more() {
                self.park(now, processor);
                if waits == Waits::Asking && idle {
                    return Some((processor, Down::Standby));
                }
            }
        }
    }

    /// When to call [`poll`](Self::poll) again even if nothing happens; `None`: not until something does.
    pub fn next_time(&self) -> Option<Duration> {
        let idle = !self.parked.is_empty() && self.table.len() > 0;
        (self.limited > 0 || idle || self.has_special() || self.has_trouble()).then_some(self.next_check)
    }

    /// Returns the processor to consider next, and the state in which it waits.
    fn next_asker(&mut self) -> Option<(Processor, Waits)> {
        if let Some(processor) = self.asking.pop_front() {
            return Some((processor, Waits::Asking));
        }
        let (processor, number) = if self.is_parked_due() { self.parked.pop_front()? } else { return None };
        Some((processor, Waits::Parked(number)))
    }

    /// Whether there may be a task for the first processor on standby.
    fn is_parked_due(&mut self) -> bool {
        let Some((_, number)) = self.parked.front() else { return false };
        self.is_over() || *number <= self.reconsider && self.has_more()
    }

    fn park(&mut self, now: Duration, processor: Processor) {
        // It may be the one to take a copy.
        self.next_check = self.next_check.min(now + CHECK_INTERVAL.0);
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

    /// Whether there is a task that nobody holds.
    fn has_more(&mut self) -> bool {
        if self.is_paused() {
            return false;
        }
        self.peek(PLAIN).is_some() || (0..self.lanes.special().len()).any(|i| self.peek_special(i).is_some())
    }

    /// Returns the next task of a lane.
    pub(super) fn peek(&mut self, lane: LaneId) -> Option<(TaskId, Source)> {
        while let Some(task) = self.lanes.get(lane).lost.front() {
            if self.is_unheld(*task) {
                return Some((*task, Source::Lost));
            }
            self.lanes.get_mut(lane).lost.pop_front();
        }
        let mut next = self.peek_ready(lane);
        while let Some(task) = next
            && self.unread.is_too_much(&self.limits)
            && self.is_held_back(task)
        {
            self.set_aside(lane);
            next = self.peek_ready(lane);
        }
        let next = next.map(|task| (task, Source::Ready));
        let lane = self.lanes.get_mut(lane);
        if next.is_none() && lane.waits_on.take().is_some() {
            self.reconsider_parked();
        }
        next
    }

    fn peek_ready(&mut self, lane: LaneId) -> Option<TaskId> {
        let tasks = &self.tasks;
        let is_ready = |task| tasks.get(task).is_some_and(|entry| entry.state == State::Ready);
        self.lanes.get_mut(lane).ready.peek(is_ready)
    }

    /// Returns the next task of the special lane at this place.
    fn peek_special(&mut self, place: usize) -> Option<(LaneId, TaskId, Source)> {
        let lane = *self.lanes.special().get(place)?;
        self.peek(lane).map(|(task, from)| (lane, task, from))
    }

    /// Returns the next task for a processor that holds this many.
    fn next_for(&mut self, processor: Processor, held: usize) -> Option<(LaneId, TaskId, Source)> {
        // It may still be computing what it was told to drop, until it asks.
        if held == 0 && self.processors.get(&processor)?.share.is_some() {
            return None;
        }
        if self.lanes.special().is_empty() {
            let (task, from) = self.peek(PLAIN)?;
            let may = self.may_have_plain(processor, held) && (held == 0 || from == Source::Ready);
            return may.then_some((PLAIN, task, from));
        }
        let mut all: Vec<_> = (0..self.lanes.special().len()).filter_map(|i| self.peek_special(i)).collect();
        all.extend(self.peek(PLAIN).map(|(task, from)| (PLAIN, task, from)));
        let priority = |task: TaskId| self.tasks.get(task).map(|entry| entry.options.priority);
        all.sort_by_key(|(_, task, from)| (*from != Source::Lost, Reverse(priority(*task))));
        let may_have_plain = self.may_have_plain(processor, held);
        let overcommits = self.has(Flaw::Overcommits);
        let room = self.nodes.get(processor.node)?;
        let mut lacks = super::nodes::Lacks::default();
        for (id, task, from) in all {
            let lane = self.lanes.get_mut(id);
            if lacks.concern(&lane.demand) || !room.could(&lane.demand) {
                continue;
            }
            let lacking = if overcommits { Default::default() } else { room.lacks(&lane.demand) };
            let goes_alone = id != PLAIN || from == Source::Lost;
            if lacking.is_empty() && (held == 0 || !goes_alone && may_have_plain) {
                return Some((id, task, from));
            }
            if goes_alone && lacking.is_empty() {
                // It is reserved for a processor that holds nothing.
                return None;
            }
            if id != PLAIN && *lane.waits_on.get_or_insert(processor.node) == processor.node {
                lacks = lacks.with(lacking);
            }
        }
        None
    }

    /// Whether a processor may be given a plain task.
    fn may_have_plain(&self, processor: Processor, held: usize) -> bool {
        if held > 0 {
            // Nothing waits behind a more demanding task, nor behind a suspect.
            return self.processors.get(&processor).is_some_and(|known| {
                known.share.is_none_or(|share| share.lane == PLAIN) || self.has(Flaw::QueuesBehindSuspect)
            });
        }
        let demand = &self.lanes.get(PLAIN).demand;
        self.nodes.get(processor.node).is_some_and(|room| room.lacks(demand).is_empty())
    }

    fn is_unheld(&self, task: TaskId) -> bool {
        match self.tasks.get(task).map(|entry| entry.state) {
            Some(State::Scheduled { row }) => self.table.get(row).is_some_and(|row| !row.is_held()),
            _ => false,
        }
    }

    fn hand_out(&mut self, now: Duration, processor: Processor) -> Vec<Assignment> {
        if self.is_paused() {
            return Vec::new();
        }
        let Some(Known { room, held, .. }) = self.processors.get(&processor) else { return Vec::new() };
        let (room, held) = (*room, *held);
        let available = self.lanes.len();
        let most = self.most_in_trouble(now, processor.node).unwrap_or(room);
        let share = available.div_ceil(2 * self.processors.len().max(1)).min(most);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < share
            && let Some((lane, task, from)) = self.next_for(processor, held + batch.len())
            && let Some(entry) = self.tasks.get(task)
        {
            let length = entry.input.bytes().map_or(0, |bytes| bytes.len());
            let mean = self.kinds.get(usize::from(entry.kind.0)).and_then(|figures| figures.mean());
            let busy = held + batch.len();
            if busy >= most_of(mean) || (busy > 0 && bytes + length > self.limits.batch_bytes) {
                break;
            }
            bytes += length;
            let queue = self.lanes.get_mut(lane);
            match from {
                Source::Lost => drop(queue.lost.pop_front()),
                Source::Ready => drop(queue.ready.pop()),
            }
            if queue.waits_on.take().is_some() {
                self.reconsider = self.turns;
            }
            batch.extend(self.schedule(now, task, processor));
        }
        batch
    }

    /// Hands out a task. The first hand-out moves it into the table.
    pub(super) fn schedule(
        &mut self,
        now: Duration,
        task: TaskId,
        processor: Processor,
    ) -> Option<Assignment> {
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
        let mut gpus = 0;
        if let Some(known) = self.processors.get_mut(&processor) {
            known.held += 1;
            // A processor that holds more holds only plain tasks, and already has its share.
            if known.share.is_none() {
                let lane = entry.lane;
                gpus = self.nodes.of(processor.node).take(&self.lanes.get(lane).demand);
                known.share = Some(Share { lane, gpus });
            }
        }
        let name = self.journal.as_mut().map(|journal| journal.handed_out(entry, processor));
        Some(Assignment {
            task,
            name,
            attempt: entry.attempts,
            kind: entry.kind,
            limit_ms: entry.options.limit_ms,
            gpus,
            input: entry.input.bytes()?.clone(),
        })
    }
}

/// The most tasks of a kind with this mean that a processor may hold.
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
