//! Outputs: their queues, and the arbitration between these.
//!
//! Packets stay in one table, the [`Slab`], from when they are queued until they have arrived. Queues are linked lists through it,
//! so a forwarded packet does not move in memory.

use std::sync::Arc;

use super::packet::{HIGHEST, Packet};

/// A packet that has been overtaken by shorter ones this often goes next.
const PATIENCE: u8 = 16;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// The input buffer that a packet occupies in its current switch, identified by the output at the other end of that link.
#[derive(Debug)]
pub(super) enum Buffer {
    /// None: the packet was created here.
    None,
    /// Occupied by one packet.
    Of(u32),
    /// Shared by copies, until the last of them has left.
    Shared(Arc<u32>),
}

impl Buffer {
    /// Gives the buffer up. Returns it if it is now free, that is, not shared with another copy.
    pub(super) fn take(&mut self) -> Option<usize> {
        match std::mem::replace(self, Self::None) {
            Self::None => None,
            Self::Of(output) => Some(output as usize),
            Self::Shared(output) => Arc::into_inner(output).map(|output| output as usize),
        }
    }

    /// The same buffer for another copy, with which it is shared from now on.
    pub(super) fn share(&mut self) -> Self {
        if let Self::Of(output) = *self {
            *self = Self::Shared(Arc::new(output));
        }
        match self {
            Self::Shared(output) => Self::Shared(Arc::clone(output)),
            _ => Self::None,
        }
    }
}

/// A packet that waits for an output, leaves it or is on its link.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) packet: Packet,
    pub(super) place: Buffer,
    since: u64,
    /// Its length on a link.
    pub(super) bytes: u16,
    passed: u8,
    /// Number of switches it has reached.
    hops: u16,
    /// The next entry of its queue, or of the free list.
    next: u32,
}

impl Entry {
    /// Counts a switch that the packet has reached; returns how many it has reached.
    pub(super) fn count_hop(&mut self) -> usize {
        self.hops = self.hops.saturating_add(1);
        self.hops.into()
    }
}

/// All packets that are queued, being sent, or on a link.
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
    /// Inserts a packet. Returns its number.
    pub(super) fn insert(&mut self, packet: Packet, place: Buffer) -> u32 {
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
        // Numbers come from `insert`, and are not used after `take`.
        &mut self.entries[number as usize]
    }

    /// The packets in the table.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet> {
        // A packet has headers, so only a free entry has length 0.
        self.entries.iter().filter(|entry| entry.bytes > 0).map(|entry| &entry.packet)
    }

    /// Takes a packet out.
    pub(super) fn take(&mut self, number: u32) -> Packet {
        let free = self.free;
        let entry = self.at(number);
        entry.next = free;
        let packet = entry.packet.take();
        entry.bytes = 0;
        self.free = number;
        packet
    }
}

/// A queue of packets.
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

/// An output of a switch or an endpoint, and the link attached to it.
#[derive(Debug)]
pub(super) struct Output {
    /// For each priority a queue for each input; the last one is for packets that the switch itself creates.
    queues: Box<[Queue]>,
    inputs: usize,
    /// For each priority a bit mask of the queues that are not empty.
    filled: [u32; HIGHEST as usize + 1],
    waiting: usize,
    /// The packet that is being sent.
    pub(super) leaving: Option<u32>,
    /// Packets on the link.
    flying: Queue,
    in_flight: usize,
    /// Credit: free buffers of the input at the other end. `None` if that is an endpoint, which always accepts.
    pub(super) room: Option<u8>,
    /// Packets sent: requests, and all others.
    pub(super) requests: u64,
    pub(super) answers: u64,
    /// The maximum length of the queues, all together.
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

    /// Queues a packet that came in by this input.
    pub(super) fn push(&mut self, slab: &mut Slab, input: usize, number: u32, now: u64) {
        let entry = slab.at(number);
        (entry.since, entry.passed) = (now, 0);
        let priority = usize::from(entry.packet.priority.min(HIGHEST));
        self.queues[priority * self.inputs + input].push(slab, number);
        self.filled[priority] |= 1 << input;
        self.waiting += 1;
        self.longest = self.longest.max(self.waiting);
    }

    /// Dequeues the packet to send next, if the other end has a buffer for it. Among the heads of the queues of the highest
    /// priority, that is the shortest one, and among equally short ones the one that has waited longest. A head that has been
    /// overtaken [`PATIENCE`] times goes before all others of its priority.
    ///
    /// Only heads compete, so packets of one source, destination and priority stay in order.
    pub(super) fn pop(&mut self, slab: &mut Slab) -> Option<u32> {
        let priority = self.filled.iter().rposition(|filled| *filled != 0)?;
        if let Some(room) = self.room {
            // A lower priority would need even more free buffers.
            self.room =
                Some(room.checked_sub(1).filter(|_| u16::from(room) + priority as u16 > u16::from(HIGHEST))?);
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

    /// Moves a packet that has been sent onto the link.
    pub(super) fn fly(&mut self, slab: &mut Slab, number: u32) {
        self.flying.push(slab, number);
        self.in_flight += 1;
    }

    /// Takes the packet that has been on the link for longest, because it has arrived.
    pub(super) fn land(&mut self, slab: &mut Slab) -> Option<u32> {
        let number = self.flying.pop(slab)?;
        self.in_flight -= 1;
        Some(number)
    }

    /// Packets queued, being sent, and on the link.
    pub(super) fn held(&self) -> usize {
        self.waiting + usize::from(self.leaving.is_some()) + self.in_flight
    }
}

/// The inputs whose bits are set, in ascending order.
fn inputs(mut filled: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let input = Some(filled.trailing_zeros()).filter(|input| *input < u32::BITS)?;
        filled &= filled - 1;
        Some(input as usize)
    })
}
