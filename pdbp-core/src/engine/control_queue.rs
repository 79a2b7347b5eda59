//! Control messages waiting for a peer, and the blocks that carry them.

use core::ops::Range;

use heapless::Deque;
use zerocopy::IntoBytes;

use super::circuits::answer_streams;
use super::link::{Label, Link, Payload};
use super::protocol::Protocol;
use super::{BUDGET, Engine};
use crate::agreement::MESSAGE;
use crate::cdu::{BLOCK_HEADER, BlockClass, CDU_HEADER, CduClass, Packer, Route};
use crate::mesp::{AGREEMENT, CONTROL, Control, SETTINGS};
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::{BlockMemory, BlockState, SealedBlock};

/// Number of message kinds that can wait at a time.
const KINDS: usize = 10;
/// Slots of a link's [capacity](Transport::capacity) that data leaves to control blocks. With one, control blocks would wait for
/// nothing but polls of the peer; with two, the next one leaves while the first is on its way back.
pub(super) const CONTROL_CAPACITY: u32 = 2;

/// Everything to be reported to a peer, apart from messages of the agreement.
#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    /// At most one message of each kind.
    messages: Deque<Control, KINDS>,
    /// Whether the peer has asked for a control block, to see its numbers and its round.
    pub(super) probed: bool,
    /// Whether the peer has been sent this node's settings.
    pub(super) introduced: bool,
    /// Whether to report which of the peer's streams through this node have a circuit.
    pub(super) owes_answers: bool,
    /// Whether to report which messages in segments have room.
    pub(super) owes_rooms: bool,
}

impl ControlQueue {
    /// Queues a message, replacing one of the same kind. Returns `false` if there is no room.
    pub(super) fn push(&mut self, message: Control) -> bool {
        match self.messages.iter_mut().find(|m| m.command() == message.command()) {
            Some(before) => {
                *before = message;
                true
            }
            None => self.messages.push_back(message).is_ok(),
        }
    }

    /// Takes the oldest messages, as many as `pack` has room for.
    fn drain(&mut self, mut pack: impl FnMut(&Control) -> bool) {
        while let Some(message) = self.messages.front()
            && pack(message)
        {
            self.messages.pop_front();
        }
    }

    /// Drops all messages.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
    }

    /// Resets the queue when a new session of the link begins.
    pub(super) fn restart(&mut self) {
        *self = Self { owes_answers: self.owes_answers, ..Self::default() };
    }

    /// Whether anything waits to be sent to the peer, apart from messages of the agreement.
    pub(super) fn has_messages(&self) -> bool {
        !self.messages.is_empty() || self.owes_answers || self.owes_rooms
    }
}

impl Link {
    /// Whether the peer is to be sent a message, or its credit. `idle`: nothing else is left to do.
    #[inline]
    fn wants_control(&self, idle: bool) -> bool {
        if !self.control.introduced && (self.send.waiting() > 0 || !self.state.is_unknown()) {
            return true;
        }
        let has_news = self.numbers.has_news(self.credit(), self.posted, idle);
        has_news || self.control.probed || self.control.has_messages()
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Sends waiting control messages, and credit that no other block carries. `idle`: nothing else is left to do.
    #[inline(always)]
    pub(super) fn pump_control(&mut self, idle: bool) -> u32 {
        let news = self.agreement.has_news();
        // Unless something has changed since the last time no peer needed anything, a poll need not check each link.
        if news || self.links.is_dirty() { self.scan_links(news, idle) } else { 0 }
    }

    #[inline(never)]
    fn scan_links(&mut self, news: bool, idle: bool) -> u32 {
        // A single flag tells whether the agreement has a message for anyone.
        let talks = news && self.agreement.next_receiver(|_| true).is_some();
        let (mut wants, mut may_want) = (false, talks);
        for link in self.links.iter() {
            wants |= self.needs_control(link, (idle, talks));
            // On links with posted blocks, there may be news once nothing else is left to do.
            may_want |= !idle && link.posted && link.id != self.links.own;
        }
        if wants {
            return self.send_controls((idle, talks));
        }
        if !may_want {
            self.links.mark_clean();
        }
        0
    }

    #[inline(never)]
    fn send_controls(&mut self, (idle, talks): (bool, bool)) -> u32 {
        // Links with low numbers must not take all the blocks, so this resumes after the link that got the last one.
        let (links, turn) = (self.links.len(), self.control_turn.min(self.links.len()));
        let mut worked = 0;
        for range in [turn..links, 0..turn] {
            let mut from = range.start;
            while from < range.end
                && let Some(id) = self.next_with_control(from..range.end, (idle, talks))
            {
                worked += self.send_control(id, (idle, talks));
                from = id.index() + 1;
            }
        }
        worked
    }

    /// Returns the first link in a range whose peer is to get a control block.
    fn next_with_control(&self, range: Range<usize>, what: (bool, bool)) -> Option<LinkId> {
        let wants = |link: &&Link| self.needs_control(link, what);
        self.links.range(range).iter().find(wants).map(|link| link.id)
    }

    #[inline(always)]
    fn needs_control(&self, link: &Link, (idle, talks): (bool, bool)) -> bool {
        if link.id == self.links.own {
            return false;
        }
        let wants = link.wants_control(idle)
            || !link.send.control.is_empty()
            || (talks && self.agreement.has_message(link.peer));
        wants && !link.state.is_down()
    }

    #[inline(never)]
    fn send_control(&mut self, id: LinkId, what: (bool, bool)) -> u32 {
        let mut worked = 0;
        // The equal share of each link, at least 1. A link never has more than that in flight and queued, so a block is left for
        // every link that has fewer: a peer that does not take its blocks holds up no other.
        let share = self.config.control_blocks / self.links.peers().max(1);
        for _ in 0..BUDGET {
            let sent = self.flush_control_queue(id);
            let link = self.links.get(id).filter(|link| sent && self.needs_control(link, what));
            if link.is_none_or(|link| link.numbers.control_in_flight >= share) {
                break;
            }
            let Some(index) = self.control_blocks.pop_front(&mut self.umb) else { break };
            self.fill_control(id, index);
            self.control_turn = id.index() + 1;
            worked += 1;
        }
        worked
    }

    /// Whether live peers still have to be notified about tables, barriers or quiescence. A node that leaves keeps polling until
    /// this is `false`.
    pub fn has_news(&self) -> bool {
        let talks = self.agreement.has_news();
        self.links.iter().filter(|link| !link.state.is_down()).any(|link| {
            let introduces = !link.control.introduced && !link.state.is_unknown();
            let agrees = talks && self.agreement.has_message(link.peer);
            link.control.has_messages() || !link.send.control.is_empty() || agrees || introduces
        })
    }

    /// Submits the control blocks of a link that the transport refused before. Returns `false` if it refuses again.
    fn flush_control_queue(&mut self, id: LinkId) -> bool {
        loop {
            match self.send_first(id, Link::next_control) {
                None => return true,
                Some(false) => return false,
                Some(true) => {}
            }
        }
    }

    /// Packs waiting control messages, as many as fit, into a control block and queues it.
    fn fill_control(&mut self, id: LinkId, index: u32) {
        let Self { links, umb, agreement, tables, streams, rooms, config, protocol, .. } = self;
        let Some(link) = links.get_mut(id) else { return };
        let Some(mut raw) = umb.lend(index) else { return };
        let mut packer = Packer::new();
        let body = raw.body_mut();
        link.control.probed = false;
        if !core::mem::replace(&mut link.control.introduced, true) {
            let route = Route::raw(CduClass::ShortMessage as u8, SETTINGS, 0, 0);
            let pushed = packer.push(body, route, protocol.as_bytes());
            debug_assert!(pushed.is_ok(), "the smallest block has room for the settings");
        }
        // Only as many as are sure to fit: a message taken from the agreement must be sent.
        let said = packer.messages() as usize;
        let taken = said * (2 * CDU_HEADER + size_of::<Protocol>());
        let most = said + body.len().saturating_sub(taken) / (MESSAGE + 2 * CDU_HEADER);
        // Ahead of the others, so that a node knows the primary before it gets anything else from it.
        while (packer.messages() as usize) < most
            && let Some(message) = agreement.next_message(link.peer, tables)
        {
            let route = Route::raw(CduClass::ShortMessage as u8, AGREEMENT, 0, 0);
            let pushed = packer.push(body, route, &message.encode());
            debug_assert!(pushed.is_ok(), "a block has room for the messages that were counted");
        }
        let mut pack = |message: &Control| {
            let bytes: [u8; CONTROL] = message.encode();
            let route = Route::raw(CduClass::ShortMessage as u8, message.command(), 0, 0);
            packer.push(body, route, &bytes).is_ok()
        };
        link.control.drain(&mut pack);
        if link.control.owes_answers {
            link.control.owes_answers = !answer_streams(streams.row(id), &mut pack);
        }
        if link.control.owes_rooms {
            link.control.owes_rooms = !rooms.answer(id, pack);
        }
        let messages = packer.messages();
        let body = packer.finish(body) as u32;
        let length = BLOCK_HEADER as u32 + body;
        let mut block = SealedBlock::new(raw, length as usize);
        let label = Label { stream: link.round.number, ..Label::new(BlockClass::Control, body, messages) };
        link.write_header(&mut block, config.node, &label);
        let _ = umb.reclaim(block);
        if let Some(entry) = umb.entry(index) {
            entry.state = BlockState::Queued;
            entry.length = length;
        }
        link.enqueue(umb, index, Payload::Control);
    }
}
