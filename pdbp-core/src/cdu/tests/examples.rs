//! Blocks written by hand: their fields, their limits, and how damage is reported.

use super::*;

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
    // In a block of a stream the segment number is in the block header, otherwise in the extension.
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
    // A header that claims four billion messages is refused.
    body[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Cdus::validate(&body[..length]), Err(Malformed::Field));
}

/// The error for each kind of changed byte in a good block.
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
