//! The framing `soap`: HTTP/1.1, complete messages of SOAP 1.2, blocks as attachments of MTOM.
//!
//! ```text
//!  who has called                                                                who was called
//!  POST /pdbp/exchange  Hello, Claim (and Await)   ──▶  ◀──  their responses         at the door, see `door::speech`
//!  POST … Open                                     ──▶  ◀──  OpenResponse
//!  POST … Fetch, Fetch, …                          ──▶
//!  POST … Put, with a super-element of 1 to 16 blocks ─▶ ◀──  Answer to the first Fetch, with 0 to 16 blocks
//! ```
//! * A message is a *super-element*: as many blocks as are ready when it is written, 16 at most (k of S2), each an attachment that goes from where it
//!   lies into the socket, and from the socket to where it was posted. The header `Link` of every message acknowledges.
//! * **One connection carries both directions.** Requests are pipelined, and answered in their order; an answer may carry blocks, whichever request it
//!   answers. So a `Put` is a `Fetch` with blocks, and lanes for either need neither be two connections nor be paired at the door. The
//!   caller has [`UNDER_WAY`] requests under way at most, and [`HELD`] at least, so that the other end can always say something; which
//!   leaves [`SURPLUS`] unanswered at most. What it has no news for it answers by 202 without a body, those beyond [`HELD`] together: where messages go
//!   both ways, requests and answers are as many, and neither empty answers nor more than a few Fetches are needed.
//! * A `Fetch` waits for as long as there is nothing to answer: nothing between the ends reads along to grow impatient, and the system's
//!   keepalive notices a line that is dead.
//! * What is wrong with a message ends the connection, and the next one begins after the last block that was taken. An end that was called
//!   says what it was, by a fault or a status of HTTP.
//!
//! The service is a strict subset: one Content-Length, the root part first, the others in the order of their blocks, and as long as these
//! say (a Content-Length of a part has to agree). `exchange.wsdl` and `exchange.xsd` say what is in the envelopes.

pub(crate) mod envelope;
pub(crate) mod hex;
mod lane;
mod mime;
pub(crate) mod reader;
#[cfg(test)]
mod tests;

use super::{Head, Kind};
use crate::ring::codec::Packing;
pub(crate) use lane::Soap;

pub(crate) const SOAP: &str = "http://www.w3.org/2003/05/soap-envelope";
pub(crate) const EXCHANGE: &str = "urn:pdbp:exchange";
pub(crate) const XOP: &str = "http://www.w3.org/2004/08/xop/include";
/// Blocks of a message: k of S2 at most.
pub(crate) const MOST: usize = 16;
/// Bytes of an envelope; with the head of a part behind it, it is read ahead.
pub(crate) const ROOT: usize = 12 << 10;
/// Requests of a caller that are not answered yet, at most.
const UNDER_WAY: usize = 32;
/// Requests of a caller that are to wait for something to answer, at least.
const HELD: usize = 4;
/// Requests that are left unanswered where there is nothing to say, at most.
const SURPLUS: usize = 16;
/// Characters of a boundary of ours.
pub(crate) const BOUNDARY: usize = 32;

/// Whose messages are requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// This end's, and it names the other as `host`.
    Caller { host: String },
    /// The other's, and this end answers.
    Called,
}

/// What a message is.
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

    /// Whether it is said before there is a link.
    pub(crate) fn is_of_door(self) -> bool {
        use Word::{Await, Claim, ClaimResponse, Hello, HelloResponse, Roster};
        matches!(self, Hello | HelloResponse | Claim | ClaimResponse | Await | Roster)
    }
}

/// What an envelope says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) word: Word,
    /// Blocks taken, and posted beyond these.
    pub(crate) link: Option<(u64, u16)>,
    pub(crate) session: u32,
    /// Of an Answer: whether the node says nothing more.
    pub(crate) ends: bool,
    pub(crate) bytes: Vec<u8>,
    pub(crate) blocks: Vec<Block>,
}

impl Message {
    /// The record that this message is, or its blocks are, the first of them.
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

/// What an envelope says of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) sequence: u64,
    pub(crate) length: u32,
    pub(crate) packing: Packing,
    /// The Content-ID of its part.
    pub(crate) id: String,
}

/// What the service is, as it is served.
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
