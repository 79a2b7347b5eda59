//! Checks that a recorded node behaves the same when its recording is replayed to it, and that a difference is found.

use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::engine::{Checksum, PrivatePipes};
use pdbp_core::id::{NodeId, PartId, PipeId, Time};
use pdbp_core::outbox::{Due, Outbox, Outgoing, Rule};
use pdbp_core::policy::Adaptive;
use pdbp_core::tables::PartKind;
use pdbp_core::umb::{HeapMemory, stride};
use pdbp_core::{Config, Delivery, Engine, Storage};

use super::*;
use crate::network::{CrashSight, Fault, Network, Physics, Probability, Scenario, Traffic, ms, us};

const BODY: usize = 448;
const BLOCKS: usize = 64;

fn node(index: u16) -> NodeId {
    NodeId::new(index).unwrap()
}

#[derive(Default)]
struct Inbox(Vec<Delivery>);

impl PrivatePipes for Inbox {
    fn deliver(&mut self, _: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        self.0.push(delivery);
        Ok(())
    }
}

struct Host<T: Transport> {
    engine: Engine<'static, T, HeapMemory, Adaptive>,
    outbox: Outbox<'static>,
    inbox: Inbox,
    read: usize,
}

impl<T: Transport> Host<T> {
    fn new(transport: T) -> Self {
        let own = transport.capabilities().node;
        let mut config = Config::new(own, 2);
        config.body = BODY;
        config.control_blocks = 4;
        config.flush_after = 10_000;
        config.interval = 100_000;
        config.checksum = Checksum::Off;
        config.masters = 1;
        config.patience = 1_000_000;
        let storage = Storage::allocate(&config, BLOCKS, 4);
        let memory = HeapMemory::new(BLOCKS * stride(BODY)).unwrap();
        let mut engine = Engine::new(config, Adaptive::DEFAULT, transport, memory, storage).unwrap();
        let part = engine.register("part", PartKind::Cpu).unwrap();
        engine.bind_pipe(part).unwrap();
        let outbox = Outbox::allocate(2, Rule { flush_after: 10_000, pack: BODY });
        Self { engine, outbox, inbox: Inbox::default(), read: 0 }
    }

    /// One round of the host: sends this message, polls and reads.
    fn round(&mut self, round: u64, message: &[u8]) {
        let now = Time(1 + round * us(10));
        let own = self.engine.config().node;
        let part = |node| PartId::new(node, 0).unwrap();
        let dest = part(node(1 - own.raw()));
        let route = Route::new(CduClass::ShortMessage, 0, part(own), dest);
        if let Ok(hop) = self.engine.hop(dest.node()) {
            let _ = self.outbox.send(&mut self.engine, now, hop, &Outgoing::message(route, message));
        }
        let worked = self.engine.poll(now, &mut self.inbox).worked;
        self.outbox.flush(&mut self.engine, if worked == 0 { Due::Idle(now) } else { Due::Past(now) });
        for delivery in self.inbox.0.drain(..) {
            self.read += 1;
            self.engine.release(delivery);
        }
    }
}

fn message(round: u64) -> Vec<u8> {
    (0..40 + round % 7).map(|i| (round * 31 + i) as u8).collect()
}

const ROUNDS: u64 = 300;

/// The recording of node 0 of two, and the number of deliveries it read.
fn recorded(arrival: Arrival, until_cut: u64) -> (Recording, usize) {
    let loss = Probability::new(0.02).unwrap();
    let physics =
        Physics { arrival, loss, give_up: ms(1), largest_block: stride(BODY), ..Physics::default() };
    let (network, ports) = Network::new(2, physics, 9).unwrap();
    let mut ports = ports.into_iter();
    let mut zero = Host::new(Recorder::new(ports.next().unwrap()));
    let mut one = Host::new(ports.next().unwrap());
    for round in 0..ROUNDS {
        if round == until_cut {
            network.cut(0, 1);
        }
        if round == until_cut + 120 {
            network.heal();
        }
        while network.step(round * us(10)).is_some() {}
        zero.round(round, &message(round));
        one.round(round, &message(round + 1000));
    }
    (zero.engine.transport_mut().take_recording(), zero.read)
}

#[test]
fn a_recording_played_to_the_same_node_is_followed_to_its_end() {
    for (arrival, cut) in [(Arrival::Posted, ROUNDS), (Arrival::InPlace, ROUNDS), (Arrival::Posted, 100)] {
        let (recording, read) = recorded(arrival, cut);
        assert!(
            recording.entries.len() > 200 && read > 20,
            "{} entries, {read} read",
            recording.entries.len()
        );
        let mut host = Host::new(Replay::new(recording));
        (0..ROUNDS).for_each(|round| host.round(round, &message(round)));
        let replay = host.engine.transport_mut();
        assert_eq!(replay.divergence(), None);
        assert!(replay.is_over());
        assert_eq!(host.read, read);
    }
}

#[test]
fn a_changed_message_is_found_where_its_block_leaves() {
    let (recording, _) = recorded(Arrival::Posted, ROUNDS);
    let mut host = Host::new(Replay::new(recording.clone()));
    for round in 0..ROUNDS {
        let mut message = message(round);
        message[7] ^= u8::from(round == 150);
        host.round(round, &message);
    }
    let divergence = host.engine.transport_mut().divergence().unwrap().clone();
    let Entry::Call(call, _) = &recording.entries[divergence.entry] else { panic!("{divergence}") };
    assert_eq!(call.kind, CallKind::Send, "{divergence}");
    let text = divergence.to_string();
    let begins = format!("send 1 0/{} {} ", call.block.index, call.length);
    assert!(divergence.recorded.starts_with(&begins) && divergence.found.starts_with(&begins), "{text}");
    assert_ne!(divergence.recorded[begins.len()..][..16], divergence.found[begins.len()..][..16]);
}

#[test]
fn a_missing_call_is_found() {
    let (recording, _) = recorded(Arrival::Posted, ROUNDS);
    let mut host = Host::new(Replay::new(recording));
    host.engine.poll(Time(1), &mut host.inbox);
    for round in (0..100).filter(|round| *round != 50) {
        host.round(round, &message(round));
    }
    assert!(host.engine.transport_mut().divergence().is_some());
}

#[test]
fn what_is_written_is_read_again() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let (recording, _) = recorded(arrival, 100);
        let mut text = Vec::new();
        recording.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(Recording::read(&text).unwrap(), recording);
        assert!(["\ndown 1\n", "\nup 1 1\n", "\nidle "].iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn errors_name_the_line() {
    let head = "pdbp-recording 3\nnode 0 of 1, blocks of 512 bytes, trusted, links stay down\nlink posted 512 24 0 0 taken\n";
    for (text, line, part) in [
        ("pdbp 2".to_owned(), 1, "a recording begins \"pdbp-recording 3\""),
        (String::new(), 1, "is missing"),
        ("pdbp-recording 3\nnode x".to_owned(), 2, "write \"node N of M"),
        (head.replace("node 0", "node 1"), 2, "N is below M"),
        (format!("{head}sent 1"), 4, "\"sent 1\" is no entry"),
        (format!("{head}idle 1\nreceived 0 0/1 abc"), 5, "is no entry"),
        (
            "pdbp-recording 3\nnode 0 of 2, blocks of 512 bytes, trusted, links stay down\n".to_owned(),
            3,
            "0 of 2 nodes",
        ),
    ] {
        let error = Recording::read(&text).unwrap_err();
        assert_eq!(error.line, line, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// A node decides without a peer that has ended, which it asks its transport about.
#[test]
fn what_a_transport_says_of_its_peers_is_played_too() {
    let physics = Physics { crash_sight: CrashSight::AtOnce, ..Physics::default() };
    let (network, ports) = Network::new(3, physics, 9).unwrap();
    network.publish_lives();
    let mut ports: Vec<_> = ports.into_iter().map(Some).collect();
    let mut zero = Recorder::new(ports[0].take().unwrap());
    // Each poll, and what is said after it.
    let mut said = Vec::new();
    let mut poll = |zero: &mut Recorder<_>| {
        let completion = zero.poll_completion().map(|completion| Outcome::of(&completion));
        said.push((completion, peers(zero)));
    };
    (0..2).for_each(|_| poll(&mut zero));
    ports[2] = None;
    while network.step(ms(1)).is_some() {}
    (0..3).for_each(|_| poll(&mut zero));
    ports[2] = network.attach(2);
    while network.step(ms(2)).is_some() {}
    (0..3).for_each(|_| poll(&mut zero));
    let first = &said[0].1;
    assert!(said.iter().any(|(_, peers)| peers[2].0) && first[2].1 < said[7].1[2].1, "{said:?}");

    let recording = Recording::read(&zero.recording().to_string()).unwrap();
    assert_eq!(&recording, zero.recording());
    let mut replay = Replay::new(recording);
    assert_eq!((replay.restores_links(), &peers(&replay)), (true, first));
    for (completion, peers_then) in said {
        assert_eq!(replay.poll_completion().map(|completion| Outcome::of(&completion)), completion);
        assert_eq!(peers(&replay), peers_then);
    }
    assert!(replay.is_over() && replay.divergence().is_none());
}

/// Whether each peer has ended, and its life.
fn peers(end: &impl Transport) -> Vec<(bool, u64)> {
    (0..3).map(node).map(|peer| (end.has_ended(peer), end.life(peer))).collect()
}

/// The wrapper changes nothing.
#[test]
fn a_recorded_scenario_runs_as_an_unrecorded_one() {
    let scenario = || {
        let traffic = Traffic::uniform().rate(20_000);
        Scenario::new(3).give_up(ms(2)).traffic(traffic).at(ms(1), Fault::crash(2))
    };
    let plain = scenario().run(ms(5)).unwrap();
    let recorded = scenario().run_wrapped(ms(5), Recorder::new).unwrap();
    assert_eq!(plain.digest, recorded.digest);
}

mod conforms {
    use pdbp_local::Local;

    use super::*;
    use crate::conformance::Node;

    fn domain(arrival: Arrival) -> Vec<Node<Recorder<Local>, HeapMemory>> {
        let bytes = Node::<Local, HeapMemory>::memory(3, 1024);
        let memories: Vec<_> = (0..3).map(|_| HeapMemory::new(bytes).unwrap()).collect();
        let ends = Local::network(&memories, arrival, 1000, 4);
        ends.into_iter().map(Recorder::new).zip(memories).map(|(end, m)| Node::new(end, m, 1024)).collect()
    }

    crate::conformance!(in_place, domain(Arrival::InPlace));
    crate::conformance!(posted, domain(Arrival::Posted));
}
