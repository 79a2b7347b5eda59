//! Messages and streams between the parts of a cluster, which find each other by name.
//!
//! ```
//! use pdbp::{Cluster, PartKind};
//! use std::time::Duration;
//!
//! let cluster = Cluster::local(2)?;
//! cluster.run(|node| {
//!     let part = node.register("worker", PartKind::Cpu).unwrap();
//!     let peer = if node.name() == "node0" { "worker@node1" } else { "worker@node0" };
//!     let peer = part.find(peer, Duration::from_secs(5)).unwrap();
//!     part.send(peer, b"hello").unwrap();
//!     let message = part.recv().unwrap();
//!     assert_eq!(*message, *b"hello");
//!     part.send_value(message.source(), &42u64).unwrap();
//!     assert_eq!(part.recv().unwrap().value(), Some(42u64));
//! });
//! # Ok::<(), pdbp::StartError>(())
//! ```
//!
//! # The map
//! * [`Cluster`] and [`Builder`] start the nodes; [`config`] lists the settings and where they are read from.
//! * [`Node`] is one node of this process: it registers parts, looks up names, and has `barrier`, `quiesce` and `stats`.
//! * [`collective`] has groups of parts that make the same calls together: broadcast, reduce, gather and so on.
//! * With the feature `metrics`, the module `monitor` gives the figures of a running cluster: from any node by `Node::observe`, over
//!   HTTP, and in `pdbp top`.
//! * [`Part`] sends and receives messages ([`Part::send`], [`Part::recv`]), plain values and streams ([`Part::open_stream`],
//!   [`Part::accept_stream`]; [`Part::streams`] reads all of them together). It also sends to sets of destinations.
//!   * [`Part::sender`] has the rest: timeouts, commands, trains of equal messages ([`Part::try_recv_batch`] reads them), and
//!     [loans](Sender::loan) filled in place.
//!   * A part stays on its thread unless it is [registered](Node::register_shared) to be shared. [`Node::wait_any`] waits for several
//!     parts, and [`Node::interrupt`] ends calls that wait.
//!   * If all parts send and receive at the same time, [`Part::advance`] ends the loop everywhere (the examples `histogram` and
//!     `gather`), and [`Part::quiesce`] and [`Part::send_or`] take in what arrives meanwhile.
//!   * In a task, a part waits with [`Part::recv_async`], [`Part::send_async`] and the corresponding `poll_` calls, on any executor.
//!     [`WakeFd`] is for loops over descriptors, and the feature `futures-io` gives streams the traits of that crate.
//!   * With the feature `cuda`, a part also sends from and receives into the memory of CUDA devices: whole messages of any length
//!     (`Part::send_device`, `Part::recv_into_device`), many small ones (`Part::send_device_each`, `Part::recv_each_into_device`), and
//!     streams (`StreamWriter::write_device`, `StreamReader::read_device`).
//!
//! The calls of the programming interface in the documents (CPI, S1) correspond to: `prcsReg` = [`Node::register`], `prcsApplyPipe` =
//! the same or [`Part::apply_pipe`], `sendData` = [`Part::send`], `recvData` = [`Part::recv`], `prcsReleasePipe` =
//! [`Part::release_pipe`] or drop, `prcsFree` = drop.
//!
//! # Underneath
//! Each node runs one engine, from [`pdbp_core`]; the in-process transport is [`pdbp_local`]. A part packs its messages into one open
//! block per destination node without taking any lock of the node, exchanges a full block for an empty one under the engine's lock, and
//! reads what arrives in place.
#![deny(unsafe_code)]

pub mod collective;
pub mod config;

mod cluster;
#[cfg(feature = "desk")]
mod desk;
#[cfg(not(feature = "desk"))]
#[path = "desk/absent.rs"]
mod desk;
mod error;
#[cfg(feature = "rapidio")]
mod fabric;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "net")]
mod grid;
#[cfg(any(feature = "desk", feature = "metrics"))]
mod http;
mod launch;
#[cfg(feature = "metrics")]
pub mod monitor;
#[cfg(not(feature = "metrics"))]
#[path = "monitor/absent.rs"]
mod monitor;
#[cfg(feature = "net")]
mod net;
mod node;
#[cfg(feature = "metrics")]
mod pages;
mod part;
mod served;
mod sync;
mod trace;
#[cfg(unix)]
mod wake_fd;

/// The traits of plain values, for [`Part::send_value`], [`Message::value`] and [groups](collective), in the version that this crate uses. With
/// the feature `derive`, a program can derive them without depending on `bytemuck` itself:
///
/// ```
/// # #[cfg(feature = "derive")]
/// # fn main() {
/// use pdbp::bytemuck;
///
/// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
/// #[bytemuck(crate = "pdbp::bytemuck")]
/// #[repr(C)]
/// struct Sample {
///     at: u64,
///     value: f64,
/// }
///
/// assert_eq!(bytemuck::bytes_of(&Sample { at: 1, value: 0.5 }).len(), 16);
/// # }
/// # #[cfg(not(feature = "derive"))]
/// # fn main() {}
/// ```
pub use bytemuck;
pub use cluster::Cluster;
pub use config::{
    Builder, Codec, ConfigError, Framing, MonitorKind, MpiLibrary, PinMemory, PolicyKind, Progress, Role,
    Scheme, Settings, Tls, TransportKind, Trunk,
};
#[cfg(feature = "desk")]
pub use desk::{Desk, DeskStats};
pub use error::{
    LookupError, NoSuchNode, RecvError, RegisterError, SendError, SettingsDiffer, StartError, Timeout,
    WaitError,
};
#[cfg(feature = "net")]
pub use grid::RETURNED;
pub use launch::Launch;
pub use node::{Backend, BackendError, Memory, Node, NodeStats, Polled, Watch, interruptible};
#[cfg(feature = "metrics")]
pub use pages::{Page, Pages};
#[doc(inline)]
pub use part::Target;
pub use part::{
    Batch, HoldsPart, Interest, Loan, Local, Message, Messages, Part, Piece, Ready, Returned, Segment,
    Sender, Share, Shared, StreamId, StreamReader, StreamWriter, Streams,
};
#[cfg(feature = "cuda")]
pub use part::{
    DeviceMessage, DeviceRead, DeviceRecv, DeviceRecvEach, DeviceSend, DeviceSendEach, DeviceWrite,
};
pub use pdbp_core::engine::{Checksum, Counters, PipeUse, RowStats};
pub use pdbp_core::id::{NodeId, PipeId, StreamNo};
pub use pdbp_core::pipe::PipeError;
pub use pdbp_core::policy::Threshold;
pub use pdbp_core::tables::PartKind;
pub use pdbp_core::umb::{HeapMemory, Space};
pub use pdbp_core::{Bell, Event, Routing};
/// Devices, their memory, and the flows from and to it.
#[cfg(feature = "cuda")]
pub use pdbp_cuda as cuda;
pub use pdbp_local::Doorbell;
pub use sync::prepare;
#[cfg(unix)]
pub use wake_fd::WakeFd;

/// Runs the programs in the READMEs as tests, and compiles the one for devices.
#[cfg(all(doctest, feature = "cudarc"))]
mod readmes {
    #[doc = include_str!("../../README.md")]
    struct OfAll;
    #[doc = include_str!("../README.md")]
    struct Runtime;
    #[doc = include_str!("../../pdbp-cuda/README.md")]
    struct Devices;
}
