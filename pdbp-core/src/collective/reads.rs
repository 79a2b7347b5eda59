//! Long calls of members that can read each other's memory, such as processes on one host. Each block is copied once, by its
//! receiver, from its source to its destination.
//!
//! A call has two rounds. In the first, the senders write a note that locates their data, and the others read the data there. In
//! the second, the readers write that they have finished; no member leaves before all its readers have.
//!
//! | call | who writes first | and then |
//! |---|---|---|
//! | scatter | the root | all but the root |
//! | all_gather, all_to_all | all | all |
//!
//! Every other call copies each byte just as rarely by messages, except a broadcast to many, a reduction or a gather; in these, the
//! processors of several members copy at the same time.

use super::notes::Writers;
use super::steps::{Plan, Span};
use super::{Call, Data, Kind};

/// Minimum length of a block in bytes.
const LONG: usize = 32 << 10;
/// Minimum number of bytes that the root of a scatter would otherwise copy for all.
const LONG_OF_ROOT: usize = 128 << 10;
/// With fewer members that all copy, copying each byte into and out of cached slots takes no longer: the system call needs twice as
/// long per byte as a plain copy.
const MIN_MEMBERS: usize = 5;
/// Maximum bytes read at a time.
const PIECE: usize = 1 << 20;

/// The state of a call at one member: the round, and the progress within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    plan: Plan,
    is_read: bool,
    is_over: bool,
    /// Number of members whose blocks have been read, and of bytes read of the next block.
    members: usize,
    bytes: usize,
}

impl Call {
    /// Returns how a member performs the call by reading other members' memory; `None` if members do not. Depends only on the call
    /// and its arguments, which must have been [checked](Call::check).
    pub fn reads(&self, members: usize, rank: usize) -> Option<Reads> {
        let pays = match self.kind {
            Kind::Scatter => self.bytes.saturating_mul(members.saturating_sub(1)) >= LONG_OF_ROOT,
            Kind::AllGather | Kind::AllToAll => members >= MIN_MEMBERS,
            _ => false,
        };
        let plan = Plan {
            kind: self.kind,
            members,
            rank,
            root: self.root,
            bytes: self.bytes,
            unit: self.element.size(),
        };
        let reads = Reads { plan, is_read: false, is_over: false, members: 0, bytes: 0 };
        (pays && self.bytes >= LONG).then_some(reads)
    }
}

impl Reads {
    /// Returns the members that write in this round; `None` once the call is done.
    pub fn writers(&self) -> Option<Writers> {
        match self.plan.kind {
            _ if self.is_over => None,
            Kind::Scatter if self.is_read => Some(Writers::AllBut(self.plan.root)),
            Kind::Scatter => Some(Writers::One(self.plan.root)),
            _ => Some(Writers::All),
        }
    }

    /// Whether anything is read in this round.
    pub fn is_first_round(&self) -> bool {
        !self.is_read
    }

    /// Moves on to the next round, once everything in this one has been [read](Self::read).
    pub fn next_round(&mut self) {
        (self.is_read, self.is_over) = (true, self.is_read);
    }

    /// Reads the next piece of this round, whose writers must all have written. `read` copies from a byte offset in a member's
    /// input. Returns whether there was a piece.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn read<E>(
        &mut self,
        data: &mut Data<'_, '_>,
        read: impl FnOnce(usize, usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        while !self.is_read && self.members < self.plan.members {
            // Each member begins with its own block, then continues with the next member's.
            let from = (self.plan.rank + self.members) % self.plan.members;
            let (at, into) = self.block(from);
            let start = into.start + self.bytes;
            let end = into.end.min(start + PIECE);
            // Lengths were checked before.
            if let Some(into) = data.output.get_mut(start..end).filter(|into| !into.is_empty()) {
                let at = at + self.bytes;
                self.bytes += into.len();
                if from != self.plan.rank {
                    read(from, at, into)?;
                } else if let Some(own) = data.input.get(at..at + into.len()) {
                    into.copy_from_slice(own);
                }
                return Ok(true);
            }
            (self.members, self.bytes) = (self.members + 1, 0);
        }
        Ok(false)
    }

    /// Returns what this member gets from another: the offset in that member's input, and the span in its own output.
    fn block(&self, from: usize) -> (usize, Span) {
        let Plan { kind, rank, root, .. } = self.plan;
        match kind {
            Kind::Scatter if from == root => (self.plan.block(rank).start, self.plan.whole()),
            Kind::Scatter => (0, Span::new(0, 0)),
            Kind::AllToAll => (self.plan.block(rank).start, self.plan.block(from)),
            _ => (0, self.plan.block(from)),
        }
    }
}
