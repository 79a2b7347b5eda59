//! The dynamic pipe pool: Pipe-Tab, GP-Pipe-Bind-Tab and MTA (S0; S1 §2.1).
//!
//! `DPP(ID, CPS, PPS, PipeM)`: public pipes in two groups, message (CPSM) and stream (CPSS), and private pipes (PPS). All are
//! unidirectional and carry blocks, not bytes. A part gets a message pipe when it is registered, a stream pipe for the life of each
//! stream that it sends, and a private pipe when it applies for one; it returns each pipe when it no longer needs it. PipeM, which
//! routes arrived blocks by these tables, is part of the [engine](crate::engine).

mod streams;

use managed::ManagedSlice;

use crate::cdu::flag;
use crate::id::{NodeId, PartId, PipeId, StreamNo};
use crate::outbox::Ending;
use crate::umb::StreamTag;

pub(crate) use streams::StreamEntry;
pub use streams::StreamMapping;
pub(crate) use streams::{Relayed, Stage, StreamMap, StreamUse};

/// The group of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PipeKind {
    /// Delivers to one part.
    #[default]
    Private,
    /// CPSM: takes the messages of a part.
    Message,
    /// CPSS: takes one stream, bound to a private pipe at its destination.
    Stream,
}

/// A row of Pipe-Tab.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PipeEntry {
    kind: PipeKind,
    /// Number of the part that holds the pipe.
    holder: Option<u16>,
    /// For a stream pipe: its stream, and the stream's destination node.
    number: StreamNo,
    dest: Option<NodeId>,
    state: StreamState,
    sent: Sent,
    /// How the stream ends whose holder has returned the pipe. It becomes idle once nobody remains to be told of that.
    ending: Option<Ending>,
}

impl PipeEntry {
    fn free(&mut self) {
        (self.holder, self.ending) = (None, None);
    }
}

/// How much of a stream of this node has been submitted.
#[derive(Clone, Copy, Debug, Default)]
enum Sent {
    #[default]
    Nothing,
    /// All segments before `next`, to the part with number `part`.
    Some { part: u16, next: u32 },
    /// Everything, including the last segment.
    All,
}

/// The end of a stream whose writer did not send it, to be reported to the reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamEnd {
    pub(crate) number: StreamNo,
    pub(crate) segment: u32,
    /// Number of the sending part.
    pub(crate) source: u16,
    pub(crate) dest: PartId,
    pub(crate) ending: Ending,
}

/// State of an outgoing stream's route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StreamState {
    /// The stream has a route: a link, or a relay with room for it.
    #[default]
    Established,
    /// The relay has not yet reported whether it has room.
    Requested,
    /// The relay has no room for the stream, or has lost its link to the destination. Whatever it did not forward is lost.
    Stopped,
    /// The link that the stream leaves by has failed since the stream began, or the peer there was not a member. The reader has
    /// lost the stream, even if the link is up again.
    Disconnected,
}

/// Why a pipe could not be obtained or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipeError {
    /// All pipes of this kind are in use; the number is how many there are.
    NoneIdle(PipeKind, u16),
    /// The pipe is not bound: it was released earlier, or never bound.
    NotBound(PipeId),
    /// The part has a private pipe already.
    AlreadyBound(PipeId),
    /// This node has no such part.
    NoSuchPart(u16),
}

impl core::fmt::Display for PipeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoneIdle(kind, n) => {
                let name = match kind {
                    PipeKind::Private => "private",
                    PipeKind::Message => "message",
                    PipeKind::Stream => "stream",
                };
                write!(
                    f,
                    "all {n} {name} pipes of this node are in use; release one or configure more {name}_pipes"
                )
            }
            Self::NotBound(pipe) => {
                write!(f, "pipe {} is not bound; it may have been released before", pipe.0)
            }
            Self::AlreadyBound(pipe) => {
                write!(f, "the part already has private pipe {}; release it first", pipe.0)
            }
            Self::NoSuchPart(part) => write!(f, "this node has no part {part}"),
        }
    }
}

impl core::error::Error for PipeError {}

/// Maps a node's parts to slots in its tables: the lowest bits of a part's number. A reused slot holds a part with another number,
/// so look-ups compare whole numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartSlots {
    mask: u16,
}

impl PartSlots {
    /// Slots for `parts` parts, rounded up to a power of two.
    pub(crate) fn new(parts: u16) -> Self {
        Self { mask: u32::from(parts).next_power_of_two().wrapping_sub(1) as u16 }
    }

    /// Number of slots.
    pub(crate) fn count(self) -> u64 {
        u64::from(self.mask) + 1
    }

    /// Returns the slot of a part.
    #[inline]
    pub(crate) fn of(self, number: u16) -> usize {
        usize::from(number & self.mask)
    }
}

/// A row of GP-Pipe-Bind-Tab: a part of the node, by number, and its private pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    part: u16,
    pipe: PipeId,
}

/// Pipe-Tab and GP-Pipe-Bind-Tab of a node.
pub(crate) struct PipePool<'a> {
    pipes: ManagedSlice<'a, PipeEntry>,
    /// Indexed by the slots of parts.
    bound: ManagedSlice<'a, Option<Binding>>,
    places: PartSlots,
    /// Number of the first public stream pipe. Cached because each segment needs it.
    stream_base: u16,
}

impl<'a> PipePool<'a> {
    /// The first `private` pipes are private, the next `message` for messages, the rest for streams.
    pub(crate) fn new(
        mut pipes: ManagedSlice<'a, PipeEntry>,
        (bound, places): (ManagedSlice<'a, Option<Binding>>, PartSlots),
        private: u16,
        message: u16,
    ) -> Self {
        let (private, message) = (private as usize, message as usize);
        for (i, pipe) in pipes.iter_mut().enumerate() {
            let kind = match i {
                _ if i < private => PipeKind::Private,
                _ if i < private + message => PipeKind::Message,
                _ => PipeKind::Stream,
            };
            *pipe = PipeEntry { kind, ..PipeEntry::default() };
        }
        let stream_base = (private + message).min(pipes.len()) as u16;
        Self { pipes, bound, places, stream_base }
    }

    /// Gives an idle pipe of `kind` to a part.
    pub(crate) fn take(&mut self, kind: PipeKind, part: u16) -> Result<PipeId, PipeError> {
        let mut number = 0;
        for (i, pipe) in self.pipes.iter_mut().enumerate().filter(|(_, p)| p.kind == kind) {
            if pipe.holder.is_none() {
                pipe.holder = Some(part);
                return Ok(PipeId(i as u16));
            }
            number += 1;
        }
        Err(PipeError::NoneIdle(kind, number))
    }

    /// Records the stream that a stream pipe was taken for, with its destination node and the state of its route.
    pub(crate) fn begin_stream(
        &mut self,
        pipe: PipeId,
        (number, dest): (StreamNo, NodeId),
        state: StreamState,
    ) {
        if let Some(entry) = self.pipes.get_mut(pipe.0 as usize) {
            (entry.number, entry.dest, entry.state) = (number, Some(dest), state);
            entry.sent = Sent::Nothing;
        }
    }

    /// Records that a segment of a stream of this node was submitted.
    pub(crate) fn note_segment(&mut self, pipe: PipeId, tag: &StreamTag) {
        let entry = self.pipes.get_mut(pipe.0 as usize);
        if let Some(entry) = entry.filter(|entry| entry.holder.is_some() && entry.number == tag.number) {
            let (part, next) = (tag.dest.local(), StreamTag::after(tag.segment));
            entry.sent = if tag.flags & flag::LAST == 0 { Sent::Some { part, next } } else { Sent::All };
        }
    }

    /// Records that the holder of a stream pipe returns it, and how the stream ends if its last segment was not submitted.
    pub(crate) fn close_stream(
        &mut self,
        pipe: PipeId,
        number: StreamNo,
        ending: Ending,
    ) -> Result<(), PipeError> {
        let entry = self.pipes.get_mut(pipe.0 as usize).filter(|entry| entry.number == number);
        let entry = entry.filter(|entry| entry.holder.is_some() && entry.ending.is_none());
        entry.ok_or(PipeError::NotBound(pipe))?.ending = Some(ending);
        Ok(())
    }

    /// Whether a stream pipe was returned but is not idle yet.
    pub(crate) fn is_ending(&self, pipe: PipeId) -> bool {
        self.pipes.get(pipe.0 as usize).is_some_and(|entry| entry.ending.is_some())
    }

    /// Returns what to tell the reader of a stream whose pipe was returned. If nothing of the stream was sent, its last segment was
    /// sent, or its reader has lost it, there is nothing to tell, and the pipe becomes idle.
    pub(crate) fn ending(&mut self, pipe: PipeId) -> Option<StreamEnd> {
        let entry = self.pipes.get_mut(pipe.0 as usize)?;
        let ending = entry.ending?;
        if let Sent::Some { part, next } = entry.sent
            && matches!(entry.state, StreamState::Established | StreamState::Requested)
            && let (Some(source), Some(dest)) = (entry.holder, entry.dest)
            && let Some(dest) = PartId::new(dest, part)
        {
            return Some(StreamEnd { number: entry.number, segment: next, source, dest, ending });
        }
        entry.free();
        None
    }

    /// For a stream that is still open: its sender's number, its destination node, and the state of its route.
    pub(crate) fn stream(
        &mut self,
        pipe: PipeId,
        number: StreamNo,
    ) -> Option<(u16, NodeId, &mut StreamState)> {
        let entry = self.pipes.get_mut(pipe.0 as usize);
        let entry = entry.filter(|entry| entry.number == number && entry.ending.is_none())?;
        Some((entry.holder?, entry.dest?, &mut entry.state))
    }

    /// Records that the link by which streams leave for some nodes has failed.
    pub(crate) fn cut_streams(&mut self, to: impl Fn(NodeId) -> bool) {
        for entry in self.pipes.iter_mut().filter(|entry| entry.kind == PipeKind::Stream) {
            if entry.dest.is_some_and(&to) && entry.state != StreamState::Stopped {
                entry.state = StreamState::Disconnected;
            }
        }
    }

    pub(crate) fn stream_state(&self, pipe: PipeId, number: StreamNo) -> StreamState {
        let entry = self.pipes.get(pipe.0 as usize).filter(|entry| entry.number == number);
        entry.map_or(StreamState::Disconnected, |entry| entry.state)
    }

    /// Takes a pipe back.
    pub(crate) fn give(&mut self, pipe: PipeId) -> Result<(), PipeError> {
        let entry = self.pipes.get_mut(pipe.0 as usize).filter(|entry| entry.holder.is_some());
        entry.ok_or(PipeError::NotBound(pipe))?.free();
        Ok(())
    }

    /// Takes back all pipes of a part. Its stream pipes follow once their readers have been told.
    pub(crate) fn give_all(&mut self, part: u16) {
        for pipe in self.pipes.iter_mut().filter(|p| p.holder == Some(part)) {
            match pipe.kind {
                PipeKind::Stream => _ = pipe.ending.get_or_insert(Ending::Aborted),
                PipeKind::Private | PipeKind::Message => pipe.free(),
            }
        }
        self.unbind(part);
    }

    /// `prcsApplyPipe`: binds a private pipe to a part.
    pub(crate) fn bind(&mut self, part: u16) -> Result<PipeId, PipeError> {
        let place = self.places.of(part);
        match self.bound.get(place) {
            None => return Err(PipeError::NoSuchPart(part)),
            Some(Some(binding)) => return Err(PipeError::AlreadyBound(binding.pipe)),
            Some(None) => {}
        }
        let pipe = self.take(PipeKind::Private, part)?;
        if let Some(bound) = self.bound.get_mut(place) {
            *bound = Some(Binding { part, pipe });
        }
        Ok(pipe)
    }

    /// `prcsReleasePipe`: releases the private pipe.
    pub(crate) fn release(&mut self, pipe: PipeId) -> Result<(), PipeError> {
        let holder = match self.pipes.get(pipe.0 as usize) {
            Some(PipeEntry { kind: PipeKind::Private, holder: Some(part), .. }) => *part,
            _ => return Err(PipeError::NotBound(pipe)),
        };
        self.unbind(holder);
        self.give(pipe)
    }

    fn unbind(&mut self, part: u16) {
        if let Some(bound) = self.bound.get_mut(self.places.of(part)) {
            bound.take_if(|binding| binding.part == part);
        }
    }

    /// Number of the part that holds a pipe.
    pub(crate) fn holder(&self, pipe: PipeId) -> Option<u16> {
        self.pipes.get(pipe.0 as usize)?.holder
    }

    /// The private pipe of a part.
    #[inline]
    pub(crate) fn of(&self, part: u16) -> Option<PipeId> {
        let binding = self.bound.get(self.places.of(part))?.as_ref()?;
        (binding.part == part).then_some(binding.pipe)
    }

    /// Number of the first public stream pipe.
    pub(crate) fn stream_base(&self) -> u16 {
        self.stream_base
    }

    /// The stream pipe with number `group` in its group.
    #[inline]
    pub(crate) fn stream_pipe(&self, group: u16) -> PipeId {
        PipeId(self.stream_base.saturating_add(group))
    }

    /// Pipes in use, and the total, of one kind.
    pub(crate) fn count(&self, kind: PipeKind) -> (u16, u16) {
        let of_kind = || self.pipes.iter().filter(|p| p.kind == kind);
        (of_kind().filter(|p| p.holder.is_some()).count() as u16, of_kind().count() as u16)
    }
}
