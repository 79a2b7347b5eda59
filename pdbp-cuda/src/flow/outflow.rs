//! From device memory to a link.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::going::Going;
use super::{Copier, Ending, FlowError, NotStarted, Outlet, Step, VacantBlock};
use crate::buffer::Slice;
use crate::device::{Device, DeviceError};

/// Sends a slice of device memory. See [`flow`](crate::flow).
pub struct Outflow<D: Device, B: VacantBlock> {
    going: Going<D, D::Queue, (B, Arc<D::Memory>)>,
    source: Slice<D>,
    ending: Ending,
    /// Bytes for which a copy was requested.
    copied: usize,
    /// The number of bytes sent.
    sent: usize,
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
        match copier.take_queue_after(after) {
            Ok(queue) => {
                let going = Going::new(copier, vec![queue], after, Copier::put_queue);
                Ok(Self { going, source, ending, copied: 0, sent: 0 })
            }
            Err(error) => Err(NotStarted { memory: source, error }),
        }
    }

    /// Advances the flow: sends the blocks whose copies are over, and begins copies into new ones. Does not wait, and does a
    /// bounded amount of work.
    ///
    /// # Errors
    /// See [`FlowError`]. The flow has then failed: a prefix of the data was sent, and no block of this flow was the last.
    pub fn poll<O: Outlet<Block = B>>(&mut self, outlet: &mut O) -> Result<Step, FlowError<O::Error>> {
        let Self { going, source, ending, copied, sent } = self;
        let bytes = source.bytes();
        going.poll(|going| {
            let before = (*copied, *sent);
            while let Some(((block, _), length)) = going.unload()? {
                let last = *sent + length == bytes;
                let ending = if last { *ending } else { Ending::Open };
                outlet.send(block, length, ending).map_err(FlowError::Link)?;
                *sent += length;
            }
            while going.has_room() && *copied < bytes {
                let Some(queue) = going.queue() else { break };
                let Some(mut block) = outlet.poll_block().map_err(FlowError::Link)? else { break };
                let room = block.place();
                let length = room.len().min(bytes - *copied);
                let (at, to) = (source.place(*copied), NonNull::slice_from_raw_parts(room.cast(), length));
                // SAFETY: `going` holds the block (`HostBlock`) and the memory until the event is over.
                let event = unsafe { going.device().copy_out(queue, source.shared(), at, to) }?;
                going.push(event, (block, Arc::clone(source.shared())), length);
                *copied += length;
            }
            if bytes == 0 && *ending == Ending::Last {
                let Some(block) = outlet.poll_block().map_err(FlowError::Link)? else {
                    return Ok(Step::Idle);
                };
                outlet.send(block, 0, Ending::Last).map_err(FlowError::Link)?;
            }
            Ok(match () {
                () if *sent == bytes => Step::Done,
                () if (*copied, *sent) == before => Step::Idle,
                () => Step::Moved,
            })
        })
    }

    /// The device and the slice.
    pub fn source(&self) -> (&D, &Slice<D>) {
        (self.going.device(), &self.source)
    }

    /// Returns the event of everything that the flow has submitted, and of what it waits for.
    ///
    /// # Errors
    /// The device's error.
    pub fn mark(&self) -> Result<Option<D::Event>, DeviceError> {
        self.going.mark()
    }

    /// The number of bytes sent.
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Waits until the oldest pending copy is over. Returns whether a copy was pending.
    ///
    /// # Errors
    /// The copy has failed; the next poll reports that, too.
    pub fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.going.wait()
    }

    /// Ends the flow and returns the slice. Pending work is given up.
    pub fn into_slice(self) -> Slice<D> {
        self.source
    }
}
