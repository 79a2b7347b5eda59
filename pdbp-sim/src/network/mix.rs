//! What hosts do beside sending short messages.

use super::Probability;
use super::payload::PAYLOAD;
use crate::random::Random;

/// Segments of a stream or of a long message at most.
const SEGMENTS: u64 = 6;
/// Messages of a train at most.
const MESSAGES: u64 = 24;
/// Bytes of headers that a segment leaves room for, its own and a relay's.
const HEADERS: usize = 64;

/// What hosts do beside sending short messages: by default nothing. Shares are of the messages that [`Traffic`](super::Traffic)
/// makes due; something else is done in their place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// A stream of several segments begins, which goes on while other things are sent.
    pub streams: Probability,
    /// A command, which overtakes messages.
    pub commands: Probability,
    /// A message of several segments, each in a block.
    pub long: Probability,
    /// A message to all parts of several nodes.
    pub sets: Probability,
    /// Several messages of one length, packed side by side, and one that is written in place.
    pub trains: Probability,
    /// Nanoseconds from one barrier of all nodes to the next; 0: there are none.
    pub barriers: u64,
    /// Nanoseconds from one request of each node for quiescence to the next; 0: there are none.
    pub quiescence: u64,
    /// Nanoseconds, on average, from one thing that a part does which comes and goes to the next; 0: there are none. Each node has one
    /// at a time, which sends to others.
    pub guests: u64,
    /// Share of what these parts do that is to give their private pipe back, or to apply for one again.
    pub pipes: Probability,
    /// Nanoseconds from one superstep of all nodes to the next; 0: there are none. They take the place of barriers, which are to be 0 then.
    /// An [open](super::Setup::open) cluster has none.
    pub supersteps: u64,
}

/// One of the things that a host can do when a message is due.
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
    /// Whether nodes have a second part, as sets of destinations want.
    pub(super) fn has_sets(&self) -> bool {
        self.sets != Probability::NEVER
    }

    /// Parts of a node that stay.
    pub(super) fn fixed_parts(&self) -> u16 {
        1 + u16::from(self.has_sets())
    }

    /// Streams that a node writes at a time at most.
    pub(super) fn stream_pipes(&self) -> u16 {
        if self.streams == Probability::NEVER { 1 } else { 3 }
    }

    /// What is done in place of the message that is due.
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

/// How many segments there are: 1 at least.
pub(super) fn segments(random: &mut Random) -> u32 {
    1 + random.below(SEGMENTS) as u32
}

/// Bytes of the longest message in segments.
pub(super) fn longest_in_segments(body: usize) -> usize {
    SEGMENTS as usize * body.saturating_sub(HEADERS).max(PAYLOAD)
}

/// How many messages of a train there are: 1 at least.
pub(super) fn messages(random: &mut Random) -> u32 {
    1 + random.below(MESSAGES) as u32
}

/// Bytes of a segment, for blocks of `body` bytes.
pub(super) fn segment_bytes(body: usize, random: &mut Random) -> usize {
    let most = body.saturating_sub(HEADERS).max(PAYLOAD);
    PAYLOAD + random.below((most - PAYLOAD) as u64 + 1) as usize
}
