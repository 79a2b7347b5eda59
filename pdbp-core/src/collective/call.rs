//! Calls, and checks that they are valid.

use core::fmt;

use super::element::{Element, Op};

/// The kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// No member leaves before all have arrived.
    Barrier = 1,
    /// All get the root's data.
    Broadcast = 2,
    /// Each gets its block of the root's data.
    Scatter = 3,
    /// The root gets a block from each.
    Gather = 4,
    /// All get a block from each.
    AllGather = 5,
    /// The root gets the combined data of all.
    Reduce = 6,
    /// All get the combined data of all.
    AllReduce = 7,
    /// Each gets its share of the combined data of all.
    ReduceScatter = 8,
    /// Each gets a block from each.
    AllToAll = 9,
    /// From one member to another, matched by a tag.
    Tagged = 10,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Barrier,
        Self::Broadcast,
        Self::Scatter,
        Self::Gather,
        Self::AllGather,
        Self::Reduce,
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Tagged,
    ];

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Broadcast => "broadcast",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
            Self::AllGather => "all_gather",
            Self::Reduce => "reduce",
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Tagged => "message",
        }
    }

    fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Scatter | Self::Gather | Self::Reduce)
    }

    fn reduces(self) -> bool {
        matches!(self, Self::Reduce | Self::AllReduce | Self::ReduceScatter)
    }
}

/// A call of all members of a group, which must all make the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its kind.
    pub kind: Kind,
    /// The type of the values.
    pub element: Element,
    /// How they are combined, for reductions.
    pub op: Option<Op>,
    /// The rank of the root; 0 where there is none.
    pub root: usize,
    /// Bytes of the data; for calls with a block per member (scatter, gather, all_gather, all_to_all), the bytes of one block.
    pub bytes: usize,
}

impl Call {
    /// A call that moves bytes: any kind except reductions.
    pub const fn moving(kind: Kind, root: usize, bytes: usize) -> Self {
        Self { kind, element: Element::Bytes, op: None, root, bytes }
    }

    /// A reduction.
    pub const fn reducing(kind: Kind, root: usize, element: Element, op: Op, bytes: usize) -> Self {
        Self { kind, element, op: Some(op), root, bytes }
    }

    /// Returns the bytes of input and output at a member; `None` if that exceeds any memory.
    pub fn lengths(&self, members: usize, rank: usize) -> Option<(usize, usize)> {
        let all = self.bytes.checked_mul(members)?;
        let at_root = if rank == self.root { all } else { 0 };
        Some(match self.kind {
            Kind::Barrier | Kind::Tagged => (0, 0),
            Kind::Broadcast | Kind::Reduce | Kind::AllReduce | Kind::ReduceScatter => (0, self.bytes),
            Kind::Scatter => (at_root, self.bytes),
            Kind::Gather => (self.bytes, at_root),
            Kind::AllGather => (self.bytes, all),
            Kind::AllToAll => (all, all),
        })
    }

    /// Whether no member can complete the call before all others have begun it, because each needs something from each.
    pub(super) fn synchronizes(&self) -> bool {
        match self.kind {
            Kind::Barrier => true,
            Kind::AllGather | Kind::AllReduce | Kind::AllToAll => self.bytes > 0,
            _ => false,
        }
    }

    /// Whether switches whose packets hold `packet` bytes can perform the call: broadcast, barrier, reductions with built-in
    /// operations, and scatter and gather if two blocks fit in a packet. All other calls are performed by messages, as are those
    /// with longer blocks, which a switch could not join.
    pub fn fits_switches(&self, packet: usize) -> bool {
        match self.kind {
            Kind::Barrier | Kind::Broadcast => true,
            Kind::Reduce | Kind::AllReduce => self.op != Some(Op::Function),
            Kind::Scatter | Kind::Gather => self.bytes <= packet / 2,
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll | Kind::Tagged => false,
        }
    }

    /// Checks that a member can make the call with this many bytes of input and output.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn check(&self, members: usize, rank: usize, input: usize, output: usize) -> Result<(), Refused> {
        if self.kind.has_root() && self.root >= members {
            return Err(Refused::Rank { rank: self.root, members });
        }
        if self.kind.reduces() {
            let op = self.op.ok_or(Refused::NoOperation { kind: self.kind })?;
            if !self.element.allows(op) {
                return Err(Refused::Operation { op, element: self.element });
            }
        }
        // A power of two. A division would take as long as everything else here.
        let unit = self.element.size();
        if self.bytes & (unit - 1) != 0 {
            return Err(Refused::Length {
                what: "data",
                bytes: self.bytes,
                needed: self.bytes / unit * unit,
            });
        }
        let lengths = self.lengths(members, rank);
        let (needs_input, needs_output) = lengths.ok_or(Refused::Length {
            what: "block",
            bytes: self.bytes,
            needed: usize::MAX / members,
        })?;
        for (what, bytes, needed) in [("input", input, needs_input), ("output", output, needs_output)] {
            if bytes != needed {
                return Err(Refused::Length { what, bytes, needed });
            }
        }
        Ok(())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if self.kind != Kind::Barrier {
            write!(f, " of {} bytes", self.bytes)?;
        }
        if let Some(op) = self.op {
            write!(f, " of {} by {op:?}", self.element)?;
        }
        if self.kind.has_root() { write!(f, " with root {}", self.root) } else { Ok(()) }
    }
}

/// Why a call was not begun. Nothing was sent, and the group is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// There is no such member.
    Rank {
        /// The given rank.
        rank: usize,
        /// Number of members.
        members: usize,
    },
    /// The data is longer or shorter than the call needs.
    Length {
        /// Which one: "input", "output", "data" or "block".
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The length needed.
        needed: usize,
    },
    /// The operation is not defined for these values.
    Operation {
        /// The operation.
        op: Op,
        /// The values.
        element: Element,
    },
    /// A reduction lacks its operation.
    NoOperation {
        /// The kind of reduction.
        kind: Kind,
    },
    /// A message from a member to itself, which nobody would receive while it waits.
    ToItself {
        /// Its rank.
        rank: usize,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank { rank, members } => {
                write!(f, "there is no member {rank} in a group of {members}; give a rank below {members}")
            }
            Self::Length { what, bytes, needed } => {
                write!(f, "the {what} has {bytes} bytes; this call needs {needed} there")
            }
            Self::Operation { op, element } => {
                write!(f, "{op:?} is not defined for {element}; use integers, or another operation")
            }
            Self::NoOperation { kind } => {
                write!(f, "{} needs an operation; give one, such as Sum", kind.name())
            }
            Self::ToItself { rank } => {
                write!(f, "member {rank} would wait for itself; use `send_recv`, or copy the data")
            }
        }
    }
}

impl core::error::Error for Refused {}
