//! Faults that end a group.

use core::fmt;

use super::{Call, Kind};

/// Why a group is broken. It stays the same for all later calls; the data of the call that hit it is undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A member is gone: its node has failed, or it left while other members needed it.
    Lost {
        /// Its rank.
        rank: usize,
    },
    /// Two members made different calls.
    Mismatch {
        /// The other member.
        rank: usize,
        /// The number of its call, from 1.
        number: u32,
        /// The call it made.
        theirs: Call,
        /// The number of this member's call.
        own_number: u32,
        /// The call this member made.
        ours: Call,
    },
    /// Another member did not do its part in time.
    TimedOut {
        /// The member that this one waited for.
        rank: usize,
    },
    /// This member abandoned a call before its end.
    GivenUp,
    /// A member sent something that is not a message of the group, or more than it may.
    Garbled {
        /// The member.
        rank: usize,
    },
    /// Another member has ended the group.
    Ended {
        /// The member that ended it.
        by: usize,
        /// Its reason.
        cause: Cause,
    },
}

/// Why another member ended a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Cause {
    /// It made a different call than a third member.
    Mismatch = 2,
    /// It waited too long for a third member.
    TimedOut = 3,
    /// It abandoned a call.
    GivenUp = 4,
    /// It received something that it could not read.
    Garbled = 5,
}

impl Fault {
    const LOST: u8 = 1;

    /// The form in which member `own` reports the fault to others: a code, and the rank of the lost member, or otherwise of the
    /// member that ended the group.
    pub(super) fn code(&self, own: usize) -> (u8, usize) {
        match self {
            Self::Lost { rank } => (Self::LOST, *rank),
            Self::Mismatch { .. } => (Cause::Mismatch as u8, own),
            Self::TimedOut { .. } => (Cause::TimedOut as u8, own),
            Self::GivenUp => (Cause::GivenUp as u8, own),
            Self::Garbled { .. } => (Cause::Garbled as u8, own),
            Self::Ended { by, cause } => (*cause as u8, *by),
        }
    }

    /// Returns the fault that `reporter` has reported.
    pub(super) fn from_code(code: u8, reporter: usize, rank: usize) -> Self {
        let cause = match code {
            Self::LOST => return Self::Lost { rank },
            2 => Cause::Mismatch,
            3 => Cause::TimedOut,
            4 => Cause::GivenUp,
            5 => Cause::Garbled,
            _ => return Self::Garbled { rank: reporter },
        };
        Self::Ended { by: rank, cause }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { rank } => {
                write!(f, "member {rank} has left the group or failed; make a new group of the others")
            }
            Self::Mismatch { rank, number, theirs, ours, .. }
                if theirs.kind == Kind::Tagged && ours.kind == Kind::Tagged =>
            {
                write!(
                    f,
                    "member {rank} sent {} bytes with tag {number}, where this one receives {}; receive as many as are sent",
                    theirs.bytes, ours.bytes
                )
            }
            Self::Mismatch { rank, number, theirs, own_number, ours } => write!(
                f,
                "member {rank} made its call {number}, {theirs}, where this one made its call {own_number}, {ours}; all members must \
                 make the same calls in the same order"
            ),
            Self::TimedOut { rank } => write!(
                f,
                "timed out waiting for member {rank}, which has not made this call or is itself waiting for another member"
            ),
            Self::GivenUp => f.write_str("this member has given up a call; make a new group"),
            Self::Garbled { rank } => {
                write!(
                    f,
                    "member {rank} sent a message that does not belong to this group; check that all members run the same version"
                )
            }
            Self::Ended { by, cause } => {
                let why = match cause {
                    Cause::Mismatch => "it made a different call than another member",
                    Cause::TimedOut => "it waited too long for another member",
                    Cause::GivenUp => "it has given up a call",
                    Cause::Garbled => "it received a malformed message",
                };
                write!(f, "member {by} has ended the group: {why}; see its error, and make a new group")
            }
        }
    }
}

impl core::error::Error for Fault {}
