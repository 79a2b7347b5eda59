//! The parameters of a run, and randomness.

use crate::agreement::{Flaw, Reach};

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) masters: usize,
    /// Number of nodes that vote; the others are learners.
    pub(super) voters: usize,
    /// Whether node 0 founds the cluster alone, and the others join.
    pub(super) open: bool,
    /// Whether the place of a node that was declared down may go to another process while the former one runs on.
    pub(super) heirs: bool,
    /// A mistake of the host: a restarted founder founds again.
    pub(super) founds_again: bool,
    pub(super) lease: u64,
    pub(super) parts: usize,
    pub(super) log: usize,
    /// Faults per 1000 steps.
    pub(super) faults: u64,
    /// Per 1000 steps: messages lost while their link, which is renewed, stays up.
    pub(super) losses: u64,
    pub(super) clients: u64,
    /// One message in this many is slow: longer than a candidate's patience. 0: none is.
    pub(super) slow: u64,
    /// Whether crashes may be reported as certain.
    pub(super) ends: bool,
    /// Which nodes those communicate with that are not masters.
    pub(super) reach: Reach,
    pub(super) flaw: Option<Flaw>,
}

impl Plan {
    pub(super) fn voters(&self) -> usize {
        self.voters.min(self.nodes)
    }

    pub(super) fn quiet() -> Self {
        Self {
            nodes: 3,
            masters: 2,
            voters: usize::MAX,
            open: false,
            heirs: false,
            founds_again: false,
            lease: 16_000,
            parts: 8,
            log: 12,
            faults: 0,
            losses: 0,
            clients: 0,
            slow: 0,
            ends: false,
            reach: Reach::All,
            flaw: None,
        }
    }
}

/// xorshift64*.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n.max(1)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
