//! What a DSP does with its packets: operations under way, expected and unexpected messages, answers.
//!
//! Every packet is answered, and no more than the timing's window of a flow are unanswered. Messages are answered where they arrive,
//! broadcasts and scatters by the sender's own switch, and what is gathered or combined by the root, once it is in the call.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use pdbp_core::collective::{Call, Kind, Left, combine};

use super::fabric::{Fabric, Happening};
use super::packet::{DATA, Packet, VALUES, What};
use super::unit::blocks_in_packet;
use super::{Error, Mismatch};

/// Of an operation of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// The message of this number, out.
    Send(u32),
    /// A message that is waited for.
    Recv(u32),
    /// The call of a group of this number.
    Call(u16, u32),
}

/// A message that has come, or comes.
#[derive(Debug)]
struct Message {
    source: u16,
    tag: u32,
    bytes: usize,
    data: Vec<u8>,
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) call: Call,
    /// This endpoint's rank in the group of a call, and the members of that.
    rank: usize,
    members: usize,
    /// The other end and the tag of a message.
    peer: u16,
    tag: u32,
    priority: u8,
    input: Vec<u8>,
    output: Vec<u8>,
    begun: bool,
    /// Bytes that have yet to come.
    missing: usize,
    /// What has yet to be sent, and how many packets are not answered.
    unsent: VecDeque<Packet>,
    unanswered: u32,
    done: Option<Result<(), Error>>,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) output: usize,
    /// Until when its processor begins operations.
    busy: u64,
    ops: BTreeMap<Key, Op>,
    /// Packets of calls that have not begun here.
    early: BTreeMap<(u16, u32), Vec<Packet>>,
    /// Receives in the order in which they were made, and messages in the order in which they have come.
    expected: VecDeque<Key>,
    unexpected: VecDeque<Message>,
    partial: BTreeMap<(u16, u32), Message>,
    /// Of messages and receives.
    numbers: u32,
    /// Groups whose members have called different things.
    broken: BTreeMap<u16, Mismatch>,
    /// Requests that it has sent and taken.
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Op {
    fn of(call: Call, input: Vec<u8>, output: Vec<u8>) -> Self {
        Self {
            call,
            rank: 0,
            members: 0,
            peer: 0,
            tag: 0,
            priority: 0,
            input,
            output,
            begun: false,
            missing: 0,
            unsent: VecDeque::new(),
            unanswered: 0,
            done: None,
        }
    }

    fn finish(&mut self) -> bool {
        if self.done.is_none() && self.missing == 0 && self.unsent.is_empty() && self.unanswered == 0 {
            self.done = Some(Ok(()));
        }
        self.done.is_some()
    }
}

impl Endpoint {
    pub(super) fn new(output: usize) -> Self {
        Self {
            output,
            busy: 0,
            ops: BTreeMap::new(),
            early: BTreeMap::new(),
            expected: VecDeque::new(),
            unexpected: VecDeque::new(),
            partial: BTreeMap::new(),
            numbers: 0,
            broken: BTreeMap::new(),
            sent: 0,
            received: 0,
        }
    }

    /// Whether an earlier message to the same endpoint has packets to send first: messages do not overtake each other.
    fn is_behind(&self, key: Key) -> bool {
        let (Key::Send(_), Some(op)) = (key, self.ops.get(&key)) else { return false };
        let mut earlier = self.ops.range(Key::Send(0)..key);
        earlier.any(|(_, other)| other.peer == op.peer && !other.unsent.is_empty())
    }

    /// The next message to the same endpoint that has packets to send.
    fn behind(&self, key: Key) -> Option<Key> {
        let (Key::Send(number), Some(op)) = (key, self.ops.get(&key)) else { return None };
        let mut later = self.ops.range(Key::Send(number + 1)..Key::Recv(0));
        later.find(|(_, other)| other.peer == op.peer && !other.unsent.is_empty()).map(|(key, _)| *key)
    }

    /// Operations that are not done, in words.
    pub(super) fn waiting(&self) -> Vec<String> {
        let unfinished = self.ops.iter().filter(|(_, op)| op.done.is_none());
        let words = unfinished.map(|(key, op)| match key {
            Key::Send(_) => format!("send of {} bytes to {} with tag {}", op.call.bytes, op.peer, op.tag),
            Key::Recv(_) => {
                format!("receive of {} bytes from {} with tag {}", op.call.bytes, op.peer, op.tag)
            }
            Key::Call(group, number) => format!("call {number} of group {group}, {}", op.call),
        });
        words.collect()
    }
}

impl Fabric {
    /// Begins to send a message.
    pub(super) fn start_send(&mut self, id: u16, to: u16, tag: u32, priority: u8, data: Vec<u8>) -> Key {
        let call = Call::moving(Kind::Tagged, 0, data.len());
        let op = Op { peer: to, tag, priority, ..Op::of(call, data, Vec::new()) };
        let key = Key::Send(self.next_number(id));
        self.enter(id, key, op, self.timing.message)
    }

    /// Begins to wait for a message of so many bytes.
    pub(super) fn start_recv(&mut self, id: u16, from: u16, tag: u32, bytes: usize) -> Key {
        let call = Call::moving(Kind::Tagged, 0, bytes);
        let op = Op { peer: from, tag, missing: bytes, ..Op::of(call, Vec::new(), Vec::new()) };
        let key = Key::Recv(self.next_number(id));
        self.enter(id, key, op, 0)
    }

    /// Begins a call of a group. The lengths have been checked.
    pub(super) fn start_call(
        &mut self,
        id: u16,
        (group, number): (u16, u32),
        call: Call,
        input: Vec<u8>,
        output: Vec<u8>,
    ) -> Key {
        let members = &self.groups[usize::from(group)];
        let (rank, members) = (members.rank(id).unwrap_or(0), members.ids.len());
        let op = Op { rank, members, ..Op::of(call, input, output) };
        self.enter(id, Key::Call(group, number), op, self.timing.message)
    }

    fn next_number(&mut self, id: u16) -> u32 {
        let numbers = &mut self.endpoints[usize::from(id)].numbers;
        *numbers += 1;
        *numbers
    }

    fn enter(&mut self, id: u16, key: Key, op: Op, cycles: u64) -> Key {
        let (now, endpoint) = (self.now, &mut self.endpoints[usize::from(id)]);
        endpoint.ops.insert(key, op);
        if cycles == 0 {
            self.begin(id, key);
        } else {
            endpoint.busy = endpoint.busy.max(now) + cycles;
            self.queue_begin(id, key);
        }
        key
    }

    fn queue_begin(&mut self, id: u16, key: Key) {
        let at = self.endpoints[usize::from(id)].busy;
        self.plan(at, Happening::Begins(id, key));
    }

    /// The end of an operation and its output; `None` while it is under way.
    pub(super) fn poll_op(&mut self, id: u16, key: Key) -> Option<Result<Vec<u8>, Error>> {
        let ops = &mut self.endpoints[usize::from(id)].ops;
        ops.get(&key)?.done.as_ref()?;
        let op = ops.remove(&key)?;
        op.done.map(|done| done.map(|()| op.output))
    }

    pub(super) fn begin(&mut self, id: u16, key: Key) {
        let endpoint = &mut self.endpoints[usize::from(id)];
        let Some(op) = endpoint.ops.get_mut(&key) else { return };
        op.begun = true;
        match key {
            Key::Send(number) => {
                let blank = blank(id, op, op.peer, number);
                op.unsent = cut(&op.input, DATA)
                    .map(|(sequence, data)| Packet { sequence, data, ..blank.clone() })
                    .collect();
            }
            Key::Recv(_) => {
                endpoint.expected.push_back(key);
                self.match_messages(id);
            }
            Key::Call(group, number) => {
                if let Some(mismatch) = endpoint.broken.get(&group) {
                    op.done = Some(Err(Error::Mismatch(*mismatch)));
                } else {
                    prepare(op, &blank(id, op, group, number));
                    let early = endpoint.early.remove(&(group, number)).unwrap_or_default();
                    for packet in early {
                        self.take_part(id, packet);
                    }
                }
            }
        }
        self.pump(id, key);
    }

    /// Sends what may be sent of an operation, and ends it if that was all.
    fn pump(&mut self, id: u16, key: Key) {
        let window = self.timing.window.max(1);
        loop {
            let endpoint = &mut self.endpoints[usize::from(id)];
            let output = endpoint.output;
            let Some(op) = endpoint.ops.get_mut(&key).filter(|op| op.begun) else { return };
            if matches!(key, Key::Recv(_)) || op.finish() {
                return self.woken.extend(op.done.is_some().then_some(id));
            }
            if op.unanswered >= window || endpoint.is_behind(key) {
                return;
            }
            let Some(op) = endpoint.ops.get_mut(&key) else { return };
            let Some(packet) = op.unsent.pop_front() else { return };
            op.unanswered += 1;
            endpoint.sent += 1;
            let next = if op.unsent.is_empty() { endpoint.behind(key) } else { None };
            self.push(output, 0, packet, None);
            if let Some(next) = next {
                self.pump(id, next);
            }
        }
    }

    /// Takes a packet from its link.
    pub(super) fn take(&mut self, id: u16, packet: Packet) {
        let endpoint = &mut self.endpoints[usize::from(id)];
        endpoint.received += u64::from(packet.is_request());
        let (group, number) = (packet.dest, packet.number);
        match packet.what {
            What::Message => self.take_message(id, &packet),
            What::MessageAnswer => self.answered(id, Key::Send(number)),
            What::NoRoute => self.end(id, Key::Send(number), Error::NoRoute { dest: packet.source }),
            What::Answer | What::AnswerRun | What::AnswerAll => self.answered(id, Key::Call(group, number)),
            What::Mismatch => {
                if let Some(mismatch) = packet.mismatch {
                    self.break_group(id, group, *mismatch);
                }
            }
            What::Call | What::Result => {
                let has_begun = endpoint.ops.get(&Key::Call(group, number)).is_some_and(|op| op.begun);
                if has_begun {
                    self.take_part(id, packet);
                } else if !endpoint.broken.contains_key(&group) {
                    endpoint.early.entry((group, number)).or_default().push(packet);
                }
            }
        }
    }

    fn answered(&mut self, id: u16, key: Key) {
        if let Some(op) = self.endpoints[usize::from(id)].ops.get_mut(&key) {
            op.unanswered = op.unanswered.saturating_sub(1);
        }
        self.pump(id, key);
    }

    fn end(&mut self, id: u16, key: Key, error: Error) {
        if let Some(op) = self.endpoints[usize::from(id)].ops.get_mut(&key) {
            op.unsent.clear();
            op.done.get_or_insert(Err(error));
            self.woken.push(id);
        }
    }

    /// A packet of a call that this endpoint is in.
    fn take_part(&mut self, id: u16, packet: Packet) {
        let (group, number) = (packet.dest, packet.number);
        let endpoint = &mut self.endpoints[usize::from(id)];
        let Some(op) = endpoint.ops.get_mut(&Key::Call(group, number)) else { return };
        if op.call != packet.call {
            let other = (self.groups[usize::from(group)].rank(packet.source).unwrap_or(0), packet.call);
            let mismatch = Mismatch { number, one: (op.rank, op.call), other };
            let told =
                Packet { source: id, mismatch: Some(Rc::new(mismatch)), ..packet.answer(What::Mismatch) };
            let output = endpoint.output;
            self.break_group(id, group, mismatch);
            return self.push(output, 0, told, None);
        }
        store(op, &packet);
        let answer = match (packet.what, packet.call.kind) {
            (What::Call, Kind::Gather) => Some(What::AnswerRun),
            (What::Call, Kind::Reduce) => Some(What::AnswerAll),
            (What::Result, _) => {
                // It stands for the answer of this endpoint's own packet, too.
                op.unanswered = op.unanswered.saturating_sub(1);
                None
            }
            _ => None,
        };
        if let Some(what) = answer {
            let answer = Packet { source: id, ..packet.answer(what) };
            let output = endpoint.output;
            self.push(output, 0, answer, None);
        }
        self.pump(id, Key::Call(group, number));
    }

    fn break_group(&mut self, id: u16, group: u16, mismatch: Mismatch) {
        let endpoint = &mut self.endpoints[usize::from(id)];
        endpoint.broken.entry(group).or_insert(mismatch);
        endpoint.early.retain(|(of, _), _| *of != group);
        let calls = endpoint
            .ops
            .iter()
            .filter(|(key, op)| matches!(key, Key::Call(of, _) if *of == group) && op.begun);
        for key in calls.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.end(id, key, Error::Mismatch(mismatch));
        }
    }

    fn take_message(&mut self, id: u16, packet: &Packet) {
        let endpoint = &mut self.endpoints[usize::from(id)];
        let key = (packet.source, packet.number);
        let message = endpoint.partial.entry(key).or_insert_with(|| Message {
            source: packet.source,
            tag: packet.tag,
            bytes: packet.call.bytes,
            data: Vec::with_capacity(packet.call.bytes),
        });
        message.data.extend_from_slice(&packet.data);
        let is_whole = message.data.len() >= message.bytes;
        let answer = Packet { dest: packet.source, source: id, ..packet.answer(What::MessageAnswer) };
        if is_whole && let Some(message) = endpoint.partial.remove(&key) {
            endpoint.unexpected.push_back(message);
        }
        let output = endpoint.output;
        self.push(output, 0, answer, None);
        self.match_messages(id);
    }

    /// Gives messages to those who wait for them, in the order in which they began to.
    fn match_messages(&mut self, id: u16) {
        let Endpoint { ops, expected, unexpected, .. } = &mut self.endpoints[usize::from(id)];
        let mut matched = false;
        expected.retain(|key| {
            let Some(op) = ops.get_mut(key) else { return false };
            let fits = |message: &Message| (message.source, message.tag) == (op.peer, op.tag);
            let Some(message) = unexpected.iter().position(fits).and_then(|at| unexpected.remove(at)) else {
                return true;
            };
            let wanted = op.call.bytes;
            op.done = Some(if message.data.len() == wanted {
                op.output = message.data;
                Ok(())
            } else {
                Err(Error::Length { from: message.source, bytes: message.data.len(), wanted })
            });
            matched = true;
            false
        });
        self.woken.extend(matched.then_some(id));
    }
}

/// A packet of an operation, without data.
fn blank(id: u16, op: &Op, dest: u16, number: u32) -> Packet {
    Packet {
        what: if op.call.kind == Kind::Tagged { What::Message } else { What::Call },
        priority: op.priority,
        source: id,
        dest,
        number,
        sequence: 0,
        run: (op.rank as u16, 1),
        tag: op.tag,
        call: op.call,
        data: Rc::new([]),
        mismatch: None,
    }
}

/// Pieces with their numbers; one without bytes, of nothing.
fn cut(data: &[u8], piece: usize) -> impl Iterator<Item = (u32, Rc<[u8]>)> {
    let pieces = data.len().div_ceil(piece).max(1);
    (0..pieces).map(move |n| (n as u32, data[n * piece..data.len().min((n + 1) * piece)].into()))
}

/// What a member of a call sends, and how much it waits for.
fn prepare(op: &mut Op, blank: &Packet) {
    let Call { kind, root, bytes, .. } = op.call;
    let is_root = op.rank == root;
    let own = op.rank * bytes..(op.rank + 1) * bytes;
    match kind {
        Kind::Scatter if is_root => op.output.copy_from_slice(&op.input[own]),
        Kind::Gather if is_root => op.output[own].copy_from_slice(&op.input),
        _ => {}
    }
    if op.members == 1 || (bytes == 0 && kind != Kind::Barrier) {
        return;
    }
    let pieces = |data: &[u8], piece: usize| {
        cut(data, piece).map(|(sequence, data)| Packet { sequence, data, ..blank.clone() }).collect()
    };
    (op.missing, op.unsent) = match kind {
        Kind::Broadcast if is_root => (0, pieces(&op.output, DATA)),
        Kind::Scatter if is_root => (0, runs(op, blank)),
        Kind::Gather if is_root => (bytes * (op.members - 1), VecDeque::new()),
        Kind::Gather => (0, pieces(&op.input, DATA)),
        Kind::Reduce if !is_root => (0, pieces(&op.output, VALUES)),
        Kind::AllReduce => (bytes, pieces(&op.output, VALUES)),
        // The release counts as a byte.
        Kind::Barrier => (1, VecDeque::from([blank.clone()])),
        _ => (bytes, VecDeque::new()),
    };
}

/// What the root of a scatter sends: as many blocks in a packet as fit, or each in packets of its own.
fn runs(op: &Op, blank: &Packet) -> VecDeque<Packet> {
    let (block, members) = (op.call.bytes, op.members);
    let rank = |place: usize| (op.rank + place) % members;
    let of = |place: usize| &op.input[rank(place) * block..(rank(place) + 1) * block];
    let size = blocks_in_packet(block);
    let mut packets = VecDeque::new();
    for place in (1..members).step_by(size.max(1)) {
        let count = size.max(1).min(members - place);
        let run = (rank(place) as u16, count as u16);
        let data: Vec<u8> = (place..place + count).flat_map(|place| of(place).iter().copied()).collect();
        packets.extend(cut(&data, DATA).map(|(sequence, data)| Packet {
            run,
            sequence,
            data,
            ..blank.clone()
        }));
    }
    packets
}

/// Puts the data of a packet where it belongs.
fn store(op: &mut Op, packet: &Packet) {
    let Call { kind, op: operation, element, bytes, .. } = packet.call;
    let piece = if operation.is_some() { VALUES } else { DATA };
    let mut at = packet.sequence as usize * piece;
    if kind == Kind::Gather {
        at += usize::from(packet.run.0) * bytes;
        // A run may go on with rank 0.
        let end = op.output.len().saturating_sub(at).min(packet.data.len());
        let (head, tail) = packet.data.split_at(end);
        op.output[at..at + head.len()].copy_from_slice(head);
        op.output[..tail.len()].copy_from_slice(tail);
    } else if let Some(into) = op.output.get_mut(at..at + packet.data.len()) {
        match (kind, operation) {
            // The root's own values come first.
            (Kind::Reduce, Some(operation)) => {
                combine(operation, element, Left::Own, into, &packet.data);
            }
            _ => into.copy_from_slice(&packet.data),
        }
    }
    op.missing = op.missing.saturating_sub(packet.data.len().max(usize::from(kind == Kind::Barrier)));
}
