//! One case each.

use super::*;

#[test]
fn a_message_is_seen_though_what_is_unread_leaves_no_room_for_it() {
    let (mut source, mut inbox) = (Source::new(), inbox(1));
    let kind = DeliveryKind::Stream { number: StreamNo(1), segment: 0, last: false, aborted: false };
    assert!(source.deliver(1, kind, |packer, body| {
        packer.push(body, route(1, CduClass::Stream, 0), b"nobody reads it").unwrap();
    }));
    assert!(!inbox.poll(&mut source).message);
    assert!(source.deliver(1, messages(false), |packer, body| {
        packer.push(body, route(1, CduClass::ShortMessage, 0), b"to be read").unwrap();
    }));
    assert!(inbox.poll(&mut source).message);
    let message = inbox.next(&mut source).expect("it was seen");
    source.release(message.into_hold());
    assert!(!inbox.poll(&mut source).message);
}

#[test]
fn messages_behind_what_there_is_no_room_for_may_be_there() {
    let (mut source, mut inbox) = (Source::new(), inbox(1));
    let kind = |segment| DeliveryKind::Stream { number: StreamNo(1), segment, last: false, aborted: false };
    let data = |class| {
        move |packer: &mut Packer, body: &mut [u8]| packer.push(body, route(1, class, 0), b"data").unwrap()
    };
    assert!(source.deliver(1, kind(0), data(CduClass::Stream)));
    assert!(!inbox.poll(&mut source).stalled);
    assert!(source.deliver(1, kind(1), data(CduClass::Stream)));
    assert!(source.deliver(1, messages(false), data(CduClass::ShortMessage)));
    let waiting = inbox.poll(&mut source);
    assert!(!waiting.message && waiting.stream && waiting.stalled);
    let key = inbox.accept(&mut source).unwrap().key;
    for _ in 0..2 {
        let Segment::Data(hold) = inbox.next_segment(key, &mut source) else { panic!() };
        source.release(hold);
    }
    assert_eq!(inbox.poll(&mut source), Waiting { message: true, stream: false, stalled: false });
    inbox.clear(&mut source);
    assert_eq!(source.held(), 0);
}

#[test]
fn messages_that_are_withheld_come_later_in_their_order_and_streams_at_once() {
    let (mut source, mut inbox) = (Source::new(), inbox(4));
    let data = |class, byte| {
        move |packer: &mut Packer, body: &mut [u8]| packer.push(body, route(1, class, 0), &[byte]).unwrap()
    };
    let byte = |inbox: &mut TestInbox, source: &mut Source| next(inbox, source).map(|(.., data)| data[0]);
    assert!(source.deliver(1, messages(false), data(CduClass::ShortMessage, 0)));
    assert_eq!(byte(&mut inbox, &mut source), Some(0));
    assert!(!inbox.poll(&mut source).message);
    inbox.withhold(true);
    let stream = DeliveryKind::Stream { number: StreamNo(1), segment: 0, last: true, aborted: false };
    assert!(source.deliver(1, messages(false), data(CduClass::ShortMessage, 2)));
    assert!(source.deliver(1, messages(true), data(CduClass::Command, 1)));
    assert!(source.deliver(1, stream, data(CduClass::Stream, 9)));
    for _ in 0..2 {
        assert_eq!(byte(&mut inbox, &mut source), None);
        assert!(inbox.next_batch(&mut source).is_none());
        assert_eq!(inbox.read_each(&mut source, |_, _| panic!()), Some(0));
        assert!(!inbox.poll(&mut source).message);
    }
    let key = inbox.accept(&mut source).expect("it is no message").key;
    let Segment::Data(hold) = inbox.next_segment(key, &mut source) else { panic!() };
    source.release(hold);
    inbox.withhold(false);
    assert!(inbox.poll(&mut source).message);
    assert_eq!([(); 3].map(|()| byte(&mut inbox, &mut source)), [Some(1), Some(2), None]);
    assert!(matches!(inbox.next_segment(key, &mut source), Segment::End));
    assert_eq!(source.held(), 0);
}

#[test]
fn a_stream_that_nobody_reads_any_more_gives_back_what_comes() {
    let (mut source, mut inbox) = (Source::new(), inbox(2));
    let kind = |segment, last| DeliveryKind::Stream { number: StreamNo(1), segment, last, aborted: false };
    let data = |packer: &mut Packer, body: &mut [u8]| {
        packer.push(body, route(1, CduClass::Stream, 0), b"data").unwrap();
    };
    assert!(source.deliver(1, kind(0, false), data));
    let key = inbox.accept(&mut source).unwrap().key;
    assert!(inbox.waiting_segment(key).is_some());
    inbox.forget(key, &mut source);
    for segment in 1..20 {
        assert!(source.deliver(1, kind(segment, segment == 19), data));
    }
    inbox.poll(&mut source);
    assert_eq!((source.held(), source.arrivals.len()), (0, 0));
    assert!(matches!(inbox.next_segment(key, &mut source), Segment::Unknown));
}

#[test]
fn a_message_of_a_node_that_failed_or_that_was_given_up_gives_its_room_back() {
    let (mut source, mut inbox) = (Source::new(), inbox(2));
    let room = source.room;
    let piece = |number, segment| {
        move |packer: &mut Packer, body: &mut [u8]| {
            let header = SegmentHeader::new(number, segment, 64);
            let route = route(1, CduClass::ShortMessage, 0);
            let length = if segment == SegmentHeader::ABORTED { 0 } else { 16 };
            packer.reserve_segment(body, route, header, length).unwrap().fill(1);
        }
    };
    for end in [Some(SegmentHeader::ABORTED), None] {
        assert!(source.deliver(1, messages(false), piece(3, 0)));
        assert!(inbox.next(&mut source).is_none());
        assert_eq!((source.room, source.held()), (room - 64, 0));
        match end {
            Some(end) => assert!(source.deliver(1, messages(false), piece(3, end))),
            None => source.arrivals.push_back(Arrival::Failed(node(1))),
        }
        assert!(inbox.next(&mut source).is_none());
        assert_eq!((source.room, source.held()), (room, 0), "{end:?}");
        // Anything of it that still arrives belongs to nobody.
        assert!(source.deliver(1, messages(false), piece(3, 1)));
        assert!(inbox.next(&mut source).is_none());
        assert_eq!(source.held(), 0);
    }
    assert_eq!(inbox.unreadable(), 0);
}

/// Without prior checks: accepting a stream or waiting takes things out of the pipe that are read later.
#[test]
fn a_message_that_had_come_before_its_node_failed_is_whole() {
    for read_before in 0..4 {
        let (mut source, mut inbox) = (Source::new(), inbox(2));
        let room = source.room;
        for segment in 0..4 {
            assert!(source.deliver(1, messages(false), |packer, body| {
                let header = SegmentHeader::new(3, segment, 64);
                let room = packer.reserve_segment(body, route(1, CduClass::ShortMessage, 0), header, 16);
                room.unwrap().fill(segment as u8);
            }));
            if segment < read_before {
                assert!(inbox.next(&mut source).is_none());
            }
        }
        // And the beginning of another, which nothing follows.
        assert!(source.deliver(1, messages(false), |packer, body| {
            let header = SegmentHeader::new(4, 0, 64);
            packer.reserve_segment(body, route(1, CduClass::ShortMessage, 0), header, 16).unwrap().fill(9);
        }));
        source.arrivals.push_back(Arrival::Failed(node(1)));
        assert!(inbox.accept(&mut source).is_none());
        assert!(inbox.poll(&mut source).message);
        let message = inbox.next(&mut source).expect("all of it had come");
        let bytes: Vec<u8> = source.bytes(message.hold()).to_vec();
        assert_eq!((bytes.len(), bytes[0], bytes[63]), (64, 0, 3));
        source.release(message.into_hold());
        assert!(inbox.next(&mut source).is_none());
        assert_eq!((source.room, source.held()), (room, 0), "{read_before}");
        source.arrivals.push_back(Arrival::Failed(node(1)));
        assert!(!inbox.poll(&mut source).message, "that is no message");
    }
}

#[test]
fn a_message_without_room_is_counted_and_the_rest_of_it_discarded() {
    let (mut source, mut inbox) = (Source::new(), inbox(2));
    source.room = 63;
    for segment in 0..4 {
        assert!(source.deliver(1, messages(false), |packer, body| {
            let header = SegmentHeader::new(1, segment, 64);
            packer.reserve_segment(body, route(1, CduClass::ShortMessage, 0), header, 16).unwrap().fill(1);
        }));
    }
    assert!(inbox.next(&mut source).is_none());
    assert_eq!((inbox.unreadable(), source.held()), (1, 0));
}

#[test]
fn returned_messages_come_one_by_one_and_what_the_engine_said_itself_does_not() {
    let (mut source, mut inbox) = (Source::new(), inbox(2));
    assert!(source.deliver(2, DeliveryKind::Returned { stream: None }, |packer, body| {
        let to =
            |dest| Route::new(CduClass::ShortMessage, 4, part(9), PartId::or_node(node(2), dest).unwrap());
        packer.push(body, to(PartId::NODE), &[0; 16]).unwrap();
        packer.push(body, to(1), b"one").unwrap();
        packer.push(body, to(1), b"two").unwrap();
        let end = SegmentHeader::new(5, SegmentHeader::ABORTED, 0);
        packer.reserve_segment(body, to(1), end, 0).unwrap();
        packer.push(body, to(3), b"three").unwrap();
    }));
    for (bytes, dest) in [(&b"one"[..], 1), (b"two", 1), (b"three", 3)] {
        let returned = inbox.next_returned(&mut source).unwrap();
        let found = &source.bytes(returned.hold())[returned.start()..][..returned.length()];
        assert_eq!((found, returned.command()), (bytes, 4));
        let delivery = source.delivery(returned.hold()).unwrap();
        let targets: Vec<_> = returned.targets(delivery).collect();
        assert_eq!(targets, [PartId::new(node(2), dest).unwrap()], "{found:?}");
        source.release(returned.into_hold());
    }
    assert!(inbox.next_returned(&mut source).is_none());
    assert_eq!(source.held(), 0);
}
