//! Long copies between bytes and words that another processor reads or writes next.
//!
//! What is copied into a slot was read by the other processor before: an ordinary store has to take each line away from its cache first, and
//! the reader then fetches it out of this one's. Between processors that share no cache both cost more than the way through memory, by
//! a factor of 4 to 8 in benches; between those that share one, less.

use std::ops::Range;

use super::sync::AtomicU64;

/// By which way whole cache lines are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Past the caches, to memory.
    Past,
    /// Through the caches of this processor.
    Through,
}

/// Whether there are two ways.
pub(crate) const CHOICE: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// Stores most of `from` into words, whole cache lines of them. Returns which words; the others are left as they are. They are visible before
/// anything that is stored later.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn store_lines(way: Way, into: &[AtomicU64], from: &[u8]) -> Range<usize> {
    use std::arch::asm;

    const LINE: usize = 64;
    const WORD: usize = size_of::<AtomicU64>();
    let first = into.as_ptr().align_offset(LINE).min(into.len());
    let (Some(words), Some(bytes)) = (into.get(first..), from.get(first * WORD..)) else { return 0..0 };
    let length = (words.len() * WORD).min(bytes.len()) / LINE * LINE;
    if length == 0 {
        return 0..0;
    }
    macro_rules! store {
        ($store:literal, $end:literal) => {
            // SAFETY: reads and writes `length` bytes, a multiple of the 64 of each turn and not 0, within both slices, and nothing else; the
            // words begin on a multiple of 64. They may be changed through a shared reference and by others at the same time, as atomics; the
            // compiler takes the block for one that reads and writes memory, and moves no access across it. The processor makes ordinary
            // stores in their order, and may delay those past the caches beyond later ones: `sfence` rules that out, so that whoever sees a
            // `Release` store made after this sees these, too.
            unsafe {
                asm!(
                    "2:",
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + 32]",
                    "movups {d}, [{from} + 48]",
                    concat!($store, " [{into}], {a}"),
                    concat!($store, " [{into} + 16], {b}"),
                    concat!($store, " [{into} + 32], {c}"),
                    concat!($store, " [{into} + 48], {d}"),
                    "add {from}, 64",
                    "add {into}, 64",
                    "sub {left}, 64",
                    "jnz 2b",
                    $end,
                    from = inout(reg) bytes.as_ptr() => _,
                    into = inout(reg) words.as_ptr() => _,
                    left = inout(reg) length => _,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack),
                )
            }
        };
    }
    match way {
        Way::Past => store!("movntps", "sfence"),
        Way::Through => store!("movaps", ""),
    }
    first..first + length / WORD
}

/// Loads whole cache lines of `into` from words, 16 bytes at a time. Returns how many words.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn load_lines(from: &[AtomicU64], into: &mut [u8]) -> usize {
    use std::arch::asm;

    const LINE: usize = 64;
    let length = size_of_val(from).min(into.len()) / LINE * LINE;
    if length == 0 {
        return 0;
    }
    // SAFETY: reads and writes `length` bytes, a multiple of the 64 of each turn and not 0, within both slices, and nothing else; nothing needs
    // to be aligned. Words that others write at the same time give bytes of either value. These are ordinary loads, which the processor does
    // not make before an earlier load: an `Acquire` load before this orders them.
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
pub(crate) fn store_lines(_way: Way, _into: &[AtomicU64], _from: &[u8]) -> Range<usize> {
    0..0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn load_lines(_from: &[AtomicU64], _into: &mut [u8]) -> usize {
    0
}
