//! Elements, operations, and the only place where values are combined.

use core::fmt;

/// The type of a call's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Element {
    /// Bytes that are only moved: plain values of any type.
    Bytes = 0,
    /// `u8`.
    U8 = 1,
    /// `u16`.
    U16 = 2,
    /// `u32`.
    U32 = 3,
    /// `u64`.
    U64 = 4,
    /// `i8`.
    I8 = 5,
    /// `i16`.
    I16 = 6,
    /// `i32`.
    I32 = 7,
    /// `i64`.
    I64 = 8,
    /// `f32`.
    F32 = 9,
    /// `f64`.
    F64 = 10,
}

impl Element {
    const ALL: [Self; 11] = [
        Self::Bytes,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F32,
        Self::F64,
    ];

    /// Size in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Bytes | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|element| *element as u8 == code)
    }

    /// Whether the operation is defined for values of this type.
    pub const fn allows(self, op: Op) -> bool {
        match (self, op) {
            (_, Op::Function) => true,
            (Self::Bytes, _) | (Self::F32 | Self::F64, Op::And | Op::Or | Op::Xor) => false,
            _ => true,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "plain bytes",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F32 => "f32",
            Self::F64 => "f64",
        })
    }
}

/// How a reduction combines two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// The sum; integers wrap around.
    Sum = 1,
    /// The product; integers wrap around.
    Product = 2,
    /// The lesser value; −0 is below +0, and NaN wins.
    Min = 3,
    /// The greater value; −0 is below +0, and NaN wins.
    Max = 4,
    /// Bitwise, for integers.
    And = 5,
    /// Bitwise, for integers.
    Or = 6,
    /// Bitwise, for integers.
    Xor = 7,
    /// A function supplied by the program, which must be associative and commutative.
    Function = 8,
}

impl Op {
    const ALL: [Self; 8] =
        [Self::Sum, Self::Product, Self::Min, Self::Max, Self::And, Self::Or, Self::Xor, Self::Function];

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == code)
    }
}

/// Which of two values is the left operand. This follows from ranks, so all members compute the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// This member's own value.
    Own,
    /// The received value.
    Other,
}

trait Value: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
}

trait Bits: Value {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty)+) => {$(
        impl Value for $t {
            fn sum(self, other: Self) -> Self { self.wrapping_add(other) }
            fn product(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn min(self, other: Self) -> Self { Ord::min(self, other) }
            fn max(self, other: Self) -> Self { Ord::max(self, other) }
        }

        impl Bits for $t {
            fn and(self, other: Self) -> Self { self & other }
            fn or(self, other: Self) -> Self { self | other }
            fn xor(self, other: Self) -> Self { self ^ other }
        }
    )+};
}

macro_rules! floats {
    ($($t:ty)+) => {$(
        impl Value for $t {
            fn sum(self, other: Self) -> Self { self + other }
            fn product(self, other: Self) -> Self { self * other }

            fn min(self, other: Self) -> Self {
                let is_own = self.is_nan() || self < other || (self == other && self.is_sign_negative());
                if is_own { self } else { other }
            }

            fn max(self, other: Self) -> Self {
                let is_own = self.is_nan() || self > other || (self == other && self.is_sign_positive());
                if is_own { self } else { other }
            }
        }
    )+};
}

integers!(u8 u16 u32 u64 i8 i16 i32 i64);
floats!(f32 f64);

/// Folds the values of `from` into those of `into`, element by element, up to the shorter length. The bytes need no alignment.
///
/// Returns whether the operation is defined for such elements ([`Element::allows`]); if not, `into` is unchanged. [`Op::Function`]
/// is not supported here.
pub fn combine(op: Op, element: Element, left: Left, into: &mut [u8], from: &[u8]) -> bool {
    macro_rules! fold {
        ($t:ty, $f:expr) => {
            each(left, into, from, <$t>::from_ne_bytes, <$t>::to_ne_bytes, $f)
        };
    }
    macro_rules! of {
        (numbers: $t:ty) => {
            match op {
                Op::Sum => fold!($t, Value::sum),
                Op::Product => fold!($t, Value::product),
                Op::Min => fold!($t, Value::min),
                Op::Max => fold!($t, Value::max),
                _ => return false,
            }
        };
        (integers: $t:ty) => {
            match op {
                Op::And => fold!($t, Bits::and),
                Op::Or => fold!($t, Bits::or),
                Op::Xor => fold!($t, Bits::xor),
                _ => of!(numbers: $t),
            }
        };
    }
    match element {
        Element::Bytes => return false,
        Element::U8 => of!(integers: u8),
        Element::U16 => of!(integers: u16),
        Element::U32 => of!(integers: u32),
        Element::U64 => of!(integers: u64),
        Element::I8 => of!(integers: i8),
        Element::I16 => of!(integers: i16),
        Element::I32 => of!(integers: i32),
        Element::I64 => of!(integers: i64),
        Element::F32 => of!(numbers: f32),
        Element::F64 => of!(numbers: f64),
    }
    true
}

/// Two branch-free loops, which the compiler vectorises.
#[inline(always)]
fn each<const N: usize, T: Copy>(
    left: Left,
    into: &mut [u8],
    from: &[u8],
    load: impl Fn([u8; N]) -> T,
    store: impl Fn(T) -> [u8; N],
    f: impl Fn(T, T) -> T,
) {
    let pairs = into.as_chunks_mut::<N>().0.iter_mut().zip(from.as_chunks::<N>().0);
    match left {
        Left::Own => pairs.for_each(|(own, other)| *own = store(f(load(*own), load(*other)))),
        Left::Other => pairs.for_each(|(own, other)| *own = store(f(load(*other), load(*own)))),
    }
}
