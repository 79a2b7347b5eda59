//! Messages between the parts other than frames: plain values, told apart by their command numbers.

use bytemuck::{Pod, Zeroable};

/// Command numbers. Score records travel as plain messages, without one.
pub(super) mod command {
    /// Console to decoders: begin the pass whose number follows, a `u32`.
    pub(in crate::pipeline) const START: u16 = 1;
    /// Console to decoders and stewards: the run is over.
    pub(in crate::pipeline) const STOP: u16 = 2;
    /// Decoder to console: a [`Done`](super::Done).
    pub(in crate::pipeline) const DONE: u16 = 3;
    /// Decoder to console: a [`FaultHead`](super::FaultHead) and the reason as text.
    pub(in crate::pipeline) const FAULT: u16 = 4;
    /// Any part to console, its last word: a [`Work`](crate::account::Work).
    pub(in crate::pipeline) const WORK: u16 = 5;
    /// Steward to console: some [`RowSample`](super::RowSample)s.
    pub(in crate::pipeline) const ROWS: u16 = 6;
    /// Any part to console: it cannot go on; the reason as text.
    pub(in crate::pipeline) const FAILED: u16 = 7;
}

/// A decoder has finished its part of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Done {
    pub(super) pass: u32,
    /// Streams taken up.
    pub(super) streams: u32,
    /// Pictures sent to the analyser.
    pub(super) frames: u32,
}

/// A stream gave no picture; the reason follows as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct FaultHead {
    pub(super) pass: u32,
    pub(super) stream: u32,
}

/// Whether a row belongs to the send pool or the receive pool.
pub(super) const SEND_ROW: u32 = 0;
/// See [`SEND_ROW`].
pub(super) const RECEIVE_ROW: u32 = 1;

/// State of a buffer row at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RowSample {
    pub(super) at_ns: u64,
    pub(super) node: u16,
    pub(super) peer: u16,
    pub(super) pool: u32,
    pub(super) density: f32,
    pub(super) utilisation: f32,
}

const _: () = assert!(size_of::<RowSample>() == 24);
