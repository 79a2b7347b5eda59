//! PDBP and CUDA: memory of devices as the ends of streams.
//!
//! A program hands a slice of device memory to a [flow] and goes on; blocks that the transport sends are what the device
//! copies to and from, so that the data is copied once to leave the device and once to enter the other:
//!
//! ```
//! use std::{num::NonZeroUsize, rc::Rc, time::Duration};
//! use pdbp_cuda::device::{Clock, CopyEngine, Cuda, Simulated};
//! use pdbp_cuda::{Buffer, flow::Copier};
//!
//! // Where there is no device it says why, and what to do.
//! match Cuda::open(0) {
//!     Ok(device) => println!("{:?}", device.info()?),
//!     Err(e) => println!("skipped: {e}"),
//! }
//!
//! // Everything else is the same with a device that is simulated.
//! let engine = CopyEngine { bytes_per_second: 25_000_000_000, latency: Duration::from_micros(2) };
//! let device = Simulated::new(&Clock::new(), [engine; 2]);
//! let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(3).unwrap()));
//! let buffer = Buffer::new(&device, 1 << 20)?;
//! # let _ = (copier, buffer);
//! # Ok::<(), pdbp_cuda::device::DeviceError>(())
//! ```
//!
//! # The map
//! * [`device`]: what copies need of a device; [`Cuda`](device::Cuda), and one in virtual time; what work under way
//!   [has](device::InUse) until the device is done with it.
//! * [`Buffer`] and [`Slice`]: device memory that nobody frees or writes under a pending copy, nor while a transport writes it.
//! * [`flow`]: the copies of any length of data, and of many small messages, several blocks under way at a time.
//! * [`kernel`]: programs of the device.
//! * [`PinnedMemory`] and [`Registered`]: blocks that devices copy from and to without the driver's detour through memory of
//!   its own.
//!
//! # Who knows whom
//! This is a backend and knows `pdbp-core` only: a flow takes blocks from an [`Outlet`](flow::Outlet) and an
//! [`Inlet`](flow::Inlet), whoever has them. The parts of `pdbp` are these, behind its feature `cuda`, as it knows the backend of
//! MPI behind `mpi`. The other way round, with an extension of its parts in this crate, `pdbp` could not offer
//! pinned memory as a setting, and a stream would have to show the world how it opens blocks ahead.
//!
//! # Without a device
//! The crate builds with neither toolkit nor driver. A missing or old driver, and none or too few devices, are values of
//! [`DeviceError`](device::DeviceError). Tests that need a device say that they were skipped, and why; with
//! `PDBP_REQUIRE_GPU=1` in the environment they fail instead.
//!
//! Tests run in three ways where there is none: the flows on simulated devices in virtual time, with faults at each copy and
//! an eye on memory that is touched too early; calls of the driver and kernels on a library that stands in for it (`stand-in`), which
//! runs the kernels' sources on the host, does what is asked of a stream as late as can be, reports errors of something else before
//! each wait, and ends a program that gets memory of a copy back early; and each function of the driver made to fail in turn. All tests that
//! `ci/gpu-programs` collects have passed on an H200 (driver 580, CUDA 13.0); `compute-sanitizer` found no error in those of this crate (memcheck; racecheck of the kernels);
//! figures are in `benches/figures/gpu.md`.

pub mod device;
pub mod flow;
pub mod kernel;

mod buffer;
mod memory;

pub use buffer::{Awaited, Buffer, RecvBuffer, SendBuffer, Slice};
pub use memory::{PinnedMemory, Registered};
