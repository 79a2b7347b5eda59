//! Identifiers. Every number that crosses a module boundary has its own type.

use core::fmt;

/// A compute node: its row in NTA (the column `Nid`), and its index in all matrix rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u16);

impl NodeId {
    /// The largest number of nodes in one communication domain.
    pub const MAX_NODES: usize = 0xFFFF;

    /// Returns the node with this index; every `u16` but the last is valid.
    #[inline]
    pub const fn new(index: u16) -> Option<Self> {
        if index == u16::MAX { None } else { Some(Self(index)) }
    }

    /// The index as a number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The wire format.
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

/// A part (generalised process) of the cluster (`Pid` in PTA): the node that hosts it, its number there, and the generation of that
/// number. Messages are addressed to it; a look-up returns it, and a message identifies its sender by it.
///
/// # An old id does not lead to a new part
/// A node counts the parts that it registers. The lower 16 bits of the count are the part's *number*, the only part of the id that
/// travels with messages. The upper 32 bits are its *generation*, which PTA records. The lowest bits of the number are the part's
/// slot in the tables of its node, whose size *c* is [`Config::local_parts`](crate::Config::local_parts) rounded up to a power of
/// two. So each reuse of a slot comes with a different number, until 65,536 / *c* parts have used it.
///
/// * **Messages in flight** to a part that is gone find its slot empty, or occupied by another number, and are unroutable. (The
///   exception: while a message is in flight, its slot is reused so often that the number recurs. A *c* larger than needed makes
///   this more likely.)
/// * **Ids held by programs** are compared in full with the replica of PTA before anything is sent ([`Engine::has_part`]). A part
///   is gone from the replicas of all live nodes before its slot is reused. So a node that still has the part in its replica sends
///   to that part or to nobody, and a node that no longer has it refuses the id, whatever has become of its number.
/// * **A node that was cut off meanwhile** and holds old ids neither sends nor receives until it is a member again, and it gets a
///   new PTA before that. Anything it sent earlier belongs to link sessions that are over.
/// * **A restarted node** has lost its count, so its host must give it a generation that it has not used before
///   ([`Engine::begin_generation`]).
///
/// * **Parts without a name** ([`Engine::attach`]) use the last quarter of the numbers, each once per generation. Their generations
///   are separate: that of the PTA row which announces that the node has such parts. A new generation, with another row, begins
///   when its numbers are used up and no such part is left; all nodes have the row before the first part of the generation exists.
///
/// The comparison costs a search, and while no number can have recurred it finds nothing that the number alone does not show.
/// [`Engine::recurrence`] reports from when on it is needed.
///
/// [`Engine::attach`]: crate::Engine::attach
/// [`Engine::has_part`]: crate::Engine::has_part
/// [`Engine::begin_generation`]: crate::Engine::begin_generation
/// [`Engine::recurrence`]: crate::Engine::recurrence
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(
    /// Node, number and generation, from the highest bits down: ids are compared for each message, as one word.
    u64,
);

const _: () = assert!(size_of::<PartId>() == 8);

impl PartId {
    /// The number that means "the set in the extension" in a CDU header.
    pub(crate) const MANY: u16 = u16::MAX;

    /// The number that means the node itself rather than a part; messages to it are for the engine.
    pub(crate) const NODE: u16 = u16::MAX - 1;

    /// The numbers from here up to, but not including, [`NODE`](Self::NODE) are those of parts without a name.
    pub(crate) const NAMELESS: u16 = 0xC000;

    /// Number `local` of `node`, in generation 0; `None` for the reserved numbers.
    #[inline]
    pub const fn new(node: NodeId, local: u16) -> Option<Self> {
        if local >= Self::NODE {
            None
        } else {
            Some(Self::from_checked((node.0 as u32) << 16 | local as u32))
        }
    }

    /// As [`new`](Self::new), or the [node itself](Self::node_itself).
    pub(crate) const fn or_node(node: NodeId, local: u16) -> Option<Self> {
        if local == Self::NODE { Some(Self::node_itself(node)) } else { Self::new(node, local) }
    }

    /// The part that `node` registers after `count` others, over all generations; `None` for a reserved number.
    pub(crate) const fn counted(node: NodeId, count: u64) -> Option<Self> {
        match Self::new(node, count as u16) {
            Some(part) => Some(part.in_generation((count >> 16) as u32)),
            None => None,
        }
    }

    /// The id that stands for a node among parts.
    pub(crate) const fn node_itself(node: NodeId) -> Self {
        Self::from_checked((node.0 as u32) << 16 | Self::NODE as u32)
    }

    /// The same number in another generation.
    #[must_use]
    #[inline]
    pub const fn in_generation(self, generation: u32) -> Self {
        Self(self.0 & !(u32::MAX as u64) | generation as u64)
    }

    /// The hosting node.
    #[inline]
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> 48) as u16)
    }

    /// The number on the hosting node.
    #[inline]
    pub const fn local(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Whether this is a part without a name ([`Engine::attach`](crate::Engine::attach)), which is not in the tables.
    #[inline]
    pub const fn is_nameless(self) -> bool {
        Self::NAMELESS <= self.local() && self.local() < Self::NODE
    }

    /// The form used in messages.
    #[inline]
    pub const fn address(self) -> Address {
        Address { node: self.node(), local: self.local() }
    }

    /// How often the node's numbers have wrapped around. 0 for an id taken from a message, which carries only the number;
    /// [`Engine::resolve`](crate::Engine::resolve) finds the full id.
    pub const fn generation(self) -> u32 {
        self.0 as u32
    }

    /// The form used in messages: the node in the upper 16 bits, the number in the lower 16, without the generation.
    #[inline]
    pub const fn raw(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The part whose form in messages is `raw`, as returned by [`raw`](Self::raw).
    #[inline]
    pub(crate) const fn from_checked(raw: u32) -> Self {
        Self((raw as u64) << 32)
    }

    /// Parses the form used in messages; `None` for reserved values.
    #[inline]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match NodeId::new((raw >> 16) as u16) {
            Some(node) => Self::new(node, raw as u16),
            None => None,
        }
    }

    /// The id as a plain value, to be stored or passed on: the generation in the upper 32 bits, then node and number with 16 bits
    /// each.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.0.rotate_left(32)
    }

    /// Parses a plain value; `None` for reserved ones. Says nothing of whether there is such a part:
    /// [`Engine::has_part`](crate::Engine::has_part) does, and `Part::check` of `pdbp`.
    #[inline]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match Self::from_raw(bits as u32) {
            Some(part) => Some(part.in_generation((bits >> 32) as u32)),
            None => None,
        }
    }
}

/// A part as it appears in messages: node and number, without the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    node: NodeId,
    local: u16,
}

impl Address {
    /// Number `local` of `node`; `None` for the reserved numbers.
    pub const fn new(node: NodeId, local: u16) -> Option<Self> {
        if local >= PartId::NODE { None } else { Some(Self { node, local }) }
    }

    /// The hosting node.
    pub const fn node(self) -> NodeId {
        self.node
    }

    /// The number on the hosting node.
    pub const fn local(self) -> u16 {
        self.local
    }

    /// The part with this number in the given generation.
    #[inline]
    pub const fn in_generation(self, generation: u32) -> PartId {
        PartId::from_checked((self.node.0 as u32) << 16 | self.local as u32).in_generation(generation)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part{}@{}", self.local, self.node)
    }
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, local) = (self.node(), self.local());
        match self.generation() {
            0 => write!(f, "part{local}@{node}"),
            generation => write!(f, "part{local}.{generation}@{node}"),
        }
    }
}

impl fmt::Debug for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartId({self})")
    }
}

/// A block of some node's UMB: its memory segment (one per node) and its index in that segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    /// The node whose UMB holds the block.
    pub segment: NodeId,
    /// The block's index in that UMB.
    pub index: u32,
}

/// The number of a stream (`Sno`), unique among the streams that one node opens.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNo(pub u32);

/// The master's term; messages of another epoch are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// A pipe of a node's pipe pool (`PN`): an index in Pipe-Tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PipeId(pub u16);

/// A point in time, in nanoseconds since an origin that the host chooses. The core has no clock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// `nanos` later, saturating.
    #[must_use]
    pub const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds since `earlier`, or 0 if `earlier` is later than `self`.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Plain values map one to one to ids, except those with a reserved node or number.
        #[test]
        fn ids_are_plain_values_and_back(bits in any::<u64>()) {
            let reserved = bits as u16 >= PartId::NODE || (bits >> 16) as u16 == u16::MAX;
            let part = PartId::from_bits(bits);
            prop_assert_eq!(part.is_none(), reserved);
            prop_assert_eq!(PartId::from_bits(bits | 0xFFFF), None);
            prop_assert_eq!(PartId::from_bits(bits & !1 | 0xFFFE), None, "messages to a node itself are for its engine");
            prop_assert_eq!(PartId::from_bits(bits | 0xFFFF_0000), None);
            let Some(part) = part else { return Ok(()) };
            prop_assert_eq!(part.to_bits(), bits);
            prop_assert_eq!(PartId::from_raw(part.raw()), Some(part.in_generation(0)));
        }

        /// Different counts give different ids, and equal numbers are a multiple of 65,536 counts apart.
        #[test]
        fn no_two_parts_of_a_node_have_one_id(node in 0..u16::MAX, count in 0..1u64 << 47, later in 1..1u64 << 20) {
            let part = |count| PartId::counted(NodeId(node), count);
            let (Some(first), Some(second)) = (part(count), part(count + later)) else { return Ok(()) };
            prop_assert_ne!(first, second);
            prop_assert_eq!(first.local() == second.local(), later.is_multiple_of(1 << 16));
            prop_assert_eq!(u64::from(second.generation()) << 16 | u64::from(second.local()), count + later);
        }
    }

    #[test]
    fn an_id_is_shown_with_its_generation_when_it_is_not_the_first() {
        let part = PartId::counted(NodeId(7), 5).unwrap();
        assert_eq!(format!("{part}, {}", part.in_generation(3)), "part5@node7, part5.3@node7");
    }
}
