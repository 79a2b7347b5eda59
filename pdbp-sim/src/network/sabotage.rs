//! What tests break on purpose, to see that it is found: at node 1, from a certain data block of a posted link on.

use pdbp_core::cdu::{BLOCK_HEADER, BlockClass, BlockHeader, CDU_HEADER};

/// What is broken. All but the last two strike once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// A block does not arrive.
    Swallow,
    /// The messages of a block arrive again, in place of those of the next.
    Double,
    /// The number of a message is one too large.
    Skip,
    /// A byte changes.
    Corrupt,
    /// The room of a block is lost, and the block.
    LosePost,
    /// Nothing arrives any more, though all is acknowledged.
    Deafen,
    /// Sent blocks do not come back.
    Keep,
}

/// What becomes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrives,
    Vanishes,
    VanishesWithItsRoom,
}

#[derive(Debug)]
pub(super) struct Saboteur {
    pub(super) kind: Sabotage,
    /// Data blocks that arrive before.
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
        let data = BlockHeader::read(bytes).is_ok_and(|h| h.class() == BlockClass::Message);
        if to != 1 || self.done || (!data && self.kind != Sabotage::Deafen) {
            return Fate::Arrives;
        }
        if self.after > 0 {
            self.after -= u32::from(data);
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
            Sabotage::Swallow | Sabotage::LosePost => {}
        }
        self.done = true;
        match self.kind {
            Sabotage::Swallow => Fate::Vanishes,
            Sabotage::LosePost => Fate::VanishesWithItsRoom,
            _ => Fate::Arrives,
        }
    }
}
