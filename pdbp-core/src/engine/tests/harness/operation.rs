//! What can happen to a cluster.

use super::{BODY, PARTS};

/// Something that happens to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Send {
        node: usize,
        source: u16,
        to: usize,
        dest: u16,
        length: usize,
    },
    Push {
        node: usize,
        source: u16,
        to: usize,
        dest: u16,
        length: usize,
        urgent: bool,
        segment: bool,
    },
    PushSet {
        node: usize,
        source: u16,
        length: usize,
        mask: u8,
    },
    Submit {
        node: usize,
        to: usize,
        urgent: bool,
    },
    Flush {
        node: usize,
    },
    Poll {
        node: usize,
    },
    /// A waiting host checks for arrivals alone.
    PollArrivals {
        node: usize,
    },
    Read {
        node: usize,
        part: u16,
        count: usize,
        keep: bool,
    },
    Release {
        node: usize,
    },
    Segment {
        node: usize,
        source: u16,
        to: usize,
        dest: u16,
        length: usize,
        last: bool,
    },
    Gate {
        from: usize,
        to: usize,
        closed: bool,
    },
    Busy {
        from: usize,
        to: usize,
        times: u32,
    },
    Flip {
        from: usize,
        to: usize,
        at: u16,
        bits: u8,
    },
    /// The next control blocks from one node to another are unreadable.
    Garble {
        from: usize,
        to: usize,
        times: u32,
    },
    Barrier {
        node: usize,
    },
    Quiet {
        node: usize,
    },
    Wait {
        nanos: u64,
    },
    Kill {
        node: usize,
    },
    /// The link between two nodes fails, if all links are posted, and comes up again.
    Cut {
        from: usize,
        to: usize,
    },
    Mend {
        from: usize,
        to: usize,
    },
    Inject {
        from: usize,
        to: usize,
        seed: u16,
    },
}

impl Operation {
    /// Any four bytes are an operation. The first selects its kind; rare kinds have few values.
    pub fn decode([kind, a, b, c]: [u8; 4], nodes: usize) -> Self {
        let n = |x: u8| usize::from(x) % nodes;
        let (node, to) = (n(a), n(a >> 4));
        let (source, dest) = (u16::from(b) % PARTS, u16::from(b >> 4) % PARTS);
        let length = match c {
            0..128 => usize::from(c) / 2,
            128..192 => usize::from(c) * 2,
            _ => usize::from(c & 1) * (BODY - 16),
        };
        match kind {
            0..32 => Self::Send { node, source, to, dest, length },
            32..64 => {
                Self::Push { node, source, to, dest, length, urgent: b & 4 != 0, segment: b & 0xC8 == 0xC8 }
            }
            64..76 => Self::PushSet { node, source, length: length.min(200), mask: b | 1 },
            76..100 => Self::Submit { node, to, urgent: b & 4 != 0 },
            100..106 => Self::Flush { node },
            106..146 => Self::Poll { node },
            146..160 => Self::PollArrivals { node },
            160..180 => Self::Read { node, part: source, count: usize::from(c) % 8, keep: b & 4 != 0 },
            180..196 => Self::Release { node },
            196..216 => Self::Segment { node, source, to, dest, length, last: b & 0x0C == 0x0C },
            216..222 => Self::Gate { from: node, to, closed: b & 1 != 0 },
            222..228 => Self::Busy { from: node, to, times: u32::from(b % 4) },
            228 => Self::Garble { from: node, to, times: u32::from(b % 4) },
            229..234 => Self::Flip { from: node, to, at: u16::from(b) << 4 | u16::from(c >> 4), bits: c | 1 },
            234..240 => Self::Barrier { node },
            240..246 => Self::Quiet { node },
            246..248 => Self::Wait { nanos: u64::from(b) * 200 },
            248 => Self::Cut { from: node, to },
            249 => Self::Mend { from: node, to },
            250..252 => Self::Kill { node },
            252.. => Self::Inject { from: node, to, seed: u16::from(b) << 8 | u16::from(c) },
        }
    }

    /// Whether it can lose messages, or makes counters report errors.
    pub fn is_hostile(&self) -> bool {
        matches!(
            self,
            Self::Garble { .. }
                | Self::Flip { .. }
                | Self::Kill { .. }
                | Self::Cut { .. }
                | Self::Inject { .. }
        )
    }
}
