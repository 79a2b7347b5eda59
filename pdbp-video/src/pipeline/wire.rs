//! Messages between the parts other than frames: plain values, distinguished by their command numbers.

use bytemuck::{Pod, Zeroable};

/// Command numbers of parts' reports to the console. Score records, and the console's orders, travel as plain messages.
pub(super) mod command {
    /// Decoder to console: a [`Done`](super::Done).
    pub(in crate::pipeline) const DONE: u16 = 1;
    /// Decoder to console: a [`FaultHead`](super::FaultHead) and the reason as text.
    pub(in crate::pipeline) const FAULT: u16 = 2;
    /// Any part to console, its final message: a [`Work`](crate::account::Work).
    pub(in crate::pipeline) const WORK: u16 = 3;
    /// Steward to console: some [`RowSample`](super::RowSample)s.
    pub(in crate::pipeline) const ROWS: u16 = 4;
    /// Any part to console: it cannot go on; the reason as text.
    pub(in crate::pipeline) const FAILED: u16 = 5;
    /// Steward to console, its first message: a [`Ready`](super::Ready).
    pub(in crate::pipeline) const READY: u16 = 6;
    /// Analyser to console, before its final message: a number of frames, 8 bytes, and the name of what analysed them as text.
    pub(in crate::pipeline) const ANALYSED: u16 = 7;
    /// Analyser to console: a problem that did not end its work, as text.
    pub(in crate::pipeline) const NOTE: u16 = 8;
    /// Decoder to console, before its final message: a number of frames, 8 bytes, and the name of what decoded them as text.
    pub(in crate::pipeline) const DECODED: u16 = 9;
    /// Steward to console, now and then: the current [`RowSample`](super::RowSample)s, for observers.
    pub(in crate::pipeline) const NOW: u16 = 10;
    /// Decoder of another cluster to console, its first message: the number of its pair, 4 bytes.
    pub(in crate::pipeline) const HERE: u16 = 11;
}

/// An order of the console to decoders and stewards. A plain message, since those can be sent without waiting for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Order {
    kind: u32,
    pass: u32,
    streams: u32,
}

/// An [`Order`], decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Orders {
    /// To decoders: begin this pass.
    Start {
        /// Its number.
        pass: u32,
        /// Streams that take part, the same in all passes.
        streams: u32,
    },
    /// The run is over.
    Stop,
    /// The run has failed.
    GiveUp,
    /// To decoders of another cluster: where their analysers are.
    Analyser {
        /// The node.
        node: u32,
    },
}

impl From<Orders> for Order {
    fn from(orders: Orders) -> Self {
        match orders {
            Orders::Start { pass, streams } => Self { kind: 1, pass, streams },
            Orders::Stop => Self { kind: 2, pass: 0, streams: 0 },
            Orders::GiveUp => Self { kind: 3, pass: 0, streams: 0 },
            Orders::Analyser { node } => Self { kind: 4, pass: node, streams: 0 },
        }
    }
}

impl Order {
    /// `None` for an order unknown to this version.
    pub(super) fn read(message: &pdbp::Message) -> Option<Orders> {
        match message.value::<Self>()? {
            Self { kind: 1, pass, streams } => Some(Orders::Start { pass, streams }),
            Self { kind: 2, .. } => Some(Orders::Stop),
            Self { kind: 3, .. } => Some(Orders::GiveUp),
            Self { kind: 4, pass: node, .. } => Some(Orders::Analyser { node }),
            _ => None,
        }
    }
}

/// A process has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Ready {
    /// Fingerprint of what all processes must agree on; see [`Job::fingerprint`](super::Job::fingerprint).
    pub(super) fingerprint: u64,
    /// Streams that it can serve.
    pub(super) streams: u32,
    /// The node that sends this.
    pub(super) node: u32,
    /// If in another cluster than the console's, the number of its nodes; else 0.
    pub(super) nodes: u32,
    pub(super) zero: u32,
}

/// A decoder has finished its part of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Done {
    pub(super) pass: u32,
    /// Number of the pair that the decoder belongs to.
    pub(super) pair: u32,
    /// Streams begun.
    pub(super) streams: u32,
    /// Pictures sent to the analyser.
    pub(super) frames: u32,
    /// Their bytes.
    pub(super) bytes: u64,
    /// The node of the decoder.
    pub(super) node: u32,
    pub(super) zero: u32,
}

/// A stream gave no picture; the reason follows as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct FaultHead {
    pub(super) pass: u32,
    pub(super) stream: u32,
    pub(super) captured_ns: u64,
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

/// Flag in [`RowSample::pool`]: the row belongs to the decoding cluster, if that is another one.
pub(super) const FAR_ROW: u32 = 2;

const _: () = assert!(size_of::<RowSample>() == 24);
