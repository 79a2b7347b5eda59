//! Many small messages from device memory to a link.

use std::rc::Rc;

use super::pipeline::{Direction, Pipeline};
use super::{Copier, FlowError, NotStarted, Outgoing, Step, VacantBlock};
use crate::buffer::Slice;
use crate::device::{Device, DeviceError};

/// Sends messages that lie anywhere in a slice of device memory, a block's worth at a time. See [`flow`](crate::flow).
pub struct Gather<D: Device, B: VacantBlock> {
    pipeline: Pipeline<D, B>,
    source: Slice<D>,
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
            Ok(pipeline) => Ok(Self { pipeline, source }),
            Err(error) => Err(NotStarted { memory: source, error }),
        }
    }

    /// Advances the flow: sends the blocks whose copies are over, and begins with new ones, until there are none. Does not wait, and
    /// does a bounded amount of work.
    ///
    /// # Errors
    /// See [`FlowError`]. The flow has then failed: messages that were laid out and not sent are not sent.
    pub fn poll<O: Outgoing<Block = B>>(&mut self, outlet: &mut O) -> Result<Step, FlowError<O::Error>> {
        let Self { pipeline, source } = self;
        pipeline.poll(outlet, (source.shared(), source.range()), |outlet, block| outlet.send(block))
    }

    /// The number of messages sent.
    pub fn sent(&self) -> usize {
        self.pipeline.messages()
    }

    /// Waits until the oldest pending copy is over. Returns whether a kernel or a copy was pending.
    ///
    /// # Errors
    /// The copy has failed; the next poll reports that, too.
    pub fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.pipeline.going.wait()
    }

    /// Ends the flow and returns the slice. Pending work is given up.
    pub fn into_slice(self) -> Slice<D> {
        self.source
    }
}
