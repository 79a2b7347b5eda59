//! The MPI functions in use, with their codes as `Result`. Each call takes the [`Gate`] as proof that MPI is loaded, initialised, not
//! finalised, and that no other thread of this library is in it. Underneath lies the table of the C functions
//! ([`library`](crate::library)).

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use crate::error::{MpiError, Threads};
use crate::library::{
    Constants, Finalising, Functions, Handle, Loaded, MAX_STATUS_BYTES, NoCopy, SUCCESS, loaded,
};
use crate::mapping::Mapping;
use crate::process::Gate;

/// A communicator. All that this library makes have `MPI_ERRORS_RETURN`.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Comm(Handle);

/// A request in flight, or null.
#[derive(Clone, Copy, PartialEq)]
#[repr(transparent)]
pub(crate) struct Request(Handle);

/// A window of shared memory. It exists until [`free`](Window::free), or until MPI ends.
pub(crate) struct Window(Handle);

/// The outcome of a request.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// Its index in the list.
    pub(crate) at: usize,
    /// Bytes received; `None` if it was cancelled, an error if it failed.
    pub(crate) outcome: Result<Option<usize>, MpiError>,
}

const NAMES_NOTHING: &str = "MPI has no text for this error";

fn check(call: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == SUCCESS { Ok(()) } else { Err(error(call, code)) }
}

#[cold]
#[inline(never)]
fn error(call: &'static str, code: c_int) -> MpiError {
    let mut text = [0 as c_char; 1024];
    let mut length = 0;
    // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING of any MPI; the function may be called at any time between initialisation and
    // finalisation, and this one is called only then.
    let known = loaded().map(|mpi| unsafe { mpi.error_string(code, text.as_mut_ptr(), &raw mut length) });
    let bytes: Vec<u8> = text.iter().take(length.max(0) as usize).map(|c| *c as u8).collect();
    let found = known == Some(SUCCESS);
    let text = if found { String::from_utf8_lossy(&bytes).into_owned() } else { NAMES_NOTHING.to_owned() };
    MpiError { call, code, text }
}

/// Registers [`process::finalising`](crate::process::finalising) to be called at the beginning of `MPI_Finalize`, which by the standard
/// deletes the attributes of `MPI_COMM_SELF` first.
pub(crate) fn at_finalise(gate: &Gate) -> Result<(), MpiError> {
    let mpi = gate.mpi();
    let mut key = 0;
    // SAFETY: two functions of the right types, and a place for the key.
    let made = unsafe { mpi.comm_create_keyval(NoCopy, Finalising, &raw mut key, ptr::null_mut()) };
    check("MPI_Comm_create_keyval", made)?;
    // SAFETY: a key that was just made; the value is unused.
    check("MPI_Comm_set_attr", unsafe { mpi.comm_set_attr(mpi.constants.own, key, ptr::null_mut()) })
}

/// Whether `MPI_Init` was called.
pub(crate) fn is_initialised(mpi: &Functions) -> bool {
    let mut flag = 0;
    // SAFETY: may be called at any time.
    unsafe { mpi.initialized(&raw mut flag) };
    flag != 0
}

/// Whether `MPI_Finalize` was called.
pub(crate) fn is_finalised(mpi: &Functions) -> bool {
    let mut flag = 0;
    // SAFETY: may be called at any time.
    unsafe { mpi.finalized(&raw mut flag) };
    flag != 0
}

/// Initialises MPI.
///
/// # Safety
/// MPI is neither initialised nor finalised, and no other thread is about to do either.
pub(crate) unsafe fn init(mpi: &Loaded, want: Threads) -> Result<Threads, MpiError> {
    let mut have = 0;
    let wanted = mpi.constants.threads[want as usize];
    // SAFETY: null stands for the process' arguments, which MPI does not need; the rest is the caller's.
    let code = unsafe { mpi.init_thread(ptr::null_mut(), ptr::null_mut(), wanted, &raw mut have) };
    check("MPI_Init_thread", code)?;
    Ok(threads(mpi, have))
}

/// Finalises MPI.
///
/// # Safety
/// MPI is initialised, and no other thread is in it or will call it again.
pub(crate) unsafe fn finalise(mpi: &Functions) -> Result<(), MpiError> {
    // SAFETY: the caller's.
    check("MPI_Finalize", unsafe { mpi.finalize() })
}

/// The thread support that MPI provides.
pub(crate) fn query_threads(gate: &Gate) -> Result<Threads, MpiError> {
    let mut have = 0;
    // SAFETY: the gate proves that MPI is up.
    check("MPI_Query_thread", unsafe { gate.mpi().query_thread(&raw mut have) })?;
    Ok(threads(gate.mpi(), have))
}

fn threads(mpi: &Loaded, code: c_int) -> Threads {
    let levels = [Threads::Multiple, Threads::Serialised, Threads::Funnelled];
    levels.into_iter().find(|l| mpi.constants.threads[*l as usize] == code).unwrap_or(Threads::Single)
}

/// `MPI_COMM_WORLD`.
pub(crate) fn world(gate: &Gate) -> Comm {
    Comm(gate.mpi().constants.world)
}

impl Comm {
    /// A communicator of the same processes, for this library alone. Collective.
    pub(crate) fn duplicate(self, gate: &Gate) -> Result<Self, MpiError> {
        let mut made = Handle::EMPTY;
        // SAFETY: a communicator that lives, by the gate.
        check("MPI_Comm_dup", unsafe { gate.mpi().comm_dup(self.0, &raw mut made) })?;
        Self(made).returning_errors(gate)
    }

    fn returning_errors(self, gate: &Gate) -> Result<Self, MpiError> {
        let handler = gate.mpi().constants.errors_return;
        // SAFETY: a communicator that was just made.
        check("MPI_Comm_set_errhandler", unsafe { gate.mpi().comm_set_errhandler(self.0, handler) })?;
        Ok(self)
    }

    /// The processes on this process' host. Collective.
    pub(crate) fn of_host(self, gate: &Gate) -> Result<Self, MpiError> {
        let rank = self.rank(gate)?;
        let mut made = Handle::EMPTY;
        let constants = &gate.mpi().constants;
        let (kind, none) = (constants.of_host, constants.no_info);
        // SAFETY: a communicator that lives.
        let code = unsafe { gate.mpi().comm_split_type(self.0, kind, rank, none, &raw mut made) };
        check("MPI_Comm_split_type", code)?;
        Self(made).returning_errors(gate)
    }

    /// The processes of one colour. Collective.
    pub(crate) fn split(self, gate: &Gate, colour: u16) -> Result<Self, MpiError> {
        let rank = self.rank(gate)?;
        let mut made = Handle::EMPTY;
        // SAFETY: a communicator that lives.
        let code = unsafe { gate.mpi().comm_split(self.0, c_int::from(colour), rank, &raw mut made) };
        check("MPI_Comm_split", code)?;
        Self(made).returning_errors(gate)
    }

    /// Frees it. Collective.
    pub(crate) fn free(mut self, gate: &Gate) {
        // SAFETY: a live communicator, which the caller gives up. A failure has no consequences.
        let _ = unsafe { gate.mpi().comm_free(&raw mut self.0) };
    }

    /// Restores a handle from a number.
    ///
    /// # Safety
    /// The number is the handle of a communicator of the loaded MPI.
    pub(crate) unsafe fn from_bits(gate: &Gate, bits: usize) -> Self {
        Self(gate.mpi().handle_of(bits))
    }

    pub(crate) fn rank(self, gate: &Gate) -> Result<c_int, MpiError> {
        let mut rank = 0;
        // SAFETY: a communicator that lives.
        check("MPI_Comm_rank", unsafe { gate.mpi().comm_rank(self.0, &raw mut rank) })?;
        Ok(rank)
    }

    pub(crate) fn size(self, gate: &Gate) -> Result<c_int, MpiError> {
        let mut size = 0;
        // SAFETY: a communicator that lives.
        check("MPI_Comm_size", unsafe { gate.mpi().comm_size(self.0, &raw mut size) })?;
        Ok(size)
    }

    /// Whether both have the same processes in the same order.
    pub(crate) fn is_congruent(self, gate: &Gate, other: Self) -> Result<bool, MpiError> {
        let mut result = 0;
        // SAFETY: communicators that live.
        let code = unsafe { gate.mpi().comm_compare(self.0, other.0, &raw mut result) };
        check("MPI_Comm_compare", code)?;
        Ok(gate.mpi().constants.congruent.contains(&result))
    }

    /// Reduces each value to the smallest that any process gave. Collective.
    pub(crate) fn least(self, gate: &Gate, values: &mut [u64]) -> Result<(), MpiError> {
        let given = values.to_vec();
        let count = values.len() as c_int;
        let (from, to) = (given.as_ptr().cast(), values.as_mut_ptr().cast());
        let Constants { word: kind, least, .. } = gate.mpi().constants;
        // SAFETY: two buffers of `count` words that do not overlap, until the call returns.
        let code = unsafe { gate.mpi().allreduce(from, to, count, kind, least, self.0) };
        check("MPI_Allreduce", code)
    }

    /// Returns the value of every process, by rank. Collective.
    pub(crate) fn gather(self, gate: &Gate, value: u64) -> Result<Vec<u64>, MpiError> {
        let mut values = vec![0; self.size(gate)?.max(0) as usize];
        let (from, to) = ((&raw const value).cast(), values.as_mut_ptr().cast());
        let kind = gate.mpi().constants.word;
        // SAFETY: one word to read, and as many to write as there are processes, until the call returns.
        check("MPI_Allgather", unsafe { gate.mpi().allgather(from, 1, kind, to, 1, kind, self.0) })?;
        Ok(values)
    }

    /// Begins a barrier, which completes when all processes have called it. Collective.
    pub(crate) fn begin_barrier(self, gate: &Gate) -> Result<Request, MpiError> {
        let mut request = Request(Handle::EMPTY);
        // SAFETY: a communicator that lives.
        check("MPI_Ibarrier", unsafe { gate.mpi().ibarrier(self.0, &raw mut request.0) })?;
        Ok(request)
    }

    /// Returns when all processes have called it. Collective.
    pub(crate) fn barrier(self, gate: &Gate) -> Result<(), MpiError> {
        // SAFETY: a communicator that lives.
        check("MPI_Barrier", unsafe { gate.mpi().barrier(self.0) })
    }

    /// Begins to send `length` bytes.
    ///
    /// # Safety
    /// The bytes stay where they are and are not written until the request is complete.
    pub(crate) unsafe fn isend(
        self,
        gate: &Gate,
        (base, length): (NonNull<u8>, usize),
        peer: usize,
        tag: c_int,
    ) -> Result<Request, MpiError> {
        let mut request = Request(Handle::EMPTY);
        let from: *const c_void = base.as_ptr().cast();
        let byte = gate.mpi().constants.byte;
        // SAFETY: the caller's.
        let code = unsafe {
            gate.mpi().isend(from, length as c_int, byte, peer as c_int, tag, self.0, &raw mut request.0)
        };
        check("MPI_Isend", code)?;
        Ok(request)
    }

    /// Begins to receive up to `length` bytes.
    ///
    /// # Safety
    /// The bytes stay where they are, and nothing else touches them until the request is complete.
    pub(crate) unsafe fn irecv(
        self,
        gate: &Gate,
        (base, length): (NonNull<u8>, usize),
        peer: usize,
        tag: c_int,
    ) -> Result<Request, MpiError> {
        let mut request = Request(Handle::EMPTY);
        let to: *mut c_void = base.as_ptr().cast();
        let byte = gate.mpi().constants.byte;
        // SAFETY: the caller's.
        let code = unsafe {
            gate.mpi().irecv(to, length as c_int, byte, peer as c_int, tag, self.0, &raw mut request.0)
        };
        check("MPI_Irecv", code)?;
        Ok(request)
    }
}

impl Request {
    /// Whether the request is complete.
    pub(crate) fn is_null(self, gate: &Gate) -> bool {
        self.0 == gate.mpi().constants.no_request
    }

    /// Cancels a receive for which nothing has arrived. It completes, one way or the other.
    pub(crate) fn cancel(&mut self, gate: &Gate) {
        // SAFETY: a request in flight. If it cannot be cancelled, it completes as it would have.
        let _ = unsafe { gate.mpi().cancel(&raw mut self.0) };
    }
}

/// Buffers for what [`test_some`] reports.
#[derive(Default)]
pub(crate) struct Report {
    places: Vec<c_int>,
    /// In MPI's layout, back to back.
    statuses: Vec<[u64; MAX_STATUS_BYTES / size_of::<u64>()]>,
    /// The requests, where they are shorter than [`Handle`]s.
    packed: Vec<c_int>,
}

/// Calls `each` for every request that is complete; these requests are null afterwards. Not inlined: callers poll other links, too, which
/// do not need this function's stack space.
#[inline(never)]
pub(crate) fn test_some(
    gate: &Gate,
    requests: &mut [Request],
    report: &mut Report,
    mut each: impl FnMut(Done),
) -> Result<(), MpiError> {
    const CALL: &str = "MPI_Testsome";
    let mpi = gate.mpi();
    let most = requests.len();
    if report.places.len() < most {
        report.places.resize(most, 0);
        report.statuses.resize(most, Default::default());
    }
    let is_packed = mpi.constants.request_bytes < size_of::<Request>();
    let first: *mut c_void = if is_packed {
        report.packed.clear();
        report.packed.extend(requests.iter().map(|request| request.0.number()));
        report.packed.as_mut_ptr().cast()
    } else {
        requests.as_mut_ptr().cast()
    };
    let mut count = 0;
    let (places, statuses) = (report.places.as_mut_ptr(), report.statuses.as_mut_ptr().cast::<u8>());
    // SAFETY: three arrays with room for `most` entries each, whose entries in MPI are no longer than ours; `Request` is a transparent
    // handle.
    let code = unsafe { mpi.testsome(most as c_int, first, &raw mut count, places, statuses.cast()) };
    let in_status = code == mpi.constants.in_status;
    if !in_status {
        check(CALL, code)?;
    }
    // MPI_UNDEFINED, returned when no request is in flight, is negative.
    let count = count.max(0) as usize;
    for (i, place) in report.places.iter().take(count).enumerate() {
        let at = *place as usize;
        if let Some(request) = requests.get_mut(at).filter(|_| is_packed) {
            request.0 = mpi.constants.no_request;
        }
        // SAFETY: the start of an entry that MPI has filled.
        let status = unsafe { statuses.add(i * mpi.constants.status_bytes) };
        // SAFETY: within that entry, and aligned, as its fields are.
        let field = unsafe { status.add(mpi.constants.error_at) }.cast::<c_int>();
        // SAFETY: as above.
        let failed = unsafe { field.read() };
        let outcome = if in_status && failed != SUCCESS {
            Err(error(CALL, failed))
        } else {
            // SAFETY: as above.
            unsafe { bytes_of(mpi, status.cast()) }
        };
        each(Done { at, outcome });
    }
    Ok(())
}

/// # Safety
/// `status` is a status that MPI has filled.
unsafe fn bytes_of(mpi: &Loaded, status: *const c_void) -> Result<Option<usize>, MpiError> {
    let mut cancelled = 0;
    // SAFETY: the caller's.
    check("MPI_Test_cancelled", unsafe { mpi.test_cancelled(status, &raw mut cancelled) })?;
    if cancelled != 0 {
        return Ok(None);
    }
    let mut length = 0;
    // SAFETY: the caller's.
    check("MPI_Get_count", unsafe { mpi.get_count(status, mpi.constants.byte, &raw mut length) })?;
    Ok(Some(length.max(0) as usize))
}

impl Window {
    /// Allocates `bytes` bytes, with any contents, for this process in memory that all processes of `comm` can reach. Collective.
    pub(crate) fn allocate(gate: &Gate, comm: Comm, bytes: usize) -> Result<Self, MpiError> {
        let mpi = gate.mpi();
        let mut info = apart(gate)?;
        let mut base: *mut c_void = ptr::null_mut();
        let mut window = mpi.constants.no_window;
        let to: *mut c_void = (&raw mut base).cast();
        // SAFETY: `base` receives an address, as the standard defines; the communicator and the info are live.
        let code =
            unsafe { mpi.win_allocate_shared(bytes.cast_signed(), 1, info, comm.0, to, &raw mut window) };
        // SAFETY: our own info, which the window no longer needs. A failure has no consequences.
        let _ = unsafe { mpi.info_free(&raw mut info) };
        check("MPI_Win_allocate_shared", code)?;
        let handler = mpi.constants.errors_return;
        // SAFETY: a window that was just made.
        check("MPI_Win_set_errhandler", unsafe { mpi.win_set_errhandler(window, handler) })?;
        // From here on every process may load and store everywhere.
        // SAFETY: as above.
        check("MPI_Win_lock_all", unsafe { mpi.win_lock_all(0, window) })?;
        Ok(Self(window))
    }

    /// The part of a process, in a mapping of our own.
    pub(crate) fn map(&self, gate: &Gate, rank: usize) -> Result<Mapping, MpiError> {
        const CALL: &str = "MPI_Win_shared_query";
        let (mut bytes, mut unit, mut base): (isize, c_int, *mut c_void) = (0, 0, ptr::null_mut());
        let to: *mut c_void = (&raw mut base).cast();
        // SAFETY: a live window; `base` receives an address.
        let code =
            unsafe { gate.mpi().win_shared_query(self.0, rank as c_int, &raw mut bytes, &raw mut unit, to) };
        check(CALL, code)?;
        let none = MpiError { call: CALL, code: 0, text: "no address".to_owned() };
        let base = NonNull::new(base.cast()).ok_or(none)?;
        // SAFETY: MPI has mapped the bytes, and keeps them mapped until the window is freed or MPI finalised, which no thread does while
        // this one holds the gate.
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
    /// No process and no request touches MPI's mapping of the window any more.
    pub(crate) unsafe fn free(mut self, gate: &Gate) {
        // SAFETY: a live window, locked when it was made. Failures have no consequences.
        let _ = unsafe { gate.mpi().win_unlock_all(self.0) };
        // SAFETY: the caller's.
        let _ = unsafe { gate.mpi().win_free(&raw mut self.0) };
    }
}

/// The hint that each process' part may begin on a page of its own.
fn apart(gate: &Gate) -> Result<Handle, MpiError> {
    let mpi = gate.mpi();
    let mut info = mpi.constants.no_info;
    // SAFETY: takes a handle.
    check("MPI_Info_create", unsafe { mpi.info_create(&raw mut info) })?;
    let (key, value) = (c"alloc_shared_noncontig".as_ptr(), c"true".as_ptr());
    // SAFETY: an info that was just made, and two strings.
    check("MPI_Info_set", unsafe { mpi.info_set(info, key, value) })?;
    Ok(info)
}
