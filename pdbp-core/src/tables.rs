//! NTA and PTA, the tables of nodes and parts, replicated on every node (S0; SPEC §1).
//!
//! The primary master orders and distributes their changes. A change is confirmed to the node that requested it once every live
//! node has applied it (see [`agreement`](crate::agreement)).

use managed::ManagedSlice;

use crate::agreement::{Change, Replica};
use crate::id::{Address, NodeId, PartId};

/// Maximum bytes of a node's or part's name.
pub const NAME: usize = 40;

/// A name of up to [`NAME`] bytes without `@` and without characters that act on the terminals and logs that show it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(heapless::String<NAME>);

/// A name that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    Empty,
    /// It has more than [`NAME`] bytes; the number is its length.
    TooLong(usize),
    /// It contains an `@`, which separates part and node.
    At,
    /// It contains this character, which is not shown: it moves a terminal's cursor, ends a line, or reverses the text around it.
    Control(char),
}

impl core::fmt::Display for NameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Empty => f.write_str("the name is empty; give at least one character"),
            Self::TooLong(n) => write!(f, "the name has {n} bytes; at most {NAME} are allowed"),
            Self::At => f.write_str("the name contains '@', which separates part and node in an address"),
            Self::Control(c) => write!(
                f,
                "the name contains the control character {}, which acts on terminals and logs; leave it out",
                c.escape_unicode()
            ),
        }
    }
}

impl core::error::Error for NameError {}

impl Name {
    /// Checks and copies a name.
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
        if let Some(c) = name.chars().find(|c| is_control(*c)) {
            return Err(NameError::Control(c));
        }
        name.try_into().map(Self).map_err(|_| NameError::TooLong(name.len()))
    }

    /// The default name of a node, such as `node3`.
    pub fn of_node(node: NodeId) -> Self {
        let mut name = heapless::String::new();
        // "node" and five digits fit.
        let _ = core::fmt::Write::write_fmt(&mut name, format_args!("{node}"));
        Self(name)
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

/// Whether a terminal or log obeys the character instead of showing it: besides Unicode's control characters those that separate lines
/// and paragraphs, and those that set the direction of text.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// `Ntype` of NTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Hosts parts.
    Compute,
    /// Hosts parts and orders the changes of the tables.
    Master,
}

/// A row of NTA. (The address `Nip` is left to the transport, which knows nodes by their index.)
#[derive(Clone, Debug)]
pub struct NodeEntry {
    /// `Nid`.
    pub id: NodeId,
    /// `Nname`.
    pub name: Name,
    /// `Ntype`.
    pub kind: NodeKind,
    /// Whether its link has failed.
    pub failed: bool,
    /// Identifies the process in the node's place: of two successive processes, the later has the greater number. 0 if a place
    /// belongs to one process permanently.
    pub life: u64,
}

/// `Ptype` of PTA, which other nodes see in the tables. It does not affect how the part is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// A normal part (NGP).
    Cpu,
    /// A part that uses a GPU (SGP).
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

/// The name of a PTA row that is no part. It tells all nodes that a node has parts without a name, and their generation
/// ([`Engine::attach`](crate::Engine::attach)). Its number is that of the node itself.
pub(crate) const NODE_ROW: &str = "pdbp.nameless";

/// A node's replica of NTA and PTA.
pub(crate) struct Tables<'a> {
    pub(crate) nodes: ManagedSlice<'a, Option<NodeEntry>>,
    pub(crate) parts: ManagedSlice<'a, Option<PartEntry>>,
    /// Whether a number may refer to a different part than it once did.
    recurring: bool,
    /// How often parts were forgotten.
    pub(crate) forgotten: u64,
}

/// A part with this number or a higher one shows that its node's numbers are about to wrap around. All nodes know such a part
/// before the numbers do wrap.
pub(crate) const LATE: u16 = 1 << 15;

/// Whether the existence of this part means that its node's numbers have wrapped around, or are about to.
pub(crate) const fn recurs(part: PartId) -> bool {
    part.generation() > 0 || (LATE <= part.local() && part.local() < PartId::NODE)
}

impl<'a> Tables<'a> {
    pub(crate) fn new(
        nodes: ManagedSlice<'a, Option<NodeEntry>>,
        parts: ManagedSlice<'a, Option<PartEntry>>,
    ) -> Self {
        Self { nodes, parts, recurring: false, forgotten: 0 }
    }

    /// Returns 0 while no number refers to a different part than it once did; otherwise, a number that grows whenever parts are
    /// forgotten.
    #[inline]
    pub(crate) fn recurrence(&self) -> u64 {
        if self.recurring { 1 + self.forgotten } else { 0 }
    }

    /// The node with this name.
    pub(crate) fn node_named(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().flatten().find(|n| n.name.as_str() == name).map(|n| n.id)
    }

    /// The part with this name on a node.
    pub(crate) fn part_named(&self, node: NodeId, name: &str) -> Option<&PartEntry> {
        self.parts.iter().flatten().find(|p| p.id.node() == node && p.name.as_str() == name)
    }

    pub(crate) fn part(&self, id: PartId) -> Option<&PartEntry> {
        self.parts.iter().flatten().find(|p| p.id == id)
    }

    /// The part at an address.
    pub(crate) fn part_at(&self, address: Address) -> Option<PartId> {
        let part = address.in_generation(0);
        if part.is_nameless() {
            return Some(part.in_generation(self.nameless(address.node())?));
        }
        self.parts.iter().flatten().map(|p| p.id).find(|id| id.address() == address)
    }

    /// Whether a part of another node is registered, or may exist without a name.
    pub(crate) fn has_part(&self, id: PartId) -> bool {
        if id.is_nameless() {
            return self.nameless(id.node()) == Some(id.generation());
        }
        self.part(id).is_some()
    }

    /// The generation of a node's parts without a name, if it has any.
    fn nameless(&self, node: NodeId) -> Option<u32> {
        let row = self.parts.iter().flatten().find(|p| p.id.node() == node && p.id.local() == PartId::NODE);
        row.map(|row| row.id.generation())
    }

    fn insert(&mut self, entry: PartEntry) {
        self.recurring |= recurs(entry.id);
        let same = self.parts.iter().position(|p| p.as_ref().is_some_and(|p| p.id == entry.id));
        let place = same.or_else(|| self.parts.iter().position(Option::is_none));
        if let Some(slot) = place.and_then(|i| self.parts.get_mut(i)) {
            *slot = Some(entry);
        }
    }

    fn remove(&mut self, id: PartId) {
        for slot in self.parts.iter_mut().filter(|p| p.as_ref().is_some_and(|p| p.id == id)) {
            *slot = None;
        }
    }
}

/// Rows of a snapshot: two for each node, up and down, then one for each part.
impl Replica for Tables<'_> {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Nothing => {}
            Change::NodeUp(entry) => {
                if let Some(slot) = self.nodes.get_mut(entry.id.index()) {
                    // The node may have been restarted.
                    self.recurring |= slot.as_ref().is_some_and(|before| before.failed);
                    *slot = Some(entry.clone());
                }
            }
            Change::NodeDown(node) => {
                self.forgotten += 1;
                if let Some(Some(entry)) = self.nodes.get_mut(node.index()) {
                    entry.failed = true;
                }
                for slot in self.parts.iter_mut().filter(|p| p.as_ref().is_some_and(|p| p.id.node() == *node))
                {
                    *slot = None;
                }
            }
            Change::PartAdded(entry) => self.insert(entry.clone()),
            Change::PartRemoved(id) => {
                self.forgotten += 1;
                self.remove(*id);
            }
        }
    }

    fn contains(&self, change: &Change) -> bool {
        match change {
            Change::Nothing => true,
            Change::NodeUp(entry) => {
                let known = self.nodes.get(entry.id.index()).and_then(Option::as_ref);
                known.is_some_and(|k| {
                    !k.failed && k.name == entry.name && k.kind == entry.kind && k.life == entry.life
                })
            }
            Change::NodeDown(node) => {
                self.nodes.get(node.index()).and_then(Option::as_ref).is_some_and(|k| k.failed)
            }
            Change::PartAdded(entry) => {
                self.part(entry.id).is_some_and(|k| k.name == entry.name && k.kind == entry.kind)
            }
            Change::PartRemoved(id) => self.part(*id).is_none(),
        }
    }

    fn room(&self) -> usize {
        self.parts.iter().filter(|p| p.is_none()).count()
    }

    fn row(&self, cursor: u64) -> Option<(Change, u64)> {
        let (nodes, mut at) = (self.nodes.len() as u64, cursor);
        while at < 2 * nodes {
            let entry = self.nodes.get((at / 2) as usize).and_then(Option::as_ref);
            let row = match entry {
                Some(entry) if at % 2 == 0 => {
                    Some(Change::NodeUp(NodeEntry { failed: false, ..entry.clone() }))
                }
                Some(entry) if entry.failed => Some(Change::NodeDown(entry.id)),
                _ => None,
            };
            at += 1;
            if let Some(row) = row {
                return Some((row, at));
            }
        }
        let first = (at - 2 * nodes) as usize;
        let (skipped, entry) =
            self.parts.iter().skip(first).enumerate().find_map(|(i, p)| Some((i as u64, p.as_ref()?)))?;
        Some((Change::PartAdded(entry.clone()), at + skipped + 1))
    }

    fn clear(&mut self) {
        self.forgotten += 1;
        // Changes made until the tables are sent again are not seen here.
        self.recurring |= self.parts.iter().any(Option::is_some) || self.nodes.iter().any(Option::is_some);
        self.nodes.iter_mut().for_each(|slot| *slot = None);
        self.parts.iter_mut().for_each(|slot| *slot = None);
    }
}
