//! The contents of the traffic's messages: every byte follows from the link, the sender's life, the number and the length.
//!
//! ```text
//!  0        2      4      7     8        16        24
//!  +--------+------+------+-----+--------+---------+-----------+
//!  | source | dest | life | channel | number | sent at | pattern … |
//!  +--------+------+------+-----+--------+---------+-----------+
//! ```
//!
//! A message to a set of parts contains one of these for each node, all of one length.

use crate::random::Random;

/// Bytes of the shortest message of the traffic.
pub const PAYLOAD: usize = 24;

/// How a message leaves its host. Messages on the same channel to the same node keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Channel {
    /// Packed with others.
    Packed,
    /// In an urgent block of its own.
    Urgent,
    /// A record of a stream, which is read stream by stream.
    Stream,
}

impl Channel {
    pub(super) const ALL: [Self; 3] = [Self::Packed, Self::Urgent, Self::Stream];
}

/// The fields of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) source: u16,
    pub(super) dest: u16,
    /// Below 2^24.
    pub(super) life: u32,
    pub(super) channel: Channel,
    /// Its position among the messages that this life has sent on this channel of this link, from 0.
    pub(super) number: u64,
    /// When it should have been sent: nanoseconds of virtual time.
    pub(super) sent_at: u64,
    /// For a message to a set of parts: the number of nodes; else 0.
    pub(super) nodes: u8,
}

/// Number of bits of the channel in its byte; the others hold the number of nodes.
const CHANNEL: u32 = 4;

impl Payload {
    /// The pattern of the bytes after the fields. Its beginning differs for each message, so that mixed-up halves are detected.
    fn pattern(&self) -> impl Iterator<Item = u8> {
        let seed = u64::from(self.source) << 48 ^ u64::from(self.dest) << 32 ^ u64::from(self.life) << 20;
        let mut random = Random::new(seed ^ (self.channel as u64) << 56 ^ self.number);
        std::iter::from_fn(move || Some(random.next())).flat_map(u64::to_le_bytes)
    }

    pub(super) fn write(&self, length: usize, into: &mut Vec<u8>) {
        into.clear();
        self.append(length, into);
    }

    pub(super) fn append(&self, length: usize, into: &mut Vec<u8>) {
        into.extend(self.source.to_le_bytes());
        into.extend(self.dest.to_le_bytes());
        let channel = self.channel as u32 | u32::from(self.nodes) << CHANNEL;
        into.extend((self.life | channel << 24).to_le_bytes());
        into.extend(self.number.to_le_bytes());
        into.extend(self.sent_at.to_le_bytes());
        into.extend(self.pattern().take(length.saturating_sub(PAYLOAD)));
    }

    /// Parses only the fields.
    pub(super) fn fields(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize, length: usize| {
            let bytes = bytes.get(at..at + length)?;
            Some(bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)))
        };
        let channel = number(7, 1)? as usize;
        let nodes = (channel >> CHANNEL) as u8;
        Some(Self {
            source: number(0, 2)? as u16,
            dest: number(2, 2)? as u16,
            life: number(4, 3)? as u32,
            channel: *Channel::ALL.get(channel & ((1 << CHANNEL) - 1))?,
            nodes,
            number: number(8, 8)?,
            sent_at: number(16, 8)?,
        })
    }

    /// Parses a message; the error says what does not match.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let payload =
            Self::fields(bytes).ok_or_else(|| format!("a message of {} bytes has no fields", bytes.len()))?;
        let found = bytes.get(PAYLOAD..).unwrap_or(&[]);
        match found.iter().zip(payload.pattern()).position(|(found, sent)| *found != sent) {
            Some(at) => Err(format!("byte {} of {} differs from what was sent", PAYLOAD + at, bytes.len())),
            None => Ok(payload),
        }
    }
}
