//! Parts that come and go, while messages to them are under way.

use std::collections::VecDeque;

use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::engine::{DeliveryKind, LocalPart, PrivatePipes};
use pdbp_core::id::{NodeId, PartId, PipeId, Time};
use pdbp_core::outbox::{Outbox, Outgoing};
use pdbp_core::policy::SpacePolicy;
use pdbp_core::tables::PartKind;
use pdbp_core::{BlockMemory, Delivery, Engine, Event, Routing, Transport};

use super::check::{Breach, Invariant};
use super::inbox::Inbox;
use crate::random::Random;

/// Ids that a guest remembers, most of them of guests that are gone.
const REMEMBERED: usize = 8;
const NAME: &str = "guest";

/// The guest of a node, a part that is registered and freed again and again. It sends to guests that it has looked up at some time: each
/// message says for whom it is.
#[derive(Debug)]
pub(super) struct Guests {
    /// Nanoseconds from one thing that it does to the next, on average; 0: there is none.
    every: u64,
    next: u64,
    random: Random,
    /// Parts of the node that stay.
    fixed: u16,
    here: Option<(PartId, PipeId)>,
    known: VecDeque<PartId>,
    arrived: Vec<Delivery>,
    /// Messages to guests that were gone.
    pub(super) astray: u64,
    pub(super) received: u64,
    /// A message that came to another part than it was sent to.
    misled: Option<String>,
}

impl Guests {
    pub(super) fn new(every: u64, fixed: u16, start: u64, seed: u64) -> Self {
        Self {
            every,
            next: start + every,
            random: Random::new(seed ^ 0x6775_6573),
            fixed,
            here: None,
            known: VecDeque::new(),
            arrived: Vec::new(),
            astray: 0,
            received: 0,
            misled: None,
        }
    }

    /// Does what is due at `now`; returns when something is due again, until `end`.
    pub(super) fn act<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        (engine, outbox): (&mut Engine<'_, T, M, P>, &mut Outbox<'_>),
        (now, end): (u64, u64),
        local: Time,
    ) -> Option<u64> {
        if self.every == 0 || self.next > end {
            return None;
        }
        if now >= self.next {
            self.next = now + 1 + self.random.below(2 * self.every);
            match self.here {
                None => self.come(engine),
                Some((id, _)) => self.stay((engine, outbox), id, local),
            }
        }
        (self.next <= end).then_some(self.next)
    }

    fn come<T: Transport, M: BlockMemory, P: SpacePolicy>(&mut self, engine: &mut Engine<'_, T, M, P>) {
        // The last one may still be on its way out.
        let Ok(id) = engine.register(NAME, PartKind::Cpu) else { return };
        self.here = engine.bind_pipe(id).ok().map(|pipe| (id, pipe));
    }

    fn stay<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        (engine, outbox): (&mut Engine<'_, T, M, P>, &mut Outbox<'_>),
        me: PartId,
        local: Time,
    ) {
        let state = engine.local_part(me.local());
        if state == LocalPart::Asked {
            return;
        }
        if state != LocalPart::Known || self.random.below(8) == 0 {
            if engine.free(me).is_ok() {
                self.here = None;
            }
            return;
        }
        let node = NodeId::new(self.random.below(engine.config().nodes.into()) as u16);
        let found = node.and_then(|node| engine.lookup(node, NAME)).map(|entry| entry.id);
        if let Some(id) = found.filter(|id| !self.known.contains(id)) {
            self.known.push_front(id);
            self.known.truncate(REMEMBERED);
        }
        for _ in 0..self.random.below(4) {
            let at = self.random.below(self.known.len() as u64) as usize;
            let Some(to) = self.known.get(at).copied() else { return };
            if engine.recurrence() != 0 && !engine.has_part(to) {
                continue;
            }
            let route = Route::new(CduClass::ShortMessage, 0, me, to);
            // Where there is no room now, or no way, there is none.
            let Ok(hop) = engine.hop(to.node()) else { continue };
            let bits = to.to_bits().to_le_bytes();
            let _ = outbox.send(engine, local, hop, &Outgoing::message(route, &bits));
        }
    }

    /// Checks what has arrived, and gives it back.
    pub(super) fn read<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        engine: &mut Engine<'_, T, M, P>,
    ) -> Result<(), Breach> {
        self.give_back(engine);
        let misled = self.misled.take();
        misled.map_or(Ok(()), |what| Err(Breach::new(Invariant::Contents, what)))
    }

    pub(super) fn give_back<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        engine: &mut Engine<'_, T, M, P>,
    ) {
        self.arrived.drain(..).for_each(|delivery| engine.release(delivery));
    }

    /// Takes what comes by the pipe of the guest that is here.
    fn take(&mut self, id: PartId, routing: Routing, delivery: Delivery) {
        let returned = matches!(delivery.kind(), DeliveryKind::Returned { .. });
        let trains = delivery.cdus().flatten().filter(|_| !returned);
        for message in trains.flat_map(|train| train.messages()) {
            self.received += 1;
            let bits = message.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
            // What has gone by a relay may have been under way for longer than the node was out.
            let of_before = |to: PartId| routing == Routing::Grid && to == id.in_generation(to.generation());
            match PartId::from_bits(bits) {
                Some(to) if to == id || of_before(to) => {}
                to => self.misled = Some(format!("{id} has got a message to {to:?}")),
            }
        }
        self.arrived.push(delivery);
    }
}

/// The private pipes of a host: those of its parts, and that of its guest.
pub(super) struct Doors<'a> {
    pub(super) inbox: &'a mut Inbox,
    pub(super) guests: &'a mut Guests,
    pub(super) routing: Routing,
}

impl PrivatePipes for Doors<'_> {
    fn deliver(&mut self, pipe: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        match self.guests.here {
            Some((id, its)) if its == pipe => {
                self.guests.take(id, self.routing, delivery);
                Ok(())
            }
            _ => self.inbox.deliver(pipe, delivery),
        }
    }

    fn event(&mut self, event: Event) {
        if let Event::Unroutable { part, messages, .. } = event
            && part >= self.guests.fixed
        {
            self.guests.astray += u64::from(messages);
        }
        self.inbox.event(event);
    }
}
