//! The peers, one file each, and the table that names them.
//!
//! To add one: implement [`Fabric`](crate::fabric::Fabric) and [`Endpoint`](crate::fabric::Endpoint) in a separate file, add a variant to [`Peer`]
//! and an arm to [`Peer::run`]; the tests below then cover it.

mod bbqueue;
mod boxed;
mod crossbeam;
mod flume;
mod kanal;
mod limit;
mod pdbp;
mod pdbp_core;
mod rtrb;
mod std_mpsc;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use self::bbqueue::{BbEndpoint, BbQueue};
pub use self::boxed::{Boxed, BoxedEndpoint, Channel, Packet};
pub use self::crossbeam::Crossbeam;
pub use self::flume::Flume;
pub use self::kanal::Kanal;
pub use self::limit::Limit;
pub use self::pdbp::{Divide, Inline, Pdbp, PdbpEndpoint, Settings, Shared, Threaded};
pub use self::pdbp_core::{Allocation, CoreEndpoint, Divided, PdbpCore, Setup, Sparse, Usual};
pub use self::rtrb::{RingEndpoint, Rtrb, RtrbGathering};
pub use self::std_mpsc::StdMpsc;
use crate::exchange;
use crate::scenario::{Pattern, Scenario};

/// Something that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// PDBP as users get it, with default settings; the node's thread makes progress.
    Pdbp,
    /// The same, with a progress thread per node.
    PdbpThread,
    /// The endpoint of PDBP over its in-process transport, polled by the node.
    PdbpCore,
    /// The endpoint with little memory and the adaptive policy; see `peers/pdbp_core.rs`.
    Adaptive,
    /// As much memory, divided once and for all.
    Fixed,
    /// Twice as much, divided.
    Fixed2,
    /// Four times as much, divided.
    Fixed4,
    /// PDBP with little memory and the adaptive policy; see `peers/pdbp.rs`.
    RunAdaptive,
    /// As much memory, divided once and for all.
    RunFixed,
    /// Twice as much, divided.
    RunFixed2,
    /// Four times as much, divided.
    RunFixed4,
    /// `crossbeam-channel`, boxed packets.
    Crossbeam,
    /// `flume`, boxed packets.
    Flume,
    /// `kanal`, boxed packets.
    Kanal,
    /// `std::sync::mpsc`, boxed packets.
    Std,
    /// Byte rings over `rtrb`, every packet published by itself.
    Rtrb,
    /// Byte rings over `rtrb`, several packets published together.
    RtrbGathering,
    /// Byte rings of `bbqueue`.
    BbQueue,
    /// One copy of every packet, no communication.
    Memcpy,
    /// One copy and one read of every packet, no communication.
    MemcpyRead,
}

/// What sort of peer: ratios are taken against the best of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PDBP.
    Pdbp,
    /// PDBP with one of the allocations of the skew experiment.
    Allocation,
    /// A channel crate.
    Channel,
    /// A byte ring per pair of nodes.
    Ring,
    /// No peer but a limit.
    Limit,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::Pdbp,
        Self::PdbpThread,
        Self::PdbpCore,
        Self::Crossbeam,
        Self::Flume,
        Self::Kanal,
        Self::Std,
        Self::Rtrb,
        Self::RtrbGathering,
        Self::BbQueue,
        Self::Memcpy,
        Self::MemcpyRead,
        Self::RunAdaptive,
        Self::RunFixed,
        Self::RunFixed2,
        Self::RunFixed4,
        Self::Adaptive,
        Self::Fixed,
        Self::Fixed2,
        Self::Fixed4,
    ];

    /// The default peers, in the order of the columns: for skewed traffic the allocations of PDBP, otherwise PDBP, its rivals and the limits.
    pub fn usual(pattern: Pattern) -> Vec<Self> {
        let skewed = pattern == Pattern::Skewed;
        Self::ALL.into_iter().filter(|peer| (peer.kind() == Kind::Allocation) == skewed).collect()
    }

    /// The name on the command line and above the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pdbp => "pdbp",
            Self::PdbpThread => "pdbp-thread",
            Self::PdbpCore => "pdbp-core",
            Self::RunAdaptive => "adaptive",
            Self::RunFixed => "fixed",
            Self::RunFixed2 => "fixed-2x",
            Self::RunFixed4 => "fixed-4x",
            Self::Adaptive => "core-adapt",
            Self::Fixed => "core-fixed",
            Self::Fixed2 => "core-2x",
            Self::Fixed4 => "core-4x",
            Self::Crossbeam => "crossbeam",
            Self::Flume => "flume",
            Self::Kanal => "kanal",
            Self::Std => "std",
            Self::Rtrb => "rtrb",
            Self::RtrbGathering => "rtrb-gather",
            Self::BbQueue => "bbqueue",
            Self::Memcpy => "memcpy",
            Self::MemcpyRead => "memcpy+read",
        }
    }

    /// What sort of peer it is.
    pub fn kind(self) -> Kind {
        match self {
            Self::Pdbp | Self::PdbpThread | Self::PdbpCore => Kind::Pdbp,
            Self::RunAdaptive | Self::RunFixed | Self::RunFixed2 | Self::RunFixed4 => Kind::Allocation,
            Self::Adaptive | Self::Fixed | Self::Fixed2 | Self::Fixed4 => Kind::Allocation,
            Self::Crossbeam | Self::Flume | Self::Kanal | Self::Std => Kind::Channel,
            Self::Rtrb | Self::RtrbGathering | Self::BbQueue => Kind::Ring,
            Self::Memcpy | Self::MemcpyRead => Kind::Limit,
        }
    }

    /// Runs the scenario once with `count` units of traffic, after `warm_up` units that are not timed.
    ///
    /// # Panics
    ///
    /// When the peer loses, repeats or changes anything, or hangs.
    pub fn run(self, scenario: &Scenario, warm_up: u64, count: u64) -> Duration {
        let name = self.name();
        match self {
            Self::Pdbp => exchange::run::<Pdbp<Inline>>(name, scenario, warm_up, count),
            Self::PdbpThread => exchange::run::<Pdbp<Threaded>>(name, scenario, warm_up, count),
            Self::RunAdaptive => exchange::run::<Pdbp<Shared<1>>>(name, scenario, warm_up, count),
            Self::RunFixed => exchange::run::<Pdbp<Divide<1>>>(name, scenario, warm_up, count),
            Self::RunFixed2 => exchange::run::<Pdbp<Divide<2>>>(name, scenario, warm_up, count),
            Self::RunFixed4 => exchange::run::<Pdbp<Divide<4>>>(name, scenario, warm_up, count),
            Self::PdbpCore => exchange::run::<PdbpCore<Usual>>(name, scenario, warm_up, count),
            Self::Adaptive => exchange::run::<PdbpCore<Sparse>>(name, scenario, warm_up, count),
            Self::Fixed => exchange::run::<PdbpCore<Divided<1>>>(name, scenario, warm_up, count),
            Self::Fixed2 => exchange::run::<PdbpCore<Divided<2>>>(name, scenario, warm_up, count),
            Self::Fixed4 => exchange::run::<PdbpCore<Divided<4>>>(name, scenario, warm_up, count),
            Self::Crossbeam => exchange::run::<Boxed<Crossbeam>>(name, scenario, warm_up, count),
            Self::Flume => exchange::run::<Boxed<Flume>>(name, scenario, warm_up, count),
            Self::Kanal => exchange::run::<Boxed<Kanal>>(name, scenario, warm_up, count),
            Self::Std => exchange::run::<Boxed<StdMpsc>>(name, scenario, warm_up, count),
            Self::Rtrb => exchange::run::<Rtrb>(name, scenario, warm_up, count),
            Self::RtrbGathering => exchange::run::<RtrbGathering>(name, scenario, warm_up, count),
            Self::BbQueue => exchange::run::<BbQueue>(name, scenario, warm_up, count),
            Self::Memcpy => limit::run(Limit::Copy, scenario, count),
            Self::MemcpyRead => limit::run(Limit::CopyAndRead, scenario, count),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|peer| peer.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|peer| peer.name()).collect();
            format!("unknown peer `{text}`: use {}", names.join(", "))
        })
    }
}

/// How a ring's sender makes packets visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Publishing {
    /// Every packet by itself.
    Each,
    /// Several packets together.
    Gathered,
}

/// Bytes of a ring between two nodes, with room for at least 4 packets: 512 KiB, of 64 KiB to 1 MiB the best or close to it from 256 B on, and 2 to
/// 3 times better there than 64 KiB. A receiver close behind its sender takes lines that are still being written; a longer ring keeps the two
/// apart. Only smaller packets published one by one between two nodes do better with 64 KiB (3.1 instead of 1.7 GB/s at 64 B).
fn ring_bytes(scenario: &Scenario, publishing: Publishing) -> usize {
    let small = publishing == Publishing::Each && scenario.packet <= 64 && scenario.nodes == 2;
    let best = if small { 64 * 1024 } else { 512 * 1024 };
    scenario.whole_packets(scenario.tuning.ring_bytes.unwrap_or(best), 4)
}
