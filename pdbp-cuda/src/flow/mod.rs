//! Flows: data of any length between device memory and a link, or many small messages, block by block.
//!
//! ```text
//!            Outflow                                                                  Inflow
//!  device ──copy──▶ block ─┐                                            ┌─▶ block ──copy──▶ device
//!  memory ──copy──▶ block  ├─ in order, each when its copy is over ─────┤   block ──copy──▶ memory
//!         ──copy──▶ block ─┘       Outlet ══════ link ══════ Inlet      └─▶ block
//!            up to `in_flight` copies                     up to `in_flight` copies
//! ```
//! While one block is copied, another travels and a third is copied at the other end: the whole takes as long as the slowest of the
//! three takes for all bytes, plus a little at the beginning and the end.
//!
//! # Many small messages
//! A separate copy for each of many small messages would cost the driver more than their bytes. Instead, they travel a block's worth at
//! a time, through a staging area on the device that has the layout of the block:
//! ```text
//!            Gather                                                                             Scatter
//!  message ┐                                                                                          ┌ slot
//!  message ┼kernel▶ staging ──copy──▶ block ─┐                            ┌─▶ block ──copy──▶ staging ┼kernel▶ slot
//!  message ┘        area                     │                            │                   area    └ slot
//!          ┼kernel▶ staging ──copy──▶ block ─┴ Outgoing ══ link ══ Bundles┴─▶ block ──copy──▶ staging ┼kernel▶ …
//! ```
//! [`Bundles`] lists the messages of each block ([`Pieces`]); the bytes between them in the block, such as headers, are written when
//! its copy is over ([`Outgoing::send`]). Each block in flight has its own queue and staging area, so the kernel of one runs alongside
//! the copy of another: the whole takes as long as the slowest of kernels, copies and link takes for all bytes. The [`Copier`] keeps
//! the staging areas for later flows.
//!
//! A flow is a state machine that its owner polls: no call waits. It owns the device memory and blocks of pending copies. When it fails
//! or is dropped, those of copies still pending go to its [`Copier`], which releases each when its copy is over. A device error that
//! does not imply that a copy is over ends the flow, but no copy: the memory that the copy uses stays held (`InUse`). So does
//! everything that a flow holds when a function of the caller panics in it; the flow has then failed.

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

pub use bundle::{Bundles, NoRoom, Outgoing, Pieces, Rows};
pub use copier::Copier;
pub use gather::Gather;
pub use inflow::Inflow;
pub use lent::{Home, Lent};
pub use outflow::Outflow;
pub use scatter::Scatter;

use crate::device::DeviceError;
pub use crate::device::NotStarted;

/// A block in host memory. Dropping it gives it back to where it came from.
///
/// # Safety
/// [`place`](Self::place) must return the same bytes at each call, even if the value is moved. They must be initialised, valid for
/// reads, and not written by anything else until the value is dropped or handed on.
pub unsafe trait HostBlock: 'static {
    /// Its bytes.
    fn place(&mut self) -> NonNull<[u8]>;
}

/// A vacant block, to be filled.
///
/// # Safety
/// Its bytes must also be valid for writes, and not read by anything else.
pub unsafe trait VacantBlock: HostBlock {}

/// Whether a block ends the data.
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

    /// Returns a vacant block; `None` if none is available now.
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

/// The result of polling an [`Inlet`], or [`Bundles`].
#[derive(Debug)]
pub enum Arrived<B> {
    /// The next block.
    Block(B),
    /// Nothing yet.
    Nothing,
    /// The end: nothing more will arrive.
    End,
}

/// Where the blocks of an [`Inflow`] come from. No call waits.
pub trait Inlet {
    /// A block of data.
    type Block: HostBlock;
    /// What can go wrong.
    type Error;

    /// Returns the next block, or the next `most` bytes of a longer one.
    ///
    /// # Errors
    /// Nothing more will arrive, though the data has not ended.
    fn poll_block(&mut self, most: usize) -> Result<Arrived<Self::Block>, Self::Error>;
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: a copy, or the link, must progress first.
    Idle,
    /// Something. Polling again at once may do more.
    Moved,
    /// The flow has ended.
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
    /// More data arrived than there is room for.
    TooLong {
        /// The size of the room in bytes.
        room: usize,
    },
    /// The next message does not fit its slot. It waits to be received in another way.
    Unfit {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes of a slot.
        slot: usize,
    },
    /// The flow has failed earlier.
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
            Self::Ended => f.write_str("the flow has already failed; begin a new one"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for FlowError<E> {}
