//! What a DSP does with its packets: operations under way, expected and unexpected messages, answers.
//!
//! Every packet is answered, and no more than the timing's window of a flow are unanswered. Messages are answered where they arrive,
//! broadcasts and scatters by the sender's own switch, and what is gathered or combined by the root, once it is in the call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pdbp_core::collective::{Call, Kind};

use super::fabric::{Fabric, Happening};
use super::flow::Flow;
use super::frames::Told;
use super::operation::{Key, Op, blank, cut, prepare, store};
use super::packet::{DATA, Packet, What};
use super::port::Place;
use super::{Error, Mismatch};

/// Calls of a group that are remembered.
const KEPT: usize = 64;

/// Bytes for which there is room when the first packet of a message comes.
const FIRST: usize = 1 << 20;

/// A message that has come, or comes.
#[derive(Debug)]
struct Message {
    source: u16,
    tag: u64,
    bytes: usize,
    data: Vec<u8>,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) output: usize,
    /// Until when its processor begins operations, and which, in this order.
    busy: u64,
    begins: VecDeque<Key>,
    pub(super) ops: BTreeMap<Key, Op>,
    /// Of groups, how far they are.
    pub(super) flows: BTreeMap<u16, Flow>,
    /// Packets of calls that have not begun here.
    early: BTreeMap<(u16, u32), Vec<Packet>>,
    is_early: usize,
    pub(super) most_early: usize,
    /// Receives in the order in which they were made, and messages in the order in which they have come.
    expected: VecDeque<Key>,
    unexpected: VecDeque<Message>,
    partial: BTreeMap<(u16, u32), Message>,
    /// Of messages and receives.
    numbers: u32,
    /// Groups whose members have called different things.
    broken: BTreeMap<u16, Mismatch>,
    /// The last calls of each group, to compare with them what comes after their end.
    made: BTreeMap<u16, VecDeque<(u32, Call)>>,
    /// Requests that it has sent and taken.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Packets of which it can make nothing.
    pub(super) dropped: u64,
}

impl Endpoint {
    pub(super) fn new(output: usize) -> Self {
        Self {
            output,
            busy: 0,
            begins: VecDeque::new(),
            ops: BTreeMap::new(),
            flows: BTreeMap::new(),
            early: BTreeMap::new(),
            is_early: 0,
            most_early: 0,
            expected: VecDeque::new(),
            unexpected: VecDeque::new(),
            partial: BTreeMap::new(),
            numbers: 0,
            broken: BTreeMap::new(),
            made: BTreeMap::new(),
            sent: 0,
            received: 0,
            dropped: 0,
        }
    }

    /// Operations that its processor has yet to begin.
    pub(super) fn begins(&self) -> impl Iterator<Item = Key> {
        self.begins.iter().copied()
    }

    /// Whether an earlier message to the same endpoint has packets to send first: messages do not overtake each other.
    fn is_behind(&self, key: Key) -> bool {
        if let Key::Call(group, _) = key {
            // Nor do calls of a group: what they may send is counted in their order.
            let mut earlier = self.ops.range(Key::Call(group, 0)..key);
            return earlier.any(|(_, other)| !other.unsent.is_empty());
        }
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

    /// A packet of an operation was answered.
    fn note_answer(&mut self, key: Key) {
        let Some(op) = self.ops.get_mut(&key).filter(|op| op.unanswered > 0) else { return };
        op.unanswered -= 1;
        if let Key::Call(group, _) = key
            && let Some(flow) = self.flows.get_mut(&group)
        {
            flow.unanswered = flow.unanswered.saturating_sub(1);
        }
    }

    /// The number of the last call that it has begun of a group.
    pub(super) fn begun(&self, group: u16) -> u32 {
        self.made.get(&group).and_then(VecDeque::back).map_or(0, |(number, _)| *number)
    }

    /// How much is left of a call.
    pub(super) fn left(&self, (group, number): (u16, u32)) -> u64 {
        let op = self.ops.get(&Key::Call(group, number));
        op.map_or(0, |op| (op.missing + op.unsent.len()) as u64 + u64::from(op.unanswered))
    }

    fn note_call(&mut self, group: u16, number: u32, call: Call) {
        let made = self.made.entry(group).or_default();
        if made.len() == KEPT {
            made.pop_front();
        }
        made.push_back((number, call));
    }

    /// What it has called under a number that is over.
    fn made(&self, group: u16, number: u32) -> Option<Call> {
        let made = self.made.get(&group).filter(|_| self.begun(group) >= number)?;
        let same = made.iter().find(|(of, _)| *of == number);
        same.or(made.front()).map(|(_, call)| *call)
    }

    /// Forgets a group.
    pub(super) fn forget(&mut self, group: u16) {
        self.ops.retain(|key, _| !matches!(key, Key::Call(of, _) if *of == group));
        self.early.retain(|(of, _), _| *of != group);
        self.is_early = self.early.values().map(Vec::len).sum();
        self.flows.remove(&group);
        self.broken.remove(&group);
        self.made.remove(&group);
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
    pub(super) fn start_send(&mut self, id: u16, to: u16, tag: u64, priority: u8, data: Vec<u8>) -> Key {
        let call = Call::moving(Kind::Tagged, 0, data.len());
        let op = Op { peer: to, tag, priority, ..Op::of(call, data, Vec::new()) };
        let key = Key::Send(self.next_number(id));
        self.enter(id, key, op, self.timing.message)
    }

    /// Begins to wait for a message of so many bytes.
    pub(super) fn start_recv(&mut self, id: u16, from: u16, tag: u64, bytes: usize) -> Key {
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
        self.endpoints[usize::from(id)].note_call(group, number, call);
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
            endpoint.begins.push_back(key);
            let at = endpoint.busy;
            self.plan(at, Happening::Begins(id));
        }
        key
    }

    /// The processor has begun the next operation.
    pub(super) fn begin_next(&mut self, id: u16) {
        if let Some(key) = self.endpoints[usize::from(id)].begins.pop_front() {
            self.begin(id, key);
        }
    }

    /// The end of an operation and its output; `None` while it is under way.
    pub(super) fn poll_op(&mut self, id: u16, key: Key) -> Option<Result<Vec<u8>, Error>> {
        let ops = &mut self.endpoints[usize::from(id)].ops;
        ops.get(&key)?.done.as_ref()?;
        let op = ops.remove(&key)?;
        op.done.map(|done| done.map(|()| op.output))
    }

    fn begin(&mut self, id: u16, key: Key) {
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
                    if op.missing > 0 || !op.unsent.is_empty() {
                        endpoint.flows.entry(group).or_default().enter(op);
                    }
                    let early = endpoint.early.remove(&(group, number)).unwrap_or_default();
                    endpoint.is_early -= early.len();
                    for packet in early {
                        self.take_part(id, packet);
                    }
                    self.tell_taken(id, group);
                }
            }
        }
        self.pump(id, key);
    }

    /// Sends what may be sent of an operation, and ends it if that was all.
    pub(super) fn pump(&mut self, id: u16, key: Key) {
        let window = self.timing.window.max(1);
        loop {
            let endpoint = &mut self.endpoints[usize::from(id)];
            let output = endpoint.output;
            let Some(op) = endpoint.ops.get_mut(&key).filter(|op| op.begun) else { return };
            if matches!(key, Key::Recv(_)) || op.finish() {
                return self.woken.extend(op.done.is_some().then_some(id));
            }
            let flow = if let Key::Call(group, _) = key { endpoint.flows.get(&group) } else { None };
            let has_window = flow.map_or(op.unanswered < window, |flow| flow.allows(op, window));
            if op.unsent.is_empty() || !has_window || endpoint.is_behind(key) {
                return;
            }
            let Some(op) = endpoint.ops.get_mut(&key) else { return };
            let Some(packet) = op.unsent.pop_front() else { return };
            op.unanswered += 1;
            endpoint.sent += 1;
            let is_last = op.unsent.is_empty();
            if let Key::Call(group, number) = key {
                if let Some(down) = &mut op.down {
                    down.step();
                }
                if let Some(flow) = endpoint.flows.get_mut(&group) {
                    flow.unanswered += 1;
                }
                self.push(output, 0, packet, Place::None);
                self.tell_taken(id, group);
                if is_last {
                    // Those that come after it may begin to send.
                    self.pump(id, Key::Call(group, number + 1));
                }
                continue;
            }
            let next = if is_last { endpoint.behind(key) } else { None };
            self.push(output, 0, packet, Place::None);
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
            What::Frame => self.told.extend(Told::of(&packet, Told::Whole)),
            What::MessageAnswer => self.answered(id, Key::Send(number)),
            // It is for switches.
            What::Taken => {}
            What::NoRoute => self.end(id, Key::Send(number), Error::NoRoute { dest: packet.source }),
            What::Answer | What::AnswerRun | What::AnswerAll => self.answered(id, Key::Call(group, number)),
            What::Mismatch => {
                if let Some(mismatch) = packet.mismatch {
                    self.break_group(id, group, *mismatch);
                }
            }
            What::Call | What::Result | What::Granted if self.is_closed(group) => {}
            What::Call | What::Result if !packet.is_sound(self.groups[usize::from(group)].ids.len()) => {
                self.endpoints[usize::from(id)].dropped += 1;
            }
            What::Granted => self.granted(id, group),
            What::Call | What::Result => {
                let endpoint = &mut self.endpoints[usize::from(id)];
                let op = endpoint.ops.get(&Key::Call(group, number));
                let over = endpoint.made(group, number).filter(|_| op.is_none());
                if op.is_some_and(|op| op.begun) {
                    self.take_part(id, packet);
                } else if let Some(call) = over {
                    // All of that call had come, so that this is of another one.
                    let rank = self.groups[usize::from(group)].rank(id).unwrap_or(0);
                    self.differs(id, &packet, (rank, call));
                } else if !endpoint.broken.contains_key(&group) {
                    endpoint.early.entry((group, number)).or_default().push(packet);
                    endpoint.is_early += 1;
                    endpoint.most_early = endpoint.most_early.max(endpoint.is_early);
                }
            }
        }
    }

    fn answered(&mut self, id: u16, key: Key) {
        self.endpoints[usize::from(id)].note_answer(key);
        match key {
            Key::Call(group, _) => self.pump_group(id, group),
            _ => self.pump(id, key),
        }
    }

    fn end(&mut self, id: u16, key: Key, error: Error) {
        let endpoint = &mut self.endpoints[usize::from(id)];
        let Some(op) = endpoint.ops.get_mut(&key) else { return };
        op.unsent.clear();
        op.done.get_or_insert(Err(error));
        let next = endpoint.behind(key);
        self.woken.push(id);
        if let Some(next) = next {
            self.pump(id, next);
        }
    }

    /// A packet of a call that this endpoint is in.
    fn take_part(&mut self, id: u16, packet: Packet) {
        let (group, number) = (packet.dest, packet.number);
        let endpoint = &mut self.endpoints[usize::from(id)];
        let Some(op) = endpoint.ops.get_mut(&Key::Call(group, number)) else { return };
        if op.call != packet.call {
            let own = (op.rank, op.call);
            return self.differs(id, &packet, own);
        }
        store(op, &packet);
        let answer = match (packet.what, packet.call.kind) {
            (What::Call, Kind::Gather) => Some(What::AnswerRun),
            (What::Call, Kind::Reduce) => Some(What::AnswerAll),
            (What::Result, _) => {
                // It stands for the answer of this endpoint's own packet, too.
                endpoint.note_answer(Key::Call(group, number));
                None
            }
            _ => None,
        };
        if let Some(what) = answer {
            let answer = Packet { source: id, ..packet.answer(what) };
            let output = endpoint.output;
            self.push(output, 0, answer, Place::None);
        }
        self.tell_taken(id, group);
        self.pump_group(id, group);
    }

    /// What has come is of another call than that of this endpoint, a rank and its call: all are told.
    fn differs(&mut self, id: u16, packet: &Packet, own: (usize, Call)) {
        let group = packet.dest;
        if self.endpoints[usize::from(id)].broken.contains_key(&group) {
            // All have been told.
            return;
        }
        let other = (self.groups[usize::from(group)].rank(packet.source).unwrap_or(0), packet.call);
        let mismatch = Mismatch { number: packet.number, one: own, other };
        let told = Packet { source: id, mismatch: Some(Arc::new(mismatch)), ..packet.answer(What::Mismatch) };
        let output = self.endpoints[usize::from(id)].output;
        self.break_group(id, group, mismatch);
        self.push(output, 0, told, Place::None);
    }

    fn break_group(&mut self, id: u16, group: u16, mismatch: Mismatch) {
        let endpoint = &mut self.endpoints[usize::from(id)];
        endpoint.broken.entry(group).or_insert(mismatch);
        endpoint.early.retain(|(of, _), _| *of != group);
        endpoint.is_early = endpoint.early.values().map(Vec::len).sum();
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
        let begun = endpoint.partial.get(&key).map_or(0, |message| message.data.len());
        if packet.sequence as usize * DATA != begun {
            // A message that was not sent from its beginning to its end.
            endpoint.dropped += 1;
            return;
        }
        let message = endpoint.partial.entry(key).or_insert_with(|| Message {
            source: packet.source,
            tag: packet.tag,
            bytes: packet.call.bytes,
            data: Vec::with_capacity(packet.call.bytes.min(FIRST)),
        });
        message.data.extend_from_slice(&packet.data);
        let is_whole = message.data.len() >= message.bytes;
        let answer = Packet { dest: packet.source, source: id, ..packet.answer(What::MessageAnswer) };
        if is_whole && let Some(message) = endpoint.partial.remove(&key) {
            endpoint.unexpected.push_back(message);
        }
        let output = endpoint.output;
        self.push(output, 0, answer, Place::None);
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
