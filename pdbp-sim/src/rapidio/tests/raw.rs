//! An endpoint sends packets that no program has requested: malformed, of groups that do not exist, twice, out of order, too long.

use std::sync::Arc;

use pdbp_core::collective::{Call, Element, Kind, Op};

use crate::random::Random;
use crate::rapidio::fabric::Fabric;
use crate::rapidio::operation::Key;
use crate::rapidio::packet::{DATA, Packet, PacketKind, VALUES};
use crate::rapidio::port::Buffer;
use crate::rapidio::{Error, PACKET, Timing, Topology};

/// The endpoint that they come from.
const BAD: u16 = 6;
const SUM: Call = Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 4000);
const BROADCAST: Call = Call::moving(Kind::Broadcast, 6, 1000);
const GATHER: Call = Call::moving(Kind::Gather, 0, 20);
const SCATTER: Call = Call::moving(Kind::Scatter, 6, 600);

fn chain() -> Fabric {
    Fabric::new(&Topology::boards(3).chain(), Timing::SRIO).unwrap()
}

fn packet(kind: PacketKind, call: Call, data: usize) -> Packet {
    Packet {
        kind,
        priority: 0,
        source: BAD,
        dest: 0,
        number: 1,
        sequence: 0,
        run: (BAD, 1),
        tag: 0,
        call,
        data: Arc::from(vec![7; data]),
        mismatch: None,
    }
}

fn call(call: Call, data: usize) -> Packet {
    packet(PacketKind::Call, call, data)
}

fn send(fabric: &mut Fabric, packet: Packet) {
    let output = fabric.endpoints[usize::from(BAD)].output;
    fabric.push(output, 0, packet, Buffer::None);
}

/// None of these packets belongs to the group of all, whose members meanwhile call the sum.
fn unsound() -> Vec<Packet> {
    let sum = call(SUM, VALUES);
    let reduce = |op| call(Call { kind: Kind::Reduce, op, ..SUM }, VALUES);
    let gather = call(GATHER, 20);
    let mut packets = vec![
        // Groups that do not exist, and one that this endpoint is not in.
        Packet { dest: 9, ..sum.clone() },
        Packet { dest: u16::MAX, ..sum.clone() },
        Packet { dest: 1, ..sum.clone() },
        Packet { dest: 1, ..packet(PacketKind::Taken, Call::moving(Kind::Barrier, 0, 0), 0) },
        // With the source of another endpoint.
        Packet { source: 2, ..sum.clone() },
        Packet { source: 999, ..sum.clone() },
        packet(PacketKind::Result, SUM, VALUES),
        packet(PacketKind::Granted, Call::moving(Kind::Barrier, 0, 0), 0),
        packet(PacketKind::Answer, Call { op: None, ..SUM }, 0),
        // Calls that do not exist, or that switches do not perform.
        call(Call::moving(Kind::AllToAll, 0, 20), 20),
        call(Call::moving(Kind::Tagged, 0, 20), 20),
        call(Call { root: 12, ..GATHER }, 20),
        call(Call { root: usize::MAX, ..BROADCAST }, DATA),
        call(Call { bytes: usize::MAX, ..SCATTER }, DATA),
        call(Call { bytes: 4001, ..SUM }, VALUES),
        call(Call { element: Element::F32, op: Some(Op::Xor), ..SUM }, VALUES),
        call(Call { element: Element::Bytes, op: Some(Op::Function), ..SUM }, VALUES),
        reduce(None),
        // Packets that only the root sends, and packets that it never sends; reports of members are not calls, and calls are
        // numbered from 1.
        call(Call { root: 0, ..BROADCAST }, DATA),
        call(Call { root: 5, ..SCATTER }, DATA),
        call(Call { root: 6, ..GATHER }, 20),
        call(Call { root: 6, kind: Kind::Reduce, ..SUM }, VALUES),
        packet(PacketKind::Taken, Call { root: 12, bytes: 300, ..GATHER }, 0),
        Packet { number: 0, ..packet(PacketKind::Taken, SUM, 0) },
        Packet { number: 0, ..sum.clone() },
        // Members that do not exist.
        Packet { run: (12, 1), ..gather.clone() },
        Packet { run: (6, 0), ..gather.clone() },
        Packet { run: (6, u16::MAX), ..gather.clone() },
        // Blocks of members on another board.
        Packet { run: (0, 1), ..gather.clone() },
        Packet { run: (6, 3), ..call(GATHER, 60) },
    ];
    // Too long, too short, and beyond the data.
    for length in [0, 1, VALUES - 4, VALUES + 1, DATA, 20_000] {
        packets.push(call(SUM, length));
    }
    for (sequence, length) in [(16, 36), (17, VALUES), (u32::MAX, VALUES)] {
        packets.push(Packet { sequence, ..call(SUM, length) });
    }
    for (of, length) in [(BROADCAST, DATA + 1), (GATHER, 21), (GATHER, 0), (SCATTER, 20), (SCATTER, 1)] {
        packets.push(call(of, length));
    }
    packets.push(Packet { sequence: 1, ..gather });
    packets.push(call(Call::moving(Kind::Barrier, 0, 0), 1));
    packets.push(packet(PacketKind::AnswerAll, Call { op: None, ..SUM }, 1));
    packets
}

#[test]
fn what_is_of_no_call_of_its_group_is_dropped_and_counted_and_disturbs_nobody() {
    let mut fabric = chain();
    assert_eq!(fabric.add_group(vec![0, 1, 4]), Some(1));
    let packets = unsound();
    let count = packets.len() as u64;
    for packet in packets {
        send(&mut fabric, packet);
    }
    let keys: Vec<Key> = (0..12)
        .map(|id| {
            let values: Vec<u8> = (0..1000).flat_map(|i| (u32::from(id) + i).to_ne_bytes()).collect();
            fabric.start_call(id, (0, 1), SUM, Vec::new(), values)
        })
        .collect();
    while fabric.step() {}
    let sum: Vec<u8> = (0..1000u32).flat_map(|i| (66 + 12 * i).to_ne_bytes()).collect();
    for (id, key) in (0..12).zip(keys) {
        assert!(fabric.poll_op(id, key) == Some(Ok(sum.clone())), "endpoint {id}");
    }
    assert_eq!((fabric.dropped(), fabric.held()), (count, 0));
}

/// A switch takes each packet of a member once.
#[test]
fn what_comes_twice_or_is_older_than_what_has_come_is_dropped() {
    let mut fabric = chain();
    for sequence in [0, 1, 1, 0, 2] {
        send(&mut fabric, Packet { sequence, ..call(BROADCAST, DATA) });
    }
    let sum = call(SUM, VALUES);
    for _ in 0..3 {
        send(&mut fabric, Packet { number: 2, ..sum.clone() });
        send(&mut fabric, Packet { number: 3, ..call(GATHER, 20) });
    }
    while fabric.step() {}
    assert_eq!(fabric.dropped(), 2 + 2 + 2);
}

#[test]
fn messages_that_are_too_long_or_do_not_begin_are_dropped() {
    let mut fabric = chain();
    let message = |number, sequence, bytes, data| {
        let call = Call::moving(Kind::Tagged, 0, bytes);
        Packet { number, sequence, dest: 1, ..packet(PacketKind::Message, call, data) }
    };
    let lost = [
        // Longer than a packet, so that its length has no room in 16 bits.
        message(100, 0, 70_000, 70_000),
        message(101, 0, 300, PACKET),
        // The first packet is missing, or the second, or the first comes again.
        message(102, 1, 500, DATA),
        message(103, 2, 700, 200),
    ];
    send(&mut fabric, message(103, 0, 700, DATA));
    send(&mut fabric, message(104, 0, usize::MAX, DATA));
    for packet in lost.clone() {
        send(&mut fabric, packet);
    }
    send(&mut fabric, message(104, 0, usize::MAX, DATA));
    let one = fabric.start_send(BAD, 1, 5, 0, vec![9; 600]);
    let other = fabric.start_recv(1, BAD, 5, 600);
    while fabric.step() {}
    assert_eq!(fabric.poll_op(BAD, one), Some(Ok(Vec::new())));
    assert_eq!(fabric.poll_op(1, other), Some(Ok(vec![9; 600])));
    assert_eq!((fabric.dropped(), fabric.held()), (lost.len() as u64 + 1, 0));
}

fn draw(random: &mut Random) -> Packet {
    const CALLS: [Call; 7] = [
        SUM,
        BROADCAST,
        GATHER,
        SCATTER,
        Call { kind: Kind::Reduce, ..SUM },
        Call::moving(Kind::Barrier, 0, 0),
        Call::moving(Kind::Gather, 6, 300),
    ];
    let mut below = |bound: u64| random.below(bound) as usize;
    let call = Call { root: [0, 6, 11, 12][below(4)], ..CALLS[below(7)] };
    let lengths = [0, 1, 20, 52, 100, VALUES, DATA, 300];
    Packet {
        kind: PacketKind::ALL[if below(3) == 0 { 4 } else { below(12) }],
        priority: below(4) as u8,
        source: [BAD, BAD, BAD, 0, 77][below(5)],
        dest: [0, 0, 0, 1, 2, 40][below(6)],
        number: below(4) as u32,
        sequence: [0, 0, 1, 2, 16, u32::MAX][below(6)],
        run: ([0, BAD, BAD, 11, 12][below(5)], [0, 1, 1, 2, 12][below(5)]),
        tag: below(3) as u64,
        call,
        data: Arc::from(vec![7; lengths[below(8)]]),
        mismatch: None,
    }
}

/// Whatever packets come, the run terminates, and each caller gets a result or waits; members of another group are not affected.
#[test]
fn whatever_comes_nothing_goes_on_for_ever_and_other_groups_do_not_notice() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut fabric = chain();
        assert_eq!(fabric.add_group(vec![0, 1, 2, 4, 5, 11]), Some(1));
        for id in 0..12 {
            let output = vec![1; SUM.bytes];
            fabric.start_call(id, (0, 1), SUM, Vec::new(), output);
        }
        let others = [0, 1, 2, 4, 5, 11];
        let keys = others.map(|id| fabric.start_call(id, (1, 1), SUM, Vec::new(), vec![1; SUM.bytes]));
        for _ in 0..200 {
            if random.below(2) == 0 {
                send(&mut fabric, draw(&mut random));
            }
            (0..random.below(20)).for_each(|_| _ = fabric.step());
        }
        assert!((0..1_000_000).any(|_| !fabric.step()), "seed {seed}: it goes on for ever");
        for (id, key) in others.into_iter().zip(keys) {
            assert!(fabric.poll_op(id, key) == Some(Ok(vec![6; SUM.bytes])), "seed {seed}, endpoint {id}");
        }
        for id in 0..12 {
            let end = fabric.poll_op(id, Key::Call(0, 1));
            assert!(matches!(end, None | Some(Ok(_) | Err(Error::Mismatch(_)))), "seed {seed}: {end:?}");
        }
    }
}
