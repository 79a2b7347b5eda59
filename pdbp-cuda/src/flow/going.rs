//! The parts common to all flows: how they advance and how they end.

use super::{Copier, FlowError, Step};
use crate::device::Device;

/// The state of a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Flowing,
    /// Nothing more will come; copies are pending.
    Ending,
    Done,
    Failed,
}

/// A flow, for [`poll`] and [`close`].
pub(super) trait Flow {
    type Device: Device;

    fn state(&mut self) -> &mut State;
    fn copier(&self) -> &Copier<Self::Device>;

    /// Gives back what other flows can use. Nothing is pending.
    fn release(&mut self);

    /// Leaves pending work to the copier.
    fn leave(&mut self);
}

/// Advances a flow by `advance`, unless it has ended. A flow whose `advance` returns an error has failed; so has one whose `advance`
/// panics, where a block may be missing.
pub(super) fn poll<F: Flow, E>(
    flow: &mut F,
    advance: impl FnOnce(&mut F) -> Result<Step, FlowError<E>>,
) -> Result<Step, FlowError<E>> {
    match flow.state() {
        State::Done => return Ok(Step::Done),
        State::Failed => return Err(FlowError::Ended),
        State::Flowing | State::Ending => {}
    }
    flow.copier().reap();
    let mut advancing = Advancing { flow, failed: true };
    let step = advance(advancing.flow);
    advancing.failed = step.is_err();
    if let Ok(Step::Done) = step {
        end(advancing.flow);
    }
    step
}

/// Ends a flow when everything has arrived.
pub(super) fn end<F: Flow>(flow: &mut F) {
    *flow.state() = State::Done;
    flow.release();
}

/// Gives up what the flow has not done.
pub(super) fn close<F: Flow>(flow: &mut F) {
    if matches!(flow.state(), State::Flowing | State::Ending) {
        *flow.state() = State::Failed;
        flow.leave();
    }
    flow.copier().reap();
}

/// A flow that is advancing.
struct Advancing<'f, F: Flow> {
    flow: &'f mut F,
    failed: bool,
}

impl<F: Flow> Drop for Advancing<'_, F> {
    fn drop(&mut self) {
        if self.failed {
            *self.flow.state() = State::Failed;
            self.flow.leave();
        }
    }
}
