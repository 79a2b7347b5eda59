//! Errors of groups.

use std::fmt;
use std::time::Duration;

use pdbp_core::collective::{Call, Cause, Fault, Refused, StartError};

use super::Group;
use super::join::MAX_MEMBERS;
use crate::error::{LookupError, RegisterError};

/// The most ranks that [`GroupError::TimedOut`] lists in `others`.
pub(super) const MAX_NAMED: usize = 15;

/// Why a call of a group failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupError {
    /// The call is invalid. Nothing was sent, it does not count, and the group is as it was.
    Refused(Refused),
    /// A member or its node is gone: it was dropped before it had made its calls, or it has failed.
    Lost {
        /// Its rank.
        rank: usize,
        /// Its address.
        address: String,
    },
    /// Two members made different calls.
    Mismatch {
        /// The other member.
        rank: usize,
        /// The number of its call, from 1; for tagged messages the tag.
        number: u32,
        /// The call it made.
        theirs: Call,
        /// The number of this member's call.
        own_number: u32,
        /// The call this member made.
        ours: Call,
    },
    /// Others have lost this member: the links between its node and one of theirs, or all, have failed.
    CutOff {
        /// The address of this member.
        address: String,
    },
    /// Nothing has progressed for as long as the group's patience.
    TimedOut {
        /// The member that this one is waiting for.
        rank: usize,
        /// Its address.
        address: String,
        /// Other members whose data for this call has not arrived, the first 15 of them. They may be waiting for another member
        /// themselves.
        others: Vec<usize>,
        /// How long this member waited.
        waited: Duration,
        /// The call.
        call: Call,
    },
    /// Another member has ended the group.
    Ended {
        /// Its rank.
        by: usize,
        /// Its address.
        address: String,
        /// Why.
        cause: Cause,
    },
    /// This member has ended the group earlier: it gave up a call or timed out.
    Broken(Fault),
    /// The wait was ended by [`Node::interrupt`](crate::Node::interrupt) or [`interruptible`](crate::interruptible). A call that
    /// was [started](Group::start) can be waited for again; any other is given up.
    Interrupted,
}

impl GroupError {
    pub(super) fn from_start(error: StartError, group: &Group) -> Self {
        match error {
            StartError::Refused(refused) => Self::Refused(refused),
            StartError::Ended(fault) => Self::from_fault(fault, group),
        }
    }

    pub(super) fn from_fault(fault: Fault, group: &Group) -> Self {
        match fault {
            Fault::Lost { rank } if rank == group.rank() => {
                Self::CutOff { address: group.line.address(rank) }
            }
            Fault::Lost { rank } => Self::Lost { rank, address: group.line.address(rank) },
            Fault::Mismatch { rank, number, theirs, own_number, ours } => {
                Self::Mismatch { rank, number, theirs, own_number, ours }
            }
            Fault::Ended { by, cause } => Self::Ended { by, address: group.line.address(by), cause },
            other => Self::Broken(other),
        }
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::Lost { rank, address } => {
                write!(
                    f,
                    "member {rank} of the group, {address}, has left or failed; form a new group of the others"
                )
            }
            Self::CutOff { address } => write!(
                f,
                "other members have lost their link to this one, {address}, and ended the group; check the links of its node, and form a new group"
            ),
            Self::Mismatch { rank, number, theirs, own_number, ours } => {
                let (rank, number, own_number) = (*rank, *number, *own_number);
                Fault::Mismatch { rank, number, theirs: *theirs, own_number, ours: *ours }.fmt(f)
            }
            Self::TimedOut { rank, address, others, waited, call } => {
                write!(
                    f,
                    "timed out after {waited:?} without data: member {rank}, {address}, has not completed its part of the call {call}; it has \
                     not made the call, or is waiting for another member"
                )?;
                let others: Vec<_> = others.iter().map(usize::to_string).collect();
                match others.len() {
                    0 => Ok(()),
                    length => {
                        let more = if length == MAX_NAMED { " and perhaps more" } else { "" };
                        write!(f, "; nothing has arrived from {}{more} either", others.join(", "))
                    }
                }
            }
            Self::Ended { by, address, cause } => {
                write!(f, "{} ({address})", Fault::Ended { by: *by, cause: *cause })
            }
            Self::Broken(fault) => fault.fmt(f),
            Self::Interrupted => f.write_str("interrupted before the call completed"),
        }
    }
}

impl std::error::Error for GroupError {}

/// Why a group was not formed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinError {
    /// The list is empty.
    Empty,
    /// The list contains a part twice.
    Twice {
        /// Its address.
        address: String,
    },
    /// The part that joins is not in the list.
    NotInList {
        /// Its name.
        part: String,
    },
    /// A group has at most 65,536 members.
    TooMany {
        /// How many members the list has.
        members: usize,
    },
    /// A part is in another cluster of a grid.
    Elsewhere {
        /// Its address.
        address: String,
    },
    /// An address of the list could not be found.
    Lookup(LookupError),
    /// The part of this member could not be registered.
    Register(RegisterError),
    /// Not all members joined in time.
    TimedOut {
        /// How long this member waited.
        waited: Duration,
        /// Addresses of the members that have not joined.
        missing: Vec<String>,
    },
    /// A member has another list, or blocks of another length.
    Differs {
        /// Its rank.
        rank: usize,
        /// Its address.
        address: String,
        /// Length of its list and of this one's.
        members: (u32, u32),
        /// Bytes of a piece there and here.
        piece: (u32, u32),
    },
    /// The node of a member has failed, or the member gave up joining after all others had arrived.
    Lost {
        /// Its rank.
        rank: usize,
        /// Its address.
        address: String,
    },
    /// The group that was to be [split](Group::split) failed.
    Call(GroupError),
    /// Blocks are too short for a group.
    Blocks {
        /// The setting `block_bytes`.
        block_bytes: usize,
    },
    /// The wait was ended by [`Node::interrupt`](crate::Node::interrupt) or [`interruptible`](crate::interruptible).
    Interrupted,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the group is empty; name at least one part"),
            Self::Twice { address } => write!(f, "{address} is in the list twice; name each member once"),
            Self::NotInList { part } => {
                write!(f, "{part} is not in the list of the group that it joins; add it")
            }
            Self::TooMany { members } => {
                write!(
                    f,
                    "a group of {members} members is too large: it can have at most {MAX_MEMBERS}; form several groups"
                )
            }
            Self::Elsewhere { address } => {
                write!(
                    f,
                    "{address} is in another cluster, and a group cannot span clusters; name parts of this one only"
                )
            }
            Self::Lookup(e) => e.fmt(f),
            Self::Register(e) => e.fmt(f),
            Self::TimedOut { waited, missing } => {
                write!(
                    f,
                    "timed out after {waited:?}: {} members of the group have not joined: {}",
                    missing.len(),
                    missing.join(", ")
                )
            }
            Self::Differs { rank, address, members, piece }
                if members.0 == members.1 && piece.0 == piece.1 =>
            {
                write!(f, "member {rank}, {address}, has a different list of members; give all the same list")
            }
            Self::Differs { rank, address, members, piece } => write!(
                f,
                "member {rank}, {address}, has a list of {} members and pieces of {} bytes, but this one has {} members and pieces of {} \
                 bytes; give all the same list and `block_bytes`",
                members.0, piece.0, members.1, piece.1
            ),
            Self::Lost { rank, address } => {
                write!(
                    f,
                    "member {rank} of the group, {address}, has left or failed; form a group of the others"
                )
            }
            Self::Call(e) => write!(f, "the group could not be split: {e}"),
            Self::Blocks { block_bytes } => {
                write!(f, "`block_bytes` = {block_bytes} is too small for a group; raise it")
            }
            Self::Interrupted => f.write_str("interrupted before all had joined; join again"),
        }
    }
}

impl std::error::Error for JoinError {}
