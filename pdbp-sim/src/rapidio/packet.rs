//! Packets.
//!
//! Headers are fields rather than bytes; only their length is modelled. Of the 276 bytes of a packet, 20 are RapidIO headers and 6 MPIRIO's
//! own header, which leaves 250 for data. Reductions never split a value between packets, and spend two more bytes on operation and
//! element, which leaves 248.

use std::sync::Arc;

use pdbp_core::collective::{Call, Kind, Op};

use super::Mismatch;
use super::unit::blocks_in_packet;

/// Maximum size of a packet, in bytes.
pub const PACKET: usize = 276;
/// Maximum payload of a packet, in bytes.
pub const DATA: usize = 250;
/// Maximum payload of a packet of a reduction, in bytes.
pub const VALUES: usize = 248;
const HEADERS: usize = PACKET - DATA;
const OPERATION: usize = DATA - VALUES;

/// The highest priority. A response has the priority of its request plus one.
pub const HIGHEST: u8 = 3;

/// A packet, or a copy of it.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) kind: PacketKind,
    pub(super) priority: u8,
    /// The endpoint that sent it, or for whose call a switch created it.
    pub(super) source: u16,
    /// The destination endpoint; for calls, the group.
    pub(super) dest: u16,
    /// The number of the message (per source) or of the call (per group).
    pub(super) number: u32,
    /// Its position within the message or call.
    pub(super) sequence: u32,
    /// For scatter and gather: the first rank, and how many members the data is for or from.
    pub(super) run: (u16, u16),
    pub(super) tag: u64,
    /// The call it belongs to.
    pub(super) call: Call,
    pub(super) data: Arc<[u8]>,
    pub(super) mismatch: Option<Arc<Mismatch>>,
}

/// The kind of a packet, which determines what a switch does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PacketKind {
    /// Part of a message from one endpoint to one other.
    Message,
    /// Part of a frame of a link layer; not acknowledged.
    Frame,
    /// Acknowledges a packet of a message.
    MessageAnswer,
    /// Tells the sender that a packet of this message had no route.
    NoRoute,
    /// Part of a call: replicated (broadcast), split (scatter), merged (gather) or combined (reductions, barrier).
    Call,
    /// The result combined at the top, on its way to all members.
    Result,
    /// Acknowledges a packet of one endpoint.
    Answer,
    /// Acknowledges packets of a run of members.
    AnswerRun,
    /// Acknowledges the packets of all members but the root.
    AnswerAll,
    /// A member has received a batch of what roots send; combined on its way up ([`flow`](super::flow)).
    Taken,
    /// All members have received that batch; replicated on its way down.
    Granted,
    /// Members have made different calls.
    Mismatch,
}

impl PacketKind {
    /// All kinds, for tests that draw packets at random.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) const ALL: [Self; 12] = [
        Self::Message,
        Self::Frame,
        Self::MessageAnswer,
        Self::NoRoute,
        Self::Call,
        Self::Result,
        Self::Answer,
        Self::AnswerRun,
        Self::AnswerAll,
        Self::Taken,
        Self::Granted,
        Self::Mismatch,
    ];

    /// Whether it belongs to a call of a group.
    pub(super) fn is_of_group(self) -> bool {
        !matches!(self, Self::Message | Self::Frame | Self::MessageAnswer | Self::NoRoute)
    }
}

/// Empty data, shared by all packets of a thread.
pub(super) fn nothing() -> Arc<[u8]> {
    thread_local! {
        static NOTHING: Arc<[u8]> = Arc::new([]);
    }
    NOTHING.with(Arc::clone)
}

impl Packet {
    /// Moves the packet out, and leaves one without data behind.
    pub(super) fn take(&mut self) -> Self {
        let (data, mismatch) = (std::mem::replace(&mut self.data, nothing()), self.mismatch.take());
        Self { data, mismatch, ..*self }
    }

    /// Its length on a link, in bytes.
    pub(super) fn bytes(&self) -> usize {
        HEADERS + self.data.len() + if self.call.op.is_some() { OPERATION } else { 0 }
    }

    /// Whether it is a request: neither an acknowledgement nor an error report.
    pub(super) fn is_request(&self) -> bool {
        matches!(self.kind, PacketKind::Message | PacketKind::Frame | PacketKind::Call | PacketKind::Result)
    }

    /// Whether it is valid in a group of this many members: it belongs to a call that switches perform, and its data has the length
    /// that its position requires. Endpoints send no other packets.
    pub(super) fn is_sound(&self, members: usize) -> bool {
        let (first, count) = (usize::from(self.run.0), usize::from(self.run.1));
        if first >= members || !(1..=members).contains(&count) {
            return false;
        }
        match self.kind {
            // Calls are numbered from 1; 0 stands for the batches that members have received.
            PacketKind::Call | PacketKind::Result => {}
            PacketKind::Taken | PacketKind::Granted => {
                return self.number == 0 && self.call.kind == Kind::Barrier && self.data.is_empty();
            }
            _ => return self.data.is_empty(),
        }
        let Call { kind, op, bytes, .. } = self.call;
        let lengths = self.call.lengths(members, 0);
        let can_be =
            lengths.is_some_and(|(input, output)| self.call.check(members, 0, input, output).is_ok());
        let piece = if op.is_some() { VALUES } else { DATA };
        let left = bytes.checked_sub(self.sequence as usize * piece).filter(|left| *left > 0);
        let is_piece = left.is_some_and(|left| self.data.len() == left.min(piece));
        let fits = match kind {
            Kind::Barrier => self.data.is_empty(),
            Kind::Broadcast | Kind::Reduce | Kind::AllReduce => is_piece,
            Kind::Scatter | Kind::Gather => match blocks_in_packet(bytes) {
                0 => count == 1 && is_piece,
                most => self.sequence == 0 && count <= most && self.data.len() == count * bytes,
            },
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll | Kind::Tagged => false,
        };
        self.number > 0 && can_be && fits && op != Some(Op::Function)
    }

    /// A response to it, with the next higher priority.
    pub(super) fn answer(&self, kind: PacketKind) -> Self {
        Self {
            kind,
            priority: HIGHEST.min(self.priority + 1),
            data: nothing(),
            call: Call { op: None, ..self.call },
            ..self.clone()
        }
    }
}
