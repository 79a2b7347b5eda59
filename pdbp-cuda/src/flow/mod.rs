//! Flows: data of any length between device memory and a link, or many small messages, block by block.
//!
//! ```text
//!            Outflow                                                                  Inflow
//!  device ──copy──▶ block ─┐                                            ┌─▶ block ──copy──▶ device
//!  memory ──copy──▶ block  ├─ in order, each when its copy is over ─────┤   block ──copy──▶ memory
//!         ──copy──▶ block ─┘       Outlet ══════ link ══════ Inlet      └─▶ block
//!            up to `in_flight` copies                     up to `in_flight` copies
//! ```
//! While one block is copied, another travels and a third is copied at the other end: the whole takes as long as the slowest
//! of the three takes for all bytes, and a little to begin and to end.
//!
//! # Many small messages
//! A copy of its own for each of many small messages would cost the driver more than their bytes. They travel a block's worth at a
//! time instead, by a staging area on the device that has the layout of the block:
//! ```text
//!            Gather                                                                             Scatter
//!  message ┐                                                                                          ┌ slot
//!  message ┼kernel▶ staging ──copy──▶ block ─┐                            ┌─▶ block ──copy──▶ staging ┼kernel▶ slot
//!  message ┘        area                     │                            │                   area    └ slot
//!          ┼kernel▶ staging ──copy──▶ block ─┴ Outgoing ══ link ══ Bundles┴─▶ block ──copy──▶ staging ┼kernel▶ …
//! ```
//! [`Bundles`] lists the messages of each block ([`Pieces`]); what lies between them in the block, such as headers, is written
//! when its copy is over ([`Outgoing::send`]). Each block in flight has a queue and a staging area of its own, so that the kernel of
//! one runs beside the copy of another: the whole takes as long as the slowest of kernels, copies and link takes for all bytes. The
//! [`Copier`] keeps the staging areas for the flows to come.
//!
//! A flow is a state that its owner polls: no call waits. It owns device memory and blocks of the copies under way. When it
//! fails or is dropped, those that are under way yet go to its [`Copier`], which lets go of each when its copy is over. An error of the
//! device that does not say that a copy is over ends a flow, and no copy: what that uses stays held ([`InUse`]). So does what a
//! flow has when a function of the caller panics in it; the flow has failed then.

mod bundle;
mod copier;
mod gather;
mod going;
mod inflow;
mod lent;
mod outflow;
mod pipeline;
mod scatter;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

pub use bundle::{Bundles, NoRoom, Outgoing, Pieces, Rows};
pub use copier::Copier;
pub use gather::Gather;
pub use inflow::Inflow;
pub use lent::{Home, Lent};
pub use outflow::Outflow;
pub use scatter::Scatter;

pub use crate::device::NotStarted;
use crate::device::{Device, DeviceError, InUse};

/// A block in the host's memory. Dropping it gives it back to where it came from.
///
/// # Safety
/// [`place`](Self::place) gives the same bytes at each call, however the value is moved. They are initialised and valid for reads
/// until the value is dropped or handed on, and nobody else writes them.
pub unsafe trait HostBlock: 'static {
    /// Its bytes.
    fn place(&mut self) -> NonNull<[u8]>;
}

/// A block to be filled.
///
/// # Safety
/// Its bytes are valid for writes, too, and nobody else reads them.
pub unsafe trait VacantBlock: HostBlock {}

/// Whether what is sent ends the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// More may follow.
    Open,
    /// Nothing follows.
    Last,
}

/// Where the blocks of an [`Outflow`] go. No call waits.
pub trait Outlet {
    /// A block to be filled: one byte or more.
    type Block: VacantBlock;
    /// What can go wrong.
    type Error;

    /// A vacant block; `None` when there is none now.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    fn poll_block(&mut self) -> Result<Option<Self::Block>, Self::Error>;

    /// Sends the first `length` bytes of a block. Blocks arrive in the order in which they are sent.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    fn send(&mut self, block: Self::Block, length: usize, ending: Ending) -> Result<(), Self::Error>;
}

/// What an [`Inlet`] has, and [`Bundles`].
#[derive(Debug)]
pub enum Arrived<B> {
    /// The next block.
    Block(B),
    /// Nothing yet.
    Nothing,
    /// The end: nothing will come.
    End,
}

/// Where the blocks of an [`Inflow`] come from. No call waits.
pub trait Inlet {
    /// A block of data.
    type Block: HostBlock;
    /// What can go wrong.
    type Error;

    /// The next block, or the next `most` bytes of one that is longer.
    ///
    /// # Errors
    /// Nothing will come any more, though the data has not ended.
    fn poll_block(&mut self, most: usize) -> Result<Arrived<Self::Block>, Self::Error>;
}

/// What a poll did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: a copy, or the link, has to get on first.
    Idle,
    /// Something. Polling again at once may do more.
    Moved,
    /// The flow has come to its end.
    Done,
}

/// Why a flow ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowError<E> {
    /// The device failed.
    Device(DeviceError),
    /// The link failed.
    Link(E),
    /// More came than there is room for.
    TooLong {
        /// Bytes of the room.
        room: usize,
    },
    /// The next message does not fit its slot. It waits to be received in another way.
    Unfit {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes of a slot.
        slot: usize,
    },
    /// The flow has failed before.
    Ended,
}

impl<M, E> From<NotStarted<M, DeviceError>> for FlowError<E> {
    fn from(e: NotStarted<M, DeviceError>) -> Self {
        Self::Device(e.error)
    }
}

impl<E> From<DeviceError> for FlowError<E> {
    fn from(e: DeviceError) -> Self {
        Self::Device(e)
    }
}

impl<E: fmt::Display> fmt::Display for FlowError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(e) => e.fmt(f),
            Self::Link(e) => e.fmt(f),
            Self::TooLong { room } => {
                write!(
                    f,
                    "more than the {room} bytes came that there is room for; receive into a larger buffer"
                )
            }
            Self::Unfit { bytes, slot } => write!(
                f,
                "a message of {bytes} bytes does not fit a slot of {slot}, or is longer than a block; receive it by itself, as \
                 other messages are, or into larger slots"
            ),
            Self::Ended => f.write_str("the flow has failed before; begin a new one"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for FlowError<E> {}

/// A copy under way, and what it has: the block at its one end, and the memory at the other.
struct Flight<D: Device, B> {
    held: InUse<D, (B, Arc<D::Memory>)>,
    length: usize,
}
