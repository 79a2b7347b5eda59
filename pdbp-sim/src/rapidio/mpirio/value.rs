//! Numbers that reductions combine.

use pdbp_core::collective::Element;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A number that reductions combine: integers of 8 to 64 bits, `f32`, `f64`.
pub trait Number: Copy + FromBytes + IntoBytes + Immutable {
    /// The type of the number.
    const ELEMENT: Element;
}

macro_rules! numbers {
    ($($t:ty: $element:ident),+) => {$(
        impl Number for $t {
            const ELEMENT: Element = Element::$element;
        }
    )+};
}

numbers!(u8: U8, u16: U16, u32: U32, u64: U64, i8: I8, i16: I16, i32: I32, i64: I64, f32: F32, f64: F64);
