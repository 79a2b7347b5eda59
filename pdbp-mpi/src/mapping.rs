//! A second mapping of memory that MPI has mapped.
//!
//! `MPI_Finalize` unmaps MPI's windows. Programs call it, or it runs when the process exits, while other threads still poll and
//! read. A mapping of our own stays as long as it is needed, so all access goes through it; if it cannot be made, processes share
//! no memory.

use std::io;
use std::ptr::NonNull;

/// Whether this system can map memory a second time.
pub(crate) const IS_SUPPORTED: bool = cfg!(target_os = "linux");

/// The second mapping; dropping it unmaps it.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    /// The offset of the requested bytes; before them lies the rest of their first page.
    before: usize,
}

// SAFETY: an address that nothing but `drop` uses; memory can be unmapped on any thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the pages of these bytes a second time.
    ///
    /// # Safety
    /// The bytes are mapped until this returns. (The new mapping is as shared as the old one: code that makes a reference from
    /// [`bytes`](Self::bytes) must know who else writes there.)
    ///
    /// # Errors
    /// The system's error: there are too many mappings or too little address space, or the memory is not shared.
    #[cfg(target_os = "linux")]
    pub(crate) unsafe fn of(bytes: NonNull<[u8]>) -> io::Result<Self> {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).ok().filter(|page| *page > 0).ok_or(io::ErrorKind::Unsupported)?;
        let base = bytes.cast::<u8>();
        let before = base.addr().get() % page;
        let first = base.as_ptr().wrapping_sub(before);
        let length = before.checked_add(bytes.len()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: an old length of 0 leaves the mapping as it is, and maps the same pages again, if they are shared; the pages are
        // mapped, by the contract.
        let made = unsafe { libc::mremap(first.cast(), 0, length, libc::MREMAP_MAYMOVE) };
        if made == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(made.cast()).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { base, length, before })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) unsafe fn of(_bytes: NonNull<[u8]>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The bytes in this mapping, valid as long as the value lives.
    pub(crate) fn bytes(&self) -> NonNull<[u8]> {
        // SAFETY: in the first page of what was mapped.
        let first = unsafe { self.base.add(self.before) };
        NonNull::slice_from_raw_parts(first, self.length - self.before)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: mapped in `of`, and nothing derived from `bytes` is used after the value (its doc, and `window::Region`).
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
