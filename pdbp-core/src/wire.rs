//! Structs whose memory is their wire form: bytes and little-endian numbers, without alignment and therefore without padding.
//!
//! A derive macro would do the same, but it and the parser that it needs would have to be compiled before this crate, for which all the
//! others wait.

use bytemuck::{Pod, Zeroable};

macro_rules! number {
    ($name:ident, $native:ident) => {
        #[doc = concat!("A little-endian `", stringify!($native), "` at any address.")]
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(transparent)]
        pub(crate) struct $name([u8; size_of::<$native>()]);

        impl $name {
            #[inline(always)]
            pub(crate) const fn get(self) -> $native {
                $native::from_le_bytes(self.0)
            }

            #[inline(always)]
            pub(crate) const fn set(&mut self, value: $native) {
                self.0 = value.to_le_bytes();
            }
        }

        impl From<$native> for $name {
            #[inline(always)]
            fn from(value: $native) -> Self {
                Self(value.to_le_bytes())
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.get().fmt(f)
            }
        }

        // SAFETY: it is an array of bytes, and nothing else.
        unsafe impl Zeroable for $name {}
        // SAFETY: as above; bytes of any value make one, and it has no padding.
        unsafe impl Pod for $name {}
    };
}

number!(U16, u16);
number!(U32, u32);
number!(U64, u64);

/// Declares a struct whose memory is its wire form. Fields with an alignment, or that have padding, do not compile.
macro_rules! wire {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$note:meta])* $access:vis $field:ident: $kind:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        $visibility struct $name {
            $($(#[$note])* $access $field: $kind,)*
        }

        const _: () = {
            const fn plain<T: bytemuck::Pod>() -> usize {
                size_of::<T>()
            }
            assert!(align_of::<$name>() == 1 && size_of::<$name>() == 0 $(+ plain::<$kind>())*);
        };
        // SAFETY: all fields are `Pod`, and they are all that it has, as the assertion says.
        #[allow(unsafe_code)]
        unsafe impl bytemuck::Zeroable for $name {}
        // SAFETY: as above; `repr(C)`, and without padding, since it has the size of its fields.
        #[allow(unsafe_code)]
        unsafe impl bytemuck::Pod for $name {}
    };
}
pub(crate) use wire;

/// Reading and writing in place what [`wire!`] declares.
pub(crate) trait Wire: Pod {
    /// All fields zero.
    fn new_zeroed() -> Self {
        Self::zeroed()
    }

    /// A copy of one at the start of `bytes`, and what follows; `None` if they are too short.
    #[inline(always)]
    fn read_from_prefix(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (own, rest) = bytes.split_at_checked(size_of::<Self>())?;
        Some((Self::read_from_bytes(own)?, rest))
    }

    /// A copy of one of exactly these bytes.
    #[inline(always)]
    fn read_from_bytes(bytes: &[u8]) -> Option<Self> {
        bytemuck::try_pod_read_unaligned(bytes).ok()
    }

    /// The one at the start of `bytes`, where it lies.
    #[inline(always)]
    fn ref_from_prefix(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        let (own, rest) = bytes.split_at_checked(size_of::<Self>())?;
        Some((Self::ref_from_bytes(own)?, rest))
    }

    /// One of exactly these bytes, where it lies.
    #[inline(always)]
    fn ref_from_bytes(bytes: &[u8]) -> Option<&Self> {
        const { assert!(align_of::<Self>() == 1) };
        bytemuck::try_from_bytes(bytes).ok()
    }

    /// As [`ref_from_prefix`](Self::ref_from_prefix), to be written.
    #[inline(always)]
    fn mut_from_prefix(bytes: &mut [u8]) -> Option<(&mut Self, &mut [u8])> {
        const { assert!(align_of::<Self>() == 1) };
        let (own, rest) = bytes.split_at_mut_checked(size_of::<Self>())?;
        Some((bytemuck::try_from_bytes_mut(own).ok()?, rest))
    }

    /// The wire form.
    #[inline(always)]
    fn as_bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }
}

impl<T: Pod> Wire for T {}

#[cfg(test)]
mod tests {
    use super::*;

    wire! {
        #[derive(Debug, PartialEq, Eq)]
        struct Form {
            a: u8,
            b: U32,
            c: [U16; 2],
            d: U64,
        }
    }

    const BYTES: [u8; 17] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];

    fn form() -> Form {
        let number = 0x1110_0F0E_0D0C_0B0A_u64;
        Form { a: 1, b: 0x0504_0302.into(), c: [0x0706.into(), 0x0908.into()], d: number.into() }
    }

    #[test]
    fn fields_lie_in_their_order_with_the_lowest_byte_first() {
        assert_eq!(form().as_bytes(), BYTES);
        assert_eq!(Form::read_from_bytes(&BYTES), Some(form()));
        assert_eq!((form().b.get(), form().c[1].get(), form().d.get() >> 56), (0x0504_0302, 0x0908, 0x11));
    }

    #[test]
    fn one_is_read_and_written_at_any_address_of_bytes_that_are_long_enough() {
        let mut bytes = [&BYTES[..], &[0; 3]].concat();
        for from in 1..=3 {
            bytes.copy_within(from - 1..from - 1 + BYTES.len(), from);
            assert_eq!(Form::ref_from_prefix(&bytes[from..]), Some((&form(), &[0; 3][from..])));
            let (there, _) = Form::mut_from_prefix(&mut bytes[from..]).unwrap();
            there.b.set(7);
            assert_eq!(bytes[from + 1..from + 5], [7, 0, 0, 0]);
            bytes[from..from + BYTES.len()].copy_from_slice(&BYTES);
        }
        let short = &mut [0; 16];
        assert_eq!((Form::read_from_prefix(short), Form::ref_from_prefix(short)), (None, None));
        assert_eq!((Form::mut_from_prefix(short), Form::read_from_bytes(&bytes)), (None, None));
        assert_eq!(Form::read_from_bytes(&[0; 17]), Some(Form::new_zeroed()));
    }
}
