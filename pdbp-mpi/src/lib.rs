//! PDBP over MPI: one node per process of a job, on Open MPI or MPICH.
//!
//! Most programs do not call this crate directly: `pdbp::Cluster`, with the feature `mpi`, does so when a launcher (`mpirun`, `srun`) has
//! started the process. Programs that drive the protocol engine themselves get a transport and the memory for its blocks:
//!
//! ```no_run
//! use pdbp_core::Transport;
//! use pdbp_core::cdu::BLOCK_HEADER;
//! use pdbp_mpi::{Mpi, Options};
//!
//! // Every process of the job runs this.
//! let options = Options::new(16 << 20, BLOCK_HEADER + (128 << 10));
//! let (transport, memory) = Mpi::start(&options)?;
//! println!("node {} of {}", transport.capabilities().node, transport.capabilities().nodes);
//! # drop(memory);
//! # Ok::<(), pdbp_mpi::StartError>(())
//! ```
//!
//! # Two kinds of links
//! ```text
//!      host a                                          host b
//!  ┌───────────────── one window ────────────────┐
//!  │ rank 0: rings, blocks  rank 1: rings, blocks │     rank 2: blocks (alone: memory of its own)
//!  └──────▲──────────────────────▲────────────────┘       ▲
//!         └── places of blocks ──┘                        │
//!             through rings           MPI_Isend from, MPI_Irecv into blocks
//! ```
//! * **Within a host** (`shared_memory`): the blocks of all processes lie in one MPI-3 shared-memory window. A sealed block stays in place; its
//!   location goes through a lock-free ring (`ring`) to the peer, which reads the block there and returns it through another ring. This takes no
//!   copy, no system call, no MPI call and no lock. A futex in the window (`bell`) wakes a sleeping peer. A block of up to 368 bytes, which
//!   holds a message of 288, travels in the ring itself, so its reader waits for one cache line of another core instead of two.
//! * **Between hosts** (`remote`): MPI sends and receives blocks straight from and into the pool. As many receives are posted as the peer's row
//!   has space for, and one `MPI_Testsome` per poll collects all that are complete.
//!
//! The engine adapts to [`arrival`](pdbp_core::Transport::arrival) link by link, and fills blocks up to
//! [`best_block`](pdbp_core::Transport::best_block).
//!
//! [`Direct`] lets MPI transfer memory outside the blocks, such as device memory, if both ends have agreed to the transfer and the MPI is
//! CUDA-aware.
//!
//! # What it takes care of
//! * **Initialising MPI** (`process`). Unless the program has already done so, this library initialises MPI with `MPI_THREAD_SERIALIZED`, the
//!   lowest level that lets any thread poll, and finalises it when the process exits. A process-wide lock serialises the calls. Every call needs
//!   a *gate*, which is refused once MPI is finalised.
//! * **Failures.** A process that exits with a status other than 0 (`exit(1)`, a panic in `main`, an exception in Python) does not finalise MPI,
//!   since the others may never do so, and it would wait for them. The launcher then ends the job; if told not to, others that outlive the failed
//!   process may wait for it in `MPI_Finalize`. Without the C library of GNU on Linux the status is unknown, and MPI is always finalised.
//! * **Communicators.** All traffic runs on duplicates with `MPI_ERRORS_RETURN`: a failed call returns an error and ends its link.
//! * **The end of a link.** A transport that is dropped announces this in the window, and to other hosts by a *goodbye* with the number of
//!   blocks it has sent. Peers take those blocks, get their own back and report the node failed. The transport lingers until its peers have
//!   taken what it sent and it has received what they sent, at most for [`Options::linger`]. Blocks that are still being read in its process are
//!   not returned until that process has ended.
//! * **Deaths.** The death of a process on the same host is noticed within some 20 ms by a node that is polled all the time, and within half a
//!   second by one whose threads sleep, through a descriptor of the operating system. A process in another PID namespace, or on a system
//!   without such descriptors, is not watched: its links hang until leases, if set, or the launcher end them. The death of a process on
//!   another *host* is noticed through a TCP connection between the two processes (`lifeline`, on Linux): the link ends once the connection
//!   has closed and nothing sent earlier has arrived for a second. If no connection can be made (a firewall between hosts, no IPv4), or the
//!   ranks are more than 128 apart, a death is noticed only when MPI reports an error; some MPI libraries end the job instead, or never report
//!   one.
//! * **Memory in use by MPI.** The type system keeps a block that is in a request from being used elsewhere. When a domain's transport, engine
//!   and readers are gone, its remains are freed at the next collective call, so no process waits for a peer; requests that cannot be completed
//!   keep their memory.
//! * **MPI's mapping of the window** ends with `MPI_Finalize`. This library uses a second mapping, which stays as long as it is needed; if none
//!   can be made, processes share no memory.
//! * **Data that peers write** into the window (numbers, states, locations) is checked when it is read. Bad data can end a link, and nothing
//!   else.
//!
//! # Trust
//! **Processes on one host trust each other as the threads of one process do.** They belong to one job of one user, and each can write to the
//! whole window at any time. A received block is lent as `&[u8]`, which Rust assumes is not written to in the meantime. This library honours
//! that in every process, but cannot enforce it in another one. If the processes of a host do not trust each other, set [`Hosts::Apart`]: peers
//! are then reached by MPI messages only.
//!
//! # What it costs
//! Per message of `pdbp`, both ends together, 2 ranks on two cores, Open MPI 4.1.4 (`perf`, `strace -c`, callgrind;
//! `benches/figures/shared-memory.md` has the tables and their commands):
//!
//! | | within a host | between hosts (TCP) |
//! |---|---|---|
//! | our copies | 1, into the block; 1 more for successive messages, past the caches, if that is faster, and for a block of up to 368 bytes | 1, or 0 with a loan or stream |
//! | copies by others | 0 | the sockets', 2 |
//! | system calls | 0; one wake-up when the reader sleeps | 1.75 `writev` and 5.7 `readv` per block of 60 KiB |
//! | instructions, a 64-byte message among others to the same part | 71, of which 12 past the caches | 59, plus MPI's per block |
//!
//! The bottleneck within a host: up to 64 bytes, the instructions; above, moving the bytes from one core's cache to the other's. For a lone
//! message, no single step: packing, lock, credit, row, ring and their reverse take a tenth to a fifth each. Between hosts: the link, from 64
//! bytes on.
//!
//! # Which MPI
//! None is needed to build this crate. The library is loaded when a program asks for it, and the differences between MPIs are built in
//! (`library`): one program runs under Open MPI (3 and newer), under MPICH (3.1 and newer) with its relatives Intel MPI, MVAPICH and Cray MPICH,
//! under any MPI that has the ABI of MPI 5 (`libmpi_abi.so`; tested with that of MPICH 5.0.2), and without any. [`Library`] describes how it is
//! chosen; the setting is `PDBP_MPI`.
//!
//! With the feature `mpi-linked` the program is linked with an MPI instead, by the crate `mpi` (rsmpi), and may then pass in that crate's
//! communicators; any MPI for which that crate can be built will do. It needs an MPI compiler and libclang (Debian: `libopenmpi-dev openmpi-bin
//! libclang-dev`, or `libmpich-dev mpich libclang-dev`); `MPICC` names another compiler. Both ways call MPI through the same table, at the cost
//! of one indirect call per function: `pdbp ping`, 8 runs each in turn with a program that called a linked Open MPI directly, on two cores with
//! other work, took 6.30 µs (6.36 directly) for a round trip of 64 bytes over MPI's messages, and 2.36 µs (2.55) in shared memory, medians of
//! the best run.

mod bell;
mod communicator;
mod direct;
mod error;
mod eventcount;
mod futex;
mod library;
mod lifeline;
mod machine;
mod mapping;
mod process;
mod process_watch;
mod remote;
mod result;
mod ring;
mod shared_memory;
mod start;
mod sync;
mod transport;
mod window;

pub use bell::WindowBell;
pub use communicator::{Communicator, RawCommunicator};
pub use direct::{Direct, Question, Transfer};
pub use error::{LibraryError, MpiError, StartError, Threads};
pub use library::{Kind, Launcher, Library, UnknownLibrary, load_library};
pub use process::is_initialised_by_program;
pub use start::{Hosts, Options};
pub use transport::Mpi;
pub use window::MpiMemory;
