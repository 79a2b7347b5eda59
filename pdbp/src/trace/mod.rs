//! A trace of a node's activity, as a file for <https://ui.perfetto.dev> (Chrome's trace events, JSON).
//!
//! With the setting `trace` each node keeps a ring of the latest events, and one thread of the process writes them to the file
//! several times per second. The file is a complete JSON array after each write, so it can be opened however the program ended;
//! only events since the last write are missing. The rings bound memory and `trace_events` bounds the file; events without room are
//! counted, and the count is the last entry of the file. A 64th of the file is for parts that come and go and nodes that fail and
//! return, so that a long trace still shows them.
//!
//! Every node is a process of the trace, with these tracks:
//! * *polls* that did work;
//! * *blocks out* and *blocks in*: the hand-over to and from the transport, joined by arrows from sender to receiver, and how
//!   long each block was away, or held by readers here;
//! * *rows*: growing and shrinking of their real space (`curSize`), stalls;
//! * *events*: parts registered and freed, peers failed and restored, blocks refused.
//!
//! Without the setting a poll has one more branch, and the path of a message none: the transport is wrapped only if there is
//! something to record ([`wrap`](NodeTrace::wrap)).

mod backend;
mod file;
mod record;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pdbp_core::Event;
use pdbp_core::id::{NodeId, PartId};

use crate::node::{Backend, NodeEngine};
use file::Writer;
use record::{Record, Row, TraceEvent};

pub(crate) use backend::Traced;
pub(crate) use record::quoted;

/// Maximum events in all rings of a process, and in one ring.
const RINGS: usize = 1 << 18;
const RING: (usize, usize) = (1 << 12, 1 << 16);

/// The trace of the nodes of this process. Dropping the last handle writes the remaining events.
pub(crate) struct Trace {
    rings: Vec<Arc<Ring>>,
    /// Kept for its destructor.
    _writer: Writer,
}

/// A clock in nanoseconds that all processes of a host agree on, whenever they start.
#[derive(Clone, Copy, Debug)]
struct Clock {
    origin: Instant,
    offset: u64,
}

impl Clock {
    fn start() -> Self {
        Self::at(SystemTime::now())
    }

    /// A clock that starts at this time. It counts from 1970 on, and anew every 104 days: a JSON number has 53 bits.
    fn at(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { origin: Instant::now(), offset: (since.as_nanos() % (1 << 53)) as u64 }
    }

    fn now(self) -> u64 {
        self.offset + self.origin.elapsed().as_nanos() as u64
    }
}

/// A node's events that have not been written yet.
pub(crate) struct Ring {
    node: NodeId,
    clock: Clock,
    most: usize,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    records: VecDeque<Record>,
    /// Those that others must not displace.
    rare: VecDeque<Record>,
    dropped: u64,
}

impl Ring {
    fn new(node: NodeId, clock: Clock, most: usize) -> Self {
        Self { node, clock, most, events: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Records an event, replacing the oldest of its kind if there is no room.
    fn push(&self, at: u64, what: TraceEvent) {
        let mut events = self.lock();
        let Events { records, rare, dropped } = &mut *events;
        let records = if what.is_rare() { rare } else { records };
        if records.len() == self.most {
            records.pop_front();
            *dropped += 1;
        }
        records.push_back(Record { at, what });
    }

    /// Takes the events, and the number of events lost before them.
    fn take(&self) -> (VecDeque<Record>, u64) {
        let mut events = std::mem::take(&mut *self.lock());
        events.rare.append(&mut events.records);
        (events.rare, events.dropped)
    }
}

impl Trace {
    /// Creates the file for these nodes, of `all` in the cluster.
    ///
    /// # Errors
    /// The name of the file, and the system's error.
    pub(crate) fn start(
        path: &Path,
        most: usize,
        nodes: &[NodeId],
        all: u16,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let path = file_of(path, nodes, all);
        let clock = Clock::start();
        let each = (RINGS / nodes.len().max(1)).clamp(RING.0, RING.1);
        let rings: Vec<_> = nodes.iter().map(|node| Arc::new(Ring::new(*node, clock, each))).collect();
        match Writer::start(&path, rings.clone(), most) {
            Ok(writer) => Ok(Self { rings, _writer: writer }),
            Err(error) => Err((path, error)),
        }
    }

    /// The trace of a node.
    pub(crate) fn of(self: &Arc<Self>, node: NodeId) -> Option<NodeTrace> {
        let ring = self.rings.iter().find(|ring| ring.node == node)?;
        Some(NodeTrace { ring: Arc::clone(ring), seen: Mutex::default(), _trace: Arc::clone(self) })
    }
}

/// The path of the file: a process that hosts one node of several writes `trace.node2.json` if `trace.json` is requested.
fn file_of(path: &Path, nodes: &[NodeId], all: u16) -> PathBuf {
    match nodes.first() {
        Some(first) if nodes.len() < usize::from(all) => path.with_extension(format!("{first}.json")),
        _ => path.to_path_buf(),
    }
}

/// The recorder of one node.
pub(crate) struct NodeTrace {
    ring: Arc<Ring>,
    seen: Mutex<Seen>,
    _trace: Arc<Trace>,
}

/// The state after the last poll.
#[derive(Default)]
struct Seen {
    /// By peer: real space and stalls, of SCBP and RCBP.
    rows: Vec<[(u32, u64); 2]>,
    /// Parts that the master has replied about, and whether it accepted them.
    changed: Vec<(PartId, bool)>,
}

impl NodeTrace {
    /// Wraps a transport so that its blocks are recorded.
    pub(crate) fn wrap(&self, backend: Backend) -> Backend {
        backend.traced(Arc::clone(&self.ring))
    }

    /// The time at which a poll begins.
    pub(crate) fn begin(&self) -> u64 {
        self.ring.now()
    }

    /// Records a poll that began at `began` and has ended.
    pub(crate) fn polled(&self, engine: &NodeEngine, began: u64, worked: u32) {
        let now = self.ring.now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (part, accepted) in seen.changed.drain(..) {
            let name = engine.part(part).map(|entry| entry.name.to_string().into_boxed_str());
            self.ring.push(now, TraceEvent::Part { local: part.local(), name, accepted });
        }
        if worked == 0 {
            return;
        }
        self.ring.push(began, TraceEvent::Poll { nanos: now.saturating_sub(began), worked });
        let nodes = engine.config().nodes;
        seen.rows.resize(usize::from(nodes), Default::default());
        for peer in (0..nodes).filter_map(NodeId::new) {
            let Some(before) = seen.rows.get_mut(peer.index()) else { continue };
            let rows = [(Row::Send, engine.send_row(peer)), (Row::Recv, engine.recv_row(peer))];
            for ((row, stats), before) in rows.into_iter().zip(before) {
                let Some(stats) = stats else { continue };
                let (real, stalls) = std::mem::replace(before, (stats.space.real(), stats.stalls));
                if stats.space.real() != real {
                    self.ring.push(now, TraceEvent::Space { row, peer, real: stats.space.real() });
                }
                if stats.stalls != stalls {
                    self.ring.push(now, TraceEvent::Stalls { row, peer, count: stats.stalls - stalls });
                }
            }
        }
    }

    /// Records an event of the engine.
    pub(crate) fn event(&self, event: &Event) {
        let what = match event {
            Event::Changed { part, accepted } => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.changed.push((*part, *accepted));
                return;
            }
            Event::PeerFailed { peer, undelivered } => {
                TraceEvent::Failed { peer: *peer, undelivered: *undelivered }
            }
            Event::PeerRestored { peer } => TraceEvent::Restored { peer: *peer },
            Event::Malformed { peer, reason } => TraceEvent::Malformed { peer: *peer, reason: *reason },
            Event::Unroutable { peer, part, messages } => {
                TraceEvent::Unroutable { peer: *peer, part: *part, messages: *messages }
            }
            Event::StreamBroken { mapping } => {
                TraceEvent::Broken { peer: mapping.source, stream: mapping.number.0 }
            }
            Event::StreamStopped { number, relay, dest, .. } => {
                TraceEvent::Stopped { relay: *relay, dest: *dest, stream: number.0 }
            }
            Event::NotForwarded { source, dest, messages } => {
                TraceEvent::NotForwarded { source: *source, dest: *dest, messages: *messages }
            }
            _ => return,
        };
        self.ring.push(self.ring.now(), what);
    }
}
