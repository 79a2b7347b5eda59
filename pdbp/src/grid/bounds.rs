//! Bounds on what this gateway accepts from another one, which has proven only that it knows the token.
//!
//! A correct gateway never comes near these bounds. If one exceeds them, its session ends as if it had disconnected, and look-ups
//! report why ([`LookupError::NoTrunk`](crate::LookupError::NoTrunk)).
//!
//! | what a gateway could do | bound |
//! |---|---|
//! | send an endless message | no message is longer than this end has announced, and its pieces must match |
//! | exceed the window | `trunk_bytes` plus the longest message, of data not handed on yet |
//! | return what was never sent | the same amount again, of data that waits for its senders |
//! | ask, and read no answers | [`QUESTIONS`] waiting, and bytes waiting for the line |
//! | send empty messages, any number of which fit in a frame | [`EMPTY`] per frame |
//! | send to parts that it was never told of, such as those of the runtime | the messages come back |
//! | return messages to such parts, which never sent any | the messages are discarded |
//! | invent senders, each of which takes up a part | half of the free parts |
//! | give an endless answer | [`LISTED`] bytes |
//! | use several names | the first one counts, if it is a valid cluster name |

use std::collections::VecDeque;
use std::fmt;

use super::proxy::Delivery;
use super::wire::{HEAD, Head, Kind, MORE};
use crate::node::Node;

/// Room that every gateway has, assumed until the gateway has stated its own.
pub(super) const LEAST: u64 = 2 << 20;
/// Maximum unanswered questions of the other gateway.
pub(super) const QUESTIONS: usize = 16_384;
/// No question is answered while more frames than this wait for the line.
pub(super) const ANSWERS: usize = 64;
/// Maximum bytes of all addresses in the other cluster, with the heads of their frames.
pub(super) const LISTED: u64 = 8 << 20;
/// Maximum bytes of a lookup error, or of an address in a question.
pub(super) const TEXT: usize = 512;
/// Maximum empty messages in a frame: as many as a block holds.
const EMPTY: u32 = 256;

/// A violation that no correct gateway commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breach {
    Frame,
    Pieces,
    /// Bytes of a message or train, and the maximum.
    Length(u64, u64),
    Empty(u32),
    Window(u64),
    Returned(u64),
    Questions,
    Silent(u64),
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame => f.write_str("it sent a malformed frame"),
            Self::Pieces => f.write_str("it mixed pieces of different messages"),
            Self::Length(found, most) => {
                write!(f, "it sent a message of {found} bytes although the announced maximum is {most}")
            }
            Self::Empty(count) => {
                write!(f, "it sent {count} empty messages at once; the maximum is {EMPTY}")
            }
            Self::Window(most) => {
                write!(f, "it sent more than the window of {most} unread bytes")
            }
            Self::Returned(most) => write!(f, "it returned more than {most} bytes while none were read"),
            Self::Questions => write!(f, "it asked {QUESTIONS} questions without accepting answers"),
            Self::Silent(most) => write!(f, "it accepts no data while {most} bytes are queued for it"),
        }
    }
}

/// A complete message.
pub(super) enum Joined {
    /// In one frame.
    Whole,
    Pieces(Vec<u8>),
}

/// Holds the other gateway to the bounds.
pub(super) struct Bounds {
    /// Bytes that this end holds in either direction.
    room: u64,
    /// The longest message that this end takes.
    longest: u64,
    /// Bytes received and not yet handed on or returned.
    owed: u64,
    /// Unanswered questions, with their numbers; a request for all parts has no address.
    pub(super) asked: VecDeque<(u32, Option<String>)>,
    /// The head of a message whose pieces have not all arrived, and those that have.
    partial: Option<(Head, Vec<u8>)>,
}

impl Bounds {
    pub(super) fn new(room: u64, longest: u64) -> Self {
        Self { room, longest: longest.div_ceil(1024) * 1024, owed: 0, asked: VecDeque::new(), partial: None }
    }

    /// The limits to announce to the other gateway.
    pub(super) fn says(&self) -> Head {
        let [room, longest] = [self.room, self.longest].map(kib);
        Head { length: room, count: longest, ..Head::new(Kind::Room) }
    }

    /// The most bytes that may have been received and not handed on.
    fn most(&self) -> u64 {
        2 * self.room + self.longest
    }

    /// The most bytes of frames that may wait for the line: sent, returned, and acknowledgements.
    pub(super) fn most_waiting(&self) -> u64 {
        3 * self.most() + LEAST
    }

    /// Checks the number of bytes that were returned and wait for their senders.
    pub(super) fn check_returned(&self, returned: u64) -> Result<(), Breach> {
        let most = 2 * self.most();
        if returned > most { Err(Breach::Returned(most)) } else { Ok(()) }
    }

    /// Takes a frame of a message in which each piece has a head; returns the message with its last piece.
    ///
    /// # Errors
    /// The frame breaks a bound; no correct gateway sends such a frame.
    pub(super) fn join(&mut self, head: Head, bytes: &[u8]) -> Result<Option<Joined>, Breach> {
        let all = length(&head);
        let most = if head.kind == Kind::Stream { self.most() } else { self.longest.max(self.room) };
        if all > most {
            return Err(Breach::Length(all, most));
        }
        if head.length == 0 && head.count > EMPTY && head.kind != Kind::Stream {
            return Err(Breach::Empty(head.count));
        }
        let whole = Head { flags: head.flags & !MORE, ..head };
        let is_last = head.flags & MORE == 0;
        let before = self.partial.take();
        let had = before.as_ref().map_or(0, |(_, pieces)| pieces.len());
        let has = (had + bytes.len()) as u64;
        let is_right = if is_last { has == all } else { has < all && !bytes.is_empty() };
        if !is_right || before.as_ref().is_some_and(|(begun, _)| *begun != whole) {
            return Err(Breach::Pieces);
        }
        let Some((_, mut pieces)) = before else {
            if is_last {
                return Ok(Some(Joined::Whole));
            }
            self.partial = Some((whole, bytes.to_vec()));
            return Ok(None);
        };
        pieces.extend_from_slice(bytes);
        if is_last {
            return Ok(Some(Joined::Pieces(pieces)));
        }
        self.partial = Some((whole, pieces));
        Ok(None)
    }

    /// Counts data that this end must acknowledge.
    pub(super) fn take(&mut self, delivery: &Delivery) -> Result<(), Breach> {
        self.owed += delivery.weight();
        let most = self.most() + HEAD as u64;
        if self.owed > most { Err(Breach::Window(most)) } else { Ok(()) }
    }

    /// Counts data that was handed on or returned.
    pub(super) fn settle(&mut self, bytes: u64) {
        self.owed = self.owed.saturating_sub(bytes);
    }

    /// Queues a question of the other gateway.
    pub(super) fn ask(&mut self, number: u32, address: Option<&[u8]>) -> Result<(), Breach> {
        if address.is_some_and(|address| address.len() > TEXT) {
            return Err(Breach::Frame);
        }
        if self.asked.len() >= QUESTIONS {
            return Err(Breach::Questions);
        }
        self.asked.push_back((number, address.map(|address| String::from_utf8_lossy(address).into_owned())));
        Ok(())
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Bounds {
    /// Bytes held here.
    pub(super) fn holds(&self) -> u64 {
        let asked =
            self.asked.iter().map(|(_, address)| address.as_ref().map_or(0, String::len)).sum::<usize>();
        (asked + self.partial.as_ref().map_or(0, |(_, pieces)| pieces.len())) as u64
    }

    /// Maximum bytes a session may hold.
    pub(super) fn most_held(&self) -> u64 {
        let goes_out = 3 * self.room + self.longest;
        let asked = (QUESTIONS * TEXT) as u64;
        self.most() * 4 + self.most_waiting() + goes_out + asked + LEAST
    }
}

/// Number of parts that this node still has room for.
pub(super) fn free_places(node: &Node) -> usize {
    let engine = node.shared.engine();
    let here = engine.parts().filter(|part| part.id.node() == node.id()).count();
    usize::from(node.settings().local_parts).saturating_sub(here + engine.nameless())
}

/// Bytes that the head announces.
fn length(head: &Head) -> u64 {
    let count = if head.kind == Kind::Stream { 1 } else { head.count };
    u64::from(head.length) * u64::from(count)
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes / 1024).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
