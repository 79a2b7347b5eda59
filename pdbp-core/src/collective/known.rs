//! The steps of calls that were made before: a program makes the same ones again and again, and to compute the steps of a short one takes longer
//! than to do them.

use super::Call;
use super::steps::{Step, Steps};

/// Calls that a member remembers.
const CALLS: usize = 4;
/// Steps that [`Few`] has room for: those of a barrier or a short all_reduce of four members.
const FEW: usize = 4;

/// The steps of a call that has few, computed already.
#[derive(Clone, Debug, Default)]
pub(super) struct Few {
    steps: [Option<Step>; FEW],
    next: usize,
}

impl Few {
    /// All of them, unless they are too many.
    pub(super) fn of(mut steps: Steps) -> Option<Self> {
        let few = core::array::from_fn(|_| steps.next());
        steps.next().is_none().then_some(Self { steps: few, next: 0 })
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Step> {
        self.steps.first()?.clone()
    }

    /// The others.
    #[inline]
    pub(super) fn behind_first(&self) -> Self {
        Self { steps: self.steps.clone(), next: 1 }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<Step> {
        let step = self.steps.get_mut(self.next)?.take();
        self.next += 1;
        step
    }
}

/// A call with so many bytes of input and output, and its steps.
#[derive(Clone, Debug)]
struct Entry {
    call: Call,
    input: usize,
    output: usize,
    steps: Few,
}

/// Calls that were made before. The one that was added first is forgotten first.
#[derive(Debug, Default)]
pub(super) struct Known(heapless::Deque<Entry, CALLS>);

impl Known {
    /// Where the steps of a call are, until another is added.
    #[inline]
    pub(super) fn find(&self, call: &Call, input: usize, output: usize) -> Option<usize> {
        let is_it = |entry: &Entry| entry.call == *call && (entry.input, entry.output) == (input, output);
        self.0.iter().position(is_it)
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&Few> {
        Some(&self.0.get(at)?.steps)
    }

    /// Returns where they are, until another call is added.
    pub(super) fn add(&mut self, call: &Call, input: usize, output: usize, steps: Few) -> usize {
        if self.0.is_full() {
            self.0.pop_front();
        }
        // There is room.
        let _ = self.0.push_back(Entry { call: *call, input, output, steps });
        self.0.len() - 1
    }
}
