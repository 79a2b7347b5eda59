//! Reads the memory of another process on this host: the system copies it, once, without involving that process.
//!
//! The system decides who may read, as for a debugger: processes of one user, unless something forbids it (Yama's `ptrace_scope`, a system-call
//! filter, a container). **This module opens the process to nobody**: where Yama lets only a parent read, as many desktops do, an administrator
//! sets `kernel.yama.ptrace_scope=0`, or a program names its reader by `prctl(PR_SET_PTRACER, …)`. If a library did so, it would let every
//! process of the user into the memory of a program that has not asked for that.

use std::io;

/// The address of something in a process that others read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The process ID.
    pub process: u32,
    /// The address in that process.
    pub at: u64,
}

impl Address {
    /// The address of something in this process.
    pub fn of<T>(value: &T) -> Self {
        Self { process: std::process::id(), at: std::ptr::from_ref(value).expose_provenance() as u64 }
    }

    /// Copies the bytes at this address. Bytes that the process writes in the meantime are read as before or as after.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::NotFound`] for a process that has ended, [`io::ErrorKind::PermissionDenied`] for one that may not be
    /// read, [`io::ErrorKind::UnexpectedEof`] and the error 14 (`EFAULT`) for memory that the process does not have, and
    /// [`io::ErrorKind::Unsupported`] on systems other than Linux.
    pub fn read(self, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match read(self.process, self.at.wrapping_add(done as u64), rest) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => done += bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error() == NO_PROCESS => return Err(io::ErrorKind::NotFound.into()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
const NO_PROCESS: Option<i32> = Some(libc::ESRCH);
#[cfg(not(all(target_os = "linux", not(miri))))]
const NO_PROCESS: Option<i32> = None;

/// Copies as much as the system does in one call.
#[cfg(all(target_os = "linux", not(miri)))]
fn read(process: u32, at: u64, into: &mut [u8]) -> io::Result<usize> {
    let (Ok(process), Ok(at)) = (libc::pid_t::try_from(process), usize::try_from(at)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // An address in the other process; nothing is read at it in this one.
    let there = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: into.len() };
    // SAFETY: the system writes at most `iov_len` bytes to `here`, a slice that is mutably borrowed for the duration of the call, and reads two
    // descriptions of one element each that live as long. The system itself checks whether that process has memory at `there`, and changes
    // nothing there. If it is this process, data that other threads write in the meantime is read by the system, not by this program.
    let copied = unsafe { libc::process_vm_readv(process, &raw const here, 1, &raw const there, 1, 0) };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn read(_process: u32, _at: u64, _into: &mut [u8]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_where_the_system_lets_one_and_errors_name_what_is_wrong() {
        let values: Vec<u64> = (0..3_000).collect();
        let first = Address::of(&values[0]);
        let mut got = vec![0u8; 8 * values.len()];
        match first.read(&mut got) {
            Ok(()) => {}
            // Forbidden here, or not supported.
            Err(e) => {
                let kind = e.kind();
                let forbidden = [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported];
                assert!(forbidden.contains(&kind) || cfg!(not(target_os = "linux")), "{e}");
                return;
            }
        }
        let got: Vec<u64> = got.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
        assert_eq!(got, values);
        assert_eq!(Address { at: 8, ..first }.read(&mut [0; 8]).unwrap_err().raw_os_error(), Some(14));
        // An ID that no process has.
        let nobody = Address { process: i32::MAX as u32, ..first };
        assert_eq!(nobody.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::NotFound);
        let beyond = Address { process: u32::MAX, ..first };
        assert_eq!(beyond.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(nobody.read(&mut []).is_ok());
    }
}
