//! The CDU, the unit of all transfer, and its layered wire format (S0; SPEC §1, MESP in §2).
//!
//! The documents define the ten-tuple `CDU(id, Sno, Segno, SourceN, SourceP, DestNS, DestPS, type, COM, DATA)`. On the wire its
//! fields are spread over layers, so each is sent as rarely as possible; [`Cdu`] presents them as one value again.
//!
//! ```text
//!  block:  | block header 64 | train | train | … |          nodes, link sequence, session, stream: once per block
//!  train:  | CDU header 16 | extensions | m | m | m | pad |  parts, type, command, length: once per run of messages
//!  m:      | data |                                          nothing but the user's bytes
//! ```
//!
//! All numbers are little-endian. CDU headers are aligned to 8 bytes, counted from the start of the block. The wire format has a
//! version number; blocks of any other version are refused.
//!
//! Consecutive messages with the same parts, class, command and length form a *train* and share one header. Messages that go
//! through a [relay](crate::routing) carry the end nodes of their route in an extension, and the relay copies them from block to
//! block. A message to several parts carries the whole set of destinations, once per destination *node*.

#[cfg(any(test, feature = "small-crc"))]
mod crc;
mod header;
mod pack;
#[cfg(test)]
mod tests;

use zerocopy::FromBytes;

pub use header::{
    BLOCK_HEADER, BlockClass, BlockHeader, CDU_HEADER, CduClass, CduHeader, MAGIC, Malformed, SegmentHeader,
    VERSION, VIA_HEADER, Via, flag,
};
pub(crate) use header::{HAS_SEGMENT, HAS_SET, HAS_VIA, checksum};
use header::{MOST_EMPTY, SetHeader, ViaHeader, padded};
pub use pack::{COUNT_AT, Full, Lent, Packed, Packer, Route};

use crate::id::{NodeId, PartId, StreamNo};

/// The identifier of a CDU: its link, the number of its block on that link, and its index in the block.
///
/// Sender and receiver derive the same value, so a sender can learn which CDUs a failed peer did not receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CduId {
    /// The sending node.
    pub source: NodeId,
    /// The receiving node.
    pub dest: NodeId,
    /// Number of the block on the link from `source` to `dest`.
    pub sequence: u64,
    /// Number of the message in the block.
    pub index: u32,
}

/// One CDU with the ten fields of the documents, assembled from the layers.
#[derive(Clone, Copy, Debug)]
pub struct Cdu<'a> {
    /// `id`.
    pub id: CduId,
    /// `Sno`, for a CDU of a stream.
    pub stream: Option<StreamNo>,
    /// `Segno`: segment of a stream, or of a message longer than a block.
    pub segment: u32,
    /// `SourceN` and `SourceP`.
    pub source: PartId,
    /// `DestNS` and `DestPS`.
    pub dest: Destinations<'a>,
    /// `type`.
    pub class: CduClass,
    /// `COM`.
    pub command: u16,
    /// `DATA`.
    pub data: &'a [u8],
}

/// The destinations of a CDU.
#[derive(Clone, Copy, Debug)]
pub enum Destinations<'a> {
    /// A single part.
    One(PartId),
    /// A set, in wire format: four bytes per part.
    Set(&'a [u8]),
}

impl<'a> Destinations<'a> {
    /// `DestPS`: all destination parts, in the sender's order.
    pub fn parts(&self) -> impl Iterator<Item = PartId> + Clone + use<'a> {
        let (one, set) = match *self {
            Self::One(part) => (Some(part), &[][..]),
            Self::Set(set) => (None, set),
        };
        let set = set
            .chunks_exact(4)
            .filter_map(|b| PartId::from_raw(b.try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX)));
        one.into_iter().chain(set)
    }

    /// `DestNS`: the destination nodes, each once.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + 'a {
        let parts = self.parts();
        let before = parts.clone();
        parts
            .enumerate()
            .filter(move |&(i, part)| !before.clone().take(i).any(|earlier| earlier.node() == part.node()))
            .map(|(_, part)| part.node())
    }
}

/// A run of messages of equal length that share a header.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    header: CduHeader,
    via: Option<Via>,
    segment: Option<SegmentHeader>,
    set: &'a [u8],
    data: &'a [u8],
}

impl<'a> Train<'a> {
    /// Class of the messages.
    pub fn class(&self) -> CduClass {
        match self.header.class & 0x0F {
            1 => CduClass::Command,
            2 => CduClass::Stream,
            _ => CduClass::ShortMessage,
        }
    }

    /// Command number of the messages.
    pub fn command(&self) -> u16 {
        self.header.command.get()
    }

    /// The sending part's index on its node.
    pub fn source_part(&self) -> u16 {
        self.header.source_part.get()
    }

    /// The receiving part's index on the block's destination node; `None` if there is a destination set.
    pub fn dest_part(&self) -> Option<u16> {
        if self.set.is_empty() { Some(self.header.dest_part.get()) } else { None }
    }

    /// The ends of the route if the messages were relayed: these, rather than the block's nodes, then host the parts.
    pub fn via(&self) -> Option<Via> {
        self.via
    }

    /// The route, unless the train has a segment number or a destination set.
    pub(crate) fn plain_route(&self) -> Option<Route> {
        let CduHeader { class, .. } = self.header;
        let plain = self.segment.is_none() && self.set.is_empty();
        plain.then(|| {
            Route::raw(class & 0x0F, self.command(), self.source_part(), self.header.dest_part.get())
        })
    }

    /// The destination set; empty for a single destination.
    pub fn set(&self) -> Destinations<'a> {
        Destinations::Set(self.set)
    }

    /// The segment extension of a message longer than a block.
    pub fn segment(&self) -> Option<&SegmentHeader> {
        self.segment.as_ref()
    }

    /// Bytes of each message.
    pub fn length(&self) -> usize {
        self.header.length.get() as usize
    }

    /// Number of messages.
    pub fn count(&self) -> u32 {
        self.header.count.get()
    }

    /// The bytes of all messages, back to back.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The messages.
    pub fn messages(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (data, length) = (self.data, self.length());
        (0..self.count() as usize).map(move |i| data.get(i * length..(i + 1) * length).unwrap_or(&[]))
    }

    /// The CDUs of this train, given the block's header and the index `first` of the train's first message in the block.
    pub fn cdus(&self, block: &BlockHeader, first: u32) -> Option<impl Iterator<Item = Cdu<'a>> + use<'a>> {
        let (node, dest_node) = (block.source()?, block.dest()?);
        let Via { origin, dest } = self.via.unwrap_or(Via { origin: node, dest: dest_node });
        let source = PartId::new(origin, self.source_part())?;
        let dest = match self.dest_part() {
            Some(part) => Destinations::One(PartId::or_node(dest, part)?),
            None => Destinations::Set(self.set),
        };
        let (class, command) = (self.class(), self.command());
        let stream = (class == CduClass::Stream).then(|| StreamNo(block.stream.get()));
        let segment = match self.segment {
            Some(extension) => extension.segment(),
            None => block.segment.get(),
        };
        let sequence = block.sequence();
        Some(self.messages().zip(first..).map(move |(data, index)| Cdu {
            id: CduId { source: node, dest: dest_node, sequence, index },
            stream,
            segment,
            source,
            dest,
            class,
            command,
            data,
        }))
    }
}

/// Sender and kind of a train without extensions, the common case: the first word of a valid header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRoute {
    pub(crate) class: CduClass,
    pub(crate) command: u16,
    pub(crate) source_part: u16,
}

impl PlainRoute {
    /// `None` for any other train, or an invalid one; [`Cdus`] distinguishes the two.
    #[inline]
    pub(crate) fn read(word: u64) -> Option<Self> {
        // The class, and a byte that must be zero.
        let class = match word as u16 {
            0 => CduClass::ShortMessage,
            1 => CduClass::Command,
            _ => return None,
        };
        let is_to_one = (word >> 48) as u16 != PartId::MANY;
        is_to_one.then_some(Self { class, command: (word >> 16) as u16, source_part: (word >> 32) as u16 })
    }
}

/// The messages of such a train: the second word of its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRun {
    /// Bytes of each message.
    pub(crate) length: u32,
    pub(crate) count: u32,
    /// Bytes of messages and padding.
    pub(crate) size: u64,
}

impl PlainRun {
    /// `None` as for [`PlainRoute::read`].
    #[inline]
    pub(crate) fn read(word: u64) -> Option<Self> {
        let (length, count) = (word as u32, (word >> 32) as u32);
        // This fits in a `u64`, even with padding.
        let bytes = u64::from(length) * u64::from(count);
        (bytes > 0).then_some(Self { length, count, size: (bytes + 7) & !7 })
    }
}

/// The first two words of `rest`, and what follows them.
#[inline]
pub(crate) fn header_words(rest: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (header, rest) = rest.split_first_chunk::<CDU_HEADER>()?;
    let header = u128::from_le_bytes(*header);
    Some((header as u64, (header >> 64) as u64, rest))
}

/// Iterates over the trains of a block body from an untrusted source. Arbitrary bytes cause errors, but never a panic or access to
/// bytes outside the body.
#[derive(Clone, Debug)]
pub struct Cdus<'a> {
    rest: &'a [u8],
}

impl<'a> Cdus<'a> {
    /// The trains of `body`, the bytes after a block header.
    pub const fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Bytes not read yet.
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Reads all trains of `body` and returns the number of messages in them.
    ///
    /// # Errors
    /// The first error found in any of them.
    pub fn validate(body: &'a [u8]) -> Result<u64, Malformed> {
        let mut messages = 0u64;
        for train in Self::new(body) {
            messages = messages.saturating_add(u64::from(train?.count()));
        }
        Ok(messages)
    }

    #[inline]
    fn read(&mut self) -> Result<Train<'a>, Malformed> {
        // A copy, so that the checked values are the ones used, even if somebody can write to the block.
        let (header, rest) = CduHeader::read_from_prefix(self.rest).map_err(|_| Malformed::Truncated)?;
        if header.class > CduClass::Stream as u8 {
            return self.read_extended(header, rest);
        }
        if header.dest_part.get() == PartId::MANY {
            return Err(Malformed::Field);
        }
        self.finish(header, None, None, &[], rest)
    }

    #[inline(never)]
    fn read_extended(&mut self, header: CduHeader, mut rest: &'a [u8]) -> Result<Train<'a>, Malformed> {
        let known = HAS_SEGMENT | HAS_SET | HAS_VIA | 0x0F;
        if header.class & !known != 0 || header.class & 0x0F > CduClass::Stream as u8 {
            return Err(Malformed::Field);
        }
        let mut via = None;
        if header.class & HAS_VIA != 0 {
            let (extension, after) = ViaHeader::read_from_prefix(rest).map_err(|_| Malformed::Extension)?;
            (via, rest) = (Some(extension.read().ok_or(Malformed::Extension)?), after);
        }
        let mut segment = None;
        if header.class & HAS_SEGMENT != 0 {
            let (extension, after) =
                SegmentHeader::read_from_prefix(rest).map_err(|_| Malformed::Extension)?;
            (segment, rest) = (Some(extension), after);
        }
        let mut set = &[][..];
        if header.class & HAS_SET != 0 {
            let (extension, after) = SetHeader::read_from_prefix(rest).map_err(|_| Malformed::Extension)?;
            let bytes = 4 * usize::from(extension.count.get());
            if bytes == 0 || extension.zero != [0; 6] || header.dest_part.get() != PartId::MANY {
                return Err(Malformed::Extension);
            }
            set = after.get(..bytes).ok_or(Malformed::Extension)?;
            rest = after.get(padded(bytes)..).ok_or(Malformed::Extension)?;
            let named = |b: &[u8]| b.try_into().ok().and_then(|b| PartId::from_raw(u32::from_le_bytes(b)));
            if set.chunks_exact(4).any(|b| named(b).is_none()) {
                return Err(Malformed::Extension);
            }
        } else if header.dest_part.get() == PartId::MANY {
            return Err(Malformed::Field);
        }
        self.finish(header, via, segment, set, rest)
    }

    /// Reads what all trains have in common: `count` messages of `length` bytes, padded.
    #[inline]
    fn finish(
        &mut self,
        header: CduHeader,
        via: Option<Via>,
        segment: Option<SegmentHeader>,
        set: &'a [u8],
        rest: &'a [u8],
    ) -> Result<Train<'a>, Malformed> {
        let (length, count) = (u64::from(header.length.get()), u64::from(header.count.get()));
        if header.zero != 0
            || count == 0
            || (segment.is_some() && count != 1)
            || (length == 0 && count > u64::from(MOST_EMPTY))
        {
            return Err(Malformed::Field);
        }
        // The product of two `u32` never overflows a `u64`.
        let bytes = usize::try_from(length * count).map_err(|_| Malformed::Length)?;
        let data = rest.get(..bytes).ok_or(Malformed::Length)?;
        self.rest = rest.get(padded(bytes)..).ok_or(Malformed::Length)?;
        Ok(Train { header, via, segment, set, data })
    }
}

impl<'a> Iterator for Cdus<'a> {
    type Item = Result<Train<'a>, Malformed>;

    /// Returns the next train. After an error, returns `None`.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let train = self.read();
        if train.is_err() {
            self.rest = &[];
        }
        Some(train)
    }
}
