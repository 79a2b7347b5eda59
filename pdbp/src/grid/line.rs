//! The outgoing side of a session: frames to the other gateway, and how much is held or in flight.

use std::collections::VecDeque;

use super::bounds::LEAST;
use super::wire::{HEAD, Head, MORE};
use crate::part::{Part, Shared, Target};

/// See the [module](self).
pub(super) struct Line {
    to: Target,
    waiting: VecDeque<Vec<u8>>,
    /// Bytes of the waiting frames.
    pub(super) waiting_bytes: u64,
    /// Bytes of messages that wait to go back to parts of this cluster.
    pub(super) returned: u64,
    /// The longest message that the other gateway takes.
    pub(super) longest: u64,
    /// Bytes sent and not yet handed on there.
    pub(super) in_flight: u64,
    /// Bytes that proxies hold because they exceed a window.
    pub(super) held: u64,
    /// The maximum of `held`.
    pub(super) room: u64,
    /// Bytes that may be in flight: as many as both ends have room for.
    pub(super) window: u64,
    /// Whether nothing new may be sent, since one of the two gateways is ending.
    pub(super) is_closed: bool,
    /// The number of streams begun by this end.
    pub(super) streams: u32,
    /// Whether a frame was sent in this turn.
    pub(super) has_sent: bool,
}

impl Line {
    /// `room` is the number of bytes this end may hold.
    pub(super) fn new(to: Target, room: u64) -> Self {
        Self {
            to,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            returned: 0,
            longest: LEAST,
            in_flight: 0,
            held: 0,
            room,
            window: room.min(LEAST),
            is_closed: false,
            streams: 0,
            has_sent: false,
        }
    }

    /// The other gateway's part.
    pub(super) fn to(&self) -> Target {
        self.to
    }

    /// The most bytes that may be held, and wait to go back, before nothing more is read: what was in flight when nodes were told to send no
    /// more exceeds the room.
    pub(super) fn most(&self) -> u64 {
        3 * self.room
    }

    /// Sends a frame, in pieces if it is longer than a block, or queues it.
    pub(super) fn send(&mut self, out: &Part<Shared>, head: Head, bytes: &[u8]) {
        self.has_sent = true;
        let most = out.longest().saturating_sub(HEAD).max(1);
        let pieces = bytes.len().div_ceil(most).max(1);
        for i in 0..pieces {
            let piece = bytes.get(i * most..bytes.len().min((i + 1) * most)).unwrap_or(&[]);
            let flags = head.flags | if i + 1 < pieces { MORE } else { 0 };
            self.send_frame(out, &Head { flags, ..head }.to_bytes(), piece);
        }
    }

    fn send_frame(&mut self, out: &Part<Shared>, head: &[u8; HEAD], bytes: &[u8]) {
        if self.waiting.is_empty()
            && let Ok(mut loan) = out.sender(self.to).no_wait().loan(HEAD + bytes.len())
            && let Some((to_head, to_bytes)) = loan.split_at_mut_checked(HEAD)
        {
            to_head.copy_from_slice(head);
            to_bytes.copy_from_slice(bytes);
            return loan.send();
        }
        // If the other gateway has gone, the session ends soon, and waiting frames with it.
        self.put(head, bytes);
    }

    /// Queues a frame behind others.
    pub(super) fn put(&mut self, head: &[u8; HEAD], bytes: &[u8]) {
        self.waiting_bytes += weight(bytes.len());
        self.waiting.push_back([&head[..], bytes].concat());
    }

    /// The number of waiting frames.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the waiting frames of a session that is over.
    pub(super) fn take_waiting(&mut self) -> VecDeque<Vec<u8>> {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Sends waiting frames. Returns whether any was sent.
    pub(super) fn advance(&mut self, out: &Part<Shared>) -> bool {
        let before = self.waiting.len();
        while let Some(frame) = self.waiting.front() {
            if out.sender(self.to).no_wait().send(frame).is_err() {
                break;
            }
            self.waiting_bytes -= frame.len() as u64;
            self.waiting.pop_front();
        }
        self.waiting.len() < before
    }
}

/// The bytes of a window that `bytes` bytes take, head included.
pub(super) fn weight(bytes: usize) -> u64 {
    (bytes + HEAD) as u64
}
