//! A transport that replays a recording.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::umb::Lender;
use pdbp_core::{
    Arrival, ArrivedBlock, Capabilities, Completion, Op, Reason, Refused, SealedBlock, Transport, VacantBlock,
};

use super::Recording;
use super::entry::{Answer, Call, Entry, Outcome};

/// The first difference from the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The entry of the recording, counted from 0.
    pub entry: usize,
    /// The recorded entry.
    pub recorded: String,
    /// The call made instead.
    pub found: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, recorded, found } = self;
        write!(f, "entry {entry} of the recording is \"{recorded}\"; what was done is \"{found}\"")
    }
}

impl std::error::Error for Divergence {}

/// Replays a recording to a caller that makes the recorded calls. After the end of the recording, or the first divergence, it takes
/// no block ([`Reason::Busy`]) and returns no completion.
#[derive(Debug)]
pub struct Replay {
    recording: Recording,
    /// The next entry, and, if it stands for several polls, how many of them are done.
    next: usize,
    idle: u64,
    /// What the transport says of each peer now: whether it has ended, and its life.
    peers: Vec<(bool, u64)>,
    divergence: Option<Divergence>,
    sent: BTreeMap<(u16, u32), SealedBlock>,
    posted: BTreeMap<(u16, u32), VacantBlock>,
    /// The memory of blocks being read in place, by address.
    lent: BTreeMap<usize, Arc<[u64]>>,
    lender: Lender,
}

impl Replay {
    /// Replays from the beginning.
    pub fn new(recording: Recording) -> Self {
        let (sent, posted, lent) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let peers = recording.links.iter().map(|link| (false, link.life)).collect();
        Self {
            recording,
            next: 0,
            idle: 0,
            peers,
            divergence: None,
            sent,
            posted,
            lent,
            lender: Lender::new(),
        }
    }

    /// The first difference from the recording.
    pub fn divergence(&self) -> Option<&Divergence> {
        self.divergence.as_ref()
    }

    /// Whether everything has been replayed.
    pub fn is_over(&self) -> bool {
        self.next >= self.recording.entries.len()
    }

    /// The next entry; `None` at the end and after a divergence.
    fn entry(&self) -> Option<&Entry> {
        if self.divergence.is_some() { None } else { self.recording.entries.get(self.next) }
    }

    fn diverge(&mut self, found: String) {
        if self.divergence.is_none() {
            let recorded = self.recording.entries.get(self.next).map_or_else(String::new, Entry::to_string);
            self.divergence = Some(Divergence { entry: self.next, recorded, found });
        }
    }

    /// Returns the recorded answer to an operation; `None` if the operation is not the recorded one.
    fn answer(&mut self, call: &Call) -> Option<Answer> {
        match self.entry()? {
            Entry::Call(recorded, answer) if recorded == call => {
                let answer = *answer;
                self.next += 1;
                Some(answer)
            }
            _ => {
                self.diverge(call.to_string());
                None
            }
        }
    }

    fn play(&mut self, outcome: Outcome) -> Option<Completion<Divergence>> {
        Some(match outcome {
            Outcome::Sent(peer, id) => Completion::Sent { peer, block: self.take_sent(peer, id)? },
            Outcome::Failed(peer, id) => Completion::Failed { peer, block: self.take_sent(peer, id)? },
            Outcome::Unused(peer, id) => Completion::Unused { peer, block: self.take_posted(peer, id)? },
            Outcome::PeerFailed(peer) => Completion::PeerFailed { peer, cause: None },
            Outcome::PeerRestored(peer, session) => Completion::PeerRestored { peer, session },
            Outcome::Received(peer, id, bytes) => {
                let block = match self.arrival(peer) {
                    Arrival::InPlace => self.read_in_place(id, &bytes),
                    Arrival::Posted => {
                        let mut room = self.take_posted(peer, id)?;
                        let length = bytes.len().min(room.bytes_mut().len());
                        room.bytes_mut()[..length].copy_from_slice(&bytes[..length]);
                        room.into_arrived(length)
                    }
                };
                Completion::Received { peer, block }
            }
        })
    }

    fn take_sent(&mut self, peer: NodeId, id: BlockId) -> Option<SealedBlock> {
        self.sent.remove(&(peer.raw(), id.index)).or_else(|| {
            self.diverge(format!("block {} was not sent to {peer}", id.index));
            None
        })
    }

    fn take_posted(&mut self, peer: NodeId, id: BlockId) -> Option<VacantBlock> {
        self.posted.remove(&(peer.raw(), id.index)).or_else(|| {
            self.diverge(format!("block {} was not posted for {peer}", id.index));
            None
        })
    }

    #[allow(unsafe_code)]
    fn read_in_place(&mut self, id: BlockId, bytes: &[u8]) -> ArrivedBlock {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(8).max(8), 0);
        let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap_or([0; 8]));
        let words: Arc<[u64]> = padded.chunks(8).map(word).collect();
        let base = NonNull::from(&*words).cast::<u8>();
        self.lent.insert(base.as_ptr().addr(), words);
        // SAFETY: the words are aligned to 8 and hold that many bytes; nobody writes them, and `lent` keeps them until the token
        // comes back or the transport is dropped, or forever if the token is still out then.
        unsafe { self.lender.lend(id, base, bytes.len() as u32) }
    }
}

impl Transport for Replay {
    type Error = Divergence;

    fn capabilities(&self) -> Capabilities {
        let Recording { node, nodes, largest_block, trusted, .. } = self.recording;
        Capabilities { nodes, node, largest_block, trusted }
    }

    fn arrival(&self, peer: NodeId) -> Arrival {
        self.recording.links.get(peer.index()).map_or(Arrival::Posted, |link| link.arrival)
    }

    fn best_block(&self, peer: NodeId) -> usize {
        self.recording.links.get(peer.index()).map_or(self.recording.largest_block, |link| link.best_block)
    }

    fn capacity(&self, peer: NodeId) -> usize {
        self.recording.links.get(peer.index()).map_or(0, |link| link.capacity)
    }

    fn session(&self, peer: NodeId) -> u32 {
        self.recording.links.get(peer.index()).map_or(0, |link| link.session)
    }

    fn has_ended(&self, peer: NodeId) -> bool {
        self.peers.get(peer.index()).is_some_and(|(has_ended, _)| *has_ended)
    }

    fn restores_links(&self) -> bool {
        self.recording.restores_links
    }

    fn is_vacant(&self, peer: NodeId) -> bool {
        self.recording.links.get(peer.index()).is_some_and(|link| link.is_vacant)
    }

    fn life(&self, peer: NodeId) -> u64 {
        self.peers.get(peer.index()).map_or(0, |(_, life)| *life)
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Divergence>> {
        let answer = self.answer(&Call::of(&op));
        let reason = match (answer, &op) {
            (Some(Answer::Taken), _) | (None, Op::Return { .. }) => None,
            (Some(Answer::Busy) | None, _) => Some(Reason::Busy),
            (Some(Answer::PeerFailed), _) => Some(Reason::PeerFailed),
            (Some(Answer::Unsupported | Answer::Other), _) => Some(Reason::Unsupported),
        };
        if let Some(reason) = reason {
            return Err(Refused { op, reason });
        }
        match op {
            Op::Send { peer, block } => {
                self.sent.insert((peer.raw(), block.id().index), block);
            }
            Op::Recv { peer, block } => {
                self.posted.insert((peer.raw(), block.id().index), block);
            }
            Op::Return { block, .. } => {
                let address = block.bytes().as_ptr().addr();
                if self.lender.reclaim(block).is_ok() {
                    self.lent.remove(&address);
                }
            }
        }
        Ok(())
    }

    fn poll_completion(&mut self) -> Option<Completion<Divergence>> {
        while let Some(&Entry::Peer { peer, has_ended, life }) = self.entry() {
            self.next += 1;
            if let Some(known) = self.peers.get_mut(peer.index()) {
                *known = (has_ended, life);
            }
        }
        match self.entry()?.clone() {
            Entry::Idle(polls) => {
                self.idle += 1;
                if self.idle >= polls {
                    self.idle = 0;
                    self.next += 1;
                }
                None
            }
            Entry::Outcome(outcome) => {
                let completion = self.play(outcome)?;
                self.next += 1;
                Some(completion)
            }
            Entry::Call(..) | Entry::Peer { .. } => {
                self.diverge("a poll".to_owned());
                None
            }
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        if self.lender.outstanding() > 0 {
            std::mem::forget(std::mem::take(&mut self.lent));
        }
    }
}
