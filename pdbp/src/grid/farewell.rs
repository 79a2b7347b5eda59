//! The end of a session: a farewell where one of the two gateways ends in order, and what becomes of what was under way.
//!
//! ```text
//!  gateway that ends                                      the other
//!      ── Bye 1: I leave ─────────────────────────────────▶    sends nothing new, and holds what its parts send
//!      ◀──────────────────────────── Bye 2: nothing new ──
//!   hands on what has come, then returns the rest
//!      ── Taken, Return … Bye 3: done ────────────────────▶    gives back what was returned
//!      ◀───────────────────────────────── Bye 4: known ───
//!   is dropped                                                 gives back what it holds, when the link has ended
//! ```
//! A trunk keeps the order of frames, so that each step says that all has come which was said before it. Both may leave at once; each goes
//! through all steps then.

use std::time::{Duration, Instant};

use super::proxy::{Progress, Proxy, head_of, messages};
use super::session::Session;
use super::wire::{Head, Kind, bye};
use crate::node::Node;
use crate::part::{Part, Shared};

/// Between two tries to hand on what there is no room for.
const PAUSE: Duration = Duration::from_micros(200);

/// How far the farewell of a session has come.
#[derive(Default)]
pub(super) struct Farewell {
    /// This end leaves.
    leaves: bool,
    /// The other one does.
    pub(super) is_left: bool,
    /// It sends nothing new.
    has_all: bool,
    /// This end has dealt with all that had come.
    is_done: bool,
    /// So has the other one.
    is_done_there: bool,
    /// It knows that this end has.
    is_known: bool,
}

impl Farewell {
    /// Whether either end has begun it.
    pub(super) fn has_begun(&self) -> bool {
        self.leaves || self.is_left
    }
}

impl Session {
    /// This gateway is about to end. Whether nothing more is to be said and done. What is in this node's rows has left it if it `is_handed_on`;
    /// with `hurries` what cannot be handed on is returned.
    pub(super) fn leave(&mut self, out: &Part<Shared>, is_handed_on: bool, hurries: bool) -> bool {
        if !std::mem::replace(&mut self.farewell.leaves, true) {
            self.say(out, bye::LEAVES);
        }
        if hurries {
            self.return_stuck(Duration::ZERO);
        }
        let is_told = self.returns.is_empty() && self.untold.is_empty();
        let has_dealt = !self.proxies.values().any(Proxy::has_parcels) && is_handed_on && is_told;
        let is_over = hurries || self.is_idle();
        if self.farewell.has_all && !self.farewell.is_done && is_over && has_dealt {
            self.farewell.is_done = true;
            self.line.is_closed = true;
            self.say(out, bye::DONE);
        }
        let Farewell { is_left, is_done_there, is_known, .. } = self.farewell;
        is_known && (!is_left || is_done_there) && self.line.waiting() == 0
    }

    /// A step of the farewell has come.
    pub(super) fn take_farewell(&mut self, step: u32, out: &Part<Shared>) {
        match step {
            bye::LEAVES if !self.farewell.is_left => {
                self.farewell.is_left = true;
                self.line.is_closed = true;
                self.say(out, bye::NOTHING_NEW);
            }
            bye::NOTHING_NEW => self.farewell.has_all = true,
            bye::DONE if !self.farewell.is_done_there => {
                self.farewell.is_done_there = true;
                self.say(out, bye::KNOWN);
            }
            bye::KNOWN => self.farewell.is_known = true,
            _ => {}
        }
    }

    fn say(&mut self, out: &Part<Shared>, step: u32) {
        self.line.send(out, Head { count: step, ..Head::new(Kind::Bye) }, &[]);
    }

    /// Returns messages for parts that have taken nothing for so long.
    pub(super) fn return_stuck(&mut self, patience: Duration) {
        let mut stuck = Vec::new();
        self.proxies.values_mut().for_each(|proxy| proxy.take_stuck(patience, &mut stuck));
        stuck.iter().for_each(|delivery| self.give_back(delivery));
    }

    /// The session is over: what the other gateway has not got is on its way back to those who have sent it, as far as this end still has it;
    /// what links have given back went to [`Session::undo`] before. Returns how many messages that had taken and not said what has become of
    /// them. What had come is handed on by [`Session::advance_end`].
    pub(super) fn end(&mut self) -> u64 {
        for frame in self.line.take_waiting() {
            if let Some((head, bytes)) = Head::read(&frame) {
                self.undo(&head, bytes);
            }
        }
        for proxy in self.proxies.values_mut() {
            while let Some((head, bytes)) = proxy.hold.take(&mut self.line) {
                if head.kind == Kind::Data {
                    self.line.returned += proxy.give_back(&head, &bytes);
                }
            }
        }
        // Another session may have the name.
        self.gate = None;
        self.proxies.values().map(|proxy| proxy.unconfirmed).sum()
    }

    /// A frame that the other gateway has not got. Whether it is of this session, with messages that go back now.
    pub(super) fn undo(&mut self, head: &Head, bytes: &[u8]) -> bool {
        if head.kind != Kind::Data {
            return false;
        }
        let Some(proxy) = self.proxies.get_mut(&head.dest) else { return false };
        proxy.unconfirmed = proxy.unconfirmed.saturating_sub(messages(head));
        self.line.returned += proxy.give_back(head, bytes);
        true
    }

    /// Hands on what had come, and gives back what still comes for parts of the other cluster.
    pub(super) fn advance_end(&mut self) -> Progress {
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        let mut progress = Progress::default();
        for proxy in self.proxies.values_mut() {
            // No more than who has sent it takes back.
            while !proxy.has_returns()
                && let Some(batch) = proxy.part.try_recv_batch()
            {
                proxy.give_back(&head_of(&batch, 0), batch.bytes());
                progress.worked = true;
            }
            let Progress { worked, has_handed_on } = proxy.hand_on_all(&mut taken, &mut refused);
            progress.worked |= worked;
            progress.has_handed_on |= has_handed_on;
            proxy.part.flush();
        }
        self.proxies.retain(|_, proxy| {
            let is_over = proxy.deliveries.is_empty() && proxy.is_read();
            if is_over {
                // Behind what had come of it.
                proxy.end_streams();
                proxy.hold.end(proxy.part.node(), &proxy.part);
            }
            !is_over
        });
        progress
    }

    /// Hands on what had come until that is done, or a part has not read for too long; then as little is waited for as `hurries` says.
    pub(super) fn finish(mut self, node: &Node, hurries: impl Fn() -> bool) {
        let (most, least) = (node.settings().timeout, node.settings().farewell);
        let (mut handed_on, mut worked) = (Instant::now(), Instant::now());
        while !self.proxies.is_empty() {
            let progress = self.advance_end();
            if progress.worked {
                worked = Instant::now();
            }
            if progress.has_handed_on {
                handed_on = Instant::now();
            }
            let patience = if hurries() { most.min(least) } else { most };
            // Of those who go on sending, and have it back, there is no end, whether others read or not.
            if worked.elapsed() >= patience || handed_on.elapsed() >= most {
                break;
            }
            if !progress.worked {
                std::thread::sleep(PAUSE);
            }
        }
        for proxy in self.proxies.values_mut() {
            proxy.end_long();
            proxy.end_streams();
            proxy.hold.end(node, &proxy.part);
        }
    }
}
