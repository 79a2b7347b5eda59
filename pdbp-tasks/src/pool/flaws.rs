//! Flaws that tests plant into the pool, to see that they are found (`src/tests/flaws.rs`). Outside of tests there are none, and the compiler
//! knows it.

use super::Pool;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// What nobody holds any more is not handed out again.
    ForgetsTable,
    /// A result is given to the client a second time.
    AppliesTwice,
    /// Tasks of a submission that is ignored exist.
    AddsOfIgnored,
    /// Who asks is told to stop while tasks are in the table.
    StopsEarly,
    /// All that a node held that has died is blamed for it.
    BlamesAll,
    /// What may be started once is copied.
    CopiesOnce,
    /// What may be started once is started again when its processor is lost.
    RestartsOnce,
    /// A failure of an attempt that nobody holds counts.
    CountsFailureTwice,
    /// A new task has the id of one that is over.
    ReusesId,
    /// Nodes are given more than they offer.
    Overcommits,
    /// Tasks wait behind a suspect in its processor.
    QueuesBehindSuspect,
    /// A task runs when the first of those that it needs is over.
    RunsTooEarly,
    /// Results that nobody reads do not stop the handing out.
    ForgetsUnread,
    /// What was held back until results are read stays so.
    HoldsBackForEver,
    /// With a journal: a result is acknowledged before it is durable.
    #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "journals come with the feature"))]
    AcknowledgesEarly,
    /// With a journal: what is not durable is handed out.
    HandsOutEarly,
    /// With a journal: what an earlier pool was told is taken for this one's.
    #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "journals come with the feature"))]
    NoTerms,
    /// With a journal: what comes of a run before a task was to run again is taken for that one's.
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
