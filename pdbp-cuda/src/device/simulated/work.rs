//! What a simulated device does: copies and kernels.

use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// The contents of bytes that a pending copy will overwrite: a premature read finds it.
pub(super) const POISON: u8 = 0xA5;

/// The direction of a copy, seen from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    Into,
}

pub(super) enum Work {
    Copy(HostCopy),
    Kernel(Kernel),
}

/// A copy between a memory and the host.
pub(super) struct HostCopy {
    direction: Direction,
    memory: u64,
    at: usize,
    host: NonNull<[u8]>,
    /// What the host's bytes must still hold when the copy ends.
    expected: Vec<u8>,
}

/// Copies of pieces from one memory to another.
pub(super) struct Kernel {
    pub(super) table: u64,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) moves: Vec<Move>,
}

/// Where a piece comes from and goes to.
#[derive(Clone, Copy)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) bytes: usize,
}

/// Bytes of a memory.
type Place = (u64, Range<usize>);

// SAFETY: the address in it belongs to a pending copy, whose bytes may be touched from any thread (`Device::copy_out`).
unsafe impl Send for HostCopy {}

impl Work {
    /// Does the first of `shares` equal shares of the work.
    pub(super) fn end(&mut self, shares: usize, memories: &mut HashMap<u64, Vec<u8>>) {
        match self {
            Self::Copy(copy) => copy.end(shares, memories),
            Self::Kernel(kernel) => kernel.end(shares, memories),
        }
    }

    /// Detects writes to the host's bytes in the meantime.
    pub(super) fn misuse(&self) -> Option<String> {
        match self {
            Self::Copy(copy) if copy.host() != copy.expected => {
                let what = if copy.direction == Direction::Out { "the destination" } else { "the source" };
                Some(format!("{what} of a pending copy was written on the host"))
            }
            _ => None,
        }
    }

    /// Whether it touches that memory.
    pub(super) fn holds(&self, memory: u64) -> bool {
        match self {
            Self::Copy(copy) => copy.memory == memory,
            Self::Kernel(kernel) => kernel.from == memory || kernel.to == memory,
        }
    }

    pub(super) fn reads_table(&self, table: u64) -> bool {
        matches!(self, Self::Kernel(kernel) if kernel.table == table)
    }

    /// Whether one of the two writes on the device what the other touches.
    pub(super) fn clashes(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.writes(), other.writes());
        overlap(&ours, &theirs) || overlap(&ours, &other.reads()) || overlap(&self.reads(), &theirs)
    }

    /// Whether it writes any bytes twice.
    pub(super) fn clashes_with_itself(&self) -> bool {
        let mut writes = self.writes();
        writes.sort_by_key(|(_, range)| range.start);
        writes.windows(2).any(|two| matches!(two, [(_, a), (_, b)] if b.start < a.end))
    }

    fn reads(&self) -> Vec<Place> {
        match self {
            Self::Copy(copy) if copy.direction == Direction::Out => vec![copy.place()],
            Self::Copy(_) => Vec::new(),
            Self::Kernel(k) => k.places(|m| (k.from, m.from..m.from + m.bytes)),
        }
    }

    fn writes(&self) -> Vec<Place> {
        match self {
            Self::Copy(copy) if copy.direction == Direction::Into => vec![copy.place()],
            Self::Copy(_) => Vec::new(),
            Self::Kernel(k) => k.places(|m| (k.to, m.to..m.to + m.bytes)),
        }
    }
}

/// Whether two lists have a byte in common.
fn overlap(a: &[Place], b: &[Place]) -> bool {
    let common = |a: &Place, b: &Place| a.0 == b.0 && a.1.start < b.1.end && b.1.start < a.1.end;
    // Most lists are far apart: only places in the span of the other list are compared one by one.
    let span = |places: &[Place]| {
        let (start, end) = (places.iter().map(|p| p.1.start).min(), places.iter().map(|p| p.1.end).max());
        Some((places.first()?.0, start?..end?))
    };
    let (Some(all_a), Some(all_b)) = (span(a), span(b)) else { return false };
    let near: Vec<_> = b.iter().filter(|b| common(b, &all_a)).collect();
    a.iter().filter(|a| common(a, &all_b)).any(|a| near.iter().any(|b| common(a, b)))
}

impl HostCopy {
    /// A copy that is pending from now on.
    pub(super) fn begin(direction: Direction, memory: u64, at: usize, host: NonNull<[u8]>) -> Self {
        let mut copy = Self { direction, memory, at, host, expected: Vec::new() };
        if direction == Direction::Out {
            copy.set_host(&vec![POISON; host.len()]);
        }
        copy.expected = copy.host().to_vec();
        copy
    }

    fn host(&self) -> &[u8] {
        // SAFETY: the caller that submitted the copy keeps the bytes valid until its event is over (`Device::copy_out`,
        // `copy_in`), and nothing writes them now: the device does so only here, under the state's lock.
        unsafe { slice::from_raw_parts(self.host.cast::<u8>().as_ptr(), self.host.len()) }
    }

    fn set_host(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.host.len());
        // SAFETY: as in `host`; for a copy out they are valid for writes.
        unsafe { self.host.cast::<u8>().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) }
    }

    fn place(&self) -> Place {
        (self.memory, self.at..self.at + self.host.len())
    }

    fn end(&mut self, shares: usize, memories: &mut HashMap<u64, Vec<u8>>) {
        let length = self.host.len() / shares;
        let range = self.at..self.at + length;
        let Some(bytes) = memories.get_mut(&self.memory).and_then(|m| m.get_mut(range)) else { return };
        match self.direction {
            Direction::Out => self.set_host(bytes),
            Direction::Into => bytes.copy_from_slice(&self.host()[..length]),
        }
    }
}

impl Kernel {
    /// The number of bytes that it copies.
    pub(super) fn bytes(&self) -> usize {
        self.moves.iter().map(|m| m.bytes).sum()
    }

    fn places(&self, place: impl Fn(&Move) -> Place) -> Vec<Place> {
        self.moves.iter().filter(|m| m.bytes > 0).map(place).collect()
    }

    fn end(&mut self, shares: usize, memories: &mut HashMap<u64, Vec<u8>>) {
        let done = &self.moves[..self.moves.len() / shares];
        let bytes = |m: &Move| Some(memories.get(&self.from)?.get(m.from..m.from + m.bytes)?.to_vec());
        // All pieces are read before any is written, since they are copied at the same time.
        let read: Vec<_> = done.iter().map(bytes).collect();
        let Some(to) = memories.get_mut(&self.to) else { return };
        for (m, bytes) in done.iter().zip(read) {
            if let (Some(to), Some(bytes)) = (to.get_mut(m.to..m.to + m.bytes), bytes) {
                to.copy_from_slice(&bytes);
            }
        }
    }
}
