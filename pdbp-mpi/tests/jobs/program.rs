//! MPI as called by a program that uses it itself: through the crate `mpi`, or as C would, through a library that it has loaded.

use pdbp_mpi::Threads;

#[cfg(not(feature = "mpi-linked"))]
pub(crate) use loaded::Program;
#[cfg(feature = "mpi-linked")]
pub(crate) use of_crate::Program;

/// The levels in ascending order.
const LEVELS: [Threads; 4] = [Threads::Single, Threads::Funnelled, Threads::Serialised, Threads::Multiple];

#[cfg(feature = "mpi-linked")]
mod of_crate {
    use mpi::Threading;
    use mpi::environment::Universe;
    use mpi::topology::{Color, Communicator as _, SimpleCommunicator};
    use mpi::traits::{CommunicatorCollectives as _, Destination as _, Source as _};
    use pdbp_mpi::{Communicator, Threads};

    const LEVELS: [Threading; 4] =
        [Threading::Single, Threading::Funneled, Threading::Serialized, Threading::Multiple];

    /// Initialised MPI, finalised on drop.
    pub(crate) struct Program {
        _universe: Universe,
        world: SimpleCommunicator,
    }

    impl Program {
        /// Initialises MPI. Also returns the level of thread support that it provides.
        pub(crate) fn start(level: Threads) -> Result<(Self, Threads), String> {
            let (universe, have) =
                mpi::initialize_with_threading(LEVELS[level as usize]).ok_or("initialised before")?;
            let have = LEVELS.iter().position(|l| *l == have).ok_or("an unknown level")?;
            let world = universe.world();
            Ok((Self { _universe: universe, world }, super::LEVELS[have]))
        }

        pub(crate) fn world(&self) -> impl Communicator {
            SimpleCommunicator::world()
        }

        /// Rank and size.
        pub(crate) fn place(&self) -> (i32, i32) {
            (self.world.rank(), self.world.size())
        }

        pub(crate) fn split(&self, colour: i32) -> impl Communicator + use<> {
            self.world.split_by_color(Color::with_value(colour)).unwrap()
        }

        /// Sends a number to the next rank, and returns the one from the previous rank.
        pub(crate) fn pass_on(&self, number: i32, tag: i32) -> i32 {
            let (rank, size) = self.place();
            self.world.process_at_rank((rank + 1) % size).send_with_tag(&number, tag);
            self.world.process_at_rank((rank + size - 1) % size).receive_with_tag::<i32>(tag).0
        }

        pub(crate) fn barrier(&self) {
            self.world.barrier();
        }
    }
}

#[cfg(not(feature = "mpi-linked"))]
mod loaded {
    use std::ffi::{CStr, CString, c_int, c_void};
    use std::ptr;

    use pdbp_mpi::{Communicator, RawCommunicator, Threads};

    /// Calls a function by its name and type.
    macro_rules! call {
        ($self:expr, $name:literal ($($argument:expr => $kind:ty),*)) => {{
            let found = $self.find($name);
            // SAFETY: the function of this name has this type.
            let function = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> c_int>(found) };
            // SAFETY: called as MPI specifies.
            let code = unsafe { function($($argument),*) };
            assert_eq!(code, 0, "{:?}", $name);
        }};
    }

    use crate::launch::PROGRAMS_LIBRARY;

    /// The ABI that the program was compiled for.
    #[derive(Clone, Copy, PartialEq)]
    enum Abi {
        OpenMpi,
        Mpich,
        Standard,
    }

    /// Initialised MPI, finalised on drop.
    pub(crate) struct Program {
        library: *mut c_void,
        abi: Abi,
    }

    impl Program {
        fn find(&self, name: &CStr) -> *mut c_void {
            // SAFETY: the library is open, and the name ends with a null byte.
            let found = unsafe { libc::dlsym(self.library, name.as_ptr()) };
            assert!(!found.is_null(), "there is no {name:?}");
            found
        }

        /// Loads the launcher's MPI and initialises it. Also returns the level of thread support that it provides.
        pub(crate) fn start(level: Threads) -> Result<(Self, Threads), String> {
            let named = std::env::var(PROGRAMS_LIBRARY).ok().and_then(|file| CString::new(file).ok());
            let (abi, names) = match &named {
                Some(file) => (Abi::Standard, vec![file.as_c_str()]),
                None if std::env::var_os("OMPI_COMM_WORLD_RANK").is_some() => {
                    (Abi::OpenMpi, vec![c"libmpi.so.40"])
                }
                None => (Abi::Mpich, vec![c"libmpich.so.12", c"libmpi.so.12"]),
            };
            // SAFETY: the name ends with a null byte, and loading an MPI has no effects.
            let open =
                |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            let library = names.into_iter().map(open).find(|library| !library.is_null());
            let program = Self { library: library.ok_or("no library of the launcher's MPI")?, abi };
            let levels = if abi == Abi::Standard { [0, 1024, 2048, 4096] } else { [0, 1, 2, 3] };
            let (want, mut have) = (levels[level as usize], 0);
            let none: *mut c_void = ptr::null_mut();
            call!(program, c"MPI_Init_thread"(none => *mut c_void, none => *mut c_void, want => c_int, &raw mut have => *mut c_int));
            let have = levels.iter().position(|level| *level == have).ok_or("an unknown level")?;
            Ok((program, super::LEVELS[have]))
        }

        fn world_handle(&self) -> usize {
            match self.abi {
                Abi::OpenMpi => self.find(c"ompi_mpi_comm_world").expose_provenance(),
                Abi::Mpich => 0x4400_0000,
                Abi::Standard => 0x101,
            }
        }

        pub(crate) fn world(&self) -> impl Communicator {
            // SAFETY: this communicator lives as long as MPI.
            unsafe { RawCommunicator::new(self.world_handle()) }
        }

        /// Rank and size.
        pub(crate) fn place(&self) -> (i32, i32) {
            let (mut rank, mut size, world) = (0, 0, self.world_handle());
            if self.abi != Abi::Mpich {
                call!(self, c"MPI_Comm_rank"(world => usize, &raw mut rank => *mut c_int));
                call!(self, c"MPI_Comm_size"(world => usize, &raw mut size => *mut c_int));
            } else {
                call!(self, c"MPI_Comm_rank"(world as c_int => c_int, &raw mut rank => *mut c_int));
                call!(self, c"MPI_Comm_size"(world as c_int => c_int, &raw mut size => *mut c_int));
            }
            (rank, size)
        }

        pub(crate) fn split(&self, colour: i32) -> impl Communicator + use<> {
            let world = self.world_handle();
            let handle = if self.abi != Abi::Mpich {
                let mut made = 0;
                call!(self, c"MPI_Comm_split"(world => usize, colour => c_int, 0 => c_int, &raw mut made => *mut usize));
                made
            } else {
                let mut made: c_int = 0;
                call!(self, c"MPI_Comm_split"(world as c_int => c_int, colour => c_int, 0 => c_int, &raw mut made => *mut c_int));
                // Sign-extended, as in C.
                made as usize
            };
            // SAFETY: the communicator is never freed.
            unsafe { RawCommunicator::new(handle) }
        }

        /// Sends a number to the next rank, and returns the one from the previous rank.
        pub(crate) fn pass_on(&self, number: i32, tag: i32) -> i32 {
            let (rank, size) = self.place();
            let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
            let (world, from, mut into, mut status) = (self.world_handle(), number, 0, [0u64; 8]);
            let (from, to, status) = (&raw const from, &raw mut into, (&raw mut status).cast::<c_void>());
            if self.abi != Abi::Mpich {
                let kind = match self.abi {
                    Abi::Standard => 0x209,
                    _ => self.find(c"ompi_mpi_int").expose_provenance(),
                };
                call!(self, c"MPI_Sendrecv"(
                    from => *const c_int, 1 => c_int, kind => usize, next => c_int, tag => c_int,
                    to => *mut c_int, 1 => c_int, kind => usize, last => c_int, tag => c_int,
                    world => usize, status => *mut c_void
                ));
            } else {
                const INT: c_int = 0x4c00_0405;
                call!(self, c"MPI_Sendrecv"(
                    from => *const c_int, 1 => c_int, INT => c_int, next => c_int, tag => c_int,
                    to => *mut c_int, 1 => c_int, INT => c_int, last => c_int, tag => c_int,
                    world as c_int => c_int, status => *mut c_void
                ));
            }
            into
        }

        pub(crate) fn barrier(&self) {
            let world = self.world_handle();
            if self.abi != Abi::Mpich {
                call!(self, c"MPI_Barrier"(world => usize));
            } else {
                call!(self, c"MPI_Barrier"(world as c_int => c_int));
            }
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            call!(self, c"MPI_Finalize"());
        }
    }
}
