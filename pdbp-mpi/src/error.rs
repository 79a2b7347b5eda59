//! The errors of this crate.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use crate::library::{Kind, Launcher, Library};

/// An MPI call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiError {
    /// The function.
    pub call: &'static str,
    /// Its error code.
    pub code: i32,
    /// MPI's text for the code.
    pub text: String,
}

impl fmt::Display for MpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with code {}: {}", self.call, self.code, self.text)
    }
}

impl Error for MpiError {}

/// Why a process could not join a domain over MPI. All processes of the communicator fail together, each with its own reason, once each has a
/// usable MPI: the others wait for one that has none ([`Library`](Self::Library), [`Finalised`](Self::Finalised),
/// [`NotInitialised`](Self::NotInitialised), [`Threads`](Self::Threads)).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// No usable MPI was found.
    Library(LibraryError),
    /// The number is not a communicator handle of the loaded MPI.
    Communicator {
        /// The number.
        bits: usize,
        /// The MPI.
        library: String,
    },
    /// MPI was already finalised.
    Finalised,
    /// MPI was not initialised, and this call does not initialise it.
    NotInitialised,
    /// MPI provides less thread support than needed.
    Threads {
        /// The support that MPI provides.
        have: Threads,
        /// The support needed.
        need: Threads,
        /// Whether this library initialised MPI, or the program did.
        ours: bool,
    },
    /// More processes than a domain can have nodes.
    Nodes(i32),
    /// The processes do not agree on a value that must be the same everywhere.
    Disagree {
        /// The name of the value.
        what: &'static str,
        /// The smallest value of all processes.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// Not enough memory for blocks.
    Memory {
        /// Bytes wanted by this process.
        bytes: usize,
        /// Whether it was to be shared with the other processes of the host.
        shared: bool,
        /// MPI's error.
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
            Self::Library(e) => e.fmt(f),
            Self::Communicator { bits, library } => write!(
                f,
                "{bits:#x} is not a communicator of {library}: was the program compiled for another MPI? Name its library in `mpi` (PDBP_MPI)"
            ),
            Self::Finalised => {
                f.write_str("MPI was finalised already; start the cluster before MPI_Finalize")
            }
            Self::NotInitialised => f.write_str(
                "MPI is not initialised; call MPI_Init_thread before, or let PDBP start on all processes",
            ),
            Self::Threads { have, need, ours: false } => write!(
                f,
                "the program initialised MPI with {have}, but {need} is needed: call MPI_Init_thread with {need}"
            ),
            Self::Threads { have, need, ours: true } => {
                write!(
                    f,
                    "this MPI library supports {have} only, but {need} is needed: use another build of it"
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

impl From<LibraryError> for StartError {
    fn from(e: LibraryError) -> Self {
        Self::Library(e)
    }
}

/// Why no usable MPI was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LibraryError {
    /// None was found.
    NotFound {
        /// The requested library.
        wanted: Library,
        /// What started the process.
        launcher: Option<Launcher>,
        /// Folders searched before those of the system's loader.
        folders: Vec<PathBuf>,
        /// The outcome for each file.
        tried: Vec<String>,
    },
    /// The named file cannot be opened.
    File {
        /// Its path.
        file: String,
        /// The system's message.
        why: String,
    },
    /// The library is not an MPI.
    NoMpi {
        /// The library.
        file: String,
    },
    /// The library is an MPI that cannot be used.
    Unsupported {
        /// The library.
        file: String,
        /// The version that it reports.
        version: String,
        /// The reason.
        why: String,
    },
    /// The library lacks a symbol.
    Incomplete {
        /// The library.
        file: String,
        /// The symbol.
        missing: String,
    },
    /// The process already has another MPI, and cannot have two.
    Second {
        /// The requested library.
        wanted: Library,
        /// The MPI that it has.
        present: String,
    },
    /// The launcher belongs to another MPI.
    Launcher {
        /// The launcher.
        launcher: Launcher,
        /// The MPI.
        library: String,
        /// Its kind.
        kind: Kind,
        /// Whether the program is linked with it.
        is_linked: bool,
    },
    /// The launcher has started several processes, but MPI takes each for a job of its own.
    Ranks {
        /// The launcher.
        launcher: Launcher,
        /// The number of processes that it reports.
        ranks: usize,
        /// The MPI.
        library: String,
    },
    /// The program was built without the feature `mpi-linked`.
    NotLinked,
}

/// The setting that names an MPI.
const NAMED: &str = "`mpi` (PDBP_MPI)";
/// How to install one.
const INSTALL: &str = "(Debian: apt install openmpi-bin, or mpich)";

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { wanted, launcher, folders, tried } => {
                match launcher {
                    Some(launcher) => write!(f, "no MPI library was found for {launcher}")?,
                    None => f.write_str("no MPI library was found")?,
                }
                write!(f, ", `mpi` being \"{wanted}\": {}; looked ", tried.join(", "))?;
                folders.iter().try_for_each(|folder| write!(f, "in {}, ", folder.display()))?;
                write!(
                    f,
                    "where the system's loader does (LD_LIBRARY_PATH, ld.so.conf); install one {INSTALL}, or name its file in {NAMED}"
                )
            }
            Self::File { file, why } => {
                write!(f, "{NAMED} names a library that cannot be loaded: {why}")?;
                if !why.contains(file.as_str()) {
                    write!(f, " ({file})")?;
                }
                f.write_str("; name the libmpi.so of an MPI, or \"auto\"")
            }
            Self::NoMpi { file } => {
                write!(
                    f,
                    "{file} is not an MPI library: MPI_Get_library_version is missing; name the libmpi.so of an MPI in {NAMED}"
                )
            }
            Self::Unsupported { file, version, why } => write!(f, "{file} ({version}) cannot be used: {why}"),
            Self::Incomplete { file, missing } => {
                write!(f, "{file} cannot be used: {missing} is missing; MPI 3.1 is needed")
            }
            Self::Second { wanted, present } => write!(
                f,
                "{NAMED} is \"{wanted}\", but this process has loaded {present}; a process can have only one MPI: leave `mpi` at \"auto\""
            ),
            Self::Launcher { launcher, library, kind, is_linked } => {
                write!(f, "the process was started by {launcher}, but uses {library}")?;
                let with = match kind {
                    Kind::OpenMpi => "mpirun of Open MPI (Debian: mpirun.openmpi)",
                    _ => "mpiexec of MPICH (Debian: mpiexec.mpich)",
                };
                match is_linked {
                    true => write!(
                        f,
                        ", which it is linked with: start it with {with}, or build it without `mpi-linked`"
                    ),
                    false => write!(f, ": start it with {with}, or leave {NAMED} at \"auto\""),
                }
            }
            Self::Ranks { launcher, ranks, library } => write!(
                f,
                "the process was started as one of {ranks} by {launcher}, but {library} reports a single process: they do not belong \
                 together; start it with the launcher of that MPI, or name another library in {NAMED}"
            ),
            Self::NotLinked => write!(
                f,
                "{NAMED} is \"linked\", but this program was built without the feature `mpi-linked`: use \"auto\", or enable that feature"
            ),
        }
    }
}

impl Error for LibraryError {}

/// MPI's levels of thread support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Threads {
    /// The process has one thread.
    Single,
    /// Only the thread that initialised MPI calls it.
    Funnelled,
    /// Any thread calls it, one at a time. Enough for this library.
    Serialised,
    /// Any thread calls it at any time. Needed if the program calls MPI while a progress thread runs.
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
