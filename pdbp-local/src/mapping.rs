//! Memory that processes of one host share: a file without a name, which others open by the number that it has in the process that made it.

use std::io;

use super::sync::AtomicU64;

/// Where another process finds the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The process that made it.
    pub process: u32,
    /// The number of the file there.
    pub file: u32,
}

impl Location {
    /// In one number, which is that of no file where there is none.
    pub fn to_bits(self) -> u64 {
        u64::from(self.process) << 32 | u64::from(self.file)
    }

    /// What [`to_bits`](Self::to_bits) gave.
    pub fn from_bits(bits: u64) -> Self {
        Self { process: (bits >> 32) as u32, file: bits as u32 }
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Mapping;

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::c_int;
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::ptr::NonNull;

    use super::{AtomicU64, Location, io};

    /// A file that can neither grow nor shrink, so that no access faults.
    const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

    /// The mapping; dropping it ends it.
    pub(crate) struct Mapping {
        base: NonNull<AtomicU64>,
        words: usize,
        /// Kept open for those who are to find it; `None` at those who have.
        file: Option<File>,
    }

    // SAFETY: an address of atomics, which any thread may use; memory can be unmapped on any thread.
    unsafe impl Send for Mapping {}
    // SAFETY: as above; all access is to atomics.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        /// Makes memory of zeros.
        pub(crate) fn create(words: usize) -> io::Result<(Self, Location)> {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            // SAFETY: the name is a string in C's sense.
            let made = checked(unsafe { libc::memfd_create(c"pdbp-slate".as_ptr(), flags) })?;
            // SAFETY: the descriptor is new, and nothing else has it.
            let file = unsafe { File::from_raw_fd(made) };
            file.set_len(bytes_of(words)? as u64)?;
            // SAFETY: takes no address.
            checked(unsafe { libc::fcntl(made, libc::F_ADD_SEALS, SEALS) })?;
            let number = u32::try_from(file.as_raw_fd()).map_err(|_| io::ErrorKind::Unsupported)?;
            let mut mapping = Self::map(&file, words)?;
            mapping.file = Some(file);
            Ok((mapping, Location { process: std::process::id(), file: number }))
        }

        /// Maps memory that another process has made. That it is what is looked for has to be seen from what it holds.
        pub(crate) fn open(at: Location, words: usize) -> io::Result<Self> {
            let path = format!("/proc/{}/fd/{}", at.process, at.file);
            let file = File::options().read(true).write(true).open(path)?;
            // SAFETY: takes no address.
            let seals = checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
            if seals & SEALS != SEALS || file.metadata()?.len() != bytes_of(words)? as u64 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Self::map(&file, words)
        }

        fn map(file: &File, words: usize) -> io::Result<Self> {
            let (length, protection) = (bytes_of(words)?, libc::PROT_READ | libc::PROT_WRITE);
            let (anywhere, file) = (std::ptr::null_mut(), file.as_raw_fd());
            // SAFETY: a new mapping at an address of the system's choice changes no memory that is in use.
            let base = unsafe { libc::mmap(anywhere, length, protection, libc::MAP_SHARED, file, 0) };
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { base, words, file: None })
        }

        pub(crate) fn words(&self) -> &[AtomicU64] {
            // SAFETY: the mapping has so many words, on a page, readable and writable, of a file whose length is sealed, and lives as long
            // as the value. Any bits are a value of an atomic word; processes that share it access it as such, too.
            unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
        }
    }

    /// What a call has given, unless that is an error.
    fn checked(given: c_int) -> io::Result<c_int> {
        if given == -1 { Err(io::Error::last_os_error()) } else { Ok(given) }
    }

    fn bytes_of(words: usize) -> io::Result<usize> {
        words.checked_mul(size_of::<AtomicU64>()).filter(|n| *n > 0).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: mapped in `map` with this length; what `words` gave is borrowed from the value.
            let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
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
