//! Loads an MPI library when a program needs it, so that one program runs under any MPI.
//!
//! * `table`: the C functions that are used, each declared once.
//! * `abi`: the three binary interfaces that MPIs have: constants and layouts.
//! * `search`: which library is loaded, and from where; through the system's loader (`system`), for this process and its `launcher`.
//!
//! This needs no C compiler and no MPI header. The library is opened with private symbols (`RTLD_LOCAL`), and never closed. With the
//! feature `mpi-linked` the same table is filled from the crate `mpi`, which the program is linked with.

mod abi;
mod launcher;
mod search;
mod system;
mod table;

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};

use abi::Abi;
pub(crate) use abi::{Constants, MAX_STATUS_BYTES};
#[cfg(feature = "mpi-linked")]
use launcher::Launched;
pub use launcher::Launcher;
pub(crate) use launcher::check_ranks;
pub(crate) use system::Opened;
pub(crate) use table::{Finalising, Functions, Handle, NoCopy};

use crate::error::LibraryError;
use crate::result;

/// `MPI_SUCCESS`, by the standard.
pub(crate) const SUCCESS: c_int = 0;

/// Which MPI library to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Library {
    /// The MPI that the program is linked with or has loaded; else that of the launcher (`mpirun`, `mpiexec`) that started the process;
    /// else the first one found: Open MPI, then MPICH.
    #[default]
    Auto,
    /// Open MPI, version 3 or newer, by its own ABI or that of MPI 5.
    OpenMpi,
    /// MPICH 3.1 or newer, or an MPI with the same binary interface (Intel MPI, MVAPICH, Cray MPICH); or MPICH by the ABI of MPI 5.
    Mpich,
    /// A file, such as `/opt/openmpi/lib/libmpi.so.40`. Its kind is detected.
    File(PathBuf),
    /// The one that the program is linked with. Needs the feature `mpi-linked`.
    Linked,
}

/// The text is neither one of `auto`, `openmpi`, `mpich` and `linked`, nor a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownLibrary;

impl fmt::Display for UnknownLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "use auto, openmpi, mpich, linked, or the path of a library, such as /opt/mpi/lib/libmpi.so",
        )
    }
}

impl std::error::Error for UnknownLibrary {}

impl FromStr for Library {
    type Err = UnknownLibrary;

    /// Parses the name of a choice, or a path, which must contain a `/`.
    fn from_str(text: &str) -> Result<Self, UnknownLibrary> {
        match text {
            "auto" => Ok(Self::Auto),
            "openmpi" => Ok(Self::OpenMpi),
            "mpich" => Ok(Self::Mpich),
            "linked" => Ok(Self::Linked),
            path if path.contains('/') => Ok(Self::File(path.into())),
            _ => Err(UnknownLibrary),
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::OpenMpi => f.write_str("openmpi"),
            Self::Mpich => f.write_str("mpich"),
            Self::Linked => f.write_str("linked"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// A family of MPIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Open MPI.
    OpenMpi,
    /// MPICH and its relatives.
    Mpich,
    /// An MPI with the ABI of MPI 5 that is neither.
    Standard,
    /// Another MPI, which the program is linked with.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Standard => "an MPI with the ABI of MPI 5",
            Self::Other => "another MPI",
        })
    }
}

/// The MPI that this process uses, once loaded.
pub(crate) struct Loaded {
    functions: Functions,
    pub(crate) constants: Constants,
    pub(crate) kind: Kind,
    /// `None`: an MPI of another kind, which the program is linked with.
    abi: Option<Abi>,
    /// The version that it reports, such as "Open MPI v4.1.4".
    pub(crate) version: String,
    /// The file that it is in.
    pub(crate) file: String,
    handle: search::Opened,
    pub(crate) is_linked: bool,
    launched: Option<launcher::Launched>,
}

impl Deref for Loaded {
    type Target = Functions;
    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Loaded {
    /// The handle that a program converted to a number.
    pub(crate) fn handle_of(&self, bits: usize) -> Handle {
        match self.functions {
            // C sign-extends an `int`.
            Functions::Integers(_) => Handle::new((bits as u32).cast_signed()),
            Functions::Pointers(_) => Handle::new(std::ptr::with_exposed_provenance_mut::<c_void>(bits)),
        }
    }

    /// Whether a number can be the handle of a communicator here; detects programs that were compiled for another MPI.
    pub(crate) fn may_be_communicator(&self, bits: usize) -> bool {
        // A number of 32 bits, which C may have sign-extended.
        let is_int = matches!((bits as u64) >> 32, 0 | 0xffff_ffff);
        match self.abi {
            // Four bits of a handle encode the type of its object, and the two above them that it is valid.
            Some(Abi::Mpich) => is_int && (bits >> 26) & 0xf == 1 && (bits >> 30) & 3 != 0,
            // The address of a struct: neither MPICH's handles for its world and the null communicator, nor a sign-extended number.
            Some(Abi::OpenMpi) => {
                !matches!(bits, 0x0400_0000 | 0x4400_0000)
                    && bits.cast_signed() > 0
                    && bits.is_multiple_of(align_of::<usize>())
                    && bits != self.handle.find_variable(c"ompi_mpi_comm_null").addr()
                    && system::is_mapped(bits)
            }
            // The world, the process itself, or anything beyond the numbers that the standard reserves: an address in Open MPI and MPICH
            // 5, a number in MPICH 4; but not MPICH's numbers of its world and the null communicator, which have other values in the
            // standard.
            Some(Abi::Standard) if matches!(bits, 0x101 | 0x102) => true,
            Some(Abi::Standard) if bits < 4096 || matches!(bits, 0x0400_0000 | 0x4400_0000) => false,
            Some(Abi::Standard) => match self.kind {
                Kind::OpenMpi => system::is_mapped(bits),
                Kind::Mpich => is_int || system::is_mapped(bits),
                _ => true,
            },
            None => true,
        }
    }

    /// A function beyond the table; null if this MPI does not have it.
    pub(crate) fn find(&self, name: &CStr) -> *mut c_void {
        self.handle.find(name)
    }
}

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.version, self.file)
    }
}

static LOADED: OnceLock<Loaded> = OnceLock::new();

/// The MPI that this process uses, if it has loaded one.
pub(crate) fn loaded() -> Option<&'static Loaded> {
    LOADED.get()
}

/// Loads an MPI, or returns the one loaded before: a process can have only one.
pub(crate) fn load(library: &Library) -> Result<&'static Loaded, LibraryError> {
    static LOADING: Mutex<()> = Mutex::new(());
    let _guard = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(loaded) = loaded() {
        return if search::is_wanted(loaded, library) {
            Ok(loaded)
        } else {
            Err(LibraryError::Second { wanted: library.clone(), present: loaded.to_string() })
        };
    }
    let found = if cfg!(feature = "mpi-linked") || *library == Library::Linked {
        linked(library)?
    } else {
        search::find(library)?
    };
    // An MPI that the program has initialised works with its launcher.
    if !result::is_initialised(&found) {
        launcher::check(&found, library).inspect_err(|_| found.handle.close())?;
    }
    Ok(LOADED.get_or_init(|| found))
}

#[cfg(not(feature = "mpi-linked"))]
fn linked(_: &Library) -> Result<Loaded, LibraryError> {
    Err(LibraryError::NotLinked)
}

/// The MPI that the program is linked with, if it is the requested one.
#[cfg(feature = "mpi-linked")]
fn linked(library: &Library) -> Result<Loaded, LibraryError> {
    let handle = search::Opened::of_program();
    let file = "linked with the program".to_owned();
    let failed = |missing| LibraryError::Incomplete { file: file.clone(), missing };
    let (functions, constants) = abi::linked().map_err(failed)?;
    let version = search::version(&handle).unwrap_or_default();
    let found = search::kind(&|name| handle.find(name), &version).ok();
    let loaded = Loaded {
        functions,
        constants,
        kind: found.map_or(Kind::Other, |(kind, _)| kind),
        abi: found.map(|(_, abi)| abi),
        version,
        file,
        handle,
        is_linked: true,
        launched: Launched::find(),
    };
    if search::is_wanted(&loaded, library) {
        Ok(loaded)
    } else {
        Err(LibraryError::Second { wanted: library.clone(), present: loaded.to_string() })
    }
}

/// Loads an MPI, unless that has been done, and returns its version and file, such as "Open MPI v4.1.4 (libmpi.so.40)".
///
/// # Errors
/// See [`LibraryError`].
pub fn load_library(library: &Library) -> Result<String, LibraryError> {
    load(library).map(ToString::to_string)
}

#[cfg(test)]
mod tests;
