//! Random traffic of all kinds: what arrives is compared with what was sent.

use std::collections::{HashMap, VecDeque};

use pdbp_core::endpoint::SendError;
use pdbp_core::id::PartId;

use super::net::{Net, Node, Piece, run};

/// xorshift64*, so that a failure can be reproduced from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (seed * 31 + i * 7 + (i >> 8)) as u8).collect()
}

/// Messages of any length and streams, between all nodes at once, with readers that pause now and then and hold on to messages:
/// everything arrives once, in order and unchanged, and nothing leaks.
#[test]
fn all_that_was_sent_arrives_in_order() {
    for seed in 1..=24 {
        traffic(seed);
    }
}

fn traffic(seed: u64) {
    let net = Net::new(3);
    let nodes = net.nodes();
    let hosts = net.all(&nodes);
    let mut random = Random(seed * 0x9E37_79B9);
    let (mut short, mut long) = (HashMap::new(), HashMap::new());
    // The bytes of long messages live until the end; each node has at most one long message in progress.
    let store: Vec<Vec<u8>> = (0..40).map(|i| bytes(i, 600 + (i as usize * 97) % 3000)).collect();
    let mut sending: Vec<_> = nodes.iter().map(|_| None).collect();
    let (mut streams, mut streamed) = (Vec::new(), Vec::new());
    let mut readers = Vec::new();
    let mut held = VecDeque::new();
    let (mut turns, mut sent, mut received) = (0, 0, 0);
    run(&hosts, || {
        turns += 1;
        let busy = turns < 300;
        for (i, node) in nodes.iter().enumerate() {
            let to = nodes[random.below(3) as usize].part;
            if busy && random.below(2) == 0 {
                let message = bytes(turns, 1 + random.below(300) as usize);
                match node.host.send(node.part, to, &message) {
                    Ok(()) => {
                        flow(&mut short, node.part, to).push_back(message);
                        sent += 1;
                    }
                    Err(error) => assert_eq!(error, SendError::WouldBlock, "seed {seed}"),
                }
            }
            if busy && sending[i].is_none() && random.below(8) == 0 {
                let message = &store[random.below(40) as usize];
                sending[i] = Some(node.host.send_long(node.part, to, message).unwrap());
                flow(&mut long, node.part, to).push_back(message.clone());
                sent += 1;
            }
            if let Some(open) = &mut sending[i]
                && open.poll().unwrap()
            {
                sending[i] = None;
            }
            if busy
                && random.below(30) == 0
                && let Ok(writer) = node.host.open_stream(node.part, to)
            {
                let data = bytes(turns, 1 + random.below(4000) as usize);
                streamed.push((node.part, to, data.clone()));
                streams.push((writer, data, 0));
                sent += 1;
            }
        }
        streams.retain_mut(|(writer, data, at)| {
            *at += writer.write(&data[*at..]).unwrap();
            !(*at == data.len() && writer.poll_finish().unwrap())
        });
        for node in &nodes {
            if busy && random.below(3) == 0 {
                continue;
            }
            received += read(node, (&mut short, &mut long), &mut held, random.below(4) as usize, seed);
            while let Some(reader) = node.host.accept(node.part) {
                readers.push((reader, node.part, Vec::new()));
            }
        }
        readers.retain_mut(|(reader, part, got)| match reader.poll_next() {
            Piece::Data(segment) => {
                got.extend_from_slice(&segment);
                true
            }
            Piece::Nothing => true,
            Piece::End => {
                let is_it = |s: &(PartId, PartId, Vec<u8>)| (s.0, s.1, &s.2) == (reader.source(), *part, got);
                let at = streamed.iter().position(is_it);
                streamed.swap_remove(at.unwrap_or_else(|| panic!("seed {seed}: {} bytes", got.len())));
                received += 1;
                false
            }
            Piece::Broken => panic!("seed {seed}: nobody gives up"),
        });
        !busy && sent == received
    });
    held.clear();
    for node in &nodes {
        node.host.with(|endpoint| {
            assert!(!endpoint.engine().leaks(), "seed {seed}");
            assert_eq!(endpoint.engine().assembly_in_use(), 0, "seed {seed}");
            assert_eq!(endpoint.unreadable(node.part), 0, "seed {seed}");
        });
    }
    assert!(short.values().chain(long.values()).all(VecDeque::is_empty), "seed {seed}");
}

type Flows = HashMap<(PartId, PartId), VecDeque<Vec<u8>>>;

fn flow(flows: &mut Flows, from: PartId, to: PartId) -> &mut VecDeque<Vec<u8>> {
    flows.entry((from, to)).or_default()
}

/// Reads all messages that have arrived at a node, and holds `keep` of them for later.
fn read<'n>(
    node: &'n Node,
    (short, long): (&mut Flows, &mut Flows),
    held: &mut VecDeque<Kept<'n>>,
    keep: usize,
    seed: u64,
) -> u64 {
    let mut received = 0;
    while let Some(message) = node.host.recv(node.part) {
        let from = message.source().unwrap();
        let flows = if message.len() >= 500 { &mut *long } else { &mut *short };
        let expected = flow(flows, from, node.part).pop_front();
        assert_eq!(Some(&message[..]), expected.as_deref(), "seed {seed}");
        received += 1;
        held.push_back(message);
    }
    // They use credit and buffers that others wait for.
    while held.len() > keep {
        held.pop_front();
    }
    received
}

type Kept<'n> =
    pdbp_core::embed::Message<'n, super::Link, pdbp_core::umb::HeapMemory, pdbp_core::policy::Adaptive>;
