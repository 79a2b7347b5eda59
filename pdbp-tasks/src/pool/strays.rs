//! Senders of messages that no pool can have caused, which are ignored after a while.

use super::{Pool, Processor, Refusal};

/// Stray messages after which a processor is ignored.
const STRAYS: u32 = 100;
/// The most refusals that are kept.
const REFUSALS: usize = 100;
/// The most senders of stray messages, and the most ignored processors, that are noted: a node can attach any number of parts.
const NOTED: (usize, usize) = (4096, 1 << 16);

impl Pool {
    /// Counts a message that could not be decoded.
    pub fn malformed(&mut self, processor: Processor) {
        self.counts.malformed += 1;
        self.count_stray(processor);
    }

    /// Counts a message that no pool can have caused: for a task that never existed, for an attempt that was never handed out, or malformed.
    pub(super) fn count_stray(&mut self, processor: Processor) {
        if self.banned.contains(&processor) {
            return;
        }
        if self.strays.len() >= NOTED.0 && !self.strays.contains_key(&processor) {
            // Those that have sent the fewest are forgotten.
            let fewest = self.strays.values().copied().min().unwrap_or(0);
            self.strays.retain(|_, strays| *strays > fewest);
        }
        let strays = self.strays.entry(processor).or_default();
        *strays += 1;
        if *strays >= STRAYS {
            self.strays.remove(&processor);
            let why = "of its messages were malformed, or concerned tasks that it was never given";
            self.ignore(processor, &format!("{STRAYS} {why}"));
        }
    }

    /// Ignores a processor from now on, for this reason; others run its tasks.
    pub(crate) fn ignore(&mut self, processor: Processor, why: &str) {
        self.leave(processor);
        self.refuse(processor, why.to_owned());
    }

    /// How many senders of stray messages, and how many ignored ones, are noted.
    #[cfg(test)]
    pub(crate) fn noted(&self) -> (usize, usize) {
        (self.strays.len(), self.banned.len())
    }

    /// Whether a processor is ignored.
    pub(crate) fn is_refused(&self, processor: Processor) -> bool {
        self.banned.contains(&processor)
    }

    pub(crate) fn refuse(&mut self, processor: Processor, why: String) {
        if self.banned.len() >= NOTED.1 {
            // They are refused again when they are heard of again.
            self.banned.clear();
        }
        if self.banned.insert(processor) && self.refusals.len() < REFUSALS {
            self.refusals.push(Refusal { processor, why });
        }
    }
}
