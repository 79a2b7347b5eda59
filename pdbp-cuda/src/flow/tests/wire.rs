//! A link in virtual time: blocks of a pool travel one behind the other, are read where they are, and go back.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Duration;

use crate::device::{Clock, CopyEngine};
use crate::flow::{Arrived, Ending, HostBlock, Inlet, Outlet, VacantBlock};

/// What vacant blocks hold.
const VACANT: u8 = 0xEE;

pub(super) struct Wire {
    clock: Clock,
    speed: CopyEngine,
    vacant: Vec<Box<[u8]>>,
    /// In order: when it arrives, the block, its bytes, whether it is the last.
    travelling: VecDeque<(Duration, Block, usize, Ending)>,
    free_at: Duration,
    /// Of a block that was given in pieces.
    rest: Option<Block>,
    ended: bool,
    /// Blocks that are sent before the link breaks.
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

/// The bytes of a block that is not at home; it goes there when nobody has a piece of it.
struct Held {
    bytes: NonNull<[u8]>,
    home: End,
}

// SAFETY: the bytes are on the heap, and those of its pieces alone until the last one's drop overwrites them.
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

    /// Its first bytes as a block, and the rest.
    fn split(self, at: usize) -> (Self, Option<Self>) {
        let middle = self.range.end.min(self.range.start.saturating_add(at));
        let rest = (middle < self.range.end)
            .then(|| Self { held: Rc::clone(&self.held), range: middle..self.range.end });
        (Self { range: self.range.start..middle, ..self }, rest)
    }

    /// Fills its beginning; says with how many bytes.
    pub(super) fn fill(&mut self, from: &[u8]) -> usize {
        let length = from.len().min(self.range.len());
        self.write(0, &from[..length]);
        length
    }

    pub(super) fn write(&mut self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.range.len());
        // SAFETY: inside.
        let to = unsafe { self.place().cast::<u8>().add(at) };
        // SAFETY: inside; no copy is under way, and nobody else has the block.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are there as long as the value, and nobody writes them while they are read.
        unsafe { &self.held.bytes.as_ref()[self.range.clone()] }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: of `Block::new`, and made a box again only here.
        let mut bytes = unsafe { Box::from_raw(self.bytes.as_ptr()) };
        // A copy that is under way yet would notice.
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

    /// The sender gives the data up: what is on its way arrives, and then nothing.
    pub(super) fn abort(&self) {
        let mut wire = self.0.borrow_mut();
        wire.breaks_after = 0;
    }

    /// Blocks on the way come home.
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
