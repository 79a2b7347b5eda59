//! Blocks of messages under way between a memory and the host, each by a staging area of its own.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::bundle::{Listed, Pieces, entries};
use super::{Arrived, Bundles, Copier, FlowError, HostBlock};
use crate::device::{Device, DeviceError, DeviceMemory as _, InUse, PieceTable as _};

/// What one block after the other uses: a queue, on which its kernel and its copy are in order, and a staging area.
pub(super) struct Lane<D: Device> {
    queue: D::Queue,
    staging: D::Memory,
    table: D::Table,
}

/// Which way messages go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the memory to blocks.
    Out,
    /// From blocks to the memory.
    Into,
}

/// Blocks under way, in order.
pub(super) struct Belt<D: Device, B: HostBlock> {
    copier: Rc<Copier<D>>,
    way: Way,
    idle: Vec<Lane<D>>,
    carried: VecDeque<Carried<D, B>>,
}

struct Carried<D: Device, B> {
    load: Load<D, B>,
    messages: usize,
}

enum Load<D: Device, B> {
    Moving(InUse<D, Used<D, B>>),
    /// Its messages have no bytes. Until it is unloaded.
    Ready(Option<Used<D, B>>),
}

/// What kernel and copy of a block use.
struct Used<D: Device, B> {
    lane: Lane<D>,
    block: B,
    _memory: Arc<D::Memory>,
}

/// What [`Belt::load`] did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loaded {
    Block,
    /// There is no block now, or no lane.
    Nothing,
    /// Nothing more will come.
    End,
}

impl<D: Device> Lane<D> {
    pub(super) fn new(device: &D, block: usize) -> Result<Self, DeviceError> {
        let (staging, table) = (device.allocate(block)?, device.table(entries(block))?);
        Ok(Self { queue: device.queue()?, staging, table })
    }

    /// Whether blocks of so many bytes fit.
    pub(super) fn fits(&self, block: usize) -> bool {
        self.staging.bytes() >= block
    }

    /// Begins with kernel and copy, in the order of the way: of the table's first `count` pieces, and of the staging area from byte
    /// `at` on. The event of the second; after an error that of the first, if it is pending.
    ///
    /// # Safety
    /// Until that event is over, memory, lane and place are neither dropped nor touched, and the place is valid for writes on the
    /// way out.
    unsafe fn run(
        &self,
        device: &D,
        way: Way,
        (count, at): (usize, usize),
        place: NonNull<[u8]>,
        memory: &D::Memory,
    ) -> Result<D::Event, (DeviceError, Option<D::Event>)> {
        let Self { queue, staging, table } = self;
        let first = match way {
            // SAFETY: by the caller's promise.
            Way::Out => unsafe { device.gather(queue, table, count, memory, staging) },
            // SAFETY: as above.
            Way::Into => unsafe { device.copy_in(queue, place, staging, at) },
        };
        let first = first.map_err(|e| (e, None))?;
        let second = match way {
            // SAFETY: as above.
            Way::Out => unsafe { device.copy_out(queue, staging, at, place) },
            // SAFETY: as above.
            Way::Into => unsafe { device.scatter(queue, table, count, staging, memory) },
        };
        second.map_err(|e| (e, Some(first)))
    }
}

impl<D: Device, B: HostBlock> Belt<D, B> {
    /// With lanes for blocks of up to `block` bytes, on which work begins when `after` is over.
    pub(super) fn new(
        copier: &Rc<Copier<D>>,
        way: Way,
        block: usize,
        after: Option<&D::Event>,
    ) -> Result<Self, DeviceError> {
        let mut belt = Self { copier: Rc::clone(copier), way, idle: Vec::new(), carried: VecDeque::new() };
        for _ in 0..copier.in_flight() {
            let lane = copier.take_lane(block.max(1))?;
            if let Some(after) = after {
                copier.device().order(&lane.queue, after)?;
            }
            belt.idle.push(lane);
        }
        Ok(belt)
    }

    pub(super) fn copier(&self) -> &Copier<D> {
        &self.copier
    }

    pub(super) fn is_empty(&self) -> bool {
        self.carried.is_empty()
    }

    /// Waits for the oldest block.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        match self.carried.front() {
            Some(Carried { load: Load::Moving(held), .. }) => self.copier.device().wait(held.event()),
            _ => Ok(()),
        }
    }

    /// The oldest block, when it has come to its end, and how many messages it has.
    pub(super) fn unload(&mut self) -> Result<Option<(B, usize)>, DeviceError> {
        let Some(front) = self.carried.front_mut() else { return Ok(None) };
        let load = match &mut front.load {
            Load::Moving(held) => held.poll(self.copier.device())?,
            Load::Ready(load) => load.take(),
        };
        let Some(Used { lane, block, .. }) = load else { return Ok(None) };
        self.idle.push(lane);
        let messages = self.carried.pop_front().map_or(0, |carried| carried.messages);
        Ok(Some((block, messages)))
    }

    /// Begins with the next block, whose messages lie in that window of the memory.
    pub(super) fn load<I: Bundles<Block = B>>(
        &mut self,
        bundles: &mut I,
        memory: &Arc<D::Memory>,
        window: Range<usize>,
    ) -> Result<Loaded, FlowError<I::Error>> {
        let Some(mut lane) = self.idle.pop() else { return Ok(Loaded::Nothing) };
        let mut pieces = Pieces::new(lane.table.pieces(), window);
        let block = match bundles.poll_bundle(&mut pieces).map_err(FlowError::Link)? {
            Arrived::Block(block) => block,
            other => {
                self.idle.push(lane);
                return Ok(if let Arrived::End = other { Loaded::End } else { Loaded::Nothing });
            }
        };
        let listed = pieces.finish()?;
        self.begin(lane, block, memory, listed)?;
        Ok(Loaded::Block)
    }

    fn begin(
        &mut self,
        lane: Lane<D>,
        mut block: B,
        memory: &Arc<D::Memory>,
        Listed { count, messages, span }: Listed,
    ) -> Result<(), DeviceError> {
        let used = |lane, block| Used { lane, block, _memory: Arc::clone(memory) };
        let Some(span) = span else {
            self.carried.push_back(Carried { load: Load::Ready(Some(used(lane, block))), messages });
            return Ok(());
        };
        let place = part_of(block.place(), &span)?;
        // SAFETY: `InUse` has block (`HostBlock`), memory and lane until the last event is over, and the host writes a lane's table
        // only when it is idle. The place lies in the block.
        let run = unsafe { lane.run(self.copier.device(), self.way, (count, span.start), place, memory) };
        let held = |event| InUse::new(event, used(lane, block));
        match run {
            Ok(event) => {
                self.carried.push_back(Carried { load: Load::Moving(held(event)), messages });
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

    /// Gives the lanes back when nothing is under way.
    pub(super) fn finish(&mut self) {
        self.idle.drain(..).for_each(|lane| self.copier.put_lane(lane));
    }

    /// Leaves what is under way to the copier. Its lanes are not used again: their queues may wait for an event that is far
    /// away.
    pub(super) fn leave(&mut self) {
        self.idle.clear();
        for carried in self.carried.drain(..) {
            if let Load::Moving(held) = carried.load {
                self.copier.leave(held);
            }
        }
    }
}

/// Some bytes of a block.
fn part_of(place: NonNull<[u8]>, span: &Range<usize>) -> Result<NonNull<[u8]>, DeviceError> {
    let (at, bytes) = (span.start, span.len());
    if span.end > place.len() {
        return Err(DeviceError::OutOfBounds { at, bytes, room: place.len() });
    }
    // SAFETY: inside the place, by the line above.
    let first = unsafe { place.cast::<u8>().add(at) };
    Ok(NonNull::slice_from_raw_parts(first, bytes))
}
