//! Blocks of messages in flight between a memory and the host, each through its own staging area.

use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::bundle::{Listed, Pieces, entries};
use super::copier::{Left, Rest};
use super::going::Going;
use super::{Arrived, Bundles, Copier, FlowError, HostBlock, Step};
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

/// A flow of messages.
pub(super) struct Pipeline<D: Device, B: HostBlock> {
    pub(super) going: Going<D, Stage<D>, Used<D, B>>,
    direction: Direction,
    /// The number of messages that have reached their places.
    messages: usize,
}

/// The resources that a block's kernel and copy use.
pub(super) struct Used<D: Device, B> {
    stage: Stage<D>,
    block: B,
    memory: Arc<D::Memory>,
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

    /// Returns the event of everything submitted on the queue.
    pub(super) fn mark(&self, device: &D) -> Result<D::Event, DeviceError> {
        device.mark(&self.queue)
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

impl<D: Device, B: HostBlock> Left<D> for Used<D, B> {
    fn release(self: Box<Self>, copier: &Copier<D>) {
        copier.put_stage(self.stage, Rest::Idle);
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
        let mut going = Going::new(copier, Vec::new(), after, Copier::put_stage);
        for _ in 0..copier.in_flight() {
            let stage = copier.take_stage(block.max(1))?;
            let ordered = after.map_or(Ok(()), |after| copier.device().order(&stage.queue, after));
            going.idle.push(stage);
            ordered?;
        }
        Ok(Self { going, direction, messages: 0 })
    }

    /// The number of messages that have reached their places.
    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    /// Advances the flow: hands on the blocks whose work is over, and begins with new ones, whose messages lie in that window of the
    /// memory.
    pub(super) fn poll<I: Bundles<Block = B>>(
        &mut self,
        bundles: &mut I,
        (memory, window): (&Arc<D::Memory>, Range<usize>),
        mut hand_on: impl FnMut(&mut I, B) -> Result<(), I::Error>,
    ) -> Result<Step, FlowError<I::Error>> {
        let Self { going, direction, messages } = self;
        going.poll(|going| {
            let mut step = Step::Idle;
            while let Some((Used { stage, block, .. }, count)) = going.unload()? {
                going.idle.push(stage);
                hand_on(bundles, block).map_err(FlowError::Link)?;
                *messages += count;
                step = Step::Moved;
            }
            while !going.is_ending
                && let Some(stage) = going.idle.last_mut()
            {
                let mut pieces = Pieces::new(stage.table.pieces(), window.clone());
                let arrived = bundles.poll_bundle(&mut pieces).map_err(FlowError::Link)?;
                let Arrived::Block(block) = arrived else {
                    going.is_ending = matches!(arrived, Arrived::End);
                    break;
                };
                let listed = pieces.finish()?;
                let Some(stage) = going.idle.pop() else { break };
                begin(going, *direction, Used { stage, block, memory: Arc::clone(memory) }, listed)?;
                step = Step::Moved;
            }
            Ok(if going.is_ending && going.is_empty() { Step::Done } else { step })
        })
    }
}

/// Begins with a block.
fn begin<D: Device, B: HostBlock>(
    going: &mut Going<D, Stage<D>, Used<D, B>>,
    direction: Direction,
    mut used: Used<D, B>,
    Listed { count, messages, span }: Listed,
) -> Result<(), DeviceError> {
    let Some(span) = span else {
        going.push_ready(used, messages);
        return Ok(());
    };
    let place = part_of(used.block.place(), &span).map_err(|e| (e, None));
    let run = place.and_then(|place| {
        // SAFETY: `InUse` holds block (`HostBlock`), memory and stage until the last event is over, and the host writes a stage's table
        // only when the stage is idle. The place lies in the block.
        unsafe { used.stage.run(going.device(), direction, (count, span.start), place, &used.memory) }
    });
    match run {
        Ok(event) => going.push(event, used, messages),
        Err((e, Some(pending))) => {
            going.copier().leave(InUse::new(pending, used));
            return Err(e);
        }
        Err((e, None)) => {
            going.idle.push(used.stage);
            return Err(e);
        }
    }
    Ok(())
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
