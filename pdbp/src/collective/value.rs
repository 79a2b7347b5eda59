//! Values that can be combined, and the operations that combine them.

use bytemuck::Pod;
use pdbp_core::collective::{Element, Left, Op};

/// Combines a member's values with those received, as bytes.
pub(super) type Fold<'d> = Box<dyn pdbp_core::collective::Fold + 'd>;

/// Integers of 8 to 64 bits, `f32` and `f64`: what reductions combine.
pub trait Number: Pod + sealed::Number {}

mod sealed {
    use super::{Element, Fold, Op};

    pub trait Number {
        const ELEMENT: Element;
    }

    pub trait Operation<T> {
        /// The operation as sent to the others, and the function if it is the program's.
        fn parts<'d>(self) -> (Op, Option<Fold<'d>>)
        where
            Self: 'd;
    }
}

macro_rules! numbers {
    ($($t:ty: $element:ident)+) => {$(
        impl Number for $t {}
        impl sealed::Number for $t {
            const ELEMENT: Element = Element::$element;
        }
    )+};
}

numbers!(u8: U8 u16: U16 u32: U32 u64: U64 i8: I8 i16: I16 i32: I32 i64: I64 f32: F32 f64: F64);

/// How a reduction combines values: [`Sum`](super::Sum) and the other operations of [`Op`], or a function of the program
/// ([`With`]).
pub trait Operation<T>: sealed::Operation<T> {}

impl<T: Number> Operation<T> for Op {}

impl<T: Number> sealed::Operation<T> for Op {
    fn parts<'d>(self) -> (Op, Option<Fold<'d>>) {
        (self, None)
    }
}

/// Combines values with a function, which must be associative and commutative and the same at all members. The left argument comes
/// from the lower rank; in rings, ranks are counted from some member on.
///
/// ```
/// use pdbp::{Cluster, collective::{Group, With}};
/// use std::time::Duration;
///
/// Cluster::local(2)?.run(|node| {
///     let mut all = Group::of_nodes(&node, "clocks", Duration::from_secs(60)).unwrap();
///     let mut angle = [170 + 20 * all.rank() as u32];
///     all.all_reduce(&mut angle, With(|a, b| (a + b) % 360)).unwrap();
///     assert_eq!(angle, [0]);
///     all.barrier().unwrap();
/// });
/// # Ok::<(), pdbp::StartError>(())
/// ```
pub struct With<F>(pub F);

impl<T: Number, F: FnMut(T, T) -> T> Operation<T> for With<F> {}

impl<T: Number, F: FnMut(T, T) -> T> sealed::Operation<T> for With<F> {
    fn parts<'d>(mut self) -> (Op, Option<Fold<'d>>)
    where
        Self: 'd,
    {
        let fold = move |into: &mut [u8], from: &[u8], left| {
            for (own, other) in into.chunks_exact_mut(size_of::<T>()).zip(from.chunks_exact(size_of::<T>())) {
                let [a, b] = [&*own, other].map(bytemuck::pod_read_unaligned);
                let value = if left == Left::Own { (self.0)(a, b) } else { (self.0)(b, a) };
                own.copy_from_slice(bytemuck::bytes_of(&value));
            }
        };
        (Op::Function, Some(Box::new(fold)))
    }
}

pub(super) fn parts<'d, T: Number>(op: impl Operation<T> + 'd) -> (Element, Op, Option<Fold<'d>>) {
    let (op, fold) = op.parts();
    (T::ELEMENT, op, fold)
}
