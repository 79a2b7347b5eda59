//! Copies of blocks that arrived in place, delivered in their stead.

use std::ptr::NonNull;

use pdbp_core::ArrivedBlock;
use pdbp_core::umb::Lender;

/// The copies that readers hold, with their originals. Copies still held when this is dropped stay in memory (they leak).
#[derive(Debug, Default)]
pub(super) struct Copies {
    copies: Vec<Copy>,
    lender: Lender,
}

#[derive(Debug)]
struct Copy {
    /// The copy's bytes, stored as words because blocks are aligned to 8.
    words: NonNull<[u64]>,
    original: ArrivedBlock,
}

// SAFETY: a `Copy` owns its words, as a `Box` would.
unsafe impl Send for Copy {}

impl Copies {
    /// Keeps `original` and makes a copy of it, under the same name, with bytes changed by `change`.
    pub(super) fn copy(&mut self, original: ArrivedBlock, change: impl FnOnce(&mut [u8])) -> ArrivedBlock {
        let mut bytes = original.bytes().to_vec();
        let length = bytes.len();
        change(&mut bytes);
        bytes.resize(length.next_multiple_of(8), 0);
        let words: Box<[u64]> = bytes
            .chunks_exact(8)
            .map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap_or([0; 8])))
            .collect();
        let words = NonNull::from(Box::leak(words));
        let id = original.id();
        self.copies.push(Copy { words, original });
        // SAFETY: the words are aligned to 8 and hold `length` bytes; nobody writes them, and they are freed only when the token
        // comes back in `take_original`.
        unsafe { self.lender.lend(id, words.cast(), length as u32) }
    }

    /// Takes a copy back and returns its original.
    ///
    /// # Errors
    /// Hands the block back if it is not a copy.
    pub(super) fn take_original(&mut self, block: ArrivedBlock) -> Result<ArrivedBlock, ArrivedBlock> {
        let address = block.bytes().as_ptr();
        let is_it = |c: &Copy| c.words.cast::<u8>().as_ptr().cast_const() == address;
        let Some(at) = self.copies.iter().position(is_it) else { return Err(block) };
        self.lender.reclaim(block)?;
        let Copy { words, original } = self.copies.swap_remove(at);
        // SAFETY: the words come from `Box::leak` in `copy` and leave the table only once; their only token was just taken back.
        drop(unsafe { Box::from_raw(words.as_ptr()) });
        Ok(original)
    }
}
