//! The reading end of a private pipe: deliveries become messages and streams.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use pdbp_core::Delivery;
use pdbp_core::cdu::{CduClass, Cdus};
use pdbp_core::engine::DeliveryKind;
use pdbp_core::id::{NodeId, PartId, StreamNo};

use super::message::{Batch, Bytes, Info, Message, Run};
use crate::node::{Pipe, Shared};

/// Reading position in a run.
struct Cursor {
    run: Rc<Run>,
    /// Where the next train begins.
    at: usize,
    /// Of the open train: place of the next message, length of each, messages left.
    start: u32,
    length: u32,
    left: u32,
    info: Info,
    /// Of a segment of a long message: message number, segment number, bytes of the whole.
    segment: Option<(u32, u32, u64)>,
}

/// A message longer than a block, of which some segments have come. A part sends one at a time, so there is one per source.
struct Assembly {
    message: u32,
    next: u32,
    total: usize,
    bytes: Vec<u8>,
}

/// A stream that arrives.
#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) segments: VecDeque<Rc<Run>>,
    pub(crate) ended: bool,
    pub(crate) broken: bool,
    /// Its reader was dropped: what comes is given back.
    pub(crate) ignored: bool,
}

pub(crate) type StreamKey = (NodeId, StreamNo);

/// What has come out of a pipe and is not consumed yet.
#[derive(Default)]
pub(crate) struct Inbox {
    current: Option<Cursor>,
    urgent: Option<Cursor>,
    runs: VecDeque<Rc<Run>>,
    urgent_runs: VecDeque<Rc<Run>>,
    assemblies: HashMap<PartId, Assembly>,
    pub(crate) streams: HashMap<StreamKey, Incoming>,
    pub(crate) new_streams: VecDeque<(StreamKey, PartId)>,
    /// Messages that could not be read; see [`crate::Part::unreadable`].
    pub(crate) unreadable: u64,
    limit: usize,
}

impl Inbox {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether there is a message that was taken out of the pipe and not read yet, or a stream not accepted yet.
    pub(crate) fn has_more(&self) -> bool {
        let left = |c: &Option<Cursor>| c.as_ref().is_some_and(|c| c.left > 0 || c.at < c.run.bytes().len());
        left(&self.current)
            || left(&self.urgent)
            || !self.runs.is_empty()
            || !self.urgent_runs.is_empty()
            || !self.new_streams.is_empty()
    }

    /// The next message, commands first.
    #[inline]
    pub(crate) fn next(&mut self, pipe: &Pipe, shared: &Arc<Shared>) -> Option<Message> {
        if let Some(cursor) = &mut self.current
            && cursor.left > 1
            && self.urgent.is_none()
            && pipe.urgent.is_empty()
        {
            return Some(cursor.step());
        }
        self.next_slow(pipe, shared)
    }

    fn next_slow(&mut self, pipe: &Pipe, shared: &Arc<Shared>) -> Option<Message> {
        loop {
            self.pull_urgent(pipe, shared);
            let urgent = self.urgent.is_some() || !self.urgent_runs.is_empty();
            if !self.open_train(urgent, pipe, shared) {
                return None;
            }
            let slot = if urgent { &mut self.urgent } else { &mut self.current };
            let Some(cursor) = slot else { continue };
            if let Some(message) = cursor.take_segment(&mut self.assemblies, self.limit, &mut self.unreadable)
            {
                match message {
                    Some(message) => return Some(message),
                    None => continue,
                }
            }
            if cursor.left == 1 && cursor.at >= cursor.run.bytes().len() {
                // The last message takes the run along, so that it goes back as soon as the message is dropped.
                return slot.take().map(Cursor::into_last);
            }
            return Some(cursor.step());
        }
    }

    /// The rest of the open train, or the next one, as a batch. A message in segments is not part of any: `next` gives it.
    pub(crate) fn next_batch(&mut self, pipe: &Pipe, shared: &Arc<Shared>) -> Option<Result<Batch, Message>> {
        self.pull_urgent(pipe, shared);
        if self.urgent.is_some() || !self.urgent_runs.is_empty() {
            return self.next(pipe, shared).map(Err);
        }
        loop {
            if !self.open_train(false, pipe, shared) {
                return None;
            }
            let Some(cursor) = &mut self.current else { continue };
            if cursor.segment.is_some() {
                return self.next(pipe, shared).map(Err);
            }
            let (start, length, count, info) = (cursor.start, cursor.length, cursor.left, cursor.info);
            cursor.left = 0;
            let run = if cursor.at >= cursor.run.bytes().len() {
                self.current.take().map(|c| c.run)
            } else {
                Some(Rc::clone(&cursor.run))
            };
            return run.map(|run| Ok(Batch { run, start, length, count, info }));
        }
    }

    /// Makes the cursor stand in a train with messages left; `false` when nothing has arrived.
    fn open_train(&mut self, urgent: bool, pipe: &Pipe, shared: &Arc<Shared>) -> bool {
        loop {
            let slot = if urgent { &mut self.urgent } else { &mut self.current };
            if let Some(cursor) = slot {
                if cursor.left > 0 {
                    return true;
                }
                match cursor.next_train() {
                    Next::Train => return true,
                    Next::End => *slot = None,
                    Next::Unreadable => {
                        self.unreadable += 1;
                        *slot = None;
                    }
                }
                continue;
            }
            let runs = if urgent { &mut self.urgent_runs } else { &mut self.runs };
            match runs.pop_front() {
                Some(run) => *slot = Cursor::new(run),
                None if urgent => return false,
                None => {
                    if !self.pull(pipe, shared) {
                        return false;
                    }
                }
            }
        }
    }

    /// Takes one delivery out of the pipe.
    pub(crate) fn pull(&mut self, pipe: &Pipe, shared: &Arc<Shared>) -> bool {
        if pipe.has_broken.swap(false, Ordering::AcqRel) {
            let broken = std::mem::take(&mut *pipe.broken.lock().unwrap_or_else(PoisonError::into_inner));
            for key in broken {
                if let Some(stream) = self.streams.get_mut(&key) {
                    (stream.ended, stream.broken) = (true, true);
                }
            }
        }
        let Some(delivery) = pipe.normal.pop() else { return false };
        self.sort(delivery, shared);
        true
    }

    fn pull_urgent(&mut self, pipe: &Pipe, shared: &Arc<Shared>) {
        // Looking first is cheaper: a `pop` of an empty queue has a fence.
        while !pipe.urgent.is_empty()
            && let Some(delivery) = pipe.urgent.pop()
        {
            self.urgent_runs.push_back(Run::new(delivery, shared));
        }
    }

    fn sort(&mut self, delivery: Delivery, shared: &Arc<Shared>) {
        let DeliveryKind::Stream { number, segment, last, aborted } = delivery.kind() else {
            self.runs.push_back(Run::new(delivery, shared));
            return;
        };
        let key = (delivery.source(), number);
        let run = Run::new(delivery, shared);
        if segment == 0 {
            let source = run.delivery().and_then(|d| {
                let train = d.cdus().next()?.ok()?;
                PartId::new(d.source(), train.source_part())
            });
            let Some(source) = source else {
                self.unreadable += 1;
                return;
            };
            self.streams.insert(key, Incoming::default());
            self.new_streams.push_back((key, source));
        }
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.ended |= last;
        stream.broken |= aborted;
        if stream.ignored {
            if stream.ended {
                self.streams.remove(&key);
            }
        } else if !aborted {
            stream.segments.push_back(run);
        }
    }
}

enum Next {
    Train,
    End,
    Unreadable,
}

impl Cursor {
    fn new(run: Rc<Run>) -> Option<Self> {
        let source = run.delivery()?.source();
        // Overwritten by the first train.
        let info = Info { source: PartId::new(source, 0)?, command: 0, class: CduClass::ShortMessage };
        Some(Self { run, at: 0, start: 0, length: 0, left: 0, info, segment: None })
    }

    fn next_train(&mut self) -> Next {
        let bytes = self.run.bytes();
        let mut cdus = Cdus::new(bytes.get(self.at..).unwrap_or(&[]));
        let train = match cdus.next() {
            None => return Next::End,
            Some(Err(_)) => return Next::Unreadable,
            Some(Ok(train)) => train,
        };
        let Some(source) = PartId::new(self.info.source.node(), train.source_part()) else {
            return Next::Unreadable;
        };
        self.at = bytes.len() - cdus.remaining();
        // Both slices lie in the run, so the difference is the data's place in it.
        self.start = (train.data().as_ptr() as usize - bytes.as_ptr() as usize) as u32;
        self.length = train.length() as u32;
        self.left = train.count();
        self.segment = train.segment().map(|s| (s.message(), s.segment(), s.total()));
        self.info = Info { source, command: train.command(), class: train.class() };
        Next::Train
    }

    #[inline]
    fn step(&mut self) -> Message {
        let start = self.start;
        self.start += self.length;
        self.left -= 1;
        Message { bytes: Bytes::InPlace(Rc::clone(&self.run), start, self.length), info: self.info }
    }

    fn into_last(self) -> Message {
        Message { bytes: Bytes::InPlace(self.run, self.start, self.length), info: self.info }
    }

    /// `None`: the open train is no segment. `Some(None)`: a segment was taken. `Some(Some(_))`: it completed a message.
    fn take_segment(
        &mut self,
        assemblies: &mut HashMap<PartId, Assembly>,
        limit: usize,
        unreadable: &mut u64,
    ) -> Option<Option<Message>> {
        let (message, segment, total) = self.segment?;
        let run = Rc::clone(&self.run);
        let (start, end) = (self.start as usize, (self.start + self.length) as usize);
        let data = run.bytes().get(start..end).unwrap_or(&[]);
        self.left = 0;
        let source = self.info.source;
        if segment == 0 {
            let Some(total) = usize::try_from(total).ok().filter(|t| *t <= limit) else {
                *unreadable += 1;
                return Some(None);
            };
            assemblies.insert(source, Assembly { message, next: 0, total, bytes: Vec::with_capacity(total) });
        }
        let Some(assembly) =
            assemblies.get_mut(&source).filter(|a| a.message == message && a.next == segment)
        else {
            // The rest of a message whose beginning was refused or given up.
            return Some(None);
        };
        assembly.bytes.extend_from_slice(data);
        assembly.next += 1;
        if assembly.bytes.len() < assembly.total {
            return Some(None);
        }
        let whole = assemblies.remove(&source)?;
        if whole.bytes.len() > whole.total {
            *unreadable += 1;
            return Some(None);
        }
        Some(Some(Message { bytes: Bytes::Assembled(whole.bytes.into_boxed_slice()), info: self.info }))
    }
}
