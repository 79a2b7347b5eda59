//! A DSP's end of the protocol: operations in progress, expected and unexpected messages, acknowledgements.
//!
//! Every request is acknowledged, and a message, or the calls of a member of a group, have at most the timing's window of
//! unacknowledged packets. Messages are acknowledged by their receiver, broadcasts and scatters by the sender's own switch, and
//! gathered or combined packets by the root, once it is in the call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pdbp_core::collective::{Call, Kind};

use super::fabric::{Event, Fabric};
use super::flow::Flow;
use super::frames::FrameEvent;
use super::operation::{Key, Operation, cut, prepare, store, template};
use super::packet::{DATA, Packet, PacketKind};
use super::port::Buffer;
use super::{Error, Mismatch};

/// How many past calls of a group are remembered.
const KEPT: usize = 64;

/// Maximum bytes allocated when the first packet of a message arrives, which states its length.
const FIRST: usize = 1 << 20;

/// A message that has arrived, in part or completely.
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
    /// Until when its processor is busy starting operations, and which ones are queued for it.
    busy: u64,
    begins: VecDeque<Key>,
    pub(super) ops: BTreeMap<Key, Operation>,
    /// Flow control, by group.
    pub(super) flows: BTreeMap<u16, Flow>,
    /// Packets of calls that have not started here, how many they are, and the maximum of that.
    early: BTreeMap<(u16, u32), Vec<Packet>>,
    is_early: usize,
    pub(super) most_early: usize,
    /// Receives in the order posted, and messages in the order completed.
    expected: VecDeque<Key>,
    unexpected: VecDeque<Message>,
    partial: BTreeMap<(u16, u32), Message>,
    /// Messages sent and receives posted so far.
    numbers: u32,
    /// Groups whose members have made different calls.
    broken: BTreeMap<u16, Mismatch>,
    /// The last calls of each group, compared with packets that arrive after their end.
    made: BTreeMap<u16, VecDeque<(u32, Call)>>,
    /// Requests sent and received.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Packets dropped as invalid.
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

    /// Operations that its processor has not started yet.
    pub(super) fn begins(&self) -> impl Iterator<Item = Key> {
        self.begins.iter().copied()
    }

    /// Whether an earlier message to the same endpoint still has packets to send: messages do not overtake each other.
    fn is_behind(&self, key: Key) -> bool {
        if let Key::Call(group, _) = key {
            // Nor do calls of a group, since their packets are counted in the order of calls.
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

    /// Notes that a packet of an operation was acknowledged.
    fn record_answer(&mut self, key: Key) {
        let Some(op) = self.ops.get_mut(&key).filter(|op| op.unanswered > 0) else { return };
        op.unanswered -= 1;
        if let Key::Call(group, _) = key
            && let Some(flow) = self.flows.get_mut(&group)
        {
            flow.unanswered = flow.unanswered.saturating_sub(1);
        }
    }

    /// The number of the last call of a group that it has started.
    pub(super) fn begun(&self, group: u16) -> u32 {
        self.made.get(&group).and_then(VecDeque::back).map_or(0, |(number, _)| *number)
    }

    /// The amount of work left in a call.
    pub(super) fn left(&self, (group, number): (u16, u32)) -> u64 {
        let op = self.ops.get(&Key::Call(group, number));
        op.map_or(0, |op| (op.missing + op.unsent.len()) as u64 + u64::from(op.unanswered))
    }

    fn record_call(&mut self, group: u16, number: u32, call: Call) {
        let made = self.made.entry(group).or_default();
        if made.len() == KEPT {
            made.pop_front();
        }
        made.push_back((number, call));
    }

    /// The call made under this number, if it is over.
    fn made(&self, group: u16, number: u32) -> Option<Call> {
        let made = self.made.get(&group).filter(|_| self.begun(group) >= number)?;
        let same = made.iter().find(|(of, _)| *of == number);
        same.or(made.front()).map(|(_, call)| *call)
    }

    /// Discards everything of a group.
    pub(super) fn forget(&mut self, group: u16) {
        self.ops.retain(|key, _| !matches!(key, Key::Call(of, _) if *of == group));
        self.early.retain(|(of, _), _| *of != group);
        self.is_early = self.early.values().map(Vec::len).sum();
        self.flows.remove(&group);
        self.broken.remove(&group);
        self.made.remove(&group);
    }

    /// Operations in progress, in words.
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
    /// Starts to send a message.
    pub(super) fn start_send(&mut self, id: u16, to: u16, tag: u64, priority: u8, data: Vec<u8>) -> Key {
        let call = Call::moving(Kind::Tagged, 0, data.len());
        let op = Operation { peer: to, tag, priority, ..Operation::of(call, data, Vec::new()) };
        let key = Key::Send(self.next_number(id));
        self.enter(id, key, op, self.timing.message)
    }

    /// Posts a receive of a message of this many bytes.
    pub(super) fn start_recv(&mut self, id: u16, from: u16, tag: u64, bytes: usize) -> Key {
        let call = Call::moving(Kind::Tagged, 0, bytes);
        let op = Operation { peer: from, tag, missing: bytes, ..Operation::of(call, Vec::new(), Vec::new()) };
        let key = Key::Recv(self.next_number(id));
        self.enter(id, key, op, 0)
    }

    /// Starts a call of a group. The lengths have been checked.
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
        self.endpoints[usize::from(id)].record_call(group, number, call);
        let op = Operation { rank, members, ..Operation::of(call, input, output) };
        self.enter(id, Key::Call(group, number), op, self.timing.message)
    }

    fn next_number(&mut self, id: u16) -> u32 {
        let numbers = &mut self.endpoints[usize::from(id)].numbers;
        *numbers += 1;
        *numbers
    }

    fn enter(&mut self, id: u16, key: Key, op: Operation, cycles: u64) -> Key {
        let (now, endpoint) = (self.now, &mut self.endpoints[usize::from(id)]);
        endpoint.ops.insert(key, op);
        if cycles == 0 {
            self.begin(id, key);
        } else {
            endpoint.busy = endpoint.busy.max(now) + cycles;
            endpoint.begins.push_back(key);
            let at = endpoint.busy;
            self.plan(at, Event::Begins(id));
        }
        key
    }

    /// Makes the processor start its next operation.
    pub(super) fn begin_next(&mut self, id: u16) {
        if let Some(key) = self.endpoints[usize::from(id)].begins.pop_front() {
            self.begin(id, key);
        }
    }

    /// The result of an operation; `None` while it is in progress.
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
                let template = template(id, op, op.peer, number);
                op.unsent = cut(&op.input, DATA)
                    .map(|(sequence, data)| Packet { sequence, data, ..template.clone() })
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
                    prepare(op, &template(id, op, group, number));
                    if op.missing > 0 || !op.unsent.is_empty() {
                        endpoint.flows.entry(group).or_default().enter(op);
                    }
                    let early = endpoint.early.remove(&(group, number)).unwrap_or_default();
                    endpoint.is_early -= early.len();
                    for packet in early {
                        self.take_part(id, packet);
                    }
                    self.report_taken(id, group);
                }
            }
        }
        self.pump(id, key);
    }

    /// Sends as many packets of an operation as the window allows, and completes the operation if nothing is left.
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
                self.push(output, 0, packet, Buffer::None);
                self.report_taken(id, group);
                if is_last {
                    // Calls behind it may start to send.
                    self.pump(id, Key::Call(group, number + 1));
                }
                continue;
            }
            let next = if is_last { endpoint.behind(key) } else { None };
            self.push(output, 0, packet, Buffer::None);
            if let Some(next) = next {
                self.pump(id, next);
            }
        }
    }

    /// Handles a packet that has arrived from its link.
    pub(super) fn receive(&mut self, id: u16, packet: Packet) {
        let endpoint = &mut self.endpoints[usize::from(id)];
        endpoint.received += u64::from(packet.is_request());
        let (group, number) = (packet.dest, packet.number);
        match packet.kind {
            PacketKind::Message => self.take_message(id, &packet),
            PacketKind::Frame => self.frame_events.extend(FrameEvent::of(&packet, FrameEvent::Arrived)),
            PacketKind::MessageAnswer => self.answered(id, Key::Send(number)),
            // Only switches use it.
            PacketKind::Taken => {}
            PacketKind::NoRoute => self.end(id, Key::Send(number), Error::NoRoute { dest: packet.source }),
            PacketKind::Answer | PacketKind::AnswerRun | PacketKind::AnswerAll => {
                self.answered(id, Key::Call(group, number))
            }
            // What is kept of it would be for the next group of this number.
            PacketKind::Mismatch | PacketKind::Call | PacketKind::Result | PacketKind::Granted
                if self.is_closed(group) => {}
            PacketKind::Mismatch => {
                if let Some(mismatch) = packet.mismatch {
                    self.break_group(id, group, *mismatch);
                }
            }
            PacketKind::Call | PacketKind::Result
                if !packet.is_sound(self.groups[usize::from(group)].ids.len()) =>
            {
                self.endpoints[usize::from(id)].dropped += 1;
            }
            PacketKind::Granted => self.granted(id, group),
            PacketKind::Call | PacketKind::Result => {
                let endpoint = &mut self.endpoints[usize::from(id)];
                let op = endpoint.ops.get(&Key::Call(group, number));
                let over = endpoint.made(group, number).filter(|_| op.is_none());
                if op.is_some_and(|op| op.begun) {
                    self.take_part(id, packet);
                } else if let Some(call) = over {
                    // That call had received everything, so this belongs to a different one.
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
        self.endpoints[usize::from(id)].record_answer(key);
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

    /// Handles a packet of a call that this endpoint is in.
    fn take_part(&mut self, id: u16, packet: Packet) {
        let (group, number) = (packet.dest, packet.number);
        let endpoint = &mut self.endpoints[usize::from(id)];
        let Some(op) = endpoint.ops.get_mut(&Key::Call(group, number)) else { return };
        if op.call != packet.call {
            let own = (op.rank, op.call);
            return self.differs(id, &packet, own);
        }
        store(op, &packet);
        let answer = match (packet.kind, packet.call.kind) {
            (PacketKind::Call, Kind::Gather) => Some(PacketKind::AnswerRun),
            (PacketKind::Call, Kind::Reduce) => Some(PacketKind::AnswerAll),
            (PacketKind::Result, _) => {
                // It also acknowledges this endpoint's own packet.
                endpoint.record_answer(Key::Call(group, number));
                None
            }
            _ => None,
        };
        if let Some(what) = answer {
            let answer = Packet { source: id, ..packet.answer(what) };
            let output = endpoint.output;
            self.push(output, 0, answer, Buffer::None);
        }
        self.report_taken(id, group);
        self.pump_group(id, group);
    }

    /// Handles a packet that belongs to a different call than this endpoint's own, which is given with its rank: tells all members.
    fn differs(&mut self, id: u16, packet: &Packet, own: (usize, Call)) {
        let group = packet.dest;
        if self.endpoints[usize::from(id)].broken.contains_key(&group) {
            // All members have been told already.
            return;
        }
        let other = (self.groups[usize::from(group)].rank(packet.source).unwrap_or(0), packet.call);
        let mismatch = Mismatch { number: packet.number, one: own, other };
        let told =
            Packet { source: id, mismatch: Some(Arc::new(mismatch)), ..packet.answer(PacketKind::Mismatch) };
        let output = self.endpoints[usize::from(id)].output;
        self.break_group(id, group, mismatch);
        self.push(output, 0, told, Buffer::None);
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
            // Out of sequence.
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
        let answer = Packet { dest: packet.source, source: id, ..packet.answer(PacketKind::MessageAnswer) };
        if is_whole && let Some(message) = endpoint.partial.remove(&key) {
            endpoint.unexpected.push_back(message);
        }
        let output = endpoint.output;
        self.push(output, 0, answer, Buffer::None);
        self.match_messages(id);
    }

    /// Matches messages with receives, in the order in which the receives were posted.
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
