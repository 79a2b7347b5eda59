//! Two nodes and the links between them: a session, and at each end what it has sent and what has come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pdbp_core::{SealedBlock, VacantBlock};

/// The links between two nodes, in both directions. They come up and fail together; each time is a session of its own.
#[derive(Debug, Default)]
pub(super) struct Pair {
    /// Number of the session, or of the one that follows where it is broken; frames of another are dropped.
    pub(super) session: u32,
    pub(super) broken: bool,
    /// The nodes cannot reach each other, and are watched.
    pub(super) apart: bool,
    /// Number of the watch that counts.
    pub(super) watch: u32,
    /// Which life of either node has the session, or had the last; 0: the one that is there.
    pub(super) lives: [u32; 2],
    /// At the node with the smaller index, and at the other.
    pub(super) ends: [End; 2],
}

impl Pair {
    /// What is at `me`, and what at `peer`.
    pub(super) fn ends_of(&mut self, me: u16, peer: u16) -> (&mut End, &mut End) {
        let [low, high] = &mut self.ends;
        if me < peer { (low, high) } else { (high, low) }
    }
}

/// What the node at an end believes of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Belief {
    /// It is up.
    #[default]
    Up,
    /// The same, but it will soon know better.
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
    /// Of those, and of the completions that hold one: how many the node has not got back.
    pub(super) posts_away: u32,
    /// Ends and beginnings of the link that the node has not taken yet. What it sends before it has is for a link that is gone.
    pub(super) untold: u32,
    /// In place: blocks that the peer reads, by index.
    pub(super) lent: BTreeMap<u32, SealedBlock>,
}

impl End {
    /// Blocks of this end that the network has.
    pub(super) fn away(&self) -> usize {
        self.out.blocks + self.lent.len()
    }
}

/// What one end has sent and the other has not been given yet.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Frame `base + i` at place `i`.
    pub(super) frames: VecDeque<Frame>,
    pub(super) base: u64,
    /// Frames that hold a block of ours.
    pub(super) blocks: usize,
    /// Which setting of the timer counts.
    pub(super) timer: u32,
    pub(super) armed: bool,
    /// How often in a row the timer had to repeat frames.
    pub(super) repeats: u32,
    /// When the peer was heard last, or began to be waited for.
    pub(super) heard: u64,
    /// When the link has sent what it was given.
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

/// A frame until the peer has been given what it carries.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) load: Load,
    /// It has arrived, but what it carries waits, for earlier ones or for a block to receive into.
    pub(super) arrived: bool,
    /// When it left last.
    pub(super) left: u64,
    /// How often it waits at its endpoint to leave.
    pub(super) waiting: u32,
}

impl Frame {
    /// When it left last: not before `now` if it still waits to.
    pub(super) fn left_by(&self, now: u64) -> u64 {
        if self.waiting > 0 { now } else { self.left }
    }
}

/// What a frame carries.
#[derive(Debug)]
pub(super) enum Load {
    /// A block.
    Block(SealedBlock),
    /// In place: the peer's block with this index, back.
    Return(u32),
    /// Nothing any more: the block came back before the acknowledgement.
    Nothing,
}

/// What has come.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// All frames below this number have arrived.
    pub(super) next: u64,
    /// Later ones that have.
    pub(super) early: BTreeSet<u64>,
    /// All frames below this number have been given to the node.
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
