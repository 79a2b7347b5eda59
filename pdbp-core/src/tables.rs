//! NTA and PTA, the tables of nodes and parts, of which every node has a replica (S0; SPEC §1).
//!
//! The master (node 0) puts the changes of PTA in one order and distributes them; a change is confirmed to whoever asked for
//! it once every live node has applied it (see [`engine`](crate::engine)).

use managed::ManagedSlice;

use crate::id::{NodeId, PartId};

/// Longest name of a node or part in bytes.
pub const NAME: usize = 40;

/// A name of up to [`NAME`] bytes without `@`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(heapless::String<NAME>);

/// A name that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameError {
    /// No characters.
    Empty,
    /// More than [`NAME`] bytes; this many.
    TooLong(usize),
    /// Has an `@`, which separates part and node.
    At,
}

impl core::fmt::Display for NameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Empty => f.write_str("the name is empty; give at least one character"),
            Self::TooLong(n) => write!(f, "the name has {n} bytes; at most {NAME} are allowed"),
            Self::At => f.write_str("the name contains '@', which separates part and node in an address"),
        }
    }
}

impl core::error::Error for NameError {}

impl Name {
    /// Checks and takes over a name.
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.contains('@') {
            return Err(NameError::At);
        }
        name.try_into().map(Self).map_err(|_| NameError::TooLong(name.len()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl core::fmt::Display for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `Ntype` of NTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Hosts parts.
    Compute,
    /// Hosts parts and orders the changes of the tables.
    Master,
}

/// A row of NTA. (`Nip`, the address, is the transport's business: it knows nodes by their index.)
#[derive(Clone, Debug)]
pub struct NodeEntry {
    /// `Nid`.
    pub id: NodeId,
    /// `Nname`.
    pub name: Name,
    /// `Ntype`.
    pub kind: NodeKind,
    /// Whether its link has been reported failed.
    pub failed: bool,
}

/// `Ptype` of PTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// A normal part (NGP).
    Cpu,
    /// A part that works on a GPU (SGP).
    Gpu,
    /// A part that serves communication.
    Communication,
}

/// A row of PTA.
#[derive(Clone, Debug)]
pub struct PartEntry {
    /// `Pid`.
    pub id: PartId,
    /// `Pname`.
    pub name: Name,
    /// `Ptype`.
    pub kind: PartKind,
}

/// A node's replica of NTA and PTA.
pub(crate) struct Tables<'a> {
    pub(crate) nodes: ManagedSlice<'a, Option<NodeEntry>>,
    pub(crate) parts: ManagedSlice<'a, Option<PartEntry>>,
}

impl Tables<'_> {
    /// The node with a name.
    pub(crate) fn node_named(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().flatten().find(|n| n.name.as_str() == name).map(|n| n.id)
    }

    /// The part with a name on a node.
    pub(crate) fn part_named(&self, node: NodeId, name: &str) -> Option<&PartEntry> {
        self.parts.iter().flatten().find(|p| p.id.node() == node && p.name.as_str() == name)
    }

    pub(crate) fn part(&self, id: PartId) -> Option<&PartEntry> {
        self.parts.iter().flatten().find(|p| p.id == id)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.parts.iter().any(Option::is_none)
    }

    pub(crate) fn insert(&mut self, entry: PartEntry) {
        let same = self.parts.iter().position(|p| p.as_ref().is_some_and(|p| p.id == entry.id));
        let place = same.or_else(|| self.parts.iter().position(Option::is_none));
        if let Some(slot) = place.and_then(|i| self.parts.get_mut(i)) {
            *slot = Some(entry);
        }
    }

    pub(crate) fn remove(&mut self, id: PartId) {
        for slot in self.parts.iter_mut().filter(|p| p.as_ref().is_some_and(|p| p.id == id)) {
            *slot = None;
        }
    }
}
