//! Two nodes and the links between them: a session, and at each end what was sent and what has arrived.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pdbp_core::{SealedBlock, VacantBlock};

/// The links between two nodes, in both directions. They come up and fail together; each time is a session of its own.
#[derive(Debug, Default)]
pub(super) struct Pair {
    /// Number of the session, or of the next one if it is broken. Frames of any other session are dropped.
    pub(super) session: u32,
    pub(super) broken: bool,
    /// Whether the nodes cannot reach each other, and are watched.
    pub(super) apart: bool,
    /// Number of the watch that is valid.
    pub(super) watch: u32,
    /// Which life of either node has, or last had, the session; 0 for the current one.
    pub(super) lives: [u32; 2],
    /// The end at the node with the smaller index, and the other end.
    pub(super) ends: [End; 2],
}

impl Pair {
    /// Returns the end at `me` and the end at `peer`.
    pub(super) fn ends_of(&mut self, me: u16, peer: u16) -> (&mut End, &mut End) {
        let [low, high] = &mut self.ends;
        if me < peer { (low, high) } else { (high, low) }
    }
}

/// The state of the link as believed by the node at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Belief {
    /// It is up.
    #[default]
    Up,
    /// It is believed up, but the node will soon notice that it is down.
    Mistaken,
    /// It has failed.
    Down,
}

/// One end.
#[derive(Debug, Default)]
pub(super) struct End {
    pub(super) belief: Belief,
    pub(super) out: Outgoing,
    pub(super) incoming: Incoming,
    /// Blocks to receive into.
    pub(super) posted: VecDeque<VacantBlock>,
    /// Number of posted blocks, and of completions that hold one, that the node has not got back.
    pub(super) posts_away: u32,
    /// Number of ends and beginnings of the link that the node has not taken yet. Blocks it sends before that are for a link that
    /// is gone.
    pub(super) untold: u32,
    /// In place: blocks that the peer is reading, by index.
    pub(super) lent: BTreeMap<u32, SealedBlock>,
}

impl End {
    /// Number of this end's blocks that the network holds.
    pub(super) fn away(&self) -> usize {
        self.out.blocks + self.lent.len()
    }
}

/// Frames that one end has sent and that the other end has not been given yet.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// The frame at index `i` has number `base + i`.
    pub(super) frames: VecDeque<Frame>,
    pub(super) base: u64,
    /// Number of frames that hold one of this end's blocks.
    pub(super) blocks: usize,
    /// Which setting of the timer is valid.
    pub(super) timer: u32,
    pub(super) armed: bool,
    /// How often in a row the timer has repeated frames.
    pub(super) repeats: u32,
    /// When the peer was last heard, or the wait for it began.
    pub(super) heard: u64,
    /// The time when the link has sent everything given to it.
    pub(super) free_at: u64,
}

impl Outgoing {
    pub(super) fn frame(&mut self, sequence: u64) -> Option<&mut Frame> {
        let place = sequence.checked_sub(self.base)?;
        self.frames.get_mut(usize::try_from(place).ok()?)
    }

    /// The number of the next frame.
    pub(super) fn next(&self) -> u64 {
        self.base + self.frames.len() as u64
    }
}

/// A frame, kept until the peer has been given its load.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) load: Load,
    /// Whether it has arrived; its load may still wait for earlier ones, or for a block to receive into.
    pub(super) arrived: bool,
    /// When it last left.
    pub(super) left: u64,
    /// Number of copies waiting at its endpoint to leave.
    pub(super) waiting: u32,
}

impl Frame {
    /// Returns when it last left: not before `now` if it is still waiting to leave.
    pub(super) fn left_by(&self, now: u64) -> u64 {
        if self.waiting > 0 { now } else { self.left }
    }
}

/// The load of a frame.
#[derive(Debug)]
pub(super) enum Load {
    /// A block.
    Block(SealedBlock),
    /// In place: returns the peer's block with this index.
    Return(u32),
    /// Nothing any more, because the block came back before the acknowledgement.
    Nothing,
}

/// The frames that have arrived.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// All frames below this number have arrived.
    pub(super) next: u64,
    /// Later frames that have arrived.
    pub(super) early: BTreeSet<u64>,
    /// All frames below this number have been passed to the node.
    pub(super) released: u64,
}

impl Incoming {
    pub(super) fn accept(&mut self, sequence: u64) {
        if sequence >= self.next {
            self.early.insert(sequence);
        }
        while self.early.remove(&self.next) {
            self.next += 1;
        }
    }
}
