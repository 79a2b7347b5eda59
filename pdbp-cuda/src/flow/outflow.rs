//! From device memory to a link.

use std::collections::VecDeque;
use std::rc::Rc;

use super::going::{self, Flow, State};
use super::{Copier, Ending, Flight, FlowError, NotStarted, Outlet, Step, VacantBlock};
use crate::buffer::Slice;
use crate::device::{Device, DeviceError, InUse};

/// Sends a slice of device memory. See [`flow`](crate::flow).
pub struct Outflow<D: Device, B: VacantBlock> {
    copier: Rc<Copier<D>>,
    /// `None` once the flow has ended.
    queue: Option<D::Queue>,
    source: Slice<D>,
    ending: Ending,
    /// Bytes for which a copy was requested.
    copied: usize,
    /// The number of bytes sent.
    sent: usize,
    flights: VecDeque<Flight<D, B>>,
    state: State,
}

impl<D: Device, B: VacantBlock> Outflow<D, B> {
    /// Starts a flow of the whole slice, which begins when `after` is over: the event of the work that writes the slice. With
    /// [`Ending::Last`] its last block ends the data; a slice without bytes is then one empty block, and nothing otherwise.
    ///
    /// # Errors
    /// Returns the slice if there is no queue, or if the queue cannot wait for the event.
    pub fn new(
        copier: &Rc<Copier<D>>,
        source: Slice<D>,
        after: Option<&D::Event>,
        ending: Ending,
    ) -> Result<Self, NotStarted<Slice<D>>> {
        let queue = match copier.take_queue_after(after) {
            Ok(queue) => queue,
            Err(error) => return Err(NotStarted { memory: source, error }),
        };
        let (copier, flights) = (Rc::clone(copier), VecDeque::with_capacity(copier.in_flight()));
        let (copied, sent, state) = (0, 0, State::Flowing);
        Ok(Self { copier, queue: Some(queue), source, ending, copied, sent, flights, state })
    }

    /// Advances the flow: sends the blocks whose copies are over, and begins copies into new ones. Does not wait, and does a
    /// bounded amount of work.
    ///
    /// # Errors
    /// See [`FlowError`]. The flow has then failed: a prefix of the data was sent, and no block of this flow was the last.
    pub fn poll<O: Outlet<Block = B>>(&mut self, outlet: &mut O) -> Result<Step, FlowError<O::Error>> {
        going::poll(self, |flow| flow.advance(outlet))
    }

    /// The device and the slice.
    pub fn source(&self) -> (&D, &Slice<D>) {
        (self.copier.device(), &self.source)
    }

    /// Returns the event of everything that the flow has submitted, and of what it waits for.
    ///
    /// # Errors
    /// The device's error.
    pub fn mark(&self) -> Result<Option<D::Event>, DeviceError> {
        self.queue.as_ref().map(|queue| self.copier.device().mark(queue)).transpose()
    }

    /// The number of bytes sent.
    pub fn sent(&self) -> usize {
        self.sent
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

    /// Ends the flow and returns the slice. Pending work is given up.
    pub fn into_slice(self) -> Slice<D> {
        self.source.clone()
    }

    fn advance<O: Outlet<Block = B>>(&mut self, outlet: &mut O) -> Result<Step, FlowError<O::Error>> {
        let before = (self.copied, self.sent);
        self.send_copied(outlet)?;
        self.copy_more(outlet)?;
        let bytes = self.source.bytes();
        if bytes == 0 && self.ending == Ending::Last {
            let Some(block) = outlet.poll_block().map_err(FlowError::Link)? else { return Ok(Step::Idle) };
            outlet.send(block, 0, Ending::Last).map_err(FlowError::Link)?;
        }
        Ok(match () {
            () if self.sent == bytes => Step::Done,
            () if (self.copied, self.sent) == before => Step::Idle,
            () => Step::Moved,
        })
    }

    fn send_copied<O: Outlet<Block = B>>(&mut self, outlet: &mut O) -> Result<(), FlowError<O::Error>> {
        while let Some(flight) = self.flights.front_mut() {
            let Some((block, _)) = flight.held.poll(self.copier.device())? else { break };
            let length = self.flights.pop_front().map_or(0, |flight| flight.length);
            let last = self.sent + length == self.source.bytes();
            let ending = if last { self.ending } else { Ending::Open };
            outlet.send(block, length, ending).map_err(FlowError::Link)?;
            self.sent += length;
        }
        Ok(())
    }

    fn copy_more<O: Outlet<Block = B>>(&mut self, outlet: &mut O) -> Result<(), FlowError<O::Error>> {
        let Some(queue) = &self.queue else { return Ok(()) };
        while self.flights.len() < self.copier.in_flight() && self.copied < self.source.bytes() {
            let Some(mut block) = outlet.poll_block().map_err(FlowError::Link)? else { break };
            let room = block.place();
            let length = room.len().min(self.source.bytes() - self.copied);
            let to = std::ptr::NonNull::slice_from_raw_parts(room.cast(), length);
            let at = self.source.place(self.copied);
            // SAFETY: `InUse` holds the block (`HostBlock`) and the memory until the event is over.
            let event = unsafe { self.copier.device().copy_out(queue, self.source.memory(), at, to) }?;
            let held = InUse::new(event, (block, self.source.hold()));
            self.flights.push_back(Flight { held, length });
            self.copied += length;
        }
        Ok(())
    }
}

impl<D: Device, B: VacantBlock> Flow for Outflow<D, B> {
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

impl<D: Device, B: VacantBlock> Drop for Outflow<D, B> {
    fn drop(&mut self) {
        going::close(self);
    }
}
