//! What was sent and must arrive.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;

use pdbp_core::id::StreamNo;

/// The parts, the urgency and the route (command number) within which messages are ordered.
pub(super) type Flow = (u32, u32, bool, u16);

#[derive(Default)]
pub struct Oracle {
    expected: BTreeMap<Flow, VecDeque<(u64, Vec<u8>)>>,
    /// By source node and number: the destination node and the segments.
    pub(super) streams: BTreeMap<(usize, u32), (usize, VecDeque<(u64, u32, bool, Vec<u8>)>)>,
    pub serial: u64,
    /// Bytes may change in flight: messages that do not arrive are skipped.
    pub lossy: bool,
    /// Control blocks may be unreadable, which loses nothing.
    pub garbled: bool,
    /// Pairs of nodes whose link has failed: some messages between them may not arrive.
    doubtful: BTreeSet<(usize, usize)>,
    /// Nodes whose messages are not expected.
    pub(super) dead: Vec<usize>,
    pub delivered: u64,
    /// Streams for which a relay had no room.
    pub stopped: u32,
    /// Streams given up: their readers may still get some of what was sent before.
    given_up: BTreeSet<(usize, u32)>,
}

impl Oracle {
    pub(super) fn expect(&mut self, flow: Flow, data: Vec<u8>) {
        if self.is_dead(flow) {
            return;
        }
        self.serial += 1;
        self.expected.entry(flow).or_default().push_back((self.serial, data));
    }

    /// Notes that the link between two nodes has failed, as seen by one of them.
    pub fn doubt(&mut self, a: usize, b: usize) {
        self.doubtful.insert((a.min(b), a.max(b)));
    }

    pub(super) fn doubts(&self, a: usize, b: usize) -> bool {
        self.lossy || self.doubtful.contains(&(a.min(b), a.max(b)))
    }

    /// Whether no link has failed.
    pub(super) fn is_sure(&self) -> bool {
        !self.lossy && self.doubtful.is_empty()
    }

    fn doubts_flow(&self, flow: &Flow) -> bool {
        self.doubts((flow.0 >> 16) as usize, (flow.1 >> 16) as usize)
    }

    pub(super) fn is_dead(&self, flow: Flow) -> bool {
        self.dead.iter().any(|d| [flow.0, flow.1].iter().any(|raw| (raw >> 16) as usize == *d))
    }

    pub(super) fn took(&mut self, flow: Flow, data: &[u8]) {
        self.delivered += 1;
        if self.is_dead(flow) {
            return;
        }
        let lossy = self.doubts_flow(&flow);
        let queue = self.expected.entry(flow).or_default();
        loop {
            match queue.pop_front() {
                Some((_, expected)) if expected == data => return,
                Some(_) if lossy => {}
                other => panic!("flow {flow:?}: got {data:?}, expected {other:?}"),
            }
        }
    }

    pub(super) fn took_segment(
        &mut self,
        (from, to): (usize, usize),
        number: StreamNo,
        got: (u32, bool, bool),
        data: &[u8],
    ) {
        self.delivered += 1;
        let lossy = self.doubts(from, to);
        if self.dead.contains(&from) || (lossy && self.given_up.contains(&(from, number.0))) {
            return;
        }
        let (_, queue) = self.streams.entry((from, number.0)).or_default();
        let (segment, last, aborted) = got;
        if aborted {
            assert!(lossy, "a stream was broken");
            queue.clear();
            return;
        }
        let (_, expected, is_last, bytes) = queue.pop_front().expect("a segment that was not sent");
        assert_eq!((expected, is_last, &bytes[..]), (segment, last, data), "stream {number:?} from {from}");
    }

    /// Notes that a relay has stopped a stream: the rest of it is not expected.
    pub(super) fn stop(&mut self, from: usize, number: StreamNo) {
        self.streams.remove(&(from, number.0));
        self.given_up.insert((from, number.0));
        self.stopped += 1;
    }

    /// The oldest undelivered message among those between these nodes that must be delivered.
    pub fn oldest(&self, of: impl Fn(usize) -> bool) -> Option<u64> {
        let sure = |a: usize, b: usize| of(a) && of(b) && !self.doubts(a, b);
        let messages = self.expected.iter().filter(|(l, _)| sure((l.0 >> 16) as usize, (l.1 >> 16) as usize));
        let messages = messages.filter_map(|(_, q)| q.front().map(|m| m.0));
        let sure = self.streams.iter().filter(|((source, _), (dest, _))| sure(*source, *dest));
        let segments = sure.filter_map(|(_, q)| q.1.front().map(|m| m.0));
        messages.chain(segments).min()
    }

    /// Forgets everything about a node that is gone.
    pub(super) fn forget(&mut self, dead: usize) {
        self.dead.push(dead);
        let of = |raw: u32| (raw >> 16) as usize == dead;
        self.expected.retain(|flow, _| !of(flow.0) && !of(flow.1));
        self.streams.retain(|(source, _), (dest, _)| *source != dead && *dest != dead);
    }
}
