//! What travels.
//!
//! Headers are fields here and not bytes; only their length counts. A packet has 20 bytes of RapidIO's headers and 6 of MPIRIO's own, so
//! that 250 of its 276 bytes are data. Values that are combined are not cut, and operation and element take two bytes more, so that
//! packets of reductions have 248.

use std::sync::Arc;

use pdbp_core::collective::{Call, Kind, Op};

use super::Mismatch;
use super::unit::blocks_in_packet;

/// Bytes of a packet at most.
pub const PACKET: usize = 276;
/// Bytes of data in a packet at most.
pub const DATA: usize = 250;
/// Bytes of values in a packet of a reduction at most.
pub const VALUES: usize = 248;
const HEADERS: usize = PACKET - DATA;
const OPERATION: usize = DATA - VALUES;

/// The greatest priority. Answers travel one above what they answer.
pub const HIGHEST: u8 = 3;

/// A packet, or a copy of it.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) what: What,
    pub(super) priority: u8,
    /// Id of the endpoint that has sent it, or in whose call a switch has made it.
    pub(super) source: u16,
    /// Id of the endpoint it is for; the group, of calls.
    pub(super) dest: u16,
    /// Of the message of its source; of the call of its group.
    pub(super) number: u32,
    /// Its place in the message or call.
    pub(super) sequence: u32,
    /// Of scatter and gather: first rank and number of members.
    pub(super) run: (u16, u16),
    pub(super) tag: u64,
    /// What is called.
    pub(super) call: Call,
    pub(super) data: Arc<[u8]>,
    pub(super) mismatch: Option<Arc<Mismatch>>,
}

/// What a packet is, and so what a switch does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum What {
    /// Part of a message from one endpoint to one other.
    Message,
    /// Part of a frame of a link layer, which nobody answers.
    Frame,
    /// The answer to a packet of a message.
    MessageAnswer,
    /// There is no way to where a packet of this number was to go.
    NoRoute,
    /// Part of a call on its way: copied (broadcast), divided (scatter), joined (gather) or combined (reductions, barrier).
    Call,
    /// The end of what was combined at the top, on its way to all.
    Result,
    /// The answer to a packet of this endpoint.
    Answer,
    /// The answer to packets of a run of members.
    AnswerRun,
    /// The answer to the packets of all members but the root.
    AnswerAll,
    /// A member has taken a batch of what roots send; on its way to be combined, and then to all ([`flow`](super::flow)).
    Taken,
    Granted,
    /// Members have called different things.
    Mismatch,
}

impl What {
    /// All kinds, for who makes packets at random.
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

    /// Whether it is for a group.
    pub(super) fn is_of_group(self) -> bool {
        !matches!(self, Self::Message | Self::Frame | Self::MessageAnswer | Self::NoRoute)
    }
}

/// No data, of which there is one for all packets.
pub(super) fn nothing() -> Arc<[u8]> {
    thread_local! {
        static NOTHING: Arc<[u8]> = Arc::new([]);
    }
    NOTHING.with(Arc::clone)
}

impl Packet {
    /// Takes it away, and leaves one without data.
    pub(super) fn leave(&mut self) -> Self {
        let (data, mismatch) = (std::mem::replace(&mut self.data, nothing()), self.mismatch.take());
        Self { data, mismatch, ..*self }
    }

    /// Its length on a link.
    pub(super) fn bytes(&self) -> usize {
        HEADERS + self.data.len() + if self.call.op.is_some() { OPERATION } else { 0 }
    }

    /// Whether it is neither an answer nor the report of an error.
    pub(super) fn is_request(&self) -> bool {
        matches!(self.what, What::Message | What::Frame | What::Call | What::Result)
    }

    /// Whether it is one of a group of so many members: of a call that switches do, with the data that belongs at its place. Endpoints send no
    /// others.
    pub(super) fn is_sound(&self, members: usize) -> bool {
        let (first, count) = (usize::from(self.run.0), usize::from(self.run.1));
        if first >= members || !(1..=members).contains(&count) {
            return false;
        }
        match self.what {
            // Calls are counted from 1, and what members have taken from 0.
            What::Call | What::Result => {}
            What::Taken | What::Granted => {
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

    /// An answer to it, one priority above.
    pub(super) fn answer(&self, what: What) -> Self {
        Self {
            what,
            priority: HIGHEST.min(self.priority + 1),
            data: nothing(),
            call: Call { op: None, ..self.call },
            ..self.clone()
        }
    }
}
