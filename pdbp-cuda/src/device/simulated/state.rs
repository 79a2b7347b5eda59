//! What a simulated device has under way, and what it finds wrong.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::slice;

use super::{Fault, Way};
use crate::device::DeviceError;

/// What the bytes that a pending copy will overwrite hold meanwhile: whoever reads them too early finds it.
pub(super) const POISON: u8 = 0xA5;

/// A copy under way.
pub(super) struct Pending {
    pub(super) event: u64,
    pub(super) way: Way,
    pub(super) memory: u64,
    pub(super) at: usize,
    pub(super) host: NonNull<[u8]>,
    /// What the host's bytes have to be still when it ends.
    pub(super) expected: Vec<u8>,
    pub(super) end: u64,
    pub(super) fails: bool,
}

impl Pending {
    fn host(&self) -> &[u8] {
        // SAFETY: whoever asked for the copy keeps the bytes valid until its event is over (`Device::copy_out`, `copy_in`), and
        // nobody writes them now: the device does it here only, under the state's lock.
        unsafe { slice::from_raw_parts(self.host.cast::<u8>().as_ptr(), self.host.len()) }
    }

    fn set_host(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.host.len());
        // SAFETY: as in `host`; of a copy out they are valid for writes.
        unsafe { self.host.cast::<u8>().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) }
    }

    fn touches(&self, memory: u64, at: usize, bytes: usize) -> bool {
        self.memory == memory && self.at < at + bytes && at < self.at + self.host.len()
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) next: u64,
    memories: HashMap<u64, Vec<u8>>,
    /// In the order in which they end.
    pending: Vec<Pending>,
    /// When each engine has done what it was asked for: out, into.
    pub(super) engines: [u64; 2],
    /// Likewise each queue.
    pub(super) queues: HashMap<u64, u64>,
    pub(super) copies: u64,
    /// Nanoseconds that each engine has worked.
    pub(super) busy: [u64; 2],
    pub(super) faults: Vec<Fault>,
    /// Events of copies that have failed, and of those that came after.
    failed: Vec<u64>,
    pub(super) lost: bool,
    pub(super) misuse: Vec<String>,
}

// SAFETY: the addresses in it belong to copies under way, whose memory may be touched from any thread (`Device::copy_out`).
unsafe impl Send for State {}

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
        if self.pending.iter().any(|p| p.memory == memory) {
            self.misuse.push("device memory was freed while a copy was pending".into());
            self.pending.retain(|p| p.memory != memory);
        }
        self.memories.remove(&memory);
    }

    /// The bytes of device memory, for the host's reads and writes outside of copies.
    pub(super) fn memory(&mut self, memory: u64) -> &mut [u8] {
        if self.pending.iter().any(|p| p.memory == memory) {
            self.misuse.push("device memory was touched while a copy was pending".into());
        }
        self.memories.get_mut(&memory).map_or(&mut [], |bytes| bytes)
    }

    pub(super) fn begin(&mut self, mut copy: Pending) {
        let writes = |way| way == Way::Into;
        let clash = |p: &&Pending| {
            p.touches(copy.memory, copy.at, copy.host.len()) && (writes(p.way) || writes(copy.way))
        };
        if self.pending.iter().any(|p| clash(&p)) {
            self.misuse.push("two pending copies touch the same device memory, one of them writes it".into());
        }
        if copy.way == Way::Out {
            let poison = vec![POISON; copy.host.len()];
            copy.set_host(&poison);
        }
        copy.expected = copy.host().to_vec();
        let place = self.pending.partition_point(|p| p.end <= copy.end);
        self.pending.insert(place, copy);
    }

    /// Ends what has ended by that time.
    pub(super) fn settle(&mut self, now: u64) {
        while self.pending.first().is_some_and(|p| p.end <= now) {
            let copy = self.pending.remove(0);
            self.end(copy);
        }
    }

    fn end(&mut self, mut copy: Pending) {
        if copy.host() != copy.expected {
            let what = if copy.way == Way::Out { "the destination" } else { "the source" };
            self.misuse.push(format!("{what} of a pending copy was written on the host"));
        }
        if self.lost {
            // The work of a lost device is over without having been done.
            self.failed.push(copy.event);
            return;
        }
        let length = if copy.fails { copy.host.len() / 2 } else { copy.host.len() };
        if let Some(memory) = self.memories.get_mut(&copy.memory) {
            let range = copy.at..copy.at + length;
            match copy.way {
                Way::Out => copy.set_host(&memory[range]),
                Way::Into => memory[range].copy_from_slice(&copy.host()[..length]),
            }
        }
        if copy.fails {
            self.lost = true;
            self.failed.push(copy.event);
        }
    }

    /// Whether an event is over; the error of its copy, if it failed.
    pub(super) fn is_over(&self, event: u64, end: u64, now: u64) -> Result<bool, DeviceError> {
        if self.failed.contains(&event) {
            return Err(lost());
        }
        // Once it is lost, nothing goes on: what is pending ends at its time and is not done.
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
