//! PDBP over MPI.
mod alive;
mod bell;
mod error;
mod far;
mod near;
mod process;
mod result;
mod ring;
mod start;
mod sync;
mod transport;
mod window;

pub use bell::WindowBell;
pub use error::{MpiError, StartError, Threads};
pub use start::{Hosts, Launch, Options};
pub use transport::Mpi;
pub use window::MpiMemory;
