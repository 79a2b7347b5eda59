//! The three binary interfaces (ABIs) of MPIs: their constants, and the layout of a status.
//!
//! Two have been stable for a decade. The ABI of Open MPI 3 to 5 (`libmpi.so.40`) names its predefined handles by addresses of symbols. That of
//! MPICH 3.1 and newer (`libmpi.so.12`; Intel MPI, MVAPICH and Cray MPICH follow it by agreement, the *MPICH ABI compatibility initiative*) uses
//! numbers. The third is the standard's own, of MPI 5 (`libmpi_abi.so`; chapter 20 and appendix A of MPI 5.0): its handles are pointers, the
//! predefined ones small numbers.

use std::ffi::{CStr, c_int, c_void};

use super::table::{Functions, Handle, Table};

/// A binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abi {
    OpenMpi,
    Mpich,
    /// That of MPI 5.
    Standard,
}

impl Abi {
    /// Returns the functions and constants of a library with this interface, or the missing symbol.
    ///
    /// # Safety
    /// The symbols are those of such a library.
    pub(super) unsafe fn of(self, find: Find) -> Result<(Functions, Constants), String> {
        match self {
            // SAFETY: the caller's.
            Self::OpenMpi => unsafe { open_mpi(find) },
            // SAFETY: the caller's.
            Self::Mpich => unsafe { mpich(find) },
            // SAFETY: the caller's.
            Self::Standard => unsafe { standard(find) },
        }
    }
}

/// An MPI's constants, and the size and layout of its statuses.
pub(crate) struct Constants {
    pub(crate) world: Handle,
    /// `MPI_COMM_SELF`.
    pub(crate) own: Handle,
    pub(crate) no_request: Handle,
    pub(crate) no_info: Handle,
    pub(crate) no_window: Handle,
    pub(crate) errors_return: Handle,
    pub(crate) byte: Handle,
    /// `MPI_UINT64_T`.
    pub(crate) word: Handle,
    pub(crate) least: Handle,
    /// `MPI_COMM_TYPE_SHARED`.
    pub(crate) of_host: c_int,
    /// `MPI_ERR_IN_STATUS`.
    pub(crate) in_status: c_int,
    /// Results of `MPI_Comm_compare`: identical, and the same processes in the same order.
    pub(crate) congruent: [c_int; 2],
    /// `MPI_THREAD_SINGLE` to `MPI_THREAD_MULTIPLE`.
    pub(crate) threads: [c_int; 4],
    /// Bytes of an `MPI_Request`, in an array.
    pub(crate) request_bytes: usize,
    /// Bytes of an `MPI_Status`.
    pub(crate) status_bytes: usize,
    /// The offset of its field `MPI_ERROR`.
    pub(crate) error_at: usize,
}

/// Bytes of the longest status.
pub(crate) const MAX_STATUS_BYTES: usize = 32;

/// Finds a symbol of a library; null if there is none.
pub(super) type Find<'a> = &'a dyn Fn(&CStr) -> *mut c_void;

/// Open MPI's functions and constants, or the missing symbol.
///
/// # Safety
/// The symbols are those of an Open MPI, of version 3 or newer.
unsafe fn open_mpi(find: Find) -> Result<(Functions, Constants), String> {
    let address = |name: &CStr| {
        let found = find(name);
        if found.is_null() { Err(name.to_string_lossy().into_owned()) } else { Ok(Handle::new(found)) }
    };
    let constants = Constants {
        world: address(c"ompi_mpi_comm_world")?,
        own: address(c"ompi_mpi_comm_self")?,
        no_request: address(c"ompi_request_null")?,
        no_info: address(c"ompi_mpi_info_null")?,
        no_window: address(c"ompi_mpi_win_null")?,
        errors_return: address(c"ompi_mpi_errors_return")?,
        byte: address(c"ompi_mpi_uint8_t")?,
        word: address(c"ompi_mpi_uint64_t")?,
        least: address(c"ompi_mpi_op_min")?,
        of_host: 0,
        in_status: 18,
        congruent: [0, 1],
        threads: [0, 1, 2, 3],
        request_bytes: size_of::<*mut c_void>(),
        // MPI_SOURCE, MPI_TAG, MPI_ERROR, _cancelled: int; _ucount: size_t.
        status_bytes: 16 + size_of::<usize>(),
        error_at: 8,
    };
    // SAFETY: the caller's; handles of Open MPI are pointers.
    let table = unsafe { Table::fill(|name| find_text(find, name)) }?;
    Ok((Functions::Pointers(table), constants))
}

/// Those of MPICH and its relatives, or the missing symbol.
///
/// # Safety
/// The symbols are those of an MPI that keeps to the ABI of MPICH 3.1.
unsafe fn mpich(find: Find) -> Result<(Functions, Constants), String> {
    let number = |number: u32| Handle::new(number.cast_signed());
    let constants = Constants {
        world: number(0x4400_0000),
        own: number(0x4400_0001),
        no_request: number(0x2c00_0000),
        no_info: number(0x1c00_0000),
        no_window: number(0x2000_0000),
        errors_return: number(0x5400_0001),
        byte: number(0x4c00_013b),
        word: number(0x4c00_083e),
        least: number(0x5800_0002),
        of_host: 1,
        in_status: 17,
        congruent: [0, 1],
        threads: [0, 1, 2, 3],
        request_bytes: size_of::<c_int>(),
        // count_lo, count_hi_and_cancelled, MPI_SOURCE, MPI_TAG, MPI_ERROR: int.
        status_bytes: 20,
        error_at: 16,
    };
    // SAFETY: the caller's; handles of MPICH are numbers.
    let table = unsafe { Table::fill(|name| find_text(find, name)) }?;
    Ok((Functions::Integers(table), constants))
}

/// Those of an MPI with the standard's ABI, or the missing symbol.
///
/// # Safety
/// The symbols are those of an MPI that reports version 1 of the standard ABI.
unsafe fn standard(find: Find) -> Result<(Functions, Constants), String> {
    let number = |number: usize| Handle::new(std::ptr::without_provenance_mut::<c_void>(number));
    let constants = Constants {
        world: number(0x101),
        own: number(0x102),
        no_request: number(0x180),
        no_info: number(0x130),
        no_window: number(0x110),
        errors_return: number(0x143),
        byte: number(0x241),
        word: number(0x259),
        least: number(0x22),
        of_host: 221,
        in_status: 19,
        congruent: [201, 202],
        threads: [0, 1024, 2048, 4096],
        request_bytes: size_of::<*mut c_void>(),
        // MPI_SOURCE, MPI_TAG, MPI_ERROR, and five more: int.
        status_bytes: 32,
        error_at: 8,
    };
    // SAFETY: the caller's; handles of this ABI are pointers.
    let table = unsafe { Table::fill(|name| find_text(find, name)) }?;
    Ok((Functions::Pointers(table), constants))
}

fn find_text(find: Find, name: &str) -> *mut c_void {
    std::ffi::CString::new(name).map_or(std::ptr::null_mut(), |name| find(&name))
}

/// Those of the MPI that the crate `mpi` links with the program, as the compiler read them in the header.
#[cfg(feature = "mpi-linked")]
pub(super) fn linked() -> Result<(Functions, Constants), String> {
    use super::table::{Raw, find_linked};
    use mpi::ffi;

    /// A handle, whatever its type in that MPI.
    macro_rules! constant {
        ($name:ident) => {
            // SAFETY: a constant of the shim library.
            handle(unsafe { ffi::$name })
        };
    }
    fn handle<T: Copy>(value: T) -> Handle {
        const { assert!(size_of::<T>() == size_of::<c_int>() || size_of::<T>() == size_of::<*mut c_void>()) };
        fn of<T: Copy, H: Raw>(value: T) -> Handle {
            // SAFETY: of that size, and any bytes are a value.
            Handle::new(unsafe { std::mem::transmute_copy::<T, H>(&value) })
        }
        if size_of::<T>() == size_of::<c_int>() { of::<T, c_int>(value) } else { of::<T, *mut c_void>(value) }
    }
    /// A number.
    macro_rules! number {
        ($name:ident) => {
            // SAFETY: a constant of the shim library.
            unsafe { ffi::$name }
        };
    }
    const { assert!(size_of::<ffi::MPI_Status>() <= MAX_STATUS_BYTES) };
    let constants = Constants {
        world: constant!(RSMPI_COMM_WORLD),
        own: constant!(RSMPI_COMM_SELF),
        no_request: constant!(RSMPI_REQUEST_NULL),
        no_info: constant!(RSMPI_INFO_NULL),
        no_window: constant!(RSMPI_WIN_NULL),
        errors_return: constant!(RSMPI_ERRORS_RETURN),
        byte: constant!(RSMPI_UINT8_T),
        word: constant!(RSMPI_UINT64_T),
        least: constant!(RSMPI_MIN),
        of_host: number!(RSMPI_COMM_TYPE_SHARED),
        in_status: ffi::MPI_ERR_IN_STATUS as c_int,
        congruent: [number!(RSMPI_IDENT), number!(RSMPI_CONGRUENT)],
        threads: [
            number!(RSMPI_THREAD_SINGLE),
            number!(RSMPI_THREAD_FUNNELED),
            number!(RSMPI_THREAD_SERIALIZED),
            number!(RSMPI_THREAD_MULTIPLE),
        ],
        request_bytes: size_of::<ffi::MPI_Request>(),
        status_bytes: size_of::<ffi::MPI_Status>(),
        error_at: std::mem::offset_of!(ffi::MPI_Status, MPI_ERROR),
    };
    let functions = if size_of::<ffi::MPI_Comm>() == size_of::<c_int>() {
        // SAFETY: functions of that MPI, whose handles are numbers.
        Functions::Integers(unsafe { Table::fill(find_linked) }?)
    } else {
        // SAFETY: functions of that MPI, whose handles are pointers.
        Functions::Pointers(unsafe { Table::fill(find_linked) }?)
    };
    Ok((functions, constants))
}
