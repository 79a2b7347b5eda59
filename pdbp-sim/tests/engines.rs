//! Real engines, one per thread, over the transports and wrappers of this crate.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::engine::{Checksum, Counters, Event};
use pdbp_core::id::{NodeId, PartId, PipeId, Time};
use pdbp_core::outbox::{Due, Hop, Outbox, Outgoing, Rule};
use pdbp_core::policy::Adaptive;
use pdbp_core::tables::PartKind;
use pdbp_core::umb::{HeapMemory, stride};
use pdbp_core::{Arrival, Config, Delivery, Engine, PrivatePipes, Storage, Transport};
use pdbp_local::Local;
use pdbp_sim::fault::{Chance, FaultInjector, Faults};
use pdbp_sim::tracer::Tracer;

const BODY: usize = 1024;
const BLOCKS: usize = 256;
/// Time without progress after which a node gives up. No count of polls: the others may not have the processor meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// The one private pipe of a node.
#[derive(Default)]
struct Inbox {
    deliveries: VecDeque<Delivery>,
    malformed: u64,
}

impl PrivatePipes for Inbox {
    fn deliver(&mut self, _: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        if self.deliveries.len() == 4 {
            return Err(delivery);
        }
        self.deliveries.push_back(delivery);
        Ok(())
    }

    fn event(&mut self, event: Event) {
        self.malformed += u64::from(matches!(event, Event::Malformed { .. }));
    }
}

/// A node; what it sends goes to the next one, and the last one's to the first.
struct Host<T: Transport> {
    engine: Engine<'static, T, HeapMemory, Adaptive>,
    outbox: Outbox<'static>,
    inbox: Inbox,
    me: PartId,
    peer: PartId,
    now: u64,
    idle: u32,
    idle_since: Option<Instant>,
    /// Next number expected of the node before this one.
    expected: u64,
    received: u64,
}

/// Message number `number`: its number and bytes that follow from it.
fn message(number: u64) -> Vec<u8> {
    let length = (number * 37 % 500) as usize;
    let body = (0..length).map(|i| (number as usize * 31 + i * 7) as u8);
    number.to_le_bytes().into_iter().chain(body).collect()
}

impl<T: Transport> Host<T> {
    fn new(transport: T, memory: HeapMemory, checksum: Checksum) -> Self {
        let capabilities = transport.capabilities();
        let node = capabilities.node;
        let mut config = Config::new(node, capabilities.nodes);
        config.body = BODY;
        config.row = 32;
        config.initial = 4;
        config.control_blocks = 8;
        config.flush_after = 1_000;
        config.interval = 100_000;
        config.checksum = checksum;
        config.masters = 1;
        config.patience = 1_000_000;
        let storage = Storage::allocate(&config, BLOCKS, 8);
        let engine = Engine::new(config, Adaptive::DEFAULT, transport, memory, storage).unwrap();
        let other = NodeId::new((node.raw() + 1) % capabilities.nodes).unwrap();
        let mut host = Self {
            engine,
            outbox: Outbox::allocate(capabilities.nodes.into(), Rule { flush_after: 1_000, pack: BODY }),
            inbox: Inbox::default(),
            me: PartId::new(node, 0).unwrap(),
            peer: PartId::new(other, 0).unwrap(),
            now: 0,
            idle: 0,
            idle_since: None,
            expected: 0,
            received: 0,
        };
        host.me = host.engine.register("part", PartKind::Cpu).unwrap();
        host.engine.bind_pipe(host.me).unwrap();
        host.wait("the parts of this node and the next", |host| {
            host.engine.is_ready() && host.engine.part(host.peer).is_some()
        });
        host.barrier();
        host
    }

    fn poll(&mut self) -> bool {
        self.now += 500;
        let worked = self.engine.poll(Time(self.now), &mut self.inbox).worked;
        let now = Time(self.now);
        let due = if worked == 0 { Due::Idle(now) } else { Due::Past(now) };
        worked + self.outbox.flush(&mut self.engine, due).blocks > 0
    }

    /// Reads one delivery, if there is one; its messages must be whole, and in order.
    fn read(&mut self) -> bool {
        let Some(delivery) = self.inbox.deliveries.pop_front() else { return false };
        for train in delivery.cdus() {
            for bytes in train.unwrap().messages() {
                let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                assert!(number >= self.expected, "message {number} after message {}", self.expected);
                assert_eq!(bytes, message(number), "message {number} is not as it was sent");
                self.expected = number + 1;
                self.received += 1;
            }
        }
        self.engine.release(delivery);
        true
    }

    fn step(&mut self, what: &str) {
        let moved = self.poll() | self.read();
        if moved {
            (self.idle, self.idle_since) = (0, None);
            return;
        }
        self.idle = self.idle.saturating_add(1);
        if self.idle <= 1_000 {
            thread::yield_now();
            return;
        }
        let (expected, counters) = (self.expected, self.engine.counters());
        let idle = self.idle_since.get_or_insert_with(Instant::now).elapsed();
        assert!(idle < PATIENCE, "gave up waiting for {what}; expected {expected}, {counters:?}");
        thread::sleep(Duration::from_micros(50));
    }

    fn wait(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        while !done(self) {
            self.step(what);
        }
    }

    fn barrier(&mut self) {
        let generation = self.engine.arrive();
        self.wait("a barrier", |host| host.engine.barrier_passed(generation));
        // The master passes before its answer has left.
        for _ in 0..200 {
            self.poll();
        }
    }

    fn flush(&mut self) {
        self.outbox.flush(&mut self.engine, Due::All);
    }

    fn send(&mut self, number: u64) {
        let route = Route::new(CduClass::ShortMessage, 0, self.me, self.peer);
        let (hop, message) = (Hop::to_node(self.peer.node()), message(number));
        let outgoing = Outgoing::message(route, &message);
        while self.outbox.send(&mut self.engine, Time(self.now), hop, &outgoing).is_err() {
            self.step("room to send");
        }
    }
}

/// Two engines on threads over a network whose ends are wrapped; each runs `work`.
fn pair<T: Transport + Send, R: Send>(
    arrival: Arrival,
    checksum: Checksum,
    wrap: impl FnMut(Local) -> T,
    work: impl Fn(&mut Host<T>) -> R + Sync,
) -> Vec<R> {
    let memories = memories(2);
    let ends = Local::network(&memories, arrival, stride(BODY), 8);
    run(ends.into_iter().map(wrap).collect(), memories, checksum, work)
}

/// As `pair`, with a node on each of the hosts.
fn on_hosts<T: Transport + Send, R: Send>(
    hosts: &[usize],
    checksum: Checksum,
    wrap: impl FnMut(Local) -> T,
    work: impl Fn(&mut Host<T>) -> R + Sync,
) -> Vec<R> {
    let memories = memories(hosts.len());
    let ends = Local::network_of_hosts(&memories, hosts, stride(BODY), 8);
    run(ends.into_iter().map(wrap).collect(), memories, checksum, work)
}

fn memories(nodes: usize) -> Vec<HeapMemory> {
    (0..nodes).map(|_| HeapMemory::new(BLOCKS * stride(BODY)).unwrap()).collect()
}

fn run<T: Transport + Send, R: Send>(
    ends: Vec<T>,
    memories: Vec<HeapMemory>,
    checksum: Checksum,
    work: impl Fn(&mut Host<T>) -> R + Sync,
) -> Vec<R> {
    let nodes = ends.len() as u32;
    let (work, over) = (&work, &AtomicU32::new(0));
    thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .zip(memories)
            .map(|(end, memory)| {
                scope.spawn(move || {
                    let mut host = Host::new(end, memory, checksum);
                    let outcome = work(&mut host);
                    // None goes before the others are through.
                    over.fetch_add(1, Ordering::AcqRel);
                    host.wait("the other nodes to end", |_| over.load(Ordering::Acquire) == nodes);
                    outcome
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p))).collect()
    })
}

const MESSAGES: u64 = 3_000;

/// All send and receive all messages; none is lost.
fn all_arrive<T: Transport>(host: &mut Host<T>) -> Counters {
    for number in 0..MESSAGES {
        host.send(number);
        host.poll();
        host.read();
    }
    host.flush();
    host.wait("the messages of the node before", |host| host.received == MESSAGES);
    host.barrier();
    host.engine.counters()
}

fn assert_clean(counters: Vec<Counters>) {
    for counters in counters {
        assert_eq!((counters.malformed, counters.out_of_sequence, counters.stale), (0, 0, 0), "{counters:?}");
        assert_eq!((counters.unroutable, counters.lost_returns), (0, 0), "{counters:?}");
        assert!(counters.blocks_sent > 0 && counters.blocks_delivered > 0, "{counters:?}");
    }
}

#[test]
fn in_place() {
    assert_clean(pair(Arrival::InPlace, Checksum::Off, |end| end, all_arrive));
}

#[test]
fn posted() {
    assert_clean(pair(Arrival::Posted, Checksum::On, |end| end, all_arrive));
}

#[test]
fn in_place_with_busy_and_delay() {
    let faults = Faults { seed: 3, busy: Chance::in_thousand(300).unwrap(), delay: 10, ..Faults::default() };
    let wrap = |end| Tracer::new(FaultInjector::new(end, faults), 32);
    assert_clean(pair(Arrival::InPlace, Checksum::On, wrap, all_arrive));
}

#[test]
fn posted_with_delay() {
    let faults = Faults { seed: 3, delay: 10, ..Faults::default() };
    assert_clean(pair(Arrival::Posted, Checksum::On, |end| FaultInjector::new(end, faults), all_arrive));
}

#[test]
fn posted_with_busy_and_delay() {
    let faults = Faults { seed: 3, busy: Chance::in_thousand(300).unwrap(), delay: 10, ..Faults::default() };
    assert_clean(pair(Arrival::Posted, Checksum::On, |end| FaultInjector::new(end, faults), all_arrive));
}

/// Two hosts of two nodes: from 0 to 1 and from 2 to 3 in place, from 1 to 2 and from 3 to 0 posted.
const TWO_HOSTS: [usize; 4] = [0, 0, 1, 1];

#[test]
fn mixed() {
    assert_clean(on_hosts(&TWO_HOSTS, Checksum::Off, |end| end, all_arrive));
}

#[test]
fn mixed_with_busy_and_delay() {
    let faults = Faults { seed: 3, busy: Chance::in_thousand(300).unwrap(), delay: 10, ..Faults::default() };
    let wrap = |end| Tracer::new(FaultInjector::new(end, faults), 32);
    assert_clean(on_hosts(&TWO_HOSTS, Checksum::On, wrap, all_arrive));
}

/// While blocks are corrupted, what is delivered is whole and in order, and the counters tell of the rest; afterwards the link
/// goes on.
fn survives_corruption(arrival: Arrival) {
    let faults = Faults { seed: 11, corrupt: Some(Chance::NEVER), ..Faults::default() };
    let sent = Arc::new(AtomicU32::new(0));
    let clean = Arc::new(AtomicU32::new(0));
    let reached = |count: &AtomicU32| count.load(Ordering::Acquire) == 2;
    let outcomes = pair(
        arrival,
        Checksum::On,
        |end| FaultInjector::new(end, faults),
        |host| {
            host.engine.transport_mut().set_corruption(Chance::in_thousand(100).unwrap());
            for number in 0..MESSAGES {
                host.send(number);
                host.poll();
                host.read();
            }
            host.flush();
            let me = host.peer.node();
            host.wait("the blocks to leave", |host| host.engine.send_row(me).is_some_and(|r| r.waiting == 0));
            // Pairs with the loads in `reached`: what was sent before is on its way.
            sent.fetch_add(1, Ordering::AcqRel);
            host.wait("the other node", |_| reached(&sent));
            for _ in 0..200 {
                host.poll();
                host.read();
            }
            host.engine.transport_mut().set_corruption(Chance::NEVER);
            clean.fetch_add(1, Ordering::AcqRel);
            host.wait("the other node", |_| reached(&clean));
            for number in MESSAGES..2 * MESSAGES {
                host.send(number);
                host.poll();
                host.read();
            }
            host.flush();
            host.wait("the last message", |host| host.expected == 2 * MESSAGES);
            let injected = host.engine.transport_mut().injected();
            (host.received, host.inbox.malformed, host.engine.counters(), injected)
        },
    );
    for (received, reported, counters, injected) in outcomes {
        assert!(injected.corrupted > 10, "{injected:?}");
        assert!((MESSAGES..2 * MESSAGES).contains(&received), "{received} received");
        assert!(counters.malformed <= injected.corrupted, "{counters:?}, {injected:?}");
        // A changed block may be refused for another reason than its bytes: epoch or number, whose sum is right by then.
        assert_eq!(counters.malformed, injected.corrupted, "{counters:?}, {injected:?}");
        assert_eq!(reported, counters.malformed);
    }
}

#[test]
fn corruption_in_place() {
    survives_corruption(Arrival::InPlace);
}

#[test]
fn corruption_posted() {
    survives_corruption(Arrival::Posted);
}
