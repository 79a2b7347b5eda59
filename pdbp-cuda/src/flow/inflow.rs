//! From a link to device memory.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::going::Going;
use super::{Arrived, Copier, FlowError, HostBlock, Inlet, NotStarted, Step};
use crate::buffer::{Awaited, Buffer, RecvBuffer};
use crate::device::{Device, DeviceError};

/// Receives into a buffer on the device, until the data ends. See [`flow`](crate::flow).
pub struct Inflow<D: Device, B: HostBlock> {
    going: Going<D, D::Queue, (B, Arc<D::Memory>)>,
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
        match copier.take_queue_after(after) {
            Ok(queue) => {
                let going = Going::new(copier, vec![queue], after, Copier::put_queue);
                let (buffer, awaited) = (Some(into), None);
                Ok(Self { going, buffer, awaited, room, copied: 0, received: 0, fills: false })
            }
            Err(error) => Err(NotStarted { memory: into, error }),
        }
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
        if !self.regain() {
            return self.going.poll(|_| Ok(Step::Idle));
        }
        let Self { going, buffer, room, copied, received, fills, .. } = self;
        going.poll(|going| {
            let before = (*copied, *received);
            while let Some((_, length)) = going.unload()? {
                *received += length;
            }
            while !going.is_ending && going.has_room() {
                let left = room.len() - *copied;
                if *fills && left == 0 {
                    going.is_ending = true;
                    break;
                }
                let mut block = match inlet.poll_block(if *fills { left } else { usize::MAX }) {
                    Ok(Arrived::Block(block)) => block,
                    Ok(Arrived::Nothing) => break,
                    Ok(Arrived::End) => {
                        going.is_ending = true;
                        break;
                    }
                    Err(e) => return Err(FlowError::Link(e)),
                };
                let from = block.place();
                if from.len() > left {
                    return Err(FlowError::TooLong { room: room.len() });
                }
                let (Some(buffer), Some(queue)) = (&buffer, going.queue()) else {
                    return Err(FlowError::Ended);
                };
                if from.is_empty() {
                    continue;
                }
                // SAFETY: `going` holds the block (`HostBlock`) and the memory until the event is over.
                let event =
                    unsafe { going.device().copy_in(queue, from, buffer.memory(), room.start + *copied) }?;
                going.push(event, (block, Arc::clone(buffer.shared())), from.len());
                *copied += from.len();
            }
            Ok(match () {
                () if going.is_ending && going.is_empty() => Step::Done,
                () if (*copied, *received) == before => Step::Idle,
                () => Step::Moved,
            })
        })
    }

    /// The device.
    pub fn device(&self) -> &D {
        self.going.device()
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
        let fresh = self.going.is_open() && self.copied == 0;
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
        self.going.end_with(bytes);
        Step::Done
    }

    /// Returns the event of everything that the flow has submitted, and of what it waits for.
    ///
    /// # Errors
    /// The device's error.
    pub fn mark(&self) -> Result<Option<D::Event>, DeviceError> {
        self.going.mark()
    }

    /// The number of bytes that have arrived in the buffer.
    pub fn received(&self) -> usize {
        self.received
    }

    /// Waits until the oldest pending copy is over. Returns whether a copy was pending.
    ///
    /// # Errors
    /// The copy has failed; the next poll reports that, too.
    pub fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.going.wait()
    }

    /// Ends the flow and returns the buffer; `None` while copies into it are pending (try again later, or after [`Copier::settle`]), while
    /// a transport has it, and if it was returned before.
    pub fn take_buffer(&mut self) -> Option<Buffer<D>> {
        self.going.close();
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
}
