//! MPIRIO: the library that programs on the fabric call.
//!
//! ```
//! use pdbp_core::collective::Op::Sum;
//! use pdbp_sim::rapidio::{Timing, Topology, mpirio};
//!
//! // Four boards in a ring; the closure runs once for each of the 16 processes.
//! let report = mpirio::run(&Topology::boards(4).ring(), Timing::PAPER, async |mut world| {
//!     let mut gradient = vec![world.rank() as f32; 100];
//!     world.all_reduce(&mut gradient, Sum).await.unwrap(); // combined in the switches
//!     assert_eq!(gradient, [120.0; 100]);
//!
//!     let mut board = world.local(); // those of this board
//!     let mut place = if board.rank() == 0 { [world.rank() as u32] } else { [0] };
//!     board.broadcast(0, &mut place).await.unwrap();
//!     assert_eq!(place[0] as usize, world.rank() / 4 * 4);
//!
//!     world.compute(1000).await;
//!     world.barrier().await.unwrap();
//!     world.time()
//! });
//! let report = report.unwrap();
//! assert!(report.results.iter().all(|cycles| *cycles > 1000));
//! println!("{} packets, {:.2} a cycle", report.traffic, report.flow());
//! ```
//!
//! | MPIRIO | here |
//! |---|---|
//! | `MPIRIO_Init`, `MPIRIO_Finalize` | [`run`], which ends when all processes have |
//! | `MPIRIO_Comm_rank`, `MPIRIO_Comm_size` | [`Comm::rank`], [`Comm::size`] |
//! | `MPIRIO_COMM_WORLD`, `MPIRIO_COMM_LOCAL` | what a process gets, and its [`Comm::local`] |
//! | `MPIRIO_Send`, `MPIRIO_Recv`, whether they have ended | [`Comm::send`], [`Comm::recv`], [`Comm::send_recv`]; [`Comm::start_send`], [`Comm::start_recv`] with [`Started::poll`] |
//! | `MPIRIO_Bcast`, `_Gather`, `_Scatter`, `_Reduce`, `_Barrier` | [`Comm::broadcast`], [`Comm::gather`], [`Comm::scatter`], [`Comm::reduce`], [`Comm::barrier`]; also [`Comm::all_reduce`]; [`Comm::start`] with any of them |
//! | `MPIRIO_time`, `MPIRIO_traffic`, `sys_flow` | [`Comm::time`], [`Comm::traffic`], [`Report::flow`] |
//!
//! In addition, [`Comm::of`] makes groups, and [`Comm::by_messages`] performs a call the way software does without such switches.
//!
//! Ranks in the group of all are ids on the fabric, along its tree; the host is rank 0. **Processes must make the same calls on a
//! group in the same order.** Those that do not get [`Error::Mismatch`](super::Error::Mismatch), or [`RunError::Stuck`] lists which
//! processes wait and for what.

mod comm;
mod messages;
mod run;
mod value;

pub use comm::{Comm, Started};
pub use run::{Report, RunError, run};
pub use value::Number;
