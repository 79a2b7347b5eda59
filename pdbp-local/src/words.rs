//! Long copies of bytes, into words and into bytes, that another processor reads or writes next.
//!
//! The other processor has read the slot's previous contents: an ordinary store must first take each line away from its cache, and the reader
//! then fetches it out of this one's. Between processors that share no cache both together cost 4 to 8 times as much in benches as the way
//! through memory; between those that share one, less.

use std::ops::Range;

use super::sync::AtomicU64;

/// Bytes of a cache line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// How whole cache lines are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Past the caches, to memory.
    NonTemporal,
    /// Through the caches of this processor.
    Cached,
}

/// Whether this platform has both kinds of stores.
pub(crate) const CHOICE: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// Copies bytes; whole cache lines go past the caches. They are visible before anything that is stored later.
///
/// # Panics
/// Panics if the lengths differ.
pub fn copy_lines(into: &mut [u8], from: &[u8]) {
    let lines = store_streaming(into, from);
    into[..lines.start].copy_from_slice(&from[..lines.start]);
    into[lines.end..].copy_from_slice(&from[lines.end..]);
}

/// Stores the whole cache lines. Returns which bytes; the others are left as they are.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn store_streaming(into: &mut [u8], from: &[u8]) -> Range<usize> {
    let first = into.as_ptr().align_offset(LINE).min(into.len());
    let (Some(into), Some(from)) = (into.get_mut(first..), from.get(first..)) else { return 0..0 };
    let length = into.len().min(from.len()) / LINE * LINE;
    if length > 0 {
        // SAFETY: both have `length` bytes, a multiple of 64 and not 0, and those that are written are exclusively borrowed; they begin on a
        // multiple of 64.
        unsafe { store(Stores::NonTemporal, into.as_mut_ptr(), from.as_ptr(), length) };
    }
    first..first + length
}

/// Stores the whole cache lines of `from` into words. Returns which words; the others are left as they are. They are visible before anything
/// that is stored later.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn store_lines(stores: Stores, into: &[AtomicU64], from: &[u8]) -> Range<usize> {
    const WORD: usize = size_of::<AtomicU64>();
    let first = into.as_ptr().align_offset(LINE).min(into.len());
    let (Some(words), Some(bytes)) = (into.get(first..), from.get(first * WORD..)) else { return 0..0 };
    let length = (words.len() * WORD).min(bytes.len()) / LINE * LINE;
    if length == 0 {
        return 0..0;
    }
    // SAFETY: both have `length` bytes, a multiple of 64 and not 0; the words begin on a multiple of 64. As atomics, they may be changed through
    // a shared reference and by others at the same time.
    unsafe { store(stores, words.as_ptr().cast_mut().cast(), bytes.as_ptr(), length) };
    first..first + length / WORD
}

/// Stores `length` bytes.
///
/// # Safety
/// `length` must be a multiple of 64 and not 0, and `into` a multiple of 64. `length` bytes must be readable at `from` and writable at `into`,
/// and must not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn store(stores: Stores, into: *mut u8, from: *const u8, length: usize) {
    use std::arch::asm;

    macro_rules! store {
        ($store:literal, $end:literal) => {
            // The processor makes ordinary stores in order, and may delay non-temporal ones beyond later stores: `sfence` rules that out, so a
            // thread that sees a `Release` store made after this sees these, too.
            // SAFETY: reads and writes `length` bytes, 64 per iteration, which the caller guarantees to be readable and writable, and nothing
            // else. The compiler assumes that the block reads and writes memory, and moves no access across it.
            unsafe {
                asm!(
                    "2:",
                    "movups {a}, [{from} + {at}]",
                    "movups {b}, [{from} + {at} + 16]",
                    "movups {c}, [{from} + {at} + 32]",
                    "movups {d}, [{from} + {at} + 48]",
                    concat!($store, " [{into} + {at}], {a}"),
                    concat!($store, " [{into} + {at} + 16], {b}"),
                    concat!($store, " [{into} + {at} + 32], {c}"),
                    concat!($store, " [{into} + {at} + 48], {d}"),
                    "add {at}, 64",
                    "jnz 2b",
                    $end,
                    // Both ends; `at` counts up to zero from their beginnings.
                    from = in(reg) from.wrapping_add(length),
                    into = in(reg) into.wrapping_add(length),
                    at = inout(reg) length.wrapping_neg() => _,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack),
                )
            }
        };
    }
    match stores {
        Stores::NonTemporal => store!("movntps", "sfence"),
        Stores::Cached => store!("movaps", ""),
    }
}

/// Loads whole cache lines of `into` from words, 16 bytes at a time. Returns the number of words.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn load_lines(from: &[AtomicU64], into: &mut [u8]) -> usize {
    use std::arch::asm;

    let length = size_of_val(from).min(into.len()) / LINE * LINE;
    if length == 0 {
        return 0;
    }
    // SAFETY: reads and writes `length` bytes, a multiple of the 64 of each iteration and not 0, within both slices, and nothing else; no
    // alignment is needed. Words that others write at the same time give bytes of either value. These are ordinary loads, which the processor
    // does not make before an earlier load: an `Acquire` load before this orders them.
    unsafe {
        asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{into}], {a}",
            "movups [{into} + 16], {b}",
            "movups [{into} + 32], {c}",
            "movups [{into} + 48], {d}",
            "add {from}, 64",
            "add {into}, 64",
            "sub {left}, 64",
            "jnz 2b",
            from = inout(reg) from.as_ptr() => _,
            into = inout(reg) into.as_mut_ptr() => _,
            left = inout(reg) length => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
    length / size_of::<AtomicU64>()
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn store_streaming(_into: &mut [u8], _from: &[u8]) -> Range<usize> {
    0..0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn store_lines(_stores: Stores, _into: &[AtomicU64], _from: &[u8]) -> Range<usize> {
    0..0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn load_lines(_from: &[AtomicU64], _into: &mut [u8]) -> usize {
    0
}
