//! Memory that processes of one host share: an anonymous file, which others open by its descriptor number in the process that made it.

use std::io;

use super::sync::AtomicU64;

/// Where another process finds the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The process that made it.
    pub process: u32,
    /// The descriptor number of the file in that process.
    pub file: u32,
}

impl Location {
    /// Packs the location into one number.
    pub fn to_bits(self) -> u64 {
        u64::from(self.process) << 32 | u64::from(self.file)
    }

    /// Restores a location from [`to_bits`](Self::to_bits).
    pub fn from_bits(bits: u64) -> Self {
        Self { process: (bits >> 32) as u32, file: bits as u32 }
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Mapping;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::ptr::NonNull;

    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::mm::{MapFlags, ProtFlags};

    use super::{AtomicU64, Location, io};

    /// The file can neither grow nor shrink, so no access faults.
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    /// A mapping; dropping it unmaps the memory.
    pub(crate) struct Mapping {
        base: NonNull<AtomicU64>,
        words: usize,
        /// Kept open in the process that made the memory, for others to find; `None` in those others.
        file: Option<OwnedFd>,
    }

    // SAFETY: an address of atomics, which any thread may use; memory can be unmapped on any thread.
    unsafe impl Send for Mapping {}
    // SAFETY: as above; all access is to atomics.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        /// Makes memory of zeros.
        pub(crate) fn create(words: usize) -> io::Result<(Self, Location)> {
            let file =
                rustix::fs::memfd_create("pdbp-slate", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            rustix::fs::ftruncate(&file, bytes_of(words)? as u64)?;
            rustix::fs::fcntl_add_seals(&file, SEALS)?;
            let number = u32::try_from(file.as_raw_fd()).map_err(|_| io::ErrorKind::Unsupported)?;
            let mut mapping = Self::map(&file, words)?;
            mapping.file = Some(file);
            Ok((mapping, Location { process: std::process::id(), file: number }))
        }

        /// Maps memory that another process has made. The caller must check its contents to see whether it is the right memory.
        pub(crate) fn open(at: Location, words: usize) -> io::Result<Self> {
            let path = format!("/proc/{}/fd/{}", at.process, at.file);
            let file = File::options().read(true).write(true).open(path)?;
            let seals = rustix::fs::fcntl_get_seals(&file)?;
            if !seals.contains(SEALS) || file.metadata()?.len() != bytes_of(words)? as u64 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Self::map(&file, words)
        }

        fn map(file: impl std::os::fd::AsFd, words: usize) -> io::Result<Self> {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
            // SAFETY: a new mapping at an address of the system's choice changes no memory that is in use.
            let base = unsafe {
                rustix::mm::mmap(std::ptr::null_mut(), bytes_of(words)?, protection, flags, file, 0)?
            };
            let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { base, words, file: None })
        }

        pub(crate) fn words(&self) -> &[AtomicU64] {
            // SAFETY: the mapping has `words` words, on a page, readable and writable, of a file whose length is sealed, and lives as long
            // as the value. Any bits are a valid value of an atomic word; the processes that share it also access it as atomics.
            unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
        }
    }

    fn bytes_of(words: usize) -> io::Result<usize> {
        words.checked_mul(size_of::<AtomicU64>()).filter(|n| *n > 0).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: mapped in `map` with this length; the result of `words` is borrowed from the value.
            let _ =
                unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) struct Mapping(std::convert::Infallible);

#[cfg(not(target_os = "linux"))]
impl Mapping {
    pub(crate) fn create(_words: usize) -> io::Result<(Self, Location)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn open(_at: Location, _words: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        match self.0 {}
    }
}
