//! Parts that stay with their thread, parts that may go to another, and who holds a part.

use std::rc::Rc;

use super::Part;
use crate::sync::{AnyThread, Count, OneThread};

/// Whether a part and what it receives may go to another thread: [`Local`], or [`Shared`].
pub trait Share: sealed::Share {}

/// A part that stays on its thread, with its messages: readers of a block are counted without atomic operations.
#[derive(Clone, Copy, Debug)]
pub enum Local {}

/// A part that may go to another thread, and whose messages may be read and dropped by any. For that each message costs one atomic
/// operation, when it is dropped: 60 instructions for one of 64 bytes that is sent and received, against 59 of a [`Local`] part
/// (`ci/instructions`).
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

impl Share for Local {}
impl Share for Shared {}

/// Something that holds a part: `&Part`, `&mut Part` or `Rc<Part>`. Streams, loans and device operations hold the part that they belong to
/// so; with an `Rc` they need not live shorter than a borrow of it ([`StreamWriter::open`](super::StreamWriter::open)), and with a `&mut`
/// to a part that is [`Shared`] they may go to another thread, as tasks do.
pub trait HoldsPart: sealed::HoldsPart {
    /// Of the part.
    type Share: Share;

    /// The part.
    fn part(&self) -> &Part<Self::Share>;
}

impl<S: Share> HoldsPart for &Part<S> {
    type Share = S;
    #[inline(always)]
    fn part(&self) -> &Part<S> {
        self
    }
}

impl<S: Share> HoldsPart for &mut Part<S> {
    type Share = S;
    fn part(&self) -> &Part<S> {
        self
    }
}

impl<S: Share> HoldsPart for Rc<Part<S>> {
    type Share = S;
    fn part(&self) -> &Part<S> {
        self
    }
}

/// What nobody else implements.
pub(super) mod sealed {
    use super::{AnyThread, Count, OneThread, Part, Rc};

    pub trait Share: 'static {
        /// Of those who read a delivery.
        type Count: Count;
    }

    impl Share for super::Local {
        type Count = OneThread;
    }

    impl Share for super::Shared {
        type Count = AnyThread;
    }

    pub trait HoldsPart {}

    impl<S: super::Share> HoldsPart for &Part<S> {}
    impl<S: super::Share> HoldsPart for &mut Part<S> {}
    impl<S: super::Share> HoldsPart for Rc<Part<S>> {}
}
