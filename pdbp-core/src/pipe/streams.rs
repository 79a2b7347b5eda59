//! MTA: streams that arrive here, and streams that a relay forwards.

use managed::ManagedSlice;

use crate::id::{NodeId, PipeId, StreamNo};
use crate::routing::LinkId;

/// A mapping tuple of MTA: a stream pipe of some node (PipeA) bound to a private pipe of this one (PipeB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamMapping {
    /// The source node.
    pub source: NodeId,
    /// The stream pipe at the source. For a relayed stream, its circuit on the link, which is not a pipe number.
    pub group: u16,
    /// `sno`, the number of the stream.
    pub number: StreamNo,
    /// `Pid`: number of the receiving part.
    pub part: u16,
    /// PipeB.
    pub pipe: PipeId,
    /// Number of the next segment.
    pub segment: u32,
    /// Whether nobody reads the stream any more. Of what still arrives, only the end is delivered.
    pub ignored: bool,
}

/// A stream of another node that this node forwards as a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relayed {
    pub(crate) number: StreamNo,
    /// The link towards its destination, and its circuit there.
    pub(crate) next: LinkId,
    pub(crate) circuit: u16,
    /// Numbers of the parts at its ends.
    pub(crate) source: u16,
    pub(crate) dest: u16,
    /// Number of the next segment.
    pub(crate) segment: u32,
    pub(crate) stage: Stage,
    /// Whether the stream has its circuit: the answer still owed to its source, and the last answer sent.
    pub(crate) answer: Option<bool>,
    pub(crate) last_answer: Option<bool>,
}

/// The state of a forwarded stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has its circuit.
    Open,
    /// No more of it will come, which its destination is still to be told. It keeps its circuit until then.
    Broken,
    /// The stream goes no further; whatever still arrives of it is lost.
    Stopped,
    /// Its last segment has been sent.
    Over,
}

/// What a peer's stream pipe, or a circuit of its link, carries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum StreamUse {
    #[default]
    Nothing,
    /// A stream to a part of this node.
    Local(StreamMapping),
    /// A stream being forwarded.
    Relayed(Relayed),
    /// A past stream, and what its source was told, which is repeated if it was lost.
    Ended { number: StreamNo, last_answer: bool, owed: bool },
}

/// A row of MTA.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamEntry {
    pub(crate) stream_use: StreamUse,
    /// Whether the circuit with this number, on the link *to* the peer, is in use.
    lent: bool,
}

const _: () = assert!(size_of::<StreamEntry>() == 28);

/// The part of MTA that one node needs: the streams that arrive over each link. A block of a stream finds its private pipe, or its
/// onward route, in one step. A row has an entry for each stream pipe of the peer and, where relays exist, one for each circuit of
/// the link, on which the peer forwards other nodes' streams. So a table of rows × pipes suffices for the streams of all nodes.
pub(crate) struct StreamMap<'a> {
    entries: ManagedSlice<'a, StreamEntry>,
    /// Number of stream pipes of a node.
    groups: usize,
    /// Number of circuits of a link.
    circuits: usize,
}

impl<'a> StreamMap<'a> {
    pub(crate) fn new(entries: ManagedSlice<'a, StreamEntry>, groups: usize, circuits: usize) -> Self {
        Self { entries, groups, circuits }
    }

    /// Whether `group` is the number of a circuit.
    pub(crate) fn is_circuit(&self, group: u16) -> bool {
        group as usize >= self.groups
    }

    /// Returns what stream pipe or circuit `group` of the link `row` carries; `None` if there is no such number.
    #[inline]
    pub(crate) fn entry(&mut self, row: LinkId, group: u16) -> Option<&mut StreamUse> {
        let each = self.groups + self.circuits;
        if group as usize >= each {
            return None;
        }
        self.entries.get_mut(row.index() * each + group as usize).map(|entry| &mut entry.stream_use)
    }

    /// A forwarded stream.
    pub(crate) fn relayed(&mut self, row: LinkId, group: u16) -> Option<&mut Relayed> {
        match self.entry(row, group)? {
            StreamUse::Relayed(relayed) => Some(relayed),
            _ => None,
        }
    }

    pub(crate) fn row(&mut self, row: LinkId) -> &mut [StreamEntry] {
        let each = self.groups + self.circuits;
        self.entries.get_mut(row.index() * each..(row.index() + 1) * each).unwrap_or(&mut [])
    }

    /// Takes a free circuit on the link to a peer.
    pub(crate) fn take_circuit(&mut self, to: LinkId) -> Option<u16> {
        let (groups, circuits) = (self.groups, self.circuits);
        let mut rows = self.row(to).iter_mut().take(circuits);
        let found = rows.position(|entry| !core::mem::replace(&mut entry.lent, true))?;
        u16::try_from(groups + found).ok()
    }

    /// Frees a circuit.
    pub(crate) fn release_circuit(&mut self, to: LinkId, circuit: u16) {
        let at = (circuit as usize).saturating_sub(self.groups);
        if let Some(entry) = self.row(to).get_mut(at) {
            entry.lent = false;
        }
    }

    /// Frees all circuits on the link to a peer, because the link starts over.
    pub(crate) fn release_all_circuits(&mut self, to: LinkId) {
        self.row(to).iter_mut().for_each(|entry| entry.lent = false);
    }

    /// Number of circuits in use.
    #[cfg(test)]
    pub(crate) fn lent(&self) -> usize {
        self.entries.iter().filter(|entry| entry.lent).count()
    }

    /// The tuple of a stream that ends here.
    pub(crate) fn find(&mut self, source: NodeId, number: StreamNo) -> Option<&mut StreamMapping> {
        let mut entries = self.entries.iter_mut();
        entries.find_map(|entry| match &mut entry.stream_use {
            StreamUse::Local(mapping) if (mapping.source, mapping.number) == (source, number) => {
                Some(mapping)
            }
            _ => None,
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StreamMapping> {
        self.entries.iter().filter_map(|entry| match &entry.stream_use {
            StreamUse::Local(mapping) => Some(mapping),
            _ => None,
        })
    }

    /// Iterates over the forwarded streams, with the link by which each arrives.
    pub(crate) fn all_relayed(&mut self) -> impl Iterator<Item = (LinkId, &mut Relayed)> {
        let each = self.groups + self.circuits;
        self.entries.iter_mut().enumerate().filter_map(move |(i, entry)| match &mut entry.stream_use {
            StreamUse::Relayed(relayed) => Some((LinkId::from_index(i / each), relayed)),
            _ => None,
        })
    }

    /// Removes the tuples for which `gone` returns true, because their part or pipe no longer exists.
    pub(crate) fn remove_if(&mut self, gone: impl Fn(&StreamMapping) -> bool) {
        for entry in self.entries.iter_mut() {
            if let StreamUse::Local(mapping) = &entry.stream_use
                && gone(mapping)
            {
                entry.stream_use = StreamUse::Nothing;
            }
        }
    }
}
