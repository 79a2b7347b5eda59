//! The other end of a link: its numbers, its outbox, and the blocks that carry what waits there.

use core::ops::Range;

use heapless::Deque;
use zerocopy::{FromBytes, IntoBytes};

use super::passing::answer_streams;
use super::protocol::{Accord, Protocol};
use super::{BUDGET, Engine};
use crate::agreement::MESSAGE;
use crate::cdu::{BLOCK_HEADER, BlockClass, BlockHeader, CDU_HEADER, CduClass, Packer, Route};
use crate::matrix::RecvRow;
use crate::mesp::{AGREEMENT, CONTROL, Control, SETTINGS};
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::Transport;
use crate::umb::{BlockMemory, BlockState, SealedBlock};

pub(super) const OUTBOX: usize = 9;
/// Places of a link's [capacity](Transport::capacity) that data leaves to control blocks. One would do for these to wait for nothing
/// but polls of the peer; with two the next one leaves while the first is on its way back.
pub(super) const SPARE_PLACES: u32 = 2;

/// What is known of the other end of a link.
#[derive(Debug, Default)]
pub struct Peer {
    /// Blocks given to the transport, all classes: the next sequence number.
    pub(super) sent: u64,
    /// The sequence number expected next.
    pub(super) received: u64,
    pub(super) data_sent: u64,
    pub(super) data_acked: u64,
    /// Blocks that we may have unreleased at the peer.
    pub(super) window: u32,
    /// Data blocks of the peer that we have released, and what of it the peer has been told.
    pub(super) released: u64,
    pub(super) released_told: u64,
    pub(super) window_told: u32,
    /// Data blocks of the peer that have arrived, unreadable ones included as soon as they are known.
    pub(super) data_received: u64,
    /// Blocks refused as unreadable since the last one that was not.
    pub(super) unread: u64,
    /// Data blocks of the peer that went to private pipes, or were refused.
    pub(super) delivered: u64,
    /// Control blocks that the transport has, and data blocks; so many of these it may have.
    pub(super) control_away: u32,
    pub(super) data_away: u32,
    pub(super) places: u32,
    /// The peer wants a control block, to see its numbers and its round.
    pub(super) probed: bool,
    /// The round of what the two tell each other, and whether a control block of the peer is missing in it: see `round`.
    pub(super) round: u32,
    pub(super) missed: bool,
    /// Data blocks that had left by a posted link, and came back when it failed.
    pub(super) came_back: u64,
    /// Messages that the peer did not get, since it failed.
    pub(super) undelivered: u64,
    pub(super) failed: bool,
    /// It is no member of the cluster, or this node is none.
    pub(super) down: bool,
    /// This node is a member for the peer, as far as is known, so that it takes data.
    pub(super) welcome: bool,
    /// What is known of its settings, and whether it was told those of this node.
    pub(super) accord: Accord,
    pub(super) introduced: bool,
    /// Blocks and credit are set aside for when the link is restored.
    pub(super) aside: bool,
    /// The transport has refused a block for good.
    pub(super) refused: bool,
    /// The session of the link. Blocks that came by an earlier one are none of this one's business.
    pub(super) session: u32,
    /// Blocks from and to the peer travel in blocks that the receiver has posted.
    pub(super) posted: bool,
    pub(super) malformed: u64,
    pub(super) outbox: Deque<Control, OUTBOX>,
    /// It is to be told of some of its streams, which go by this node, whether they have a way.
    pub(super) owes_answers: bool,
    /// It is to be told whether messages in segments have room.
    pub(super) owes_rooms: bool,
    /// At the primary: barriers it has arrived at.
    pub(super) arrived: u32,
    pub(super) quiet_request: Option<(u32, u32)>,
    pub(super) count: Option<(u32, u64, u64, u32)>,
}

impl Peer {
    /// The peer has been told the credit by a block that leaves now.
    pub(super) fn announced(&mut self, window: u32) {
        self.released_told = self.released;
        self.window_told = window;
    }

    /// The link has failed: nothing is for this peer or wanted of it any more.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        self.forget_mail();
    }

    /// Its settings are others: nothing is for this peer or wanted of it in this session.
    pub(super) fn part(&mut self) {
        self.accord = Accord::Unlike;
        self.forget_mail();
    }

    fn forget_mail(&mut self) {
        self.outbox.clear();
        self.quiet_request = None;
        self.count = None;
    }

    /// Credit of the peer in this row: none before its settings are known.
    pub(super) fn credit_in(&self, row: &RecvRow) -> u32 {
        if self.accord == Accord::Alike { row.window() } else { 0 }
    }

    /// The link is up again, with everything to begin anew; the peer has no credit before it says so.
    pub(super) fn renew(&mut self, session: u32) {
        let Self { posted, places, malformed, undelivered, arrived, down, aside, owes_answers, .. } = *self;
        let kept = Self { posted, places, malformed, undelivered, arrived, ..Self::default() };
        *self = Self { session, down, aside, owes_answers, ..kept };
    }

    /// Whether no data goes to it or comes from it.
    pub(super) fn is_gone(&self) -> bool {
        self.failed || self.down || !self.welcome || self.accord == Accord::Unlike
    }

    /// Whether the peer is to be told something, or that its credit is `window`. `waits`: there is data for it; `idle`: there was
    /// nothing else to do.
    #[inline]
    fn wants_control(&self, window: u32, waits: bool, idle: bool) -> bool {
        if !self.introduced && (waits || self.accord != Accord::Unknown) {
            return true;
        }
        if self.window_told != window || self.probed || self.has_mail() {
            return true;
        }
        let news = self.released - self.released_told;
        if !self.posted || news == 0 {
            return false;
        }
        // A reader may keep half of the blocks while it waits for more: then news of fewer matters to the peer too, as
        // soon as it may be out of credit (less the element kept for commands).
        let short = self.data_received.saturating_sub(self.released_told) + 1 >= u64::from(window);
        news >= u64::from((window / 2).max(1)) || (idle && short)
    }

    /// Whether control messages wait for it, those of the agreement aside.
    fn has_mail(&self) -> bool {
        !self.outbox.is_empty() || self.owes_answers || self.owes_rooms
    }

    /// Puts a message into the outbox. `false`: there is no room, since the peer asked for more than it should.
    ///
    /// Of each kind there is one at most: the latest replaces it.
    pub(super) fn post(&mut self, message: Control) -> bool {
        let same = |m: &&mut Control| m.command() == message.command();
        match &message {
            _ if self.failed || self.accord == Accord::Unlike => true,
            _ => match self.outbox.iter_mut().find(same) {
                Some(before) => {
                    *before = message;
                    true
                }
                None => self.outbox.push_back(message).is_ok(),
            },
        }
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Sends what waits in the outboxes, and credit that no other block carries. `idle`: there was nothing else to do.
    pub(super) fn pump_control(&mut self, idle: bool) -> u32 {
        // One look at a flag tells whether the agreement has something to say to anybody.
        let talks = self.agreement.next_receiver(|_| true).is_some();
        // Those with low numbers must not take all blocks: it goes on behind the row that got the last.
        let (rows, turn) = (self.peers.len(), self.control.turn.min(self.peers.len()));
        let mut worked = 0;
        for range in [turn..rows, 0..turn] {
            let mut from = range.start;
            while from < range.end
                && let Some(node) = self.next_with_control(from..range.end, (idle, talks))
            {
                worked += self.send_control(node, (idle, talks));
                from = node.index() + 1;
            }
        }
        worked
    }

    /// The first of some rows whose peer is to get a control block.
    fn next_with_control(&self, range: Range<usize>, (idle, talks): (bool, bool)) -> Option<Slot> {
        let (peers, sends) = (self.peers.get(range.clone())?, self.send_rows.get(range.clone())?);
        let mut rows = peers.iter().zip(sends).zip(self.recv_rows.get(range.clone())?).zip(range);
        let found = rows.find(|&(((peer, send), recv), i)| {
            let says = |i| self.agreement.has_message(self.links.node(Slot::from_index(i)));
            let waits = send.queue.len + send.urgent.len > 0;
            let wants = peer.wants_control(peer.credit_in(recv), waits, idle)
                || send.control.len > 0
                || (talks && says(i));
            wants && !peer.failed && i != self.own.index()
        });
        found.map(|(_, i)| Slot::from_index(i))
    }

    #[inline(never)]
    fn send_control(&mut self, node: Slot, what: (bool, bool)) -> u32 {
        let mut worked = 0;
        // The equal share of each link, which is 1 at least. A link has no more than that away and queued, so that the reserve has a
        // block for every link that has fewer: a peer that does not take its blocks holds none of the others'.
        let share = self.config.control_blocks / (self.links.len() as u32).saturating_sub(1).max(1);
        for _ in 0..BUDGET {
            let i = node.index();
            if !self.flush_control_queue(node) || self.next_with_control(i..i + 1, what).is_none() {
                break;
            }
            if self.peers.get(i).is_some_and(|p| p.control_away >= share) {
                break;
            }
            let Some(index) = self.dequeue(|e| Some(&mut e.reserve)) else { break };
            self.fill_control(node, index);
            self.control.turn = i + 1;
            self.enqueue(index, |e| e.send_rows.get_mut(i).map(|r| &mut r.control));
            worked += 1;
        }
        worked
    }

    /// Whether live peers are still to be told something of tables, barriers or quiescence. A node that leaves polls until not.
    pub fn has_news(&self) -> bool {
        let rows = self.send_rows.iter().zip(self.peers.iter());
        let talks = self.agreement.has_news();
        rows.enumerate().filter(|(_, (_, peer))| !peer.failed).any(|(i, (row, peer))| {
            let agrees = talks && self.agreement.has_message(self.links.node(Slot::from_index(i)));
            let introduces = !peer.introduced && peer.accord != Accord::Unknown;
            peer.has_mail() || row.control.len > 0 || agrees || introduces
        })
    }

    /// Gives the transport the control blocks that it refused before. `false`: it still does.
    fn flush_control_queue(&mut self, node: Slot) -> bool {
        while let Some(index) = self.dequeue(|e| e.send_rows.get_mut(node.index()).map(|r| &mut r.control)) {
            if !self.transmit(node, index, false) {
                self.requeue(index, |e| e.send_rows.get_mut(node.index()).map(|r| &mut r.control));
                return false;
            }
        }
        true
    }

    /// Packs the messages of an outbox, as many as fit, into a block set aside for control.
    pub(super) fn fill_control(&mut self, node: Slot, index: u32) {
        let Some(mut raw) = self.umb.lend(index) else { return };
        let mut packer = Packer::new();
        let body = raw.body_mut();
        let peer = self.peers.get_mut(node.index());
        let round = peer.as_ref().map_or(0, |peer| peer.round);
        let said = peer.is_none_or(|peer| {
            peer.probed = false;
            core::mem::replace(&mut peer.introduced, true)
        });
        if !said {
            let route = Route::raw(CduClass::ShortMessage as u8, SETTINGS, 0, 0);
            let pushed = packer.push(body, route, self.protocol.as_bytes());
            debug_assert!(pushed.is_ok(), "the smallest block has room for the settings");
        }
        // As many as have room in any case: a message of the agreement that was taken has to leave.
        let said = packer.messages() as usize;
        let taken = said * (2 * CDU_HEADER + size_of::<Protocol>());
        let most = said + body.len().saturating_sub(taken) / (MESSAGE + 2 * CDU_HEADER);
        // Before the others, so that a node knows who is primary before it gets anything else of it.
        while (packer.messages() as usize) < most
            && let Some(message) = self.agreement.next_message(self.links.node(node), &self.tables)
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
        if let Some(peer) = self.peers.get_mut(node.index()) {
            while let Some(message) = peer.outbox.front()
                && pack(message)
            {
                peer.outbox.pop_front();
            }
            if peer.owes_answers {
                peer.owes_answers = !answer_streams(self.streams.row(node), &mut pack);
            }
            if peer.owes_rooms {
                peer.owes_rooms = !self.rooms.answer(self.config.node, node, pack);
            }
        }
        let messages = packer.messages();
        let length = (BLOCK_HEADER + packer.finish(body)) as u32;
        let mut block = SealedBlock::new(raw, length as usize);
        self.write_fixed(&mut block, node, BlockClass::Control, 0, messages);
        if let Ok((header, _)) = BlockHeader::mut_from_prefix(block.header_mut()) {
            header.stream.set(round);
        }
        let _ = self.umb.take_back(block);
        if let Some(entry) = self.umb.entry(index) {
            entry.state = BlockState::Queued;
            entry.length = length;
        }
    }
}
