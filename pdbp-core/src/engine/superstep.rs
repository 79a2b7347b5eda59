//! Supersteps: parts of all nodes send and receive until all of them are done and everything they sent has been received.
//!
//! ```text
//!  Open ─ done ─▶ Done ─ all are ─▶ Counting ─ quiescent ─▶ Arrived ─ all are, nothing left to read ─▶ Ending ─ all are ─▶ Open
//! ```
//!
//! Each "all are" is a barrier. Everything sent before `Done` has arrived at its part when the request for quiescence is
//! answered, which is made only once all are `Done`. Nobody sends for the next superstep before all are `Ending`. Whatever
//! arrives at a part that is `Ending` belongs to the next superstep, or is a reply that may be read there as well, and is
//! [withheld](crate::inbox::Inbox::withhold) until then. Withholding begins only once everything has arrived: a part that
//! withholds messages eventually takes no more of them, and quiescence cannot be reached while a pipe is full.

use super::Engine;
use crate::flaw::Flaw;
use crate::id::{NodeId, PartId};
use crate::inbox::Waiting;
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// State of a superstep on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Superstep {
    /// The part may have more to send.
    #[default]
    Open,
    /// It is done; others are not, as far as this node knows.
    Done,
    /// All are done. Quiescence is being detected: whether everything sent has arrived.
    Counting,
    /// Everything sent to this node has arrived; some of it may be unread.
    Arrived,
    /// Everything has arrived everywhere, and has been read here. Others may not know yet; messages that arrive now belong to the
    /// next superstep.
    Ending,
}

impl Superstep {
    /// Whether the part, with `waiting` still to read, may take the next step by [`Engine::advance_superstep`]. `done` states
    /// that the part has nothing more to send.
    pub fn may_advance(self, done: bool, waiting: Waiting) -> bool {
        // In a superstep that is ending, messages not sorted yet belong to the next one.
        let is_left = waiting.message || waiting.stalled && self != Self::Ending;
        (!is_left || Flaw::EndsUnread.strikes()) && (self != Self::Open || done)
    }

    /// Whether messages that arrive belong to the next superstep, so that the part [does not read
    /// them](crate::inbox::Inbox::withhold).
    pub fn withholds(self) -> bool {
        self == Self::Ending && !Flaw::ReadsNext.strikes()
    }
}

/// Why a superstep cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuperstepError {
    /// The node failed before it was done.
    PeerFailed(NodeId),
    /// This part of the node is in a superstep.
    Taken(PartId),
    /// The part has no private pipe.
    NoPipe(PartId),
}

impl core::fmt::Display for SuperstepError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::PeerFailed(node) => write!(f, "{node} failed before it finished the superstep"),
            Self::Taken(part) => {
                write!(
                    f,
                    "{part} of this node is already in a superstep; a node takes part with one part at a time"
                )
            }
            Self::NoPipe(part) => write!(f, "{part} has no private pipe; apply for one to receive again"),
        }
    }
}

impl core::error::Error for SuperstepError {}

/// The superstep of a node. Barriers count calls of the node, so its parts cannot be in supersteps at the same time.
#[derive(Debug, Default)]
pub(super) struct Supersteps {
    /// The part that is done; `None` while the superstep is open.
    part: Option<PartId>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Open,
    Done {
        barrier: u32,
    },
    Counting {
        request: u32,
    },
    Arrived {
        barrier: u32,
    },
    Ending {
        barrier: u32,
    },
}

impl Stage {
    fn barrier(self) -> Option<u32> {
        match self {
            Self::Done { barrier } | Self::Arrived { barrier } | Self::Ending { barrier } => Some(barrier),
            Self::Open | Self::Counting { .. } => None,
        }
    }
}

impl From<Stage> for Superstep {
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Open => Self::Open,
            Stage::Done { .. } => Self::Done,
            Stage::Counting { .. } => Self::Counting,
            Stage::Arrived { .. } => Self::Arrived,
            Stage::Ending { .. } => Self::Ending,
        }
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Advances the superstep of a part that is done: it sends nothing more on its own initiative, everything that it packed has
    /// been submitted, and the last check of its pipe before this call found no message. Call this after each poll until the
    /// superstep is [`Open`](Superstep::Open) again; it is then over on this node.
    ///
    /// # Errors
    /// See [`SuperstepError`]; the next call tries again.
    pub fn advance_superstep(&mut self, part: PartId) -> Result<Superstep, SuperstepError> {
        if let Some(other) = self.supersteps.part.filter(|other| *other != part) {
            return Err(SuperstepError::Taken(other));
        }
        self.supersteps.part = Some(part);
        let stage = match self.supersteps.stage {
            Stage::Open => Stage::Done { barrier: self.arrive() },
            Stage::Done { barrier } if self.barrier_passed(barrier) => {
                Stage::Counting { request: self.request_quiescence() }
            }
            // Everything counted was put into the pipe before; the next call follows a check of the pipe.
            Stage::Counting { request } if self.is_quiescent(request) || Flaw::EndsUncounted.strikes() => {
                Stage::Arrived { barrier: self.arrive() }
            }
            Stage::Arrived { barrier } if self.barrier_passed(barrier) => {
                Stage::Ending { barrier: self.arrive() }
            }
            // Others may not know yet, and learn it from this node.
            Stage::Ending { barrier } if self.barrier_passed(barrier) && !self.has_news() => Stage::Open,
            waiting => {
                let failed = self.superstep_missing().find(|node| self.has_failed(*node));
                return failed.map_or(Ok(waiting.into()), |node| Err(SuperstepError::PeerFailed(node)));
            }
        };
        self.supersteps.stage = stage;
        if let Stage::Open = stage {
            self.supersteps.part = None;
        }
        Ok(stage.into())
    }

    /// Returns the state of a part's superstep: [`Open`](Superstep::Open) if it is in none.
    pub fn superstep(&self, part: PartId) -> Superstep {
        let stage = self.supersteps.stage;
        if self.supersteps.part == Some(part) { stage.into() } else { Superstep::Open }
    }

    /// Returns the nodes that the superstep is waiting for, to this node's knowledge: see
    /// [`barrier_missing`](Self::barrier_missing).
    pub fn superstep_missing(&self) -> impl Iterator<Item = NodeId> {
        let barrier = self.supersteps.stage.barrier();
        barrier.into_iter().flat_map(move |barrier| self.barrier_missing(barrier))
    }

    /// Takes a part out of its superstep. Another part of this node may continue in its place.
    pub fn leave_superstep(&mut self, part: PartId) {
        if self.supersteps.part == Some(part) {
            self.supersteps = Supersteps::default();
        }
    }
}
