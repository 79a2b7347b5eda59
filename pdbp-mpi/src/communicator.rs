//! Communicators that the program passes in.

/// An MPI communicator of the program: a value of the crate `mpi` (with the feature `mpi-linked`), a [`RawCommunicator`], or a type
/// of your own.
///
/// # Safety
/// `handle` must return the handle of a communicator of the MPI that this process has loaded. The communicator must live as long as
/// the value is borrowed.
pub unsafe trait Communicator {
    /// The handle, an `MPI_Comm`, as a number (in C `(uintptr_t)comm`).
    fn handle(&self) -> usize;
}

/// The handle of a communicator, as in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawCommunicator(usize);

impl RawCommunicator {
    /// Takes the handle of a communicator, an `MPI_Comm`, as a number (in C `(uintptr_t)comm`).
    ///
    /// # Safety
    /// `comm` must be the handle of a communicator of the MPI that this process has loaded, and the communicator must not be freed
    /// while the value is in use.
    pub unsafe fn new(comm: usize) -> Self {
        Self(comm)
    }
}

// SAFETY: the promise of `new`.
unsafe impl Communicator for RawCommunicator {
    fn handle(&self) -> usize {
        self.0
    }
}

// SAFETY: a live communicator of the MPI that the program is linked with, which is then the one in use.
#[cfg(feature = "mpi-linked")]
unsafe impl<C: mpi::topology::Communicator> Communicator for C {
    fn handle(&self) -> usize {
        let handle = self.as_raw();
        // An `int` in one library, a pointer in another.
        if size_of_val(&handle) == size_of::<u32>() {
            // SAFETY: of that size, and any bytes are a number.
            (unsafe { std::mem::transmute_copy::<_, u32>(&handle) }) as usize
        } else {
            const { assert!(size_of::<mpi::ffi::MPI_Comm>() <= size_of::<usize>()) };
            // SAFETY: as above.
            unsafe { std::mem::transmute_copy::<_, usize>(&handle) }
        }
    }
}
