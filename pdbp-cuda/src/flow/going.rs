//! The part common to all flows: how they advance, what they have in flight, and how they end.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::copier::{Left, Rest};
use super::{Copier, FlowError, Step};
use crate::device::{Device, DeviceError, InUse};

/// A flow's blocks in flight, each of which holds an `H`, and the resources that it uses for them: queues, or stages.
pub(super) struct Going<D: Device, R, H: Left<D>> {
    copier: Rc<Copier<D>>,
    /// The resources that no block in flight uses.
    pub(super) idle: Vec<R>,
    /// Leaves one of them to the copier.
    put: fn(&Copier<D>, R, Rest),
    /// Whether later flows can use them: they no longer wait for the event after which this flow begins.
    are_reusable: bool,
    /// The blocks in flight, in order, with the bytes or the messages of each.
    in_flight: VecDeque<(Held<D, H>, usize)>,
    /// Whether nothing more will come; the flow is done when nothing is in flight.
    pub(super) is_ending: bool,
    state: State,
}

enum Held<D: Device, H> {
    Moving(InUse<D, H>),
    /// It has no bytes. `None` once it is unloaded.
    Ready(Option<H>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Flowing,
    Done,
    Failed,
}

impl<D: Device, R, H: Left<D>> Going<D, R, H> {
    /// Begins a flow with these resources, whose work begins when `after` is over. `put` leaves one of them to the copier.
    pub(super) fn new(
        copier: &Rc<Copier<D>>,
        idle: Vec<R>,
        after: Option<&D::Event>,
        put: fn(&Copier<D>, R, Rest),
    ) -> Self {
        let (copier, in_flight) = (Rc::clone(copier), VecDeque::with_capacity(copier.in_flight()));
        let (are_reusable, is_ending, state) = (after.is_none(), false, State::Flowing);
        Self { copier, idle, put, are_reusable, in_flight, is_ending, state }
    }

    pub(super) fn copier(&self) -> &Copier<D> {
        &self.copier
    }

    pub(super) fn device(&self) -> &D {
        self.copier.device()
    }

    /// Advances the flow by `advance`, unless it has ended. It has failed if that returns an error, or panics, where a block may be
    /// missing.
    pub(super) fn poll<E>(
        &mut self,
        advance: impl FnOnce(&mut Self) -> Result<Step, FlowError<E>>,
    ) -> Result<Step, FlowError<E>> {
        match self.state {
            State::Done => return Ok(Step::Done),
            State::Failed => {
                self.leave();
                return Err(FlowError::Ended);
            }
            State::Flowing => {}
        }
        self.copier.reap();
        self.state = State::Failed;
        let step = advance(self);
        match step {
            Ok(Step::Done) => self.end(),
            Ok(_) => self.state = State::Flowing,
            Err(_) => self.leave(),
        }
        step
    }

    /// Whether the flow goes on and more may come.
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Flowing && !self.is_ending
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether there is room for another block in flight.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() < self.copier.in_flight()
    }

    /// Puts a block in flight, with that many bytes or messages, until the event is over.
    pub(super) fn push(&mut self, event: D::Event, held: H, amount: usize) {
        self.in_flight.push_back((Held::Moving(InUse::new(event, held)), amount));
    }

    /// Puts a block in flight whose messages have no bytes.
    pub(super) fn push_ready(&mut self, held: H, amount: usize) {
        self.in_flight.push_back((Held::Ready(Some(held)), amount));
    }

    /// Takes out the oldest block in flight, and the number of its bytes or messages, if its work is over.
    pub(super) fn unload(&mut self) -> Result<Option<(H, usize)>, DeviceError> {
        let Some((oldest, amount)) = self.in_flight.front_mut() else { return Ok(None) };
        let held = match oldest {
            Held::Moving(held) => {
                let over = held.poll(self.copier.device())?;
                // So is what it has waited for.
                self.are_reusable |= over.is_some();
                over
            }
            Held::Ready(held) => held.take(),
        };
        let unloaded = held.map(|held| (held, *amount));
        if unloaded.is_some() {
            self.in_flight.pop_front();
        }
        Ok(unloaded)
    }

    /// Waits for the oldest block in flight. Returns whether there is one.
    pub(super) fn wait(&self) -> Result<bool, DeviceError> {
        if let Some((Held::Moving(held), _)) = self.in_flight.front() {
            self.device().wait(held.event())?;
        }
        Ok(!self.is_empty())
    }

    /// Ends the flow when everything has arrived.
    fn end(&mut self) {
        self.state = State::Done;
        self.put_idle(if self.are_reusable { Rest::Idle } else { Rest::Waits });
    }

    fn put_idle(&mut self, rest: Rest) {
        self.idle.drain(..).for_each(|idle| (self.put)(&self.copier, idle, rest));
    }

    /// Ends the flow when `bytes` bytes have arrived by other means.
    pub(super) fn end_with(&mut self, bytes: usize) {
        self.are_reusable |= bytes > 0;
        self.end();
    }

    /// Gives up what the flow has not done.
    pub(super) fn close(&mut self) {
        if self.state != State::Done {
            self.state = State::Failed;
            self.leave();
        }
        self.copier.reap();
    }

    /// Leaves pending work and the resources to the copier.
    fn leave(&mut self) {
        self.put_idle(if self.are_reusable { Rest::Left } else { Rest::Waits });
        for (held, _) in self.in_flight.drain(..) {
            if let Held::Moving(held) = held {
                self.copier.leave(held);
            }
        }
    }
}

/// A block, and the memory from or to which it is copied.
impl<D: Device, B: 'static> Left<D> for (B, Arc<D::Memory>) {
    fn release(self: Box<Self>, _: &Copier<D>) {}
}

impl<D: Device, H: Left<D>> Going<D, D::Queue, H> {
    /// The queue of a flow that has one; `None` once it has ended.
    pub(super) fn queue(&self) -> Option<&D::Queue> {
        self.idle.first()
    }

    /// Returns the event of everything that the flow has submitted, and of what it waits for.
    pub(super) fn mark(&self) -> Result<Option<D::Event>, DeviceError> {
        self.queue().map(|queue| self.device().mark(queue)).transpose()
    }
}

impl<D: Device, R, H: Left<D>> Drop for Going<D, R, H> {
    fn drop(&mut self) {
        self.close();
    }
}
