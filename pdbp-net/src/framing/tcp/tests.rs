use proptest::prelude::*;

use super::*;
use crate::framing::pieces::Pieces;
use crate::framing::read_ahead::CAPACITY;

/// A head, and the block behind it.
#[derive(Clone, Debug, PartialEq)]
struct Frame(Head, Vec<u8>);

fn head(kind: Kind, length: usize, number: u64, taken: u64) -> Head {
    let packing =
        if kind == Kind::Data { Packing::from_number((number % 3) as u8).unwrap() } else { Packing::Raw };
    Head { kind, packing, room: (taken % 77) as u16, length: length as u32, number, taken }
}

/// Reads everything.
fn read_all(bytes: &[u8], lengths: Vec<usize>, longest: usize) -> (Vec<Frame>, Result<(), Malformed>) {
    let mut pieces = Pieces::new(bytes, lengths);
    let (mut reader, mut frames, mut room) = (Tcp::new(longest), Vec::new(), vec![0; longest]);
    loop {
        match reader.next(&mut pieces, &mut room) {
            Ok(Parsed::Head(head)) => {
                if head.kind == Kind::Data {
                    reader.begin_block(head.length as usize);
                    room.fill(0);
                }
                frames.push(Frame(head, Vec::new()));
            }
            Ok(Parsed::Block(length)) => frames.last_mut().unwrap().1 = room[..length].to_vec(),
            Ok(Parsed::Nothing) if pieces.is_empty() => return (frames, Ok(())),
            Ok(Parsed::Nothing) => {}
            Err(Lost::Malformed(what)) => return (frames, Err(what)),
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let block = prop_oneof![0..100usize, CAPACITY - 50..CAPACITY + 50, 40_000..50_000usize];
    prop_oneof![
        (block, any::<u64>(), any::<u64>()).prop_map(|(length, number, taken)| {
            let bytes = (0..length).map(|i| (i as u64 ^ number ^ taken) as u8).collect();
            Frame(head(Kind::Data, length, number, taken), bytes)
        }),
        any::<u64>().prop_map(|taken| Frame(head(Kind::Ack, 0, 0, taken), Vec::new())),
        (any::<u32>(), any::<u64>())
            .prop_map(|(session, taken)| Frame(head(Kind::Open, 0, session.into(), taken), Vec::new())),
        Just(Frame(head(Kind::Bye, 0, 0, 5), Vec::new())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However a connection splits the bytes, the same frames come out.
    #[test]
    fn frames_are_read_as_they_were_written(
        frames in prop::collection::vec(any_frame(), 0..8),
        lengths in prop::collection::vec(prop_oneof![0..3usize, 20..30usize, 1000..60_000usize], 1..9),
    ) {
        prop_assume!(lengths.iter().any(|length| *length > 0));
        let mut bytes = Vec::new();
        for Frame(head, block) in &frames {
            bytes.extend_from_slice(&head.to_bytes());
            bytes.extend_from_slice(block);
        }
        let (read, result) = read_all(&bytes, lengths, 50_000);
        prop_assert_eq!(result, Ok(()));
        // Not by assert_eq, which would print megabytes.
        prop_assert!(read == frames);
    }

    /// Arbitrary bytes never make it panic, and give the same result in whatever pieces they arrive.
    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in prop::collection::vec(prop_oneof![3 => 0..5u8, 1 => any::<u8>()], 0..400),
        lengths in prop::collection::vec(1..40usize, 1..9),
    ) {
        prop_assert_eq!(read_all(&bytes, lengths, 300), read_all(&bytes, vec![1000], 300));
    }
}

#[test]
fn frames_are_read_when_they_are_cut_at_each_byte() {
    let bytes = [head(Kind::Open, 0, 3, 4).to_bytes(), head(Kind::Ack, 0, 0, 9).to_bytes()].concat();
    for cut in 1..bytes.len() {
        let (frames, result) = read_all(&bytes, vec![cut, 0, bytes.len()], 100);
        assert_eq!((frames.len(), result), (2, Ok(())), "cut at {cut}");
    }
}

#[test]
fn what_is_no_frame_is_refused_by_name() {
    let good = head(Kind::Ack, 0, 0, 1).to_bytes();
    let change = |at: usize, to: u8| {
        let mut bytes = good;
        bytes[at] = to;
        Head::from_bytes(&bytes, 100)
    };
    assert_eq!(change(0, 0), Err(Malformed::Kind(0)));
    assert_eq!(change(0, 5), Err(Malformed::Kind(5)));
    assert_eq!(change(1, 1), Err(Malformed::Unused(3)));
    assert_eq!(change(4, 1), Err(Malformed::Unused(3)), "an acknowledgement has no block");
    assert_eq!(change(8, 1), Err(Malformed::Unused(3)));
    let mut data = head(Kind::Data, 10, 0, 0).to_bytes();
    data[1] = 3;
    assert_eq!(Head::from_bytes(&data, 100), Err(Malformed::Codec(3)));
    let long = head(Kind::Data, 101, 0, 0).to_bytes();
    assert_eq!(Head::from_bytes(&long, 100), Err(Malformed::Length(101)));
    let open = Head { number: u64::MAX, ..head(Kind::Open, 0, 0, 0) };
    assert_eq!(Head::from_bytes(&open.to_bytes(), 100), Err(Malformed::Unused(1)));
}
