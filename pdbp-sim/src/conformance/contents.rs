//! The contents of the suite's blocks: every byte follows from the link and its session, the number of the block in that, and the length.
//!
//! ```text
//!  0          8        10       12        16         24       28        32
//!  +----------+--------+--------+---------+----------+--------+---------+----------------+
//!  | "PDBPtest" source | dest   | kind    | sequence | length | session | pattern …      |
//!  +----------+--------+--------+---------+----------+--------+---------+----------------+
//! ```

use pdbp_core::id::NodeId;

use crate::random::Random;

const MAGIC: [u8; 8] = *b"PDBPtest";
/// Number of bytes before the pattern; a block without a body has a pattern too.
const HEAD: usize = 32;

/// The purpose of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Traffic of a case.
    Data = 1,
    /// Tells the peer that this node has reached a meeting.
    Meet = 2,
}

/// Everything that determines the bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) source: NodeId,
    pub(super) dest: NodeId,
    pub(super) kind: Kind,
    /// The session of the link, for both of its ends.
    pub(super) session: u32,
    pub(super) sequence: u64,
    pub(super) length: usize,
}

impl Contents {
    fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        let fields: [&[u8]; 7] = [
            &MAGIC,
            &self.source.raw().to_le_bytes(),
            &self.dest.raw().to_le_bytes(),
            &(self.kind as u32).to_le_bytes(),
            &self.sequence.to_le_bytes(),
            &(self.length as u32).to_le_bytes(),
            &self.session.to_le_bytes(),
        ];
        for (to, from) in head.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        head
    }

    fn pattern(&self) -> impl Iterator<Item = u8> {
        let seed = self.sequence << 32 | u64::from(self.source.raw()) << 16 | u64::from(self.dest.raw());
        let mut random = Random::new(seed);
        std::iter::from_fn(move || Some(random.next())).flat_map(u64::to_le_bytes)
    }

    /// Writes the block.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        let expected = self.head().into_iter().chain(self.pattern());
        bytes.iter_mut().zip(expected).take(self.length).for_each(|(to, from)| *to = from);
    }

    /// Returns an error that says what is wrong with a block that has arrived in place of this one.
    pub(super) fn compare_arrived(&self, bytes: &[u8]) -> Result<(), String> {
        let other = bytes.get(16..24).and_then(|number| Some(u64::from_le_bytes(number.try_into().ok()?)));
        let Some(sequence) = other.filter(|number| *number != self.sequence) else {
            return self.compare(bytes);
        };
        let kind = if bytes.get(12) == Some(&(Kind::Meet as u8)) { Kind::Meet } else { Kind::Data };
        // An intact block with another number is out of place; anything else was damaged.
        if (Self { kind, sequence, length: bytes.len(), ..*self }).compare(bytes).is_err() {
            return self.compare(bytes);
        }
        Err(if sequence > self.sequence {
            format!("is lost or late: block {sequence} has arrived in its place")
        } else {
            format!("is expected, and block {sequence} has arrived again")
        })
    }

    /// Returns an error that says what differs between `bytes` and the expected block.
    pub(super) fn compare(&self, bytes: &[u8]) -> Result<(), String> {
        if bytes.get(..8) != Some(&MAGIC) {
            return Err("does not begin like a block of the suite: overwritten or never sent".to_owned());
        }
        let number = |range: std::ops::Range<usize>| {
            let bytes = bytes.get(range).unwrap_or(&[]);
            bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b))
        };
        let fields = [
            ("source", number(8..10), u64::from(self.source.raw())),
            ("destination", number(10..12), u64::from(self.dest.raw())),
            ("session", number(28..32), self.session.into()),
            ("number on the link", number(16..24), self.sequence),
            ("kind", number(12..16), self.kind as u64),
            ("length as written", number(24..28), self.length as u64),
            ("length as delivered", bytes.len() as u64, self.length as u64),
        ];
        for (what, found, expected) in fields {
            if found != expected {
                return Err(format!("has {found} as its {what} instead of {expected}"));
            }
        }
        let expected = self.head().into_iter().chain(self.pattern());
        match bytes.iter().zip(expected).position(|(found, expected)| *found != expected) {
            Some(at) => Err(format!("byte {at} of {} differs from what was sent", bytes.len())),
            None => Ok(()),
        }
    }
}
