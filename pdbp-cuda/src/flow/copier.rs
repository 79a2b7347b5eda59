//! What flows share.

use std::any::Any;
use std::cell::RefCell;
use std::num::NonZeroUsize;

use super::pipeline::Stage;
use crate::device::{Device, DeviceError, InUse};

/// Queues and staging areas of a device for the flows of one thread, and what flows left behind with copies under way.
///
/// What is left is let go of when its copy is over: [`reap`](Self::reap) looks for that, as every poll of a flow does. Dropping
/// the copier waits for nothing: blocks and memory whose copies are under way even then are never used again, nor are those of copies
/// of which the device does not say that they are over.
pub struct Copier<D: Device> {
    device: D,
    in_flight: NonZeroUsize,
    queues: RefCell<Vec<D::Queue>>,
    stages: RefCell<Vec<Stage<D>>>,
    /// Of copies under way that have no flow any more.
    left: RefCell<Vec<InUse<D, Box<dyn Any>>>>,
}

impl<D: Device> Copier<D> {
    /// A copier whose flows have up to `in_flight` copies each under way. Three let a copy, the block before it and the one
    /// after overlap; more help a caller that polls seldom, and take as many more blocks.
    pub fn new(device: &D, in_flight: NonZeroUsize) -> Self {
        let (queues, stages, left) = (RefCell::default(), RefCell::default(), RefCell::default());
        Self { device: device.clone(), in_flight, queues, stages, left }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Lets go of what was left behind and is over; says how many copies are under way yet.
    pub fn reap(&self) -> usize {
        let mut over = Vec::new();
        let is_left =
            |left: &mut InUse<D, _>| left.let_go(&self.device).map(|held| over.push(held)).is_none();
        self.left.borrow_mut().retain_mut(is_left);
        // Dropped when nothing is borrowed, since what drops may use the copier.
        drop(over);
        self.left.borrow().len()
    }

    /// Waits until nothing that was left behind is under way, and lets go of it. What the device does not say is over stays.
    pub fn settle(&self) {
        for mut left in self.left.take() {
            // Failed or not, it may be over.
            let _ = self.device.wait(left.event());
            match left.let_go(&self.device) {
                Some(held) => drop(held),
                None => self.left.borrow_mut().push(left),
            }
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// A queue on which nothing is under way, and which waits for the event first.
    pub(super) fn take_queue_after(&self, after: Option<&D::Event>) -> Result<D::Queue, DeviceError> {
        let spare = self.queues.borrow_mut().pop();
        let queue = spare.map_or_else(|| self.device.queue(), Ok)?;
        if let Some(after) = after {
            self.device.order(&queue, after)?;
        }
        Ok(queue)
    }

    /// Takes a queue back on which nothing is under way.
    pub(super) fn put_queue(&self, queue: D::Queue) {
        self.queues.borrow_mut().push(queue);
    }

    /// A stage for blocks of so many bytes, on which nothing is under way.
    pub(super) fn take_stage(&self, block: usize) -> Result<Stage<D>, DeviceError> {
        let mut stages = self.stages.borrow_mut();
        match stages.iter().position(|stage| stage.fits(block)) {
            Some(spare) => Ok(stages.swap_remove(spare)),
            None => Stage::new(&self.device, block),
        }
    }

    /// Takes a stage back on which nothing is under way.
    pub(super) fn put_stage(&self, stage: Stage<D>) {
        self.stages.borrow_mut().push(stage);
    }

    /// Keeps what belongs to a copy until it is over.
    pub(super) fn leave(&self, held: InUse<D, impl Any>) {
        self.left.borrow_mut().push(held.boxed());
    }
}

impl<D: Device> Drop for Copier<D> {
    fn drop(&mut self) {
        self.reap();
    }
}

impl<D: Device> std::fmt::Debug for Copier<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copier({} in flight)", self.in_flight)
    }
}
