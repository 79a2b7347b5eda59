//! Outputs: queues, and who is next.

use std::collections::VecDeque;
use std::sync::Arc;

use super::packet::{HIGHEST, Packet};

/// A packet that shorter ones have passed so often goes next.
const PATIENCE: u8 = 16;

/// The place that a packet, or the copies of it that have not left yet, takes in the input of a switch: that which this output leads to.
pub(super) type Place = Arc<usize>;

/// A packet that waits for an output.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) packet: Packet,
    pub(super) place: Option<Place>,
    since: u64,
    passed: u8,
}

impl Waiting {
    /// A packet on a link, which waits for nothing.
    pub(super) fn flying(packet: Packet) -> Self {
        Self { packet, place: None, since: 0, passed: 0 }
    }
}

/// An output of a switch or an endpoint, with the link behind it.
#[derive(Debug)]
pub(super) struct Output {
    /// By priority, a queue for each input; the last one is for what the switch itself makes.
    queues: [Vec<VecDeque<Waiting>>; HIGHEST as usize + 1],
    /// By priority.
    waiting: [usize; HIGHEST as usize + 1],
    /// What leaves now.
    pub(super) leaving: Option<Waiting>,
    /// What is on the link.
    pub(super) flying: VecDeque<Waiting>,
    /// Free places in the input at the other end; `None` at an endpoint, which always takes.
    pub(super) room: Option<u8>,
    /// Packets that have left: requests, and answers.
    pub(super) requests: u64,
    pub(super) answers: u64,
    /// The most that have waited.
    pub(super) longest: usize,
}

impl Output {
    pub(super) fn new(inputs: usize, room: Option<u8>) -> Self {
        Self {
            queues: std::array::from_fn(|_| (0..inputs).map(|_| VecDeque::new()).collect()),
            waiting: Default::default(),
            leaving: None,
            flying: VecDeque::new(),
            room,
            requests: 0,
            answers: 0,
            longest: 0,
        }
    }

    /// Queues a packet that has come by this input.
    pub(super) fn push(&mut self, input: usize, packet: Packet, place: Option<Place>, now: u64) {
        let priority = usize::from(packet.priority.min(HIGHEST));
        self.queues[priority][input].push_back(Waiting { packet, place, since: now, passed: 0 });
        self.waiting[priority] += 1;
        self.longest = self.longest.max(self.waiting.iter().sum());
    }

    /// Takes what leaves next, if the other end has room for it: higher priority first, then the shorter of the queues' heads, then that
    /// which has waited longest; but one that shorter ones have passed too often before all others of its priority.
    ///
    /// Only heads compete: packets of one source, destination and priority stay in order.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let priority = self.waiting.iter().rposition(|waiting| *waiting > 0)?;
        if let Some(room) = self.room {
            // What is lower would need more room still.
            self.room = Some(room.checked_sub(1).filter(|_| room + priority as u8 > HIGHEST)?);
        }
        let queues = &mut self.queues[priority];
        let urgency = |head: &Waiting| {
            let overdue = head.passed >= PATIENCE;
            (!overdue, if overdue { 0 } else { head.packet.bytes() }, head.since)
        };
        let heads =
            queues.iter().enumerate().filter_map(|(input, queue)| Some((input, urgency(queue.front()?))));
        let (input, _) = heads.min_by_key(|(input, urgency)| (*urgency, *input))?;
        let next = queues[input].pop_front()?;
        self.waiting[priority] -= 1;
        for head in queues.iter_mut().filter_map(VecDeque::front_mut) {
            if head.packet.bytes() > next.packet.bytes() && head.since <= next.since {
                head.passed = head.passed.saturating_add(1);
            }
        }
        Some(next)
    }

    /// Packets that wait, leave and are on the link.
    pub(super) fn held(&self) -> usize {
        self.waiting.iter().sum::<usize>() + usize::from(self.leaving.is_some()) + self.flying.len()
    }
}
