//! Streams, read one by one and together.

use super::*;

fn data(source: &Source, hold: &Hold) -> Vec<u8> {
    source.delivery(hold).unwrap().cdus().next().unwrap().unwrap().data().to_vec()
}

/// Accepts what there is, and reads one piece of the streams. Returns whether there was any.
pub(super) fn read_stream(
    source: &mut Source,
    inbox: &mut TestInbox,
    oracle: &mut Oracle,
    open: &mut Vec<StreamKey>,
) -> Result<bool, TestCaseError> {
    while let Some(accepted) = inbox.accept(source) {
        let expected = oracle.streams.get(open.len()).map(|stream| stream.0);
        prop_assert_eq!(Some(accepted.key.number().0), expected, "streams are accepted as they began");
        open.push(accepted.key);
    }
    for (i, key) in open.clone().into_iter().enumerate() {
        let piece = inbox.next_segment(key, source);
        if expect_piece(i, piece, source, oracle, open)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads one piece of the streams together. Returns whether there was any.
pub(super) fn read_together(
    source: &mut Source,
    inbox: &mut TestInbox,
    oracle: &mut Oracle,
    open: &mut Vec<StreamKey>,
) -> Result<bool, TestCaseError> {
    let Some((Accepted { key, .. }, piece)) = inbox.next_of_streams(source) else { return Ok(false) };
    let i = open.iter().position(|other| *other == key).unwrap_or_else(|| {
        open.push(key);
        open.len() - 1
    });
    // A new one is the first that began of those that nobody has seen.
    let expected = oracle.streams.get(i).map(|stream| stream.0);
    prop_assert_eq!(Some(key.number().0), expected, "streams are met as they began");
    prop_assert!(expect_piece(i, piece, source, oracle, open)?, "it has something");
    Ok(true)
}

/// Returns whether the piece is one: data or the end.
fn expect_piece(
    i: usize,
    piece: Segment<Hold>,
    source: &mut Source,
    oracle: &mut Oracle,
    open: &mut Vec<StreamKey>,
) -> Result<bool, TestCaseError> {
    let (_, segments, ended) = &mut oracle.streams[i];
    match piece {
        Segment::Data(hold) => {
            let data = data(source, &hold);
            source.release(hold);
            prop_assert_eq!(Some(data), segments.pop_front());
        }
        Segment::Nothing => return Ok(false),
        over => {
            prop_assert!(segments.is_empty(), "{} segments were not read", segments.len());
            let broken = matches!(over, Segment::Broken);
            prop_assert!(broken || matches!(over, Segment::End), "the stream is not known");
            prop_assert_eq!(*ended, Some(broken));
            oracle.streams.remove(i);
            open.remove(i);
        }
    }
    Ok(true)
}

/// Delivers a segment of a stream from node 1, one byte.
fn deliver(source: &mut Source, number: u32, segment: u32, last: bool) {
    let kind = DeliveryKind::Stream { number: StreamNo(number), segment, last, aborted: false };
    let data = [segment as u8];
    let pack = |packer: &mut Packer, body: &mut [u8]| {
        packer.push(body, route(1, CduClass::Stream, 0), &data).unwrap();
    };
    assert!(source.deliver(1, kind, pack));
}

/// The number of the stream that has something, and its byte; 255: the end.
fn take(inbox: &mut TestInbox, source: &mut Source) -> Option<(u32, u8)> {
    let (stream, piece) = inbox.next_of_streams(source)?;
    let byte = match piece {
        Segment::Data(hold) => {
            let byte = data(source, &hold)[0];
            source.release(hold);
            byte
        }
        Segment::End => 255,
        other => panic!("{:?}", std::mem::discriminant(&other)),
    };
    Some((stream.key.number().0, byte))
}

#[test]
fn streams_that_are_read_together_take_turns_and_one_that_was_accepted_is_left_to_its_reader() {
    let (mut source, mut inbox) = (Source::new(), inbox(16));
    deliver(&mut source, 1, 0, false);
    let alone = inbox.accept(&mut source).unwrap().key;
    for number in 2..5 {
        (0..3).for_each(|segment| deliver(&mut source, number, segment, number == 3 && segment == 2));
    }
    let taken: Vec<_> = std::iter::from_fn(|| take(&mut inbox, &mut source)).collect();
    let turns = [(2, 0), (3, 0), (4, 0), (2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2), (3, 255)];
    assert_eq!(taken, turns);
    assert!(!inbox.poll(&mut source).stream, "they were accepted when they were read");
    deliver(&mut source, 2, 3, false);
    assert!(inbox.poll(&mut source).stream, "there is a piece");
    assert_eq!(take(&mut inbox, &mut source), Some((2, 3)));
    assert!(!inbox.poll(&mut source).stream);
    let Segment::Data(hold) = inbox.next_segment(alone, &mut source) else { panic!("nobody else reads it") };
    source.release(hold);
    // All that are given up give back what comes.
    for number in [2, 4] {
        deliver(&mut source, number, if number == 2 { 4 } else { 3 }, false);
    }
    while let Some(key) = inbox.read_together() {
        inbox.forget(key, &mut source);
    }
    (5..7).for_each(|segment| deliver(&mut source, 2, segment, segment == 6));
    assert_eq!(take(&mut inbox, &mut source), None);
    assert_eq!(source.held(), 0);
}
