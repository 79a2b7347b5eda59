//! A cache of the steps of earlier calls. Programs repeat the same calls, and computing the steps of a short call takes longer than
//! performing them.

use super::Call;
use super::steps::{Step, Steps};

/// Number of calls that a member remembers.
const CALLS: usize = 4;
/// Number of steps that [`CachedSteps`] holds: enough for a barrier or a short all_reduce of four members.
const CACHED_STEPS: usize = 4;

/// The precomputed steps of a call that has few of them.
#[derive(Clone, Debug, Default)]
pub(super) struct CachedSteps {
    steps: [Option<Step>; CACHED_STEPS],
    next: usize,
}

impl CachedSteps {
    /// Collects all the steps, unless there are too many.
    pub(super) fn of(mut steps: Steps) -> Option<Self> {
        let few = core::array::from_fn(|_| steps.next());
        steps.next().is_none().then_some(Self { steps: few, next: 0 })
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Step> {
        self.steps.first()?.clone()
    }

    /// All steps but the first.
    #[inline]
    pub(super) fn without_first(&self) -> Self {
        Self { steps: self.steps.clone(), next: 1 }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<Step> {
        let step = self.steps.get_mut(self.next)?.take();
        self.next += 1;
        step
    }
}

/// A call with its lengths of input and output, and its steps.
#[derive(Clone, Debug)]
struct Entry {
    call: Call,
    input: usize,
    output: usize,
    steps: CachedSteps,
}

/// The remembered calls. The oldest is evicted first.
#[derive(Debug, Default)]
pub(super) struct StepCache(heapless::Deque<Entry, CALLS>);

impl StepCache {
    /// Returns the index of a call's steps, valid until another call is added.
    #[inline]
    pub(super) fn find(&self, call: &Call, input: usize, output: usize) -> Option<usize> {
        let is_it = |entry: &Entry| entry.call == *call && (entry.input, entry.output) == (input, output);
        self.0.iter().position(is_it)
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&CachedSteps> {
        Some(&self.0.get(at)?.steps)
    }

    /// Adds a call's steps and returns their index, valid until another call is added.
    pub(super) fn add(&mut self, call: &Call, input: usize, output: usize, steps: CachedSteps) -> usize {
        if self.0.is_full() {
            self.0.pop_front();
        }
        // There is room: a full cache has just lost an entry.
        let _ = self.0.push_back(Entry { call: *call, input, output, steps });
        self.0.len() - 1
    }
}
