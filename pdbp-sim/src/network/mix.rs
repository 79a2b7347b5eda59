//! What hosts do besides sending short messages.

use super::Probability;
use super::payload::PAYLOAD;
use crate::random::Random;

/// Maximum number of segments of a stream or of a long message.
const SEGMENTS: u64 = 6;
/// Maximum number of messages of a train.
const MESSAGES: u64 = 24;
/// Bytes of headers for which a segment leaves room: its own and a relay's.
const HEADERS: usize = 64;

/// What hosts do besides sending short messages: by default nothing. Shares are of the messages that [`Traffic`](super::Traffic)
/// makes due; the other action replaces the message.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// Begins a stream of several segments, which continues while other things are sent.
    pub streams: Probability,
    /// A command, which overtakes messages.
    pub commands: Probability,
    /// A message of several segments, each in a block.
    pub long: Probability,
    /// A message to all parts of several nodes.
    pub sets: Probability,
    /// Several adjacent messages of one length, and one that is written in place.
    pub trains: Probability,
    /// Nanoseconds from one barrier of all nodes to the next; 0 for none.
    pub barriers: u64,
    /// Nanoseconds from one request for quiescence by each node to the next; 0 for none.
    pub quiescence: u64,
    /// Average nanoseconds between two actions of a part that comes and goes; 0 for no such parts. Each node has one at a time,
    /// which sends to others.
    pub guests: u64,
    /// The share of these parts' actions that return their private pipe or apply for one again.
    pub pipes: Probability,
    /// Nanoseconds from one superstep of all nodes to the next; 0 for none. They replace barriers, which must then be 0. An
    /// [open](super::Setup::open) cluster has none.
    pub supersteps: u64,
}

/// An action that a host can take when a message is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Short,
    Stream,
    Command,
    Long,
    Set,
    Train,
}

impl Mix {
    /// Whether nodes have a second part, which sets of destinations require.
    pub(super) fn has_sets(&self) -> bool {
        self.sets != Probability::NEVER
    }

    /// Number of permanent parts of a node.
    pub(super) fn fixed_parts(&self) -> u16 {
        1 + u16::from(self.has_sets())
    }

    /// Maximum number of streams that a node writes at a time.
    pub(super) fn stream_pipes(&self) -> u16 {
        if self.streams == Probability::NEVER { 1 } else { 3 }
    }

    /// Draws what is done in place of the message that is due.
    pub(super) fn draw(&self, random: &mut Random) -> Deed {
        let deeds = [
            (self.streams, Deed::Stream),
            (self.commands, Deed::Command),
            (self.long, Deed::Long),
            (self.sets, Deed::Set),
            (self.trains, Deed::Train),
        ];
        let drawn = deeds.into_iter().find(|(share, _)| share.strikes(random));
        drawn.map_or(Deed::Short, |(_, deed)| deed)
    }
}

/// Draws the number of segments, at least 1.
pub(super) fn segments(random: &mut Random) -> u32 {
    1 + random.below(SEGMENTS) as u32
}

/// Bytes of the longest message in segments.
pub(super) fn longest_in_segments(body: usize) -> usize {
    SEGMENTS as usize * body.saturating_sub(HEADERS).max(PAYLOAD)
}

/// Draws the number of messages of a train, at least 1.
pub(super) fn messages(random: &mut Random) -> u32 {
    1 + random.below(MESSAGES) as u32
}

/// Draws the bytes of a segment, for blocks of `body` bytes.
pub(super) fn segment_bytes(body: usize, random: &mut Random) -> usize {
    let most = body.saturating_sub(HEADERS).max(PAYLOAD);
    PAYLOAD + random.below((most - PAYLOAD) as u64 + 1) as usize
}
