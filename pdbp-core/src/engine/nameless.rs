//! Parts without a name. They do not each need a row of PTA, so nodes need not agree on them individually: a single row tells all
//! nodes that a node has such parts, and their generation.

use core::fmt::Write;

use super::parts::Parts;
use super::{Engine, LocalPart, RegisterError};
use crate::agreement::Change;
use crate::id::{NodeId, PartId};
use crate::pipe::PipeKind;
use crate::policy::SpacePolicy;
use crate::tables::{NAME, NODE_ROW, Name, NameError, PartEntry, PartKind};
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// A node's row for parts without a name, and which numbers have been used in its generation.
#[derive(Debug)]
pub(super) struct Nameless {
    /// State of the row.
    pub(super) state: LocalPart,
    generation: u32,
    /// The first number that no part of this generation has had.
    pub(super) next: u16,
    /// Number of such parts now.
    count: u16,
}

impl Nameless {
    pub(super) const fn new() -> Self {
        Self { state: LocalPart::Free, generation: 0, next: PartId::NAMELESS, count: 0 }
    }

    fn row(&self, node: NodeId) -> PartId {
        PartId::node_itself(node).in_generation(self.generation)
    }

    /// The row, if all nodes know it, or knew it before this node was expelled.
    pub(super) fn known_row(&self, node: NodeId) -> Option<PartEntry> {
        (self.state == LocalPart::Registered).then(|| entry(self.row(node))).and_then(Result::ok)
    }

    /// Notes that one of them is gone.
    pub(super) fn on_removed(&mut self) {
        self.count = self.count.saturating_sub(1);
    }
}

/// The entry for a part without a name, or for all of a node's.
fn entry(id: PartId) -> Result<PartEntry, NameError> {
    Ok(PartEntry { id, name: Name::new(NODE_ROW)?, kind: PartKind::Communication })
}

impl Parts<'_> {
    /// The next number of this generation whose slot is free.
    fn next_nameless(&self, node: NodeId) -> Option<PartId> {
        let mut numbers = self.remaining_numbers();
        let number = numbers.find(|n| self.get(*n).is_some_and(|place| place.state == LocalPart::Free))?;
        PartId::new(node, number).map(|id| id.in_generation(self.nameless.generation))
    }

    /// One number per slot, or as many as are left.
    fn remaining_numbers(&self) -> core::iter::Take<core::ops::Range<u16>> {
        (self.nameless.next..PartId::NODE).take(self.places.count() as usize)
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Adds a part without a name to this node. It cannot be looked up, and no other node is notified of it: it exists at once,
    /// and anyone who has its id may send to it, such as the parts that it has sent messages to. [`free`](Self::free) removes it,
    /// also at once. It takes a slot of [`local_parts`](crate::Config::local_parts), but no row of PTA.
    ///
    /// The first such part of a node waits until all nodes know the row that distinguishes ids of such parts from those of
    /// earlier parts. The same applies after every 16,382 of them, provided that none of those is left. While any is left,
    /// further ones are [registered](Self::register) under a name that nobody knows.
    ///
    /// # Errors
    /// [`RegisterError::Busy`]: call again after a poll. [`RegisterError::Full`]; [`RegisterError::NoRow`]: PTA has no room for
    /// the row.
    pub fn attach(&mut self) -> Result<PartId, RegisterError> {
        match self.parts.nameless.state {
            LocalPart::Registered => {}
            LocalPart::Free => return Err(self.request_row()),
            LocalPart::Refused => {
                self.parts.nameless.state = LocalPart::Free;
                return Err(RegisterError::NoRow);
            }
            LocalPart::Pending | LocalPart::Leaving => return Err(RegisterError::Busy),
        }
        let Some(id) = self.parts.next_nameless(self.config.node) else {
            return self.attach_next_generation();
        };
        let entry = entry(id).map_err(RegisterError::Name)?;
        (self.parts.nameless.next, self.parts.nameless.count) =
            (id.local() + 1, self.parts.nameless.count.saturating_add(1));
        // As for named parts.
        let _ = self.pipes.take(PipeKind::Message, id.local());
        if let Some(place) = self.parts.get_mut(id.local()) {
            (place.state, place.entry) = (LocalPart::Registered, Some(entry));
        }
        Ok(id)
    }

    /// As [`attach`](Self::attach), but only if that is possible at once, with a number never used in this generation, so that
    /// nothing has to be announced. `None` if it is not possible now, or never; `attach` tells which.
    pub fn attach_at_once(&mut self) -> Option<PartId> {
        let is_there = self.parts.nameless.state == LocalPart::Registered;
        let can = is_there && self.parts.next_nameless(self.config.node).is_some();
        if can { self.attach().ok() } else { None }
    }

    /// Returns the number of parts without a name on this node.
    pub fn nameless(&self) -> usize {
        self.parts.nameless.count.into()
    }

    /// Requests the row for a generation whose numbers have not been used.
    fn request_row(&mut self) -> RegisterError {
        let nameless = &mut self.parts.nameless;
        if nameless.count == 0 && nameless.next > PartId::NAMELESS {
            (nameless.generation, nameless.next) = (nameless.generation.wrapping_add(1), PartId::NAMELESS);
        }
        // At least the host's generation, in case the node was restarted.
        nameless.generation = nameless.generation.max((self.parts.registered_before >> 16) as u32);
        let row = entry(nameless.row(self.config.node));
        match row.map(|row| self.request(Change::PartAdded(row))) {
            Ok(Ok(())) => self.parts.nameless.state = LocalPart::Pending,
            Ok(Err(_)) => {}
            Err(error) => return RegisterError::Name(error),
        }
        RegisterError::Busy
    }

    /// Called when no number with a free slot is left.
    fn attach_next_generation(&mut self) -> Result<PartId, RegisterError> {
        let is_new = self.parts.nameless.next == PartId::NAMELESS;
        if is_new || self.parts.remaining_numbers().count() as u64 == self.parts.places.count() {
            return Err(self.parts.full());
        }
        if self.parts.nameless.count > 0 {
            let mut name = heapless::String::<NAME>::new();
            // The name fits.
            let _ = write!(name, "pdbp.part{}", self.parts.registered);
            return self.register(&name, PartKind::Communication);
        }
        let row = self.parts.nameless.row(self.config.node);
        if self.request(Change::PartRemoved(row)).is_ok() {
            self.parts.nameless.state = LocalPart::Leaving;
        }
        Err(RegisterError::Busy)
    }
}
