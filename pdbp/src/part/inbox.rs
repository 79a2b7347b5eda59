//! The reading end of a private pipe: deliveries become messages and streams.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use pdbp_core::Delivery;
use pdbp_core::cdu::{CduClass, Cdus};
use pdbp_core::engine::DeliveryKind;
use pdbp_core::id::{Address, NodeId, StreamNo};

use super::message::{Batch, Info, Message, Run, Spare};
use super::returned::Returned;
use crate::node::{Pipe, Shared};

/// Reading position in a run.
struct Cursor {
    run: Rc<Run>,
    /// Where the next train begins, and where the run ends.
    at: u32,
    end: u32,
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

/// Messages of a train between two looks for commands.
const UNLOOKED: u32 = 32;

pub(crate) type StreamKey = (NodeId, StreamNo);

/// What has come out of a pipe and is not consumed yet.
#[derive(Default)]
pub(crate) struct Inbox {
    current: Option<Cursor>,
    urgent: Option<Cursor>,
    runs: VecDeque<Rc<Run>>,
    urgent_runs: VecDeque<Rc<Run>>,
    /// Messages of the open train that can be handed out without another look.
    quick: u32,
    /// Whether `urgent` or `urgent_runs` hold anything.
    has_urgent: bool,
    assemblies: HashMap<Address, Assembly>,
    spare: Rc<Spare>,
    pub(crate) streams: HashMap<StreamKey, Incoming>,
    pub(crate) new_streams: VecDeque<(StreamKey, Address)>,
    /// What this part has sent and failed peers did not get.
    pub(crate) returned: VecDeque<Returned>,
    /// Messages that could not be read; see [`crate::Part::unreadable`].
    pub(crate) unreadable: u64,
    limit: usize,
}

impl Inbox {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether there is a message that was taken out of the pipe and not read yet.
    pub(crate) fn has_message(&self) -> bool {
        let left = |c: &Option<Cursor>| c.as_ref().is_some_and(|c| c.left > 0 || c.at < c.end);
        left(&self.current) || left(&self.urgent) || !self.runs.is_empty() || !self.urgent_runs.is_empty()
    }

    /// The next message of the open train, while there is no need to look for commands, the end of the train or of the run.
    #[inline]
    pub(crate) fn quick(&mut self) -> Option<Message> {
        if self.quick == 0 {
            return None;
        }
        self.quick -= 1;
        self.current.as_mut().map(Cursor::step)
    }

    /// The next message, commands first.
    #[inline(never)]
    pub(crate) fn next(&mut self, pipe: &Pipe, shared: &Arc<Shared>) -> Option<Message> {
        self.quick = 0;
        if self.has_urgent || !pipe.urgent.is_empty() {
            return self.next_slow(pipe, shared);
        }
        let Some(cursor) = &mut self.current else { return self.next_slow(pipe, shared) };
        if cursor.left == 0 && !matches!(cursor.next_train(), Next::Train) || cursor.segment.is_some() {
            return self.next_slow(pipe, shared);
        }
        let ends_here = u32::from(cursor.at == cursor.end);
        if cursor.left == ends_here {
            return self.next_slow(pipe, shared);
        }
        let message = cursor.step();
        self.quick = (cursor.left - ends_here).min(UNLOOKED);
        Some(message)
    }

    #[inline(never)]
    fn next_slow(&mut self, pipe: &Pipe, shared: &Arc<Shared>) -> Option<Message> {
        loop {
            self.pull_urgent(pipe, shared);
            let urgent = self.has_urgent;
            if !self.open_train(urgent, pipe, shared) {
                return None;
            }
            let slot = if urgent { &mut self.urgent } else { &mut self.current };
            let Some(cursor) = slot else { continue };
            let taken =
                cursor.take_segment(&mut self.assemblies, &self.spare, self.limit, &mut self.unreadable);
            if let Some(message) = taken {
                if cursor.at == cursor.end {
                    // It was copied, so that its block goes back at once, not when somebody asks for another message.
                    *slot = None;
                    self.has_urgent = self.urgent.is_some() || !self.urgent_runs.is_empty();
                }
                match message {
                    Some(message) => return Some(message),
                    None => continue,
                }
            }
            if cursor.left == 1 && cursor.at == cursor.end {
                // The last message takes the run along, so that it goes back as soon as the message is dropped.
                let last = slot.take().map(Cursor::into_last);
                self.has_urgent = self.urgent.is_some() || !self.urgent_runs.is_empty();
                return last;
            }
            return Some(cursor.step());
        }
    }

    /// The rest of the open train, or the next one, as a batch. A message in segments is not part of any: `next` gives it.
    pub(crate) fn next_batch(&mut self, pipe: &Pipe, shared: &Arc<Shared>) -> Option<Result<Batch, Message>> {
        self.quick = 0;
        self.pull_urgent(pipe, shared);
        if self.has_urgent {
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
            let run = if cursor.at == cursor.end {
                self.current.take().map(|c| c.run)
            } else {
                Some(Rc::clone(&cursor.run))
            };
            return run.map(|run| Ok(Batch { run, start, length, count, info }));
        }
    }

    /// Messages of one arrived block for a device, commands first, from the next one on: of each train as many as `take` takes, which is
    /// told who sent it, where in the block's bytes its next message lies, how long one is, and how many are left. The next message as
    /// an error, by its length, when it has come in segments.
    #[cfg(feature = "cuda")]
    pub(crate) fn next_bundle(
        &mut self,
        pipe: &Pipe,
        shared: &Arc<Shared>,
        mut take: impl FnMut(&Info, usize, usize, u32) -> u32,
    ) -> Option<Result<Delivery, u64>> {
        self.quick = 0;
        self.pull_urgent(pipe, shared);
        if !self.open_train(self.has_urgent, pipe, shared) {
            return None;
        }
        let slot = if self.has_urgent { &mut self.urgent } else { &mut self.current };
        let cursor = slot.as_mut()?;
        if let Some((_, _, total)) = cursor.segment {
            return Some(Err(total));
        }
        let delivery = shared.engine().share(cursor.run.delivery()?)?;
        let mut all = 0;
        loop {
            let taken = take(&cursor.info, cursor.start as usize, cursor.length as usize, cursor.left);
            all += taken;
            cursor.start += taken * cursor.length;
            cursor.left -= taken;
            if cursor.left > 0 {
                break;
            }
            match cursor.next_train() {
                Next::Train if cursor.segment.is_none() => {}
                Next::Train => break,
                end => {
                    self.unreadable += u64::from(matches!(end, Next::Unreadable));
                    *slot = None;
                    break;
                }
            }
        }
        self.has_urgent = self.urgent.is_some() || !self.urgent_runs.is_empty();
        if all == 0 {
            shared.release(delivery);
            return None;
        }
        Some(Ok(delivery))
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
                None if urgent => {
                    self.has_urgent = false;
                    return self.open_train(false, pipe, shared);
                }
                None => {
                    if !self.pull(pipe, shared) {
                        return false;
                    }
                }
            }
        }
    }

    /// Takes a delivery out of the pipe; all of them when a stream has broken.
    pub(crate) fn pull(&mut self, pipe: &Pipe, shared: &Arc<Shared>) -> bool {
        if pipe.has_broken.load(Ordering::Relaxed) && pipe.has_broken.swap(false, Ordering::AcqRel) {
            let broken = std::mem::take(&mut *pipe.broken.lock().unwrap_or_else(PoisonError::into_inner));
            // Segments that came before the end are in the pipe still, perhaps even the first one.
            while let Some(delivery) = pipe.normal.pop() {
                self.sort(delivery, shared);
            }
            for key in broken {
                let Some(stream) = self.streams.get_mut(&key) else { continue };
                (stream.ended, stream.broken) = (true, true);
                if stream.ignored {
                    self.streams.remove(&key);
                }
            }
            return true;
        }
        // Looking first is cheaper: a `pop` of an empty queue has a fence, which would wait for what was just packed.
        if pipe.normal.is_empty() {
            return false;
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
            self.has_urgent = true;
        }
    }

    fn sort(&mut self, delivery: Delivery, shared: &Arc<Shared>) {
        let (number, segment, last, aborted) = match delivery.kind() {
            DeliveryKind::Stream { number, segment, last, aborted } => (number, segment, last, aborted),
            DeliveryKind::Returned { .. } => {
                let run = Run::new(delivery, shared);
                self.returned.extend(Returned::all(&run, shared));
                return;
            }
            DeliveryKind::Messages { .. } => {
                self.runs.push_back(Run::new(delivery, shared));
                return;
            }
        };
        let key = (delivery.source(), number);
        let run = Run::new(delivery, shared);
        if segment == 0 && aborted {
            // Given up before anything was sent: there is nothing to accept.
            return;
        }
        if segment == 0 {
            let source = run.delivery().and_then(|d| {
                let train = d.cdus().next()?.ok()?;
                Address::new(d.source(), train.source_part())
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
        let info = Info { source: Address::new(source, 0)?, command: 0, is_command: 0 };
        // A block is shorter than 4 GiB.
        let end = run.bytes().len() as u32;
        Some(Self { run, at: 0, end, start: 0, length: 0, left: 0, info, segment: None })
    }

    #[inline]
    fn next_train(&mut self) -> Next {
        let bytes = self.run.bytes();
        let mut cdus = Cdus::new(bytes.get(self.at as usize..).unwrap_or(&[]));
        let train = match cdus.next() {
            None => return Next::End,
            Some(Err(_)) => return Next::Unreadable,
            Some(Ok(train)) => train,
        };
        let Some(source) = Address::new(self.info.source.node(), train.source_part()) else {
            return Next::Unreadable;
        };
        self.at = self.end - cdus.remaining() as u32;
        // Both slices lie in the run, so the difference is the data's place in it.
        self.start = (train.data().as_ptr().addr() - bytes.as_ptr().addr()) as u32;
        self.length = train.length() as u32;
        self.left = train.count();
        self.segment = train.segment().map(|s| (s.message(), s.segment(), s.total()));
        self.info = Info {
            source,
            command: train.command(),
            is_command: u8::from(train.class() == CduClass::Command),
        };
        Next::Train
    }

    #[inline]
    fn step(&mut self) -> Message {
        let start = self.start;
        self.start += self.length;
        self.left -= 1;
        Message { run: Rc::clone(&self.run), start, length: self.length, info: self.info }
    }

    fn into_last(self) -> Message {
        Message { run: self.run, start: self.start, length: self.length, info: self.info }
    }

    /// `None`: the open train is no segment. `Some(None)`: a segment was taken. `Some(Some(_))`: it completed a message.
    fn take_segment(
        &mut self,
        assemblies: &mut HashMap<Address, Assembly>,
        spare: &Rc<Spare>,
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
            let given_up = assemblies.remove(&source);
            given_up.into_iter().for_each(|before| spare.put(before.bytes));
            assemblies.insert(source, Assembly { message, next: 0, total, bytes: spare.take(total) });
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
            spare.put(whole.bytes);
            return Some(None);
        }
        let length = whole.bytes.len() as u32;
        let whole = Run::assembled(whole.bytes, spare, &run)?;
        Some(Some(Message { run: whole, start: 0, length, info: self.info }))
    }
}
