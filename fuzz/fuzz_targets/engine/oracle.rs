//! What was sent and must arrive, if the network does no harm.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pdbp_core::endpoint::SendError;
use pdbp_core::id::{PartId, StreamNo};
use pdbp_core::outbox::StreamError;

/// What keeps its order from one part to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Message,
    Command,
    Long,
}

type Stream = (usize, StreamNo);
/// A message with its destinations.
type Sent = (Vec<PartId>, Vec<u8>);

pub struct Oracle {
    /// All that is sent arrives.
    is_calm: bool,
    serial: u64,
    /// By sender: what is on its way.
    begun: BTreeMap<(Kind, PartId), VecDeque<Sent>>,
    sets: BTreeMap<PartId, Vec<u8>>,
    expected: BTreeMap<(Kind, PartId, PartId), VecDeque<Vec<u8>>>,
    /// Bytes of streams that have not ended for their reader, by number.
    streams: BTreeMap<(usize, u32), Vec<u8>>,
    /// Streams that relays have stopped.
    stopped: BTreeSet<(usize, u32)>,
    over: BTreeSet<(usize, u32)>,
}

impl Oracle {
    pub fn new(is_calm: bool) -> Self {
        Self {
            is_calm,
            serial: 0,
            begun: BTreeMap::new(),
            sets: BTreeMap::new(),
            expected: BTreeMap::new(),
            streams: BTreeMap::new(),
            stopped: BTreeSet::new(),
            over: BTreeSet::new(),
        }
    }

    /// Bytes that no other message has, if they are eight at least.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.serial += 1;
        let serial = self.serial.to_le_bytes();
        (0..length).map(|i| serial[i % 8] ^ (i / 8) as u8).collect()
    }

    pub fn begin(&mut self, kind: Kind, from: PartId, to: &[PartId], bytes: Vec<u8>) {
        self.begun.entry((kind, from)).or_default().push_back((to.to_vec(), bytes));
    }

    /// The oldest that was begun has left, or was refused.
    pub fn sent(&mut self, kind: Kind, from: PartId, sent: Result<(), SendError>) {
        let (to, bytes) =
            self.begun.get_mut(&(kind, from)).and_then(VecDeque::pop_front).expect("it was begun");
        self.expect(kind, from, &to, &bytes, sent);
    }

    fn expect(&mut self, kind: Kind, from: PartId, to: &[PartId], bytes: &[u8], sent: Result<(), SendError>) {
        match sent {
            Ok(()) => {
                for to in to {
                    self.expected.entry((kind, from, *to)).or_default().push_back(bytes.to_vec());
                }
            }
            Err(error) => assert!(!self.is_calm, "{from} cannot send to {to:?}: {error}"),
        }
    }

    pub fn begin_set(&mut self, from: PartId, bytes: Vec<u8>) {
        self.sets.insert(from, bytes);
    }

    /// A message to a set has left for these parts, the last of which may have failed.
    pub fn sent_to_set(&mut self, from: PartId, to: &[PartId], sent: Result<bool, SendError>) {
        let bytes = self.sets.get(&from).cloned().unwrap_or_default();
        self.expect(Kind::Message, from, to, &bytes, sent.map(|_| ()));
    }

    pub fn took(&mut self, (from, to): (PartId, PartId), command: Option<u16>, longest: usize, bytes: &[u8]) {
        if !self.is_calm {
            return;
        }
        let kind = match command {
            Some(number) => {
                assert_eq!(number, 7);
                Kind::Command
            }
            None if bytes.len() > longest => Kind::Long,
            None => Kind::Message,
        };
        let expected = self.expected.get_mut(&(kind, from, to)).and_then(VecDeque::pop_front);
        assert_eq!(expected.as_deref(), Some(bytes), "{kind:?} from {from} to {to}");
    }

    pub fn returned(&self, to: PartId) {
        assert!(!self.is_calm, "something came back to {to}");
    }

    pub fn written(&mut self, (node, number): Stream, bytes: &[u8]) {
        self.streams.entry((node, number.0)).or_default().extend_from_slice(bytes);
    }

    pub fn stream_failed(&mut self, (node, number): Stream, error: StreamError) {
        assert!(!self.is_calm || error == StreamError::Stopped, "stream {} of node{node}: {error}", number.0);
        self.streams.remove(&(node, number.0));
        self.stopped.insert((node, number.0));
    }

    /// A stream is over for its reader: with these bytes, or broken.
    pub fn ended(&mut self, (node, number): Stream, bytes: Option<&[u8]>) {
        self.over.insert((node, number.0));
        let written = self.streams.remove(&(node, number.0));
        if self.is_calm && !self.stopped.contains(&(node, number.0)) {
            assert_eq!(bytes, written.as_deref(), "stream {} of node{node}", number.0);
        }
    }

    pub fn is_open(&self, (node, number): Stream) -> bool {
        !self.over.contains(&(node, number.0))
    }

    /// Nothing is missing.
    pub fn check(&self) {
        let missing = self.expected.iter().find(|(_, queue)| !queue.is_empty());
        assert!(missing.is_none(), "{missing:?} did not arrive");
        let open = self.streams.iter().next().map(|(key, _)| key);
        assert!(open.is_none(), "stream {open:?} has no end");
    }
}
