//! Resources that flows share.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::num::NonZeroUsize;

use super::pipeline::Stage;
use crate::device::{Device, DeviceError, InUse};

/// What pending work may hold without a flow.
pub(super) trait Left<D: Device>: 'static {
    /// The work is over.
    fn release(self: Box<Self>, copier: &Copier<D>);
}

/// Flows whose stages may wait for an event.
const WAITING: usize = 4;

type AnyLeft<D> = Box<dyn Left<D>>;

/// The state in which a flow leaves a queue or a stage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// It is idle.
    Idle,
    /// It waits for nothing; copies of the flow may be pending on a queue, but not on a stage.
    Left,
    /// It may wait for an event in the distant future.
    Waits,
}

/// Queues and staging areas of a device for the flows of one thread, and what flows left behind with pending copies.
///
/// What was left behind is released when its copy is over: [`reap`](Self::reap) checks for that, as every poll of a flow does.
/// Blocks and memory whose copies are pending when the copier is dropped are never used again, nor are those of copies that the device
/// does not report as over: dropping it does not wait for copies.
///
/// It waits for events, however: those after which flows of messages were to begin that were given up before them. Their staging
/// areas can be used, or freed, only then. The staging areas of four flows may wait so; giving up another one waits for the event of
/// the first.
pub struct Copier<D: Device> {
    device: D,
    in_flight: NonZeroUsize,
    queues: RefCell<Vec<D::Queue>>,
    stages: RefCell<Vec<Stage<D>>>,
    /// Held by pending copies that no longer have a flow.
    left: RefCell<Vec<InUse<D, AnyLeft<D>>>>,
    /// Stages without work whose queues wait for an event, the oldest first.
    waiting: RefCell<VecDeque<InUse<D, Stage<D>>>>,
}

impl<D: Device> Copier<D> {
    /// Makes a copier whose flows have up to `in_flight` pending copies each. Three let a copy overlap with the block before it and
    /// the one after; more help a caller that polls rarely, and take as many more blocks.
    pub fn new(device: &D, in_flight: NonZeroUsize) -> Self {
        let (queues, stages, left) = (RefCell::default(), RefCell::default(), RefCell::default());
        Self { device: device.clone(), in_flight, queues, stages, left, waiting: RefCell::default() }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Releases what was left behind and is over. Returns how many copies are still pending, with the staging areas of flows that had
    /// to wait for an event and were given up before it.
    pub fn reap(&self) -> usize {
        let mut over: Vec<AnyLeft<D>> = Vec::new();
        let is_left =
            |left: &mut InUse<D, _>| left.let_go(&self.device).map(|held| over.push(held)).is_none();
        self.left.borrow_mut().retain_mut(is_left);
        // Released while nothing is borrowed, since destructors may use the copier.
        over.into_iter().for_each(|held| held.release(self));
        let waits = |waiting: &mut InUse<D, _>| {
            waiting.let_go(&self.device).map(|stage| self.put_stage(stage, Rest::Idle)).is_none()
        };
        self.waiting.borrow_mut().retain_mut(waits);
        self.left.borrow().len() + self.waiting.borrow().len()
    }

    /// Waits until nothing that was left behind is pending, and releases it. What the device does not report as over stays.
    pub fn settle(&self) {
        for mut left in self.left.take() {
            // Failed or not, it may be over.
            let _ = self.device.wait(left.event());
            match left.let_go(&self.device) {
                Some(held) => held.release(self),
                None => self.left.borrow_mut().push(left),
            }
        }
        for waiting in self.waiting.take() {
            self.wait_for(waiting);
        }
    }

    /// Waits for a stage's event, and takes the stage back. It stays where it is if the device does not report the event as over.
    fn wait_for(&self, mut waiting: InUse<D, Stage<D>>) {
        let _ = self.device.wait(waiting.event());
        match waiting.let_go(&self.device) {
            Some(stage) => self.put_stage(stage, Rest::Idle),
            None => self.waiting.borrow_mut().push_back(waiting),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Returns an idle queue, which waits for the event first.
    pub(super) fn take_queue_after(&self, after: Option<&D::Event>) -> Result<D::Queue, DeviceError> {
        let spare = self.queues.borrow_mut().pop();
        let queue = spare.map_or_else(|| self.device.queue(), Ok)?;
        if let Some(after) = after {
            self.device.order(&queue, after)?;
        }
        Ok(queue)
    }

    /// Takes back a queue.
    pub(super) fn put_queue(&self, queue: D::Queue, rest: Rest) {
        if rest == Rest::Idle {
            self.queues.borrow_mut().push(queue);
        }
    }

    /// Returns an idle stage for blocks of `block` bytes.
    pub(super) fn take_stage(&self, block: usize) -> Result<Stage<D>, DeviceError> {
        let mut stages = self.stages.borrow_mut();
        match stages.iter().position(|stage| stage.fits(block)) {
            Some(spare) => Ok(stages.swap_remove(spare)),
            None => Stage::new(&self.device, block),
        }
    }

    /// Takes back a stage. It is freed only with the copier, since freeing memory may wait for all work of the device.
    pub(super) fn put_stage(&self, stage: Stage<D>, rest: Rest) {
        if rest != Rest::Waits {
            self.stages.borrow_mut().push(stage);
        } else if let Ok(event) = stage.mark(&self.device) {
            let mut waiting = self.waiting.borrow_mut();
            waiting.push_back(InUse::new(event, stage));
            let most = WAITING.saturating_mul(self.in_flight.get());
            let oldest = if waiting.len() > most { waiting.pop_front() } else { None };
            drop(waiting);
            oldest.into_iter().for_each(|oldest| self.wait_for(oldest));
        }
    }

    /// Keeps what a copy holds until the copy is over.
    pub(super) fn leave(&self, held: InUse<D, impl Left<D>>) {
        self.left.borrow_mut().push(held.map(|held| Box::new(held) as AnyLeft<D>));
    }
}

impl<D: Device> Drop for Copier<D> {
    fn drop(&mut self) {
        self.reap();
        self.waiting.take().into_iter().for_each(|waiting| self.wait_for(waiting));
    }
}

impl<D: Device> std::fmt::Debug for Copier<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copier({} in flight)", self.in_flight)
    }
}
