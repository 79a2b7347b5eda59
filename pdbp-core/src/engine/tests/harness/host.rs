//! A node of the cluster: an engine and its user.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use pdbp_core::engine::{DeliveryKind, PrivatePipes, StreamTag};
use pdbp_core::id::{PipeId, Time};
use pdbp_core::outbox::{Due, Outbox};
use pdbp_core::umb::HeapMemory;
use pdbp_core::{Delivery, Engine, Event, OpenBlock};

use super::net::Port;
use super::oracle::{Flow, Oracle};
use super::{BODY, PARTS, Policy, part};

pub struct Pipes {
    me: usize,
    pub queues: Vec<VecDeque<(Delivery, u64)>>,
    pub capacity: usize,
    pub events: Vec<Event>,
    /// Whether the engine has asked for all open blocks to be flushed.
    pub(super) flush_wanted: bool,
    oracle: Rc<RefCell<Oracle>>,
    /// The part that holds each private pipe.
    pub owner: BTreeMap<u16, u16>,
    /// Returned messages, with the node that did not receive them.
    pub returned: Vec<(usize, Vec<u8>)>,
    /// The numbers of messages in segments that their senders gave up.
    pub given_up: Vec<u32>,
    /// Whether deliveries are checked against the oracle.
    pub checked: bool,
    /// How many times each peer has failed.
    pub(super) failures: BTreeMap<usize, u32>,
}

pub(super) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3))
}

impl PrivatePipes for Pipes {
    fn deliver(&mut self, pipe: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        let queue = &mut self.queues[usize::from(pipe.0)];
        if queue.len() >= self.capacity {
            return Err(delivery);
        }
        let owner = self.owner[&pipe.0];
        let from = delivery.source().index();
        let mut oracle = self.oracle.borrow_mut();
        for train in delivery.cdus() {
            let Ok(train) = train else { break };
            // The segment that reports that the message was given up has no bytes.
            if let Some(segment) = train.segment()
                && segment.segment() == u32::MAX
            {
                self.given_up.push(segment.message());
                continue;
            }
            if let DeliveryKind::Returned { .. } = delivery.kind() {
                if !self.checked || oracle.lossy {
                    continue;
                }
                for cdu in train.cdus(delivery.block(), 0).expect("readable addresses") {
                    assert_eq!(cdu.source, part(self.me, owner), "returned to a part that did not send it");
                    let dest = train.via().map_or(cdu.id.dest, |via| via.dest);
                    assert_eq!(dest.index(), from);
                    self.returned.push((from, cdu.data.to_vec()));
                }
                continue;
            }
            if !self.checked {
                for message in train.messages() {
                    assert!(message.len() <= BODY);
                }
                continue;
            }
            for cdu in train.cdus(delivery.block(), 0).expect("readable addresses") {
                let to = part(self.me, owner);
                assert!(cdu.dest.parts().any(|p| p == to), "{to} got what is for {:?}", cdu.dest);
                assert_eq!(cdu.source.node().index(), from);
                match delivery.kind() {
                    DeliveryKind::Messages { urgent } => {
                        oracle.took((cdu.source.raw(), to.raw(), urgent, cdu.command), cdu.data);
                    }
                    DeliveryKind::Returned { .. } => {}
                    DeliveryKind::Stream { number, segment, last, aborted } => {
                        assert_eq!(cdu.stream, Some(number));
                        assert_eq!(cdu.segment, segment);
                        oracle.took_segment((from, self.me), number, (segment, last, aborted), cdu.data);
                    }
                }
            }
        }
        let sum = digest(delivery.bytes());
        queue.push_back((delivery, sum));
        Ok(())
    }

    fn event(&mut self, event: Event) {
        if let Event::PeerFailed { peer, .. } = event {
            self.oracle.borrow_mut().doubt(self.me, peer.index());
            *self.failures.entry(peer.index()).or_default() += 1;
        }
        self.flush_wanted |= matches!(event, Event::FlushWanted);
        self.events.push(event);
    }
}

pub type TestEngine = Engine<'static, Port, HeapMemory, Policy>;

pub struct Outgoing {
    pub tag: StreamTag,
    pub(super) source: u16,
    /// How many times the peer had failed when it began.
    pub(super) failures: u32,
}

pub struct Host {
    pub engine: TestEngine,
    pub pipes: Pipes,
    /// Short messages to send, one lane per link.
    pub outbox: Outbox<'static>,
    /// Open blocks by destination and urgency, with their contents.
    pub open: BTreeMap<(usize, bool), (OpenBlock, Vec<(Flow, Vec<u8>)>)>,
    pub held: Vec<(Delivery, u64)>,
    pub streams: BTreeMap<u16, Outgoing>,
    /// Streams that are over, but whose relay has not reported yet whether it has room for them.
    pub closing: Vec<StreamTag>,
    pub barrier: Option<u32>,
    pub barriers: u32,
    pub quiet: Option<(u32, u64)>,
    pub quiets: u32,
}

impl Host {
    /// Creates a host whose private pipes take `capacity` deliveries.
    pub(super) fn new(me: usize, engine: TestEngine, capacity: usize, oracle: &Rc<RefCell<Oracle>>) -> Self {
        let outbox = super::outbox(engine.config());
        let pipes = Pipes {
            me,
            queues: (0..=PARTS).map(|_| VecDeque::new()).collect(),
            capacity,
            events: vec![],
            flush_wanted: false,
            oracle: Rc::clone(oracle),
            owner: BTreeMap::new(),
            returned: vec![],
            given_up: vec![],
            checked: true,
            failures: BTreeMap::new(),
        };
        let (open, held, streams, closing) = (BTreeMap::new(), vec![], BTreeMap::new(), vec![]);
        let (barrier, quiet) = (None, None);
        Self { engine, pipes, outbox, open, held, streams, closing, barrier, barriers: 0, quiet, quiets: 0 }
    }

    /// Polls the engine and sends whatever is due. Returns the amount of work done.
    pub(super) fn poll(&mut self, now: Time) -> u32 {
        let worked = self.engine.poll(now, &mut self.pipes).worked;
        let due = match (std::mem::take(&mut self.pipes.flush_wanted), worked) {
            (true, _) => Due::All,
            (false, 0) => Due::Idle(now),
            (false, _) => Due::Past(now),
        };
        worked + self.outbox.flush(&mut self.engine, due).blocks
    }

    /// Returns all deliveries and blocks to its engine.
    pub(super) fn return_block(&mut self) {
        let queued = self.pipes.queues.iter_mut().flat_map(|q| q.drain(..));
        for (delivery, _) in queued.collect::<Vec<_>>().into_iter().chain(self.held.drain(..)) {
            self.engine.release(delivery);
        }
        for (_, (block, _)) in std::mem::take(&mut self.open) {
            self.engine.submit(block);
        }
        self.outbox.flush(&mut self.engine, Due::All);
        assert!(!self.engine.leaks(), "a token is missing");
    }
}
