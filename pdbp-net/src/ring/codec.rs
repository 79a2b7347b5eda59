//! Packing and expanding one block, by lz4 or by zstd at level 1.
//!
//! ```text
//!  0              4
//!  +--------------+ - - - - - - - - - - - +
//!  | plain length | bytes of the codec    |     behind a head that names the codec
//!  +--------------+ - - - - - - - - - - - +
//! ```
//! A packed block is always shorter than the plain one, which would otherwise travel as it is. Expanding writes only into the block that
//! is posted for it: input that states more than fits there is refused before the codec sees it, and the codec refuses input that
//! expands to more or less than the stated length.

use std::cell::RefCell;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

use crate::framing::Malformed;

/// The codec that a node sends with. It expands whatever it receives, regardless of this setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// Blocks travel as they are.
    #[default]
    None,
    /// Whichever carries the most on each link, found by trial: nothing, lz4 or zstd.
    Auto,
    /// LZ4.
    Lz4,
    /// Zstandard, level 1.
    Zstd,
}

/// How a block travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packing {
    /// As it is.
    #[default]
    Raw = 0,
    /// Packed by LZ4.
    Lz4 = 1,
    /// Packed by Zstandard.
    Zstd = 2,
}

/// Bytes in front of the codec's output.
const STATED: usize = 4;
const ZSTD_LEVEL: i32 = 1;
/// Bytes from the middle of a block that are probed to see whether packing is worthwhile.
const PROBE: usize = 4 << 10;

impl Packing {
    /// By its number in a head.
    pub(crate) fn from_number(number: u8) -> Result<Self, Malformed> {
        match number {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            other => Err(Malformed::Codec(other)),
        }
    }
}

/// Bytes that suffice to pack any block of up to `longest` bytes.
pub(crate) const fn room_for(longest: usize) -> usize {
    STATED + get_maximum_output_size(longest)
}

/// The codecs' state, one per thread: about 700 KiB with zstd.
struct Coders {
    lz4: CompressTable,
    zstd: Option<Compressor<'static>>,
    unzstd: Option<Decompressor<'static>>,
}

thread_local! {
    static CODERS: RefCell<Coders> =
        RefCell::new(Coders { lz4: CompressTable::default(), zstd: None, unzstd: None });
}

/// Packs `plain` into `room`, whose length is given by [`room_for`]. Returns the packed length, or `None` if that saves less than
/// a sixteenth.
pub(crate) fn pack(packing: Packing, plain: &[u8], room: &mut [u8]) -> Option<usize> {
    let stated = u32::try_from(plain.len()).ok()?.to_le_bytes();
    let (head, body) = room.split_at_mut_checked(STATED)?;
    head.copy_from_slice(&stated);
    let packed = CODERS.with_borrow_mut(|coders| match packing {
        Packing::Raw => None,
        Packing::Lz4 => compress_into_with_table(plain, body, &mut coders.lz4).ok(),
        Packing::Zstd => {
            if coders.zstd.is_none() {
                coders.zstd = Compressor::new(ZSTD_LEVEL).ok();
            }
            coders.zstd.as_mut()?.compress_to_buffer(plain, body).ok()
        }
    })?;
    let length = STATED + packed;
    (length < plain.len() - plain.len() / 16).then_some(length)
}

/// Whether some bytes from the middle of `plain` shrink by lz4. `room` has the length that [`room_for`] gives for the whole.
pub(crate) fn shrinks(plain: &[u8], room: &mut [u8]) -> bool {
    let from = plain.len().saturating_sub(PROBE) / 2;
    let probe = plain.get(from..plain.len().min(from + PROBE)).unwrap_or(plain);
    pack(Packing::Lz4, probe, room).is_some()
}

/// Expands `packed` into the beginning of `room`, and returns the expanded length.
///
/// # Errors
/// [`Malformed::Bomb`] and [`Malformed::Expansion`].
pub(crate) fn expand(packing: Packing, packed: &[u8], room: &mut [u8]) -> Result<usize, Malformed> {
    let wrong = |stated| Malformed::Expansion { packing, stated };
    let (stated, body) = packed.split_first_chunk::<STATED>().ok_or(wrong(0))?;
    let stated = u32::from_le_bytes(*stated);
    let posted = room.len();
    let length = usize::try_from(stated).unwrap_or(usize::MAX);
    let room = room.get_mut(..length).ok_or(Malformed::Bomb { stated, posted })?;
    let expanded = CODERS.with_borrow_mut(|coders| match packing {
        Packing::Raw => None,
        Packing::Lz4 => decompress_into(body, room).ok(),
        Packing::Zstd => {
            if coders.unzstd.is_none() {
                coders.unzstd = Decompressor::new().ok();
            }
            coders.unzstd.as_mut()?.decompress_to_buffer(body, room).ok()
        }
    });
    if expanded == Some(length) { Ok(length) } else { Err(wrong(stated)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST: usize = 70_000;
    const CODECS: [Packing; 2] = [Packing::Lz4, Packing::Zstd];

    fn packed(packing: Packing, plain: &[u8]) -> Option<Vec<u8>> {
        let mut room = vec![0; room_for(plain.len())];
        pack(packing, plain, &mut room).map(|length| room[..length].to_vec())
    }

    fn text(length: usize) -> Vec<u8> {
        "the quick brown fox jumps over the lazy dog. ".bytes().cycle().take(length).collect()
    }

    /// Bytes that repeat, some of them.
    fn any_block() -> impl Strategy<Value = Vec<u8>> {
        let run = (any::<u8>(), 1..3000usize).prop_map(|(byte, times)| vec![byte; times]);
        let noise = prop::collection::vec(any::<u8>(), 0..300);
        prop::collection::vec(prop_oneof![run, noise], 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn what_is_packed_is_expanded(block in any_block(), extra in 0..100usize) {
            for packing in CODECS {
                let Some(packed) = packed(packing, &block) else { continue };
                prop_assert!(packed.len() < block.len());
                let mut room = vec![0xEE; block.len() + extra];
                prop_assert_eq!(expand(packing, &packed, &mut room), Ok(block.len()));
                prop_assert!(room[..block.len()] == block);
                prop_assert!(room[block.len()..].iter().all(|byte| *byte == 0xEE), "nothing beyond");
            }
        }

        /// Truncated or altered input yields a named error, or as many bytes as stated, and none beyond.
        #[test]
        fn what_was_changed_stays_in_its_block(
            block in any_block(),
            cut in any::<prop::sample::Index>(),
            change in any::<prop::sample::Index>(),
            to in any::<u8>(),
            is_cut in any::<bool>(),
        ) {
            for packing in CODECS {
                let Some(mut packed) = packed(packing, &block) else { continue };
                let at = change.index(packed.len());
                packed[at] = to;
                if is_cut {
                    packed.truncate(cut.index(packed.len()));
                }
                let mut room = vec![0; block.len() + 8];
                let posted = room.len();
                let stated = packed.first_chunk().map_or(0, |stated| u32::from_le_bytes(*stated));
                match expand(packing, &packed, &mut room) {
                    Ok(length) => prop_assert_eq!(length, stated as usize),
                    Err(Malformed::Bomb { stated: found, .. }) => {
                        prop_assert_eq!(found, stated);
                        prop_assert!(stated as usize > posted);
                    }
                    Err(error) => prop_assert_eq!(error, Malformed::Expansion { packing, stated }),
                }
            }
        }

        #[test]
        fn any_bytes_are_expanded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for packing in CODECS {
                let mut room = vec![0; 100];
                if let Ok(length) = expand(packing, &bytes, &mut room) {
                    prop_assert!(length <= 100);
                }
            }
        }
    }

    #[test]
    fn each_truncation_is_refused() {
        for packing in CODECS {
            let block = text(2000);
            let packed = packed(packing, &block).unwrap();
            let mut room = vec![0; 2000];
            for length in 0..packed.len() {
                let result = expand(packing, &packed[..length], &mut room);
                let stated = if length < STATED { 0 } else { 2000 };
                assert_eq!(
                    result,
                    Err(Malformed::Expansion { packing, stated }),
                    "{length} bytes of {packing:?}"
                );
            }
        }
    }

    /// A few bytes that would become a gigabyte are refused before any memory is taken, and so are those that lie about it.
    #[test]
    fn bombs_are_refused_by_name() {
        for packing in CODECS {
            let mut bomb = packed(packing, &vec![0; LONGEST]).unwrap();
            assert!(bomb.len() < LONGEST / 100);
            let mut room = vec![0; 1000];
            let stated = LONGEST as u32;
            assert_eq!(expand(packing, &bomb, &mut room), Err(Malformed::Bomb { stated, posted: 1000 }));
            bomb[..STATED].copy_from_slice(&u32::MAX.to_le_bytes());
            assert_eq!(
                expand(packing, &bomb, &mut room),
                Err(Malformed::Bomb { stated: u32::MAX, posted: 1000 })
            );
            bomb[..STATED].copy_from_slice(&900u32.to_le_bytes());
            room.fill(7);
            assert_eq!(expand(packing, &bomb, &mut room), Err(Malformed::Expansion { packing, stated: 900 }));
            assert!(room[900..].iter().all(|byte| *byte == 7), "nothing beyond what it states");
        }
    }

    #[test]
    fn what_does_not_shrink_is_not_packed() {
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(LONGEST)
        .collect();
        let mut room = vec![0; room_for(LONGEST)];
        for packing in CODECS {
            assert_eq!(pack(packing, &noise, &mut room), None);
            assert_eq!(pack(packing, b"", &mut room), None);
            assert!(pack(packing, &text(LONGEST), &mut room).is_some());
        }
        assert!(shrinks(&text(LONGEST), &mut room) && !shrinks(&noise, &mut room));
        assert!(shrinks(&text(300), &mut room), "of a short block all");
    }

    #[test]
    fn codecs_have_the_numbers_of_heads() {
        for packing in [Packing::Raw, Packing::Lz4, Packing::Zstd] {
            assert_eq!(Packing::from_number(packing as u8), Ok(packing));
        }
        assert_eq!(Packing::from_number(3), Err(Malformed::Codec(3)));
    }
}
