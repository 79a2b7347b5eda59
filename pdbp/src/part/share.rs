//! Parts that stay with their thread, parts that may go to another, and who holds a part.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use super::Part;

/// Whether a part and what it receives may go to another thread: [`Local`], or [`Shared`].
pub trait Share: sealed::Share {}

/// A part that stays on its thread, with its messages: readers of a block are counted without atomic operations.
#[derive(Clone, Copy, Debug)]
pub enum Local {}

/// A part that may go to another thread, and whose messages may be read and dropped by any. Each message costs two atomic operations.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

impl Share for Local {}
impl Share for Shared {}

/// Something that holds a part: `&Part` or `Rc<Part>`. Streams, loans and device operations hold the part that they belong to
/// so; with an `Rc` they need not live shorter than a borrow of it ([`StreamWriter::open`](super::StreamWriter::open)).
pub trait HoldsPart: Clone + sealed::HoldsPart {
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

impl<S: Share> HoldsPart for Rc<Part<S>> {
    type Share = S;
    fn part(&self) -> &Part<S> {
        self
    }
}

/// What nobody else implements.
pub(super) mod sealed {
    use super::{Arc, Deref, Part, Rc};

    pub trait Share: 'static {
        /// A counted pointer.
        type Pointer<T>: Deref<Target = T> + Clone;

        fn pointer<T>(value: T) -> Self::Pointer<T>;

        /// The value, if this is the only pointer to it.
        fn into_inner<T>(pointer: Self::Pointer<T>) -> Option<T>;
    }

    impl Share for super::Local {
        type Pointer<T> = Rc<T>;

        #[inline(always)]
        fn pointer<T>(value: T) -> Rc<T> {
            Rc::new(value)
        }

        fn into_inner<T>(pointer: Rc<T>) -> Option<T> {
            Rc::into_inner(pointer)
        }
    }

    impl Share for super::Shared {
        type Pointer<T> = Arc<T>;

        #[inline(always)]
        fn pointer<T>(value: T) -> Arc<T> {
            Arc::new(value)
        }

        fn into_inner<T>(pointer: Arc<T>) -> Option<T> {
            Arc::into_inner(pointer)
        }
    }

    pub trait HoldsPart {}

    impl<S: super::Share> HoldsPart for &Part<S> {}
    impl<S: super::Share> HoldsPart for Rc<Part<S>> {}
}
