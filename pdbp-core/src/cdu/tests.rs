//! The wire form: what is packed is read again, and nothing else is.

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

/// Packs as many as fit; the body's length.
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

/// Trains without extensions are read in two ways: what the short one reads is what the other does.
fn both_ways_read_the_same(body: &[u8]) -> Result<(), TestCaseError> {
    let mut cdus = Cdus::new(body);
    loop {
        let plain = PlainTrain::read(cdus.rest);
        let before = cdus.remaining();
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
        if let Some(plain) = plain {
            prop_assert_eq!(plain.class, train.class());
            let fields = (plain.command, plain.source_part, plain.length as usize, plain.count);
            prop_assert_eq!(fields, (train.command(), train.source_part(), train.length(), train.count()));
            prop_assert_eq!(plain.size, before - cdus.remaining());
        }
    }
}

/// Copied from block to block, as a relay does it, trains stay what they are.
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

/// What is read of a message to a set: its single destination is of no account.
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

    /// Restoring the state from before takes a message back, whatever it had closed.
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

    /// What is written behind a train, and taken afterwards, is read as if it had been packed.
    #[test]
    fn a_train_that_is_written_on_is_read_as_packed(
        messages in vec(message(), 0..8),
        length in 0usize..40,
        count in 1usize..20,
        behind in message(),
    ) {
        let mut body = [0xEE; 1024];
        let (_, mut packer, packed) = pack(&mut body, &messages);
        packer.turn(None);
        let route = Route::raw(0, 7, 1, 2);
        let one = |k: usize| std::vec![k as u8; length];
        let mut sent = Vec::new();
        for k in 0..count {
            // Before the first of them it is the room of another train.
            if k > 0 {
                let rest = packer.rest(&mut body);
                let room = rest.len();
                let taken = room.min(length * (k % 4)).checked_div(length).unwrap_or(0);
                for (i, to) in rest.chunks_exact_mut(length.max(1)).take(taken).enumerate() {
                    to.copy_from_slice(&one(k + i));
                    sent.push(one(k + i));
                }
                // What is no whole message is not taken, nor is what has no room.
                let odd = length.saturating_sub(1).min(room - taken * length);
                packer.extend(&body, taken * length + odd);
            }
            if packer.push(&mut body, route, &one(k)).is_err() {
                break;
            }
            sent.push(one(k));
        }
        let other = Route::raw(behind.class as u8, behind.command, 2, 1);
        let is_behind = packer.push(&mut body, other, &behind.data).is_ok();
        let end = packer.finish(&mut body);
        let read = unpack(&body[..end]).unwrap();
        let read: Vec<_> = read[packed..].iter().map(|m| m.data.clone()).collect();
        sent.extend(is_behind.then(|| behind.data.clone()));
        prop_assert_eq!(read, sent);
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

    /// As above, with bytes that come further: a block of ours with some of them changed.
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

#[test]
fn all_ten_fields_are_recovered() {
    let set = [part(1, 4), part(2, 0), part(1, 5), part(2, 9)];
    let mut body = [0; 512];
    let mut packer = Packer::new();
    let route = Route::new(CduClass::ShortMessage, 12, part(3, 8), part(1, 4));
    packer.push(&mut body, route, b"one").unwrap();
    packer.push(&mut body, route, b"two").unwrap();
    packer
        .reserve_set(&mut body, Route::new(CduClass::Command, 77, part(3, 8), part(1, 4)), &set, None, 3)
        .unwrap()
        .copy_from_slice(b"all");
    let segment = SegmentHeader::new(40, 41, 1 << 40);
    packer
        .reserve_segment(&mut body, Route::new(CduClass::Stream, 0, part(3, 8), part(1, 5)), segment, 0)
        .unwrap();
    let length = packer.finish(&mut body);
    let bytes = block(0, &body[..length], 4);
    let header = BlockHeader::read(&bytes).unwrap();
    assert_eq!((header.source(), header.dest()), (Some(node(3)), Some(node(1))));
    assert_eq!((header.session(), header.sequence(), header.messages()), (7, 11, 4));

    let mut cdus = Vec::new();
    for train in Cdus::new(&bytes[BLOCK_HEADER..]) {
        let first = cdus.len() as u32;
        cdus.extend(train.unwrap().cdus(&header, first).unwrap());
    }
    let id = |index| CduId { source: node(3), dest: node(1), sequence: 11, index };
    assert_eq!(cdus.iter().map(|c| c.id).collect::<Vec<_>>(), [id(0), id(1), id(2), id(3)]);
    assert!(cdus.iter().all(|c| c.source == part(3, 8)));
    assert_eq!(cdus.iter().map(|c| c.data).collect::<Vec<_>>(), [&b"one"[..], b"two", b"all", b""]);
    assert_eq!(cdus.iter().map(|c| c.command).collect::<Vec<_>>(), [12, 12, 77, 0]);
    let classes = [CduClass::ShortMessage, CduClass::ShortMessage, CduClass::Command, CduClass::Stream];
    assert_eq!(cdus.iter().map(|c| c.class).collect::<Vec<_>>(), classes);
    assert_eq!(cdus.iter().map(|c| c.stream).collect::<Vec<_>>(), [None, None, None, Some(StreamNo(5))]);
    // Of a block of a stream the segment number is in the block header, else in the extension.
    assert_eq!(cdus.iter().map(|c| c.segment).collect::<Vec<_>>(), [6, 6, 6, 41]);
    assert_eq!(cdus[0].dest.parts().collect::<Vec<_>>(), [part(1, 4)]);
    assert_eq!(cdus[2].dest.parts().collect::<Vec<_>>(), set);
    assert_eq!(cdus[2].dest.nodes().collect::<Vec<_>>(), [node(1), node(2)], "each node once");
}

#[test]
fn a_train_of_equal_messages_has_one_header() {
    let mut body = [0; 256];
    let mut packer = Packer::new();
    let route = Route::raw(0, 0, 1, 2);
    for i in 0..10u8 {
        packer.push(&mut body, route, &[i; 8]).unwrap();
    }
    assert_eq!(packer.finish(&mut body), CDU_HEADER + 80);
}

#[test]
fn a_train_that_fills_a_body_of_odd_size_is_readable() {
    for room in 250..270 {
        let mut body = std::vec![0; room];
        let mut packer = Packer::new();
        let mut n = 0;
        while packer.push(&mut body, Route::raw(0, 0, 1, 2), b"x").is_ok() {
            n += 1;
        }
        let length = packer.finish(&mut body);
        assert_eq!(Cdus::validate(&body[..length]), Ok(n), "body of {room} bytes");
    }
}

#[test]
fn the_longest_message_fits_and_one_byte_more_does_not() {
    for room in 250..270 {
        let longest = Packer::longest(room);
        let mut body = std::vec![0; room];
        assert!(Packer::new().reserve(&mut body, Route::raw(0, 0, 1, 2), longest).is_ok());
        assert_eq!(Packer::new().reserve(&mut body, Route::raw(0, 0, 1, 2), longest + 1), Err(Full));
    }
}

#[test]
fn a_refused_message_changes_nothing() {
    let mut body = [0; 64];
    let mut packer = Packer::new();
    packer.push(&mut body, Route::raw(0, 0, 1, 2), b"kept").unwrap();
    let before = body;
    for length in [64, usize::MAX - 100, usize::MAX - 3, usize::MAX] {
        assert_eq!(packer.reserve(&mut body, Route::raw(0, 0, 1, 3), length), Err(Full));
    }
    assert_eq!(
        packer.reserve_set(&mut body, Route::raw(0, 0, 1, 3), &[], None, 1),
        Err(Full),
        "an empty set"
    );
    assert_eq!(body, before);
    packer.push(&mut body, Route::raw(0, 0, 1, 2), b"more").unwrap();
    let length = packer.finish(&mut body);
    assert_eq!(Cdus::validate(&body[..length]), Ok(2));
}

#[test]
fn messages_without_bytes_do_not_make_a_reader_loop_for_ever() {
    let mut body = [0; 1024];
    let mut packer = Packer::new();
    let mut n = 0u64;
    while packer.push(&mut body, Route::raw(0, 0, 1, 2), b"").is_ok() {
        n += 1;
        assert!(n < 100_000, "a block takes messages without end");
    }
    let length = packer.finish(&mut body);
    assert_eq!(Cdus::validate(&body[..length]), Ok(n));
    // A header that claims four thousand million of them is refused.
    body[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Cdus::validate(&body[..length]), Err(Malformed::Field));
}

/// What is wrong, by the bytes changed in a good block.
#[test]
fn each_kind_of_damage_is_named() {
    let mut body = [0; 64];
    let mut packer = Packer::new();
    packer.push(&mut body, Route::raw(0, 0, 1, 2), b"abcdefgh").unwrap();
    let length = packer.finish(&mut body);
    let good = block(0, &body[..length], 1);
    let whole = |bytes: &[u8]| {
        let header = BlockHeader::read(bytes)?;
        Cdus::validate(&bytes[BLOCK_HEADER..BLOCK_HEADER + header.length()])
    };
    assert_eq!(whole(&good), Ok(1));
    for (at, bytes, wrong) in [
        (0, &b"X"[..], Malformed::Magic),
        (2, &[2], Malformed::Version(2)),
        (3, &[3], Malformed::Field),
        (12, &[0xFF; 4], Malformed::Truncated),
        (36, &[0x40], Malformed::Field),
        (36, &[0x02], Malformed::Checksum),
        (48, &[1], Malformed::Checksum),
        (64, &[3], Malformed::Field),
        (64, &[0x80], Malformed::Field),
        (64, &[0x40], Malformed::Extension),
        (65, &[1], Malformed::Field),
        (64, &[0x10], Malformed::Extension),
        (64, &[0x20], Malformed::Extension),
        (70, &[0xFF; 2], Malformed::Field),
        (72, &[9], Malformed::Length),
        (72, &[0xFF; 8], Malformed::Length),
        (76, &[0], Malformed::Field),
        (76, &[2], Malformed::Length),
    ] {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(whole(&bad), Err(wrong), "{bytes:?} at {at}");
        assert!(!std::format!("{wrong}").is_empty());
    }
}
