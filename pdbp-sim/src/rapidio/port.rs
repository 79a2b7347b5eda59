//! Outputs: queues, and who is next.
//!
//! Packets lie in one table, the [`Slab`], from when they are queued until they have arrived, and queues are lists through it: a packet that is
//! sent on by a table does not move in memory.

use std::sync::Arc;

use super::packet::{HIGHEST, Packet};

/// A packet that shorter ones have passed so often goes next.
const PATIENCE: u8 = 16;
/// Nothing follows.
const NONE: u32 = u32::MAX;

/// The place that a packet takes in the input of a switch: that which this output leads to.
#[derive(Debug)]
pub(super) enum Place {
    /// It has none: it is made there.
    None,
    /// Of a packet that leaves by one output.
    Of(u32),
    /// Of copies of which some have not left yet.
    OfCopies(Arc<u32>),
}

impl Place {
    /// Takes it; that of copies when no other one has it.
    pub(super) fn take(&mut self) -> Option<usize> {
        match std::mem::replace(self, Self::None) {
            Self::None => None,
            Self::Of(output) => Some(output as usize),
            Self::OfCopies(output) => Arc::into_inner(output).map(|output| output as usize),
        }
    }

    /// The same place for another copy, which it is shared with from now on.
    pub(super) fn share(&mut self) -> Self {
        if let Self::Of(output) = *self {
            *self = Self::OfCopies(Arc::new(output));
        }
        match self {
            Self::OfCopies(output) => Self::OfCopies(Arc::clone(output)),
            _ => Self::None,
        }
    }
}

/// A packet that waits for an output, leaves it or is on its link.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) packet: Packet,
    pub(super) place: Place,
    since: u64,
    /// Its length.
    pub(super) bytes: u16,
    passed: u8,
    /// Switches that it has come to.
    hops: u16,
    /// Of its queue, or of the free entries.
    next: u32,
}

impl Entry {
    /// Notes that a packet has come to a switch; to how many it has.
    pub(super) fn passes(&mut self) -> usize {
        self.hops = self.hops.saturating_add(1);
        self.hops.into()
    }
}

/// All packets that wait, leave or are on a link, by number.
#[derive(Debug)]
pub(super) struct Slab {
    entries: Vec<Entry>,
    free: u32,
}

impl Default for Slab {
    fn default() -> Self {
        Self { entries: Vec::new(), free: NONE }
    }
}

impl Slab {
    /// Puts a packet in; its number.
    pub(super) fn insert(&mut self, packet: Packet, place: Place) -> u32 {
        let bytes = packet.bytes().min(usize::from(u16::MAX)) as u16;
        let entry = Entry { packet, place, since: 0, bytes, passed: 0, hops: 0, next: NONE };
        let number = self.free;
        if let Some(free) = self.entries.get_mut(number as usize) {
            self.free = free.next;
            *free = entry;
            return number;
        }
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }

    pub(super) fn at(&mut self, number: u32) -> &mut Entry {
        // Numbers come from `insert`, and whoever takes one has no more of it.
        &mut self.entries[number as usize]
    }

    /// The packets that are in.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet> {
        // None is without headers.
        self.entries.iter().filter(|entry| entry.bytes > 0).map(|entry| &entry.packet)
    }

    /// Takes a packet out.
    pub(super) fn take(&mut self, number: u32) -> Packet {
        let free = self.free;
        let entry = self.at(number);
        entry.next = free;
        let packet = entry.packet.leave();
        entry.bytes = 0;
        self.free = number;
        packet
    }
}

/// Packets one behind the other.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
}

impl Queue {
    const EMPTY: Self = Self { head: NONE, tail: NONE };

    fn push(&mut self, slab: &mut Slab, number: u32) {
        slab.at(number).next = NONE;
        if self.head == NONE {
            self.head = number;
        } else {
            slab.at(self.tail).next = number;
        }
        self.tail = number;
    }

    fn pop(&mut self, slab: &mut Slab) -> Option<u32> {
        let number = Some(self.head).filter(|head| *head != NONE)?;
        self.head = slab.at(number).next;
        Some(number)
    }
}

/// An output of a switch or an endpoint, with the link behind it.
#[derive(Debug)]
pub(super) struct Output {
    /// By priority, a queue for each input; the last one is for what the switch itself makes.
    queues: Box<[Queue]>,
    inputs: usize,
    /// By priority, a bit for each queue that is not empty.
    filled: [u32; HIGHEST as usize + 1],
    waiting: usize,
    /// What leaves now.
    pub(super) leaving: Option<u32>,
    /// What is on the link.
    flying: Queue,
    in_flight: usize,
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
            queues: vec![Queue::EMPTY; inputs * (HIGHEST as usize + 1)].into(),
            inputs,
            filled: Default::default(),
            waiting: 0,
            leaving: None,
            flying: Queue::EMPTY,
            in_flight: 0,
            room,
            requests: 0,
            answers: 0,
            longest: 0,
        }
    }

    /// Queues a packet that has come by this input.
    pub(super) fn push(&mut self, slab: &mut Slab, input: usize, number: u32, now: u64) {
        let entry = slab.at(number);
        (entry.since, entry.passed) = (now, 0);
        let priority = usize::from(entry.packet.priority.min(HIGHEST));
        self.queues[priority * self.inputs + input].push(slab, number);
        self.filled[priority] |= 1 << input;
        self.waiting += 1;
        self.longest = self.longest.max(self.waiting);
    }

    /// Takes what leaves next, if the other end has room for it: higher priority first, then the shorter of the queues' heads, then that
    /// which has waited longest; but one that shorter ones have passed too often before all others of its priority.
    ///
    /// Only heads compete: packets of one source, destination and priority stay in order.
    pub(super) fn pop(&mut self, slab: &mut Slab) -> Option<u32> {
        let priority = self.filled.iter().rposition(|filled| *filled != 0)?;
        if let Some(room) = self.room {
            // What is lower would need more room still.
            self.room = Some(room.checked_sub(1).filter(|_| room + priority as u8 > HIGHEST)?);
        }
        let filled = self.filled[priority];
        let queues = &mut self.queues[priority * self.inputs..(priority + 1) * self.inputs];
        let input = if filled.is_power_of_two() {
            filled.trailing_zeros() as usize
        } else {
            let urgency = |input: &usize| {
                let head = slab.at(queues[*input].head);
                let overdue = head.passed >= PATIENCE;
                (!overdue, if overdue { 0 } else { head.bytes }, head.since)
            };
            inputs(filled).min_by_key(urgency)?
        };
        let next = queues[input].pop(slab)?;
        self.waiting -= 1;
        let Entry { bytes, since, .. } = *slab.at(next);
        for other in inputs(filled & !(1 << input)) {
            let head = slab.at(queues[other].head);
            if head.bytes > bytes && head.since <= since {
                head.passed = head.passed.saturating_add(1);
            }
        }
        if queues[input].head == NONE {
            self.filled[priority] &= !(1 << input);
        }
        Some(next)
    }

    /// A packet has left, and is on the link.
    pub(super) fn fly(&mut self, slab: &mut Slab, number: u32) {
        self.flying.push(slab, number);
        self.in_flight += 1;
    }

    /// The packet that is on the link for longest has arrived.
    pub(super) fn land(&mut self, slab: &mut Slab) -> Option<u32> {
        let number = self.flying.pop(slab)?;
        self.in_flight -= 1;
        Some(number)
    }

    /// Packets that wait, leave and are on the link.
    pub(super) fn held(&self) -> usize {
        self.waiting + usize::from(self.leaving.is_some()) + self.in_flight
    }
}

/// The inputs of which something waits, in order.
fn inputs(mut filled: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let input = Some(filled.trailing_zeros()).filter(|input| *input < u32::BITS)?;
        filled &= filled - 1;
        Some(input as usize)
    })
}
