//! Many small messages from device memory to a link.

use std::rc::Rc;

use super::going::{self, Flow, State};
use super::pipeline::{Direction, Loaded, Pipeline};
use super::{Copier, FlowError, NotStarted, Outgoing, Step, VacantBlock};
use crate::buffer::Slice;
use crate::device::{Device, DeviceError};

/// Sends messages that lie anywhere in a slice of device memory, a block's worth at a time. See [`flow`](crate::flow).
pub struct Gather<D: Device, B: VacantBlock> {
    pipeline: Pipeline<D, B>,
    source: Slice<D>,
    /// The number of messages sent.
    sent: usize,
    state: State,
}

impl<D: Device, B: VacantBlock> Gather<D, B> {
    /// Starts a flow of messages in the slice, in blocks of up to `block` bytes, which begins when `after` is over: the event of the
    /// work that writes the slice. Takes as many staging areas as the copier has blocks in flight, each with a table in host memory
    /// of twice its length; waits until these are allocated, unless earlier flows have left them.
    ///
    /// # Errors
    /// Returns the slice if there is no memory or no queue, or if the queue cannot wait for the event.
    pub fn new(
        copier: &Rc<Copier<D>>,
        source: Slice<D>,
        block: usize,
        after: Option<&D::Event>,
    ) -> Result<Self, NotStarted<Slice<D>>> {
        match Pipeline::new(copier, Direction::Out, block, after) {
            Ok(pipeline) => Ok(Self { pipeline, source, sent: 0, state: State::Flowing }),
            Err(error) => Err(NotStarted { memory: source, error }),
        }
    }

    /// Advances the flow: sends the blocks whose copies are over, and begins with new ones, until there are none. Does not wait, and
    /// does a bounded amount of work.
    ///
    /// # Errors
    /// See [`FlowError`]. The flow has then failed: messages that were laid out and not sent are not sent.
    pub fn poll<O: Outgoing<Block = B>>(&mut self, outlet: &mut O) -> Result<Step, FlowError<O::Error>> {
        going::poll(self, |flow| flow.advance(outlet))
    }

    /// The number of messages sent.
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Whether a kernel or a copy is pending.
    pub fn is_copying(&self) -> bool {
        !self.pipeline.is_empty()
    }

    /// Waits until the oldest pending copy is over; returns at once if there is none.
    ///
    /// # Errors
    /// The copy has failed; the next poll reports that, too.
    pub fn wait_for_copy(&self) -> Result<(), DeviceError> {
        self.pipeline.wait()
    }

    /// Ends the flow and returns the slice. Pending work is given up.
    pub fn into_slice(self) -> Slice<D> {
        self.source.clone()
    }

    fn advance<O: Outgoing<Block = B>>(&mut self, outlet: &mut O) -> Result<Step, FlowError<O::Error>> {
        let mut step = Step::Idle;
        while let Some((block, messages)) = self.pipeline.unload()? {
            outlet.send(block).map_err(FlowError::Link)?;
            self.sent += messages;
            step = Step::Moved;
        }
        while self.state == State::Flowing {
            match self.pipeline.load(outlet, &self.source.hold(), self.source.range())? {
                Loaded::Block => step = Step::Moved,
                Loaded::Nothing => break,
                Loaded::End => self.state = State::Ending,
            }
        }
        Ok(if self.state == State::Ending && self.pipeline.is_empty() { Step::Done } else { step })
    }
}

impl<D: Device, B: VacantBlock> Flow for Gather<D, B> {
    type Device = D;

    fn state(&mut self) -> &mut State {
        &mut self.state
    }

    fn copier(&self) -> &Copier<D> {
        self.pipeline.copier()
    }

    fn release(&mut self) {
        self.pipeline.finish();
    }

    fn leave(&mut self) {
        self.pipeline.leave();
    }
}

impl<D: Device, B: VacantBlock> Drop for Gather<D, B> {
    fn drop(&mut self) {
        going::close(self);
    }
}
