//! The wire format: what is packed is read back, and nothing else is.

mod examples;

use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

fn node(i: u16) -> NodeId {
    NodeId::new(i).unwrap()
}

fn part(node_: u16, local: u16) -> PartId {
    PartId::new(node(node_), local).unwrap()
}

/// A message as a writer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    class: CduClass,
    command: u16,
    source: u16,
    dest: u16,
    set: Vec<PartId>,
    segment: Option<(u32, u32, u64)>,
    via: Option<Via>,
    data: Vec<u8>,
}

fn class() -> impl Strategy<Value = CduClass> {
    prop_oneof![Just(CduClass::ShortMessage), Just(CduClass::Command), Just(CduClass::Stream)]
}

fn message() -> impl Strategy<Value = Message> {
    let route = (class(), 0u16..3, 0u16..3, 0u16..3);
    let set = prop_oneof![
        4 => Just(Vec::new()),
        1 => vec((0u16..4, 0u16..9).prop_map(|(n, l)| part(n, l)), 1..7)
    ];
    let segment = prop_oneof![4 => Just(None), 1 => any::<(u32, u32, u64)>().prop_map(Some)];
    let data = prop_oneof![vec(any::<u8>(), 0..4), vec(any::<u8>(), 0..100)];
    let via = prop_oneof![
        2 => Just(None),
        1 => (0u16..3, 0u16..0xFFFF).prop_map(|(o, d)| Some(Via { origin: node(o), dest: node(d) }))
    ];
    (route, set, segment, via, data).prop_map(|((class, command, source, dest), set, segment, via, data)| {
        Message { class, command, source, dest, set, segment, via, data }
    })
}

/// Packs as many as fit; returns the body's length.
fn pack(body: &mut [u8], messages: &[Message]) -> (usize, Packer, usize) {
    let mut packer = Packer::new();
    let mut packed = 0;
    for m in messages {
        let route = Route::raw(m.class as u8, m.command, m.source, m.dest);
        let segment = m.segment.map(|(a, b, c)| SegmentHeader::new(a, b, c));
        let length = m.data.len();
        packer.turn(m.via);
        let room = match (m.set.is_empty(), segment) {
            (true, None) => packer.reserve(body, route, length),
            (true, Some(segment)) => packer.reserve_segment(body, route, segment, length),
            (false, segment) => packer.reserve_set(body, route, &m.set, segment, length),
        };
        match room {
            Ok(room) => room.copy_from_slice(&m.data),
            Err(Full) => break,
        }
        packed += 1;
    }
    (packer.finish(body), packer, packed)
}

fn unpack(body: &[u8]) -> Result<Vec<Message>, Malformed> {
    let mut messages = Vec::new();
    for train in Cdus::new(body) {
        let train = train?;
        for data in train.messages() {
            messages.push(Message {
                class: train.class(),
                command: train.command(),
                source: train.source_part(),
                dest: train.dest_part().unwrap_or(0),
                set: train.set().parts().collect(),
                via: train.via(),
                segment: train.segment().map(|s| (s.message(), s.segment(), s.total())),
                data: data.to_vec(),
            });
        }
    }
    Ok(messages)
}

/// Trains without extensions are parsed in two ways, which must agree.
fn both_ways_read_the_same(body: &[u8]) -> Result<(), TestCaseError> {
    let mut cdus = Cdus::new(body);
    loop {
        let before = cdus.remaining();
        let plain = header_words(cdus.rest).and_then(|(route, run, rest)| {
            let run = PlainRun::read(run).filter(|run| run.size <= rest.len() as u64)?;
            Some((PlainRoute::read(route)?, run))
        });
        let train = match cdus.next() {
            Some(Ok(train)) => train,
            _ => {
                prop_assert!(plain.is_none());
                return Ok(());
            }
        };
        let is_plain = train.segment().is_none() && train.via().is_none() && train.dest_part().is_some();
        let may_be_stream = train.class() == CduClass::Stream || train.length() == 0;
        prop_assert_eq!(plain.is_some(), is_plain && !may_be_stream);
        if let Some((route, run)) = plain {
            prop_assert_eq!(route.class, train.class());
            let fields = (route.command, route.source_part, run.length as usize, run.count);
            prop_assert_eq!(fields, (train.command(), train.source_part(), train.length(), train.count()));
            prop_assert_eq!(run.size as usize, before - CDU_HEADER - cdus.remaining());
        }
    }
}

/// Trains copied from block to block, as a relay does, stay the same.
#[test]
fn a_train_that_is_copied_is_the_same() {
    let set = [part(1, 4), part(2, 0), part(1, 5)];
    let via = Some(Via { origin: node(3), dest: node(1) });
    let mut first = [0; 512];
    let mut packer = Packer::new();
    packer.turn(via);
    let route = Route::raw(0, 7, 1, 2);
    for data in [b"one", b"two", b"six"] {
        packer.push(&mut first, route, data).unwrap();
    }
    packer
        .reserve_segment(&mut first, route, SegmentHeader::new(1, 2, 3), 5)
        .unwrap()
        .copy_from_slice(b"seven");
    packer.reserve_set(&mut first, route, &set, None, 4).unwrap().copy_from_slice(b"nine");
    let length = packer.finish(&mut first);
    assert_eq!(Cdus::new(&first[..length]).count(), 3, "messages with one way share a header");
    let mut second = [0xEE; 512];
    let mut packer = Packer::new();
    packer.push(&mut second, route, b"straight").unwrap();
    let mut cdus = Cdus::new(&first[..length]);
    let mut at = 0;
    while let Some(train) = cdus.next() {
        let end = length - cdus.remaining();
        packer.copy(&mut second, &first[at..end], train.unwrap().count()).unwrap();
        at = end;
    }
    assert_eq!(packer.copy(&mut second, &first, 1), Err(Full));
    assert_eq!((packer.messages(), packer.only_part()), (6, None));
    let copied = packer.finish(&mut second);
    let (before, after) = (unpack(&first[..length]).unwrap(), unpack(&second[..copied]).unwrap());
    assert_eq!(after[1..], before[..]);
    assert_eq!((after[0].via, after[1].via), (None, via));
    for train in Cdus::new(&first[..length]) {
        let header = header(BlockClass::Message, 0, &first[..length], 5);
        for cdu in train.unwrap().cdus(&header, 0).unwrap() {
            assert_eq!((cdu.source.node(), cdu.id.source), (node(3), node(3)));
            assert!(cdu.dest.parts().any(|part| part.node() == node(1)));
        }
    }
}

/// A message to a set as it is read: its single destination does not matter.
fn as_read(m: &Message) -> Message {
    Message { dest: if m.set.is_empty() { m.dest } else { 0 }, ..m.clone() }
}

fn header(class: BlockClass, flags: u16, body: &[u8], messages: u32) -> BlockHeader {
    BlockHeader {
        magic: MAGIC,
        version: VERSION,
        class: class as u8,
        source: 3.into(),
        dest: 1.into(),
        session: 7.into(),
        length: (body.len() as u32).into(),
        sequence: 11.into(),
        released: 2.into(),
        window: 4.into(),
        flags: flags.into(),
        part: 0.into(),
        stream: 5.into(),
        segment: 6.into(),
        checksum: 0.into(),
        messages: messages.into(),
        group: 0.into(),
        data: 9.into(),
        wanted: 0.into(),
    }
}

fn block(flags: u16, body: &[u8], messages: u32) -> Vec<u8> {
    let mut header = header(BlockClass::Message, flags, body, messages);
    if header.has(flag::CHECKSUM) {
        header.checksum.set(checksum(&header, body));
    }
    [header.as_bytes(), body].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_packed_is_read_again(messages in vec(message(), 0..40), room in 0usize..2000) {
        let mut body = std::vec![0xEE; room];
        let (length, packer, packed) = pack(&mut body, &messages);
        prop_assert!(length <= room && length.is_multiple_of(8));
        prop_assert_eq!(packer.messages() as usize, packed);
        prop_assert_eq!(Cdus::validate(&body[..length]), Ok(packed as u64));
        let expected: Vec<_> = messages[..packed].iter().map(as_read).collect();
        prop_assert_eq!(unpack(&body[..length]), Ok(expected));
        both_ways_read_the_same(&body[..length])?;
        if let Some(only) = packer.only_part() {
            prop_assert!(messages[..packed].iter().all(|m| m.set.is_empty() && m.via.is_none() && m.dest == only));
        }
    }

    /// Restoring the earlier state takes a message back, whatever it had closed.
    #[test]
    fn a_message_taken_back_leaves_no_trace(messages in vec(message(), 1..20), undone in message()) {
        let mut body = [0; 1024];
        let mut packer = Packer::new();
        let mut expected = Vec::new();
        for m in &messages {
            let route = Route::raw(m.class as u8, m.command, m.source, m.dest);
            let mark = packer;
            let other = Route::raw(undone.class as u8, undone.command, undone.source, undone.dest);
            let _ = packer.push(&mut body, other, &undone.data);
            packer = mark;
            if packer.push(&mut body, route, &m.data).is_ok() {
                expected.push(Message { set: Vec::new(), segment: None, via: None, ..m.clone() });
            }
        }
        let length = packer.finish(&mut body);
        prop_assert_eq!(unpack(&body[..length]), Ok(expected));
    }

    /// A sender that packs into lent room produces, byte by byte, what the packer would have packed.
    #[test]
    fn trains_in_lent_room_are_those_of_the_packer(
        messages in vec(message(), 0..8),
        inside in vec((1usize..40, 1usize..5), 1..12),
        straight in any::<bool>(),
        only_one_part in any::<bool>(),
        behind in message(),
    ) {
        let (mut body, mut like) = ([0xEE; 1024], [0xEE; 1024]);
        let (_, mut packer, _) = pack(&mut body, &messages);
        let (_, mut oracle, _) = pack(&mut like, &messages);
        let via = (!straight).then_some(Via { origin: node(3), dest: node(4) });
        let route = Route::raw(0, 0, 1, 2);
        let other = if only_one_part { route } else { Route::raw(0, 0, 1, 3) };
        for (packer, body) in [(&mut packer, &mut body), (&mut oracle, &mut like)] {
            packer.turn(via);
            if packer.push(body, route, &[7; 5]).is_err() {
                return Ok(());
            }
        }
        let lent = packer.lend(&mut body);
        if let Some(Lent { room, written, is_straight }) = lent {
            prop_assert_eq!(is_straight, straight);
            // The open train, which the packer has begun, and those that follow.
            let (mut header, mut end, mut length, mut before) = (0, written, 5, 0);
            let mut count = ((written - if straight { 16 } else { 24 }) / length) as u32;
            for (next, many) in inside {
                for _ in 0..many {
                    let is_one_more = next == length && (header > 0 || only_one_part);
                    if !is_one_more && !straight {
                        continue;
                    }
                    let data = if is_one_more { end } else { padded(end) + 16 };
                    if padded(data + next) > room.len() {
                        continue;
                    }
                    if !is_one_more {
                        room[header + COUNT_AT..][..4].copy_from_slice(&count.to_le_bytes());
                        room[end..padded(end)].fill(0);
                        before += count;
                        (header, length, count) = (padded(end), next, 0);
                        room[header..][..16].copy_from_slice(&other.header(next as u32));
                    }
                    count += 1;
                    end = data + next;
                    room[data..end].fill(next as u8);
                    let of = if header == 0 { route } else { other };
                    let packed = oracle.push(&mut like, of, &std::vec![next as u8; next]);
                    prop_assert_eq!(packed, Ok(()));
                }
            }
            let last = if header > 0 { other } else { route };
            let packed = Packed { last_train: header, route: last, length, end, before, only_one_part };
            packer.commit(&body, packed);
            // It goes on as if it had packed all of them, whether or not the next one belongs to that train.
            for next in [last, route] {
                let both = [(&mut packer, &mut body), (&mut oracle, &mut like)];
                let both = both.map(|(packer, body)| packer.push(body, next, &std::vec![9; length]));
                prop_assert_eq!(both[0], both[1]);
            }
        }
        prop_assert_eq!(packer.messages(), oracle.messages());
        let behind_route = Route::raw(behind.class as u8, behind.command, 2, 2);
        let both = [(&mut packer, &mut body), (&mut oracle, &mut like)].map(|(packer, body)| {
            let _ = packer.push(body, behind_route, &behind.data);
            packer.finish(body)
        });
        prop_assert_eq!(both[0], both[1]);
        prop_assert_eq!(&body[..both[0]], &like[..both[1]]);
        prop_assert!(packer.only_part() == oracle.only_part() || packer.only_part().is_none());
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_give_only_their_own(bytes in vec(any::<u8>(), 0..300)) {
        let range = bytes.as_ptr_range();
        let inside = |s: &[u8]| s.is_empty() || (range.start <= s.as_ptr() && s.as_ptr_range().end <= range.end);
        let _ = BlockHeader::read(&bytes);
        both_ways_read_the_same(&bytes)?;
        for train in Cdus::new(&bytes) {
            let Ok(train) = train else { break };
            prop_assert!(inside(train.data()));
            prop_assert!(train.messages().all(inside));
            prop_assert_eq!(train.messages().count(), train.count() as usize);
            for part in train.set().parts() {
                let _ = part.node();
            }
        }
    }

    /// As above, with bytes that get further: one of our blocks with some bytes changed.
    #[test]
    fn changed_blocks_never_panic(
        messages in vec(message(), 0..20),
        changes in vec((any::<u16>(), any::<u8>()), 0..6),
    ) {
        let mut body = std::vec![0; 1500];
        let (length, _, packed) = pack(&mut body, &messages);
        let mut bytes = block(0, &body[..length], packed as u32);
        for (at, value) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        if let Ok(header) = BlockHeader::read(&bytes) {
            let body = &bytes[BLOCK_HEADER..BLOCK_HEADER + header.length()];
            for train in Cdus::new(body) {
                let Ok(train) = train else { break };
                for cdu in train.cdus(&header, 0).into_iter().flatten() {
                    prop_assert!(cdu.dest.nodes().count() <= cdu.dest.parts().count());
                }
            }
        }
    }

    #[test]
    fn every_flip_and_every_truncation_of_a_checksummed_block_is_refused(
        messages in vec(message(), 0..8),
        bits in 1u8..,
    ) {
        let mut body = std::vec![0; 600];
        let (length, _, packed) = pack(&mut body, &messages);
        let bytes = block(flag::CHECKSUM, &body[..length], packed as u32);
        prop_assert!(BlockHeader::read(&bytes).is_ok());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= bits;
            prop_assert!(BlockHeader::read(&changed).is_err(), "byte {at} changed by {bits:#x}");
        }
        for length in 0..bytes.len() {
            prop_assert!(BlockHeader::read(&bytes[..length]).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn truncated_bodies_are_refused_or_whole_messages_are_missing(messages in vec(message(), 1..10)) {
        let mut body = std::vec![0; 1500];
        let (length, _, packed) = pack(&mut body, &messages);
        let whole: Vec<_> = messages[..packed].iter().map(as_read).collect();
        for cut in 0..length {
            if let Ok(read) = unpack(&body[..cut]) {
                prop_assert!(whole.starts_with(&read) && read.len() < whole.len(), "cut to {cut}");
            }
        }
    }
}
