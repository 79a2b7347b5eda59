//! A wrapper that keeps the latest operations and completions of a transport.
//!
//! ```
//! use pdbp_core::umb::HeapMemory;
//! use pdbp_core::{Arrival, Transport};
//! use pdbp_local::Local;
//! use pdbp_sim::tracer::{Tracer, What};
//!
//! let memories: Vec<_> = (0..2).filter_map(|_| HeapMemory::new(4096)).collect();
//! let end = Local::network(&memories, Arrival::InPlace, 1024, 4).remove(0);
//! let mut end = Tracer::new(end, 100);
//! // The other end was dropped, and that is what the first poll reports.
//! end.poll_completion();
//! assert!(end.trace().any(|record| record.what == What::PeerFailed));
//! println!("{end}");
//! ```

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::{Capabilities, Completion, Op, Reason, Refused, Transport};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// [`Op::Send`] was accepted.
    Send,
    /// [`Op::Recv`] was accepted.
    Recv,
    /// [`Op::Return`] was accepted.
    Return,
    /// An operation was refused as busy.
    Busy,
    /// An operation was refused because its peer has failed or does not exist.
    Gone,
    /// An operation was refused for another reason.
    Refused,
    /// [`Completion::Sent`].
    Sent,
    /// [`Completion::Received`].
    Received,
    /// [`Completion::Failed`].
    Failed,
    /// [`Completion::Unused`].
    Unused,
    /// [`Completion::PeerFailed`].
    PeerFailed,
    /// [`Completion::PeerRestored`].
    PeerRestored,
}

/// One recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Reading of the clock.
    pub at: u64,
    /// What happened.
    pub what: What,
    /// The other node.
    pub peer: NodeId,
    /// The block, except for [`What::PeerFailed`] and [`What::PeerRestored`].
    pub block: Option<BlockId>,
    /// Bytes of header and body; 0 for a vacant block.
    pub length: usize,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, what, peer, block, length } = self;
        write!(f, "{at:>12} {:<10} {peer}", format!("{what:?}"))?;
        match block {
            Some(BlockId { segment, index }) => write!(f, " block {index} of {segment}, {length} bytes"),
            None => Ok(()),
        }
    }
}

/// A transport that records its activity in a ring of the latest records.
pub struct Tracer<T> {
    inner: T,
    clock: Box<dyn FnMut() -> u64 + Send>,
    records: VecDeque<Record>,
    most: usize,
    lost: u64,
}

impl<T: Transport> Tracer<T> {
    /// Records the last `most` events of `inner`. They are numbered from 0; [`with_clock`](Self::with_clock) gives them times
    /// instead.
    pub fn new(inner: T, most: usize) -> Self {
        let mut number = 0..;
        Self::with_clock(inner, most, move || number.next().unwrap_or(u64::MAX))
    }

    /// As [`new`](Self::new); `clock` is read for each record.
    pub fn with_clock(inner: T, most: usize, clock: impl FnMut() -> u64 + Send + 'static) -> Self {
        Self { inner, clock: Box::new(clock), records: VecDeque::new(), most, lost: 0 }
    }

    /// The records, oldest first.
    pub fn trace(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    /// Number of records that had to make room for newer ones.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The wrapped transport.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn record(&mut self, what: What, (peer, block, length): (NodeId, Option<BlockId>, usize)) {
        if self.most == 0 {
            self.lost += 1;
            return;
        }
        if self.records.len() == self.most {
            self.records.pop_front();
            self.lost += 1;
        }
        let at = (self.clock)();
        self.records.push_back(Record { at, what, peer, block, length });
    }
}

impl<T> fmt::Display for Tracer<T> {
    /// Writes a line per record.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lost > 0 {
            writeln!(f, "({} records before these)", self.lost)?;
        }
        self.records.iter().try_for_each(|record| writeln!(f, "{record}"))
    }
}

impl<T: Transport> Transport for Tracer<T> {
    type Error = T::Error;
    pdbp_core::forward_links!(inner);

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<T::Error>> {
        let (accepted, subject) = match &op {
            Op::Send { peer, block } => (What::Send, (*peer, Some(block.id()), block.bytes().len())),
            Op::Recv { peer, block } => (What::Recv, (*peer, Some(block.id()), 0)),
            Op::Return { peer, block } => (What::Return, (*peer, Some(block.id()), block.bytes().len())),
        };
        let outcome = self.inner.submit(op);
        let what = match &outcome {
            Ok(()) => accepted,
            Err(Refused { reason: Reason::Busy, .. }) => What::Busy,
            Err(Refused { reason: Reason::PeerFailed, .. }) => What::Gone,
            Err(_) => What::Refused,
        };
        self.record(what, subject);
        outcome
    }

    fn poll_completion(&mut self) -> Option<Completion<T::Error>> {
        let completion = self.inner.poll_completion()?;
        let (what, subject) = match &completion {
            Completion::Sent { peer, block } => (What::Sent, (*peer, Some(block.id()), block.bytes().len())),
            Completion::Received { peer, block } => {
                (What::Received, (*peer, Some(block.id()), block.bytes().len()))
            }
            Completion::Failed { peer, block } => {
                (What::Failed, (*peer, Some(block.id()), block.bytes().len()))
            }
            Completion::Unused { peer, block } => (What::Unused, (*peer, Some(block.id()), 0)),
            Completion::PeerFailed { peer, .. } => (What::PeerFailed, (*peer, None, 0)),
            Completion::PeerRestored { peer, .. } => (What::PeerRestored, (*peer, None, 0)),
        };
        self.record(what, subject);
        Some(completion)
    }
}
