//! What travels on a connection: records, and how they are written and read. A framing is sans-IO: bytes in, records out, and the other way round.
//!
//! * [`tcp`]: a head of 24 bytes for each record, and behind that of a block its bytes.
//! * [`soap`]: HTTP/1.1 with SOAP 1.2, complete messages; blocks are attachments (MTOM), up to 16 in a message.
//!
//! Every record acknowledges: `taken` counts the peer's blocks that lie in posted ones here, and `room` the blocks posted beyond
//! these, so that the peer knows how far it may go. A framing lets blocks go straight from the socket to where they belong
//! ([`Framing::next`]), and their bytes go out from where they lie ([`said`]). Nothing is ever allocated by a length that a peer names.

pub(crate) mod ahead;
pub(crate) mod http;
#[cfg(test)]
mod pieces;
pub(crate) mod said;
pub(crate) mod soap;
pub(crate) mod tcp;

use std::fmt;
use std::io::Read;

use crate::error::Lost;
use crate::options::Framing as Chosen;
use crate::ring::codec::Packing;
pub use http::Fault;
use said::Said;
use soap::{Role, Soap};
use tcp::Tcp;

/// How the records of a connection travel.
pub(crate) trait Framing: Send {
    /// Reads on. `room` is where the block under way goes, at least as long as that, and the same until it is complete.
    ///
    /// # Errors
    /// The end of the connection, or what no peer sends.
    fn next(&mut self, source: &mut dyn Read, room: &mut [u8]) -> Result<Came, Lost>;

    /// What comes next is the block whose head has come, of so many bytes.
    fn begin_block(&mut self, length: usize);

    /// Whether a block is under way.
    fn is_in_block(&self) -> bool;

    /// Whether one more record can be said.
    fn takes(&self, said: &Said) -> bool;

    /// Says a record, as soon as it is [sealed](Self::seal).
    fn push(&mut self, head: Head, block: Option<u64>, said: &mut Said);

    /// What was pushed is to leave, as far as that is possible now.
    fn seal(&mut self, _said: &mut Said) {}

    /// Whether records have been pushed and not sealed.
    fn is_collecting(&self) -> bool {
        false
    }

    /// Whether this end has to say something though it has no news: then by [`idle`](Self::idle).
    fn must_speak(&self) -> bool {
        false
    }

    /// Says what there is to say without news.
    fn idle(&mut self, _head: Head, _said: &mut Said) {}

    /// Whether goodbye can be said now.
    fn takes_bye(&self) -> bool {
        true
    }

    /// So many messages that were sealed will not leave.
    fn dropped(&mut self, _messages: usize) {}

    /// What a peer is told whose connection ends since it has sent this, if it can be told.
    fn refusal(&self, _what: Malformed) -> Option<Vec<u8>> {
        None
    }
}

/// What the ends of a connection have agreed on by how it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    /// This end calls, and names the other in its requests.
    SoapClient(String),
    /// This end was called.
    SoapServer,
}

impl Protocol {
    /// Of who dials to `host`.
    pub(crate) fn to(framing: Chosen, host: String) -> Self {
        match framing {
            Chosen::Tcp => Self::Tcp,
            Chosen::Soap => Self::SoapClient(host),
        }
    }

    /// A connection on which blocks have up to `longest` bytes.
    pub(crate) fn lane(self, longest: usize) -> Box<dyn Framing> {
        match self {
            Self::Tcp => Box::new(Tcp::new(longest)),
            Self::SoapClient(host) => Box::new(Soap::new(Role::Caller { host }, longest)),
            Self::SoapServer => Box::new(Soap::new(Role::Called, longest)),
        }
    }
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// A head. If it is that of a block, [`Framing::begin_block`] comes next.
    Head(Head),
    /// The rest of a block, of so many bytes in all.
    Block(usize),
    /// All that there was has been read.
    Nothing,
}

/// What a head stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first on a connection: which session this end is in, or wants to begin.
    Open = 1,
    /// A block follows.
    Data = 2,
    /// Only acknowledges.
    Ack = 3,
    /// The node ends and says nothing more.
    Bye = 4,
}

/// A record. `number` is the session in an Open and the sequence of the block in a Data. `packing` says how the block of a Data is packed
/// ([`codec`](crate::ring::codec) has what its bytes are then).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) packing: Packing,
    pub(crate) room: u16,
    pub(crate) length: u32,
    pub(crate) number: u64,
    pub(crate) taken: u64,
}

/// What a peer has sent that no peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// There is no frame of this kind.
    Kind(u8),
    /// A field that is not used is not zero, in a frame of this kind.
    Unused(u8),
    /// A block of so many bytes is longer than the longest, or than the block that was posted for it.
    Length(u32),
    /// There is no codec of this number.
    Codec(u8),
    /// A packed block that states more bytes than the block has that was posted for it.
    Bomb {
        /// The bytes that it states.
        stated: u32,
        /// The bytes that there is room for.
        posted: usize,
    },
    /// A packed block that is not what it states: truncated, changed, shorter or longer.
    Expansion {
        /// The codec.
        packing: Packing,
        /// The bytes that it states.
        stated: u32,
    },
    /// A frame before the one that opens a connection.
    NotOpen,
    /// A second frame that opens a connection.
    OpenTwice,
    /// A block out of turn.
    Sequence {
        /// The number that it has.
        found: u64,
        /// The number that is due.
        due: u64,
    },
    /// A block for which nothing is posted.
    NoRoom,
    /// A message that is no HTTP, no SOAP, or none of the service.
    Message(Fault),
    /// An acknowledgement of what was acknowledged before or was never sent.
    Taken {
        /// Blocks that the peer says it has taken.
        found: u64,
        /// Blocks sent.
        sent: u64,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "a frame of kind {kind}, which does not exist"),
            Self::Unused(kind) => write!(f, "a frame of kind {kind} with unused fields that are not zero"),
            Self::Length(length) => write!(f, "a block of {length} bytes, which is too long"),
            Self::Codec(number) => write!(f, "a block packed by codec {number}, which does not exist"),
            Self::Bomb { stated, posted } => {
                write!(f, "a packed block that states {stated} bytes, where {posted} are posted")
            }
            Self::Expansion { packing, stated } => {
                write!(
                    f,
                    "a packed block that {packing:?} does not expand to the {stated} bytes that it states"
                )
            }
            Self::NotOpen => f.write_str("a frame on a connection that it has not opened"),
            Self::OpenTwice => f.write_str("a second opening of the same connection"),
            Self::Sequence { found, due } => write!(f, "block {found} where block {due} is due"),
            Self::Message(fault) => write!(f, "a message that was refused: {fault}"),
            Self::NoRoom => f.write_str("a block for which nothing is posted"),
            Self::Taken { found, sent } => {
                write!(f, "an acknowledgement of {found} blocks; {sent} were sent")
            }
        }
    }
}

impl std::error::Error for Malformed {}
