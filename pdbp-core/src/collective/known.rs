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
    #[inline]
    pub(super) fn find(&self, call: &Call, input: usize, output: usize) -> Option<Few> {
        let mut known = self.0.iter();
        let found = known.find(|entry| entry.call == *call && (entry.input, entry.output) == (input, output));
        found.map(|entry| entry.steps.clone())
    }

    pub(super) fn add(&mut self, call: &Call, input: usize, output: usize, steps: Few) -> Few {
        if self.0.is_full() {
            self.0.pop_front();
        }
        let entry = Entry { call: *call, input, output, steps: steps.clone() };
        // There is room.
        let _ = self.0.push_back(entry);
        steps
    }
}
