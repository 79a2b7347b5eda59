//! From a link to device memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use super::going::{self, Flow, State};
use super::{Arrived, Copier, Flight, FlowError, HostBlock, Inlet, NotStarted, Step};
use crate::buffer::{Awaited, Buffer, RecvBuffer};
use crate::device::{Device, DeviceError, InUse};

/// Receives into a buffer on the device, until the data ends. See [`flow`](crate::flow).
pub struct Inflow<D: Device, B: HostBlock> {
    copier: Rc<Copier<D>>,
    /// `None` once the flow has ended.
    queue: Option<D::Queue>,
    /// `None` once it has been taken back.
    buffer: Option<Buffer<D>>,
    /// The buffer, while a transport has its room.
    awaited: Option<Awaited<D>>,
    /// The range of the buffer that receives the data.
    room: Range<usize>,
    /// Bytes for which a copy was requested.
    copied: usize,
    /// Bytes that have arrived in the buffer.
    received: usize,
    /// Whether the flow ends when the room is full, and leaves the rest of the data to others.
    fills: bool,
    flights: VecDeque<Flight<D, B>>,
    state: State,
}

impl<D: Device, B: HostBlock> Inflow<D, B> {
    /// Starts a flow into these bytes of the buffer, whose copies begin when `after` is over: the event of the work that used the buffer
    /// before.
    ///
    /// # Errors
    /// Returns the buffer, with [`DeviceError::OutOfBounds`] if the range does not lie in it, or the device's error.
    pub fn new(
        copier: &Rc<Copier<D>>,
        into: Buffer<D>,
        room: Range<usize>,
        after: Option<&D::Event>,
    ) -> Result<Self, NotStarted<Buffer<D>>> {
        if room.start > room.end || room.end > into.bytes() {
            let (at, bytes) = (room.start, room.len());
            let error = DeviceError::OutOfBounds { at, bytes, room: into.bytes() };
            return Err(NotStarted { memory: into, error });
        }
        let queue = match copier.take_queue_after(after) {
            Ok(queue) => Some(queue),
            Err(error) => return Err(NotStarted { memory: into, error }),
        };
        let (copier, flights) = (Rc::clone(copier), VecDeque::with_capacity(copier.in_flight()));
        Ok(Self {
            copier,
            queue,
            buffer: Some(into),
            awaited: None,
            room,
            copied: 0,
            received: 0,
            fills: false,
            flights,
            state: State::Flowing,
        })
    }

    /// Makes the flow end when the room is full, if the data does not end before. Later data is left in the [`Inlet`].
    #[must_use]
    pub fn filling(mut self) -> Self {
        self.fills = true;
        self
    }

    /// Advances the flow: releases the blocks whose copies are over, and begins copies of new ones. Does not wait, and does a bounded
    /// amount of work.
    ///
    /// # Errors
    /// See [`FlowError`]. The flow has then failed: the contents of the buffer are unknown.
    pub fn poll<I: Inlet<Block = B>>(&mut self, inlet: &mut I) -> Result<Step, FlowError<I::Error>> {
        going::poll(self, |flow| flow.advance(inlet))
    }

    /// The device.
    pub fn device(&self) -> &D {
        self.copier.device()
    }

    /// Lends a transport the room for `bytes` bytes that arrive by other means than blocks, instead of everything that the flow would
    /// copy. The flow pauses while the transport has the room; [`poll_received`](Self::poll_received) reports that the bytes have arrived.
    /// If nothing is to arrive that way, drop the room, and the flow continues with blocks.
    ///
    /// # Errors
    /// [`FlowError::TooLong`]; and [`FlowError::Ended`] if the flow is not at its beginning.
    pub fn recv_buffer<E>(&mut self, bytes: usize) -> Result<RecvBuffer<D>, FlowError<E>> {
        if bytes > self.room.len() {
            return Err(FlowError::TooLong { room: self.room.len() });
        }
        let room = self.room.start..self.room.start + bytes;
        let fresh = self.state == State::Flowing && self.copied == 0;
        let Some(buffer) = self.buffer.take_if(|_| fresh) else { return Err(FlowError::Ended) };
        match buffer.into_recv(room) {
            Ok((receiving, awaited)) => {
                self.awaited = Some(awaited);
                Ok(receiving)
            }
            Err((buffer, e)) => {
                self.buffer = Some(buffer);
                Err(FlowError::Device(e))
            }
        }
    }

    /// Records that `bytes` bytes have arrived, and nothing follows: done as soon as the transport has released the room.
    pub fn poll_received(&mut self, bytes: usize) -> Step {
        if !self.regain() {
            return Step::Idle;
        }
        (self.copied, self.received) = (bytes, bytes);
        going::end(self);
        Step::Done
    }

    /// Returns the event of everything that the flow has submitted, and of what it waits for.
    ///
    /// # Errors
    /// The device's error.
    pub fn mark(&self) -> Result<Option<D::Event>, DeviceError> {
        self.queue.as_ref().map(|queue| self.copier.device().mark(queue)).transpose()
    }

    /// The number of bytes that have arrived in the buffer.
    pub fn received(&self) -> usize {
        self.received
    }

    /// Whether a copy is pending.
    pub fn is_copying(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Waits until the oldest pending copy is over; returns at once if there is none.
    ///
    /// # Errors
    /// The copy has failed; the next poll reports that, too.
    pub fn wait_for_copy(&self) -> Result<(), DeviceError> {
        self.flights.front().map_or(Ok(()), |flight| self.copier.device().wait(flight.held.event()))
    }

    /// Ends the flow and returns the buffer; `None` while copies into it are pending (try again later, or after [`Copier::settle`]), while
    /// a transport has it, and if it was returned before.
    pub fn take_buffer(&mut self) -> Option<Buffer<D>> {
        going::close(self);
        self.regain();
        self.buffer.take_if(|buffer| buffer.is_free())
    }

    /// Takes the buffer back once the transport has released it. Returns whether no transport has the room.
    fn regain(&mut self) -> bool {
        match self.awaited.take().map(Awaited::into_buffer) {
            None => {}
            Some(Ok(buffer)) => self.buffer = Some(buffer),
            Some(Err(awaited)) => self.awaited = Some(awaited),
        }
        self.awaited.is_none()
    }

    fn advance<I: Inlet<Block = B>>(&mut self, inlet: &mut I) -> Result<Step, FlowError<I::Error>> {
        if !self.regain() {
            return Ok(Step::Idle);
        }
        let before = (self.copied, self.received);
        self.let_go()?;
        let ended = self.copy_more(inlet)?;
        Ok(match () {
            () if ended && self.flights.is_empty() => Step::Done,
            () if (self.copied, self.received) == before => Step::Idle,
            () => Step::Moved,
        })
    }

    /// Releases blocks that were copied.
    fn let_go(&mut self) -> Result<(), DeviceError> {
        while let Some(flight) = self.flights.front_mut() {
            let Some(_) = flight.held.poll(self.copier.device())? else { break };
            self.received += self.flights.pop_front().map_or(0, |flight| flight.length);
        }
        Ok(())
    }

    /// Begins copies of new blocks. Returns whether the data has ended.
    fn copy_more<I: Inlet<Block = B>>(&mut self, inlet: &mut I) -> Result<bool, FlowError<I::Error>> {
        while self.state == State::Flowing && self.flights.len() < self.copier.in_flight() {
            let left = self.room.len() - self.copied;
            if self.fills && left == 0 {
                self.state = State::Ending;
                break;
            }
            match inlet.poll_block(if self.fills { left } else { usize::MAX }).map_err(FlowError::Link)? {
                Arrived::Nothing => break,
                Arrived::End => self.state = State::Ending,
                Arrived::Block(block) => self.copy(block)?,
            }
        }
        Ok(self.state == State::Ending)
    }

    fn copy<E>(&mut self, mut block: B) -> Result<(), FlowError<E>> {
        let from = block.place();
        let length = from.len();
        if length > self.room.len() - self.copied {
            return Err(FlowError::TooLong { room: self.room.len() });
        }
        let (Some(buffer), Some(queue)) = (&self.buffer, &self.queue) else { return Err(FlowError::Ended) };
        if length == 0 {
            return Ok(());
        }
        let at = self.room.start + self.copied;
        // SAFETY: `InUse` holds the block (`HostBlock`) and the memory until the event is over.
        let event = unsafe { self.copier.device().copy_in(queue, from, buffer.memory(), at) }?;
        let held = InUse::new(event, (block, buffer.hold()));
        self.flights.push_back(Flight { held, length });
        self.copied += length;
        Ok(())
    }
}

impl<D: Device, B: HostBlock> Flow for Inflow<D, B> {
    type Device = D;

    fn state(&mut self) -> &mut State {
        &mut self.state
    }

    fn copier(&self) -> &Copier<D> {
        &self.copier
    }

    fn release(&mut self) {
        // A queue on which nothing was copied may still wait for the event that the flow was to begin after.
        if let Some(queue) = self.queue.take().filter(|_| self.copied > 0) {
            self.copier.put_queue(queue);
        }
    }

    fn leave(&mut self) {
        // Not used again: it may wait for an event in the distant future.
        self.queue = None;
        self.flights.drain(..).for_each(|flight| self.copier.leave(flight.held));
    }
}

impl<D: Device, B: HostBlock> Drop for Inflow<D, B> {
    fn drop(&mut self) {
        going::close(self);
    }
}
