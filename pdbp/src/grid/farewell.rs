//! The end of a session: the farewell, if one of the two gateways shuts down in order, and what happens to data in flight.
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
//! A trunk preserves the order of frames, so each step confirms that everything before it has arrived. If both gateways leave at
//! once, each goes through all steps.

use std::time::{Duration, Instant};

use super::proxy::{Progress, Proxy, head_of, messages};
use super::session::Session;
use super::wire::{Head, Kind, MORE, bye};
use crate::node::Node;
use crate::part::{Part, Shared};

/// Pause between attempts to hand on messages without room.
const PAUSE: Duration = Duration::from_micros(200);

/// State of a session's farewell.
#[derive(Default)]
pub(super) struct Farewell {
    /// Whether this end leaves.
    leaves: bool,
    /// Whether the other end leaves.
    pub(super) is_left: bool,
    /// Whether the other end sends nothing new.
    has_all: bool,
    /// Whether this end has dealt with everything received.
    is_done: bool,
    /// Whether the other end has dealt with everything that it received.
    is_done_there: bool,
    /// Whether the other end knows that this end has.
    is_known: bool,
    /// The pieces of a message, or train, that have not reached the other end, until the last is here.
    undone: Vec<u8>,
}

impl Farewell {
    /// Whether either end has begun it.
    pub(super) fn has_begun(&self) -> bool {
        self.leaves || self.is_left
    }
}

impl Session {
    /// Advances the farewell of this gateway, which is about to end. Returns whether the farewell is complete. `is_all_forwarded`:
    /// nothing waits in this node's rows. With `hurries`, what cannot be handed on is returned.
    pub(super) fn leave(&mut self, out: &Part<Shared>, is_all_forwarded: bool, hurries: bool) -> bool {
        if !std::mem::replace(&mut self.farewell.leaves, true) {
            self.send_step(out, bye::LEAVES);
        }
        if hurries {
            self.return_stuck(Duration::ZERO);
        }
        let is_told = self.returns.is_empty() && self.acknowledgements.is_empty();
        let has_dealt = !self.proxies.values().any(Proxy::has_parcels) && is_all_forwarded && is_told;
        let is_over = hurries || self.is_idle();
        if self.farewell.has_all && !self.farewell.is_done && is_over && has_dealt {
            self.farewell.is_done = true;
            self.line.is_closed = true;
            self.send_step(out, bye::DONE);
        }
        let Farewell { is_left, is_done_there, is_known, .. } = self.farewell;
        is_known && (!is_left || is_done_there) && self.line.waiting() == 0
    }

    /// Takes a step of the farewell from the other end.
    pub(super) fn take_farewell(&mut self, step: u32, out: &Part<Shared>) {
        match step {
            bye::LEAVES if !self.farewell.is_left => {
                self.farewell.is_left = true;
                self.line.is_closed = true;
                self.send_step(out, bye::NOTHING_NEW);
            }
            bye::NOTHING_NEW => self.farewell.has_all = true,
            bye::DONE if !self.farewell.is_done_there => {
                self.farewell.is_done_there = true;
                self.send_step(out, bye::KNOWN);
            }
            bye::KNOWN => self.farewell.is_known = true,
            _ => {}
        }
    }

    fn send_step(&mut self, out: &Part<Shared>, step: u32) {
        self.line.send(out, Head { count: step, ..Head::new(Kind::Bye) }, &[]);
    }

    /// Returns messages for parts that have taken nothing for `patience`.
    pub(super) fn return_stuck(&mut self, patience: Duration) {
        let mut stuck = Vec::new();
        self.proxies.values_mut().for_each(|proxy| proxy.take_stuck(patience, &mut stuck));
        stuck.iter().for_each(|delivery| self.return_messages(delivery));
    }

    /// Ends the session. Data that this end still holds for the other gateway goes back to its senders; data that failed links
    /// gave back went to [`Session::undo`] before. Returns the number of messages that the other gateway took without reporting
    /// their outcome. [`Session::advance_end`] hands on the data received.
    pub(super) fn end(&mut self) -> u64 {
        for frame in self.line.take_waiting() {
            if let Some((head, bytes)) = Head::read(&frame) {
                self.undo(&head, bytes);
            }
        }
        for proxy in self.proxies.values_mut() {
            while let Some((head, bytes)) = proxy.hold.take(&mut self.line) {
                if head.kind == Kind::Data {
                    self.line.returned += proxy.return_messages(&head, &bytes);
                }
            }
        }
        // Lets another session take the name.
        self.gate = None;
        self.proxies.values().map(|proxy| proxy.unconfirmed).sum()
    }

    /// Takes back a frame that did not reach the other gateway; its messages go to their sender. Of a message, or train, that is
    /// sent in pieces, the last ones come here, in order. Returns whether the frame belonged to this session and held messages.
    pub(super) fn undo(&mut self, head: &Head, bytes: &[u8]) -> bool {
        if head.kind != Kind::Data || !self.proxies.contains_key(&head.dest) {
            return false;
        }
        self.farewell.undone.extend_from_slice(bytes);
        if head.flags & MORE != 0 {
            return true;
        }
        let pieces = std::mem::take(&mut self.farewell.undone);
        let (head, bytes) = last_messages(head, &pieces);
        if let Some(proxy) = self.proxies.get_mut(&head.dest).filter(|_| head.count > 0) {
            proxy.unconfirmed = proxy.unconfirmed.saturating_sub(messages(&head));
            self.line.returned += proxy.return_messages(&head, bytes);
        }
        true
    }

    /// Hands on data received earlier, and gives back what still arrives for parts of the other cluster.
    pub(super) fn advance_end(&mut self) -> Progress {
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        let mut progress = Progress::default();
        for proxy in self.proxies.values_mut() {
            // Takes no more than its sender takes back.
            while !proxy.has_returns()
                && let Some(batch) = proxy.part.try_recv_batch()
            {
                proxy.return_messages(&head_of(&batch, 0), batch.bytes());
                progress.worked = true;
            }
            let Progress { worked, has_forwarded } = proxy.forward_all(&mut taken, &mut refused);
            progress.worked |= worked;
            progress.has_forwarded |= has_forwarded;
            proxy.part.flush();
        }
        self.proxies.retain(|_, proxy| {
            let is_over = proxy.deliveries.is_empty() && proxy.is_read();
            if is_over {
                // After the data received from it.
                proxy.end_streams();
                proxy.hold.end(&proxy.part);
            }
            !is_over
        });
        progress
    }

    /// Hands on data received earlier, until everything is done or a part has not read for too long; with `hurries`, waits as
    /// little as possible.
    pub(super) fn finish(mut self, node: &Node, hurries: impl Fn() -> bool) {
        let (most, least) = (node.settings().timeout, node.settings().farewell);
        let (mut handed_on, mut worked) = (Instant::now(), Instant::now());
        while !self.proxies.is_empty() {
            let progress = self.advance_end();
            if progress.worked {
                worked = Instant::now();
            }
            if progress.has_forwarded {
                handed_on = Instant::now();
            }
            let patience = if hurries() { most.min(least) } else { most };
            // Without this, senders that keep sending and getting messages back would keep this going for ever, whether others
            // read or not.
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
            proxy.hold.end(&proxy.part);
        }
    }
}

/// The messages of a train that end in its last bytes and begin there: what the other gateway has the beginning of, it has not given
/// up for certain.
fn last_messages<'a>(head: &Head, bytes: &'a [u8]) -> (Head, &'a [u8]) {
    let (length, size) = (head.length as usize, bytes.len());
    if length == 0 {
        return (*head, bytes);
    }
    let count = u32::try_from(size / length).unwrap_or(head.count);
    (Head { count, ..*head }, bytes.get(size % length..).unwrap_or(&[]))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::fuzzing::Stage;
    use super::super::proxy::RETURNED;
    use super::super::wire::HEAD;
    use super::*;

    /// Trains of short messages, and long messages, travel in pieces. The other gateway has acknowledged the first piece.
    #[test]
    fn of_what_was_sent_in_pieces_whole_messages_come_back_and_the_rest_is_in_doubt() {
        const BYTES: usize = 12_800;
        for length in [64, BYTES] {
            let stage = Stage::new().unwrap();
            let mut session = stage.session();
            let part = &stage.here;
            let began = Instant::now();
            let check = || assert!(began.elapsed() < Duration::from_secs(60), "it has not happened");
            session.begin(64, 64);
            session.announced.insert(part.id().to_bits());
            session.proxy(&stage.node, 7, true).unwrap();
            let bytes: Vec<u8> = (0..BYTES).map(|at| (at / length) as u8).collect();
            let head = Head {
                length: length as u32,
                count: (BYTES / length) as u32,
                origin: part.id().to_bits(),
                dest: 7,
                ..Head::new(Kind::Data)
            };
            let Session { proxies, line, .. } = &mut session;
            proxies.get_mut(&7).unwrap().pass(line, &stage.out, head, &bytes);
            let (mut pieces, mut left) = (Vec::new(), BYTES);
            while left > 0 {
                check();
                stage.turn(&mut session);
                for frame in stage.frames() {
                    if let Some((head, bytes)) =
                        Head::read(&frame).filter(|(head, _)| head.kind == Kind::Data)
                    {
                        left -= bytes.len();
                        pieces.push((head, bytes.to_vec()));
                    }
                }
            }
            assert!(pieces.len() > 2);
            let (_, taken) = pieces.remove(0);
            let back = if length < BYTES { (BYTES - taken.len()) / length } else { 0 };
            assert!(!taken.len().is_multiple_of(length) && taken.len() < part.longest() - HEAD + 1);
            pieces.iter().for_each(|(head, bytes)| assert!(session.undo(head, bytes)));
            assert_eq!(session.end(), (BYTES / length - back) as u64);
            let mut came = Vec::new();
            while came.len() < back || session.proxies.values().any(Proxy::has_returns) {
                check();
                session.advance_end();
                came.extend(std::iter::from_fn(|| part.try_recv()).map(|message| {
                    assert_eq!((message.command(), message.len()), (RETURNED, length));
                    message[0]
                }));
            }
            assert!(
                came.iter().copied().eq((BYTES / length - back..BYTES / length).map(|number| number as u8))
            );
        }
    }
}
