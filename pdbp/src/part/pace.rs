//! Decides whether a part stages blocks for a reader on another processor of this host in separate memory and copies them past the
//! caches: it does if that takes less time from one block to the next. See `benches/figures/shared-memory.md`.

use std::time::Instant;

use pdbp_core::outbox::{Staging, Windows};
use pdbp_local::{Copier, StoreChoice, copy_past_caches};

/// Bytes of a stage. They fit in the first-level cache.
pub(super) const STAGE: usize = 16 << 10;
/// Copies of fewer bytes go through the caches: they are not worth the trip to memory and back.
const FEW: usize = 1 << 10;

/// The windows of a part's lanes.
pub(super) type PartWindows = Windows<Pace, 32>;

/// The pace of blocks to one destination, or of one stream.
#[derive(Default)]
pub(crate) struct Pace(Option<Box<Known>>);

struct Known {
    choice: StoreChoice,
    /// When the last block was begun, if the part has done nothing else since.
    last: Option<Instant>,
    bytes: Vec<u8>,
}

impl Pace {
    fn known(&mut self) -> &mut Known {
        self.0.get_or_insert_with(|| {
            Box::new(Known { choice: StoreChoice::of_blocks(), last: None, bytes: Vec::new() })
        })
    }
}

#[expect(unsafe_code, reason = "a promise about memory")]
// SAFETY: the bytes are on the heap, and stay where they are until `memory` is called.
unsafe impl Staging for Pace {
    const LONG: usize = Copier::LONG;

    fn next(&mut self, written: usize) -> bool {
        let known = self.known();
        let now = Instant::now();
        if let Some(last) = known.last.replace(now).filter(|_| written >= Self::LONG) {
            known.choice.record(written, now - last);
        }
        known.choice.is_past_caches()
    }

    fn pause(&mut self) {
        if let Some(known) = &mut self.0 {
            known.last = None;
        }
    }

    fn memory(&mut self, least: usize) -> &mut [u8] {
        let bytes = &mut self.known().bytes;
        if bytes.len() < least.max(STAGE) {
            bytes.resize(least.max(STAGE), 0);
        }
        bytes
    }

    fn copy(into: &mut [u8], from: &[u8]) {
        if from.len() < FEW { into.copy_from_slice(from) } else { copy_past_caches(into, from) }
    }
}

#[cfg(test)]
mod tests;
