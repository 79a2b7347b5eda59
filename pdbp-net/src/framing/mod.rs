//! What travels on a connection: records, and how they are written and read. A framing is sans-IO: bytes in, records out, and vice versa.
//!
//! * [`tcp`]: a head of 24 bytes for each record, followed by the bytes of the block if it has one.
//! * [`soap`]: HTTP/1.1 with complete SOAP 1.2 messages; blocks are attachments (MTOM), up to 16 in a message.
//!
//! Every record acknowledges: `taken` counts the peer's blocks that lie in posted ones here, and `room` the blocks posted beyond
//! these, so that the peer knows how many it may send. Blocks are read straight from the socket into their destination
//! ([`Framing::next`]), and written from where they lie ([`send_queue`]). Nothing is ever allocated by a length that a peer names.

pub(crate) mod http;
#[cfg(test)]
mod pieces;
pub(crate) mod read_ahead;
pub(crate) mod send_queue;
pub(crate) mod soap;
pub(crate) mod tcp;

use std::fmt;
use std::io::Read;

use crate::error::Lost;
use crate::options::Framing as Chosen;
use crate::ring::codec::Packing;
pub use http::Fault;
use send_queue::SendQueue;
use soap::{Role, Soap};
use tcp::Tcp;

/// How the records of a connection travel.
pub(crate) trait Framing: Send {
    /// Reads on. `room` is the destination of the block in progress: at least as long as the block, and the same until it is complete.
    ///
    /// # Errors
    /// The end of the connection, or a violation of the protocol.
    fn next(&mut self, source: &mut dyn Read, room: &mut [u8]) -> Result<Parsed, Lost>;

    /// Announces that the block of the last head comes next, `length` bytes of it.
    fn begin_block(&mut self, length: usize);

    /// Whether a block is in progress.
    fn is_in_block(&self) -> bool;

    /// Whether one more record can be queued.
    fn takes(&self, queue: &SendQueue) -> bool;

    /// Queues a record, to be sent once it is [sealed](Self::seal).
    fn push(&mut self, head: Head, block: Option<u64>, queue: &mut SendQueue);

    /// Releases what was pushed for sending, as far as possible now.
    fn seal(&mut self, _queue: &mut SendQueue) {}

    /// Whether records have been pushed and not sealed.
    fn is_collecting(&self) -> bool {
        false
    }

    /// Whether this end must send a record even without news, for the other end to answer.
    fn must_request(&self) -> bool {
        false
    }

    /// Queues answers without a record, if too many requests are unanswered.
    fn answer_surplus(&mut self, _queue: &mut SendQueue) {}

    /// Whether a goodbye can be sent now.
    fn can_send_bye(&self) -> bool {
        true
    }

    /// Notes that this many sealed messages were dropped.
    fn dropped(&mut self, _messages: usize) {}

    /// The message that tells a peer why its connection ends, if the framing has one.
    fn refusal(&self, _what: Malformed) -> Option<Vec<u8>> {
        None
    }
}

/// The protocol of a connection, settled by its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    /// This end called, and names the other end in its requests.
    SoapClient(String),
    /// This end was called.
    SoapServer,
}

impl Protocol {
    /// The protocol of the end that dials `host`.
    pub(crate) fn to(framing: Chosen, host: String) -> Self {
        match framing {
            Chosen::Tcp => Self::Tcp,
            Chosen::Soap => Self::SoapClient(host),
        }
    }

    /// Makes the framing of a connection on which blocks have up to `longest` bytes.
    pub(crate) fn framing(self, longest: usize) -> Box<dyn Framing> {
        match self {
            Self::Tcp => Box::new(Tcp::new(longest)),
            Self::SoapClient(host) => Box::new(Soap::new(Role::Caller { host }, longest)),
            Self::SoapServer => Box::new(Soap::new(Role::Called, longest)),
        }
    }
}

/// What has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A head. If it announces a block, the caller calls [`Framing::begin_block`] next.
    Head(Head),
    /// The rest of a block, whose total length this is.
    Block(usize),
    /// Everything that had arrived has been read.
    Nothing,
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first on a connection: names the session that this end is in, or wants to begin.
    Open = 1,
    /// A block follows.
    Data = 2,
    /// Carries only an acknowledgement.
    Ack = 3,
    /// The node ends and sends nothing more.
    Bye = 4,
}

/// A record. `number` is the session in an Open and the sequence of the block in a Data. `packing` is the packing of a Data's block
/// ([`codec`](crate::ring::codec) describes the packed bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) packing: Packing,
    pub(crate) room: u16,
    pub(crate) length: u32,
    pub(crate) number: u64,
    pub(crate) taken: u64,
}

/// How a peer has violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// A frame of an unknown kind.
    Kind(u8),
    /// A frame of this kind with an unused field that is not zero.
    Unused(u8),
    /// A block of this many bytes, which is longer than the longest, or than the block that was posted for it.
    Length(u32),
    /// A block packed by an unknown codec.
    Codec(u8),
    /// A packed block that states a greater length than that of the block posted for it.
    Bomb {
        /// The bytes that it states.
        stated: u32,
        /// The bytes of the posted block.
        posted: usize,
    },
    /// A packed block that does not expand to its stated length: truncated, altered, too short or too long.
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
    /// A message that is not valid HTTP or SOAP, or not one of the service.
    Message(Fault),
    /// An acknowledgement that goes back behind an earlier one, or covers blocks that were never sent.
    Taken {
        /// Blocks that the peer claims to have taken.
        found: u64,
        /// Blocks sent.
        sent: u64,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "a frame of unknown kind {kind}"),
            Self::Unused(kind) => write!(f, "a frame of kind {kind} whose unused fields are not zero"),
            Self::Length(length) => write!(f, "a block of {length} bytes, which is too long"),
            Self::Codec(number) => write!(f, "a block packed by unknown codec {number}"),
            Self::Bomb { stated, posted } => {
                write!(f, "a packed block that claims {stated} bytes where {posted} are posted")
            }
            Self::Expansion { packing, stated } => {
                write!(f, "a packed block that {packing:?} does not expand to the {stated} bytes it claims")
            }
            Self::NotOpen => f.write_str("a frame before it opened the connection"),
            Self::OpenTwice => f.write_str("a second Open on one connection"),
            Self::Sequence { found, due } => write!(f, "block {found} where block {due} was expected"),
            Self::Message(fault) => write!(f, "an invalid message: {fault}"),
            Self::NoRoom => f.write_str("a block with no receive posted for it"),
            Self::Taken { found, sent } => {
                write!(f, "an acknowledgement of {found} blocks; {sent} were sent")
            }
        }
    }
}

impl std::error::Error for Malformed {}
