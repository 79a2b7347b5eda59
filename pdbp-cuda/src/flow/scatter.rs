//! Many small messages from a link to device memory.

use std::rc::Rc;

use super::pipeline::{Direction, Pipeline};
use super::{Bundles, Copier, FlowError, HostBlock, NotStarted, Step};
use crate::buffer::Buffer;
use crate::device::{Device, DeviceError};

/// Receives messages to wherever they belong in a buffer on the device, a block's worth at a time. See [`flow`](crate::flow).
pub struct Scatter<D: Device, B: HostBlock> {
    pipeline: Pipeline<D, B>,
    /// `None` once it has been taken back.
    buffer: Option<Buffer<D>>,
}

impl<D: Device, B: HostBlock> Scatter<D, B> {
    /// Starts a flow of messages into the buffer, from blocks of up to `block` bytes, which begins when `after` is over: the event
    /// of the work that used the buffer before. Takes staging areas like [`Gather::new`](super::Gather::new).
    ///
    /// # Errors
    /// Returns the buffer, and the device's error.
    pub fn new(
        copier: &Rc<Copier<D>>,
        into: Buffer<D>,
        block: usize,
        after: Option<&D::Event>,
    ) -> Result<Self, NotStarted<Buffer<D>>> {
        match Pipeline::new(copier, Direction::Into, block, after) {
            Ok(pipeline) => Ok(Self { pipeline, buffer: Some(into) }),
            Err(error) => Err(NotStarted { memory: into, error }),
        }
    }

    /// Advances the flow: releases the blocks whose messages have reached their places, and begins with new ones, until there are
    /// none. Does not wait, and does a bounded amount of work.
    ///
    /// # Errors
    /// See [`FlowError`]. The flow has then failed: the contents of the buffer beyond [`received`](Self::received) messages are
    /// unknown.
    pub fn poll<I: Bundles<Block = B>>(&mut self, inlet: &mut I) -> Result<Step, FlowError<I::Error>> {
        let Self { pipeline, buffer } = self;
        let Some(buffer) = buffer else { return pipeline.going.poll(|_| Err(FlowError::Ended)) };
        pipeline.poll(inlet, (buffer.shared(), 0..buffer.bytes()), |_, _| Ok(()))
    }

    /// The number of messages that have arrived in the buffer, in the order in which their blocks were given.
    pub fn received(&self) -> usize {
        self.pipeline.messages()
    }

    /// Whether a copy or a kernel is pending.
    pub fn is_copying(&self) -> bool {
        !self.pipeline.going.is_empty()
    }

    /// Waits until the oldest pending kernel is over. Returns whether a copy or a kernel was pending.
    ///
    /// # Errors
    /// The kernel has failed; the next poll reports that, too.
    pub fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.pipeline.going.wait()
    }

    /// Ends the flow and returns the buffer; `None` while work on it is pending (try again later, or after [`Copier::settle`]),
    /// and if it was returned before.
    pub fn take_buffer(&mut self) -> Option<Buffer<D>> {
        self.pipeline.going.close();
        self.buffer.take_if(|buffer| buffer.is_free())
    }
}
