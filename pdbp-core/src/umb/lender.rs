//! Tokens of blocks in foreign memory.

use core::ptr::NonNull;

use super::block::{ArrivedBlock, RawBlock};
use super::origin::Origin;
use crate::id::BlockId;

/// Makes the tokens of blocks that a transport lets its user read in place, and takes them back: for one link, or for anything that
/// shares blocks. A lender distinguishes its own tokens from others', and counts outstanding tokens, so that a transport that shuts
/// down before its readers finish can leave their blocks in place.
///
/// ```
/// use std::ptr::NonNull;
/// use pdbp_core::id::{BlockId, NodeId};
/// use pdbp_core::umb::Lender;
///
/// static WORDS: [u64; 2] = [7, 8];
/// let id = BlockId { segment: NodeId::new(3).ok_or("no node")?, index: 0 };
/// let mut lender = Lender::new();
/// // SAFETY: static words, which nobody writes.
/// let block = unsafe { lender.lend(id, NonNull::from(&WORDS).cast(), 16) };
/// let other = unsafe { Lender::new().lend(id, NonNull::from(&WORDS).cast(), 16) };
/// assert!(lender.reclaim(other).is_err());
/// assert_eq!(lender.outstanding(), 1);
/// assert!(lender.reclaim(block).is_ok());
/// assert_eq!(lender.outstanding(), 0);
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug)]
pub struct Lender {
    origin: Origin,
    /// Tokens that have not come back.
    out: usize,
}

impl Lender {
    /// A lender that has not lent anything.
    pub fn new() -> Self {
        Self { origin: Origin::new(NonNull::dangling()), out: 0 }
    }

    /// Makes a token for a block in foreign memory, to be read in place.
    ///
    /// # Safety
    /// `base` must be aligned to 8 bytes and valid for reads of `length` bytes, which nobody writes, until
    /// [`reclaim`](Self::reclaim) has taken the token or [`outstanding`](Self::outstanding) has reported that no token is left.
    /// If neither happens before this value is dropped, this must hold forever.
    #[inline]
    pub unsafe fn lend(&mut self, id: BlockId, base: NonNull<u8>, length: u32) -> ArrivedBlock {
        self.out += 1;
        ArrivedBlock { raw: RawBlock { origin: self.origin, base, id, room: length } }
    }

    /// Takes a token back; its block may be written from now on.
    ///
    /// # Errors
    /// Hands the token back if it is not from this lender.
    #[inline]
    pub fn reclaim(&mut self, block: ArrivedBlock) -> Result<(), ArrivedBlock> {
        if block.raw.origin != self.origin {
            return Err(block);
        }
        block.raw.forget();
        self.out -= 1;
        Ok(())
    }

    /// Number of tokens neither taken back nor dropped, whose blocks may still be read.
    pub fn outstanding(&self) -> usize {
        // SAFETY: only `drop` frees the home.
        self.out - unsafe { self.origin.dropped() }
    }
}

impl Default for Lender {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        if self.outstanding() == 0 {
            // SAFETY: no token is outstanding, and the lender makes no more.
            unsafe { self.origin.free() }
        }
    }
}
