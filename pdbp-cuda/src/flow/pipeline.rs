//! Blocks of messages in flight between a memory and the host, each through its own staging area.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::bundle::{Listed, Pieces, entries};
use super::{Arrived, Bundles, Copier, FlowError, HostBlock};
use crate::device::{Device, DeviceError, DeviceMemory as _, InUse, PieceTable as _};

/// The resources that one block after the other uses: a queue, on which its kernel and its copy run in order, and a staging area.
pub(super) struct Stage<D: Device> {
    queue: D::Queue,
    staging: D::Memory,
    table: D::Table,
}

/// The direction of messages, seen from the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the memory to blocks.
    Out,
    /// From blocks to the memory.
    Into,
}

/// Blocks in flight, in order.
pub(super) struct Pipeline<D: Device, B: HostBlock> {
    copier: Rc<Copier<D>>,
    direction: Direction,
    idle: Vec<Stage<D>>,
    in_flight: VecDeque<Transfer<D, B>>,
}

struct Transfer<D: Device, B> {
    load: Load<D, B>,
    messages: usize,
}

enum Load<D: Device, B> {
    Moving(InUse<D, Used<D, B>>),
    /// Its messages have no bytes. `None` once it is unloaded.
    Ready(Option<Used<D, B>>),
}

/// The resources that a block's kernel and copy use.
struct Used<D: Device, B> {
    stage: Stage<D>,
    block: B,
    _memory: Arc<D::Memory>,
}

/// The result of [`Pipeline::load`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loaded {
    Block,
    /// No block is available now, or no stage.
    Nothing,
    /// Nothing more will come.
    End,
}

impl<D: Device> Stage<D> {
    pub(super) fn new(device: &D, block: usize) -> Result<Self, DeviceError> {
        let (staging, table) = (device.allocate(block)?, device.table(entries(block))?);
        Ok(Self { queue: device.queue()?, staging, table })
    }

    /// Whether blocks of `block` bytes fit.
    pub(super) fn fits(&self, block: usize) -> bool {
        self.staging.bytes() >= block
    }

    /// Begins kernel and copy, in the order of the direction: of the table's first `count` pieces, and of the staging area from byte `at`
    /// on. Returns the event of the second; after an error that of the first, if it is pending.
    ///
    /// # Safety
    /// Until that event is over, memory, stage and place must be neither dropped nor touched, and for copies to the host the place must
    /// be valid for writes.
    unsafe fn run(
        &self,
        device: &D,
        direction: Direction,
        (count, at): (usize, usize),
        place: NonNull<[u8]>,
        memory: &D::Memory,
    ) -> Result<D::Event, (DeviceError, Option<D::Event>)> {
        let Self { queue, staging, table } = self;
        let first = match direction {
            // SAFETY: by the caller's promise.
            Direction::Out => unsafe { device.gather(queue, table, count, memory, staging) },
            // SAFETY: as above.
            Direction::Into => unsafe { device.copy_in(queue, place, staging, at) },
        };
        let first = first.map_err(|e| (e, None))?;
        let second = match direction {
            // SAFETY: as above.
            Direction::Out => unsafe { device.copy_out(queue, staging, at, place) },
            // SAFETY: as above.
            Direction::Into => unsafe { device.scatter(queue, table, count, staging, memory) },
        };
        second.map_err(|e| (e, Some(first)))
    }
}

impl<D: Device, B: HostBlock> Pipeline<D, B> {
    /// Makes a pipeline with stages for blocks of up to `block` bytes, on which work begins when `after` is over.
    pub(super) fn new(
        copier: &Rc<Copier<D>>,
        direction: Direction,
        block: usize,
        after: Option<&D::Event>,
    ) -> Result<Self, DeviceError> {
        let mut pipeline =
            Self { copier: Rc::clone(copier), direction, idle: Vec::new(), in_flight: VecDeque::new() };
        for _ in 0..copier.in_flight() {
            let stage = copier.take_stage(block.max(1))?;
            if let Some(after) = after {
                copier.device().order(&stage.queue, after)?;
            }
            pipeline.idle.push(stage);
        }
        Ok(pipeline)
    }

    pub(super) fn copier(&self) -> &Copier<D> {
        &self.copier
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Waits for the oldest block.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        match self.in_flight.front() {
            Some(Transfer { load: Load::Moving(held), .. }) => self.copier.device().wait(held.event()),
            _ => Ok(()),
        }
    }

    /// Returns the oldest block, if its work is over, and the number of its messages.
    pub(super) fn unload(&mut self) -> Result<Option<(B, usize)>, DeviceError> {
        let Some(front) = self.in_flight.front_mut() else { return Ok(None) };
        let load = match &mut front.load {
            Load::Moving(held) => held.poll(self.copier.device())?,
            Load::Ready(load) => load.take(),
        };
        let Some(Used { stage, block, .. }) = load else { return Ok(None) };
        self.idle.push(stage);
        let messages = self.in_flight.pop_front().map_or(0, |in_flight| in_flight.messages);
        Ok(Some((block, messages)))
    }

    /// Begins with the next block, whose messages lie in that window of the memory.
    pub(super) fn load<I: Bundles<Block = B>>(
        &mut self,
        bundles: &mut I,
        memory: &Arc<D::Memory>,
        window: Range<usize>,
    ) -> Result<Loaded, FlowError<I::Error>> {
        let Some(mut stage) = self.idle.pop() else { return Ok(Loaded::Nothing) };
        let mut pieces = Pieces::new(stage.table.pieces(), window);
        let block = match bundles.poll_bundle(&mut pieces).map_err(FlowError::Link)? {
            Arrived::Block(block) => block,
            other => {
                self.idle.push(stage);
                return Ok(if let Arrived::End = other { Loaded::End } else { Loaded::Nothing });
            }
        };
        let listed = pieces.finish()?;
        self.begin(stage, block, memory, listed)?;
        Ok(Loaded::Block)
    }

    fn begin(
        &mut self,
        stage: Stage<D>,
        mut block: B,
        memory: &Arc<D::Memory>,
        Listed { count, messages, span }: Listed,
    ) -> Result<(), DeviceError> {
        let used = |stage, block| Used { stage, block, _memory: Arc::clone(memory) };
        let Some(span) = span else {
            self.in_flight.push_back(Transfer { load: Load::Ready(Some(used(stage, block))), messages });
            return Ok(());
        };
        let place = part_of(block.place(), &span)?;
        // SAFETY: `InUse` holds block (`HostBlock`), memory and stage until the last event is over, and the host writes a stage's table
        // only when the stage is idle. The place lies in the block.
        let run =
            unsafe { stage.run(self.copier.device(), self.direction, (count, span.start), place, memory) };
        let held = |event| InUse::new(event, used(stage, block));
        match run {
            Ok(event) => {
                self.in_flight.push_back(Transfer { load: Load::Moving(held(event)), messages });
                Ok(())
            }
            Err((e, pending)) => {
                if let Some(pending) = pending {
                    self.copier.leave(held(pending));
                }
                Err(e)
            }
        }
    }

    /// Gives the stages back when nothing is pending.
    pub(super) fn finish(&mut self) {
        self.idle.drain(..).for_each(|stage| self.copier.put_stage(stage));
    }

    /// Leaves pending work to the copier. Its stages are not used again: their queues may wait for an event in the distant future.
    pub(super) fn leave(&mut self) {
        self.idle.clear();
        for in_flight in self.in_flight.drain(..) {
            if let Load::Moving(held) = in_flight.load {
                self.copier.leave(held);
            }
        }
    }
}

/// Returns some bytes of a block.
fn part_of(place: NonNull<[u8]>, span: &Range<usize>) -> Result<NonNull<[u8]>, DeviceError> {
    let (at, bytes) = (span.start, span.len());
    if span.end > place.len() {
        return Err(DeviceError::OutOfBounds { at, bytes, room: place.len() });
    }
    // SAFETY: inside the place, by the check above.
    let first = unsafe { place.cast::<u8>().add(at) };
    Ok(NonNull::slice_from_raw_parts(first, bytes))
}
