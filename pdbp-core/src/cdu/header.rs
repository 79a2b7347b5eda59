//! The block header (64 bytes, once per block) and the CDU header (16 bytes, once per train).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[cfg(feature = "small-crc")]
use super::crc::Hasher;
use crate::id::NodeId;
#[cfg(not(feature = "small-crc"))]
use crc32fast::Hasher;

/// First two bytes of every block.
pub const MAGIC: [u8; 2] = *b"PD";
/// Version of the wire format that this crate writes and the only one that it reads.
pub const VERSION: u8 = 1;
/// Bytes of a block header.
pub const BLOCK_HEADER: usize = 64;
/// Bytes of a CDU header.
pub const CDU_HEADER: usize = 16;
/// Bytes of the extension of relayed messages.
pub const VIA_HEADER: usize = 8;

const _: () = assert!(size_of::<BlockHeader>() == BLOCK_HEADER);
const _: () = assert!(size_of::<CduHeader>() == CDU_HEADER);
const _: () = assert!(size_of::<SegmentHeader>() == 16);
const _: () = assert!(size_of::<SetHeader>() == 8);
const _: () = assert!(size_of::<ViaHeader>() == VIA_HEADER);

/// What a block carries, which decides how it is routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockClass {
    /// Short messages between any parts of two nodes (CPSM).
    Message = 0,
    /// One segment of one stream (CPSS).
    Stream = 1,
    /// Control messages between engines (CMP of MESP).
    Control = 2,
}

/// The header in front of every block: the `BPMsg` layer of MESP.
///
/// ```text
///  0        2       3       4        6       8         12        16
///  +--------+-------+-------+--------+-------+---------+---------+
///  | "PD"   |version| class | source | dest  | session | length  |
///  +--------+-------+-------+--------+-------+---------+---------+
/// 16 link sequence number               24 blocks released so far
/// 32 window   36 flags  38 part         40 stream    44 segment
/// 48 checksum 52 messages               56 group     58 data     62 wanted
/// ```
/// `session` is the number of the link's session, on which both ends agree (see the module [`transport`](crate::transport)). A
/// block of an earlier session is never mistaken for one of this session, whatever its other numbers. `sequence` counts all blocks
/// of the session, `data` only those that need credit; from the two, a receiver knows what it missed when blocks before this one
/// were unreadable. `wanted` is the credit that the sender could use: the number of blocks in flight or held by their readers,
/// including this one, plus those waiting; 65535 means that many or more. In a control block, `stream` is its round: everything
/// sent in an earlier round is void, see the module `engine::round`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockHeader {
    pub(crate) magic: [u8; 2],
    pub(crate) version: u8,
    pub(crate) class: u8,
    pub(crate) source: U16,
    pub(crate) dest: U16,
    pub(crate) session: U32,
    pub(crate) length: U32,
    pub(crate) sequence: U64,
    pub(crate) released: U64,
    pub(crate) window: U32,
    pub(crate) flags: U16,
    pub(crate) part: U16,
    pub(crate) stream: U32,
    pub(crate) segment: U32,
    pub(crate) checksum: U32,
    pub(crate) messages: U32,
    pub(crate) group: U16,
    pub(crate) data: U32,
    pub(crate) wanted: U16,
}

/// Bits of a block header's flags.
#[allow(missing_docs)]
pub mod flag {
    /// Every CDU of the block goes to the part given in the header.
    pub const UNIFORM: u16 = 1;
    /// The checksum field holds the CRC-32 of header and body.
    pub const CHECKSUM: u16 = 2;
    /// First block of its stream: creates the mapping tuple.
    pub const FIRST: u16 = 4;
    /// Last block of its stream: removes the mapping tuple.
    pub const LAST: u16 = 8;
    /// The block overtakes others waiting for the same link.
    pub const URGENT: u16 = 16;
    /// The writer aborted the stream; set together with `LAST`.
    pub const ABORTED: u16 = 32;
    pub(crate) const ALL: u16 = 63;
}

/// Why a block was refused. No part receives any byte of a refused block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// Shorter than a header, or than its header claims.
    Truncated,
    /// Does not begin with the two magic bytes.
    Magic,
    /// Written by another version of the wire format.
    Version(u8),
    /// A class, type or flag that this version does not define, or a reserved byte of a CDU that is not zero.
    Field,
    /// Source and destination are not the ends of this link.
    Address,
    /// The checksum differs.
    Checksum,
    /// A CDU runs past the end of its block, or its size overflows.
    Length,
    /// An empty or unreadable destination set, segment or relay extension.
    Extension,
    /// A CDU to be forwarded by this node, which is not the relay for that pair of nodes, or one that came from a node that is not
    /// its relay.
    Relay,
    /// The peer sent more blocks than its credit allows.
    Overrun,
    /// The block's numbers do not continue those of earlier blocks.
    Sequence,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated => f.write_str("block is shorter than its header says"),
            Self::Magic => f.write_str("block does not begin with the bytes \"PD\""),
            Self::Version(v) => write!(f, "block has wire version {v}, this node reads version {VERSION}"),
            Self::Field => f.write_str("block has a class, type or flag that version 1 does not define"),
            Self::Address => f.write_str("block names nodes that are not at the ends of its link"),
            Self::Checksum => f.write_str("block's checksum differs from its bytes"),
            Self::Length => f.write_str("a CDU runs past the end of its block"),
            Self::Overrun => f.write_str("block was sent without credit"),
            Self::Sequence => f.write_str("block's numbers do not follow those of its link"),
            Self::Extension => {
                f.write_str("a CDU has an unreadable destination set, segment number or relay extension")
            }
            Self::Relay => f.write_str("a CDU is not on the route between its two nodes"),
        }
    }
}

impl core::error::Error for Malformed {}

impl BlockHeader {
    /// Copies and checks the header of `block` (header and body): magic, version, class, flags, lengths and, if its flag is set,
    /// the checksum. [`Cdus::validate`](super::Cdus::validate) checks the body's CDUs.
    ///
    /// # Errors
    /// The first error found.
    #[inline]
    pub fn read(block: &[u8]) -> Result<Self, Malformed> {
        let (header, body) = Self::read_from_prefix(block).map_err(|_| Malformed::Truncated)?;
        header.check(body)?;
        Ok(header)
    }

    /// Checks this copy of the header of a block with this body.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub(crate) fn check(&self, body: &[u8]) -> Result<(), Malformed> {
        if self.magic != MAGIC {
            return Err(Malformed::Magic);
        }
        if self.version != VERSION {
            return Err(Malformed::Version(self.version));
        }
        if self.class > BlockClass::Control as u8 || self.flags.get() & !flag::ALL != 0 {
            return Err(Malformed::Field);
        }
        let length = self.length.get() as usize;
        let body = body.get(..length).ok_or(Malformed::Truncated)?;
        // Without the flag the field must be zero, so a corrupted flag does not make a block pass as one without checksum.
        let sum = if self.has(flag::CHECKSUM) { checksum(self, body) } else { 0 };
        if self.checksum.get() == sum { Ok(()) } else { Err(Malformed::Checksum) }
    }

    /// What the block carries.
    #[inline]
    pub fn class(&self) -> BlockClass {
        match self.class {
            1 => BlockClass::Stream,
            2 => BlockClass::Control,
            _ => BlockClass::Message,
        }
    }

    /// The node that sent the block, if the number is valid.
    #[inline]
    pub fn source(&self) -> Option<NodeId> {
        NodeId::new(self.source.get())
    }

    /// The node that the block is for.
    #[inline]
    pub fn dest(&self) -> Option<NodeId> {
        NodeId::new(self.dest.get())
    }

    /// The session of the link, as the sender sees it.
    #[inline]
    pub fn session(&self) -> u32 {
        self.session.get()
    }

    /// Bytes after the header.
    #[inline]
    pub fn length(&self) -> usize {
        self.length.get() as usize
    }

    /// Number of the block in its session, from 0.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.sequence.get()
    }

    /// For a control block: the round in which it was written.
    pub(crate) fn round(&self) -> u32 {
        self.stream.get()
    }

    /// Number of messages in the block, as counted by its sender.
    #[inline]
    pub fn messages(&self) -> u32 {
        self.messages.get()
    }

    /// Whether all of these flag bits are set.
    #[inline]
    pub fn has(&self, flags: u16) -> bool {
        self.flags.get() & flags == flags
    }
}

/// CRC-32 over the header, with its checksum field taken as zero, and the body.
pub(crate) fn checksum(header: &BlockHeader, body: &[u8]) -> u32 {
    let mut clean = *header;
    clean.checksum.set(0);
    let mut crc = Hasher::new();
    crc.update(clean.as_bytes());
    crc.update(body);
    crc.finalize()
}

/// What a CDU is (`type` of the ten-tuple).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CduClass {
    /// A short message between parts.
    ShortMessage = 0,
    /// A command; overtakes messages and streams.
    Command = 1,
    /// A segment of a stream.
    Stream = 2,
}

/// The header of a train of `count` ≥ 1 messages of `length` bytes each between the same two parts: the `RemoteMsg`/`LocalMsg`
/// layer of MESP. A single message is a train of one.
///
/// ```text
///  0       1       2         4             6           8        12       16
///  +-------+-------+---------+-------------+-----------+--------+--------+
///  | class | zero  | command | source part | dest part | length | count  |
///  +-------+-------+---------+-------------+-----------+--------+--------+
///  [relay extension, 8 bytes] [segment extension, 16 bytes] [destination set, 8 + 4·n bytes, padded to 8] data, padded to 8
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CduHeader {
    pub(crate) class: u8,
    pub(crate) zero: u8,
    pub(crate) command: U16,
    pub(crate) source_part: U16,
    pub(crate) dest_part: U16,
    pub(crate) length: U32,
    pub(crate) count: U32,
}

/// In [`CduHeader::class`]: a segment extension follows.
pub(crate) const HAS_SEGMENT: u8 = 0x10;
/// In [`CduHeader::class`]: a destination set follows.
pub(crate) const HAS_SET: u8 = 0x20;

/// In [`CduHeader::class`]: a relay extension follows.
pub(crate) const HAS_VIA: u8 = 0x40;

/// Maximum number of empty messages in one train. They take no room, so this bounds the work that a block can cause its reader.
pub(crate) const MOST_EMPTY: u32 = 256;

/// Extension of relayed messages. The nodes in the block header are the ends of one link on the route; these are the ends of the
/// route.
///
/// ```text
///  0        2        4        8
///  +--------+--------+--------+
///  | origin | dest   | zero   |
///  +--------+--------+--------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ViaHeader {
    pub(crate) origin: U16,
    pub(crate) dest: U16,
    pub(crate) zero: [u8; 4],
}

/// The ends of the route of relayed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via {
    /// The node of the sending part.
    pub origin: NodeId,
    /// The destination node.
    pub dest: NodeId,
}

impl ViaHeader {
    #[inline]
    pub(crate) fn read(&self) -> Option<Via> {
        let (origin, dest) = (NodeId::new(self.origin.get())?, NodeId::new(self.dest.get())?);
        (self.zero == [0; 4]).then_some(Via { origin, dest })
    }
}

/// Extension of a message longer than a block, which travels in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SegmentHeader {
    pub(crate) message: U32,
    pub(crate) segment: U32,
    pub(crate) total: U64,
}

impl SegmentHeader {
    /// Segment number of a message that was abandoned. Such a segment has no bytes.
    pub(crate) const ABORTED: u32 = u32::MAX;

    /// Segment number `segment` of message `message` of its source part, which has `total` bytes.
    pub fn new(message: u32, segment: u32, total: u64) -> Self {
        Self { message: message.into(), segment: segment.into(), total: total.into() }
    }

    /// Number of the segmented message among those of its source part.
    pub fn message(&self) -> u32 {
        self.message.get()
    }

    /// Number of this segment in its message, from 0 (`Segno`).
    pub fn segment(&self) -> u32 {
        self.segment.get()
    }

    /// Bytes of the whole message.
    pub fn total(&self) -> u64 {
        self.total.get()
    }
}

/// Extension that lists all destinations of a message to several parts; `count` part ids follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SetHeader {
    pub(crate) count: U16,
    pub(crate) zero: [u8; 6],
}

/// `bytes` rounded up to the 8-byte grid on which CDU headers lie.
pub(crate) const fn padded(bytes: usize) -> usize {
    (bytes + 7) & !7
}
