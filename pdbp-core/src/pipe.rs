//! The dynamic pipe pool: Pipe-Tab, GP-Pipe-Bind-Tab and MTA (S0; S1 §2.1).
//!
//! `DPP(ID, CPS, PPS, PipeM)`: public pipes in two groups, message (CPSM) and stream (CPSS), and private pipes (PPS). All are
//! one-directional and carry blocks, not bytes. A part gets a message pipe when it is registered, a stream pipe for the life
//! of each stream it sends, and a private pipe when it applies for one; each goes back when it is done. PipeM, the routing of
//! arrived blocks by these tables, is part of the [engine](crate::engine).

use managed::ManagedSlice;

use crate::id::{NodeId, PipeId, StreamNo};
use crate::routing::Slot;

/// The group of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PipeKind {
    /// Delivers to one part.
    #[default]
    Private,
    /// CPSM: takes messages of a part.
    Message,
    /// CPSS: takes one stream, bound to a private pipe at its destination.
    Stream,
}

/// A row of Pipe-Tab.
#[derive(Clone, Copy, Debug, Default)]
pub struct PipeEntry {
    kind: PipeKind,
    /// Local index of the part that has the pipe.
    holder: Option<u16>,
}

/// Why a pipe could not be had or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipeError {
    /// All pipes of the kind are in use; `0` is their number.
    NoneIdle(PipeKind, u16),
    /// The pipe is not bound: it was released before, or never bound.
    NotBound(PipeId),
    /// The part has a private pipe already.
    AlreadyBound(PipeId),
    /// There is no such part on this node.
    NoSuchPart(u16),
    /// The node is reached by a relay, which streams are not.
    Relayed(NodeId),
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
                write!(f, "the part has private pipe {} already; release it first", pipe.0)
            }
            Self::Relayed(node) => write!(
                f,
                "{node} is reached by a relay, and streams need a link: send messages, which may be longer than a block, or use \
                 direct routing"
            ),
            Self::NoSuchPart(part) => write!(f, "this node has no part {part}"),
        }
    }
}

impl core::error::Error for PipeError {}

/// Pipe-Tab and GP-Pipe-Bind-Tab of a node.
pub(crate) struct PipePool<'a> {
    pipes: ManagedSlice<'a, PipeEntry>,
    /// Local part index → its private pipe.
    bound: ManagedSlice<'a, Option<PipeId>>,
}

impl<'a> PipePool<'a> {
    /// The first `private` pipes are private, the next `message` for messages, the rest for streams.
    pub(crate) fn new(
        mut pipes: ManagedSlice<'a, PipeEntry>,
        bound: ManagedSlice<'a, Option<PipeId>>,
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
            *pipe = PipeEntry { kind, holder: None };
        }
        Self { pipes, bound }
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

    /// Takes a pipe back.
    pub(crate) fn give(&mut self, pipe: PipeId) -> Result<(), PipeError> {
        let holder = self.pipes.get_mut(pipe.0 as usize).and_then(|entry| entry.holder.take());
        holder.map(|_| ()).ok_or(PipeError::NotBound(pipe))
    }

    /// Takes back all pipes of a part.
    pub(crate) fn give_all(&mut self, part: u16) {
        for pipe in self.pipes.iter_mut().filter(|p| p.holder == Some(part)) {
            pipe.holder = None;
        }
        if let Some(bound) = self.bound.get_mut(part as usize) {
            *bound = None;
        }
    }

    /// `prcsApplyPipe`: binds a private pipe to a part.
    pub(crate) fn bind(&mut self, part: u16) -> Result<PipeId, PipeError> {
        match self.bound.get(part as usize) {
            None => return Err(PipeError::NoSuchPart(part)),
            Some(Some(pipe)) => return Err(PipeError::AlreadyBound(*pipe)),
            Some(None) => {}
        }
        let pipe = self.take(PipeKind::Private, part)?;
        if let Some(bound) = self.bound.get_mut(part as usize) {
            *bound = Some(pipe);
        }
        Ok(pipe)
    }

    /// `prcsReleasePipe`: gives the private pipe back.
    pub(crate) fn release(&mut self, pipe: PipeId) -> Result<(), PipeError> {
        let holder = match self.pipes.get(pipe.0 as usize) {
            Some(PipeEntry { kind: PipeKind::Private, holder: Some(part) }) => *part,
            _ => return Err(PipeError::NotBound(pipe)),
        };
        if let Some(bound) = self.bound.get_mut(holder as usize) {
            *bound = None;
        }
        self.give(pipe)
    }

    /// The private pipe of a part.
    pub(crate) fn of(&self, part: u16) -> Option<PipeId> {
        self.bound.get(part as usize).copied().flatten()
    }

    /// Number of the first public stream pipe.
    pub(crate) fn stream_base(&self) -> u16 {
        self.pipes.iter().position(|p| p.kind == PipeKind::Stream).unwrap_or(self.pipes.len()) as u16
    }

    /// Pipes in use and in all, of one kind.
    pub(crate) fn count(&self, kind: PipeKind) -> (u16, u16) {
        let of_kind = || self.pipes.iter().filter(|p| p.kind == kind);
        (of_kind().filter(|p| p.holder.is_some()).count() as u16, of_kind().count() as u16)
    }
}

/// A mapping tuple of MTA: a stream pipe of some node (PipeA) bound to a private pipe of this one (PipeB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamMapping {
    /// The source node; with `group` it names PipeA.
    pub source: NodeId,
    /// The stream pipe at the source.
    pub group: u16,
    /// `sno`, the number of the stream.
    pub number: StreamNo,
    /// `Pid`: local index of the receiving part.
    pub part: u16,
    /// PipeB.
    pub pipe: PipeId,
    /// Segment that comes next.
    pub segment: u32,
}

/// MTA as one node needs it: the streams that arrive here, by source node and stream pipe, so that a block of a stream finds
/// its private pipe in one step.
pub(crate) struct StreamMap<'a> {
    entries: ManagedSlice<'a, Option<StreamMapping>>,
    groups: usize,
}

impl<'a> StreamMap<'a> {
    pub(crate) fn new(entries: ManagedSlice<'a, Option<StreamMapping>>, groups: usize) -> Self {
        Self { entries, groups }
    }

    /// The entry of stream pipe `group` of the node with row `source`; `None` when there is no such pipe.
    pub(crate) fn entry(&mut self, source: Slot, group: u16) -> Option<&mut Option<StreamMapping>> {
        if group as usize >= self.groups {
            return None;
        }
        self.entries.get_mut(source.index() * self.groups + group as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StreamMapping> {
        self.entries.iter().flatten()
    }

    /// Removes the tuples of a part that is gone, or of a node that has failed.
    pub(crate) fn remove_if(&mut self, mut gone: impl FnMut(&StreamMapping) -> bool) {
        for entry in self.entries.iter_mut() {
            if entry.as_ref().is_some_and(&mut gone) {
                *entry = None;
            }
        }
    }
}
