//! The pending work of a simulated device, and the violations that it detects.

use std::collections::HashMap;
use std::ptr::NonNull;

use super::work::Work;
use super::{Fault, Silence, SimulatedEvent};
use crate::device::DeviceError;

/// A pending copy.
struct Pending {
    event: u64,
    queue: u64,
    work: Work,
    end: u64,
    fails: bool,
}

/// A queue.
#[derive(Default)]
struct Line {
    /// When all work submitted to it is done.
    end: u64,
    /// By other queue, the last event for which it waits.
    after: HashMap<u64, u64>,
}

#[derive(Default)]
pub(super) struct State {
    next: u64,
    pub(super) memories: HashMap<u64, Vec<u8>>,
    /// In the order in which they end.
    pending: Vec<Pending>,
    /// When each engine has done all work submitted to it.
    engines: [u64; 3],
    queues: HashMap<u64, Line>,
    pub(super) copies: u64,
    /// Nanoseconds for which each engine has worked.
    pub(super) busy: [u64; 3],
    pub(super) faults: Vec<Fault>,
    pub(super) silence: Silence,
    /// Events of copies that failed, and of those after them.
    failed: Vec<u64>,
    lost: bool,
    pub(super) misuse: Vec<String>,
}

impl State {
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn allocate(&mut self, bytes: usize) -> u64 {
        let number = self.number();
        self.memories.insert(number, vec![0; bytes]);
        number
    }

    pub(super) fn free(&mut self, memory: u64) {
        if self.pending.iter().any(|p| p.work.holds(memory)) {
            self.misuse.push("device memory was freed while a copy was pending".into());
            self.pending.retain(|p| !p.work.holds(memory));
        }
        self.memories.remove(&memory);
    }

    /// The bytes of device memory, for the host's reads and writes outside of copies.
    pub(super) fn memory(&mut self, memory: u64) -> &mut [u8] {
        if self.pending.iter().any(|p| p.work.holds(memory)) {
            self.misuse.push("device memory was touched while a copy was pending".into());
        }
        self.memories.get_mut(&memory).map_or(&mut [], |bytes| bytes)
    }

    /// The address of device memory.
    pub(super) fn place(&mut self, memory: u64) -> NonNull<u8> {
        let first = self.memories.get_mut(&memory).and_then(|bytes| NonNull::new(bytes.as_mut_ptr()));
        first.unwrap_or(NonNull::dangling())
    }

    /// Returns an event at the end of a queue.
    pub(super) fn mark(&mut self, queue: u64) -> SimulatedEvent {
        let number = self.number();
        SimulatedEvent { number, queue, end: self.queues.entry(queue).or_default().end }
    }

    /// Checks a write or free of a table by the host.
    pub(super) fn touch_table(&mut self, table: u64) {
        if self.pending.iter().any(|p| p.work.reads_table(table)) {
            self.misuse.push("the table of a pending kernel was touched".into());
        }
    }

    /// Makes a queue wait for an event.
    pub(super) fn order(&mut self, queue: u64, after: &SimulatedEvent) {
        let line = self.queues.entry(queue).or_default();
        line.end = after.end.max(line.end);
        let known = line.after.entry(after.queue).or_default();
        *known = after.number.max(*known);
    }

    /// Counts a copy; returns its error, if it is refused.
    pub(super) fn refuse(&mut self) -> Result<(), DeviceError> {
        let copy = self.copies;
        self.copies += 1;
        if self.lost {
            return Err(lost());
        }
        if self.faults.contains(&Fault::Refused(copy)) {
            return Err(DeviceError::Failed { call: "copy", code: 2, text: "refused, as planned".into() });
        }
        Ok(())
    }

    /// Begins work that [`refuse`](Self::refuse) has counted, now, on an engine that takes `time` nanoseconds for it.
    pub(super) fn begin(
        &mut self,
        now: u64,
        queue: u64,
        (engine, time): (usize, u64),
        work: Work,
    ) -> SimulatedEvent {
        let fails = self.faults.contains(&Fault::Halfway(self.copies - 1));
        self.check_clashes(queue, &work);
        let event = self.number();
        let line = self.queues.entry(queue).or_default();
        let end = now.max(line.end).max(self.engines[engine]) + time;
        line.end = end;
        self.engines[engine] = end;
        self.busy[engine] += time;
        let place = self.pending.partition_point(|p| p.end <= end);
        self.pending.insert(place, Pending { event, queue, work, end, fails });
        SimulatedEvent { number: event, queue, end }
    }

    /// Detects work on that queue that writes what pending work touches without waiting for it, or the other way round.
    fn check_clashes(&mut self, queue: u64, work: &Work) {
        let after = self.queues.get(&queue).map(|line| &line.after);
        let waits_for = |p: &Pending| {
            p.queue == queue || after.and_then(|a| a.get(&p.queue)).is_some_and(|e| *e >= p.event)
        };
        if self.pending.iter().any(|p| !waits_for(p) && p.work.clashes(work)) {
            self.misuse.push("two pending copies touch the same device memory, one of them writes it".into());
        }
        if work.clashes_with_itself() {
            self.misuse.push("two pieces of one kernel write the same bytes".into());
        }
    }

    /// Ends the work whose end has come by that time.
    pub(super) fn settle(&mut self, now: u64) {
        while self.pending.first().is_some_and(|p| p.end <= now) {
            let copy = self.pending.remove(0);
            self.end(copy);
        }
    }

    fn end(&mut self, mut copy: Pending) {
        self.misuse.extend(copy.work.misuse());
        if self.lost {
            // The work of a lost device is over without having been done.
            self.failed.push(copy.event);
            return;
        }
        let shares = if copy.fails { 2 } else { 1 };
        copy.work.end(shares, &mut self.memories);
        if copy.fails {
            self.lost = true;
            self.failed.push(copy.event);
        }
    }

    /// Whether an event is over; returns the error of its copy, if it failed.
    pub(super) fn is_over(&self, event: u64, end: u64, now: u64) -> Result<bool, DeviceError> {
        if self.failed.contains(&event) {
            return Err(lost());
        }
        // Once the device is lost, nothing is done any more: pending work ends at its time without being done.
        Ok(end <= now)
    }

    /// When the next copy ends.
    pub(super) fn next_end(&self) -> Option<u64> {
        self.pending.first().map(|p| p.end)
    }
}

pub(super) fn lost() -> DeviceError {
    DeviceError::Lost { code: 719, text: "a copy failed, as planned".into() }
}
