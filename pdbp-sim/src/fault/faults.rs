//! What goes wrong, and how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pdbp_core::id::NodeId;

use crate::random::Random;

/// How often something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Chance(u16);

impl Chance {
    /// It does not happen.
    pub const NEVER: Self = Self(0);

    /// `permille` times in a thousand; `None` above 1000.
    pub const fn in_thousand(permille: u16) -> Option<Self> {
        if permille <= 1000 { Some(Self(permille)) } else { None }
    }

    pub(super) fn strikes(self, random: &mut Random) -> bool {
        self.0 > 0 && random.below(1000) < u64::from(self.0)
    }
}

/// The link to a peer goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFailure {
    /// The peer.
    pub peer: NodeId,
    /// At which operation submitted for it, counted from 1; that one is refused, unless it gives a block back.
    pub after: u64,
}

impl LinkFailure {
    /// The link to `peer` goes down when its [`Breaker`] is tripped, and not before.
    pub const fn when_tripped(peer: NodeId) -> Self {
        Self { peer, after: u64::MAX }
    }
}

/// Takes the link that [`Faults::fail`] names down when the program wants it, from any thread. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Breaker(Arc<AtomicBool>);

impl Breaker {
    /// Takes the link down at the injector's next poll or operation.
    pub fn trip(&self) {
        // Nothing else is handed over.
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_tripped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The faults of a [`FaultInjector`](super::FaultInjector). The default has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Faults {
    /// Where the random numbers begin; each node adds its index.
    pub seed: u64,
    /// How many sends and posts are refused as busy.
    pub busy: Chance,
    /// The most polls by which a completion is delayed.
    pub delay: u32,
    /// How many arrived blocks are changed. `Some(Chance::NEVER)` for an injector that begins to corrupt later.
    pub corrupt: Option<Chance>,
    /// The link that goes down, as this node sees it. The peer notices nothing, and gets back what it sent.
    pub fail: Option<LinkFailure>,
}

/// What a [`FaultInjector`](super::FaultInjector) has done.
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
