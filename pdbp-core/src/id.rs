//! Identifiers. Every number that crosses a module boundary has a type of its own.

use core::fmt;

/// A compute node: its row in NTA (the table's column `Nid`) and its index in every matrix row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u16);

impl NodeId {
    /// The largest number of nodes in one communication domain.
    pub const MAX_NODES: usize = 0xFFFF;

    /// The node with index `index`; any `u16` but the last names a node.
    pub const fn new(index: u16) -> Option<Self> {
        if index == u16::MAX { None } else { Some(Self(index)) }
    }

    /// The index as a number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The wire form.
    pub const fn raw(self) -> u16 {
        self.0
    }

    pub(crate) const fn from_index(index: usize) -> Self {
        debug_assert!(index < Self::MAX_NODES);
        Self(index as u16)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}", self.0)
    }
}

/// A part (generalised process) of the cluster: the node that hosts it and its index there (`Pid` in PTA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId {
    node: NodeId,
    local: u16,
}

impl PartId {
    /// The local index that stands for "the set in the extension" in a CDU header.
    pub(crate) const MANY: u16 = u16::MAX;

    /// The local index of the node itself, which is no part: what is sent to it is for the engine.
    pub(crate) const NODE: u16 = u16::MAX - 1;

    /// Part `local` of `node`; the last `u16` is reserved.
    pub const fn new(node: NodeId, local: u16) -> Option<Self> {
        if local == Self::MANY { None } else { Some(Self { node, local }) }
    }

    /// The hosting node.
    pub const fn node(self) -> NodeId {
        self.node
    }

    /// The index on the hosting node.
    pub const fn local(self) -> u16 {
        self.local
    }

    /// The wire form: node in the upper, local index in the lower 16 bits.
    pub const fn raw(self) -> u32 {
        (self.node.0 as u32) << 16 | self.local as u32
    }

    /// The part whose wire form is `raw`, which [`raw`](Self::raw) has given.
    #[inline]
    pub(crate) const fn from_checked(raw: u32) -> Self {
        Self { node: NodeId((raw >> 16) as u16), local: raw as u16 }
    }

    /// Reads the wire form; `None` for reserved values.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match NodeId::new((raw >> 16) as u16) {
            Some(node) => Self::new(node, raw as u16),
            None => None,
        }
    }
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part{}@{}", self.local, self.node)
    }
}

/// A block of some node's UMB: the memory segment it lies in (one per node) and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    /// The node whose UMB holds the block.
    pub segment: NodeId,
    /// The block's index in that UMB.
    pub index: u32,
}

/// The number of a stream (`Sno`), unique among the streams that one node has opened.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNo(pub u32);

/// The master's term of office; messages of another epoch are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// A pipe of a node's pipe pool (`PN`): an index in Pipe-Tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PipeId(pub u16);

/// A point in time in nanoseconds since an origin that the host chooses. The core has no clock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// `nanos` later, saturating.
    #[must_use]
    pub const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds since `earlier`, or 0 when that lies in the future.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
