//! A second mapping of memory that MPI has mapped.
//!
//! MPI takes its windows away in `MPI_Finalize`, which programs call, and which runs when the process exits, while other threads
//! still poll and read. What is reached through a mapping of our own stays for as long as it is needed.

use std::ptr::NonNull;

/// The mapping; dropping it ends it.
pub(crate) struct Alias {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: an address that nothing but `drop` uses; memory can be unmapped on any thread.
unsafe impl Send for Alias {}

impl Alias {
    /// Maps the pages of `length` bytes at `base` once more; returns the mapping, and where the bytes lie in it. `None` where that
    /// cannot be done: on other systems than Linux, and for memory that is not shared.
    #[cfg(target_os = "linux")]
    pub(crate) fn of(base: NonNull<u8>, length: usize) -> Option<(Self, NonNull<u8>)> {
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        let before = base.addr().get() % page;
        let first = base.as_ptr().wrapping_sub(before);
        let length = before.checked_add(length)?;
        // SAFETY: an old length of 0 leaves the mapping as it is, and makes another one of the same pages, if they are shared.
        let made = unsafe { libc::mremap(first.cast(), 0, length, libc::MREMAP_MAYMOVE) };
        if made == libc::MAP_FAILED {
            return None;
        }
        let alias = Self { base: NonNull::new(made.cast())?, length };
        // SAFETY: in the first page of what was mapped.
        let place = unsafe { alias.base.add(before) };
        Some((alias, place))
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of(_base: NonNull<u8>, _length: usize) -> Option<(Self, NonNull<u8>)> {
        None
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`; whoever drops the value has nothing that points there (`process`).
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
