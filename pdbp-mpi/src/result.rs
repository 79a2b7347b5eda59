//! The MPI functions that are used, with their codes as `Result`. Each call takes the [`Gate`] as proof that MPI is
//! initialised, not finalised, and that no other thread of this library is in it.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use mpi::ffi;

use crate::error::{MpiError, Threads};
use crate::mapping::Mapping;
use crate::process::Gate;

/// A communicator. `MPI_ERRORS_RETURN` is set on all that this library makes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Comm(pub(crate) ffi::MPI_Comm);

// SAFETY: a handle; what it names is only touched through calls that need the gate, one at a time.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// A request that is under way, or null.
#[derive(Clone, Copy, PartialEq)]
#[repr(transparent)]
pub(crate) struct Request(ffi::MPI_Request);

// SAFETY: as for `Comm`.
unsafe impl Send for Request {}

/// A window of shared memory. It stays until [`free`](Window::free), or to the end of MPI.
pub(crate) struct Window(ffi::MPI_Win);

// SAFETY: as for `Comm`.
unsafe impl Send for Window {}

/// What became of a request.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// Its place in the list.
    pub(crate) at: usize,
    /// Bytes received; `None` when it was cancelled, an error when it failed.
    pub(crate) outcome: Result<Option<usize>, MpiError>,
}

const NAMES_NOTHING: &str = "MPI has no text for it";

fn check(call: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == ffi::MPI_SUCCESS as c_int { Ok(()) } else { Err(error(call, code)) }
}

#[cold]
fn error(call: &'static str, code: c_int) -> MpiError {
    let mut text = [0 as c_char; 1024];
    let mut length = 0;
    // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING of any MPI; the function may be called at any time between
    // initialisation and finalisation, and this one is called in between two.
    let known = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &raw mut length) };
    let bytes: Vec<u8> = text.iter().take(length.max(0) as usize).map(|c| *c as u8).collect();
    let found = known == ffi::MPI_SUCCESS as c_int;
    let text = if found { String::from_utf8_lossy(&bytes).into_owned() } else { NAMES_NOTHING.to_owned() };
    MpiError { call, code, text }
}

pub(crate) type RawComm = ffi::MPI_Comm;
pub(crate) const SUCCESS: c_int = ffi::MPI_SUCCESS as c_int;
type Deleted = unsafe extern "C" fn(RawComm, c_int, *mut c_void, *mut c_void) -> c_int;

/// Has a function called at the beginning of `MPI_Finalize`, which by the standard deletes the attributes of `MPI_COMM_SELF` first.
///
/// # Safety
/// The function may be called on any thread and at any time, and does not unwind.
pub(crate) unsafe fn at_finalise(_: &Gate, call: Deleted) -> Result<(), MpiError> {
    unsafe extern "C" fn no_copy(
        _: RawComm,
        _: c_int,
        _: *mut c_void,
        _: *mut c_void,
        _: *mut c_void,
        flag: *mut c_int,
    ) -> c_int {
        // SAFETY: MPI passes a place for the answer, which is no.
        unsafe { flag.write(0) };
        SUCCESS
    }
    let mut key = 0;
    // SAFETY: two functions of the right types, and a place for the key.
    let made =
        unsafe { ffi::MPI_Comm_create_keyval(Some(no_copy), Some(call), &raw mut key, ptr::null_mut()) };
    check("MPI_Comm_create_keyval", made)?;
    // SAFETY: a constant of the shim library.
    let own = unsafe { ffi::RSMPI_COMM_SELF };
    // SAFETY: a key that was just made; the value means nothing.
    check("MPI_Comm_set_attr", unsafe { ffi::MPI_Comm_set_attr(own, key, ptr::null_mut()) })
}

/// Whether `MPI_Init` was called.
pub(crate) fn is_initialised() -> bool {
    let mut flag = 0;
    // SAFETY: may be called at any time.
    unsafe { ffi::MPI_Initialized(&raw mut flag) };
    flag != 0
}

/// Whether `MPI_Finalize` was called.
pub(crate) fn is_finalised() -> bool {
    let mut flag = 0;
    // SAFETY: may be called at any time.
    unsafe { ffi::MPI_Finalized(&raw mut flag) };
    flag != 0
}

/// Initialises MPI.
///
/// # Safety
/// MPI is not initialised and not finalised, and no other thread is about to do either.
pub(crate) unsafe fn init(want: Threads) -> Result<Threads, MpiError> {
    let mut have = 0;
    // SAFETY: null stands for the arguments of the process, which MPI need not see; the rest is the caller's.
    let code =
        unsafe { ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), thread_code(want), &raw mut have) };
    check("MPI_Init_thread", code)?;
    Ok(threads(have))
}

/// Finalises MPI.
///
/// # Safety
/// MPI is initialised, and no other thread is in it or will call it again.
pub(crate) unsafe fn finalise() -> Result<(), MpiError> {
    // SAFETY: the caller's.
    check("MPI_Finalize", unsafe { ffi::MPI_Finalize() })
}

/// What MPI lets threads do.
pub(crate) fn query_threads(_: &Gate) -> Result<Threads, MpiError> {
    let mut have = 0;
    // SAFETY: the gate says that MPI is up.
    check("MPI_Query_thread", unsafe { ffi::MPI_Query_thread(&raw mut have) })?;
    Ok(threads(have))
}

fn thread_code(level: Threads) -> c_int {
    match level {
        // SAFETY: a constant of the shim library.
        Threads::Single => unsafe { ffi::RSMPI_THREAD_SINGLE },
        // SAFETY: as above.
        Threads::Funnelled => unsafe { ffi::RSMPI_THREAD_FUNNELED },
        // SAFETY: as above.
        Threads::Serialised => unsafe { ffi::RSMPI_THREAD_SERIALIZED },
        // SAFETY: as above.
        Threads::Multiple => unsafe { ffi::RSMPI_THREAD_MULTIPLE },
    }
}

fn threads(code: c_int) -> Threads {
    let levels = [Threads::Multiple, Threads::Serialised, Threads::Funnelled];
    levels.into_iter().find(|level| thread_code(*level) == code).unwrap_or(Threads::Single)
}

/// `MPI_COMM_WORLD`.
pub(crate) fn world(_: &Gate) -> Comm {
    // SAFETY: a constant of the shim library.
    Comm(unsafe { ffi::RSMPI_COMM_WORLD })
}

impl Comm {
    /// A communicator of the same processes that nobody else uses. Collective.
    pub(crate) fn duplicate(self, _: &Gate) -> Result<Self, MpiError> {
        let mut made = self.0;
        // SAFETY: a communicator that lives, by the gate.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(self.0, &raw mut made) })?;
        Self(made).returning_errors()
    }

    fn returning_errors(self) -> Result<Self, MpiError> {
        // SAFETY: a constant of the shim library.
        let handler = unsafe { ffi::RSMPI_ERRORS_RETURN };
        // SAFETY: a communicator that was just made.
        check("MPI_Comm_set_errhandler", unsafe { ffi::MPI_Comm_set_errhandler(self.0, handler) })?;
        Ok(self)
    }

    /// The processes of this one's host. Collective.
    pub(crate) fn of_host(self, gate: &Gate) -> Result<Self, MpiError> {
        let rank = self.rank(gate)?;
        let mut made = self.0;
        // SAFETY: constants of the shim library.
        let kind = unsafe { ffi::RSMPI_COMM_TYPE_SHARED };
        // SAFETY: as above.
        let none = unsafe { ffi::RSMPI_INFO_NULL };
        // SAFETY: a communicator that lives.
        let code = unsafe { ffi::MPI_Comm_split_type(self.0, kind, rank, none, &raw mut made) };
        check("MPI_Comm_split_type", code)?;
        Self(made).returning_errors()
    }

    /// The processes of one colour. Collective.
    pub(crate) fn split(self, gate: &Gate, colour: u16) -> Result<Self, MpiError> {
        let rank = self.rank(gate)?;
        let mut made = self.0;
        // SAFETY: a communicator that lives.
        let code = unsafe { ffi::MPI_Comm_split(self.0, c_int::from(colour), rank, &raw mut made) };
        check("MPI_Comm_split", code)?;
        Self(made).returning_errors()
    }

    /// Frees it. Collective.
    pub(crate) fn free(mut self, _: &Gate) {
        // SAFETY: a communicator that lives, and that the caller gives up. A failure changes nothing for anybody.
        let _ = unsafe { ffi::MPI_Comm_free(&raw mut self.0) };
    }

    /// A handle that was made a number.
    ///
    /// # Safety
    /// It was that of a communicator of this MPI library.
    pub(crate) unsafe fn from_bits(bits: usize) -> Self {
        const { assert!(matches!(size_of::<ffi::MPI_Comm>(), 4 | 8)) };
        // Of one library it is an `int`, of another a pointer.
        if size_of::<ffi::MPI_Comm>() == size_of::<u32>() {
            // SAFETY: of the same size, and any bits are a value.
            Self(unsafe { std::mem::transmute_copy(&(bits as u32)) })
        } else {
            // SAFETY: as above.
            Self(unsafe { std::mem::transmute_copy(&(bits as u64)) })
        }
    }

    pub(crate) fn rank(self, _: &Gate) -> Result<c_int, MpiError> {
        let mut rank = 0;
        // SAFETY: a communicator that lives.
        check("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(self.0, &raw mut rank) })?;
        Ok(rank)
    }

    pub(crate) fn size(self, _: &Gate) -> Result<c_int, MpiError> {
        let mut size = 0;
        // SAFETY: a communicator that lives.
        check("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(self.0, &raw mut size) })?;
        Ok(size)
    }

    /// Whether both have the same processes in the same order.
    pub(crate) fn is_congruent(self, _: &Gate, other: Self) -> Result<bool, MpiError> {
        let mut result = 0;
        // SAFETY: communicators that live.
        let code = unsafe { ffi::MPI_Comm_compare(self.0, other.0, &raw mut result) };
        check("MPI_Comm_compare", code)?;
        // SAFETY: constants of the shim library.
        let congruent = unsafe { ffi::RSMPI_CONGRUENT };
        // SAFETY: as above.
        let same = unsafe { ffi::RSMPI_IDENT };
        Ok(result == congruent || result == same)
    }

    /// Each value becomes the smallest that a process gave. Collective.
    pub(crate) fn least(self, _: &Gate, values: &mut [u64]) -> Result<(), MpiError> {
        let given = values.to_vec();
        let count = values.len() as c_int;
        // SAFETY: constants of the shim library.
        let kind = unsafe { ffi::RSMPI_UINT64_T };
        // SAFETY: as above.
        let least = unsafe { ffi::RSMPI_MIN };
        let (from, to) = (given.as_ptr().cast(), values.as_mut_ptr().cast());
        // SAFETY: two buffers of `count` words that do not overlap, until the call returns.
        let code = unsafe { ffi::MPI_Allreduce(from, to, count, kind, least, self.0) };
        check("MPI_Allreduce", code)
    }

    /// The value of every process, by rank. Collective.
    pub(crate) fn gather(self, gate: &Gate, value: u64) -> Result<Vec<u64>, MpiError> {
        let mut values = vec![0; self.size(gate)?.max(0) as usize];
        // SAFETY: a constant of the shim library.
        let kind = unsafe { ffi::RSMPI_UINT64_T };
        let (from, to) = ((&raw const value).cast(), values.as_mut_ptr().cast());
        // SAFETY: one word to read, and as many to write as there are processes, until the call returns.
        check("MPI_Allgather", unsafe { ffi::MPI_Allgather(from, 1, kind, to, 1, kind, self.0) })?;
        Ok(values)
    }

    /// Begins a barrier, which is complete when all processes have called it. Collective.
    pub(crate) fn begin_barrier(self, _: &Gate) -> Result<Request, MpiError> {
        let mut request = Request::null();
        // SAFETY: a communicator that lives.
        check("MPI_Ibarrier", unsafe { ffi::MPI_Ibarrier(self.0, &raw mut request.0) })?;
        Ok(request)
    }

    /// Returns when all processes have called it. Collective.
    pub(crate) fn barrier(self, _: &Gate) -> Result<(), MpiError> {
        // SAFETY: a communicator that lives.
        check("MPI_Barrier", unsafe { ffi::MPI_Barrier(self.0) })
    }

    /// Begins to send `length` bytes.
    ///
    /// # Safety
    /// The bytes stay where they are and are not written until the request is complete.
    pub(crate) unsafe fn isend(
        self,
        _: &Gate,
        (base, length): (NonNull<u8>, usize),
        peer: usize,
        tag: c_int,
    ) -> Result<Request, MpiError> {
        let mut request = Request::null();
        let from: *const c_void = base.as_ptr().cast();
        // SAFETY: a constant of the shim library.
        let byte = unsafe { ffi::RSMPI_UINT8_T };
        // SAFETY: the bytes are the caller's matter.
        let code = unsafe {
            ffi::MPI_Isend(from, length as c_int, byte, peer as c_int, tag, self.0, &raw mut request.0)
        };
        check("MPI_Isend", code)?;
        Ok(request)
    }

    /// Begins to receive up to `length` bytes.
    ///
    /// # Safety
    /// The bytes stay where they are, and nobody else touches them until the request is complete.
    pub(crate) unsafe fn irecv(
        self,
        _: &Gate,
        (base, length): (NonNull<u8>, usize),
        peer: usize,
        tag: c_int,
    ) -> Result<Request, MpiError> {
        let mut request = Request::null();
        let to: *mut c_void = base.as_ptr().cast();
        // SAFETY: a constant of the shim library.
        let byte = unsafe { ffi::RSMPI_UINT8_T };
        // SAFETY: the bytes are the caller's matter.
        let code = unsafe {
            ffi::MPI_Irecv(to, length as c_int, byte, peer as c_int, tag, self.0, &raw mut request.0)
        };
        check("MPI_Irecv", code)?;
        Ok(request)
    }
}

impl Request {
    pub(crate) fn null() -> Self {
        // SAFETY: a constant of the shim library.
        Self(unsafe { ffi::RSMPI_REQUEST_NULL })
    }

    /// Asks for an end of a receive that nothing has arrived for. It completes, one way or the other.
    pub(crate) fn cancel(&mut self, _: &Gate) {
        // SAFETY: a request that is under way. If it cannot be cancelled, it completes as it would have.
        let _ = unsafe { ffi::MPI_Cancel(&raw mut self.0) };
    }
}

/// Space for what [`test_some`] reports.
#[derive(Default)]
pub(crate) struct Report {
    places: Vec<c_int>,
    statuses: Vec<ffi::MPI_Status>,
}

// SAFETY: statuses are plain values.
unsafe impl Send for Report {}

/// Tells `each` of the requests that are complete; those are null afterwards.
pub(crate) fn test_some(
    _: &Gate,
    requests: &mut [Request],
    report: &mut Report,
    mut each: impl FnMut(Done),
) -> Result<(), MpiError> {
    const CALL: &str = "MPI_Testsome";
    let most = requests.len();
    if report.places.len() < most {
        report.places.resize(most, 0);
        // SAFETY: a status is integers, for which zeros are values.
        report.statuses.resize(most, unsafe { std::mem::zeroed() });
    }
    let mut count = 0;
    let first: *mut ffi::MPI_Request = requests.as_mut_ptr().cast();
    let (places, statuses) = (report.places.as_mut_ptr(), report.statuses.as_mut_ptr());
    // SAFETY: three arrays with room for `most` entries each; `Request` is a transparent `MPI_Request`.
    let code = unsafe { ffi::MPI_Testsome(most as c_int, first, &raw mut count, places, statuses) };
    let in_status = code == ffi::MPI_ERR_IN_STATUS as c_int;
    if !in_status {
        check(CALL, code)?;
    }
    // MPI_UNDEFINED, when no request is under way, is negative.
    let count = count.max(0) as usize;
    for (place, status) in report.places.iter().zip(&report.statuses).take(count) {
        let outcome = match status.MPI_ERROR {
            failed if in_status && failed != ffi::MPI_SUCCESS as c_int => Err(error(CALL, failed)),
            _ => bytes_of(status),
        };
        each(Done { at: *place as usize, outcome });
    }
    Ok(())
}

fn bytes_of(status: &ffi::MPI_Status) -> Result<Option<usize>, MpiError> {
    let mut cancelled = 0;
    // SAFETY: a status that MPI has filled.
    check("MPI_Test_cancelled", unsafe { ffi::MPI_Test_cancelled(status, &raw mut cancelled) })?;
    if cancelled != 0 {
        return Ok(None);
    }
    let mut length = 0;
    // SAFETY: a constant of the shim library.
    let byte = unsafe { ffi::RSMPI_UINT8_T };
    // SAFETY: as above.
    check("MPI_Get_count", unsafe { ffi::MPI_Get_count(status, byte, &raw mut length) })?;
    Ok(Some(length.max(0) as usize))
}

impl Window {
    /// Allocates `bytes` bytes of zeros for this process in memory that all processes of `comm` can reach. Collective.
    pub(crate) fn allocate(_: &Gate, comm: Comm, bytes: usize) -> Result<Self, MpiError> {
        let info = apart()?;
        let mut base: *mut c_void = ptr::null_mut();
        // SAFETY: a constant of the shim library.
        let mut window = unsafe { ffi::RSMPI_WIN_NULL };
        let to: *mut c_void = (&raw mut base).cast();
        // SAFETY: `base` takes an address, as the standard has it; the communicator and the info live.
        let code = unsafe {
            ffi::MPI_Win_allocate_shared(bytes as ffi::MPI_Aint, 1, info, comm.0, to, &raw mut window)
        };
        check("MPI_Win_allocate_shared", code)?;
        // SAFETY: a constant of the shim library.
        let handler = unsafe { ffi::RSMPI_ERRORS_RETURN };
        // SAFETY: a window that was just made.
        check("MPI_Win_set_errhandler", unsafe { ffi::MPI_Win_set_errhandler(window, handler) })?;
        // From here to the end every process may load and store everywhere.
        // SAFETY: as above.
        check("MPI_Win_lock_all", unsafe { ffi::MPI_Win_lock_all(0, window) })?;
        Ok(Self(window))
    }

    /// The part of a process, in a mapping of our own.
    pub(crate) fn map(&self, _: &Gate, rank: usize) -> Result<Mapping, MpiError> {
        const CALL: &str = "MPI_Win_shared_query";
        let (mut bytes, mut unit, mut base): (ffi::MPI_Aint, c_int, *mut c_void) = (0, 0, ptr::null_mut());
        let to: *mut c_void = (&raw mut base).cast();
        // SAFETY: a window that lives; `base` takes an address.
        let code =
            unsafe { ffi::MPI_Win_shared_query(self.0, rank as c_int, &raw mut bytes, &raw mut unit, to) };
        check(CALL, code)?;
        let none = MpiError { call: CALL, code: 0, text: "no address".to_owned() };
        let base = NonNull::new(base.cast()).ok_or(none)?;
        // SAFETY: MPI has mapped them, and keeps them so until the window is freed or MPI finalised, which nobody does while this
        // has the gate.
        unsafe { Mapping::of(NonNull::slice_from_raw_parts(base, bytes.max(0) as usize)) }.map_err(|e| {
            MpiError {
                call: "mremap",
                code: e.raw_os_error().unwrap_or(0),
                text: format!(
                    "the window cannot be mapped a second time, as it has to be to outlive MPI_Finalize: {e}"
                ),
            }
        })
    }

    /// Frees the memory. Collective.
    ///
    /// # Safety
    /// No process touches MPI's mapping of it any more, and no request does.
    pub(crate) unsafe fn free(mut self, _: &Gate) {
        // SAFETY: a window that lives, locked when it was made. Failures change nothing for anybody.
        let _ = unsafe { ffi::MPI_Win_unlock_all(self.0) };
        // SAFETY: the caller's.
        let _ = unsafe { ffi::MPI_Win_free(&raw mut self.0) };
    }
}

/// The hint that each process' part may begin on a page of its own.
fn apart() -> Result<ffi::MPI_Info, MpiError> {
    // SAFETY: a constant of the shim library.
    let mut info = unsafe { ffi::RSMPI_INFO_NULL };
    // SAFETY: takes a handle.
    check("MPI_Info_create", unsafe { ffi::MPI_Info_create(&raw mut info) })?;
    let (key, value) = (c"alloc_shared_noncontig".as_ptr(), c"true".as_ptr());
    // SAFETY: an info that was just made, and two strings. It is used once per domain and small; MPI frees it at its end.
    check("MPI_Info_set", unsafe { ffi::MPI_Info_set(info, key, value) })?;
    Ok(info)
}
