//! Endpoints on a network in memory, and what is done with them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pdbp_core::Transport;
use pdbp_core::endpoint::{
    Barrier, Endpoint, EndpointStorage, LongSend, Message, Quiescence, SendError, SetSend, StreamIn,
    StreamPiece,
};
use pdbp_core::engine::LocalPart;
use pdbp_core::id::{PartId, Time};
use pdbp_core::outbox::StreamOut;
use pdbp_core::tables::PartKind;
use pdbp_core::umb::{HeapMemory, stride};

use super::harness::{Net, Operation, PARTS, Policy, Setup, part, port};
use super::oracle::{Kind, Oracle};

/// Bytes of the longest message that a node puts together.
const LONG: usize = 6 * 1024;
/// Rounds without work after which all is at rest.
const REST: u32 = 30;

type Set = SetSend<Vec<PartId>, Vec<u8>>;

struct Node<T: Transport> {
    endpoint: Endpoint<'static, T, HeapMemory, Policy>,
    /// By part.
    long: Vec<Option<LongSend<Vec<u8>>>>,
    set: Option<(PartId, Set)>,
    /// By part.
    streams: BTreeMap<u16, StreamOut>,
    finishing: Vec<StreamOut>,
    readers: Vec<(StreamIn, Vec<u8>)>,
    held: Vec<(Message<'static>, Vec<u8>)>,
    barrier: Option<Barrier>,
    quiet: Option<Quiescence>,
}

pub struct World<T: Transport> {
    setup: Setup,
    nodes: Vec<Option<Node<T>>>,
    /// What is left of nodes that were killed: the network may have their blocks to the end.
    graves: Vec<Node<T>>,
    net: Rc<RefCell<Net>>,
    now: Time,
    oracle: Oracle,
}

/// Endpoints that know each other's parts. `is_calm`: all that is sent arrives.
pub fn world(setup: &Setup, is_calm: bool) -> World<impl Transport + use<>> {
    let memories: Vec<_> = (0..setup.nodes)
        .map(|i| HeapMemory::new(stride(setup.body) * setup.blocks(i) as usize).unwrap())
        .collect();
    let net = Rc::new(RefCell::new(Net::new(setup, &memories)));
    let nodes = memories.into_iter().enumerate().map(|(i, memory)| {
        let config = setup.config(i);
        let blocks = (setup.blocks(i) as usize, setup.parts);
        let storage = EndpointStorage::allocate(&config, blocks, setup.pipe.min(64), (1, LONG));
        let endpoint = Endpoint::new(config, setup.policy, port(i, &net), memory, storage).unwrap();
        Some(Node {
            endpoint,
            long: (0..PARTS).map(|_| None).collect(),
            set: None,
            streams: BTreeMap::new(),
            finishing: Vec::new(),
            readers: Vec::new(),
            held: Vec::new(),
            barrier: None,
            quiet: None,
        })
    });
    let nodes = nodes.collect();
    let oracle = Oracle::new(is_calm);
    let mut world = World { setup: setup.clone(), nodes, graves: Vec::new(), net, now: Time(1), oracle };
    world.introduce();
    world
}

impl<T: Transport> World<T> {
    fn introduce(&mut self) {
        let all = self.nodes.len() * usize::from(PARTS);
        self.run(60 * self.nodes.len().max(3), |node| node.endpoint.engine().is_ready());
        for (i, node) in self.nodes.iter_mut().enumerate() {
            for local in 0..PARTS {
                let id = node.as_mut().unwrap().endpoint.register(&format!("p{local}"), PartKind::Cpu);
                assert_eq!(id, Ok(part(i, local)));
            }
        }
        self.run(100 + 60 * all, |node| {
            node.endpoint.engine().parts().count() == all
                && (0..PARTS).all(|local| node.endpoint.engine().local_part(local) == LocalPart::Registered)
        });
    }

    fn run(&mut self, rounds: usize, done: impl Fn(&Node<T>) -> bool) {
        for _ in 0..rounds {
            if self.nodes.iter().flatten().all(&done) {
                return;
            }
            (0..self.nodes.len()).for_each(|i| _ = self.poll(i));
            self.now = self.now.after(100);
        }
        panic!("not done after {rounds} rounds");
    }

    fn poll(&mut self, i: usize) -> u32 {
        let Some(node) = self.nodes[i].as_mut() else { return 0 };
        let worked = node.endpoint.poll(self.now);
        while node.endpoint.poll_event().is_some() {}
        self.go_on(i);
        let ended = std::mem::take(&mut self.net.borrow_mut().ended);
        for (a, b) in ended {
            let is_cut = self.net.borrow().is_cut(a, b);
            if is_cut {
                self.net.borrow_mut().mend(a, b);
            } else {
                self.net.borrow_mut().ended.push((a, b));
            }
        }
        worked
    }

    /// Sends more of what a node has begun.
    fn go_on(&mut self, i: usize) {
        let Some(node) = self.nodes[i].as_mut() else { return };
        for local in 0..PARTS {
            let slot = &mut node.long[usize::from(local)];
            let Some(sending) = slot else { continue };
            match node.endpoint.poll_long(sending) {
                Ok(false) => {}
                sent => {
                    self.oracle.sent(Kind::Long, part(i, local), sent.map(|_| ()));
                    *slot = None;
                }
            }
        }
        if let Some((from, sending)) = &mut node.set {
            let before = sending.remaining().to_vec();
            let sent = node.endpoint.poll_set(sending);
            let taken = before.len() - sending.remaining().len();
            self.oracle.sent_to_set(*from, &before[..taken], sent);
            if sending.remaining().is_empty() {
                node.set = None;
            }
        }
        let Node { finishing, endpoint, .. } = node;
        finishing.retain_mut(|stream| match endpoint.poll_finish(stream) {
            Ok(over) => !over,
            Err(error) => {
                self.oracle.stream_failed((i, stream.number()), error);
                false
            }
        });
        node.barrier.take_if(|barrier| node.endpoint.has_passed(*barrier));
        node.quiet.take_if(|asked| node.endpoint.is_quiescent(*asked));
    }

    pub fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Send { node: i, source, to, dest, length } => {
                let data = self.oracle.bytes(length.min(self.longest(i)));
                self.send(i, (source, part(to, dest)), Kind::Message, data, |endpoint, from, to, data| {
                    endpoint.send(from, to, data)
                });
            }
            Operation::Push { node: i, source, to, dest, length, urgent: true, .. } => {
                let data = self.oracle.bytes(length.min(self.longest(i)));
                self.send(i, (source, part(to, dest)), Kind::Command, data, |endpoint, from, to, data| {
                    endpoint.send_command(from, to, 7, data)
                });
            }
            Operation::Push { node: i, source, to, dest, length, segment: true, .. } => {
                self.begin_long(i, source, part(to, dest), (5 * length).clamp(1, LONG));
            }
            Operation::Push { node: i, source, to, dest, length, .. } => {
                self.train(i, source, part(to, dest), length.min(40));
            }
            Operation::PushSet { node: i, source, length, mask } => self.begin_set(i, source, length, mask),
            Operation::Submit { node: i, .. } => self.go_on(i),
            Operation::Flush { node: i } => {
                self.nodes[i].iter_mut().for_each(|node| node.endpoint.flush());
            }
            // Endpoints have one way to poll.
            Operation::Poll { node: i } | Operation::PollArrivals { node: i } => {
                self.poll(i);
                self.now = self.now.after(10);
            }
            Operation::Read { node: i, part, count, keep } => self.read(i, part, count, keep),
            Operation::Release { node: i } => self.release(i),
            Operation::Segment { node: i, source, to, dest, length, last } => {
                self.write(i, source, part(to, dest), length, last);
            }
            Operation::Barrier { node: i } => {
                let node = self.nodes[i].as_mut().filter(|node| node.barrier.is_none());
                node.into_iter().for_each(|node| node.barrier = Some(node.endpoint.barrier()));
            }
            Operation::Quiet { node: i } => {
                let node = self.nodes[i].as_mut().filter(|node| node.quiet.is_none());
                node.into_iter().for_each(|node| node.quiet = Some(node.endpoint.quiesce()));
            }
            Operation::Wait { nanos } => self.now = self.now.after(nanos),
            other => self.disturb(other),
        }
    }

    /// What happens to the network.
    fn disturb(&mut self, operation: Operation) {
        let mut net = self.net.borrow_mut();
        match operation {
            Operation::Gate { from, to, closed } => net.links[from][to].closed = closed,
            Operation::Busy { from, to, times } => net.links[from][to].busy = times,
            Operation::Flip { from, to, at, bits } => net.links[from][to].flip = Some((at, bits)),
            Operation::Garble { from, to, times } => net.links[from][to].garbled = times,
            Operation::Cut { from, to } if net.is_up(from, to) => net.cut(from, to),
            Operation::Mend { from, to } if net.is_cut(from, to) => net.mend(from, to),
            Operation::Inject { from, to, seed } => {
                let bytes = net.forge(from, to, seed);
                net.inject(from, to, bytes);
            }
            // As in the property tests the primary stays.
            Operation::Kill { node: i } if i != 0 => {
                net.kill(i);
                drop(net);
                self.release(i);
                self.graves.extend(self.nodes[i].take());
            }
            _ => {}
        }
    }

    fn longest(&self, i: usize) -> usize {
        self.setup.config(i).longest_unsegmented()
    }

    fn send(
        &mut self,
        i: usize,
        (source, to): (u16, PartId),
        kind: Kind,
        data: Vec<u8>,
        how: impl FnOnce(
            &mut Endpoint<'static, T, HeapMemory, Policy>,
            PartId,
            PartId,
            &[u8],
        ) -> Result<(), SendError>,
    ) {
        let Some(node) = self.nodes[i].as_mut() else { return };
        let from = part(i, source);
        let sent = how(&mut node.endpoint, from, to, &data);
        if sent != Err(SendError::WouldBlock) {
            self.oracle.begin(kind, from, &[to], data);
            self.oracle.sent(kind, from, sent);
        }
    }

    fn train(&mut self, i: usize, source: u16, to: PartId, length: usize) {
        let Some(node) = self.nodes[i].as_mut() else { return };
        let from = part(i, source);
        let bytes = self.oracle.bytes(length * 5);
        if length == 0 {
            let sent = node.endpoint.send_with(from, to, 0, |room| assert!(room.is_empty()));
            if sent.is_ok() {
                self.oracle.begin(Kind::Message, from, &[to], Vec::new());
                self.oracle.sent(Kind::Message, from, Ok(()));
            }
            return;
        }
        let sent = node.endpoint.send_train(from, to, &bytes, length);
        for message in bytes.chunks(length).take(sent.unwrap_or(0)) {
            self.oracle.begin(Kind::Message, from, &[to], message.to_vec());
            self.oracle.sent(Kind::Message, from, Ok(()));
        }
    }

    fn begin_long(&mut self, i: usize, source: u16, to: PartId, length: usize) {
        let Some(node) = self.nodes[i].as_mut() else { return };
        let from = part(i, source);
        // Shorter ones would go with the others.
        let bytes = self.oracle.bytes(length.max(self.setup.config(i).longest_unsegmented() + 1));
        match node.endpoint.begin_long(from, to, bytes.clone()) {
            Ok(sending) => {
                self.oracle.begin(Kind::Long, from, &[to], bytes);
                node.long[usize::from(source)] = Some(sending);
            }
            Err(error) => assert_eq!(error, SendError::Unfinished(from)),
        }
    }

    fn begin_set(&mut self, i: usize, source: u16, length: usize, mask: u8) {
        let all = (0..self.setup.nodes).flat_map(|n| (0..PARTS).map(move |p| part(n, p)));
        let set: Vec<_> = all.enumerate().filter(|(k, _)| mask & 1 << (k % 8) != 0).map(|(_, p)| p).collect();
        let Some(node) = self.nodes[i].as_mut().filter(|node| node.set.is_none()) else { return };
        let (from, bytes) = (part(i, source), self.oracle.bytes(length.min(100)));
        let sending = node.endpoint.begin_set(from, set, bytes.clone()).expect("the set is sorted");
        self.oracle.begin_set(from, bytes);
        node.set = Some((from, sending));
    }

    fn write(&mut self, i: usize, source: u16, to: PartId, length: usize, last: bool) {
        let Some(Node { endpoint, streams, finishing, .. }) = self.nodes[i].as_mut() else { return };
        let Some(mut stream) =
            streams.remove(&source).or_else(|| endpoint.open_stream(part(i, source), to).ok())
        else {
            return;
        };
        let data = self.oracle.bytes(length);
        let key = (i, stream.number());
        match endpoint.write(&mut stream, &data) {
            Ok(taken) => {
                self.oracle.written(key, &data[..taken]);
                endpoint.flush_stream(&mut stream);
                if last {
                    finishing.push(stream);
                } else {
                    streams.insert(source, stream);
                }
            }
            Err(error) => {
                self.oracle.stream_failed(key, error);
                endpoint.abort_stream(stream);
            }
        }
    }

    fn read(&mut self, i: usize, local: u16, count: usize, keep: bool) {
        let Some(node) = self.nodes[i].as_mut().filter(|_| local < PARTS) else { return };
        let (me, oracle, endpoint) = (part(i, local), &mut self.oracle, &mut node.endpoint);
        let longest = self.setup.config(i).longest_unsegmented();
        for turn in 0..count {
            let read = match (keep, turn % 3) {
                (true, _) | (_, 0) => endpoint.poll_recv(me).is_some_and(|message| {
                    oracle.took((message.source(), me), message.command(), longest, message.bytes());
                    let bytes = message.bytes().to_vec();
                    if keep {
                        node.held.push((message, bytes))
                    } else {
                        endpoint.release(message)
                    }
                    true
                }),
                (_, 1) => endpoint.poll_recv_batch(me).is_some_and(|batch| {
                    let each = batch.message_len();
                    for n in 0..batch.count() {
                        let bytes = &batch.bytes()[n * each..][..each];
                        oracle.took((batch.source(), me), batch.command(), longest, bytes);
                    }
                    endpoint.release_batch(batch);
                    true
                }),
                _ => {
                    let each = |info: pdbp_core::inbox::Info, bytes: &[u8]| {
                        let command = info.is_command().then(|| info.command());
                        oracle.took((info.source(), me), command, longest, bytes);
                    };
                    endpoint.recv_each(me, each) > 0
                }
            };
            if !read {
                break;
            }
        }
        while let Some(returned) = endpoint.poll_returned(me) {
            oracle.returned(me);
            endpoint.release_returned(returned);
        }
        while let Some(stream) = endpoint.accept(me) {
            node.readers.push((stream, Vec::new()));
        }
        node.readers.retain_mut(|(stream, bytes)| {
            loop {
                let key = (stream.source().node().index(), stream.number());
                match endpoint.poll_stream(stream) {
                    StreamPiece::Data(segment) => {
                        bytes.extend_from_slice(segment.bytes());
                        endpoint.release_segment(segment);
                    }
                    StreamPiece::Nothing => return true,
                    StreamPiece::End => oracle.ended(key, Some(bytes)),
                    StreamPiece::Broken => oracle.ended(key, None),
                }
                if !oracle.is_open(key) {
                    return false;
                }
            }
        });
    }

    fn release(&mut self, i: usize) {
        let Some(node) = self.nodes[i].as_mut() else { return };
        for (message, bytes) in node.held.drain(..) {
            assert_eq!(message.bytes(), bytes, "a message has changed while it was held");
            node.endpoint.release(message);
        }
    }

    /// Lets everything come to rest, and checks that all has arrived and nothing is left anywhere.
    pub fn settle(&mut self) {
        for link in self.net.borrow_mut().links.iter_mut().flatten() {
            (link.closed, link.busy) = (false, 0);
        }
        let mut rest = 0;
        for _ in 0..3000 {
            let mut worked = 0;
            for i in 0..self.nodes.len() {
                worked += self.poll(i);
                (0..PARTS).for_each(|local| self.read(i, local, usize::MAX, false));
                self.release(i);
                let Some(node) = self.nodes[i].as_mut() else { continue };
                node.finishing.extend(std::mem::take(&mut node.streams).into_values());
                let begun = node.long.iter().flatten().count() + node.finishing.len();
                worked += (begun + usize::from(node.set.is_some() || node.quiet.is_some())) as u32;
            }
            self.now = self.now.after(100);
            rest = if worked == 0 { rest + 1 } else { 0 };
            if rest == REST {
                break;
            }
        }
        assert_eq!(rest, REST, "the nodes do not come to rest");
        self.oracle.check();
        for node in self.nodes.iter().flatten() {
            assert!(!node.endpoint.engine().leaks(), "a block is missing");
            assert_eq!(node.endpoint.engine().assembly_in_use(), 0);
            assert_eq!(node.endpoint.incomplete(), 0);
        }
    }

    /// Stops all nodes.
    pub fn close(mut self) {
        (0..self.nodes.len()).for_each(|i| self.release(i));
        for node in self.nodes.iter_mut().flatten().chain(&mut self.graves) {
            let streams = std::mem::take(&mut node.streams).into_values();
            let streams: Vec<_> = streams.chain(node.finishing.drain(..)).collect();
            streams.into_iter().for_each(|stream| node.endpoint.abort_stream(stream));
        }
        // An endpoint leaves its memory in place for ever while somebody has its blocks.
        self.net.borrow_mut().drop_blocks();
    }
}
