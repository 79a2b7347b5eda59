//! Parts and their pipes: registration, lookup, binding.

use managed::ManagedSlice;

use super::nameless::Nameless;
use super::room::{RoomRequest, SentMessages};
use super::{Engine, Event, PrivatePipes};
use crate::agreement::Change;
use crate::id::{Address, NodeId, PartId, PipeId};
use crate::pipe::{PartSlots, PipeError, PipeKind};
use crate::policy::SpacePolicy;
use crate::tables::{LATE, Name, NameError, NodeEntry, PartEntry, PartKind};
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// The state of a part of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPart {
    /// There is no such part.
    #[default]
    Free,
    /// Waiting until all nodes know it.
    Pending,
    /// Known to all nodes.
    Registered,
    /// PTA had no room.
    Refused,
    /// Waiting until all nodes have forgotten it.
    Leaving,
}

/// A part of this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Local {
    pub(super) state: LocalPart,
    /// Its row of PTA, in case it must be registered anew.
    pub(super) entry: Option<PartEntry>,
    /// The message in segments that it is sending.
    pub(super) room_request: RoomRequest,
    /// The messages in segments that it has sent.
    pub(super) sent: SentMessages,
}

impl Local {
    /// Whether it is the part with this number.
    pub(super) fn is_of(&self, number: u16) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.id.local() == number)
    }
}

/// Why a part could not be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name is invalid.
    Name(NameError),
    /// This node already has a part of that name.
    Taken(Name),
    /// This node already hosts the maximum number of parts, which is this many.
    Full(u16),
    /// PTA has no room for the row for parts without a name, one per node that has such parts.
    NoRow,
    /// Too many requests are waiting for the master; try again after a poll.
    Busy,
}

impl core::fmt::Display for RegisterError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Name(e) => e.fmt(f),
            Self::Taken(name) => {
                write!(f, "this node already has a part named \"{name}\"; choose another name")
            }
            Self::Full(n) => write!(f, "this node hosts {n} parts, its maximum; configure more local_parts"),
            Self::NoRow => {
                f.write_str("the table of parts has no row left for this node's unnamed parts; give it one more row for each node that has any")
            }
            Self::Busy => f.write_str("too many registrations are waiting for the master; try again"),
        }
    }
}

impl core::error::Error for RegisterError {}

/// The parts of this node.
pub(super) struct Parts<'a> {
    local: ManagedSlice<'a, Local>,
    /// Maps part numbers to table slots.
    pub(super) places: PartSlots,
    /// The count from which the next part gets its id, and the count before this engine's first part.
    pub(super) registered: u64,
    pub(super) registered_before: u64,
    pub(super) nameless: Nameless,
    /// Whether all nodes know that this node's numbers are being reused.
    pub(super) recurrence_known: bool,
    /// The recurrence, and the number of parts forgotten, as last reported to the host.
    forgotten_reported: (u64, u64),
}

impl<'a> Parts<'a> {
    pub(super) fn new(mut local: ManagedSlice<'a, Local>, places: PartSlots) -> Self {
        local.fill_with(Local::default);
        Self {
            local,
            places,
            registered: 0,
            registered_before: 0,
            nameless: Nameless::new(),
            recurrence_known: false,
            forgotten_reported: (0, 0),
        }
    }

    /// The contents of a part's slot.
    pub(super) fn get(&self, number: u16) -> Option<&Local> {
        self.local.get(self.places.of(number))
    }

    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut Local> {
        self.local.get_mut(self.places.of(number))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Local> {
        self.local.iter_mut()
    }

    /// The row of PTA for the part in a slot.
    pub(super) fn entry(&self, place: u16) -> Option<&PartEntry> {
        self.local.get(usize::from(place))?.entry.as_ref()
    }

    /// The error when no slot is left for another part.
    pub(super) fn full(&self) -> RegisterError {
        RegisterError::Full(self.local.len() as u16)
    }

    /// Whether a part has this name, even if other nodes do not know it yet, or no longer.
    fn has_named(&self, name: &Name) -> bool {
        let is_there = |local: &Local| matches!(local.state, LocalPart::Pending | LocalPart::Registered);
        let mut entries = self.local.iter().filter(|local| is_there(local)).flat_map(|local| &local.entry);
        entries.any(|entry| entry.name == *name)
    }

    /// The first part in slot `from` or later that all nodes know, or knew.
    pub(super) fn next_known(&self, from: u16) -> Option<(u16, &PartEntry)> {
        let mut rest = self.local.iter().enumerate().skip(usize::from(from));
        rest.find_map(|(i, local)| match (local.state, &local.entry) {
            (LocalPart::Registered, Some(entry)) if !entry.id.is_nameless() => Some((i as u16, entry)),
            _ => None,
        })
    }

    /// The contents of a part's slot, provided that the part still has it.
    fn hosted(&self, part: PartId) -> Option<&Local> {
        let place = self.get(part.local())?;
        place.entry.as_ref().is_some_and(|entry| entry.id == part).then_some(place)
    }

    /// The contents of a part's slot, provided that it has not left.
    pub(super) fn active_mut(&mut self, part: PartId) -> Option<&mut Local> {
        let place = self.get_mut(part.local())?;
        let is_there = !matches!(place.state, LocalPart::Free | LocalPart::Leaving);
        (is_there && place.entry.as_ref().is_some_and(|entry| entry.id == part)).then_some(place)
    }

    /// Returns the id of the next part of `node`, and the number of parts before it. Any free slot would do; this takes them in
    /// turn.
    fn next_id(&self, node: NodeId) -> Option<(PartId, u64)> {
        let is_free =
            |count: &u64| self.get(*count as u16).is_some_and(|place| place.state == LocalPart::Free);
        // Numbers from there on are for parts without a name, or reserved.
        let named = |count: u64| if count as u16 >= PartId::NAMELESS { (count | 0xFFFF) + 1 } else { count };
        let from = |count: u64| {
            let mut counts = core::iter::successors(Some(named(count)), |count| Some(named(count + 1)));
            // Twice the number of slots: the next number of the only free slot may be one of those skipped.
            counts.by_ref().take(2 * self.places.count() as usize).find(is_free)
        };
        let mut count = from(self.registered)?;
        if count >> 16 > self.registered_before >> 16 && !self.recurrence_known {
            // Not until all nodes know that numbers are being reused. So far they know only numbers below these; all other parts
            // were refused.
            count = from(((count >> 16) - 1) << 16 | u64::from(LATE))?;
        }
        Some((PartId::counted(node, count)?, count))
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// `prcsReg`: registers a part under a name that is new on this node. Its id is valid at once; other nodes know it once
    /// [`local_part`](Self::local_part) returns [`Registered`](LocalPart::Registered).
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&mut self, name: &str, kind: PartKind) -> Result<PartId, RegisterError> {
        let name = Name::new(name).map_err(RegisterError::Name)?;
        let me = self.config.node;
        if self.tables.part_named(me, name.as_str()).is_some() || self.parts.has_named(&name) {
            return Err(RegisterError::Taken(name));
        }
        let (id, count) = self.parts.next_id(me).ok_or(self.parts.full())?;
        let entry = PartEntry { id, name, kind };
        self.request(Change::PartAdded(entry.clone())).map_err(|_| RegisterError::Busy)?;
        self.parts.registered = count + 1;
        // Every local part has a message pipe.
        let _ = self.pipes.take(PipeKind::Message, id.local());
        if let Some(place) = self.parts.get_mut(id.local()) {
            // Messages that the slot's previous part sent in segments may still have to be ended.
            (place.state, place.entry) = (LocalPart::Pending, Some(entry));
        }
        Ok(id)
    }

    /// `prcsFree`: removes a part, its pipes, the streams that it sends and those that arrive at it. The index is free again once
    /// all nodes have forgotten the part. A second call for the same part does nothing.
    ///
    /// # Errors
    /// [`RegisterError::Busy`]: too many requests are waiting for the master; call again after a poll.
    pub fn free(&mut self, part: PartId) -> Result<(), RegisterError> {
        let state = self.parts.hosted(part).map_or(LocalPart::Free, |local| local.state);
        if !matches!(state, LocalPart::Registered | LocalPart::Refused) {
            // A part that is still being announced is freed by a later call.
            return if state == LocalPart::Pending { Err(RegisterError::Busy) } else { Ok(()) };
        }
        let next = if part.is_nameless() {
            self.parts.nameless.on_removed();
            LocalPart::Free
        } else if state == LocalPart::Registered {
            self.request(Change::PartRemoved(part)).map_err(|_| RegisterError::Busy)?;
            LocalPart::Leaving
        } else {
            LocalPart::Free
        };
        self.pipes.give_all(part.local());
        self.has_broken_streams = true;
        self.streams.remove_if(|m| m.part == part.local());
        self.end_room(part, false);
        self.forget_rooms(part.local());
        self.leave_superstep(part);
        if let Some(place) = self.parts.get_mut(part.local()) {
            place.state = next;
        }
        Ok(())
    }

    /// Sets the generation, or a later one, of the ids of parts registered from now on. A restarted node calls this before it
    /// registers any part, with a higher number each time, so that ids of earlier parts are not reused. Does nothing if the
    /// generation has already passed.
    pub fn begin_generation(&mut self, generation: u32) {
        let first = u64::from(generation) << 16;
        if first > self.parts.registered {
            (self.parts.registered, self.parts.registered_before) = (first, first);
        }
    }

    /// Returns a part's slot in tables of this node's parts; always below [`Config::local_parts`](super::Config::local_parts).
    pub(crate) fn slot_of(&self, part: PartId) -> Option<usize> {
        self.parts.hosted(part).map(|_| self.parts.places.of(part.local()))
    }

    /// Refuses pipes to a part that is free or about to be: nothing would return them.
    pub(super) fn check_hosted(&self, part: PartId) -> Result<(), PipeError> {
        let state = self.parts.hosted(part).map_or(LocalPart::Free, |place| place.state);
        if matches!(state, LocalPart::Free | LocalPart::Leaving) {
            return Err(PipeError::NoSuchPart(part.local()));
        }
        Ok(())
    }

    /// Returns the state of the part with number `local` on this node; [`Free`](LocalPart::Free) if there is none.
    pub fn local_part(&self, local: u16) -> LocalPart {
        let place = self.parts.get(local);
        let place = place.filter(|place| place.is_of(local));
        place.map(|place| place.state).unwrap_or_default()
    }

    /// Whether the part is registered, to this node's knowledge. Nothing must be sent to a part that is not: the message would
    /// reach no part or, once [`recurrence`](Self::recurrence) is not 0, perhaps a different one. See [`PartId`].
    pub fn has_part(&self, part: PartId) -> bool {
        if part.node() == self.config.node {
            let state = self.parts.hosted(part).map(|place| place.state);
            return matches!(state, Some(LocalPart::Pending | LocalPart::Registered));
        }
        self.tables.has_part(part)
    }

    /// 0 while every part number still leads to the part it always did. Otherwise senders must check
    /// [`has_part`](Self::has_part), and this number grows whenever parts are forgotten: earlier results must then be looked up
    /// again. It stays 0 until a node has registered more than 32,768 parts, or has returned after it was out.
    /// [`Event::PartsForgotten`] reports each change.
    pub fn recurrence(&self) -> u64 {
        self.tables.recurrence()
    }

    /// Notifies the host of forgotten parts, before messages of the agreement leave.
    pub(super) fn report_forgotten(&mut self, pipes: &mut impl PrivatePipes) {
        let recurrence = self.tables.recurrence();
        let now = (recurrence, self.tables.forgotten);
        if core::mem::replace(&mut self.parts.forgotten_reported, now) != now {
            pipes.event(Event::PartsForgotten { recurrence });
        }
    }

    /// Returns the part that now has the address; `None` if this node knows of none.
    pub fn resolve(&self, address: Address) -> Option<PartId> {
        if address.node() == self.config.node {
            let place = self.parts.get(address.local())?;
            let id = place.entry.as_ref()?.id;
            return (id.address() == address && place.state != LocalPart::Free).then_some(id);
        }
        self.tables.part_at(address)
    }

    /// Returns the part with this name on a node, from the replica of PTA.
    pub fn lookup(&self, node: NodeId, name: &str) -> Option<&PartEntry> {
        self.tables.part_named(node, name).filter(|entry| entry.id.local() != PartId::NODE)
    }

    /// Returns the entry of a part in PTA.
    pub fn part(&self, id: PartId) -> Option<&PartEntry> {
        self.tables.part(id).filter(|_| id.local() != PartId::NODE)
    }

    /// Returns all parts of the cluster known to this node.
    pub fn parts(&self) -> impl Iterator<Item = &PartEntry> {
        self.tables.parts.iter().flatten().filter(|entry| entry.id.local() != PartId::NODE)
    }

    /// Returns the node with this name, from the replica of NTA.
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.tables.node_named(name)
    }

    /// Returns all nodes known to this node; complete once [`is_ready`](Self::is_ready).
    pub fn nodes(&self) -> impl Iterator<Item = &NodeEntry> {
        self.tables.nodes.iter().flatten()
    }

    /// `prcsApplyPipe`: binds a private pipe to a part of this node.
    ///
    /// # Errors
    /// See [`PipeError`].
    pub fn bind_pipe(&mut self, part: PartId) -> Result<PipeId, PipeError> {
        self.check_hosted(part)?;
        self.pipes.bind(part.local())
    }

    /// Returns the private pipe of a part of this node, if it has one.
    pub fn private_pipe(&self, part: PartId) -> Option<PipeId> {
        self.pipes.of(part.local()).filter(|_| part.node() == self.config.node)
    }

    /// `prcsReleasePipe`: releases a private pipe. Messages that arrive for its part are unroutable from now on.
    ///
    /// # Errors
    /// [`PipeError::NotBound`] if it was released before.
    pub fn release_pipe(&mut self, pipe: PipeId) -> Result<(), PipeError> {
        self.streams.remove_if(|m| m.pipe == pipe);
        let part = self.pipes.holder(pipe);
        self.pipes.release(pipe)?;
        if let Some(part) = part {
            self.forget_rooms(part);
        }
        Ok(())
    }
}
