//! What goes wrong, and how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pdbp_core::id::NodeId;

use crate::random::Random;

/// How often something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Chance(u16);

impl Chance {
    /// Never.
    pub const NEVER: Self = Self(0);

    /// `permille` times in a thousand; `None` above 1000.
    pub const fn in_thousand(permille: u16) -> Option<Self> {
        if permille <= 1000 { Some(Self(permille)) } else { None }
    }

    pub(super) fn strikes(self, random: &mut Random) -> bool {
        self.0 > 0 && random.below(1000) < u64::from(self.0)
    }
}

/// A link failure: the link to a peer goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFailure {
    /// The peer.
    pub peer: NodeId,
    /// The operation for this peer, counted from 1, at which the link fails. That operation is refused, unless it returns a block.
    pub after: u64,
}

impl LinkFailure {
    /// A failure of the link to `peer` when its [`Breaker`] is tripped, and not before.
    pub const fn when_tripped(peer: NodeId) -> Self {
        Self { peer, after: u64::MAX }
    }
}

/// Takes down the link given in [`Faults::fail`] when the program decides, from any thread. All clones are the same breaker.
#[derive(Clone, Debug, Default)]
pub struct Breaker(Arc<AtomicBool>);

impl Breaker {
    /// Takes the link down at the injector's next poll or operation.
    pub fn trip(&self) {
        // No other data is handed over.
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_tripped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The faults of a [`FaultInjector`](super::FaultInjector). The default has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Faults {
    /// Seed of the random numbers; each node combines it with its index.
    pub seed: u64,
    /// The share of sends and posts that are refused as busy.
    pub busy: Chance,
    /// Maximum number of polls by which a completion is delayed.
    pub delay: u32,
    /// The share of arrived blocks that are changed. `Some(Chance::NEVER)` for an injector that starts to corrupt later.
    pub corrupt: Option<Chance>,
    /// The link that goes down, as seen from this node. The peer notices nothing, and gets back what it sends.
    pub fail: Option<LinkFailure>,
}

/// The faults that a [`FaultInjector`](super::FaultInjector) has injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Injected {
    /// Operations refused as busy.
    pub refused: u64,
    /// Completions delayed.
    pub delayed: u64,
    /// Arrived blocks changed.
    pub corrupted: u64,
    /// Links taken down.
    pub failures: u64,
}
