//! What gateways hold, and which senders wait meanwhile.

use std::io::Read;
use std::time::{Duration, Instant};

use pdbp::{Cluster, Interest, Node, Part, PartKind, SendError, Shared, Target};

use super::grid::{builder, run, two};
use super::proxy::Proxy;
use super::{Patience, SOON};

const LENGTH: usize = 10_000;

/// Upper bound on what gateways, links and pipes of two nodes with the least memory hold of one part's messages: half of
/// `trunk_bytes` at each gateway, and twice what the nodes have blocks for.
const MOST: usize = (4 << 20) + 4 * (8 << 20);

/// Sends until there is no more room, even after many round trips by `meanwhile` past the blocked messages; returns the number of
/// messages.
fn fill<S: pdbp::Share>(part: &Part<S>, to: Target, from: u64, meanwhile: impl Fn()) -> u64 {
    fill_with::<LENGTH, _>(part, to, from, meanwhile)
}

/// As [`fill`], with messages of `N` bytes.
fn fill_with<const N: usize, S: pdbp::Share>(
    part: &Part<S>,
    to: Target,
    from: u64,
    meanwhile: impl Fn(),
) -> u64 {
    let (mut sent, mut message) = (from, [0; N]);
    let (mut trips, mut stuck) = (0, Instant::now());
    while trips < 100 || stuck.elapsed() < Duration::from_millis(300) {
        message[..8].copy_from_slice(&sent.to_le_bytes());
        match part.try_send(to, &message) {
            Ok(()) => (sent, trips, stuck) = (sent + 1, 0, Instant::now()),
            Err(SendError::WouldBlock) => {
                meanwhile();
                trips += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert!((sent - from) as usize * N < MOST, "{sent} messages");
    }
    sent
}

/// Answers each message with its own bytes, until an empty one arrives.
fn echo(node: &Node) {
    let part = node.register("echo", PartKind::Cpu).unwrap();
    loop {
        let message = part.recv_timeout(SOON).unwrap();
        if message.is_empty() {
            return;
        }
        part.send(message.source(), &message).unwrap();
        part.flush();
    }
}

fn end(part: &Part, to: Target) {
    part.send(to, &[]).unwrap();
    part.flush();
}

fn drain(part: &Part<Shared>, count: u64) {
    for number in 0..count {
        assert_eq!(part.recv_timeout(SOON).unwrap()[..8], number.to_le_bytes());
    }
}

fn trips(part: &Part, to: Target, count: u32) {
    for number in 0..count {
        part.send(to, &number.to_le_bytes()).unwrap();
        part.flush();
        assert_eq!(*part.recv_timeout(SOON).unwrap(), number.to_le_bytes());
    }
}

/// Two parts of the other cluster do not read, and two of this one send to them until nothing more is accepted; a third part of the
/// same node keeps sending to others there, and to its own gateway's node.
#[test]
fn parts_far_away_that_do_not_read_have_only_those_wait_that_send_to_them() {
    let clusters = two(|builder| builder.nodes(3).set("trunk_bytes", "4194304"));
    let (far, near) = (clusters.0.node(2).unwrap(), clusters.1.node(0).unwrap());
    let stalled = clusters.0.node(1).unwrap();
    let in_west = |node: Node| {
        let idle = ["idle0", "idle1"].map(|name| node.register(name, PartKind::Cpu).unwrap());
        echo(&far);
        // All round trips were made: now the two parts read, and are sent to again.
        let to = idle[0].find("teller@node1.east", SOON).unwrap();
        idle[0].send(to, b"go").unwrap();
        idle[0].flush();
        // To both in turn, as within a cluster: messages to one part that does not read block those to the other.
        let (mut ends, mut left, patience) = ([0u64; 2], 2, Patience::new());
        while left > 0 {
            patience.check();
            for (part, end) in idle.iter().zip(&mut ends) {
                while let Some(message) = part.try_recv() {
                    if message.is_empty() {
                        left -= 1;
                        continue;
                    }
                    assert_eq!(message[..8], end.to_le_bytes());
                    *end += 1;
                }
            }
        }
        ends
    };
    let in_east = |node: Node| {
        let busy = ["busy0", "busy1"].map(|name| node.register(name, PartKind::Cpu).unwrap());
        let teller = node.register("teller", PartKind::Cpu).unwrap();
        let other = teller.find("echo@node2.west", SOON).unwrap();
        let mut sent = [0; 2];
        for (i, part) in busy.iter().enumerate() {
            let to = part.find(&format!("idle{i}@node1.west"), SOON).unwrap();
            // The node of those that do not read takes what it can, though its thread may get no processor.
            let meanwhile = || {
                stalled.poll();
                trips(&teller, other, 1);
            };
            sent[i] = fill(part, to, 0, meanwhile);
            assert!(sent[i] > 0);
            // Other ways of sending are refused as well.
            let short = part.sender(to).timeout(Duration::from_millis(20));
            assert!(matches!(short.send(&[0; LENGTH]), Err(SendError::Timeout(_))));
            assert!(matches!(short.command(7).send(b"now"), Err(SendError::Timeout(_))));
            assert_eq!(part.sender(to).no_wait().send_train(&[0; 80], 8), Ok(0));
            assert!(matches!(short.loan(8), Err(SendError::Timeout(_))));
            let mut stream = part.open_stream(to).unwrap();
            stream.set_timeout(Some(Duration::from_millis(20)));
            assert!(matches!(stream.write_some(b"bytes"), Err(SendError::Timeout(_))));
            assert!(part.wait(Interest::Send(to), Duration::from_millis(20)).is_err());
            trips(&teller, other, 300);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| echo(&near));
            let other = teller.find("echo@node0", SOON).unwrap();
            trips(&teller, other, 100);
            end(&teller, other);
        });
        end(&teller, other);
        assert_eq!(*teller.recv_timeout(SOON).unwrap(), *b"go");
        for (i, part) in busy.iter().enumerate() {
            let to = part.find(&format!("idle{i}@node1.west"), SOON).unwrap();
            for number in sent[i]..sent[i] + 500 {
                let mut message = [0; LENGTH];
                message[..8].copy_from_slice(&number.to_le_bytes());
                part.send(to, &message).unwrap();
            }
            part.send(to, &[]).unwrap();
            part.flush();
        }
        sent.map(|sent| sent + 500)
    };
    let (came, sent) = run(&clusters, in_west, in_east);
    assert_eq!(came, sent);
}

/// Messages that a part on the gateway's own node does not read stay in blocks of that node's memory, through which everything that
/// arrives over the trunk goes. Parts of other nodes still go on, both ways, and so do streams to them.
#[test]
fn a_part_beside_the_gateway_that_does_not_read_stops_no_other_node() {
    let clusters = two(|builder| builder.nodes(3).set("trunk_bytes", "4194304"));
    let idle = clusters.0.node(0).unwrap().register_shared("idle", PartKind::Cpu).unwrap();
    let far = clusters.0.node(2).unwrap();
    let in_west = |node: Node| {
        std::thread::scope(|scope| {
            scope.spawn(|| echo(&far));
            echo(&node);
        });
        let reader = node.register("reader", PartKind::Cpu).unwrap();
        let mut stream = reader.accept_stream(SOON).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 1_000_000);
        0
    };
    let in_east = |node: Node| {
        let part = node.register("busy", PartKind::Cpu).unwrap();
        let teller = node.register("teller", PartKind::Cpu).unwrap();
        let to = part.find("idle@node0.west", SOON).unwrap();
        let others = [1, 2].map(|i| teller.find(&format!("echo@node{i}.west"), SOON).unwrap());
        let sent = fill(&part, to, 0, || others.iter().for_each(|other| trips(&teller, *other, 1)));
        assert!(sent > 0);
        for other in others {
            trips(&teller, other, 300);
            end(&teller, other);
        }
        let reader = teller.find("reader@node1.west", SOON).unwrap();
        let mut stream = teller.open_stream(reader).unwrap();
        std::io::Write::write_all(&mut stream, &[7; 1_000_000]).unwrap();
        stream.finish().unwrap();
        sent
    };
    let (_, sent) = run(&clusters, in_west, in_east);
    drain(&idle, sent);
}

/// The writer of a stream waits for its reader, and nothing is lost.
#[test]
fn a_stream_waits_for_its_reader_far_away() {
    let clusters = two(|builder| builder.set("trunk_bytes", "4194304"));
    let waits = clusters.0.node(0).unwrap().register_shared("waits", PartKind::Cpu).unwrap();
    let in_west = move |node: Node| {
        let part = node.register("reader", PartKind::Cpu).unwrap();
        let mut stream = part.accept_stream(SOON).unwrap();
        assert_eq!(*waits.recv_timeout(SOON).unwrap(), *b"full");
        let (mut count, mut bytes) = (0u64, [0; LENGTH]);
        while stream.read_exact(&mut bytes).is_ok() {
            assert_eq!(bytes[..8], count.to_le_bytes());
            count += 1;
        }
        count
    };
    let near = clusters.1.node(0).unwrap();
    let in_east = |node: Node| {
        let part = node.register("writer", PartKind::Cpu).unwrap();
        let to = part.find("reader@node1.west", SOON).unwrap();
        let mut stream = part.open_stream(to).unwrap();
        stream.set_timeout(Some(Duration::from_millis(500)));
        let (mut count, mut at, mut is_full) = (0u64, 0, false);
        while !is_full || !count.is_multiple_of(1000) {
            let mut bytes = [0; LENGTH];
            bytes[..8].copy_from_slice(&count.to_le_bytes());
            match stream.write_some(&bytes[at..]) {
                Ok(written) => at += written,
                Err(SendError::Timeout(_)) if !is_full => {
                    is_full = true;
                    assert!((count as usize) * LENGTH < MOST, "{count} pieces");
                    stream.set_timeout(Some(SOON));
                    let teller = near.register("teller", PartKind::Cpu).unwrap();
                    teller.send(teller.find("waits@node0.west", SOON).unwrap(), b"full").unwrap();
                }
                Err(error) => panic!("{error}"),
            }
            if at == LENGTH {
                (count, at) = (count + 1, 0);
            }
        }
        stream.finish().unwrap();
        count
    };
    let (came, sent) = run(&clusters, in_west, in_east);
    assert_eq!(came, sent);
}

/// A line that is cut for a while fills the gateway and nothing else; everything arrives when it is back.
#[test]
fn a_cut_line_has_only_those_wait_that_send_across_it() {
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let line = Proxy::to(west.address().unwrap().to_string());
    let east = builder("east").set("trunk_bytes", "4194304").trunk("west", line.address()).start().unwrap();
    let (node, near) = (east.node(1).unwrap(), east.node(0).unwrap());
    let far = west.node(1).unwrap().register_shared("far", PartKind::Cpu).unwrap();
    let [part, other] = ["part", "other"].map(|name| node.register(name, PartKind::Cpu).unwrap());
    let to = part.find("far@node1.west", SOON).unwrap();
    line.close();
    let sent = std::thread::scope(|scope| {
        scope.spawn(|| echo(&near));
        let near = other.find("echo@node0", SOON).unwrap();
        let sent = fill(&part, to, 0, || trips(&other, near, 1));
        trips(&other, near, 200);
        end(&other, near);
        sent
    });
    line.open();
    std::thread::scope(|scope| {
        scope.spawn(move || drain(&far, sent + 100));
        let mut message = [0; LENGTH];
        for number in sent..sent + 100 {
            message[..8].copy_from_slice(&number.to_le_bytes());
            part.sender(to).timeout(SOON).send(&message).unwrap();
        }
        part.flush();
    });
}

/// Three clusters in a ring, each of which sends to the next until nothing more is accepted, before any reads; then all read and
/// send.
#[test]
fn a_ring_of_clusters_whose_readers_stall_goes_on_when_they_read() {
    let begin = |name| builder(name).set("trunk_bytes", "4194304");
    let listens = |name| begin(name).listen("127.0.0.1:0".to_owned());
    let west = listens("west").start().unwrap();
    let east = listens("east").trunk("west", west.address().unwrap()).start().unwrap();
    let north = begin("north").trunk("west", west.address().unwrap()).trunk("east", east.address().unwrap());
    let clusters = [west, east, north.start().unwrap()];
    let part = |cluster: &Cluster| cluster.node(1).unwrap().register_shared("ring", PartKind::Cpu).unwrap();
    let parts = clusters.each_ref().map(part);
    let next = ["east", "north", "west"];
    let to = [0, 1, 2].map(|i| parts[i].find(&format!("ring@node1.{}", next[i]), SOON).unwrap());
    let filled = [0, 1, 2].map(|i| fill(&parts[i], to[i], 0, std::thread::yield_now));
    let (mut sent, mut read, patience) = (filled, [0; 3], Patience::new());
    let ends = filled.map(|filled| filled + 500);
    let mut message = [0; LENGTH];
    while (0..3).any(|i| read[i] < ends[(i + 2) % 3]) {
        patience.check();
        for (i, part) in parts.iter().enumerate() {
            message[..8].copy_from_slice(&sent[i].to_le_bytes());
            if sent[i] < ends[i] && part.try_send(to[i], &message).is_ok() {
                sent[i] += 1;
            }
            part.flush();
            while let Some(message) = part.try_recv() {
                assert_eq!(message[..8], read[i].to_le_bytes(), "once, and in order");
                read[i] += 1;
            }
        }
    }
}

/// A part sends messages longer than the other cluster takes, which come back at once, and reads none of them: only those wait that send to
/// the same part.
#[test]
fn a_part_that_does_not_read_what_comes_back_stops_no_other_node() {
    const LENGTH: usize = 100_000;
    let change = |builder: pdbp::Builder| builder.nodes(3).set("trunk_bytes", "4194304");
    let west = change(builder("west")).listen("127.0.0.1:0".to_owned()).block_bytes(4096);
    let west = west.set("assembly_bytes", "65536").start().unwrap();
    let east = change(builder("east")).trunk("west", west.address().unwrap()).start().unwrap();
    let (far, sender) = (west.node(2).unwrap(), east.node(1).unwrap());
    let _target = west.node(1).unwrap().register_shared("target", PartKind::Cpu).unwrap();
    let part = sender.register_shared("sender", PartKind::Cpu).unwrap();
    let node = east.node(2).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&far));
        let teller = node.register("teller", PartKind::Cpu).unwrap();
        let other = teller.find("echo@node2.west", SOON).unwrap();
        let to = part.find("target@node1.west", SOON).unwrap();
        let sent = fill_with::<LENGTH, _>(&part, to, 0, || trips(&teller, other, 1));
        assert!(sent > 0);
        trips(&teller, other, 300);
        end(&teller, other);
        // When they have been read, the part goes on.
        let (mut read, mut next, patience) = (0, sent, Patience::new());
        let mut message = [0; LENGTH];
        while read < sent + 100 {
            patience.check();
            message[..8].copy_from_slice(&next.to_le_bytes());
            if next < sent + 100 && part.try_send(to, &message).is_ok() {
                next += 1;
            }
            part.flush();
            while let Some(message) = part.try_recv() {
                assert_eq!((message.command(), message.len()), (pdbp::RETURNED, LENGTH));
                assert_eq!(message[..8], read.to_le_bytes());
                read += 1;
            }
        }
    });
}

/// Two parts of the same node: one does not read what comes from the other cluster, so that the node cannot be told that the other one must
/// wait. Parts of other nodes go on, and so does everything when both read.
#[test]
fn a_node_that_cannot_be_told_to_send_no_more_stops_no_other_node() {
    let clusters = two(|builder| builder.nodes(3).set("trunk_bytes", "4194304"));
    let (west, east) = &clusters;
    let part = |cluster: &Cluster, node: usize, name: &str| {
        cluster.node(node).unwrap().register_shared(name, PartKind::Cpu).unwrap()
    };
    let [target, filler] = ["target", "filler"].map(|name| part(west, 1, name));
    let [idle, sender] = ["idle", "sender"].map(|name| part(east, 1, name));
    let (far, node) = (west.node(2).unwrap(), east.node(2).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&far));
        let teller = node.register("teller", PartKind::Cpu).unwrap();
        let other = teller.find("echo@node2.west", SOON).unwrap();
        let to_target = sender.find("target@node1.west", SOON).unwrap();
        let to_idle = filler.find("idle@node1.east", SOON).unwrap();
        let unread = fill(&filler, to_idle, 0, || trips(&teller, other, 1));
        let sent = fill(&sender, to_target, 0, || trips(&teller, other, 1));
        assert!(unread > 0 && sent > 0);
        trips(&teller, other, 300);
        end(&teller, other);
        drain(&idle, unread);
        drain(&target, sent);
    });
}

/// Some blocks of the row from the gateway to the sender's node are held by a part that does not read, for as long as the sender waits.
#[test]
fn what_comes_back_arrives_beside_a_part_that_does_not_read() {
    // Takes a block, and is longer than the other cluster takes.
    const LENGTH: usize = 100_000;
    // More than fit the row, whose default `row_blocks` is 8.
    const MESSAGES: u8 = 20;
    let west = builder("west").listen("127.0.0.1:0".to_owned()).block_bytes(4096);
    let west = west.set("assembly_bytes", "65536").start().unwrap();
    let east = builder("east").nodes(3).trunk("west", west.address().unwrap()).start().unwrap();
    let _target = west.node(1).unwrap().register_shared("target", PartKind::Cpu).unwrap();
    let (gateway, node) = (east.node(0).unwrap(), east.node(2).unwrap());
    let filler = gateway.register("filler", PartKind::Cpu).unwrap();
    let [full, part] = ["full", "part"].map(|name| node.register(name, PartKind::Cpu).unwrap());
    let to_full = filler.find("full@node2", SOON).unwrap();
    let to = part.find("target@node1.west", SOON).unwrap();
    for blocks in [4, 6] {
        for _ in 0..blocks {
            filler.sender(to_full).timeout(SOON).send(&[0; LENGTH]).unwrap();
            filler.flush();
        }
        for number in 0..MESSAGES {
            part.sender(to).timeout(SOON).send(&[number; LENGTH]).unwrap();
            part.flush();
            let back = part.recv_timeout(SOON).unwrap();
            assert_eq!((back.command(), back.len(), back[0]), (pdbp::RETURNED, LENGTH, number));
        }
        for _ in 0..blocks {
            assert_eq!(full.recv_timeout(SOON).unwrap().len(), LENGTH);
        }
    }
}
