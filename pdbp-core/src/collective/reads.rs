//! Long calls of members that can read each other's memory, such as processes of one host: each block is copied once, by who gets it, from where it is
//! to where it belongs.
//!
//! A call has two rounds. In the first one those that give write a note where their data is, and the others read it there. In the second one those
//! that have read write that they have, and nobody leaves before all have whom it gives something.
//!
//! | call | who writes first | and then |
//! |---|---|---|
//! | scatter | the root | all but the root |
//! | all_gather, all_to_all | all | all |
//!
//! Of the other calls each byte is copied as often by messages, but for those of a broadcast to many, a reduction or a gather, which the processors of
//! several members copy at a time there.

use super::noted::Writers;
use super::steps::{Plan, Span};
use super::{Call, Data, Kind};

/// From so many bytes in a block on.
const LONG: usize = 32 << 10;
/// From so many bytes on that the root of a scatter would copy for all.
const LONG_OF_ROOT: usize = 128 << 10;
/// Fewer members that all copy take no longer to copy each byte in and out of slots, which stay in caches: the system takes twice as long for a byte as they
/// do for a copy.
const FEWEST: usize = 5;
/// The most bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// A call at one member: in which round it is, and how far that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    plan: Plan,
    is_read: bool,
    is_over: bool,
    /// Members whose blocks are here, and bytes of the next one.
    members: usize,
    bytes: usize,
}

impl Call {
    /// How a member does the call by what it reads where others have it; `None` if members do not do so. It depends on the call and its
    /// arguments alone, which have been [checked](Call::check).
    pub fn reads(&self, members: usize, rank: usize) -> Option<Reads> {
        let pays = match self.kind {
            Kind::Scatter => self.bytes.saturating_mul(members.saturating_sub(1)) >= LONG_OF_ROOT,
            Kind::AllGather | Kind::AllToAll => members >= FEWEST,
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
    /// Who writes in this round; `None` when the call is done.
    pub fn writers(&self) -> Option<Writers> {
        match self.plan.kind {
            _ if self.is_over => None,
            Kind::Scatter if self.is_read => Some(Writers::AllBut(self.plan.root)),
            Kind::Scatter => Some(Writers::One(self.plan.root)),
            _ => Some(Writers::All),
        }
    }

    /// Whether something is read in this round.
    pub fn is_first_round(&self) -> bool {
        !self.is_read
    }

    /// Goes on to the next round, when all of this one was [read](Self::read).
    pub fn next_round(&mut self) {
        (self.is_read, self.is_over) = (true, self.is_read);
    }

    /// Reads the next piece of this round, in which all that write have written. `read` copies what begins at a byte of the input of a member. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// What `read` says.
    pub fn read<E>(
        &mut self,
        data: &mut Data<'_, '_>,
        read: impl FnOnce(usize, usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        while !self.is_read && self.members < self.plan.members {
            // Each begins with its own, and then with that of another one.
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

    /// What this member gets of one: where it is in the input there, and in the output here.
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
