//! Returns pages full of zeros to the system, which maps zeros there until they are written.
//!
//! libavcodec's context of an H.264 decoder has 766 KB, filled with zeros on creation, which makes all of it resident; streams that are neither
//! interlaced nor of many slices never use more than 50 KB of it.

use core::ffi::c_void;
use core::slice;

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// What is compared with at a time.
const ZEROS: [u8; 4096] = [0; 4096];
/// Blocks of other lengths are no context.
const LENGTHS: core::ops::Range<usize> = 1 << 16..1 << 24;

unsafe extern "C" {
    /// Bytes that may be used of a block of the system's allocator.
    fn malloc_usable_size(block: *mut c_void) -> usize;
}

/// Gives back the pages of zeros of a block; returns how many bytes they have. Its contents stay the same.
///
/// # Safety
/// The block is one of the system's allocator, or null, and nobody else uses it meanwhile.
pub(super) unsafe fn release_pages(block: *mut u8) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: a block of the system's allocator.
    let length = unsafe { malloc_usable_size(block.cast()) };
    if !LENGTHS.contains(&length) {
        return 0;
    }
    // SAFETY: so many bytes belong to the block, which nobody else uses.
    unsafe { release_within(block, length) }
}

/// The same for the whole pages within `length` bytes.
///
/// # Safety
/// They are private memory of this process that no file is behind, and nobody else uses them meanwhile.
unsafe fn release_within(block: *mut u8, length: usize) -> usize {
    let page = page_size();
    let (mut at, mut given) = (block.addr().next_multiple_of(page) - block.addr(), 0);
    while at + page <= length {
        let mut end = at;
        while end + page <= length {
            // SAFETY: these bytes lie within the block.
            let bytes = unsafe { slice::from_raw_parts(block.wrapping_add(end), page) };
            if bytes.chunks(ZEROS.len()).any(|chunk| *chunk != ZEROS[..chunk.len()]) {
                break;
            }
            end += page;
        }
        if end > at {
            // SAFETY: whole pages of zeros, which are zeros afterwards; where the system refuses, they stay as they are.
            let done = unsafe { madvise(block.wrapping_add(at).cast(), end - at, Advice::LinuxDontNeed) };
            given += if done.is_ok() { end - at } else { 0 };
        }
        at = end + page;
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_are_given_back_and_nothing_else_changes() {
        let page = page_size();
        let mut block = vec![1u8; 40 * page];
        let start = block.as_ptr().addr().next_multiple_of(page) - block.as_ptr().addr();
        // Written, so that they are resident; then a byte in the tenth page.
        block[start..start + 20 * page].fill(0);
        block[start + 9 * page + 7] = 7;
        let before = block.clone();
        // SAFETY: memory of this test.
        let given = unsafe { release_within(block.as_mut_ptr(), block.len()) };
        assert_eq!(given, 19 * page);
        assert!(block == before);
        block[start] = 3;
        assert_eq!((block[start], block[start + 1]), (3, 0), "it can be written again");
        // SAFETY: the same.
        assert_eq!(unsafe { release_pages(core::ptr::null_mut()) }, 0);
    }
}
