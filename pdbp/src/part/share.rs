//! Whether a part stays on its thread or may move to another, and how streams and loans hold their part.

use std::rc::Rc;

use super::Part;
use crate::sync::{AnyThread, Count, OneThread};

/// Whether a part and its messages may move to another thread: [`Local`] or [`Shared`].
pub trait Share: sealed::Share {}

/// A part that stays on its thread, with its messages. Readers of a block are counted without atomic operations.
#[derive(Clone, Copy, Debug)]
pub enum Local {}

/// A part that may move to another thread, and whose messages may be read and dropped on any thread. Each message costs one atomic
/// operation, when it is dropped: 60 instructions to send and receive one of 64 bytes, against 59 for a [`Local`] part
/// (`ci/instructions`).
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

impl Share for Local {}
impl Share for Shared {}

/// How streams, loans and device operations hold their part: by `&Part`, `&mut Part` or `Rc<Part>`. With an `Rc` they are not bound to the
/// lifetime of a borrow ([`StreamWriter::open`](super::StreamWriter::open)); with a `&mut` to a [`Shared`] part they may move to another
/// thread, as tasks do.
pub trait HoldsPart: sealed::HoldsPart {
    /// Whether the part may move.
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

/// Seals the traits.
pub(super) mod sealed {
    use super::{AnyThread, Count, OneThread, Part, Rc};

    pub trait Share: 'static {
        /// Counts the readers of a delivery.
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
