//! A link in virtual time: blocks of a pool travel one after the other, are read in place, and go back.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Duration;

use crate::device::{Clock, CopyEngine};
use crate::flow::{Arrived, Ending, HostBlock, Inlet, Outlet, VacantBlock};

/// The contents of vacant blocks.
const VACANT: u8 = 0xEE;

pub(super) struct Wire {
    clock: Clock,
    speed: CopyEngine,
    vacant: Vec<Box<[u8]>>,
    /// In order: when each arrives, the block, its bytes, and whether it is the last.
    travelling: VecDeque<(Duration, Block, usize, Ending)>,
    free_at: Duration,
    /// The rest of a block that was given in pieces.
    rest: Option<Block>,
    ended: bool,
    /// Blocks that may be sent before the link breaks.
    breaks_after: usize,
}

/// One end; both are of the same type.
#[derive(Clone)]
pub(super) struct End(pub(super) Rc<RefCell<Wire>>);

/// A block, or a piece of one.
pub(super) struct Block {
    held: Rc<Held>,
    range: Range<usize>,
}

/// The bytes of a block that is not at home; it goes there when its last piece is dropped.
struct Held {
    bytes: NonNull<[u8]>,
    home: End,
}

// SAFETY: the bytes are on the heap, and belong to its pieces alone until the last one's drop overwrites them.
unsafe impl HostBlock for Block {
    fn place(&mut self) -> NonNull<[u8]> {
        let first = self.held.bytes.cast::<u8>();
        // SAFETY: the range lies in the bytes.
        NonNull::slice_from_raw_parts(unsafe { first.add(self.range.start) }, self.range.len())
    }
}

// SAFETY: as above; an outlet gives whole blocks.
unsafe impl VacantBlock for Block {}

impl Block {
    fn new(bytes: Box<[u8]>, home: &End) -> Self {
        let range = 0..bytes.len();
        let bytes = NonNull::from(Box::leak(bytes));
        Self { held: Rc::new(Held { bytes, home: home.clone() }), range }
    }

    /// Splits off its first bytes as a block, and returns both.
    fn split(self, at: usize) -> (Self, Option<Self>) {
        let middle = self.range.end.min(self.range.start.saturating_add(at));
        let rest = (middle < self.range.end)
            .then(|| Self { held: Rc::clone(&self.held), range: middle..self.range.end });
        (Self { range: self.range.start..middle, ..self }, rest)
    }

    /// Fills its beginning; returns the number of bytes.
    pub(super) fn fill(&mut self, from: &[u8]) -> usize {
        let length = from.len().min(self.range.len());
        self.write(0, &from[..length]);
        length
    }

    pub(super) fn write(&mut self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.range.len());
        // SAFETY: inside.
        let to = unsafe { self.place().cast::<u8>().add(at) };
        // SAFETY: inside; no copy is pending, and nothing else has the block.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes live as long as the value, and are not written while they are read.
        unsafe { &self.held.bytes.as_ref()[self.range.clone()] }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: made in `Block::new`, and turned into a box again only here.
        let mut bytes = unsafe { Box::from_raw(self.bytes.as_ptr()) };
        // A copy that is still pending would detect this.
        bytes.fill(VACANT);
        self.home.0.borrow_mut().vacant.push(bytes);
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl End {
    pub(super) fn new(clock: &Clock, speed: CopyEngine, blocks: usize, bytes: usize) -> Self {
        Self(Rc::new(RefCell::new(Wire {
            clock: clock.clone(),
            speed,
            vacant: vec![vec![VACANT; bytes].into(); blocks],
            travelling: VecDeque::new(),
            free_at: Duration::ZERO,
            rest: None,
            ended: false,
            breaks_after: usize::MAX,
        })))
    }

    pub(super) fn break_after(&self, blocks: usize) {
        self.0.borrow_mut().breaks_after = blocks;
    }

    pub(super) fn vacant(&self) -> usize {
        self.0.borrow().vacant.len()
    }

    pub(super) fn next_arrival(&self) -> Option<Duration> {
        self.0.borrow().travelling.front().map(|(at, ..)| *at)
    }

    /// Makes the sender give up the data: blocks in flight arrive, and then nothing.
    pub(super) fn abort(&self) {
        let mut wire = self.0.borrow_mut();
        wire.breaks_after = 0;
    }

    /// Blocks in flight come home.
    pub(super) fn empty(&self) {
        let travelling = std::mem::take(&mut self.0.borrow_mut().travelling);
        drop(travelling);
    }
}

impl Outlet for End {
    type Block = Block;
    type Error = Broken;

    fn poll_block(&mut self) -> Result<Option<Block>, Broken> {
        let mut wire = self.0.borrow_mut();
        if wire.breaks_after == 0 {
            return Err(Broken);
        }
        let bytes = wire.vacant.pop();
        Ok(bytes.map(|bytes| Block::new(bytes, self)))
    }

    fn send(&mut self, mut block: Block, length: usize, ending: Ending) -> Result<(), Broken> {
        let mut wire = self.0.borrow_mut();
        if wire.breaks_after == 0 {
            drop(wire);
            return Err(Broken);
        }
        wire.breaks_after -= 1;
        wire.free_at = wire.free_at.max(wire.clock.now()) + wire.speed.time(length);
        let at = wire.free_at;
        block.range.end = block.range.start + length;
        wire.travelling.push_back((at, block, length, ending));
        Ok(())
    }
}

impl Inlet for End {
    type Block = Block;
    type Error = Broken;

    fn poll_block(&mut self, most: usize) -> Result<Arrived<Block>, Broken> {
        let mut wire = self.0.borrow_mut();
        let now = wire.clock.now();
        let next = match wire.travelling.front() {
            _ if wire.rest.is_some() => wire.rest.take(),
            _ if wire.ended => return Ok(Arrived::End),
            Some((at, ..)) if *at <= now => {
                let (_, block, _, ending) = wire.travelling.pop_front().unwrap();
                wire.ended = ending == Ending::Last;
                Some(block)
            }
            None if wire.breaks_after == 0 => return Err(Broken),
            _ => None,
        };
        let Some((block, rest)) = next.map(|block| block.split(most)) else { return Ok(Arrived::Nothing) };
        wire.rest = rest;
        Ok(Arrived::Block(block))
    }
}
