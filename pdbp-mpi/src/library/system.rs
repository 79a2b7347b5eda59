//! The functions of the system's loader, on systems where MPIs can be loaded.

use std::ffi::{CStr, c_void};
use std::path::PathBuf;

/// An open library, until it is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened(*mut c_void);

// SAFETY: the functions that take it may be called on any thread.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

/// One of the known names as a path.
pub(super) fn path_of(name: &CStr) -> PathBuf {
    PathBuf::from(name.to_string_lossy().into_owned())
}

#[cfg(unix)]
mod dynamic {
    use std::ffi::{CStr, CString, c_int, c_void};
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::{Path, PathBuf};

    use super::Opened;

    impl Opened {
        /// The program with everything that it was linked with.
        pub(crate) fn of_program() -> Self {
            Self(libc::RTLD_DEFAULT)
        }

        /// Opens a library, by its path or where the system's loader looks for it.
        ///
        /// The system's message.
        /// The system's error.
        pub(in crate::library) fn open(path: &Path) -> Result<Self, String> {
            Self::open_as(path, 0)
        }

        /// The library, if the process has loaded it.
        pub(in crate::library) fn present(path: &Path) -> Option<Self> {
            Self::open_as(path, libc::RTLD_NOLOAD).ok()
        }

        fn open_as(path: &Path, flags: c_int) -> Result<Self, String> {
            // An empty name would stand for the program itself.
            let name = CString::new(path.as_os_str().as_bytes()).ok().filter(|name| !name.is_empty());
            let name = name.ok_or("it is no path")?;
            // SAFETY: a string. The initialisers of a library are its own responsibility; an MPI has none that matter.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) };
            if handle.is_null() { Err(last_error()) } else { Ok(Self(handle)) }
        }

        /// A symbol; null if there is none.
        pub(crate) fn find(self, name: &CStr) -> *mut c_void {
            // SAFETY: a library that is open, and a string.
            unsafe { libc::dlsym(self.0, name.as_ptr()) }
        }

        /// A variable, as the library itself uses it; null if there is none. A program that is linked with the library may have taken the
        /// variable over (a copy relocation): the one in the library's file is then unused.
        pub(crate) fn find_variable(self, name: &CStr) -> *mut c_void {
            let program = Self::of_program();
            // Tools that interpose between a program and its MPI do not define this function.
            let function = c"PMPI_Init_thread";
            let found = program.find(name);
            if !found.is_null() && self.find(function) == program.find(function) {
                found
            } else {
                self.find(name)
            }
        }

        /// The file that contains a symbol, which is more informative than the library's name.
        pub(in crate::library) fn place_of(self, name: &CStr) -> Option<String> {
            let mut found = libc::Dl_info {
                dli_fname: std::ptr::null(),
                dli_fbase: std::ptr::null_mut(),
                dli_sname: std::ptr::null(),
                dli_saddr: std::ptr::null_mut(),
            };
            // SAFETY: any address, and a place for the answer.
            let known = unsafe { libc::dladdr(self.find(name), &raw mut found) };
            if known == 0 || found.dli_fname.is_null() {
                return None;
            }
            // SAFETY: a string, as long as the library is open.
            Some(unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy().into_owned())
        }

        /// Closes a library of which nothing but queries was called.
        pub(in crate::library) fn close(self) {
            if self != Self::of_program() {
                // SAFETY: was opened, and nothing of it is kept.
                unsafe { libc::dlclose(self.0) };
            }
        }
    }

    fn last_error() -> String {
        // SAFETY: returns a string of this thread, or null.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: a string, until the next such call on this thread.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Whether an address is mapped in this process.
    pub(in crate::library) fn is_mapped(address: usize) -> bool {
        // SAFETY: a number of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap_or(4096);
        let start = std::ptr::without_provenance_mut::<c_void>(address / page * page);
        let mut is_resident = 0_u8;
        // SAFETY: queries a page, whether it is mapped or not, with a place for the answer.
        unsafe { libc::mincore(start, page, (&raw mut is_resident).cast()) == 0 }
    }

    /// The program that has started this process.
    pub(in crate::library) fn parent_program() -> Option<PathBuf> {
        let parent = rustix::process::getppid()?;
        std::fs::read_link(format!("/proc/{}/exe", parent.as_raw_nonzero())).ok()
    }
}

/// For systems on which no MPI can be loaded: programs build there and report it.
#[cfg(not(unix))]
mod dynamic {
    use std::path::Path;

    use super::{CStr, Opened, PathBuf, c_void};

    impl Opened {
        pub(crate) fn of_program() -> Self {
            Self(std::ptr::null_mut())
        }

        pub(in crate::library) fn open(_: &Path) -> Result<Self, String> {
            Err("MPI is not supported on this system".to_owned())
        }

        pub(in crate::library) fn present(_: &Path) -> Option<Self> {
            None
        }

        pub(crate) fn find(self, _: &CStr) -> *mut c_void {
            self.0
        }

        pub(crate) fn find_variable(self, _: &CStr) -> *mut c_void {
            self.0
        }

        pub(in crate::library) fn place_of(self, _: &CStr) -> Option<String> {
            None
        }

        pub(in crate::library) fn close(self) {}
    }

    pub(in crate::library) fn is_mapped(_: usize) -> bool {
        false
    }

    pub(in crate::library) fn parent_program() -> Option<PathBuf> {
        None
    }
}

pub(super) use dynamic::{is_mapped, parent_program};
