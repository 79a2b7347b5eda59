//! A link in virtual time: blocks of a pool travel one behind the other, are read where they are, and go back.

use std::cell::RefCell;
use std::collections::VecDeque;
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
    ended: bool,
    /// Blocks that are sent before the link breaks.
    breaks_after: usize,
}

/// One end; both are of the same type.
#[derive(Clone)]
pub(super) struct End(pub(super) Rc<RefCell<Wire>>);

pub(super) struct Block {
    bytes: Option<Box<[u8]>>,
    length: usize,
    home: End,
}

// SAFETY: the bytes are boxed, and the value's alone until its drop overwrites them.
unsafe impl HostBlock for Block {
    fn place(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut self.bytes.as_mut().unwrap()[..self.length])
    }
}

// SAFETY: as above.
unsafe impl VacantBlock for Block {}

impl Block {
    /// Fills its beginning; says with how many bytes.
    pub(super) fn fill(&mut self, from: &[u8]) -> usize {
        let length = from.len().min(self.length);
        self.bytes.as_mut().unwrap()[..length].copy_from_slice(&from[..length]);
        length
    }

    pub(super) fn write(&mut self, at: usize, from: &[u8]) {
        self.bytes.as_mut().unwrap()[at..at + from.len()].copy_from_slice(from);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes.as_ref().unwrap()[..self.length]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut bytes = self.bytes.take().unwrap();
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
        Ok(bytes.map(|bytes| Block { length: bytes.len(), bytes: Some(bytes), home: self.clone() }))
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
        block.length = length;
        wire.travelling.push_back((at, block, length, ending));
        Ok(())
    }
}

impl Inlet for End {
    type Block = Block;
    type Error = Broken;

    fn poll_block(&mut self) -> Result<Arrived<Block>, Broken> {
        let mut wire = self.0.borrow_mut();
        if wire.ended {
            return Ok(Arrived::End);
        }
        let now = wire.clock.now();
        match wire.travelling.front() {
            Some((at, ..)) if *at <= now => {
                let (_, block, _, ending) = wire.travelling.pop_front().unwrap();
                wire.ended = ending == Ending::Last;
                Ok(Arrived::Block(block))
            }
            None if wire.breaks_after == 0 => Err(Broken),
            _ => Ok(Arrived::Nothing),
        }
    }
}
