//! Flaws that tests plant into the pool to check that they are found (`src/tests/flaws.rs`). Outside of tests there are none, which the compiler
//! can see.

use super::Pool;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Tasks that nobody holds any more are not handed out again.
    ForgetsTable,
    /// A result is given to the client twice.
    AppliesTwice,
    /// Sub-tasks of an ignored submission are added.
    AddsOfIgnored,
    /// A processor that asks is told to stop while tasks are in the table.
    StopsEarly,
    /// A dead node's tasks are all blamed for its death.
    BlamesAll,
    /// A task that may be started only once is copied.
    CopiesOnce,
    /// A task that may be started only once is restarted when its processor is lost.
    RestartsOnce,
    /// A failure counts for an attempt that nobody holds.
    CountsFailureTwice,
    /// A new task gets the id of one that is over.
    ReusesId,
    /// Nodes are given more than they offer.
    Overcommits,
    /// Tasks wait behind a suspect in its processor.
    QueuesBehindSuspect,
    /// A task runs when the first of its dependencies is over.
    RunsTooEarly,
    /// Unread results do not stop the hand-out.
    ForgetsUnread,
    /// Tasks held back until results are read are never released.
    HoldsBackForEver,
    /// With a journal: a result is acknowledged before it is durable.
    #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "journals come with the feature"))]
    AcknowledgesEarly,
    /// With a journal: tasks that are not durable are handed out.
    HandsOutEarly,
    /// With a journal: a report to an earlier pool is taken for one to this pool.
    #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "journals come with the feature"))]
    NoTerms,
    /// With a journal: the result of a run before `retry` is taken for that of the new run.
    #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "journals come with the feature"))]
    ForgetsRuns,
}

impl Pool {
    #[cfg(test)]
    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    #[cfg(not(test))]
    #[inline]
    pub(crate) const fn has(&self, _flaw: Flaw) -> bool {
        false
    }
}
