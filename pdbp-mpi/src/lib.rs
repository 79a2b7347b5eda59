//! PDBP over MPI.
mod alias;
mod alive;
mod bell;
mod error;
mod far;
mod futex;
mod near;
mod process;
mod result;
mod ring;
mod start;
mod sync;
mod transport;
mod window;
mod words;

pub use mpi::topology::Communicator;

pub use bell::WindowBell;
pub use error::{MpiError, StartError, Threads};
pub use process::is_initialised_by_program;
pub use start::{Hosts, Options};
pub use transport::Mpi;
pub use window::MpiMemory;
