//! The framing `soap`: HTTP/1.1 with complete SOAP 1.2 messages, and blocks as MTOM attachments.
//!
//! ```text
//!  who has called                                                                who was called
//!  POST /pdbp/exchange  Hello, Claim (and Await)   ──▶  ◀──  their responses         at the door, see `door::encoding`
//!  POST … Open                                     ──▶  ◀──  OpenResponse
//!  POST … Fetch, Fetch, …                          ──▶
//!  POST … Put, with a super-element of 1 to 16 blocks ─▶ ◀──  Answer to the first Fetch, with 0 to 16 blocks
//! ```
//! * A message is a *super-element*: the blocks that are ready when it is written, 16 at most (k of S2). Each is an attachment that goes
//!   from where it lies into the socket, and from the socket into the block posted for it. The header `Link` of every message acknowledges.
//! * **One connection carries both directions.** Requests are pipelined and answered in order; an answer may carry blocks, whichever
//!   request it answers. So a `Put` is a `Fetch` with blocks, and the two directions need neither two connections nor pairing at
//!   the door. The caller has at most [`MAX_IN_FLIGHT`] requests outstanding, and at least [`HELD`], so that the other end can always send
//!   something; the called end leaves at most [`SURPLUS`] unanswered. It answers requests for which it has no news by 202 without a
//!   body, all those beyond [`HELD`] together. Where messages flow both ways, requests and answers balance, and neither empty answers
//!   nor more than a few Fetches are needed.
//! * A `Fetch` waits until there is something to answer: nothing between the ends interprets the traffic and could time out, and the
//!   system's keepalive notices a dead line.
//! * An invalid message ends the connection, and the next one resumes after the last block that was taken. The called end reports
//!   what was wrong, by a fault or an HTTP status.
//!
//! The service is a strict subset: one Content-Length, the root part first, the others in the order of their blocks, with the lengths that
//! these state (a Content-Length of a part must agree). `exchange.wsdl` and `exchange.xsd` specify the envelopes.

mod connection;
pub(crate) mod envelope;
pub(crate) mod hex;
mod mime;
pub(crate) mod reader;
#[cfg(test)]
mod tests;

use super::{Head, Kind};
use crate::ring::codec::Packing;
pub(crate) use connection::Soap;

pub(crate) const SOAP: &str = "http://www.w3.org/2003/05/soap-envelope";
pub(crate) const EXCHANGE: &str = "urn:pdbp:exchange";
pub(crate) const XOP: &str = "http://www.w3.org/2004/08/xop/include";
/// Maximum blocks per message: k of S2.
pub(crate) const MOST: usize = 16;
/// Maximum bytes of an envelope, which is buffered together with the head of the part behind it.
pub(crate) const ROOT: usize = 12 << 10;
/// Maximum outstanding requests of a caller.
const MAX_IN_FLIGHT: usize = 32;
/// Minimum outstanding requests of a caller, for the other end to answer when it has something to send.
const HELD: usize = 4;
/// Maximum requests that the called end leaves unanswered while it has nothing to send.
const SURPLUS: usize = 16;
/// Characters of a boundary made here.
pub(crate) const BOUNDARY: usize = 32;

/// Which end sends the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// This end, which names the other as `host`.
    Caller { host: String },
    /// The other end; this one answers.
    Called,
}

/// The element in the body of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Word {
    Hello,
    HelloResponse,
    Claim,
    ClaimResponse,
    Await,
    Roster,
    Open,
    OpenResponse,
    Put,
    #[default]
    Fetch,
    Bye,
    Answer,
}

impl Word {
    pub(crate) const ALL: [(Self, &'static str); 12] = [
        (Self::Put, "Put"),
        (Self::Answer, "Answer"),
        (Self::Fetch, "Fetch"),
        (Self::Open, "Open"),
        (Self::OpenResponse, "OpenResponse"),
        (Self::Bye, "Bye"),
        (Self::Hello, "Hello"),
        (Self::HelloResponse, "HelloResponse"),
        (Self::Claim, "Claim"),
        (Self::ClaimResponse, "ClaimResponse"),
        (Self::Await, "Await"),
        (Self::Roster, "Roster"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(word, _)| *word == self).map_or("", |(_, name)| name)
    }

    /// Whether it belongs to the greeting, before the link exists.
    pub(crate) fn is_of_door(self) -> bool {
        use Word::{Await, Claim, ClaimResponse, Hello, HelloResponse, Roster};
        matches!(self, Hello | HelloResponse | Claim | ClaimResponse | Await | Roster)
    }
}

/// The contents of an envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) word: Word,
    /// Blocks taken, and posted beyond these.
    pub(crate) link: Option<(u64, u16)>,
    pub(crate) session: u32,
    /// In an Answer: whether the node ends and sends nothing more.
    pub(crate) ends: bool,
    pub(crate) bytes: Vec<u8>,
    pub(crate) blocks: Vec<Block>,
}

impl Message {
    /// The record that this message stands for, or the common fields of its blocks' records.
    pub(crate) fn record(&self) -> Head {
        let (kind, number) = match self.word {
            Word::Open | Word::OpenResponse => (Kind::Open, self.session.into()),
            Word::Bye => (Kind::Bye, 0),
            Word::Answer if self.ends => (Kind::Bye, 0),
            _ => (Kind::Ack, 0),
        };
        let (taken, room) = self.link.unwrap_or((0, 0));
        Head { kind, packing: Packing::Raw, room, length: 0, number, taken }
    }
}

/// A block, as an envelope describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) sequence: u64,
    pub(crate) length: u32,
    pub(crate) packing: Packing,
    /// The Content-ID of its part.
    pub(crate) id: String,
}

/// The description of the service, as served for a query.
pub(crate) fn description(query: &str, address: &str) -> Option<String> {
    const SCHEMA: &str = include_str!("exchange.xsd");
    match query {
        "xsd" => Some(SCHEMA.to_owned()),
        "wsdl" => {
            let schema = SCHEMA.split_once("?>").map_or(SCHEMA, |(_, schema)| schema.trim_start());
            let text = include_str!("exchange.wsdl").replace("{SCHEMA}", schema.trim_end());
            Some(text.replace("{ADDRESS}", address))
        }
        _ => None,
    }
}
