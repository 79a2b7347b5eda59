//! PDBP and CUDA: device memory at either end of a stream.
//!
//! A program hands a slice of device memory to a [flow] and continues. The device copies to and from the very blocks that the transport sends,
//! so the data is copied once to leave the device and once to enter the other:
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
//! * [`device`]: what copies require of a device; [`Cuda`](device::Cuda), and a device in virtual time; what pending work [holds](device::InUse)
//!   until the device is done with it.
//! * [`Buffer`] and [`Slice`]: device memory that is neither freed nor written under a pending copy, nor while a transport writes it.
//! * [`flow`]: copies of data of any length, and of many small messages, with several blocks in flight at a time.
//! * [`kernel`]: programs of the device.
//! * [`PinnedMemory`] and [`Registered`]: blocks that devices copy from and to without the driver's detour through memory of its own.
//!
//! # Who knows whom
//! This is a backend and knows only `pdbp-core`: a flow takes blocks from an [`Outlet`](flow::Outlet) and an [`Inlet`](flow::Inlet), whoever
//! implements them. The parts of `pdbp` do, behind its feature `cuda`, just as `pdbp` knows the backend of MPI behind `mpi`. If this crate
//! extended `pdbp`'s parts instead, `pdbp` could not offer pinned memory as a setting, and a stream would have to make public how it opens
//! blocks ahead.
//!
//! # Without a device
//! The crate builds with neither toolkit nor driver. A missing or old driver, and no or too few devices, are reported as values of
//! [`DeviceError`](device::DeviceError). Tests that need a device report that they were skipped, and why; with `PDBP_REQUIRE_GPU=1` in the
//! environment they fail instead.
//!
//! Without a device, tests run in three ways: the flows on simulated devices in virtual time, with faults injected at each copy and checks for
//! memory that is touched too early; calls of the driver and kernels on a library that stands in for the driver (`stand-in`), which runs the
//! kernels' sources on the host, carries out work on a stream as late as possible, reports unrelated errors before each wait, and ends a program
//! that gets a copy's memory back early; and each driver function made to fail in turn. All tests that `ci/gpu-programs` collects have passed on
//! an H200 (driver 580, CUDA 13.0); `compute-sanitizer` found no error in those of this crate (memcheck; racecheck of the kernels); figures are
//! in `benches/figures/gpu.md`.

pub mod device;
pub mod flow;
pub mod kernel;

mod buffer;
mod memory;

pub use buffer::{Awaited, Buffer, RecvBuffer, SendBuffer, Slice};
pub use memory::{PinnedMemory, Registered};
