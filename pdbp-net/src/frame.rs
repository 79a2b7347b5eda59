//! What travels on a connection: heads of 24 bytes, some with a block behind them.
//!
//! ```text
//!  0      1      2        4        8         16       24
//!  +------+------+--------+--------+---------+--------+ - - - - - - - - +
//!  | kind | codec| room   | length | number  | taken  | block (of Data) |
//!  +------+------+--------+--------+---------+--------+ - - - - - - - - +
//! ```
//! All numbers are little-endian. `taken` counts the peer's blocks that lie in posted ones here, and `room` the blocks posted beyond
//! these; so each head acknowledges, and says how far the peer may go. `number` is the session in an Open and the sequence of the
//! block in a Data. `codec` says how the block of a Data is packed ([`codec`](crate::ring::codec) has what its bytes are then); elsewhere
//! it is zero.
//!
//! [`Reader`] puts heads together from whatever pieces a socket gives, and lets bodies of blocks go straight from the socket to where
//! they belong. Nothing is ever allocated by a length that a peer names.

use std::fmt;
use std::io::{ErrorKind, IoSliceMut, Read};

use crate::error::Lost;
use crate::ring::codec::Packing;

/// Bytes of a head.
pub(crate) const HEAD: usize = 24;
/// Bytes that are read ahead of a block, and of the heads behind it.
const AHEAD: usize = 16 << 10;

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

/// A head.
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
            Self::NoRoom => f.write_str("a block for which nothing is posted"),
            Self::Taken { found, sent } => {
                write!(f, "an acknowledgement of {found} blocks; {sent} were sent")
            }
        }
    }
}

impl std::error::Error for Malformed {}

impl Head {
    /// As it travels.
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let fields: [&[u8]; 5] = [
            &[self.kind as u8, self.packing as u8],
            &self.room.to_le_bytes(),
            &self.length.to_le_bytes(),
            &self.number.to_le_bytes(),
            &self.taken.to_le_bytes(),
        ];
        bytes.iter_mut().zip(fields.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Reads a head. `longest` is the longest block that may be announced.
    pub(crate) fn from_bytes(bytes: &[u8; HEAD], longest: usize) -> Result<Self, Malformed> {
        let [kind_byte, codec, r0, r1, l0, l1, l2, l3, rest @ ..] = *bytes;
        let [n0, n1, n2, n3, n4, n5, n6, n7, taken @ ..] = rest;
        let kind = match kind_byte {
            1 => Kind::Open,
            2 => Kind::Data,
            3 => Kind::Ack,
            4 => Kind::Bye,
            other => return Err(Malformed::Kind(other)),
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let number = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let fits = match kind {
            Kind::Open => length == 0 && number <= u64::from(u32::MAX),
            Kind::Data => true,
            Kind::Ack | Kind::Bye => length == 0 && number == 0,
        };
        if !fits || (codec != 0 && kind != Kind::Data) {
            return Err(Malformed::Unused(kind_byte));
        }
        let packing = Packing::from_number(codec)?;
        if usize::try_from(length).map_or(true, |length| length > longest) {
            return Err(Malformed::Length(length));
        }
        let (room, taken) = (u16::from_le_bytes([r0, r1]), u64::from_le_bytes(taken));
        Ok(Self { kind, packing, room, length, number, taken })
    }
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// A head. If it is that of a block, [`Reader::begin_block`] comes next.
    Head(Head),
    /// The rest of a block, of so many bytes in all.
    Block(usize),
    /// All that there was has been read.
    Nothing,
}

/// Puts heads and blocks together.
pub(crate) struct Reader {
    longest: usize,
    ahead: Box<[u8]>,
    /// What has been read ahead and not used.
    start: usize,
    end: usize,
    /// Bytes of the block under way: all, and those that are in place.
    block: Option<(usize, usize)>,
}

impl Reader {
    /// For blocks of up to `longest` bytes.
    pub(crate) fn new(longest: usize) -> Self {
        Self { longest, ahead: vec![0; AHEAD].into(), start: 0, end: 0, block: None }
    }

    /// What comes next is a block of so many bytes.
    pub(crate) fn begin_block(&mut self, length: usize) {
        self.block = Some((length, 0));
    }

    /// Whether a block is under way.
    pub(crate) fn is_in_block(&self) -> bool {
        self.block.is_some()
    }

    /// Reads on. `room` is where the block under way goes, at least as long as that, and the same until it is complete.
    ///
    /// # Errors
    /// The end of the connection, or a head that is none.
    pub(crate) fn next(&mut self, source: &mut impl Read, room: &mut [u8]) -> Result<Came, Lost> {
        loop {
            if let Some((length, filled)) = self.block {
                let filled = filled + self.copy(room.get_mut(filled..length).unwrap_or(&mut []));
                self.block = Some((length, filled));
                if filled >= length {
                    self.block = None;
                    return Ok(Came::Block(length));
                }
            } else if let Some(bytes) = self.ahead.get(self.start..self.end).and_then(<[u8]>::first_chunk) {
                self.start += HEAD;
                return Ok(Came::Head(Head::from_bytes(bytes, self.longest)?));
            }
            if !self.read(source, room)? {
                return Ok(Came::Nothing);
            }
        }
    }

    /// Takes the beginning of a block from what was read ahead.
    fn copy(&mut self, to: &mut [u8]) -> usize {
        let from = self.ahead.get(self.start..self.end).unwrap_or(&[]);
        let count = to.len().min(from.len());
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        self.start += count;
        count
    }

    /// Reads once: the rest of the block under way, and what follows it. Whether something came.
    fn read(&mut self, source: &mut impl Read, room: &mut [u8]) -> Result<bool, Lost> {
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let (length, filled) = self.block.unwrap_or((0, 0));
        let rest = room.get_mut(filled..length).unwrap_or(&mut []);
        let wanted = rest.len();
        let free = self.ahead.get_mut(self.end..).unwrap_or(&mut []);
        let result = if wanted == 0 {
            source.read(free)
        } else {
            source.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(free)])
        };
        match result {
            Ok(0) => Err(Lost::Closed),
            Ok(count) => {
                if let Some((_, filled)) = &mut self.block {
                    *filled += count.min(wanted);
                }
                self.end += count.saturating_sub(wanted);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(Lost::Broken(error)),
        }
    }
}

#[cfg(test)]
mod tests;
