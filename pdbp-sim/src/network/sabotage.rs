//! Deliberate faults, to check that tests detect them: at node 1 (or 0, the primary), from a certain block of a posted link on, and
//! in how a host uses its endpoint. Faults of the endpoint itself are those of `pdbp_core::flaw`.

use pdbp_core::Event;
use pdbp_core::cdu::{BLOCK_HEADER, BlockClass, BlockHeader, CDU_HEADER, CduClass, Cdus, flag};
use pdbp_core::mesp::Control;

/// What is broken. All but `Deafen` and `Keep` strike once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// A block does not arrive.
    Swallow,
    /// The messages of a block arrive again, in place of those of the next block.
    Double,
    /// The number of a message is one too large.
    Skip,
    /// A byte changes.
    Corrupt,
    /// A block is lost together with the room posted for it.
    LosePost,
    /// A stream's last segment is not marked as the last.
    LoseEnd,
    /// The number of a segment is one too large.
    SkipSegment,
    /// A train has one more message than its header says.
    ShortTrain,
    /// A command arrives as a message.
    Demote,
    /// The primary believes that a node has arrived at the barrier after its actual one.
    Hasten,
    /// A node asked for its counts believes that everything is quiet.
    Hush,
    /// Nothing arrives any more, although everything is acknowledged.
    Deafen,
    /// Sent blocks do not come back.
    Keep,
}

impl Sabotage {
    /// The node at which it strikes.
    fn place(self) -> u16 {
        u16::from(self != Self::Hasten)
    }

    /// Whether a block with this header can be struck.
    fn wants(self, header: &BlockHeader, bytes: &[u8]) -> bool {
        match self {
            Self::Deafen => true,
            Self::LoseEnd => header.class() == BlockClass::Stream && header.has(flag::LAST),
            Self::SkipSegment => header.class() == BlockClass::Stream,
            Self::ShortTrain => header.class() == BlockClass::Message && bytes[BLOCK_HEADER + COUNT] > 1,
            Self::Demote => header.has(flag::URGENT),
            Self::Hasten => control(header, bytes, ARRIVED).is_some(),
            Self::Hush => control(header, bytes, Control::CountRequest { wave: 0 }).is_some(),
            _ => header.class() == BlockClass::Message,
        }
    }
}

/// Returns where in the block a control message of this type lies.
fn control(header: &BlockHeader, bytes: &[u8], like: Control) -> Option<usize> {
    let mut trains = Cdus::new(&bytes[BLOCK_HEADER..]).flatten();
    let of_control = header.class() == BlockClass::Control;
    let train = trains.find(|train| of_control && train.command() == like.command())?;
    Some(train.data().as_ptr().addr() - bytes.as_ptr().addr())
}

/// Events of its endpoint that a host does not hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hidden {
    /// That a link has failed.
    Failures,
    /// That a relay has stopped a stream.
    Stops,
}

impl Hidden {
    pub(super) fn covers(self, event: &Event) -> bool {
        match event {
            Event::PeerFailed { .. } => self == Self::Failures,
            Event::StreamStopped { .. } => self == Self::Stops,
            _ => false,
        }
    }
}

/// A mistake that a host makes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slip {
    /// A message is sent twice.
    PackTwice,
    /// A message, or a batch, is not read.
    SkipTrain,
    /// No message that comes back is read.
    SkipReturned,
    /// A message to the second part is read again.
    ReadSecondAgain,
}

impl Slip {
    pub(super) fn strikes(self, after: &mut u32) -> bool {
        let strikes = *after == 1;
        *after = after.saturating_sub(1);
        strikes
    }
}

/// What happens to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrives,
    Vanishes,
    VanishesWithItsRoom,
}

const ARRIVED: Control = Control::Arrived { generation: 0, passed: 0 };

/// Offsets in a block's header, and in that of a CDU.
const FLAGS: usize = 36;
const SEGMENT: usize = 44;
const COMMAND: usize = 2;
const COUNT: usize = 12;

#[derive(Debug)]
pub(super) struct Saboteur {
    pub(super) kind: Sabotage,
    /// Number of blocks it could strike but lets pass first.
    pub(super) after: u32,
    pub(super) before: Vec<u8>,
    done: bool,
}

impl Saboteur {
    pub(super) fn new(kind: Sabotage, after: u32) -> Self {
        Self { kind, after, before: Vec::new(), done: false }
    }

    pub(super) fn keeps(&self) -> bool {
        self.kind == Sabotage::Keep && self.after == 0
    }

    pub(super) fn visit(&mut self, to: u16, bytes: &mut [u8]) -> Fate {
        let wanted = BlockHeader::read(bytes).is_ok_and(|header| self.kind.wants(&header, bytes));
        if to != self.kind.place() || self.done || !wanted {
            return Fate::Arrives;
        }
        if self.after > 0 {
            self.after -= 1;
            self.before = bytes.to_vec();
            return Fate::Arrives;
        }
        match self.kind {
            Sabotage::Keep => return Fate::Arrives,
            Sabotage::Deafen => return Fate::Vanishes,
            Sabotage::Double if self.before.len() != bytes.len() => {
                self.before = bytes.to_vec();
                return Fate::Arrives;
            }
            Sabotage::Double => bytes[BLOCK_HEADER..].copy_from_slice(&self.before[BLOCK_HEADER..]),
            Sabotage::Skip => bytes[BLOCK_HEADER + CDU_HEADER + 8] += 1,
            Sabotage::Corrupt => bytes[BLOCK_HEADER + CDU_HEADER + 30] ^= 4,
            Sabotage::LoseEnd => bytes[FLAGS] &= !(flag::LAST as u8),
            Sabotage::SkipSegment => bytes[SEGMENT] += 1,
            Sabotage::ShortTrain => bytes[BLOCK_HEADER + COUNT] -= 1,
            Sabotage::Demote => bytes[BLOCK_HEADER] = CduClass::ShortMessage as u8,
            Sabotage::Hasten => self.put(bytes, ARRIVED),
            Sabotage::Hush => self.put(bytes, Control::CountRequest { wave: 0 }),
            Sabotage::Swallow | Sabotage::LosePost => {}
        }
        self.done = true;
        match self.kind {
            Sabotage::Swallow => Fate::Vanishes,
            Sabotage::LosePost => Fate::VanishesWithItsRoom,
            _ => Fate::Arrives,
        }
    }

    /// Replaces a message of the type of `like` by another.
    fn put(&self, bytes: &mut [u8], like: Control) {
        let at = BlockHeader::read(bytes).ok().and_then(|header| control(&header, bytes, like.clone()));
        let Some(at) = at else { return };
        let length = like.encode().len();
        let new = match Control::decode(like.command(), &bytes[at..at + length]) {
            Some(Control::Arrived { generation, passed }) => {
                Control::Arrived { generation: generation + 1, passed }
            }
            _ => Control::Quiet { number: 1_000 },
        };
        bytes[at..at + length].copy_from_slice(&new.encode());
        bytes[at - CDU_HEADER + COMMAND..][..2].copy_from_slice(&new.command().to_le_bytes());
    }
}
