//! Acknowledgements to the other gateway of messages handed on here, or being returned, which make room for more.
//!
//! A frame of its own costs both gateways as much as a message, so small acknowledgements wait for a frame that goes there anyway.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::wire::{Head, Kind};

/// The longest time that one waits; gateways check every [`UPDATE_INTERVAL`](super::gate::UPDATE_INTERVAL).
const PATIENCE: Duration = Duration::from_millis(5);
/// An acknowledgement of this fraction of a window is no longer small.
const PART: u64 = 16;

/// Pending acknowledgements, by destination part.
#[derive(Default)]
pub(super) struct Acknowledgements {
    parts: BTreeMap<u64, PartTotal>,
    bytes: u64,
    since: Option<Instant>,
}

/// What was taken for a part.
#[derive(Clone, Copy, Default)]
struct PartTotal {
    bytes: u64,
    messages: u64,
}

impl Acknowledgements {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Records messages taken for a part.
    pub(super) fn record(&mut self, part: u64, bytes: u64, messages: u64) {
        self.since.get_or_insert_with(Instant::now);
        self.bytes += bytes;
        let taken = self.parts.entry(part).or_default();
        taken.bytes += bytes;
        taken.messages += messages;
    }

    /// Whether the acknowledgements can no longer wait for another frame.
    pub(super) fn is_due(&self, window: u64) -> bool {
        self.bytes >= window / PART || self.since.is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    /// Returns the frames that send them all.
    pub(super) fn take(&mut self) -> Vec<Head> {
        let mut heads = Vec::new();
        for (dest, PartTotal { bytes, mut messages }) in std::mem::take(self).parts {
            for length in split(bytes) {
                let count = u32::try_from(messages).unwrap_or(u32::MAX);
                messages -= u64::from(count);
                heads.push(Head { length, count, dest, ..Head::new(Kind::Taken) });
            }
        }
        heads
    }
}

/// Splits a number of bytes into numbers that fit in a head.
fn split(bytes: u64) -> impl Iterator<Item = u32> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let some = u32::try_from(left).unwrap_or(u32::MAX);
        left -= u64::from(some);
        (some > 0).then_some(some)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_little_waits_for_a_while_and_what_is_much_does_not() {
        let mut acknowledgements = Acknowledgements::default();
        assert!(!acknowledgements.is_due(1600) && acknowledgements.is_empty());
        acknowledgements.record(7, 60, 1);
        acknowledgements.record(9, 39, 2);
        // On a busy machine it may have waited too long by now.
        assert!(!acknowledgements.is_due(1600) || acknowledgements.since.unwrap().elapsed() >= PATIENCE);
        acknowledgements.record(7, 1, 1);
        assert!(acknowledgements.is_due(1600));
        let told = |head: &Head| (head.dest, head.length, head.count);
        assert_eq!(acknowledgements.take().iter().map(told).collect::<Vec<_>>(), [(7, 61, 2), (9, 39, 2)]);
        assert!(acknowledgements.is_empty() && !acknowledgements.is_due(1600));
        acknowledgements.record(7, 1, 1);
        std::thread::sleep(PATIENCE);
        assert!(acknowledgements.is_due(1600));
    }

    #[test]
    fn more_than_a_head_can_say_is_said_by_several() {
        let mut acknowledgements = Acknowledgements::default();
        acknowledgements.record(7, 1 << 33, 3);
        let heads = acknowledgements.take();
        assert_eq!(heads.iter().map(|head| u64::from(head.length)).sum::<u64>(), 1 << 33);
        assert_eq!(heads.iter().map(|head| head.count).sum::<u32>(), 3);
    }
}
