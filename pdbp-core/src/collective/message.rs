//! The header of messages between members.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::element::{Element, Op};
use super::{Call, Kind};

/// Bytes of the header of each message.
pub const HEADER: usize = size_of::<Header>();

/// A call as described in messages. For a tagged message, the number is the tag.
#[derive(Clone, Copy, Debug, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Stamp {
    number: U32,
    root: U16,
    kind: u8,
    op: u8,
    bytes: U64,
    element: u8,
}

impl Stamp {
    pub(super) fn new(number: u32, call: &Call) -> Self {
        Self {
            number: number.into(),
            root: (call.root as u16).into(),
            kind: call.kind as u8,
            op: call.op.map_or(0, |op| op as u8),
            bytes: (call.bytes as u64).into(),
            element: call.element as u8,
        }
    }

    /// A stamp that only marks a message as concerning tagged messages.
    pub(super) fn tagged() -> Self {
        Self { kind: Kind::Tagged as u8, ..Self::default() }
    }

    /// The stamp in two words, for members that show each other their calls by other means than messages. For data shorter than 2⁵⁶
    /// bytes.
    #[inline]
    pub(super) fn to_words(self) -> [u64; 2] {
        let what = u64::from(self.root.get()) | u64::from(self.kind) << 16 | u64::from(self.op) << 24;
        [u64::from(self.number.get()) | what << 32, self.bytes.get() | u64::from(self.element) << 56]
    }

    pub(super) fn from_words([what, data]: [u64; 2]) -> Self {
        Self {
            number: (what as u32).into(),
            root: ((what >> 32) as u16).into(),
            kind: (what >> 48) as u8,
            op: (what >> 56) as u8,
            bytes: (data << 8 >> 8).into(),
            element: (data >> 56) as u8,
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number.get()
    }

    pub(super) fn is_tagged(&self) -> bool {
        self.kind == Kind::Tagged as u8
    }

    /// Returns the call it describes; `None` if it is invalid.
    pub(super) fn call(&self) -> Option<Call> {
        let op = if self.op == 0 { None } else { Some(Op::from_code(self.op)?) };
        Some(Call {
            kind: Kind::from_code(self.kind)?,
            element: Element::from_code(self.element)?,
            op,
            root: self.root.get().into(),
            bytes: usize::try_from(self.bytes.get()).ok()?,
        })
    }
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MessageKind {
    /// A piece of data of a call.
    Data = 1,
    /// Acknowledges this many pieces.
    Taken = 2,
    /// The sender waits for the receiver in this call.
    Waiting = 3,
    /// The group has ended: the stamp's kind holds the fault's code, its root the rank concerned.
    Fault = 4,
    /// The sender has left and will send nothing more.
    Left = 5,
    /// A greeting.
    Greeting = 6,
    /// The sender has given up joining: it has made no call, and will send nothing more.
    Withdrawn = 7,
}

/// Returns the rank that a message claims to come from; `None` if it is invalid. The carrier must verify it.
pub fn sender(message: &[u8]) -> Option<usize> {
    Header::read_from_prefix(message).ok().map(|(header, _)| header.from())
}

/// Returns what follows the header of a [greeting](super::Member::greeting); `None` for other messages.
pub fn greeting(message: &[u8]) -> Option<&[u8]> {
    let (header, rest) = Header::read_from_prefix(message).ok()?;
    (header.kind() == Some(MessageKind::Greeting)).then_some(rest)
}

/// Whether a message announces that its sender [has given up joining](super::Member::withdraw).
pub fn is_withdrawal(message: &[u8]) -> bool {
    Header::read_from_prefix(message).is_ok_and(|(header, _)| header.kind() == Some(MessageKind::Withdrawn))
}

/// The header of a message. It is 24 bytes long, so that values after it are aligned like blocks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    pub(super) stamp: Stamp,
    kind: u8,
    from: U16,
    taken: U32,
}

const _: () = assert!(size_of::<Header>() == 24);

impl Header {
    pub(super) fn new(kind: MessageKind, from: usize, taken: u32, stamp: Stamp) -> Self {
        Self { stamp, kind: kind as u8, from: (from as u16).into(), taken: taken.into() }
    }

    /// The header of a message that a group has ended.
    pub(super) fn fault(from: usize, code: (u8, usize)) -> Self {
        let (kind, rank) = code;
        let stamp = Stamp { kind, root: (rank as u16).into(), ..Stamp::default() };
        Self::new(MessageKind::Fault, from, 0, stamp)
    }

    pub(super) fn fault_code(&self) -> (u8, usize) {
        (self.stamp.kind, self.stamp.root.get().into())
    }

    pub(super) fn kind(&self) -> Option<MessageKind> {
        Some(match self.kind {
            1 => MessageKind::Data,
            2 => MessageKind::Taken,
            3 => MessageKind::Waiting,
            4 => MessageKind::Fault,
            5 => MessageKind::Left,
            6 => MessageKind::Greeting,
            7 => MessageKind::Withdrawn,
            _ => return None,
        })
    }

    pub(super) fn from(&self) -> usize {
        self.from.get().into()
    }

    pub(super) fn taken(&self) -> u32 {
        self.taken.get()
    }
}

/// Compares all bytes at once, since the type has no padding.
impl PartialEq for Stamp {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Default for Stamp {
    fn default() -> Self {
        Self { number: 0.into(), root: 0.into(), kind: 0, op: 0, bytes: 0.into(), element: 0 }
    }
}
