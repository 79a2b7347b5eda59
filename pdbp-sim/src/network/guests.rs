//! Parts that come and go while messages to them are in flight.

use std::collections::{BTreeMap, VecDeque};

use pdbp_core::endpoint::{Endpoint, SendError};
use pdbp_core::engine::LocalPart;
use pdbp_core::id::{NodeId, PartId};
use pdbp_core::outbox::Staging;
use pdbp_core::policy::SpacePolicy;
use pdbp_core::tables::PartKind;
use pdbp_core::{BlockMemory, Routing, Transport};

use super::Probability;
use super::check::{Breach, Invariant};
use super::mix::Mix;
use crate::random::Random;

/// Number of ids that a guest remembers, most of them of former guests.
const REMEMBERED: usize = 8;
const NAME: &str = "guest";
/// Nanoseconds after which it reads messages that it left unread.
const AGAIN: u64 = 5_000;

/// The guest of a node: a part that comes and goes again and again, with a name or without one. It sends to guests that it has
/// looked up at some time, and to nameless ones that have sent it something. Each message contains the ids of its addressee and its
/// sender, and a number greater than those that the sender has used before.
#[derive(Debug)]
pub(super) struct Guests {
    /// Average nanoseconds from one action to the next; 0 for no guest.
    every: u64,
    next: u64,
    random: Random,
    /// The share of actions that concern its pipe, and the random numbers for that.
    pipes: Probability,
    pipe_random: Random,
    /// Number of permanent parts of the node.
    fixed: u16,
    here: Option<PartId>,
    /// Whether the next guest has no name.
    nameless: bool,
    known: VecDeque<PartId>,
    /// The number of the last message sent; and of the last one that the current guest has got from each sender.
    last: u64,
    heard: BTreeMap<PartId, u64>,
    #[cfg(test)]
    pub(super) sends_twice: bool,
    /// Number of messages to guests that were gone.
    pub(super) astray: u64,
    pub(super) received: u64,
    /// How many of these came from parts without a name.
    pub(super) of_nameless: u64,
}

impl Guests {
    pub(super) fn new(mix: Mix, start: u64, seed: u64) -> Self {
        Self {
            every: mix.guests,
            next: start + mix.guests,
            random: Random::new(seed ^ 0x6775_6573),
            pipes: mix.pipes,
            pipe_random: Random::new(seed ^ 0x7069_7065),
            fixed: mix.fixed_parts(),
            here: None,
            nameless: false,
            known: VecDeque::new(),
            last: 0,
            heard: BTreeMap::new(),
            #[cfg(test)]
            sends_twice: false,
            astray: 0,
            received: 0,
            of_nameless: 0,
        }
    }

    /// Reads the messages for the current guest, and takes the action that is due at `now`. Returns when the next one is due, until
    /// `end`.
    pub(super) fn act<T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging>(
        &mut self,
        endpoint: &mut Endpoint<'_, T, M, P, W>,
        (now, end): (u64, u64),
    ) -> Result<Option<u64>, Breach> {
        let is_due = self.every > 0 && self.next <= end.min(now);
        // To see what becomes of unread messages when the pipe is returned.
        let is_left = is_due && self.pipes.strikes(&mut self.pipe_random);
        if !is_left {
            self.read(endpoint)?;
        }
        if self.every == 0 || self.next > end {
            return Ok(None);
        }
        if now >= self.next {
            self.next = now + 1 + self.random.below(2 * self.every);
            match self.here {
                // The previous guest may still be leaving.
                None if self.nameless => self.here = endpoint.attach().ok(),
                None => self.here = endpoint.register(NAME, PartKind::Cpu).ok(),
                Some(id) => self.stay(endpoint, id, now)?,
            }
        }
        let again = is_left.then_some(now + AGAIN);
        Ok(again.or((self.next <= end).then_some(self.next)))
    }

    fn stay<T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging>(
        &mut self,
        endpoint: &mut Endpoint<'_, T, M, P, W>,
        me: PartId,
        now: u64,
    ) -> Result<(), Breach> {
        let state = endpoint.state(me);
        if state == LocalPart::Pending {
            return Ok(());
        }
        if state != LocalPart::Registered || self.random.below(8) == 0 {
            // Unregistered together with its unread messages.
            if endpoint.unregister(me).is_ok() {
                (self.here, self.nameless) = (None, self.random.below(2) == 0);
                self.heard.clear();
            }
            return Ok(());
        }
        if self.pipes.strikes(&mut self.pipe_random) {
            change_pipe(endpoint, me)?;
        }
        let engine = endpoint.engine();
        let node = NodeId::new(self.random.below(engine.config().nodes.into()) as u16);
        let found = node.and_then(|node| engine.lookup(node, NAME)).map(|entry| entry.id);
        if let Some(id) = found {
            self.remember(id);
        }
        for _ in 0..self.random.below(4) {
            let at = self.random.below(self.known.len() as u64) as usize;
            let Some(to) = self.known.get(at).copied() else { break };
            if endpoint.engine().recurrence() != 0 && !endpoint.engine().has_part(to) {
                continue;
            }
            // Greater than those of a former life, too.
            self.last = now.max(self.last + 1);
            send(endpoint, me, to, self.last)?;
            #[cfg(test)]
            if self.sends_twice {
                send(endpoint, me, to, self.last)?;
            }
        }
        Ok(())
    }

    fn remember(&mut self, id: PartId) {
        if !self.known.contains(&id) {
            self.known.push_front(id);
            self.known.truncate(REMEMBERED);
        }
    }

    fn read<T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging>(
        &mut self,
        endpoint: &mut Endpoint<'_, T, M, P, W>,
    ) -> Result<(), Breach> {
        let Some(id) = self.here else { return Ok(()) };
        let routing = endpoint.engine().config().routing;
        // A message that went through a relay may have been in flight for longer than the node was out.
        let of_before = |to: PartId| routing == Routing::Grid && to == id.in_generation(to.generation());
        while let Some(message) = endpoint.poll_recv(id) {
            let found = parse(message.bytes());
            let address = message.source().address();
            let source = endpoint.engine().resolve(address);
            endpoint.release(message);
            self.received += 1;
            if let Some(source) = source.filter(|source| source.is_nameless()) {
                self.of_nameless += 1;
                self.remember(source);
            }
            let right =
                found.filter(|(to, from, _)| (*to == id || of_before(*to)) && from.address() == address);
            let Some((to, from, number)) = right else {
                let what = format!("{id} has got a message from {address:?} that says: {found:?}");
                return Err(Breach::new(Invariant::Contents, what));
            };
            if to == id
                && let Some(before) = self.heard.insert(from, number).filter(|before| *before >= number)
            {
                let what = format!("{id} has got message {number} of {from} after {before}");
                return Err(Breach::new(Invariant::Once, what));
            }
        }
        while let Some(returned) = endpoint.poll_returned(id) {
            endpoint.release_returned(returned);
        }
        Ok(())
    }

    /// Notes that messages have arrived for a part that does not exist.
    pub(super) fn record_unroutable(&mut self, part: u16, messages: u32) {
        if part >= self.fixed {
            self.astray += u64::from(messages);
        }
    }
}

/// Returns the pipe of a part, or applies for one if it has none.
fn change_pipe<T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging>(
    endpoint: &mut Endpoint<'_, T, M, P, W>,
    me: PartId,
) -> Result<(), Breach> {
    let had_one = endpoint.engine().private_pipe(me).is_some();
    let changed = if had_one { endpoint.release_pipe(me) } else { endpoint.apply_pipe(me) };
    let wrong =
        |what| Err(Breach::new(Invariant::Accounted, format!("{me}, pipe before: {had_one}: {what}")));
    if let Err(error) = changed {
        return wrong(error.to_string());
    }
    match endpoint.poll_recv(me) {
        None => Ok(()),
        Some(message) => {
            let what = format!("{} bytes of before came by the pipe", message.bytes().len());
            endpoint.release(message);
            wrong(what)
        }
    }
}

/// The addressee, the sender and the number of a message.
fn parse(bytes: &[u8]) -> Option<(PartId, PartId, u64)> {
    let (words, []) = bytes.as_chunks::<8>() else { return None };
    let [to, from, number] = words else { return None };
    let part = |word: &[u8; 8]| PartId::from_bits(u64::from_le_bytes(*word));
    Some((part(to)?, part(from)?, u64::from_le_bytes(*number)))
}

/// Sends a message that contains the ids of its addressee and sender, and its number. Without room or a route, it sends nothing.
fn send<T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging>(
    endpoint: &mut Endpoint<'_, T, M, P, W>,
    me: PartId,
    to: PartId,
    number: u64,
) -> Result<(), Breach> {
    let words = [to.to_bits(), me.to_bits(), number].map(u64::to_le_bytes);
    match endpoint.send(me, to, words.as_flattened()) {
        Ok(()) | Err(SendError::WouldBlock | SendError::PeerFailed(_)) => Ok(()),
        Err(error) => Err(Breach::new(Invariant::Accounted, format!("{me} cannot send to {to}: {error}"))),
    }
}
