//! Frames between gateways, and commands between parts and their gateway.

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A train of messages of one length from one part to another.
    Data = 1,
    /// Acknowledges bytes (`length`) and messages (`count`) for a part of the other cluster, handed on or returned.
    Taken = 2,
    /// Asks for a part by its address; the question has a number.
    Find = 3,
    /// Answers with the part.
    Found = 4,
    /// Answers that no such part exists, and why.
    Unknown = 5,
    /// A part that the other cluster has heard of has gone.
    Gone = 6,
    /// Messages that could not be handed on; the rest of the `Data` frame received.
    Return = 7,
    /// The next piece of a stream.
    Stream = 8,
    /// A stream is no longer read.
    Stop = 9,
    /// The room at this end, in KiB (`length`), and its longest message, in KiB (`count`).
    Room = 10,
    /// A step of a farewell, [`bye`].
    Bye = 11,
    /// Asks for the addresses of all parts; the question has a number.
    List = 12,
    /// Addresses, each followed by a newline; with `MORE`, further ones follow.
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
/// In [`Head::flags`]: more bytes of this message come in the next frame.
pub(crate) const MORE: u8 = 2;
/// In [`Head::flags`]: the stream ends after this, finished by its writer.
pub(crate) const LAST: u8 = 4;
/// In [`Head::flags`]: the stream ends here, given up by its writer.
pub(crate) const BROKEN: u8 = 8;
/// In [`Head::flags`]: the stream begins with this.
pub(crate) const FIRST: u8 = 16;

/// The head of each frame. Numbers are little-endian on the wire.
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
    /// Bytes of each message; of `Taken`, bytes taken; of questions and answers, their number.
    pub(crate) length: u32,
    /// Number of messages; of a stream, its number on the trunk, counted by the end that writes it; of a farewell, its step.
    pub(crate) count: u32,
    /// The sending part, as known in its own cluster.
    pub(crate) origin: u64,
    /// The destination part, as known in its own cluster.
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

    /// Reads a frame's head and content; `None` if it is not a frame of this version.
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

/// The steps of a farewell: [`Head::count`] of `Bye`. Each follows everything that its end has sent before.
pub(crate) mod bye {
    /// This end is about to end: send it nothing new.
    pub(crate) const LEAVES: u32 = 1;
    /// Nothing new will come.
    pub(crate) const NOTHING_NEW: u32 = 2;
    /// All that was received has been handed on or returned; nothing more will come.
    pub(crate) const DONE: u32 = 3;
    /// Confirms `DONE`.
    pub(crate) const KNOWN: u32 = 4;
}

/// Commands between a part that looks up a part of another cluster, and the gateway; and between gateway and nodes.
pub(crate) mod command {
    /// To the gateway: asks for an address, given without the cluster.
    pub(crate) const FIND: u16 = 1;
    /// The answer: the target's bits. Not sent as a command.
    pub(crate) const FOUND: u16 = 2;
    /// From the gateway: why there is no such part.
    pub(crate) const UNKNOWN: u16 = 3;
    /// To a node: send nothing to this proxy.
    pub(crate) const STOP: u16 = 4;
    /// To a node: sending to this proxy is allowed again.
    pub(crate) const GO: u16 = 5;
    /// To the gateway: asks for the addresses of all parts of its cluster.
    pub(crate) const LIST: u16 = 7;
    /// The answer: some addresses, each followed by a newline.
    pub(crate) const SOME: u16 = 8;
    /// The last of them.
    pub(crate) const LISTED: u16 = 9;
    /// The answer: why this cluster has no room for the part that was found.
    pub(crate) const NO_ROOM: u16 = 10;
    /// To a node: asks for a part of it that has no name.
    pub(crate) const EXISTS: u16 = 11;
    /// The answer, if that part has gone. If it has not, there is none.
    pub(crate) const GONE: u16 = 12;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever parses as a frame is written back unchanged, and nothing panics.
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
