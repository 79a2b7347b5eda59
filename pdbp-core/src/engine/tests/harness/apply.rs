//! Carries out operations.

use std::collections::VecDeque;
use std::collections::btree_map::Entry;
use std::vec;
use std::vec::Vec;

use pdbp_core::cdu::{CduClass, Route, SegmentHeader, flag};
use pdbp_core::engine::StreamTag;
use pdbp_core::outbox::{self, Due, SendError};
use pdbp_core::pipe::StreamState;
use pdbp_core::{OpenBlock, OpenError};

use super::host::{Host, Outgoing};
use super::oracle::Flow;
use super::{BODY, Cluster, Operation, PARTS, node, part};

impl Cluster {
    pub fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Send { node, source, to, dest, length } => self.send(node, source, (to, dest), length),
            Operation::Push { node, source, to, dest, length, urgent, segment } => {
                self.push(node, source, (to, dest), length, urgent, segment);
            }
            Operation::PushSet { node, source, length, mask } => self.push_set(node, source, length, mask),
            Operation::Submit { node, to, urgent } => self.submit(node, to, urgent),
            Operation::Flush { node } => {
                if let Some(host) = self.hosts[node].as_mut() {
                    host.outbox.flush(&mut host.engine, Due::All);
                }
            }
            Operation::Poll { node } => {
                self.poll(node);
                self.now = self.now.after(10);
            }
            Operation::PollArrivals { node } => {
                if let Some(host) = self.hosts[node].as_mut()
                    && !host.engine.has_pending_work()
                {
                    host.engine.poll_arrivals(&mut host.pipes);
                    self.check(node);
                }
            }
            Operation::Read { node, part, count, keep } => self.read(node, part, count, keep),
            Operation::Release { node } => self.release(node),
            Operation::Segment { node: i, source, to, dest, length, last } => {
                self.segment(i, source, (to, dest), length, last);
            }
            Operation::Gate { from, to, closed } => self.net.borrow_mut().links[from][to].closed = closed,
            Operation::Busy { from, to, times } => self.net.borrow_mut().links[from][to].busy = times,
            Operation::Flip { from, to, at, bits } => {
                self.net.borrow_mut().links[from][to].flip = Some((at, bits));
            }
            Operation::Garble { from, to, times } => {
                self.oracle.borrow_mut().garbled = true;
                self.net.borrow_mut().links[from][to].garbled = times;
            }
            Operation::Barrier { node } => {
                if let Some(host) = self.hosts[node].as_mut().filter(|h| h.barrier.is_none()) {
                    host.barriers += 1;
                    host.barrier = Some(host.engine.arrive());
                    assert_eq!(host.barrier, Some(host.barriers));
                }
            }
            Operation::Quiet { node } => {
                let serial = self.oracle.borrow().serial;
                if let Some(host) = self.hosts[node].as_mut().filter(|h| h.quiet.is_none()) {
                    host.quiet = Some((host.engine.request_quiescence(), serial));
                }
            }
            Operation::Wait { nanos } => self.now = self.now.after(nanos),
            Operation::Kill { node } => {
                // The master's failure has not been handled yet.
                if node != 0 && self.live().len() > 1 {
                    self.kill(node);
                }
            }
            Operation::Cut { from, to } => self.cut(from, to),
            Operation::Mend { from, to } => self.mend(from, to),
            Operation::Inject { from, to, seed } => {
                let bytes = self.net.borrow().forge(from, to, seed);
                self.net.borrow_mut().inject(from, to, bytes);
            }
        }
        for i in 0..self.hosts.len() {
            self.check(i);
        }
    }

    fn send(&mut self, i: usize, source: u16, (to, dest): (usize, u16), length: usize) {
        let longest = self.setup.config(i).longest_unsegmented();
        let data = self.fill(length.min(longest));
        let route = Route::new(CduClass::ShortMessage, 1, part(i, source), part(to, dest));
        let (now, gone) = (self.now, self.dead.contains(&to));
        let Some(host) = self.hosts[i].as_mut() else { return };
        let sent = host.engine.hop(node(to)).map_err(SendError::Open).and_then(|hop| {
            host.outbox.send(&mut host.engine, now, hop, &outbox::Outgoing::message(route, &data))
        });
        match sent {
            Ok(()) => {
                let flow = (part(i, source).raw(), part(to, dest).raw(), false, 1);
                if !gone {
                    self.oracle.borrow_mut().expect(flow, data);
                }
            }
            Err(SendError::Open(OpenError::WouldBlock)) => {}
            // The node, or its relay.
            Err(SendError::Open(_)) => assert!(gone || host.engine.has_failed(node(to))),
            Err(e) => panic!("{e:?}"),
        }
    }

    fn push(
        &mut self,
        i: usize,
        source: u16,
        (to, dest): (usize, u16),
        length: usize,
        urgent: bool,
        segment: bool,
    ) {
        let mut data = self.fill(length);
        let class = if urgent { CduClass::Command } else { CduClass::ShortMessage };
        let route = Route::new(class, 0, part(i, source), part(to, dest));
        let flow = (part(i, source).raw(), part(to, dest).raw(), urgent, 0);
        for _ in 0..2 {
            let Some((block, messages)) = self.block(i, to, urgent) else { return };
            let room = if segment {
                block.reserve_segment(route, SegmentHeader::new(1, 2, 3), data.len())
            } else {
                block.reserve(route, data.len())
            };
            if let Ok(room) = room {
                room.copy_from_slice(&data);
                messages.push((flow, data));
                return;
            }
            self.submit(i, to, urgent);
            data.truncate(BODY - 40);
        }
        panic!("an empty block has no room for {length} bytes");
    }

    fn push_set(&mut self, i: usize, source: u16, length: usize, mask: u8) {
        let all = (0..self.hosts.len()).flat_map(|n| (0..PARTS).map(move |p| part(n, p)));
        let set: Vec<_> = all.enumerate().filter(|(k, _)| mask & 1 << (k % 8) != 0).map(|(_, p)| p).collect();
        let data = self.fill(length);
        let route = Route::new(CduClass::ShortMessage, 0, part(i, source), part(i, source));
        for to in 0..self.hosts.len() {
            let here: Vec<_> = set.iter().copied().filter(|p| p.node().index() == to).collect();
            if here.is_empty() {
                continue;
            }
            for _ in 0..2 {
                let Some((block, messages)) = self.block(i, to, false) else { break };
                if let Ok(room) = block.reserve_set(route, &set, None, data.len()) {
                    room.copy_from_slice(&data);
                    for p in &here {
                        messages.push(((part(i, source).raw(), p.raw(), false, 0), data.clone()));
                    }
                    break;
                }
                self.submit(i, to, false);
            }
        }
    }

    fn fill(&self, length: usize) -> Vec<u8> {
        let serial = self.oracle.borrow().serial;
        (0..length).map(|i| (serial.wrapping_mul(31).wrapping_add(i as u64 * 7)) as u8).collect()
    }

    /// Returns the block that the host is filling for a destination; `None` if none is available.
    fn block(&mut self, i: usize, to: usize, urgent: bool) -> Option<&mut (OpenBlock, Vec<(Flow, Vec<u8>)>)> {
        let gone = self.dead.contains(&to);
        let host = self.hosts[i].as_mut()?;
        if !host.open.contains_key(&(to, urgent)) {
            match host.engine.open(node(to)) {
                Ok(block) => {
                    let block = if urgent { block.into_urgent() } else { block };
                    host.open.insert((to, urgent), (block, vec![]));
                }
                Err(OpenError::WouldBlock) => return None,
                Err(e) => {
                    assert!(gone || host.engine.has_failed(node(to)), "{e}");
                    return None;
                }
            }
        }
        host.open.get_mut(&(to, urgent))
    }

    pub fn submit(&mut self, i: usize, to: usize, urgent: bool) {
        let Some(host) = self.hosts[i].as_mut() else { return };
        if let Some((block, messages)) = host.open.remove(&(to, urgent)) {
            host.engine.submit(block);
            for (flow, data) in messages {
                self.oracle.borrow_mut().expect(flow, data);
            }
        }
    }

    pub(super) fn segment(
        &mut self,
        i: usize,
        source: u16,
        (to, dest): (usize, u16),
        length: usize,
        last: bool,
    ) {
        let longest = self.setup.config(i).longest_unsegmented();
        let data = self.fill(length.min(longest));
        let gone = self.dead.contains(&to);
        let Some(host) = self.hosts[i].as_mut() else { return };
        if let Entry::Vacant(entry) = host.streams.entry(source) {
            if gone {
                return;
            }
            let Ok((group, number)) = host.engine.open_stream(part(i, source), node(to)) else { return };
            let tag = StreamTag { group, number, segment: 0, dest: part(to, dest), flags: flag::FIRST };
            let failures = host.pipes.failures.get(&to).copied().unwrap_or(0);
            entry.insert(Outgoing { tag, source, failures });
        }
        let outgoing = &host.streams[&source];
        let (mut tag, source) = (outgoing.tag, outgoing.source);
        let to = tag.dest.node();
        if host.pipes.failures.get(&to.index()).is_some_and(|failures| *failures > outgoing.failures) {
            // Its reader has been notified too.
            host.streams.remove(&source);
            host.engine.close_stream((tag.group, tag.number)).unwrap();
            return;
        }
        if last {
            tag.flags |= flag::LAST;
        }
        let Ok(mut block) = host.engine.open(tag.dest.node()) else {
            // The node, or its relay.
            if self.dead.contains(&to.index()) || host.engine.has_failed(to) {
                host.streams.remove(&source);
                host.engine.close_stream((tag.group, tag.number)).unwrap();
            }
            return;
        };
        block.set_stream(tag);
        block.push(Route::new(CduClass::Stream, 0, part(i, source), tag.dest), &data).unwrap();
        host.engine.submit(block);
        let mut oracle = self.oracle.borrow_mut();
        oracle.serial += 1;
        let entry = (oracle.serial, tag.segment, last, data);
        if !oracle.dead.contains(&tag.dest.node().index()) {
            let place = (tag.dest.node().index(), VecDeque::new());
            oracle.streams.entry((i, tag.number.0)).or_insert(place).1.push_back(entry);
        }
        if last {
            host.streams.remove(&source);
            host.closing.push(tag);
        } else if let Some(outgoing) = host.streams.get_mut(&source) {
            outgoing.tag.segment += 1;
            outgoing.tag.flags = 0;
        }
        drop(oracle);
        self.close_streams(i);
    }

    /// Returns the pipes of streams that are over, and of those that a relay has stopped; the rest of the latter does not arrive.
    pub(super) fn close_streams(&mut self, i: usize) {
        let Some(Host { engine, streams, closing, .. }) = self.hosts[i].as_mut() else { return };
        let mut oracle = self.oracle.borrow_mut();
        let mut ends = |tag: &StreamTag, over: bool| {
            let state = engine.stream_state((tag.group, tag.number));
            let stopped = state == StreamState::Stopped;
            let ends =
                stopped || over && (state != StreamState::Requested || engine.has_failed(tag.dest.node()));
            if ends {
                engine.close_stream((tag.group, tag.number)).unwrap();
            }
            if stopped {
                oracle.stop(i, tag.number);
            }
            ends
        };
        streams.retain(|_, outgoing| !ends(&outgoing.tag, false));
        closing.retain(|tag| !ends(tag, true));
    }
}
