//! Proxies: stand-ins for parts of another cluster.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::outbox::LongSend;

use super::announced::AnnouncedParts;
use super::hold::Hold;
use super::line::{Line, weight};
use super::streams::Streams;
use super::wire::{COMMAND, HEAD, Head, Kind, MORE};
use crate::error::SendError;
use crate::node::Pipe;
use crate::part::{Batch, Message, Part, Shared, Target};

/// The command number of messages returned from another cluster because they could not be handed on there: the part or the trunk
/// has gone. Their source is the part that they were meant for. A message longer than a block comes back in pieces.
pub const RETURNED: u16 = u16::MAX;
/// Batches read from one proxy before the next one's turn.
const TURN: usize = 16;

/// A stand-in for a part of the other cluster.
pub(super) struct Proxy {
    pub(super) part: Part<Shared>,
    /// Deliveries to hand on, by destination and stream (0: messages).
    pub(super) deliveries: BTreeMap<(Target, u32), Queue>,
    /// The destination of the message longer than a block that the proxy is sending; it sends one at a time.
    long: Option<Target>,
    /// Frames for the part that exceed the window.
    pub(super) hold: Hold,
    /// Bytes sent to the part and not yet handed on there.
    pub(super) in_flight: u64,
    /// Bytes of messages for the part that wait to go back to their senders.
    pub(super) returned: u64,
    /// Messages sent to the part whose outcome the other gateway has not reported.
    pub(super) unconfirmed: u64,
    pub(super) streams: Streams,
    /// The last turn after which the proxy had nothing left to read.
    pub(super) emptied: u64,
    /// Whether the part has gone.
    pub(super) is_being_freed: bool,
    /// Whether a part of this cluster has asked for it.
    pub(super) is_asked: bool,
}

/// Deliveries to be handed on to a part, or on a stream, in order.
pub(super) struct Queue {
    deliveries: VecDeque<Delivery>,
    /// When any of them was last taken.
    since: Instant,
}

/// Received messages of one part to another.
pub(super) struct Delivery {
    pub(super) head: Head,
    pub(super) bytes: Bytes,
    /// The number of messages handed on.
    done: usize,
    /// Whether the messages go back to their sender; then the other gateway waits for nothing.
    pub(super) is_return: bool,
    /// For a stream: the bytes written so far.
    pub(super) written: usize,
}

pub(super) enum Bytes {
    /// In the block that it arrived in, after the head.
    InPlace(Message<Shared>),
    Kept(Vec<u8>),
    /// Being sent in segments.
    Leaving(LongSend<Vec<u8>>),
}

impl Delivery {
    pub(super) fn new(head: Head, bytes: Bytes) -> Self {
        Self { head, bytes, done: 0, is_return: false, written: 0 }
    }

    fn returned(head: Head, bytes: &[u8]) -> Self {
        Self { is_return: true, ..Self::new(head, Bytes::Kept(bytes.to_vec())) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::InPlace(frame) => frame.get(HEAD..).unwrap_or(&[]),
            Bytes::Kept(bytes) => bytes,
            Bytes::Leaving(long) => long.message(),
        }
    }

    /// Copies the bytes out of the block that they arrived in, and releases the block.
    pub(super) fn keep(&mut self) {
        if let Bytes::InPlace(_) = self.bytes {
            self.bytes = Bytes::Kept(self.bytes().to_vec());
        }
    }

    fn take_bytes(&mut self) -> Vec<u8> {
        match std::mem::replace(&mut self.bytes, Bytes::Kept(Vec::new())) {
            Bytes::InPlace(frame) => frame.get(HEAD..).unwrap_or(&[]).to_vec(),
            Bytes::Kept(bytes) => bytes,
            Bytes::Leaving(long) => long.into_message(),
        }
    }

    /// The number of messages handed on.
    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// A measure of progress, also for a long message or a stream.
    fn progress(&self) -> usize {
        if let Bytes::Leaving(long) = &self.bytes { long.sent() } else { self.done + self.written }
    }

    /// The messages not handed on yet.
    pub(super) fn rest(&self) -> &[u8] {
        self.bytes().get(self.done * self.head.length as usize..).unwrap_or(&[])
    }

    /// Message `i`; empty past the last.
    pub(super) fn message(&self, i: usize) -> &[u8] {
        let length = self.head.length as usize;
        self.bytes().get(i * length..(i + 1) * length).unwrap_or(&[])
    }

    /// The key of its queue: the destination and the stream.
    pub(super) fn key(&self, dest: Target) -> (Target, u32) {
        (dest, if self.head.kind == Kind::Stream { self.head.count } else { 0 })
    }

    /// The bytes that it takes of a window.
    pub(super) fn weight(&self) -> u64 {
        weight(self.bytes().len())
    }
}

/// What a round of handing on has done.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    pub(super) worked: bool,
    /// With data from the other cluster, not only returns.
    pub(super) has_forwarded: bool,
}

/// The outcome of handing on messages.
pub(super) enum Forwarded {
    All,
    /// There was no room for some of them.
    Later,
    /// The part does not exist or cannot be reached.
    Refused,
}

impl Proxy {
    pub(super) fn new(part: Part<Shared>) -> Self {
        Self {
            part,
            deliveries: BTreeMap::new(),
            long: None,
            hold: Hold::default(),
            in_flight: 0,
            returned: 0,
            unconfirmed: 0,
            streams: Streams::default(),
            emptied: 0,
            is_being_freed: false,
            is_asked: false,
        }
    }

    /// Whether the proxy may take more: always, unless nodes ignore what they are told, or cannot be told. What comes back may have been
    /// held or in flight before.
    pub(super) fn may_read(&self, line: &Line) -> bool {
        line.held + line.returned < line.most() && !self.hold.is_full(line, self.returned)
    }

    /// Whether the part may use more of the window: at most as much as is still free.
    fn may_send(&self, line: &Line) -> bool {
        !line.is_closed && line.in_flight < line.window && self.in_flight < line.window - line.in_flight
    }

    /// Sends what parts of this cluster have sent to the part, as much as the window allows, and holds the rest.
    pub(super) fn read(
        &mut self,
        remote: u64,
        line: &mut Line,
        out: &Part<Shared>,
        announced: &mut AnnouncedParts,
    ) -> bool {
        let mut worked = false;
        while self.may_send(line)
            && let Some((head, bytes)) = self.hold.take(line)
        {
            self.send(line, out, head, &bytes);
            worked = true;
        }
        for _ in 0..TURN {
            let batch = if self.may_read(line) { self.part.try_recv_batch() } else { None };
            let Some(batch) = batch else { return worked };
            worked = true;
            announced.insert(batch.source().to_bits());
            let head = head_of(&batch, remote);
            self.pass(line, out, head, batch.bytes());
        }
        worked
    }

    /// Sends a frame, or holds one that exceeds the window. Returns a message longer than the other gateway takes to its sender.
    pub(super) fn pass(&mut self, line: &mut Line, out: &Part<Shared>, head: Head, bytes: &[u8]) {
        if u64::from(head.length) > line.longest && head.kind == Kind::Data {
            line.returned += self.return_messages(&head, bytes);
        } else if self.hold.is_empty() && self.may_send(line) {
            self.send(line, out, head, bytes);
        } else {
            self.hold.put(line, head, bytes);
        }
    }

    fn send(&mut self, line: &mut Line, out: &Part<Shared>, head: Head, bytes: &[u8]) {
        self.in_flight += weight(bytes.len());
        line.in_flight += weight(bytes.len());
        self.unconfirmed += messages(&head);
        line.send(out, head, bytes);
    }

    /// Hands on everything that waits, as much as there is room for.
    pub(super) fn forward_all(&mut self, taken: &mut Vec<Delivery>, refused: &mut Vec<Delivery>) -> Progress {
        let mut progress = Progress::default();
        let keys: Vec<(Target, u32)> = self.deliveries.keys().copied().collect();
        for key in keys {
            let Some(mut queue) = self.deliveries.remove(&key) else { continue };
            while let Some(mut delivery) = queue.deliveries.pop_front() {
                let before = delivery.progress();
                let handed = self.forward(key.0, &mut delivery);
                if !matches!(handed, Forwarded::Later) || delivery.progress() > before {
                    queue.since = Instant::now();
                    progress.worked = true;
                    progress.has_forwarded |= !delivery.is_return;
                }
                if delivery.is_return && !matches!(handed, Forwarded::Later) {
                    self.returned = self.returned.saturating_sub(delivery.weight());
                }
                match handed {
                    Forwarded::All => taken.push(delivery),
                    Forwarded::Refused => refused.push(delivery),
                    Forwarded::Later => {
                        queue.deliveries.push_front(delivery);
                        break;
                    }
                }
            }
            if !queue.deliveries.is_empty() {
                self.deliveries.insert(key, queue);
            }
        }
        progress
    }

    /// Hands on messages as long as there is room.
    pub(super) fn forward(&mut self, dest: Target, delivery: &mut Delivery) -> Forwarded {
        if delivery.head.kind == Kind::Stream {
            return self.forward_stream(dest, delivery);
        }
        let part = &self.part;
        let (length, count) = (delivery.head.length as usize, delivery.head.count as usize);
        let sender = part.sender(dest).no_wait();
        if delivery.head.flags & COMMAND == 0 && length > part.longest() {
            return self.send_long(dest, delivery);
        }
        while delivery.done < count {
            if delivery.is_return && !self.may_return(dest.node()) {
                return Forwarded::Later;
            }
            let sent = if delivery.is_return {
                part.pass_command(dest, delivery.head.command, delivery.message(delivery.done)).map(|()| 1)
            } else if delivery.head.flags & COMMAND != 0 {
                sender.command(delivery.head.command).send(delivery.message(delivery.done)).map(|()| 1)
            } else if length == 0 {
                sender.send(&[]).map(|()| 1)
            } else {
                sender.send_train(delivery.bytes().get(delivery.done * length..).unwrap_or(&[]), length)
            };
            match sent {
                Ok(0) | Err(SendError::WouldBlock) => return Forwarded::Later,
                Ok(sent) => delivery.done += sent,
                Err(_) => return Forwarded::Refused,
            }
        }
        Forwarded::All
    }

    /// Whether the row to a node has room for what comes back to its parts. If nobody reads that, it leaves a block free, so that the
    /// node can be told to send no more.
    fn may_return(&self, node: NodeId) -> bool {
        let engine = self.part.shared().engine();
        engine.send_row(node).is_none_or(|row| row.space.used() < row.space.size().saturating_sub(1).max(1))
    }

    /// Sends a message longer than a block, as its receiver gets room.
    fn send_long(&mut self, dest: Target, delivery: &mut Delivery) -> Forwarded {
        if self.long.is_some_and(|busy| busy != dest) {
            return Forwarded::Later;
        }
        if self.long.is_none() {
            let bytes = delivery.take_bytes();
            delivery.bytes = Bytes::Leaving(self.part.begin_passing(dest, bytes));
            self.long = Some(dest);
        }
        let Bytes::Leaving(long) = &mut delivery.bytes else { return Forwarded::Later };
        let sent = self.part.advance_passing(long);
        if sent == Err(SendError::WouldBlock) {
            return Forwarded::Later;
        }
        self.part.end_passing(long, sent.is_ok());
        delivery.bytes = Bytes::Kept(delivery.take_bytes());
        self.long = None;
        if sent.is_ok() { Forwarded::All } else { Forwarded::Refused }
    }

    /// Gives up a message that is being sent in segments, when the session has ended.
    pub(super) fn end_long(&mut self) {
        for delivery in self.deliveries.values().flat_map(|queue| &queue.deliveries) {
            if let Bytes::Leaving(long) = &delivery.bytes {
                self.part.end_passing(long, false);
            }
        }
    }

    /// Queues a delivery behind others of its kind.
    pub(super) fn wait(&mut self, key: (Target, u32), mut delivery: Delivery) {
        delivery.keep();
        let new = || Queue { deliveries: VecDeque::new(), since: Instant::now() };
        self.deliveries.entry(key).or_insert_with(new).deliveries.push_back(delivery);
    }

    /// Whether anything received from the other cluster has not been handed on.
    pub(super) fn has_parcels(&self) -> bool {
        self.deliveries.values().flat_map(|queue| &queue.deliveries).any(|delivery| !delivery.is_return)
    }

    /// Whether anything waits to go back to its sender.
    pub(super) fn has_returns(&self) -> bool {
        self.deliveries.values().flat_map(|queue| &queue.deliveries).any(|delivery| delivery.is_return)
    }

    /// Takes out messages to be returned: those for parts that have taken nothing for `patience`; those of streams only if that is
    /// zero.
    pub(super) fn take_stuck(&mut self, patience: Duration, stuck: &mut Vec<Delivery>) {
        for ((_, stream), queue) in &mut self.deliveries {
            if (*stream != 0 && patience > Duration::ZERO) || queue.since.elapsed() < patience {
                continue;
            }
            let (returns, others) =
                std::mem::take(&mut queue.deliveries).into_iter().partition(|p| p.is_return);
            queue.deliveries = returns;
            let others: VecDeque<Delivery> = others;
            for mut delivery in others {
                if let Bytes::Leaving(long) = &delivery.bytes {
                    self.part.end_passing(long, false);
                    delivery.bytes = Bytes::Kept(delivery.take_bytes());
                    self.long = None;
                }
                stuck.push(delivery);
            }
        }
        self.deliveries.retain(|_, queue| !queue.deliveries.is_empty());
    }

    /// Takes messages handed on to a node that failed before they arrived, in the form in which the other gateway sent them.
    pub(super) fn take_returned(&self, remote: u64, returns: &mut VecDeque<(Head, Vec<u8>)>) -> bool {
        let before = returns.len();
        while let Ok(Some(message)) = self.part.try_returned() {
            let is_return = message.is_command() && message.command() == RETURNED;
            let [dest] = *message.targets() else { continue };
            // Streams and messages longer than a block do not come back, as within a cluster.
            if is_return || message.stream().is_some() || message.segment().is_some() {
                continue;
            }
            let head = Head {
                flags: if message.is_command() { COMMAND } else { 0 },
                command: message.command(),
                length: u32::try_from(message.len()).unwrap_or(u32::MAX),
                count: 1,
                origin: remote,
                dest: dest.to_bits(),
                ..Head::new(Kind::Return)
            };
            returns.push_back((head, message.to_vec()));
        }
        returns.len() > before
    }

    /// Returns messages for the part to their senders, as commands; those longer than a block in pieces. Returns the number of
    /// bytes that now wait for that.
    pub(super) fn return_messages(&mut self, head: &Head, bytes: &[u8]) -> u64 {
        let Some(origin) = Target::from_bits(head.origin) else { return 0 };
        let most = self.part.longest().max(1);
        let head = Head { flags: COMMAND, command: RETURNED, dest: head.origin, ..*head };
        if head.length as usize <= most
            && bytes.len() as u64 == u64::from(head.length) * u64::from(head.count)
        {
            self.wait((origin, 0), Delivery::returned(head, bytes));
            self.returned += weight(bytes.len());
            return weight(bytes.len());
        }
        let mut all = 0;
        for piece in bytes.chunks(most) {
            let length = u32::try_from(piece.len()).unwrap_or(0);
            self.wait((origin, 0), Delivery::returned(Head { length, count: 1, ..head }, piece));
            all += weight(piece.len());
        }
        self.returned += all;
        all
    }

    /// Whether the proxy holds anything sent by this part of this cluster, or reads a stream of it.
    pub(super) fn holds_of(&self, origin: u64) -> bool {
        self.hold.has_from(origin) || self.streams.has_from(origin)
    }

    /// The bytes that wait here.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn weight(&self) -> u64 {
        self.deliveries.values().flat_map(|queue| &queue.deliveries).map(Delivery::weight).sum()
    }

    /// Ends the proxy's streams: its part or the trunk has gone.
    pub(super) fn end_streams(&mut self) {
        self.streams.end(&self.part);
    }

    /// Whether everything that has arrived for the proxy has been read.
    pub(super) fn is_read(&self) -> bool {
        self.part.pipe().is_ok_and(Pipe::is_empty)
    }

    /// Whether the part has gone and nothing remains to be done: messages in flight go back to their senders through this proxy.
    pub(super) fn is_done(&self, announced: &AnnouncedParts) -> bool {
        let is_over = self.deliveries.is_empty() && self.hold.is_empty() && self.in_flight == 0;
        self.is_being_freed && is_over && self.is_read() && !self.streams.is_writing(announced)
    }
}

/// The messages that a frame counts for: of a long message's frames, only the last counts.
pub(super) fn messages(head: &Head) -> u64 {
    if head.kind == Kind::Data && head.flags & MORE == 0 { u64::from(head.count) } else { 0 }
}

pub(super) fn head_of(batch: &Batch<Shared>, dest: u64) -> Head {
    Head {
        flags: if batch.is_command() { COMMAND } else { 0 },
        command: batch.command(),
        // No message is longer: blocks and `assembly_bytes` are shorter.
        length: u32::try_from(batch.message_len()).unwrap_or(u32::MAX),
        count: u32::try_from(batch.len()).unwrap_or(u32::MAX),
        origin: batch.source().to_bits(),
        dest,
        ..Head::new(Kind::Data)
    }
}
