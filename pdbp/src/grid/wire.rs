//! What gateways say to each other, and parts to their gateway.

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Messages of one part to another: a train of messages of one length.
    Data = 1,
    /// So many bytes for a part of the other cluster, and messages, have been handed on, or returned.
    Taken = 2,
    /// Asks for a part by its address; the question has a number.
    Find = 3,
    /// The part that was asked for.
    Found = 4,
    /// There is none; says why.
    Unknown = 5,
    /// A part that the other cluster has heard of has gone.
    Gone = 6,
    /// Messages that could not be handed on; `Data` as it came.
    Return = 7,
    /// What comes next of a stream.
    Stream = 8,
    /// A stream that nobody reads any more.
    Stop = 9,
    /// What this end has room for: so many KiB, and so many (`count`) of a message.
    Room = 10,
    /// A step of a farewell, [`bye`].
    Bye = 11,
    /// Asks for the addresses of all parts; the question has a number.
    List = 12,
    /// Addresses, each with a line end behind it; with `MORE` others follow.
    Listed = 13,
}

impl Kind {
    fn read(byte: u8) -> Option<Self> {
        const ALL: [Kind; 13] = [
            Kind::Data,
            Kind::Taken,
            Kind::Find,
            Kind::Found,
            Kind::Unknown,
            Kind::Gone,
            Kind::Return,
            Kind::Stream,
            Kind::Stop,
            Kind::Room,
            Kind::Bye,
            Kind::List,
            Kind::Listed,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// In [`Head::flags`]: sent as a command.
pub(crate) const COMMAND: u8 = 1;
/// In [`Head::flags`]: more bytes of this come in the next frame.
pub(crate) const MORE: u8 = 2;
/// In [`Head::flags`]: the stream ends behind this, since its writer has finished it.
pub(crate) const LAST: u8 = 4;
/// In [`Head::flags`]: the stream ends here, since its writer has given it up.
pub(crate) const BROKEN: u8 = 8;
/// In [`Head::flags`]: the stream begins with this.
pub(crate) const FIRST: u8 = 16;

/// What each frame begins with. Numbers are little-endian on the wire.
///
/// ```text
///  0      1       2         4        8       12    16       24     32
///  +------+-------+---------+--------+-------+-----+--------+------+
///  | kind | flags | command | length | count | 0   | origin | dest | bytes
///  +------+-------+---------+--------+-------+-----+--------+------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    /// `COM` of the messages.
    pub(crate) command: u16,
    /// Bytes of each message; of `Taken` bytes that were taken; of questions and answers their number.
    pub(crate) length: u32,
    /// Messages; of streams their number on the trunk, as the end counts them from which they come; of a farewell its step.
    pub(crate) count: u32,
    /// The part that has sent them, as its own cluster knows it.
    pub(crate) origin: u64,
    /// The part that they are for, as its own cluster knows it.
    pub(crate) dest: u64,
}

/// Bytes of a head.
pub(crate) const HEAD: usize = 32;

impl Head {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, flags: 0, command: 0, length: 0, count: 0, origin: 0, dest: 0 }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let Self { kind, flags, command, length, count, origin, dest } = self;
        let first = u64::from(kind as u8)
            | u64::from(flags) << 8
            | u64::from(command) << 16
            | u64::from(length) << 32;
        let words = [first, u64::from(count), origin, dest].map(u64::to_le_bytes);
        let mut bytes = [0; HEAD];
        bytes.copy_from_slice(words.as_flattened());
        bytes
    }

    /// A frame's head and its bytes; `None` if it is none of this version.
    pub(crate) fn read(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (head, bytes) = frame.split_first_chunk::<HEAD>()?;
        let (words, _) = head.as_chunks::<8>();
        let [first, count, origin, dest] = <[[u8; 8]; 4]>::try_from(words).ok()?.map(u64::from_le_bytes);
        let [kind, flags, ..] = first.to_le_bytes();
        let head = Self {
            kind: Kind::read(kind)?,
            flags: Some(flags).filter(|flags| flags & !(COMMAND | MORE | LAST | BROKEN | FIRST) == 0)?,
            command: (first >> 16) as u16,
            length: (first >> 32) as u32,
            count: u32::try_from(count).ok()?,
            origin,
            dest,
        };
        Some((head, bytes))
    }
}

/// The steps of a farewell: [`Head::count`] of `Bye`. Each is behind all that its end has said before.
pub(crate) mod bye {
    /// This end is about to end: it is to be sent nothing new.
    pub(crate) const LEAVES: u32 = 1;
    /// Nothing new comes any more.
    pub(crate) const NOTHING_NEW: u32 = 2;
    /// All that has come was handed on or returned; nothing comes any more.
    pub(crate) const DONE: u32 = 3;
    /// That has come.
    pub(crate) const KNOWN: u32 = 4;
}

/// Commands between a part that looks another cluster's part up and its gateway.
pub(crate) mod command {
    /// To the gateway: the address, without the cluster.
    pub(crate) const FIND: u16 = 1;
    /// The answer: the target, as its bits. It does not travel as a command.
    pub(crate) const FOUND: u16 = 2;
    /// From it: why there is none.
    pub(crate) const UNKNOWN: u16 = 3;
    /// To a node: nothing is to be sent to this proxy.
    pub(crate) const STOP: u16 = 4;
    /// To a node: it may be sent to again.
    pub(crate) const GO: u16 = 5;
    /// From a node: nothing for the proxy leaves any more.
    pub(crate) const STOPPED: u16 = 6;
    /// To the gateway: asks for the addresses of all parts of its cluster.
    pub(crate) const LIST: u16 = 7;
    /// The answer: some addresses, each with a line end behind it.
    pub(crate) const SOME: u16 = 8;
    /// The last of them.
    pub(crate) const LISTED: u16 = 9;
    /// The answer: why this cluster has no place for the part that was found.
    pub(crate) const NO_ROOM: u16 = 10;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is taken for a frame is written back as it came, and nothing panics.
        #[test]
        fn frames_that_are_read_are_written_the_same(bytes in proptest::collection::vec(0u8..14, 0..48)) {
            match Head::read(&bytes) {
                Some((head, rest)) => {
                    prop_assert_eq!(&head.to_bytes()[..], &bytes[..HEAD]);
                    prop_assert_eq!(rest, &bytes[HEAD..]);
                }
                None => prop_assert!(
                    bytes.len() < HEAD || !(1..=13).contains(&bytes[0]) || bytes[1] > 31 || bytes[12..16] != [0; 4]
                ),
            }
        }
    }
}
