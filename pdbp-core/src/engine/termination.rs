//! Quiescence: the master counts, in waves, what was sent and what was delivered.

use super::{Engine, Event, PrivatePipes};
use crate::mesp::Control;
use crate::outbox::Due;
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// How far the master came.
enum Step {
    Done,
    /// Something has to come, or nothing is to be done (`false`).
    Waits(bool),
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Asks the master to find out when all that was sent before, by any node, has been put into private pipes; done when
    /// [`is_quiet`](Self::is_quiet) says so. Nodes that are no members, and links that have failed, do not count. Requests made while
    /// one is under way are answered together after it.
    pub fn ask_quiet(&mut self) -> u32 {
        self.control.quiet_asked = self.control.quiet_asked.wrapping_add(1);
        self.control.stirred = true;
        self.control.quiet_asked
    }

    /// Whether request `number` has been answered.
    pub fn is_quiet(&self, number: u32) -> bool {
        self.control.quiet_done.wrapping_sub(number) < u32::MAX / 2
    }

    /// Data blocks sent and delivered, and blocks at writers, by this node's counts. Links that have failed do not count:
    /// what was on them will not arrive.
    pub(super) fn counts(&self) -> (u64, u64, u32) {
        let (mut sent, mut delivered, mut open) = (0, 0, 0);
        let live = self.send_rows.iter().zip(self.peers.iter()).filter(|(_, p)| !p.is_gone());
        for (row, peer) in live {
            // Of the link as it is now: those on their way to the transport, and those that it took.
            sent += peer.data_sent + u64::from(row.urgent.len + row.queue.len);
            delivered += peer.delivered;
            open += row.open;
        }
        (sent, delivered, open)
    }

    /// Master: counts in waves until two in a row find every block sent delivered, and the same number of them. Whether it wants
    /// to be called again. A master that has no peers left is called by nobody, so it goes as far as it can by itself.
    pub(super) fn advance_quiet(&mut self, pipes: &mut impl PrivatePipes) -> bool {
        loop {
            if let Step::Waits(busy) = self.step_quiet(pipes) {
                return busy;
            }
        }
    }

    fn step_quiet(&mut self, pipes: &mut impl PrivatePipes) -> Step {
        let nodes = self.peers.len();
        if !self.control.counting {
            let own = self.control.quiet_asked != self.control.quiet_done;
            let wave = self.control.wave;
            let mut wanted = own;
            for peer in self.peers.iter_mut().take(nodes) {
                wanted |= peer.quiet_request.is_some();
                // A request counts from the first wave that starts after it.
                if let Some((_, since)) = &mut peer.quiet_request
                    && *since == 0
                {
                    *since = wave + 1;
                }
            }
            if !wanted {
                return Step::Waits(false);
            }
            self.start_wave(pipes);
        }
        if self.peers.iter().take(nodes).any(|p| p.count.is_none() && !p.is_gone()) {
            return Step::Waits(true);
        }
        let counts = || self.peers.iter().take(nodes).filter(|p| !p.is_gone()).filter_map(|p| p.count);
        let sent: u64 = counts().map(|c| c.1).sum();
        let delivered: u64 = counts().map(|c| c.2).sum();
        let open: u32 = counts().map(|c| c.3).sum();
        self.control.counting = false;
        let settled = sent == delivered && open == 0;
        if !settled || self.control.last_sum != Some(sent) {
            self.control.last_sum = settled.then_some(sent);
            return if settled { Step::Done } else { Step::Waits(true) };
        }
        // This wave and the one before agree: what was sent before the first of them has been received.
        let first = self.control.wave - 1;
        for peer in self.peers.iter_mut().take(nodes) {
            if let Some((number, since)) = peer.quiet_request
                && since != 0
                && since <= first
            {
                peer.quiet_request = None;
                peer.post(Control::Quiet { number });
            }
        }
        if let Some(own) = self.peers.get_mut(self.own.index()) {
            // The master's own answer needs no message.
            while let Some(message) = own.outbox.pop_front() {
                if let Control::Quiet { number } = message {
                    self.control.quiet_done = number;
                }
            }
        }
        self.control.last_sum = None;
        Step::Done
    }

    pub(super) fn start_wave(&mut self, pipes: &mut impl PrivatePipes) {
        let nodes = self.peers.len();
        let asked = self.control.quiet_asked;
        let (me, wave) = (self.own.index(), self.control.wave.wrapping_add(1));
        self.control.wave = wave;
        self.control.counting = true;
        for (i, peer) in self.peers.iter_mut().take(nodes).enumerate() {
            peer.count = None;
            if i == me {
                if asked != self.control.quiet_done && peer.quiet_request.is_none() {
                    peer.quiet_request = Some((asked, wave));
                }
            } else if !peer.is_gone() {
                peer.post(Control::CountRequest { wave });
            }
        }
        self.flush_relayed(Due::All);
        pipes.event(Event::FlushWanted);
        let (sent, delivered, open) = self.counts();
        if let Some(own) = self.peers.get_mut(me) {
            own.count = Some((wave, sent, delivered, open));
        }
    }
}
