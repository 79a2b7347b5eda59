//! Future events, ordered by time; events due at the same time happen in the order planned.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;

/// A kind of event. Nodes are given by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A frame arrives.
    Frame {
        /// Its sender.
        from: u16,
        /// Its receiver.
        to: u16,
        /// Session of the link.
        session: u32,
        /// Its number in the session, from 0.
        sequence: u64,
    },
    /// An acknowledgement arrives at the sender of frames.
    Ack {
        /// The sender of the frames.
        from: u16,
        /// Their receiver.
        to: u16,
        /// Session of the link.
        session: u32,
        /// All frames below this number have arrived.
        received: u64,
        /// All frames below this number have been passed to the receiving node.
        released: u64,
    },
    /// A sender checks whether frames must be sent again.
    Timer {
        /// The sender.
        from: u16,
        /// The receiver.
        to: u16,
        /// Session of the link.
        session: u32,
        /// Which setting of the timer this is.
        serial: u32,
    },
    /// Two nodes that cannot reach each other have been silent for long enough.
    Watch {
        /// The one with the smaller index.
        low: u16,
        /// The other.
        high: u16,
        /// Which of the watches this is.
        serial: u32,
    },
    /// A node notices that a link is down.
    Notice {
        /// The node.
        node: u16,
        /// The other end.
        peer: u16,
        /// The session that follows.
        session: u32,
    },
    /// A link that was down comes up.
    Restore {
        /// The end with the smaller index.
        low: u16,
        /// The other.
        high: u16,
        /// The session that follows the one that failed.
        session: u32,
    },
    /// The host of a node runs.
    Wake {
        /// The node.
        node: u16,
        /// How often it had started by then.
        life: u32,
    },
    /// Something that the driver of the network has planned under this number.
    Act(u32),
}

impl Kind {
    /// Words that contain all of the event, for the digest of a run.
    fn words(self) -> [u64; 3] {
        let ends = |a: u16, b: u16| u64::from(a) << 16 | u64::from(b);
        let tagged = |tag: u64, session: u32, ends: u64| tag << 60 | u64::from(session) << 32 | ends;
        match self {
            Self::Frame { from, to, session, sequence } => {
                [tagged(1, session & 0xFFF_FFFF, ends(from, to)), sequence, 0]
            }
            Self::Ack { from, to, session, received, released } => {
                [tagged(2, session & 0xFFF_FFFF, ends(from, to)), received, released]
            }
            Self::Timer { from, to, session, serial } => {
                [tagged(3, session & 0xFFF_FFFF, ends(from, to)), serial.into(), 0]
            }
            Self::Watch { low, high, serial } => [tagged(4, 0, ends(low, high)), serial.into(), 0],
            Self::Notice { node, peer, session } => [tagged(5, session, ends(node, peer)), 0, 0],
            Self::Restore { low, high, session } => [tagged(6, session, ends(low, high)), 0, 0],
            Self::Wake { node, life } => [tagged(7, life, ends(0, node)), 0, 0],
            Self::Act(number) => [tagged(8, 0, number.into()), 0, 0],
        }
    }
}

/// An event and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<K = Kind> {
    /// Nanoseconds since the start.
    pub at: u64,
    /// Its position among all planned events.
    serial: u64,
    /// What happens.
    pub kind: K,
}

impl<K: Eq> Ord for Event<K> {
    /// The event that happens first is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}

impl<K: Eq> PartialOrd for Event<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, kind, .. } = self;
        write!(f, "{at:>14} ")?;
        match kind {
            Kind::Frame { from, to, session, sequence } => {
                write!(f, "frame {sequence} of session {session} from node{from} at node{to}")
            }
            Kind::Ack { from, to, session, received, released } => write!(
                f,
                "acknowledgement from node{to} at node{from}: {received} received, {released} released, session {session}"
            ),
            Kind::Timer { from, to, .. } => write!(f, "node{from} looks after frames to node{to}"),
            Kind::Watch { low, high, .. } => write!(f, "node{low} and node{high} have been apart for long"),
            Kind::Notice { node, peer, session } => {
                write!(
                    f,
                    "node{node} notices that session {} with node{peer} is over",
                    session.wrapping_sub(1)
                )
            }
            Kind::Restore { low, high, session } => {
                write!(f, "session {session} of node{low} and node{high} begins")
            }
            Kind::Wake { node, life } => write!(f, "node{node} runs (life {life})"),
            Kind::Act(number) => write!(f, "act {number}"),
        }
    }
}

/// All future events.
#[derive(Debug)]
pub(crate) struct Queue<K = Kind> {
    heap: BinaryHeap<Event<K>>,
    planned: u64,
}

impl<K: Eq> Default for Queue<K> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }
}

impl<K: Eq> Queue<K> {
    pub(crate) fn plan(&mut self, at: u64, kind: K) {
        self.heap.push(Event { at, serial: self.planned, kind });
        self.planned += 1;
    }

    /// Returns the time of the next event.
    pub(crate) fn due(&self) -> Option<u64> {
        self.heap.peek().map(|event| event.at)
    }

    /// Takes the next event that is due at `until` or before.
    pub(crate) fn next(&mut self, until: u64) -> Option<Event<K>> {
        self.heap.peek().filter(|event| event.at <= until)?;
        self.heap.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Number of events planned so far.
    pub(crate) fn planned(&self) -> u64 {
        self.planned
    }
}

/// A number that depends on all events and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) const NEW: Self = Self(0xCBF2_9CE4_8422_2325);

    pub(crate) fn add(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 29);
    }

    pub(super) fn add_event(&mut self, event: &Event) {
        self.add(event.at);
        event.kind.words().into_iter().for_each(|word| self.add(word));
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

/// The latest events.
#[derive(Debug)]
pub(super) struct Trace {
    last: VecDeque<Event>,
    most: usize,
}

impl Trace {
    pub(super) fn new(most: usize) -> Self {
        Self { last: VecDeque::with_capacity(most), most }
    }

    pub(super) fn record(&mut self, event: Event) {
        if self.last.len() >= self.most {
            self.last.pop_front();
        }
        if self.most > 0 {
            self.last.push_back(event);
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.last.iter().map(Event::to_string).collect()
    }
}
