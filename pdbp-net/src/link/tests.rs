//! Two ends of a link over in-memory connections that are cut at any time, compared with what was sent.

use pdbp_core::umb::stride;
use proptest::prelude::*;

use super::world::*;
use super::*;
use crate::framing::tcp::HEAD;
use crate::ring::codec::{self, Codec, Packing};

const PLAIN: Setting = Setting { codec: Codec::None, workers: false };

fn any_setting() -> impl Strategy<Value = Setting> {
    let codec = prop_oneof![Just(Codec::None), Just(Codec::Auto), Just(Codec::Lz4), Just(Codec::Zstd)];
    (codec, any::<bool>()).prop_map(|(codec, workers)| Setting { codec, workers })
}

/// Plain framing, or SOAP with either end calling.
fn any_caller() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![Just(None), Just(Some(0)), Just(Some(1))]
}

fn operation(with_outages: bool) -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => (0..2usize, 0..1000usize).prop_map(|(end, extra)| Operation::Submit(end, extra)),
        10 => (0..2usize).prop_map(Operation::Post),
        30 => (0..2usize, 1..20u8).prop_map(|(end, times)| Operation::Poll(end, times)),
        4 => (1..2000usize, 1..500usize, any_caller())
            .prop_map(|(holds, grain, caller)| Operation::Connect { holds, grain, caller }),
        2 => (0..2usize, 0..2usize).prop_map(|(end, threads)| Operation::Threads(end, threads)),
        2 => (0..2usize).prop_map(Operation::Cut),
        u32::from(with_outages) => (0..2usize).prop_map(Operation::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// As long as no end gives the link up, cuts lose and duplicate nothing, and keep the order.
    #[test]
    fn cuts_lose_nothing(
        settings in [any_setting(), any_setting()],
        operations in prop::collection::vec(operation(false), 0..400),
        caller in any_caller(),
    ) {
        let mut world = World::new(settings);
        operations.iter().for_each(|operation| world.run(operation));
        world.settle(caller);
        world.has_all();
    }

    /// When ends give the link up, each block comes back once: as sent if the peer surely has it, else as failed. Later ones
    /// travel in a session on which both ends agree, whatever number a peer has given the one before.
    #[test]
    fn what_is_in_doubt_comes_back(
        settings in [any_setting(), any_setting()],
        operations in prop::collection::vec(operation(true), 0..400),
        caller in any_caller(),
        session in prop_oneof![Just(0), u32::MAX - 2..=u32::MAX],
    ) {
        let mut world = World::new(settings);
        world.begin_at(session);
        operations.iter().for_each(|operation| world.run(operation));
        world.settle(caller);
        world.has_all_or_back();
    }
}

/// An end that has opened a connection, and what it has written on it.
fn opened() -> (End, Pipe) {
    let mut end = End::new(0, Instant::now(), PLAIN);
    let [mine, mut theirs] = Pipe::pair(100_000, 100_000);
    end.link.connect(mine, Protocol::Tcp, &mut end.ring);
    theirs.write_all(&frame(Kind::Open, 0, 0, 3).to_bytes()).unwrap();
    assert!(!end.poll());
    (end, theirs)
}

/// A protocol violation ends the connection, not the link; three connections in a row end the link, too, with the reason.
#[test]
fn malformed_frames_end_the_connection_and_then_the_link() {
    let data = |number, length| Head { length, number, ..frame(Kind::Data, 0, 0, 0) };
    let cases = [
        (frame(Kind::Open, 0, 0, 0), Malformed::OpenTwice),
        (frame(Kind::Ack, 0, 1, 0), Malformed::Taken { found: 1, sent: 0 }),
        (data(0, 10), Malformed::NoRoom),
        (data(1, 10), Malformed::Sequence { found: 1, due: 0 }),
        (data(0, 1 << 30), Malformed::Length(1 << 30)),
    ];
    for (head, what) in cases {
        let (mut end, mut theirs) = opened();
        for connection in 1..FAULTS {
            theirs.write_all(&head.to_bytes()).unwrap();
            assert!(!end.poll());
            assert!(
                end.link.needs_connection() && end.link.is_up(),
                "{what}: connection {connection} is over"
            );
            let [mine, other] = Pipe::pair(100_000, 100_000);
            theirs = other;
            end.link.connect(mine, Protocol::Tcp, &mut end.ring);
            theirs.write_all(&frame(Kind::Open, 0, 0, 3).to_bytes()).unwrap();
        }
        theirs.write_all(&head.to_bytes()).unwrap();
        end.link.wake(true, true);
        let Some(Completion::PeerFailed { cause, .. }) = end.link.poll(&mut end.ring) else {
            panic!("{what}: no failure")
        };
        assert_eq!(cause, Some(NetError::Malformed(what)));
        assert_eq!(end.link.stats().malformed, u64::from(FAULTS));
    }
}

#[test]
fn a_block_that_comes_again_is_acknowledged_again() {
    let (mut end, mut theirs) = opened();
    end.link.incoming.taken = 2;
    assert!(!end.poll());
    let told = |theirs: &mut Pipe| {
        let mut bytes = [0; HEAD];
        theirs.read_exact(&mut bytes).map(|()| Head::from_bytes(&bytes, 1000).unwrap().taken).ok()
    };
    while told(&mut theirs).is_some() {}
    theirs.write_all(&Head { length: 10, ..frame(Kind::Data, 1, 0, 0) }.to_bytes()).unwrap();
    theirs.write_all(&[7; 10]).unwrap();
    end.link.wake(true, true);
    assert!(!end.poll());
    assert_eq!((told(&mut theirs), end.link.is_connected()), (Some(2), true));
}

/// A separate acknowledgement costs a write at this end and a read at the other, so it rides on what is sent anyway.
#[test]
fn acknowledgements_wait_for_something_to_go_with() {
    let told = |theirs: &mut Pipe| {
        let mut bytes = [0; HEAD];
        let head = theirs.read_exact(&mut bytes).map(|()| Head::from_bytes(&bytes, 1000).unwrap()).ok()?;
        theirs.read_exact(&mut vec![0; head.length as usize]).unwrap();
        Some((head.kind, head.taken))
    };
    let started = || {
        let (mut end, mut theirs) = opened();
        (0..CAPACITY).for_each(|_| end.post());
        assert!(!end.poll());
        while told(&mut theirs).is_some() {}
        (end, theirs)
    };
    let come = |end: &mut End, theirs: &mut Pipe, number| {
        let head = Head { length: 64, ..frame(Kind::Data, number, 0, 3) };
        let block = [&number.to_le_bytes()[..], &[number as u8; 56]].concat();
        theirs.write_all(&[&head.to_bytes()[..], &block].concat()).unwrap();
        assert!(end.poll());
        end.post();
    };

    let (mut end, mut theirs) = started();
    come(&mut end, &mut theirs, 0);
    assert!(!end.poll() && end.link.is_holding_ack(&end.ring));
    assert_eq!(told(&mut theirs), None, "not at once");
    end.submit(0);
    assert_eq!(told(&mut theirs), Some((Kind::Data, 1)), "with a block");
    assert!(!end.poll() && !end.link.is_holding_ack(&end.ring));

    come(&mut end, &mut theirs, 1);
    let polls = (0..).take_while(|_| !end.poll() && told(&mut theirs) != Some((Kind::Ack, 2))).count();
    assert!((2..=usize::from(end.ring.patience)).contains(&polls), "by itself after a while: {polls} polls");

    come(&mut end, &mut theirs, 2);
    end.link.flush_ack();
    assert!(!end.poll());
    assert_eq!(told(&mut theirs), Some((Kind::Ack, 3)), "before a thread sleeps");

    // Half of the in-flight limit.
    come(&mut end, &mut theirs, 3);
    come(&mut end, &mut theirs, 4);
    assert!(!end.poll());
    assert_eq!(told(&mut theirs), Some((Kind::Ack, 5)), "when the peer waits for it");
}

/// A peer that cannot be told, because it has sent no SOAP request or does not read, keeps no thread awake.
#[test]
fn news_that_cannot_be_told_keep_no_thread_awake() {
    let mut end = End::new(0, Instant::now(), PLAIN);
    let [mine, _theirs] = Pipe::pair(100_000, 100_000);
    end.link.connect(mine, Protocol::SoapServer, &mut end.ring);
    end.post();
    assert!(!end.poll() && end.link.is_holding_ack(&end.ring));
    end.link.flush_ack();
    assert!(!end.poll() && !end.link.is_holding_ack(&end.ring));
}

/// By SOAP, an acknowledgement that was due when requests got empty answers was taken for told.
#[test]
fn all_blocks_are_acknowledged_however_many_came_before_it_became_quiet() {
    for (count, caller) in (1..=64).flat_map(|count| [None, Some(0), Some(1)].map(|caller| (count, caller))) {
        let mut world = World::new([PLAIN, PLAIN]);
        (0..CAPACITY).for_each(|_| world.ends[1].post());
        world.run(&Operation::Connect { holds: 100_000, grain: 100_000, caller });
        let turn = |world: &mut World| world.ends.iter_mut().for_each(|end| _ = end.poll());
        (0..9).for_each(|_| turn(&mut world));
        for number in 0..count {
            world.ends[0].submit(0);
            (0..9).for_each(|_| {
                if world.ends[1].received.len() <= number {
                    turn(&mut world)
                }
            });
            world.ends[1].post();
        }
        assert_eq!(world.ends[1].received.len(), count);
        (0..200).for_each(|_| turn(&mut world));
        assert_eq!(world.ends[0].sent.len(), count, "caller: {caller:?}");
    }
}

#[test]
fn a_frame_before_the_opening_is_refused() {
    let mut end = End::new(0, Instant::now(), PLAIN);
    let [mine, mut theirs] = Pipe::pair(1000, 1000);
    end.link.connect(mine, Protocol::Tcp, &mut end.ring);
    theirs.write_all(&frame(Kind::Ack, 0, 0, 0).to_bytes()).unwrap();
    assert!(!end.poll());
    assert!(end.link.needs_connection());
    assert_eq!(end.link.stats().malformed, 1);
}

/// A peer that violates the protocol on connection after connection while no session exists is counted every time, without overflow.
#[test]
fn malformed_frames_of_a_peer_without_a_session_are_counted_however_many() {
    let mut end = End::new(0, Instant::now(), PLAIN);
    end.link.disconnect(&mut end.ring);
    while end.poll() {}
    assert!(end.is_down);
    for connection in 1..=300 {
        let [mine, mut theirs] = Pipe::pair(1000, 1000);
        end.link.connect(mine, Protocol::Tcp, &mut end.ring);
        theirs.write_all(&frame(Kind::Ack, 0, 0, 0).to_bytes()).unwrap();
        assert!(!end.poll());
        assert_eq!(end.link.stats().malformed, connection);
    }
}

/// Any process that knows the token can name the last number; those that have its place after it begin with the first ones.
#[test]
fn after_the_last_session_comes_the_first() {
    let mut end = End::new(0, Instant::now(), PLAIN);
    let mut sessions = Vec::new();
    for theirs in [1 << 31, u32::MAX, 1, 1] {
        let [mine, mut other] = Pipe::pair(1000, 1000);
        end.link.replace("127.0.0.1:1".parse().unwrap(), u64::from(theirs), &mut end.ring);
        while end.poll() {}
        end.link.connect(mine, Protocol::Tcp, &mut end.ring);
        other.write_all(&frame(Kind::Open, theirs.into(), 0, 3).to_bytes()).unwrap();
        while end.poll() {}
        let mut bytes = [0; HEAD];
        other.read_exact(&mut bytes).unwrap();
        let own = Head::from_bytes(&bytes, 1000).unwrap().number;
        sessions.push((own, end.link.session, end.link.is_up()));
    }
    assert_eq!(sessions, [(1, 1 << 31, true), ((1 << 31) + 1, u32::MAX, true), (0, 1, true), (2, 2, true)]);
}

/// A process that is known to have ended is not reported as restored, even if it opened a connection before.
#[test]
fn a_peer_that_has_died_between_its_opening_and_the_session_is_not_restored() {
    let mut end = End::new(0, Instant::now(), PLAIN);
    end.link.disconnect(&mut end.ring);
    while end.poll() {}
    let [mine, mut theirs] = Pipe::pair(1000, 1000);
    end.link.connect(mine, Protocol::Tcp, &mut end.ring);
    theirs.write_all(&frame(Kind::Open, 1, 0, 3).to_bytes()).unwrap();
    end.link.wake(true, true);
    assert!(end.link.read(&mut end.ring).is_none());
    end.link.die(&mut end.ring);
    assert!(!end.poll() && end.is_down && !end.link.is_connected());
}

/// A peer that says goodbye counts as ended at once, without an outage.
#[test]
fn a_goodbye_ends_the_link() {
    let (mut end, mut theirs) = opened();
    end.submit(0);
    theirs.write_all(&frame(Kind::Bye, 0, 0, 0).to_bytes()).unwrap();
    while end.poll() {}
    assert!(end.link.has_ended() && end.is_down && !end.link.needs_connection());
    assert_eq!((end.sent, end.failed), (vec![], vec![0]));
}

/// A block that does not match what it states ends the connection, by name and counted, whoever expands it; nothing of it is handed on.
#[test]
fn packed_blocks_that_lie_are_refused_and_counted() {
    let packed = |packing, plain: usize| {
        let mut room = vec![0; codec::room_for(plain)];
        let length = codec::pack(packing, &vec![1; plain], &mut room).unwrap();
        room[..length].to_vec()
    };
    let posted = stride(BODY);
    for (packing, workers) in
        [(Packing::Lz4, false), (Packing::Lz4, true), (Packing::Zstd, false), (Packing::Zstd, true)]
    {
        let bomb = packed(packing, 100_000);
        let mut short = packed(packing, 300);
        short.truncate(short.len() - 1);
        let mut long = packed(packing, 400);
        long[..4].copy_from_slice(&399u32.to_le_bytes());
        let expansion = |stated| Malformed::Expansion { packing, stated };
        let cases = [
            (bomb, Malformed::Bomb { stated: 100_000, posted }),
            (short, expansion(300)),
            (long, expansion(399)),
            (vec![], expansion(0)),
        ];
        for (bytes, what) in cases {
            let mut end = End::new(0, Instant::now(), Setting { workers, ..PLAIN });
            end.post();
            for _ in 0..FAULTS {
                let [mine, mut theirs] = Pipe::pair(100_000, 100_000);
                end.link.connect(mine, Protocol::Tcp, &mut end.ring);
                theirs.write_all(&frame(Kind::Open, 0, 0, 3).to_bytes()).unwrap();
                let length = bytes.len() as u32;
                let head = Head { packing, length, ..frame(Kind::Data, 0, 0, 0) };
                theirs.write_all(&[&head.to_bytes()[..], &bytes].concat()).unwrap();
                // Until the worker has tried to expand it.
                while end.link.connection.is_some() {
                    end.poll();
                }
            }
            while end.poll() {}
            assert!(end.is_down && end.received.is_empty(), "{what}");
            assert_eq!((end.link.stats().bombs, end.link.stats().malformed), (3, 3), "{what}");
            assert!(end.ring.is_empty());
        }
    }
}

/// The purpose of a codec: fewer bytes on the connection. Blocks that do not shrink travel as they are.
#[test]
fn packed_blocks_are_counted() {
    for codec in [Codec::Lz4, Codec::Zstd] {
        let setting = Setting { codec, workers: false };
        let mut world = World::new([setting, PLAIN]);
        for number in 0..CAPACITY {
            // The first and the fourth block are noise.
            world.run(&Operation::Submit(0, 399 + number));
        }
        world.settle(None);
        let stats = world.ends[0].link.stats();
        assert_eq!(stats.packed, 3);
        assert!(stats.packed_bytes * 4 < stats.plain_bytes, "{stats:?}");
        assert_eq!(world.ends[1].received.len(), CAPACITY);
        assert_eq!(world.ends[1].link.stats().packed, 0);
    }
}
