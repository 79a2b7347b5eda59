//! A wrapper that records everything that passes between an engine and its transport, so that the run can be replayed to the
//! engine.
//!
//! A [`Recording`] contains every operation with the length and a hash of its block, every completion with the bytes that arrived,
//! how often polls returned nothing, and what the transport says of peers whose links have failed. When written
//! ([`Recording::write`]) or printed, it is text, one line per entry.
//!
//! [`Replay`] is a transport that returns the recorded completions to an engine called as before, without any network, and finds
//! the first point where the engine behaves differently.
//!
//! ```
//! use pdbp_core::Transport;
//! use pdbp_sim::network::{Network, Physics};
//! use pdbp_sim::recorder::{Recorder, Recording, Replay};
//!
//! let (_network, ports) = Network::new(2, Physics::default(), 1)?;
//! let mut end = Recorder::new(ports.into_iter().next().ok_or("no port")?);
//! assert!(end.poll_completion().is_none());
//! let text = end.recording().to_string();
//!
//! let mut replay = Replay::new(Recording::read(&text)?);
//! assert!(replay.poll_completion().is_none());
//! assert!(replay.divergence().is_none() && replay.is_over());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod entry;
mod replay;
#[cfg(test)]
mod tests;
mod text;

use std::fmt;
use std::io;

use pdbp_core::id::NodeId;
use pdbp_core::{Arrival, Capabilities, Completion, Op, Reason, Refused, Transport};

pub use entry::{Answer, Call, CallKind, Entry, Outcome};
pub use replay::{Divergence, Replay};
pub use text::RecordingError;

/// What a transport reported about itself, and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The node.
    pub node: NodeId,
    /// Number of nodes in the domain.
    pub nodes: u16,
    /// The longest block in bytes.
    pub largest_block: usize,
    /// See [`Capabilities::trusted`].
    pub trusted: bool,
    /// See [`Transport::restores_links`].
    pub restores_links: bool,
    /// The properties of the link to each peer.
    pub links: Vec<Link>,
    /// The events, in order.
    pub entries: Vec<Entry>,
}

/// The properties of the link to a peer, as returned by the methods of [`Transport`] with these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// How its blocks arrive.
    pub arrival: Arrival,
    /// The block length up to which blocks to the peer travel best.
    pub best_block: usize,
    /// Number of blocks that the link takes at a time.
    pub capacity: usize,
    /// The session with which the link began.
    pub session: u32,
    /// The life of the peer at that time.
    pub life: u64,
    /// Whether the peer's place was still empty then.
    pub is_vacant: bool,
}

impl Recording {
    /// Writes the recording as text, which [`read`](Self::read) reads.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write!(out, "{self}")
    }

    /// Reads text written by [`write`](Self::write).
    ///
    /// # Errors
    /// The first line that is invalid.
    pub fn read(text: &str) -> Result<Self, RecordingError> {
        text::read(text)
    }

    fn push(&mut self, entry: Entry) {
        if let (Entry::Idle(more), Some(Entry::Idle(polls))) = (&entry, self.entries.last_mut()) {
            *polls += more;
        } else {
            self.entries.push(entry);
        }
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write(self, f)
    }
}

/// A transport that is being recorded.
#[derive(Debug)]
pub struct Recorder<T> {
    inner: T,
    recording: Recording,
    /// What was last recorded of each peer.
    peers: Vec<Peer>,
}

/// What a transport says of a peer: [`Transport::has_ended`] and [`Transport::life`]. It changes only while the link is down and as it comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    is_down: bool,
    has_ended: bool,
    life: u64,
}

impl<T: Transport> Recorder<T> {
    /// Records `inner` from now on.
    pub fn new(inner: T) -> Self {
        let Capabilities { nodes, node, largest_block, trusted } = inner.capabilities();
        let peers = (0..nodes).filter_map(NodeId::new);
        let links = peers.map(|peer| Link {
            arrival: inner.arrival(peer),
            best_block: inner.best_block(peer),
            capacity: inner.capacity(peer),
            session: inner.session(peer),
            life: inner.life(peer),
            is_vacant: inner.is_vacant(peer),
        });
        let links: Vec<_> = links.collect();
        let peers =
            links.iter().map(|link| Peer { is_down: link.is_vacant, has_ended: false, life: link.life });
        let (peers, restores_links) = (peers.collect(), inner.restores_links());
        let recording =
            Recording { node, nodes, largest_block, trusted, restores_links, links, entries: Vec::new() };
        Self { inner, recording, peers }
    }

    /// The recording so far.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Takes the recording so far, and continues with an empty recording of the same node.
    pub fn take_recording(&mut self) -> Recording {
        let mut links = self.recording.links.clone();
        for (link, known) in links.iter_mut().zip(&mut self.peers) {
            (link.life, known.has_ended) = (known.life, false);
        }
        let rest = Recording { entries: Vec::new(), links, ..self.recording };
        std::mem::replace(&mut self.recording, rest)
    }

    /// The wrapped transport.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Records what the transport says otherwise than before of peers whose links are down, or have just come up.
    fn record_peers(&mut self, completion: Option<&Completion<T::Error>>) {
        let (failed, restored) = match completion {
            Some(Completion::PeerFailed { peer, .. }) => (Some(*peer), None),
            Some(Completion::PeerRestored { peer, .. }) => (None, Some(*peer)),
            _ => (None, None),
        };
        for (peer, known) in (0..).filter_map(NodeId::new).zip(&mut self.peers) {
            known.is_down |= failed == Some(peer);
            if !known.is_down {
                continue;
            }
            let (has_ended, life) = (self.inner.has_ended(peer), self.inner.life(peer));
            if (has_ended, life) != (known.has_ended, known.life) {
                self.recording.push(Entry::Peer { peer, has_ended, life });
            }
            *known = Peer { is_down: restored != Some(peer), has_ended, life };
        }
    }
}

impl<T: Transport> Transport for Recorder<T> {
    type Error = T::Error;
    pdbp_core::forward_links!(inner);

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<T::Error>> {
        let call = Call::of(&op);
        let outcome = self.inner.submit(op);
        let answer = match outcome.as_ref().map_err(|refused| &refused.reason) {
            Ok(()) => Answer::Taken,
            Err(Reason::Busy) => Answer::Busy,
            Err(Reason::PeerFailed) => Answer::PeerFailed,
            Err(Reason::Unsupported) => Answer::Unsupported,
            Err(_) => Answer::Other,
        };
        // The transport may know why before it reports the failure.
        if let (Answer::PeerFailed, Some(known)) = (answer, self.peers.get_mut(call.peer.index())) {
            known.is_down = true;
        }
        self.recording.push(Entry::Call(call, answer));
        outcome
    }

    fn poll_completion(&mut self) -> Option<Completion<T::Error>> {
        let completion = self.inner.poll_completion();
        self.record_peers(completion.as_ref());
        self.recording.push(match &completion {
            Some(completion) => Entry::Outcome(Outcome::of(completion)),
            None => Entry::Idle(1),
        });
        completion
    }
}
