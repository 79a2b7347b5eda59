//! What can go wrong.

use std::error::Error;
use std::fmt;

/// An MPI call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiError {
    /// The function.
    pub call: &'static str,
    /// Its error code.
    pub code: i32,
    /// What the MPI library says of the code.
    pub text: String,
}

impl fmt::Display for MpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with code {}: {}", self.call, self.code, self.text)
    }
}

impl Error for MpiError {}

/// Why a process could not join a domain over MPI. All processes of the communicator fail together, each with its own reason.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// MPI was finalised before.
    Finalised,
    /// MPI was not initialised, and this process may not do it.
    NotInitialised,
    /// MPI gives less thread support than is needed.
    Threads {
        /// What there is.
        have: Threads,
        /// What is needed.
        need: Threads,
        /// Whether this library initialised MPI, or the program did.
        ours: bool,
    },
    /// More processes than a domain can have nodes.
    Nodes(i32),
    /// The processes do not agree on a value that must be the same everywhere.
    Disagree {
        /// What.
        what: &'static str,
        /// The smallest value of all processes.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// There is not as much memory for blocks.
    Memory {
        /// Bytes wanted by this process.
        bytes: usize,
        /// Whether they were to be shared with the other processes of the host.
        shared: bool,
        /// What MPI says.
        cause: Option<MpiError>,
    },
    /// Another process could not join.
    Other,
    /// An MPI call failed.
    Mpi(MpiError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finalised => {
                f.write_str("MPI was finalised already; start the cluster before MPI_Finalize")
            }
            Self::NotInitialised => f.write_str(
                "MPI is not initialised; call MPI_Init_thread before, or let PDBP start on all processes",
            ),
            Self::Threads { have, need, ours: false } => write!(
                f,
                "the program initialised MPI with {have}, and {need} is needed: call MPI_Init_thread with {need}"
            ),
            Self::Threads { have, need, ours: true } => {
                write!(
                    f,
                    "this MPI library supports {have} only, and {need} is needed: use another build of it"
                )
            }
            Self::Nodes(n) => {
                write!(f, "{n} processes are more than the 65534 nodes that a cluster can have")
            }
            Self::Disagree { what, least, most } => write!(
                f,
                "the processes do not agree on {what}: it is {least} in one and {most} in another; give all the same \
                 settings"
            ),
            Self::Memory { bytes, shared, cause } => {
                write!(f, "cannot allocate {bytes} bytes of block memory")?;
                if *shared {
                    f.write_str(
                        " shared within the host (look at the free space of /dev/shm; less memory per \
                                 node helps, or sharing can be turned off)",
                    )?;
                }
                cause.iter().try_for_each(|cause| write!(f, ": {cause}"))
            }
            Self::Other => {
                f.write_str("another process of the communicator could not start; its message says why")
            }
            Self::Mpi(e) => e.fmt(f),
        }
    }
}

impl Error for StartError {}

impl From<MpiError> for StartError {
    fn from(e: MpiError) -> Self {
        Self::Mpi(e)
    }
}

/// What MPI allows several threads to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Threads {
    /// There is one thread.
    Single,
    /// Only the thread that initialised MPI calls it.
    Funnelled,
    /// Any thread calls it, one at a time. Enough for this library.
    Serialised,
    /// Any thread calls it at any time. Needed when the program calls MPI while a progress thread runs.
    Multiple,
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "MPI_THREAD_SINGLE",
            Self::Funnelled => "MPI_THREAD_FUNNELED",
            Self::Serialised => "MPI_THREAD_SERIALIZED",
            Self::Multiple => "MPI_THREAD_MULTIPLE",
        })
    }
}
