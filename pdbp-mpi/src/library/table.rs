//! The C functions that are used, each declared once, in a form that fits every MPI.
//!
//! MPIs differ in the type of a handle: an `int` in MPICH and its relatives, a pointer in Open MPI. So the table is generic over
//! that type, and [`Functions`] has methods that take [`Handle`]s, wide enough for both, and call the table that was filled.

use std::ffi::{c_char, c_int, c_void};

use crate::process;

/// An MPI handle of either type: its bytes, followed by zeros.
#[derive(Clone, Copy, PartialEq)]
#[repr(transparent)]
pub(crate) struct Handle(u64);

impl Handle {
    /// The value of an output parameter before MPI writes it.
    pub(crate) const EMPTY: Self = Self(0);

    pub(super) fn new<H: Raw>(raw: H) -> Self {
        const { assert!(size_of::<H>() <= size_of::<Self>() && align_of::<H>() <= align_of::<Self>()) };
        let mut handle = Self::EMPTY;
        // SAFETY: room for the value, and aligned for it.
        unsafe { (&raw mut handle).cast::<H>().write(raw) };
        handle
    }

    /// The handle of an MPI whose handles are numbers.
    pub(crate) fn number(self) -> c_int {
        self.raw()
    }

    pub(super) fn raw<H: Raw>(self) -> H {
        const { assert!(size_of::<H>() <= size_of::<Self>() && align_of::<H>() <= align_of::<Self>()) };
        // SAFETY: as many bytes, aligned, and any bytes are a valid number or pointer.
        unsafe { (&raw const self).cast::<H>().read() }
    }
}

/// The C type of a handle.
///
/// # Safety
/// Any bytes are a valid value.
pub(crate) unsafe trait Raw: Copy {}

// SAFETY: a number.
unsafe impl Raw for c_int {}
// SAFETY: a raw pointer.
unsafe impl Raw for *mut c_void {}

/// How a parameter is passed to an MPI whose handles are `H`.
pub(crate) trait Lower<H> {
    type Raw;
    fn lower(self) -> Self::Raw;
}

impl<H: Raw> Lower<H> for Handle {
    type Raw = H;
    fn lower(self) -> H {
        self.raw()
    }
}

impl<H: Raw> Lower<H> for *mut Handle {
    type Raw = *mut H;
    fn lower(self) -> *mut H {
        self.cast()
    }
}

macro_rules! as_it_is {
    ($($kind:ty)*) => {$(
        impl<H> Lower<H> for $kind {
            type Raw = Self;
            fn lower(self) -> Self {
                self
            }
        }
    )*};
}
as_it_is!(c_int isize *const c_char *mut c_char *const c_void *mut c_void *mut c_int *mut isize *mut *mut c_void *mut *mut *mut c_char);

/// `MPI_COMM_NULL_COPY_FN`.
pub(crate) struct NoCopy;

impl<H> Lower<H> for NoCopy {
    type Raw = unsafe extern "C" fn(H, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
    fn lower(self) -> Self::Raw {
        unsafe extern "C" fn no_copy<H>(
            _: H,
            _: c_int,
            _: *mut c_void,
            _: *mut c_void,
            _: *mut c_void,
            flag: *mut c_int,
        ) -> c_int {
            // SAFETY: MPI passes a place for the answer, which is no.
            unsafe { flag.write(0) };
            super::SUCCESS
        }
        no_copy::<H>
    }
}

/// The function that MPI calls to delete an attribute: it calls [`process::finalising`].
pub(crate) struct Finalising;

impl<H> Lower<H> for Finalising {
    type Raw = unsafe extern "C" fn(H, c_int, *mut c_void, *mut c_void) -> c_int;
    fn lower(self) -> Self::Raw {
        unsafe extern "C" fn delete<H>(_: H, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
            process::finalising();
            super::SUCCESS
        }
        delete::<H>
    }
}

/// Declares the functions: the table, the code that fills it, and the methods that call its entries.
macro_rules! functions {
    ($($name:ident: $symbol:ident($($argument:ident: $kind:ty),*);)*) => {
        /// The functions of an MPI whose handles are `H`.
        pub(crate) struct Table<H: Raw> {
            $($name: unsafe extern "C" fn($(<$kind as Lower<H>>::Raw),*) -> c_int,)*
        }

        impl<H: Raw> Table<H> {
            /// Fills the table with the result of `find` for each name, or returns the first name that is missing.
            ///
            /// # Safety
            /// `find` returns functions of these names, as declared by MPI 3.1, of an MPI whose handles are `H`.
            pub(super) unsafe fn fill(find: impl Fn(&'static str) -> *mut c_void) -> Result<Self, &'static str> {
                Ok(Self {$(
                    $name: {
                        let found = find(stringify!($symbol));
                        if found.is_null() {
                            return Err(stringify!($symbol));
                        }
                        // SAFETY: the function of that name, by the caller.
                        unsafe { std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($(<$kind as Lower<H>>::Raw),*) -> c_int,
                        >(found) }
                    },
                )*})
            }
        }

        /// The functions of the MPI in use. Each does what MPI's standard defines.
        #[allow(clippy::too_many_arguments, reason = "as many as MPI's")]
        impl Functions {$(
            #[doc = concat!("`", stringify!($symbol), "`.")]
            ///
            /// # Safety
            /// As in MPI's standard; handles are this MPI's.
            #[inline]
            pub(crate) unsafe fn $name(&self $(, $argument: $kind)*) -> c_int {
                match self {
                    // SAFETY: the caller's.
                    Self::Integers(table) => unsafe { (table.$name)($(<$kind as Lower<c_int>>::lower($argument)),*) },
                    // SAFETY: as above.
                    Self::Pointers(table) => unsafe { (table.$name)($(<$kind as Lower<*mut c_void>>::lower($argument)),*) },
                }
            }
        )*}

        /// The function of that name of the crate `mpi`.
        #[cfg(feature = "mpi-linked")]
        pub(super) fn find_linked(name: &str) -> *mut c_void {
            match name {
                $(stringify!($symbol) => ::mpi::ffi::$symbol as *mut c_void,)*
                _ => std::ptr::null_mut(),
            }
        }
    };
}

/// The filled table.
pub(crate) enum Functions {
    /// Of MPICH and its relatives.
    Integers(Table<c_int>),
    /// Of Open MPI.
    Pointers(Table<*mut c_void>),
}

functions! {
    initialized: MPI_Initialized(flag: *mut c_int);
    finalized: MPI_Finalized(flag: *mut c_int);
    init_thread: MPI_Init_thread(argc: *mut c_int, argv: *mut *mut *mut c_char, required: c_int, provided: *mut c_int);
    query_thread: MPI_Query_thread(provided: *mut c_int);
    finalize: MPI_Finalize();
    error_string: MPI_Error_string(code: c_int, text: *mut c_char, length: *mut c_int);
    comm_create_keyval: MPI_Comm_create_keyval(copy: NoCopy, delete: Finalising, key: *mut c_int, extra: *mut c_void);
    comm_set_attr: MPI_Comm_set_attr(comm: Handle, key: c_int, value: *mut c_void);
    comm_dup: MPI_Comm_dup(comm: Handle, made: *mut Handle);
    comm_split_type: MPI_Comm_split_type(comm: Handle, kind: c_int, key: c_int, info: Handle, made: *mut Handle);
    comm_split: MPI_Comm_split(comm: Handle, colour: c_int, key: c_int, made: *mut Handle);
    comm_free: MPI_Comm_free(comm: *mut Handle);
    comm_rank: MPI_Comm_rank(comm: Handle, rank: *mut c_int);
    comm_size: MPI_Comm_size(comm: Handle, size: *mut c_int);
    comm_compare: MPI_Comm_compare(one: Handle, other: Handle, result: *mut c_int);
    comm_set_errhandler: MPI_Comm_set_errhandler(comm: Handle, handler: Handle);
    allreduce: MPI_Allreduce(from: *const c_void, to: *mut c_void, count: c_int, kind: Handle, op: Handle, comm: Handle);
    allgather: MPI_Allgather(from: *const c_void, sent: c_int, sent_kind: Handle, to: *mut c_void, received: c_int, kind: Handle, comm: Handle);
    ibarrier: MPI_Ibarrier(comm: Handle, request: *mut Handle);
    barrier: MPI_Barrier(comm: Handle);
    isend: MPI_Isend(from: *const c_void, count: c_int, kind: Handle, to: c_int, tag: c_int, comm: Handle, request: *mut Handle);
    irecv: MPI_Irecv(into: *mut c_void, count: c_int, kind: Handle, from: c_int, tag: c_int, comm: Handle, request: *mut Handle);
    cancel: MPI_Cancel(request: *mut Handle);
    testsome: MPI_Testsome(count: c_int, requests: *mut c_void, done: *mut c_int, places: *mut c_int, statuses: *mut c_void);
    test_cancelled: MPI_Test_cancelled(status: *const c_void, flag: *mut c_int);
    get_count: MPI_Get_count(status: *const c_void, kind: Handle, count: *mut c_int);
    info_create: MPI_Info_create(info: *mut Handle);
    info_set: MPI_Info_set(info: Handle, key: *const c_char, value: *const c_char);
    info_free: MPI_Info_free(info: *mut Handle);
    win_allocate_shared: MPI_Win_allocate_shared(bytes: isize, unit: c_int, info: Handle, comm: Handle, base: *mut c_void, window: *mut Handle);
    win_shared_query: MPI_Win_shared_query(window: Handle, rank: c_int, bytes: *mut isize, unit: *mut c_int, base: *mut c_void);
    win_set_errhandler: MPI_Win_set_errhandler(window: Handle, handler: Handle);
    win_lock_all: MPI_Win_lock_all(assertion: c_int, window: Handle);
    win_unlock_all: MPI_Win_unlock_all(window: Handle);
    win_free: MPI_Win_free(window: *mut Handle);
}
